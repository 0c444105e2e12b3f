"""Samples as Prometheus stores them: its remote read protocol, streamed, in chunks that it has compressed itself.

To write samples as JSON costs a server twice what it costs to find them, and to read them again costs as much once more.
Here the server sends its chunks as they lie on disk. They are unpacked all at once: the first sample of every chunk,
then the second of every chunk, and so on, each step a few operations on whole arrays.

Format: remote.proto and types.proto of Prometheus (messages, framing), tsdb/docs/format/chunks.md (XOR chunks, after the
Gorilla paper by Pelkonen et al., VLDB 2015).
"""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rca.errors import SourceError
from rca.model import Floats
from rca.sources.labels import Pool
from rca.sources.matrix import tidied
from rca.sources.series import Block, Matcher

CONTENT_TYPE = "application/x-streamed-protobuf"
HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Read-Version": "0.1.0",
}
_OPS = {"=": 0, "!=": 1, "=~": 2, "!~": 3}
_STREAMED = 1
_XOR = 1
_STALE = np.uint64(0x7FF0000000000002)
_NAME = b"\x0a\x08__name__\x12"
_PADDING = 16

Words = NDArray[np.uint64]
Ints = NDArray[np.int64]

# What the first four bits of a time say: how many of them are the prefix, and how many bits of difference follow.
_PREFIX = np.array([1] * 8 + [2] * 4 + [3] * 2 + [4] * 2, dtype=np.int64)
_WIDTH = np.array([0] * 8 + [14] * 4 + [17] * 2 + [20, 64], dtype=np.int64)
_SIGN = np.array([1] * 8 + [1 << 13] * 4 + [1 << 16] * 2 + [1 << 19, (1 << 63) - 1], dtype=np.int64)
_HALF = np.uint64(1 << 63)


class Asked(NamedTuple):
    """What an answer is wanted for: samples in [start, end] (unix seconds), without the labels that the server adds to
    all that leaves it this way (its `external_labels`)."""

    start: float
    end: float
    foreign: Mapping[str, str]


class Chunks(NamedTuple):
    """Chunks of series: the label set of each series as bytes, and of each chunk its series and where its data begins."""

    labels: list[bytes]
    owner: Ints
    begin: Ints


def request(matchers: Sequence[Matcher], start: int, end: int) -> bytes:
    """Write a request for the chunks of some series with samples in [start, end], in milliseconds."""
    query = _field(1, start) + _field(2, end)
    for label, op, value in matchers:
        query += _bytes(3, _field(1, _OPS[op]) + _bytes(2, label.encode()) + _bytes(3, value.encode()))
    return _framed(_bytes(1, query) + _field(2, _STREAMED))


def _field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _bytes(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """Write a number, seven bits a byte, the lowest first.

    >>> _varint(300).hex()
    'ac02'
    """
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes([*written, value])


def _framed(data: bytes) -> bytes:
    """Write data in Snappy's format, as literals: a request is too short to be worth compressing."""
    pieces = [_varint(len(data))]
    for at in range(0, len(data), 60):
        piece = data[at : at + 60]
        pieces.append(bytes([(len(piece) - 1) << 2]) + piece)
    return b"".join(pieces)


def decode(body: bytes, place: str, pool: Pool, asked: Asked) -> tuple[Block, int]:
    """Decode a streamed answer into the block of the samples that were asked for, and count the chunks that hold
    histograms instead.

    Raises SourceError where it is damaged.
    """
    start, end, foreign = asked
    try:
        found, others = _chunks(body)
        times, values, lanes = _samples(body, found.begin, round(end * 1000.0))
        inside = (times >= round(start * 1000.0)) & (times <= round(end * 1000.0))
        inside &= values.view(np.uint64) != _STALE
        counts = np.bincount(found.owner[lanes], inside, len(found.labels)).astype(np.int64)
        filled = np.flatnonzero(counts)
        parted = [_parted(found.labels[row]) for row in filled.tolist()]
        labels = pool.read_as([name for name, _ in parted], [text for _, text in parted], partial(_read, foreign))
    except (IndexError, ValueError) as error:
        raise SourceError(f"{place}: the chunks of the answer are damaged ({error}), try again") from error
    offsets = np.concatenate(([0], np.cumsum(counts[filled])))
    return tidied(Block(labels, offsets, times[inside] / 1000.0, values[inside])), others


def _parted(text: bytes) -> tuple[str, bytes]:
    """Return the name out of a label set, and the set without it.

    >>> name, gpu = _bytes(1, _bytes(1, b"__name__") + _bytes(2, b"up")), _bytes(1, _bytes(1, b"gpu") + _bytes(2, b"3"))
    >>> _parted(gpu + name) == _parted(name + gpu) == ("up", gpu)
    True
    """
    before, found, after = text.partition(_NAME)
    if not found or after[0] > 127:
        return "", text
    end = after[0] + 1
    return sys.intern(after[1:end].decode()), before[:-2] + after[end:]


def _read(foreign: Mapping[str, str], text: bytes) -> dict[str, str]:
    """Read a label set, without labels that the server has added of its own."""
    labels = _labels(text)
    return {name: value for name, value in labels.items() if foreign.get(name) != value} if foreign else labels


def _labels(text: bytes) -> dict[str, str]:
    """Read a label set.

    >>> _labels(_bytes(1, _bytes(1, b"gpu") + _bytes(2, b"3")))
    {'gpu': '3'}
    """
    labels, at, end = {}, 0, len(text)
    while at < end:
        at = at + 2 if text[at + 1] < 128 else _number(text, at + 1)[1]
        name, at = _piece(text, at)
        value, at = _piece(text, at) if at < end and text[at] == 0x12 else ("", at)
        labels[name] = value
    return labels


def _piece(text: bytes, at: int) -> tuple[str, int]:
    """Read the string of a field, and return where it ends."""
    size = text[at + 1]
    size, at = (size, at + 2) if size < 128 else _number(text, at + 1)
    return text[at : at + size].decode(), at + size


def _number(text: bytes, at: int) -> tuple[int, int]:
    """Read a number, and return where it ends."""
    value = shift = 0
    while True:
        byte = text[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _chunks(body: bytes) -> tuple[Chunks, int]:
    """Find the series of an answer and their chunks."""
    raw = np.frombuffer(body + bytes(_PADDING), dtype=np.uint8)
    begin, finish = _frames(body)
    at, stop = _entered(raw, begin, finish)
    first = at.copy()
    moving = np.arange(len(at))
    while len(moving):  # over the labels, one of each series at a time
        moving = moving[(at[moving] < stop[moving]) & (raw[at[moving]] == 0x0A)]
        size, after = _varints(raw, at[moving] + 1)
        at[moving] = after + size
    texts = [body[one:other] for one, other in zip(first.tolist(), at.tolist(), strict=True)]
    fresh = [True, *(one != other for one, other in zip(texts[1:], texts, strict=False))][: len(texts)]
    owner = np.cumsum(np.array(fresh, dtype=np.int64)) - 1
    owners, begins, others = [], [], 0
    moving = np.arange(len(at))
    while len(moving):  # over the chunks, likewise
        moving = moving[at[moving] < stop[moving]]
        if (raw[at[moving]] != 0x12).any():
            raise ValueError("a series is not labels and chunks")
        size, inner = _varints(raw, at[moving] + 1)
        at[moving] = inner + size
        kind, data = _chunk(raw, inner, inner + size)
        plain = kind == _XOR
        others += int((~plain).sum())
        owners.append(moving[plain])
        begins.append(data[plain])
    lanes = np.concatenate([*owners, np.zeros(0, dtype=np.int64)])
    order = np.argsort(lanes, kind="stable")
    data = np.concatenate([*begins, np.zeros(0, dtype=np.int64)])[order]
    labels = [text for text, new in zip(texts, fresh, strict=True) if new]
    return Chunks(labels, owner[lanes[order]], data), others


def _frames(body: bytes) -> tuple[Ints, Ints]:
    """Return where the messages of a stream begin and end: each follows its size and a checksum of four bytes."""
    begin, end, at = [], [], 0
    while at < len(body):
        size = body[at]
        size, at = (size, at + 1) if size < 128 else _number(body, at)
        begin.append(at + 4)
        at += 4 + size
        end.append(at)
    if at != len(body):
        raise ValueError("it breaks off")
    return np.array(begin, dtype=np.int64), np.array(end, dtype=np.int64)


def _entered(raw: NDArray[np.uint8], begin: Ints, finish: Ints) -> tuple[Ints, Ints]:
    """Return where the one series of each message begins and ends; messages without one are left out."""
    some = begin < finish
    begin, finish = begin[some], finish[some]
    if (raw[begin] != 0x0A).any():
        raise ValueError("a message holds no series")
    size, inner = _varints(raw, begin + 1)
    if (inner + size > finish).any():
        raise ValueError("a series is longer than its message")
    return inner, inner + size


def _chunk(raw: NDArray[np.uint8], at: Ints, stop: Ints) -> tuple[Ints, Ints]:
    """Return the encoding of chunks, and where their data begins."""
    kind, data = np.zeros(len(at), dtype=np.int64), np.full(len(at), -1, dtype=np.int64)
    at = at.copy()
    moving = np.arange(len(at))
    while len(moving):
        moving = moving[at[moving] < stop[moving]]
        tag = raw[at[moving]]
        value, after = _varints(raw, at[moving] + 1)
        kind[moving] = np.where(tag == 0x18, value, kind[moving])
        data[moving] = np.where(tag == 0x22, after, data[moving])
        at[moving] = after + np.where(tag == 0x22, value, 0)
    if (data[kind == _XOR] < 0).any():
        raise ValueError("a chunk has no data")
    return kind, data


def _varints(raw: NDArray[np.uint8], at: Ints) -> tuple[Ints, Ints]:
    """Read a number at each place, and return where each ends."""
    value, at = np.zeros(len(at), dtype=np.int64), at.copy()
    open_ones = np.ones(len(at), dtype=bool)
    for shift in range(0, 70, 7):
        byte = raw[at].astype(np.int64)
        value |= np.where(open_ones, byte & 127, 0) << min(shift, 63)
        at += open_ones
        open_ones &= byte > 127
        if not open_ones.any():
            return value, at
    raise ValueError("a number does not end")


class _Lanes:
    """The chunks of an answer while they are read, an element each: where in the bits each is, and its last sample."""

    def __init__(self, body: bytes, begin: Ints) -> None:
        raw = np.frombuffer(body + bytes(_PADDING + -len(body) % 8), dtype=np.uint8)
        self._bytes = raw
        self._words = raw.view(">u8").astype(np.uint64)
        self._last = len(self._words) - 2
        self.left = (raw[begin].astype(np.int64) << 8) | raw[begin + 1]
        time, at = _varints(raw, begin + 2)
        self.time = (time >> 1) ^ -(time & 1)
        self.value: Words = self._read(at * 8)
        self.bit = (at + 8) * 8
        self.step = np.zeros(len(begin), dtype=np.int64)
        self.leading = np.zeros(len(begin), dtype=np.int64)
        self.width = np.zeros(len(begin), dtype=np.int64)

    def keep(self, lanes: NDArray[np.bool_]) -> None:
        """Go on with some of the lanes."""
        for name in ("left", "time", "value", "bit", "step", "leading", "width"):
            setattr(self, name, getattr(self, name)[lanes])

    def second(self) -> None:
        """Read the second sample of each lane, whose step is a plain number."""
        step, at = _varints(self._bytes, self.bit >> 3)
        self.step, self.bit = step, at * 8
        self.time = self.time + step
        self._next_value(self._read(self.bit))

    def next(self) -> None:
        """Read the next sample of each lane."""
        word = self._read(self.bit)
        head = (word >> np.uint64(60)).astype(np.int64)
        prefix, width = _PREFIX[head], _WIDTH[head]
        change = _top(word << prefix.astype(np.uint64), width).view(np.int64)
        far = np.flatnonzero(width == 64)
        change[far] = self._read(self.bit[far] + 4).view(np.int64)
        sign = _SIGN[head]
        change -= np.where(change > sign, sign, 0) * 2
        used = prefix + width
        self.bit = self.bit + used
        self.step = self.step + change
        self.time = self.time + self.step
        rest = word << np.minimum(used, 63).astype(np.uint64)
        rest[far] = self._read(self.bit[far])
        self._next_value(rest)

    def _next_value(self, word: Words) -> None:
        """Read what a value differs from the one before it; its 13 bits of description are in `word`."""
        other = np.flatnonzero(word >= _HALF)
        self.bit = self.bit + 1
        if not len(other):
            return
        word = word[other]
        fresh = np.flatnonzero(word >= _HALF + _HALF // 2)
        if len(fresh):
            described = (word[fresh] >> np.uint64(51)).astype(np.int64)
            width = described & 63
            self.leading[other[fresh]] = (described >> 6) & 31
            self.width[other[fresh]] = np.where(width == 0, 64, width)
        bit = self.bit[other] + 1
        bit[fresh] += 11
        width = self.width[other]
        trailing = np.clip(64 - self.leading[other] - width, 0, 63).astype(np.uint64)
        self.value[other] ^= _top(self._read(bit), width) << trailing
        self.bit[other] = bit + width

    def _read(self, bit: Ints) -> Words:
        """Return the 64 bits from each place on."""
        at = np.minimum(bit >> 6, self._last)
        shift = (bit & 63).astype(np.uint64)
        rest = (self._words[at + 1] >> np.uint64(1)) >> (np.uint64(63) - shift)
        found: Words = (self._words[at] << shift) | rest
        return found


def _top(word: Words, width: Ints) -> Words:
    """Return the uppermost bits of words, so many of each, none to all 64."""
    top: Words = (word >> np.uint64(1)) >> np.maximum(63 - width, 0).astype(np.uint64)  # a shift by 64 would do nothing
    return np.where(width == 64, word, top) if (width == 64).any() else top


def _samples(body: bytes, begin: Ints, end: int) -> tuple[Ints, Floats, Ints]:
    """Return the samples of chunks, chunk after chunk: times in milliseconds, values, and the chunk of each.

    What comes after `end` need not be read.
    """
    if not len(begin):
        return np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0, dtype=np.int64)
    lanes = _Lanes(body, begin)
    who = np.flatnonzero(lanes.left > 0)
    lanes.keep(lanes.left > 0)
    most = int(lanes.left.max(initial=0))
    times = np.zeros((most, len(begin)), dtype=np.int64)  # a row a step: what is written together lies together
    values = np.zeros((most, len(begin)), dtype=np.uint64)
    counts = np.zeros(len(begin), dtype=np.int64)
    for number in range(most):
        if number:
            lanes.second() if number == 1 else lanes.next()
        times[number, who], values[number, who] = lanes.time, lanes.value
        counts[who] += 1
        go_on = (lanes.left > number + 1) & (lanes.time < end)
        if not go_on.all():
            who = who[go_on]
            lanes.keep(go_on)
            if not len(who):
                break
    used = int(counts.max())
    there = np.arange(used) < counts[:, np.newaxis]
    return times[:used].T[there], values[:used].T[there].view(np.float64), np.repeat(np.arange(len(begin)), counts)
