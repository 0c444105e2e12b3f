"""Find the few lines of a block that may say something, without looking at every line.

Three filters, each a pass over memory: newlines are counted; lines that hold one of a few rare bytes are found with
`bytes.find`, which is `memchr` for a single byte; lines that hold one of many literals are found by the Rust library
`aho-corasick`, which for the leftmost of some dozens of literals compares many bytes at once (Teddy, of Hyperscan).
"""

from collections.abc import Collection, Iterable, Iterator

import numpy as np
from ahocorasick_rs import BytesAhoCorasick, MatchKind
from numpy.typing import NDArray

_PART = 1 << 19
"""So many bytes are filtered at once, so that they stay in the cache of a core from one pass to the next."""
_NEWLINE = np.uint8(10)


class Strainer:
    """Finds lines by rare bytes and by literals; one serves any number of files."""

    def __init__(self, rare: Iterable[bytes], literals: Iterable[bytes]) -> None:
        self._rare = tuple(rare)
        self.literals = tuple(literals)
        self._search = BytesAhoCorasick(sorted(self.literals), matchkind=MatchKind.LeftmostFirst)
        self._overlap = max(map(len, self.literals), default=1) - 1
        self._ends: NDArray[np.bool_] = np.empty(_PART, dtype=bool)

    def strain(self, block: bytes | bytearray) -> tuple[int, list[tuple[int, int]]]:
        """Return how many lines a block has, and where those begin and end that hold what is sought, in order.

        >>> Strainer([b"|"], [b"saved checkpoint from"]).strain(b"a\\nb | c\\n\\nI saved checkpoint from x")
        (4, [(2, 7), (9, 34)])
        """
        count = 0
        found: dict[int, int] = {}
        for start in range(0, len(block), _PART):
            end = min(start + _PART, len(block))
            count += self._newlines(block, start, end)
            for byte in self._rare:
                _mark_byte(block, byte, (start, end), found)
            self._mark_literals(block, start, end, found)
        if block and not block.endswith(b"\n"):
            count += 1
        return count, sorted(found.items())

    def _newlines(self, block: bytes | bytearray, start: int, end: int) -> int:
        part = np.frombuffer(block, dtype=np.uint8, count=end - start, offset=start)
        return int(np.count_nonzero(np.equal(part, _NEWLINE, out=self._ends[: len(part)])))

    def _mark_literals(self, block: bytes | bytearray, start: int, end: int, found: dict[int, int]) -> None:
        """Add the lines that hold a literal which begins within bounds."""
        done = 0
        find, rfind = block.find, block.rfind
        for _, place, _ in self._search.find_matches_as_indexes(memoryview(block)[start : end + self._overlap]):
            at = start + place
            if at >= done:
                done = find(b"\n", at)
                found[rfind(b"\n", 0, at) + 1] = done = done if done >= 0 else len(block)


def _mark_byte(block: bytes | bytearray, byte: bytes, bounds: tuple[int, int], found: dict[int, int]) -> None:
    """Add the lines that hold a byte within bounds."""
    at, end = bounds
    while (at := block.find(byte, at, end)) >= 0:
        begin = block.rfind(b"\n", 0, at) + 1
        at = block.find(b"\n", at)
        found[begin] = at = at if at >= 0 else len(block)


def between(known: Collection[int], block: bytes | bytearray, count: int) -> Iterator[bytes]:
    """Yield up to `count` lines whose beginnings are not among these, from places spread evenly over the block."""
    step = max(len(block) // count, 1)
    last = -1
    for at in range(0, len(block), step):
        begin = block.rfind(b"\n", 0, at) + 1
        if begin in known or begin == last:
            continue
        last = begin
        end = block.find(b"\n", begin)
        yield bytes(block[begin : end if end >= 0 else len(block)])
