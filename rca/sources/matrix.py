"""Answers of the Prometheus API, decoded into blocks of raw series."""

import struct
from collections.abc import Sequence
from operator import ne

import msgspec
import numpy as np
from numpy.typing import NDArray

from rca.errors import SourceError
from rca.model import Floats
from rca.plain import lowered
from rca.sources.labels import Pool, taken
from rca.sources.series import Block


class Series(msgspec.Struct, gc=False):
    """One series of an answer; labels and samples stay text, `[[1700000000,"63"],...]`, until all are read at once.

    Kept out of the garbage collector's sight: with it, ten thousand of these take twice the time.
    """

    metric: msgspec.Raw
    values: msgspec.Raw = msgspec.Raw(b"[]")
    histograms: msgspec.Raw = msgspec.Raw(b"")


class Matrix(msgspec.Struct, rename="camel"):
    """The data of a range vector."""

    result_type: str
    result: list[Series]


class Answer(msgspec.Struct, rename="camel"):
    """A successful answer that carries a range vector."""

    status: str
    data: Matrix
    warnings: list[str] | None = None
    infos: list[str] | None = None


class Envelope(msgspec.Struct):
    """Any answer, its data aside."""

    status: str
    warnings: list[str] | None = None
    infos: list[str] | None = None


_ANSWER = msgspec.json.Decoder(Answer)
_ENVELOPE = msgspec.json.Decoder(Envelope)
_FLAT = msgspec.json.Decoder(tuple[float, ...])
_FLAT_QUOTED = msgspec.json.Decoder(tuple[float, ...], strict=False)
_AT_ONCE = 64  # series whose numbers are read together: their text and floats then stay in the processor's cache
_FIRST = b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":'
_LAST = b"]]}]}}"
_NEXT = b',{"metric":'
_VALUES = b',"values":'
Text = bytes | msgspec.Raw
Parts = tuple[Sequence[Text], Sequence[Text], tuple[str, ...]]
"""An answer as text: the label set of each series, its list of samples, and what the server has to say."""
_MARK = -1.0  # stands where a time would between two series that are read together; no sample is from before 1970


def decode(body: bytes, place: str, pool: Pool | None = None) -> tuple[Block, tuple[str, ...]]:
    """Decode the body of a range vector into its block, and what the server has to say about it.

    The numbers of many series are read as one flat list, which takes half the time of typed pairs. Raises SourceError
    for anything but a complete answer with a range vector.
    """
    try:
        metrics, texts, notes = _cut(body) or _parsed(body, place)
        block = _block(metrics, texts, pool or Pool())
    except msgspec.DecodeError as error:
        raise SourceError(f"{place}: {_unlike(body, error)}") from error
    except ValueError as error:
        raise SourceError(f"{place}: the samples of the answer are damaged ({error}), try again") from error
    return block, notes


def _parsed(body: bytes, place: str) -> Parts:
    """Parse an answer; series without samples are left out."""
    answer = _ANSWER.decode(body)
    if answer.data.result_type != "matrix":
        raise SourceError(f"{place}: answers with a {answer.data.result_type} where a matrix belongs")
    notes = _notes(answer)
    histograms = sum(bool(len(series.histograms)) for series in answer.data.result)
    if histograms:
        notes += (f"{histograms} series are native histograms, which are not read",)
    filled = [series for series in answer.data.result if bytes(series.values).strip(b"[ ]")]
    return [series.metric for series in filled], [series.values for series in filled], notes


def _cut(body: bytes) -> Parts | None:
    """Cut an answer in the layout of Prometheus at its closing braces, in a third of the time of parsing it.

    None where anything is laid out otherwise: warnings, native histograms, a brace in a label. No such text can look
    like what must follow a brace, as a quote inside a string is escaped.

    >>> _cut(b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"b"},"values":[[1,"2"]]}]}}')
    ([b'{"a":"b"}'], [b'[[1,"2"]]'], ())
    """
    if not body.startswith(_FIRST) or not body.endswith(_LAST):
        return None
    parts = (_NEXT + body[len(_FIRST) : 2 - len(_LAST)]).split(b"}")
    metrics, values = parts[0::2], parts[1::2]
    if len(metrics) != len(values) or not all(text.startswith(_NEXT) for text in metrics):
        return None
    if not all(text.startswith(_VALUES) and text.endswith(b'"]]') for text in values):
        return None
    return [text[len(_NEXT) :] + b"}" for text in metrics], [text[len(_VALUES) :] for text in values], ()


def notes(body: bytes, place: str) -> tuple[str, ...]:
    """Return what the server has to say besides the data; raise SourceError for anything but a success."""
    try:
        envelope = _ENVELOPE.decode(body)
    except msgspec.DecodeError as error:
        raise SourceError(f"{place}: {_unlike(body, error)}") from error
    if envelope.status != "success":
        raise SourceError(f"{place}: answers with status {envelope.status!r}, is this a Prometheus server")
    return _notes(envelope)


def _notes(answer: Answer | Envelope) -> tuple[str, ...]:
    return (*(answer.warnings or ()), *(answer.infos or ()))


def _unlike(body: bytes, error: msgspec.DecodeError) -> str:
    """Say what is wrong with a body that is no answer."""
    if isinstance(error, msgspec.ValidationError):
        return f"the answer is JSON, but not of the Prometheus API ({lowered(str(error))}), is the URL right"
    if body[:1] in b"{[" and "truncated" in str(error):
        return f"the answer breaks off after {len(body)} bytes, try again"
    return f"the answer is not JSON ({lowered(str(error))}), is this a Prometheus server"


def _block(metrics: Sequence[Text], texts: Sequence[Text], pool: Pool) -> Block:
    """Put series into a block.

    Series that follow each other with the same samples to the letter are read once: the GPUs of a node share their
    times, and much that is said of them is constant.
    """
    labels = pool.read(metrics)
    fresh = [True, *map(ne, texts[1:], texts)][: len(texts)]
    which = np.cumsum(fresh) - 1
    offsets, times, values = _samples([text for text, new in zip(texts, fresh, strict=True) if new])
    block = Block(labels, offsets, times, values)
    if len(which) and which[-1] + 1 < len(which):
        counts = np.diff(offsets)[which]
        ends = np.cumsum(counts)
        pick = np.repeat(offsets[which] - ends + counts, counts) + np.arange(ends[-1])
        block = Block(labels, np.concatenate(([0], ends)), times[pick], values[pick])
    return tidied(block)


def _samples(texts: Sequence[Text]) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Return the samples of lists of `[time,"value"]` pairs: offsets, times and values, as a block has them."""
    times, values, counts = [np.zeros(0)], [np.zeros(0)], [np.zeros(1, dtype=np.int64)]
    for at in range(0, len(texts), _AT_ONCE):
        part = texts[at : at + _AT_ONCE]
        numbers = _numbers(part)
        samples = numbers[0::2] != _MARK
        marks = np.flatnonzero(~samples)
        if len(numbers) % 2 or len(marks) != len(part):
            raise ValueError("a sample is not a time and a value")
        times.append(numbers[0::2][samples])
        values.append(numbers[1::2][samples])
        counts.append(np.diff(marks, prepend=-1) - 1)
    return np.cumsum(np.concatenate(counts)), np.concatenate(times), np.concatenate(values)


def _numbers(texts: Sequence[Text]) -> Floats:
    """Read all numbers of lists of `[time,"value"]` pairs, flat, and a mark instead of a time after each list.

    >>> _numbers([msgspec.Raw(b'[[1.5,"-2"],[2,"+Inf"]]'), msgspec.Raw(b'[[1,"NaN"]]')])
    array([ 1.5, -2. ,  2. ,  inf, -1. ,  0. ,  1. ,  nan, -1. ,  0. ])
    """
    pairs = b',-1,"0",'.join([*texts, b""])[:-1]
    text = pairs.translate(None, b'[]"')
    if b"N" in text or b"I" in text:  # JSON has neither NaN nor Inf; quoted, msgspec reads all but "+Inf"
        quoted = pairs.translate(None, b"[]").replace(b'"+Inf"', b'"Inf"')
        flat = _FLAT_QUOTED.decode(b"[" + quoted + b"]")
    else:
        flat = _FLAT.decode(b"[" + text + b"]")
    return np.frombuffer(struct.pack(f"{len(flat)}d", *flat))  # a third of the time that numpy takes for a sequence


def tidied(block: Block) -> Block:
    """Return a block whose times ascend strictly within each series; of equal times the last sample stays."""
    steps = np.diff(block.times)
    inside = np.ones(len(steps), dtype=bool)
    inside[block.offsets[1:-1] - 1] = False
    if not len(steps) or bool(np.all(steps[inside] > 0)):
        return block
    owner = np.repeat(np.arange(len(block.labels)), np.diff(block.offsets))
    order = np.lexsort((block.times, owner))
    owner, times, values = owner[order], block.times[order], block.values[order]
    last = np.ones(len(times), dtype=bool)
    last[:-1] = (owner[1:] != owner[:-1]) | (times[1:] != times[:-1])
    return kept(Block(block.labels, block.offsets, times, values), last)


def clipped(block: Block, start: float, end: float) -> Block:
    """Return the samples of a block with times in [start, end]; series without any are left out."""
    inside = (block.times >= start) & (block.times <= end)
    return block if bool(np.all(inside)) else kept(block, inside)


def kept(block: Block, mask: NDArray[np.bool_]) -> Block:
    """Return the samples of a block that a mask keeps, shape (samples,); series without any are left out."""
    offsets = np.concatenate(([0], np.cumsum(mask)))[block.offsets]
    filled = np.flatnonzero(np.diff(offsets))
    return Block(
        taken(block.labels, filled), np.concatenate(([0], offsets[1:][filled])), block.times[mask], block.values[mask]
    )


def joined(blocks: Sequence[Block]) -> Block:
    """Return one block of blocks that follow each other in time; equal labels are one series."""
    if len(blocks) == 1:
        return blocks[0]
    rows: dict[tuple[tuple[str, str], ...], int] = {}
    labels: list[dict[str, str]] = []
    owners: list[NDArray[np.int64]] = []
    for block in blocks:
        row = np.empty(len(block.labels), dtype=np.int64)
        for index, label in enumerate(block.labels):
            row[index] = rows.setdefault(tuple(sorted(label.items())), len(rows))
            if row[index] == len(labels):
                labels.append(label)
        owners.append(np.repeat(row, np.diff(block.offsets)))
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    offsets = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=len(labels)))))
    times = np.concatenate([block.times for block in blocks])[order]
    values = np.concatenate([block.values for block in blocks])[order]
    return tidied(Block(labels, offsets.astype(np.int64), times, values))
