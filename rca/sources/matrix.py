"""Answers of the Prometheus API, decoded into blocks of raw series."""

import contextlib
from collections.abc import Sequence
from operator import ne
from typing import NamedTuple

import msgspec
import numpy as np
import simdjson
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
_AT_ONCE = 64  # series whose numbers are read together: their text and numbers then stay in the processor's cache
_FIRST = b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":'
_LAST = b"]]}]}}"
_NEXT = b',{"metric":'
_VALUES = b',"values":'
_MARK = 9e99  # stands where a time would, between two series that are read together
Text = bytes | msgspec.Raw


class Parts(NamedTuple):
    """An answer as text: the label set of each series, the lists of samples, which of the series has a list of its own
    (the others have that of the series before), and what the server has to say."""

    metrics: Sequence[Text]
    samples: Sequence[Text]
    fresh: Sequence[bool]
    notes: tuple[str, ...]


def decode(body: bytes, place: str, pool: Pool | None = None) -> tuple[Block, tuple[str, ...]]:
    """Decode the body of a range vector into its block, and what the server has to say about it.

    Raises SourceError for anything but a complete answer with a range vector.
    """
    try:
        parts = _cut(body) or _parsed(body, place)
        block = _block(parts, pool or Pool())
    except msgspec.DecodeError as error:
        raise SourceError(f"{place}: {_unlike(body, error)}") from error
    except ValueError as error:
        raise SourceError(f"{place}: the samples of the answer are damaged ({error}), try again") from error
    return block, parts.notes


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
    texts = [series.values for series in filled]
    fresh = [True, *map(ne, texts[1:], texts)][: len(texts)]
    own = [text for text, new in zip(texts, fresh, strict=True) if new]
    return Parts([series.metric for series in filled], own, fresh, notes)


def _cut(body: bytes) -> Parts | None:
    """Cut an answer in the layout of Prometheus at its closing braces, in a fraction of the time of parsing it.

    None where anything is laid out otherwise: warnings, native histograms, a brace in a label. No such text can look
    like what must follow a brace, as a quote inside a string is escaped.

    >>> _cut(_FIRST + b'{"a":"b"},"values":[[1,"2"]]},{"metric":{"a":"c"},"values":[[1,"2"]]}]}}')[:3]
    ([b'{"a":"b"}', b'{"a":"c"}'], [b'[[1,"2"]]}'], [True, False])
    """
    if not body.startswith(_FIRST) or not body.endswith(_LAST):
        return None
    find, follows = body.find, body.startswith
    parts = Parts(metrics := [], samples := [], fresh := [], ())
    text, end, at, until = b"{", 0, len(_FIRST), len(body) - len(b"]}}")
    while end != until:
        brace = find(b"}", at) + 1
        metrics.append(body[at:brace])
        begin = brace + len(_VALUES)
        if not follows(_VALUES, brace):
            return None
        new = not follows(text, begin)
        if new:
            text = body[begin : find(b"}", begin) + 1]
            samples.append(text)
        end = begin + len(text)
        at = end + len(_NEXT)
        if not text.endswith(b'"]]}') or not (end == until or follows(_NEXT, end)):
            return None
        fresh.append(new)
    return parts


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


def _block(parts: Parts, pool: Pool) -> Block:
    """Put series into a block.

    Series that follow each other with the same samples to the letter are read once: the GPUs of a node share their
    times, and much that is said of them is constant.
    """
    labels = pool.read(parts.metrics)
    offsets, times, values = _samples(parts.samples)
    block = Block(labels, offsets, times, values)
    if len(parts.samples) < len(parts.metrics):
        which = np.cumsum(parts.fresh) - 1
        counts = np.diff(offsets)[which]
        ends = np.cumsum(counts)
        pick = np.repeat(offsets[which] - ends + counts, counts) + np.arange(ends[-1])
        block = Block(labels, np.concatenate(([0], ends)), times[pick], values[pick])
    return tidied(block)


def _samples(texts: Sequence[Text]) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Return the samples of lists of `[time,"value"]` pairs: offsets, times and values, as a block has them."""
    parser = simdjson.Parser()
    read = [_numbers(texts[at : at + _AT_ONCE], parser) for at in range(0, len(texts), _AT_ONCE)]
    numbers = np.concatenate([np.zeros(0), *read])
    samples = numbers[0::2] != _MARK
    marks = np.flatnonzero(~samples)
    if len(numbers) % 2 or len(marks) != len(texts):
        raise ValueError("a sample is not a time and a value")
    offsets = np.concatenate(([0], marks - np.arange(len(marks))))
    return offsets, numbers[0::2][samples], numbers[1::2][samples]


def _numbers(texts: Sequence[Text], parser: simdjson.Parser) -> Floats:
    """Read all numbers of lists of `[time,"value"]` pairs, flat, and a mark instead of a time after each list.

    They are read as one list of JSON numbers, without a Python object for each. A list with what JSON has not (NaN,
    Inf), what simdjson takes for an integer and is none (-0), or what it refuses is read by Python; the value is the
    same to the last bit.

    >>> _numbers([msgspec.Raw(b'[[1.5,"-2"],[2,"+Inf"]]'), msgspec.Raw(b'[[1,"NaN"]]')], simdjson.Parser())
    array([ 1.5e+00, -2.0e+00,  2.0e+00,      inf,  9.0e+99,  0.0e+00,
            1.0e+00,      nan,  9.0e+99,  0.0e+00])
    """
    text = b",9e99,0,".join([*texts, b""])[:-1].translate(None, b'[]}"')
    if b"N" not in text and b"I" not in text and (b"-" not in text or b"-0," not in text):
        with contextlib.suppress(ValueError, TypeError, RuntimeError):  # the last is for integers of more than 64 bits
            return _plain_numbers(text, parser)
    if len(texts) > 1:
        return np.concatenate([_numbers([one], parser) for one in texts])
    if b"_" in text:
        raise ValueError("a number with an underscore")
    return np.array([float(one) for one in text.split(b",")])


def _plain_numbers(text: bytes, parser: simdjson.Parser) -> Floats:
    """Read JSON numbers; raises ValueError, TypeError or RuntimeError where some are none. Nothing keeps the parser."""
    numbers = parser.parse(b"[" + text + b"]")
    assert isinstance(numbers, simdjson.Array)
    return np.frombuffer(numbers.as_buffer(of_type="d"))


def tidied(block: Block) -> Block:
    """Return a block whose times ascend strictly within each series; of equal times the last sample stays."""
    steps = np.diff(block.times)
    steps[block.offsets[1:-1] - 1] = 1  # from one series to the next
    if steps.min(initial=1) > 0:
        return block
    owner = np.repeat(np.arange(len(block.labels)), np.diff(block.offsets))
    order = np.lexsort((block.times, owner))
    owner, times, values = owner[order], block.times[order], block.values[order]
    last = np.ones(len(times), dtype=bool)
    last[:-1] = (owner[1:] != owner[:-1]) | (times[1:] != times[:-1])
    return kept(Block(block.labels, block.offsets, times, values), last)


def clipped(block: Block, start: float, end: float) -> Block:
    """Return the samples of a block with times in [start, end]; series without any are left out."""
    if not len(block.times) or (block.times.min() >= start and block.times.max() <= end):
        return block
    return kept(block, (block.times >= start) & (block.times <= end))


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
