"""Series of what is known between two times: that never change, that change at some times, that go on from their end."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rca.model import Floats
from rca.sources.kept import Series
from rca.sources.series import Block

STEP = 15.0
"""Seconds between the samples of these series, as between scrapes."""


class Span(NamedTuple):
    """The time that series are made for."""

    start: float
    end: float

    def grid(self) -> Floats:
        """Return the times of samples, and the end."""
        times = np.arange(self.start, self.end, STEP)
        return np.append(times, self.end)

    def constant(self, labels: Mapping[str, str], value: float = 1.0) -> Series:
        """Return a series that never changes."""
        times = self.grid()
        return Series(labels, times, np.full(len(times), value))

    def since(self, labels: Mapping[str, str], begin: float, value: float) -> Series:
        """Return a series that begins with a value at a time."""
        return self.steps(labels, [begin], [value], None)

    def steps(
        self, labels: Mapping[str, str], times: Sequence[float], values: Sequence[float], before: float | None = 0.0
    ) -> Series:
        """Return a series that changes at some ascending times, and reads `before` ahead of them (None: nothing)."""
        grid = np.unique(np.concatenate([self.grid(), np.clip(times, self.start, self.end)]))
        index = np.searchsorted(np.asarray(times), grid, side="right") - 1
        level = np.where(index >= 0, np.asarray(values)[np.maximum(index, 0)], np.nan if before is None else before)
        there = ~np.isnan(level)
        return Series(labels, grid[there], level[there])


def carried(block: Block, until: float) -> Block:
    """Return series with their last samples carried on to a time, as an exporter would show what has stopped."""
    last = block.times[block.offsets[1:] - 1]
    grids = [np.append(np.arange(time + STEP, until, STEP), until) if time < until else np.zeros(0) for time in last]
    series = [
        Series(
            labels,
            np.concatenate([block.times[begin:end], grid]),
            np.concatenate([block.values[begin:end], np.full(len(grid), block.values[end - 1])]),
        )
        for labels, begin, end, grid in zip(
            block.labels, block.offsets[:-1].tolist(), block.offsets[1:].tolist(), grids, strict=True
        )
    ]
    offsets = np.concatenate(([0], np.cumsum([len(one.times) for one in series]))).astype(np.int64)
    return Block(
        block.labels,
        offsets,
        np.concatenate([one.times for one in series]),
        np.concatenate([one.values for one in series]),
    )
