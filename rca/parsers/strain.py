"""Find the few lines of a block that may say something, without looking at every line.

Three filters, each a pass over memory: newlines are counted; lines that hold one of a few rare bytes are found with
`bytes.find`, which is `memchr` for a single byte; and lines that hold one of many literals are found on a grid. A
literal of 15 bytes or more covers an aligned group of eight bytes wherever it stands, so all aligned groups of a block
are hashed at once and looked up in a table of the groups that the literals can show (the q-gram filter of string
matching, Ukkonen 1992, with samples at fixed places). The last bytes of a literal are taken, as they tell it from other
words best; what passes is compared in full.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

SHORTEST = 15
_STRIDE = 8
_PART = 1 << 20
"""So many bytes are filtered at once, so that they stay in the processor's cache from one pass to the next."""
_BITS = 18
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(64 - _BITS)


class Strainer:
    """Finds lines by rare bytes and by literals; one serves any number of files."""

    def __init__(self, rare: Iterable[bytes], literals: Iterable[bytes]) -> None:
        self._rare = tuple(rare)
        self.literals = tuple(literals)
        short = [one for one in self.literals if len(one) < SHORTEST]
        assert not short, f"too short to be found on the grid: {short}"
        self._whole: dict[bytes, list[tuple[bytes, int]]] = {}
        for one in self.literals:
            for at in range(len(one) - SHORTEST, len(one) - SHORTEST + _STRIDE):
                self._whole.setdefault(one[at : at + 8], []).append((one, at))
        groups = self._groups = np.sort(np.frombuffer(b"".join(self._whole), dtype=np.uint64))
        self._table = np.zeros(1 << _BITS, dtype=bool)
        self._table[((groups * _FACTOR) >> _SHIFT).astype(np.int64)] = True
        self._hashes: NDArray[np.uint64] = np.empty(_PART // 8, dtype=np.uint64)
        self._hits: NDArray[np.bool_] = np.empty(_PART // 8, dtype=bool)
        self._ends: NDArray[np.bool_] = np.empty(_PART, dtype=bool)

    def strain(self, block: bytes) -> tuple[int, list[tuple[int, int]]]:
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

    def _newlines(self, block: bytes, start: int, end: int) -> int:
        part = np.frombuffer(block, dtype=np.uint8, count=end - start, offset=start)
        flags = np.equal(part, 10, out=self._ends[: len(part)])
        return int(np.count_nonzero(flags))

    def _mark_literals(self, block: bytes, start: int, end: int, found: dict[int, int]) -> None:
        """Add the lines that hold a literal which covers an aligned group within bounds."""
        done = 0
        for at in self._grid(block, start, end):
            if at < done:
                continue
            for literal, before in self._whole[block[at : at + 8]]:
                if at >= before and block.startswith(literal, at - before):
                    begin, done = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
                    found[begin] = done = len(block) if done < 0 else done
                    break

    def _grid(self, block: bytes, start: int, end: int) -> Sequence[int]:
        """Return the places of aligned groups of eight bytes that a literal may show."""
        part = np.frombuffer(block, dtype=np.uint64, count=(end - start) // 8, offset=start)
        hashes = np.multiply(part, _FACTOR, out=self._hashes[: len(part)])
        np.right_shift(hashes, _SHIFT, out=hashes)
        self._table.take(hashes.view(np.int64), out=self._hits[: len(part)], mode="clip")
        places = np.flatnonzero(self._hits[: len(part)])
        seen = part[places]
        near = np.minimum(np.searchsorted(self._groups, seen), len(self._groups) - 1)
        exact: list[int] = (places[self._groups[near] == seen] * 8 + start).tolist()
        return exact


def _mark_byte(block: bytes, byte: bytes, bounds: tuple[int, int], found: dict[int, int]) -> None:
    """Add the lines that hold a byte within bounds."""
    find, rfind, (at, end) = block.find, block.rfind, bounds
    while (at := find(byte, at, end)) >= 0:
        begin = rfind(b"\n", 0, at) + 1
        at = find(b"\n", at)
        if at < 0:
            at = len(block)
        found[begin] = at


def between(lines: Sequence[tuple[int, int]], block: bytes, count: int) -> Iterator[bytes]:
    """Yield up to `count` lines that are not among these, from places spread evenly over the block."""
    known = {begin for begin, _ in lines}
    step = max(len(block) // count, 1)
    last = -1
    for at in range(0, len(block), step):
        begin = block.rfind(b"\n", 0, at) + 1
        if begin in known or begin == last:
            continue
        last = begin
        end = block.find(b"\n", begin)
        yield block[begin : len(block) if end < 0 else end]
