"""Blocks of complete lines of a file, forwards or backwards, and the place of a time in it."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from rca.loglines.files import Content
from rca.loglines.parse import MOST, Parser

BLOCK = 4 << 20
LONGEST = 16 << 20
"""A line longer than this is known by its beginning only."""
PROBE = 1 << 16
SLACK = 10.0
"""Seconds by which lines may be out of order in a file."""
_LOOKS = 5
"""Places, spread over a file, at which it is looked whether it is in order."""
_TIME = re.compile(rb'"(?:timestamp|@timestamp|ts|time|asctime)" ?: ?("[^"]{1,40}"|[\d.]{1,24})')


class Block(NamedTuple):
    """Complete lines, and where they begin in the file; `ended` says whether the last of them has its newline."""

    offset: int
    data: bytes
    ended: bool = True

    def lines(self) -> Iterator[tuple[int, bytes, bool]]:
        """Yield where each line begins, the line, and whether it has its newline."""
        offset = self.offset
        pieces = self.data.split(b"\n")
        last = pieces.pop()
        for piece in pieces:
            yield offset, piece, True
            offset += len(piece) + 1
        if last:
            yield offset, last, self.ended


def forwards(content: Content, begin: int, end: int, size: int = BLOCK) -> Iterator[Block]:
    """Yield the lines that begin in a part of a file, in blocks of a size; `begin` is where a line begins.

    Of a line longer than `LONGEST` only the beginning comes.
    """
    offset = begin
    while offset < min(end, content.size):
        data = content.at(offset, min(size, end - offset + PROBE))
        while b"\n" not in data and len(data) <= LONGEST and (more := content.at(offset + len(data), BLOCK)):
            data += more
        if not data:
            return
        cut = data.rfind(b"\n") + 1
        if not cut and len(data) > LONGEST:
            yield Block(offset, data[: MOST + 1])
            offset = _line_begin(content, offset + len(data))
            continue
        if offset + len(data) < content.size:
            data = data[:cut]
        if offset + len(data) > end:
            data = data[: data.find(b"\n", end - 1 - offset) + 1 or len(data)]
        yield Block(offset, data, ended=data.endswith(b"\n"))
        offset += len(data)


def backwards(content: Content, size: int = BLOCK) -> Iterator[Block]:
    """Yield the lines of a file block by block from its end; blocks grow from `size` on."""
    end = content.size
    while end > 0:
        block = before(content, end, size)
        yield block
        end, size = block.offset, min(size * 2, BLOCK)


def before(content: Content, end: int, size: int) -> Block:
    """Return the lines that stand before a place at which a line begins, about as many bytes of them as `size` says."""
    while True:
        begin = _line_begin(content, max(end - size, 0))
        if begin < end:
            data = content.at(begin, end - begin)
            return Block(begin, data, ended=data.endswith(b"\n"))
        if size >= LONGEST:
            begin = _line_begin_before(content, end)
            return Block(begin, content.at(begin, min(end - begin, MOST + 1)))
        size *= 4  # one line is longer


def _line_begin(content: Content, at: int) -> int:
    """Return where the first line begins at a place or behind it; the size of the file where none does."""
    if at <= 0:
        return 0
    at -= 1
    while at < content.size:
        data = content.at(at, PROBE)
        cut = data.find(b"\n")
        if cut >= 0:
            return at + cut + 1
        at += len(data) or content.size
    return content.size


def _line_begin_before(content: Content, end: int) -> int:
    """Return where the line begins whose newline stands in front of `end`."""
    at = end - 1
    while at > 0:
        begin = max(at - BLOCK, 0)
        cut = content.at(begin, at - begin).rfind(b"\n")
        if cut >= 0:
            return begin + cut + 1
        at = begin
    return 0


class Timeline:
    """Where times lie in a file whose lines are in order, apart from `SLACK` seconds."""

    def __init__(self, content: Content, parser: Parser) -> None:
        self._content, self._parser = content, parser
        self._seen: dict[int, float] = {}

    @property
    def timed(self) -> bool:
        """Say whether any line tells a time, as far as lines have been looked at."""
        return bool(self._seen)

    @property
    def ordered(self) -> bool:
        """Say whether all times seen so far are in order."""
        times = [time for _, time in sorted(self._seen.items())]
        return all(later >= earlier - SLACK for earlier, later in pairwise(times))

    def part(self, start: float, end: float) -> tuple[int, int]:
        """Return the part of the file in which lines of a stretch of time begin; all of it where it is in no order."""
        if not self._seen:
            for share in range(_LOOKS):
                self.next_timed(max(self._content.size - PROBE, 0) * share // (_LOOKS - 1), self._content.size)
        begin = 0 if start == float("-inf") else self._bisect(start - SLACK)
        stop = self._content.size if end == float("inf") else self._bisect(end + SLACK, after=True)
        return (begin, stop) if self.ordered else (0, self._content.size)

    def _bisect(self, time: float, *, after: bool = False) -> int:
        """Return where a line begins before which all are earlier than a time; `after`: from which on all are later.

        Lines without a time belong to the line before them, so the latter is where a line tells a time, or the end.
        """
        low, high, stop = 0, self._content.size, self._content.size
        while high - low > PROBE:
            middle = (low + high) // 2
            found = self.next_timed(middle, high)
            if found is not None and found[1] < time:
                low = found[0]
            else:
                high = middle
                stop = found[0] if found is not None else stop
        return stop if after else low

    def next_timed(self, at: int, end: int) -> tuple[int, float] | None:
        """Return where the first line that tells a time begins at a place or behind it, and the time."""
        begin = _line_begin(self._content, at)
        while begin < end:
            data = self._content.at(begin, PROBE)
            cut = data.rfind(b"\n") + 1
            for offset, line, whole in Block(begin, data[:cut] or data, ended=bool(cut)).lines():
                time = self._time(line, whole=whole)
                if time is not None:
                    self._seen[offset] = time
                    return (offset, time) if offset < end else None
            begin = begin + cut if cut else _line_begin(self._content, begin + 1)
        return None

    def _time(self, line: bytes, *, whole: bool) -> float | None:
        if whole:
            self._parser.time = None
            read = self._parser.read(line, 0)
            return None if read is None else read.time
        match = _TIME.search(line)
        if match is None:
            return self._parser.stamps.find(line)
        return self._parser.stamps.value(match[1].strip(b'"').decode("utf-8", "replace"))
