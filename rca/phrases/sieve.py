"""Finds the places of many literals in a block of bytes at once.

A search for each literal would read the block as often as there are literals. A literal of at least seven bytes holds
one whole word of four aligned bytes wherever it stands, one of four different ones. So the block is read once, as such
words, and each word is looked up by a hash of sixteen bits; of what remains the words before and behind are compared too,
and of the few that are left every byte. Which seven bytes of a longer literal are used is chosen by how rare they are.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

_Words: TypeAlias = npt.NDArray[np.uint32]

LEAST = 7
"""Bytes that a literal needs."""
_AT_ONCE = 1 << 16
"""Words that are looked up at a time: what is in between fits into the cache of a core."""
_FEW = 16
"""Words that are looked at one by one sooner than all together."""
_FACTOR, _SHIFT = np.uint32(2654435761), np.uint32(16)  # Fibonacci hashing: 2^32 over the golden ratio
_COMMON = b" etaoinsrhldcumfpgwybv,.:=\"|-_0123456789kxjqz/()[]{}'"
"""Letters of logs, the frequent ones first."""
_ORDINARY = (
    b"n1:1:1 [0] NCCL INFO Channel comm rank nranks stream thread  [Rank 0] rank 0 ranks unable able using used the entire "
    b"process training running loading waiting ding ing  completed successfully saved loaded checkpoint from iteration to  | "
    b"elapsed time  timeout  error: ERROR WARN WARNING INFO DEBUG level message event extra job node step number of  loss: "
)
"""Pieces that are found everywhere in the logs of healthy jobs."""
_WEIGHT = {letter: 1.0 / (3.0 + rank) for rank, letter in enumerate(_COMMON)}


class _Entry(NamedTuple):
    """A word of a literal: which literal, where in it, and what must stand in the words before and behind."""

    word: int
    literal: int
    offset: int
    before: tuple[int, int]
    behind: tuple[int, int]


class Sieve:
    """Finds literals; the number of each is its place in the order in which they were given."""

    def __init__(self, literals: Sequence[bytes]) -> None:
        self._literals = tuple(literals)
        self._entries = sorted(
            entry for number, literal in enumerate(self._literals) for entry in _entries(number, literal)
        )
        self._words = np.array([entry.word for entry in self._entries], dtype=np.uint32)
        self._numbers: dict[int, list[int]] = {}
        for number, entry in enumerate(self._entries):
            self._numbers.setdefault(entry.word, []).append(number)
        self._sides = [
            np.array([entry[side] for entry in self._entries], dtype=np.uint32).reshape(-1, 2) for side in (3, 4)
        ]
        self._known = np.zeros(1 << 16, dtype=bool)
        self._known[(self._words * _FACTOR) >> _SHIFT] = True

    def places(self, block: bytes) -> list[tuple[int, int]]:
        """Return where literals begin and which they are, in order."""
        found: set[tuple[int, int]] = set()
        words = np.frombuffer(block, dtype="<u4", count=len(block) // 4)
        for index, number in self._candidates(words):
            entry = self._entries[number]
            begin = index * 4 - entry.offset
            if begin >= 0 and block.startswith(self._literals[entry.literal], begin):
                found.add((begin, entry.literal))
        return sorted(found)

    def _candidates(self, words: _Words) -> Iterator[tuple[int, int]]:
        """Yield the indices of words that stand in a literal between the right ones, with the numbers of the entries."""
        hashes = np.empty(min(_AT_ONCE, len(words)), dtype=np.uint32)
        hits = np.empty(len(hashes), dtype=bool)
        for begin in range(0, len(words), _AT_ONCE):
            piece = words[begin : begin + _AT_ONCE]
            these, hit = hashes[: len(piece)], hits[: len(piece)]
            np.multiply(piece, _FACTOR, out=these)
            np.right_shift(these, _SHIFT, out=these)
            np.take(self._known, these, out=hit, mode="clip")
            some = np.flatnonzero(hit)
            if len(some) > _FEW:
                yield from self._between(words, some + begin)
            else:
                for index in some.tolist():
                    yield from ((begin + index, number) for number in self._numbers.get(int(piece[index]), ()))

    def _between(self, words: _Words, indices: npt.NDArray[np.intp]) -> Iterator[tuple[int, int]]:
        """Yield which of some words stand between words that fit."""
        found = words[indices]
        entries = np.searchsorted(self._words, found)
        end = np.searchsorted(self._words, found, side="right")
        while len(indices := indices[(left := entries < end)]):
            entries, end = entries[left], end[left]
            good = np.ones(len(indices), dtype=bool)
            for side, step in zip(self._sides, (-1, 1), strict=True):
                near = indices + step
                inside = (near >= 0) & (near < len(words))
                mask, value = side[entries].T
                good &= ~inside | ((words[np.where(inside, near, 0)] & mask) == value)
            yield from zip(indices[good].tolist(), entries[good].tolist(), strict=True)
            entries = entries + 1


def _entries(number: int, literal: bytes) -> Iterator[_Entry]:
    """Yield the four words of a literal, of which one is aligned wherever it stands."""
    begin = rarest(literal)
    for offset in range(begin, begin + 4):
        word = int.from_bytes(literal[offset : offset + 4], "little")
        yield _Entry(word, number, offset, _side(literal, offset - 4), _side(literal, offset + 4))


def _side(literal: bytes, offset: int) -> tuple[int, int]:
    """Return which bits of the word at an offset a literal says something of, and what."""
    known = [(place * 8, literal[offset + place]) for place in range(4) if 0 <= offset + place < len(literal)]
    return sum(255 << shift for shift, _ in known), sum(letter << shift for shift, letter in known)


def rarest(literal: bytes) -> int:
    """Return where the seven bytes of a literal begin whose words of four are the least like ordinary text.

    >>> rarest(b"is the NVRM: Xid (PCI"), rarest(b"NCCL WARN Call to ")
    (6, 7)
    """
    weights = [_WEIGHT.get(letter, 0.01) for letter in literal]
    words = [1.0 if literal[at : at + 4] in _ORDINARY else prod(weights[at : at + 4]) for at in range(len(weights) - 3)]
    return min(range(len(words) - 3), key=lambda at: max(words[at : at + 4]))
