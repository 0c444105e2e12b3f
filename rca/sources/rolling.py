"""A store that remembers: of what it was asked before, only what has come since is asked for.

Schedules ask for nearly the same hour of samples every half minute. Of each selector the samples are kept, and the next
time the server is asked for those since the last ones, and a little more, as some arrive late.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rca.model import Floats
from rca.sources.labels import LabelSets, Pool
from rca.sources.matrix import clipped
from rca.sources.series import Block, Matcher, Selector, Store

LATE = 60.0
"""So many seconds before the end of what is known are asked for again."""
_CROWDED = 4
"""The memory is given up when it knows so many times the label sets that are alive: pods come and go."""

_Key = tuple[tuple[str, ...], tuple[Matcher, ...]]


class _Kept(NamedTuple):
    """The samples of a selector in [start, end]."""

    block: Block
    start: float
    end: float


class Memory:
    """What was read so far, and the label sets that it shares with the store that reads."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.kept: dict[_Key, _Kept] = {}

    def tidy(self, before: float) -> None:
        """Forget what nobody has asked for since, and all of it where most label sets are of the past."""
        self.kept = {key: one for key, one in self.kept.items() if one.end >= before}
        alive = max((len(one.block.labels) for one in self.kept.values()), default=0)
        if len(self.pool.sets) > _CROWDED * max(alive, 1000):
            self.pool, self.kept = Pool(), {}


class Rolling:
    """A `Store` in front of another one."""

    def __init__(self, store: Store, memory: Memory) -> None:
        self._store = store
        self._memory = memory

    def names(self, start: float, end: float) -> frozenset[str]:
        """Ask the store behind."""
        return self._store.names(start, end)

    def evaluate(self, query: str, times: Floats) -> Block:
        """Ask the store behind."""
        return self._store.evaluate(query, times)

    def warnings(self) -> tuple[str, ...]:
        """Return what the store behind has said."""
        return self._store.warnings()

    def fetch(self, selectors: Sequence[Selector]) -> Iterator[tuple[int, Block]]:
        """Yield the blocks of selectors, of which only the end is new."""
        known = [self._memory.kept.get((one.names, one.matchers)) for one in selectors]
        asked = [_rest(selector, kept) for selector, kept in zip(selectors, known, strict=True)]
        for index, block in self._store.fetch(asked):
            selector, kept = selectors[index], known[index]
            whole = (
                block
                if kept is None or asked[index] is selector
                else extended(kept.block, block, asked[index].start, self._memory.pool)
            )
            whole = clipped(whole, selector.start, selector.end)
            self._memory.kept[selector.names, selector.matchers] = _Kept(whole, selector.start, selector.end)
            yield index, whole


def _rest(selector: Selector, kept: _Kept | None) -> Selector:
    """Return the part of a selector that is not known yet; itself where too little is known."""
    if kept is None or kept.start > selector.start or not selector.start < kept.end <= selector.end:
        return selector
    return selector._replace(start=max(kept.end - LATE, selector.start))


def extended(old: Block, new: Block, since: float, pool: Pool) -> Block:
    """Return a block with the samples of `old` before `since`, and those of `new`; equal labels are one series.

    No sample is compared with another: the series of both are lined up by their numbers in the pool, and then every
    sample is moved to its place at once.
    """
    old = clipped(old, -np.inf, np.nextafter(since, -np.inf))
    labels = _together(pool.adopt(old.labels), pool.adopt(new.labels))
    _, first, row = np.unique(_keys(labels), return_index=True, return_inverse=True)
    sizes = np.diff(old.offsets), np.diff(new.offsets)
    rows = row[: len(sizes[0])], row[len(sizes[0]) :]
    lead = np.bincount(rows[0], sizes[0], len(first)).astype(np.int64)
    offsets = np.concatenate(([0], np.cumsum(lead + np.bincount(rows[1], sizes[1], len(first)).astype(np.int64))))
    times, values = np.empty(int(offsets[-1])), np.empty(int(offsets[-1]))
    begins = offsets[rows[0]], (offsets[:-1] + lead)[rows[1]]
    for block, size, begin in zip((old, new), sizes, begins, strict=True):
        place = np.repeat(begin - block.offsets[:-1], size) + np.arange(len(block.times))
        times[place], values[place] = block.times, block.values
    return Block(labels.take(first), offsets, times, values)


def _together(one: LabelSets, other: LabelSets) -> LabelSets:
    return LabelSets([*one.names, *other.names], np.concatenate((one.who, other.who)), one.pool)


def _keys(labels: LabelSets) -> NDArray[np.int64]:
    """Return a number for each series, equal where name and labels are equal."""
    names: dict[str, int] = {}
    numbers = [names.setdefault(name, len(names)) for name in labels.names]
    return np.array(numbers, dtype=np.int64) * len(labels.pool.sets) + labels.who
