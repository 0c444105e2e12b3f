"""Raw samples become matrices: real timestamps are placed on an even grid, counters become differences.

Nothing here knows what a metric means. A sample lies on its nearest grid step, so a gap stays a gap. NaN means "no
sample" throughout. No function depends on the order of the series.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rca.model import Floats
from rca.relations import gather
from rca.sources.series import Block

Ints = NDArray[np.int64]
Combine = Literal["max", "min", "sum", "mean", "last"]

BLANK = 9.2e18
"""From here up a value is DCGM's "not available" (9223372036854775794 and its neighbours; dcgm_structs.h)."""
EDGE = 0.47
"""A sample further than this share of a step from its grid time also stands for the next one, if that is empty."""
FRESH = 2.5
"""A counter whose newest sample is older than so many of its intervals has ended."""
SLOW = 1.02
"""A series whose interval is above this share of the step is carried from one sample to the next."""
ALIKE = 0.1
"""A series whose mean time between samples is off the usual by less than this share has the usual interval."""
KEPT = 4
"""So many spans of a timeline are kept."""
NOWHERE, AHEAD = -2, -1


@dataclass(frozen=True)
class Grid:
    """Evenly spaced times: `size` of them, `step` seconds apart, the last at `end`."""

    end: float
    step: float
    size: int

    def times(self) -> Floats:
        """Return the times, shape (size,), unix seconds."""
        return self.end - self.step * np.arange(self.size - 1, -1, -1, dtype=np.float64)

    @property
    def start(self) -> float:
        """Return the first time."""
        return self.end - self.step * (self.size - 1)


def clean(block: Block, end: float) -> tuple[Block, int, int]:
    """Drop what is no sample: NaN, infinities, sentinels, and anything after `end`.

    Returns the block, how many infinities and sentinels were dropped, and how many series have timestamps that run
    past `end` or backwards by more than a minute.
    """
    if not len(block.times) or (block.times.max() <= end and _plain(block.values) and _ascending(block)):
        return block, 0, 0
    jumping = block.times > end
    series = np.repeat(np.arange(len(block.labels)), np.diff(block.offsets))
    back = np.flatnonzero(np.diff(block.times) < 0.0)
    back = back[series[back] == series[back + 1]]
    odd = np.union1d(series[block.times > end + 60.0], series[back[block.times[back + 1] < block.times[back] - 60.0]])
    fine = np.abs(block.values) < BLANK
    keep = fine & ~jumping
    if len(back) == 0 and bool(keep.all()):
        return block, 0, len(odd)
    blanks = int(np.count_nonzero(~fine & ~np.isnan(block.values)))
    order = np.lexsort((block.times, series)) if len(back) else np.arange(len(series))
    order = order[keep[order]]
    counts = np.bincount(series[order], minlength=len(block.labels))
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return Block(block.labels, offsets, block.times[order], block.values[order]), blanks, len(odd)


def _plain(values: Floats) -> bool:
    """Say whether values, at least one, are all numbers and no sentinels."""
    return bool(values.min() > -BLANK and values.max() < BLANK)  # both are NaN where one is


def _ascending(block: Block) -> bool:
    """Say whether times nowhere fall within a series."""
    steps = np.diff(block.times)
    ends = block.offsets[1:-1] - 1
    steps[ends[(ends >= 0) & (ends < len(steps))]] = 0
    return bool(steps.min(initial=0) >= 0)


def intervals(offsets: Ints, times: Floats) -> Floats:
    """Return the usual time between samples of each series, shape (n,), seconds; NaN where a series has no two.

    That is the median of the series, or of all series where its own mean is close to that.

    >>> intervals(np.array([0, 3]), np.array([0.0, 15.0, 45.0]))
    array([22.5])
    """
    counts = np.diff(offsets)
    result = np.full(len(counts), np.nan)
    gaps = np.diff(times)
    ends = offsets[1:-1] - 1
    gaps[ends[(ends >= 0) & (ends < len(gaps))]] = np.nan
    known = gaps[gaps > 0.0]
    many = np.flatnonzero(counts > 1)
    if len(known) == 0:
        return result
    common = float(np.median(known))
    spans = times[offsets[many + 1] - 1] - times[offsets[many]]
    result[many] = common
    odd = many[np.abs(spans / (counts[many] - 1) - common) > ALIKE * common]
    if len(odd):
        rows = np.repeat(np.arange(len(counts)), counts)[1:]
        mask = np.isin(rows, odd) & (gaps > 0.0)
        order = np.lexsort((gaps[mask], rows[mask]))
        odd, sizes = np.unique(rows[mask], return_counts=True)
        ordered, starts = gaps[mask][order], np.cumsum(sizes) - sizes
        result[odd] = (ordered[starts + (sizes - 1) // 2] + ordered[starts + sizes // 2]) / 2.0
    return result


def common_step(spacings: Sequence[tuple[float, int]]) -> float:
    """Return the grid step for blocks of (spacing, number of series): the fastest that is common.

    A spacing is common when blocks as fast hold a twentieth of all series; it is rounded to whole seconds where it is
    within 2 % of one, and lies between 1 s and 5 min. With nothing to go by it is 15 s.

    >>> common_step([(1.0, 2), (14.998, 1000), (60.0, 4000)])
    15.0
    """
    every = sum(count for _, count in spacings)
    reached = 0
    for seconds, count in sorted(spacings):
        reached += count
        if 20 * reached >= every:
            whole = float(round(seconds))
            near = whole > 0.0 and abs(seconds - whole) <= 0.02 * seconds
            return min(max(whole if near else round(seconds, 3), 1.0), 300.0)
    return 15.0


def _carry(present: NDArray[np.bool_], limit: Floats, reach: Floats) -> Ints:
    """Return the column that each cell's value comes from, AHEAD for the sample before the grid, NOWHERE for none.

    A sample counts for `limit` further steps; the one before the grid up to column `reach`. All rows are slow ones.
    """
    column = np.arange(present.shape[1])
    last = np.maximum.accumulate(np.where(present, column, NOWHERE), axis=1)
    last[(last == NOWHERE) & (column <= reach[:, None])] = AHEAD
    return np.where((last >= 0) & (column - last > limit[:, None]), NOWHERE, last)


class Timeline:
    """When the series of a block were sampled, and what follows from that alone.

    An exporter's metrics are scraped together, so the blocks of a snapshot share few timelines.
    """

    def __init__(self, offsets: Ints, times: Floats) -> None:
        self.offsets = offsets
        self.times = times
        self._on: dict[Grid, Placing] = {}

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def fits(self, block: Block) -> bool:
        """Say whether a block has this timeline."""
        return np.array_equal(self.offsets, block.offsets) and np.array_equal(self.times, block.times)

    @cached_property
    def rows(self) -> Ints:
        """Return the series of each sample."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    @cached_property
    def intervals(self) -> Floats:
        """Return the usual time between samples of each series."""
        return intervals(self.offsets, self.times)

    @cached_property
    def interval(self) -> float | None:
        """Return the interval that is usual among the series, None where none has one."""
        known = self.intervals[np.isfinite(self.intervals)]
        return float(np.median(known)) if len(known) else None

    def on(self, grid: Grid) -> "Placing":
        """Return where the samples lie on a grid."""
        if grid not in self._on:
            self._on[grid] = Placing(self, grid)
        return self._on[grid]


@dataclass(frozen=True, eq=False)
class Span:
    """What differences reach over: the older sample of each cell, and the seconds to the newer one (NaN where there are
    no two)."""

    then: Ints
    elapsed: Floats

    @cached_property
    def usual(self) -> float:
        """Return the seconds that nine in ten differences reach over at most."""
        known = self.elapsed[np.isfinite(self.elapsed)]
        return float(np.percentile(known, 90)) if len(known) else 0.0


class Placing:
    """Where the samples of a timeline lie on a grid."""

    def __init__(self, timeline: Timeline, grid: Grid) -> None:
        self.timeline = timeline
        self.grid = grid
        self._steps: dict[float, Ints] = {}
        self._spans: list[tuple[Ints, Span]] = []

    @cached_property
    def _cells(self) -> tuple[Ints, Ints]:
        """Return samples and the cells of the flat grid that they go to, those that yield to others first."""
        grid, rows = self.grid, self.timeline.rows
        exact = (self.timeline.times - grid.start) / grid.step
        near = np.rint(exact)
        bins = near.astype(np.int64)
        edge = np.flatnonzero(np.abs(exact - near) > EDGE)
        samples = np.concatenate([edge, np.arange(len(bins))])
        columns = np.concatenate([bins[edge] + np.where(exact[edge] > near[edge], 1, -1), bins])
        inside = np.flatnonzero((columns >= 0) & (columns < grid.size))
        samples = samples[inside]
        return samples, rows[samples] * grid.size + columns[inside]

    @cached_property
    def _slow(self) -> tuple[Ints, Floats, Ints, Floats]:
        """Return the series that are slower than the grid, for how many steps a sample of theirs counts, their last
        sample before the grid (-1 for none), and the column that it counts up to."""
        timeline, grid = self.timeline, self.grid
        own = timeline.intervals
        limit = np.where(own > SLOW * grid.step, np.floor(own / grid.step + 0.5), 0.0)
        slow = np.flatnonzero(limit > 0.0)
        if len(slow) == 0:
            return slow, limit[slow], slow, limit[slow]
        bins = np.rint((timeline.times - grid.start) / grid.step)
        count = np.bincount(timeline.rows[bins < 0], minlength=len(own))[slow]
        ahead = np.where(count > 0, timeline.offsets[slow] + count - 1, -1)
        return slow, limit[slow], ahead, np.where(count > 0, bins[ahead], -np.inf) + limit[slow]

    def place(self, samples: Floats) -> Floats:
        """Place samples on the grid, shape (n, grid.size): the last of a step wins, slow series are carried on.

        A sample of a series slower than the grid stands for up to its interval, and half a step of slack.
        """
        values = np.full((len(self.timeline), self.grid.size), np.nan)
        picked, cells = self._cells
        values.reshape(-1)[cells] = samples[picked]
        slow, limit, ahead, reach = self._slow
        if len(slow):
            source = _carry(np.isfinite(values[slow]), limit, reach)
            carried = np.take_along_axis(values[slow], np.maximum(source, 0), axis=1)
            before = np.where(source == AHEAD, samples[ahead][:, None], np.nan)
            values[slow] = np.where(source >= 0, carried, before)
        return values

    @cached_property
    def fastest(self) -> Floats:
        """Return the time between samples of each series, (n,); the step of the grid where a series has no two."""
        return np.nan_to_num(self.timeline.intervals, nan=self.grid.step)

    def steps(self, seconds: float) -> Ints:
        """Return the width in grid steps of each series, shape (n, 1): the seconds, and at least two intervals."""
        if seconds not in self._steps:
            wide = np.maximum(seconds, 2.0 * self.fastest)
            self._steps[seconds] = np.ceil(wide / self.grid.step - 0.01).astype(np.int64)[:, None]
        return self._steps[seconds]

    @cached_property
    def lead(self) -> int:
        """Return how many steps before the grid the earliest sample lies."""
        times = self.timeline.times
        earliest = float(times.min()) if len(times) else self.grid.start
        return max(0, int(np.ceil((self.grid.start - earliest) / self.grid.step - 0.5)))

    @cached_property
    def newest(self) -> Ints:
        """Return the newest sample up to half a step after each step, (n, lead + grid.size); one less than the first
        sample of the series where there is none yet."""
        start, size = self.grid.start - self.lead * self.grid.step, self.grid.size + self.lead
        bins = np.ceil((self.timeline.times - start) / self.grid.step - 0.5).astype(np.int64)
        bins = np.maximum(bins, 0)
        inside = bins < size
        counts = np.bincount(self.timeline.rows[inside] * size + bins[inside], minlength=len(self.timeline) * size)
        below = np.cumsum(counts.reshape(len(self.timeline), size), axis=1, dtype=np.int64)
        return below + self.timeline.offsets[:-1][:, None] - 1

    @cached_property
    def now(self) -> tuple[Ints, Floats]:
        """Return the newest sample at each step and its time, both (n, grid.size); time is NaN where there is none or
        it is old."""
        newest = self.newest[:, self.lead :]
        there = np.maximum(newest, 0)
        times = self.timeline.times[there]
        fresh = self.grid.times() - times <= FRESH * self.fastest[:, None]
        return there, np.where(fresh & (newest >= self.timeline.offsets[:-1][:, None]), times, np.nan)

    def span(self, steps: Ints) -> Span:
        """Return what differences over these widths reach over; `steps` is (n, 1) or (n, grid.size).

        The last answers are kept: a ratio asks for both its counters, and several ratios share one of them.
        """
        for widths, span in self._spans:
            if widths is steps or np.array_equal(widths, steps):
                return span
        span = self._reached(steps)
        self._spans = [(steps, span), *self._spans[: KEPT - 1]]
        return span

    def _reached(self, steps: Ints) -> Span:
        newest, until = self.now
        times = self.timeline.times
        then = np.maximum(self._before(steps), self.timeline.offsets[:-1][:, None])
        since = times[then]
        target = self.grid.times() - steps * self.grid.step
        stale = np.nonzero(since < target - FRESH * self.fastest[:, None])
        then[stale] = np.minimum(then[stale] + 1, newest[stale])
        since[stale] = times[then[stale]]
        return Span(then, np.where(then < newest, until - since, np.nan))

    def _before(self, steps: Ints) -> Ints:
        """Return the newest sample so many steps before each step, -1 before the first."""
        column = np.arange(self.lead, self.lead + self.grid.size)
        one = int(steps.flat[0]) if steps.size else 0
        if one <= self.lead and bool((steps == one).all()):
            return self.newest[:, self.lead - one : self.lead - one + self.grid.size]
        at = column - steps
        return np.where(at < 0, -1, np.take_along_axis(self.newest, np.maximum(at, 0), axis=1))


class Counters:
    """Counters on a grid: how much each series grew up to each step, over a width that may differ by cell.

    A fall is a reset, the new value counts from 0. Differences are taken between real samples: the newest at a step,
    and the newest at least the width before it. Nothing is extrapolated, so a difference and the time between its
    samples belong together.
    """

    def __init__(self, block: Block, placing: Placing) -> None:
        self.placing = placing
        self.grid = placing.grid
        self.whole = bool(np.all(block.values == np.floor(block.values)))
        self.values, self._grows = _without_resets(block)

    def steps(self, seconds: float) -> Ints:
        """Return the width in grid steps of each series, shape (n, 1): the seconds, and at least two intervals."""
        return self.placing.steps(seconds)

    def change(self, steps: Ints) -> tuple[Floats, Span]:
        """Return growth, (n, grid.size), and what it reaches over; `steps` is the width, (n, 1) or (n, size).

        NaN where the width holds fewer than two real samples, or the newest is older than 2.5 intervals.
        """
        if len(self.values) == 0:
            nothing = np.full((len(self.placing.timeline), self.grid.size), np.nan)
            return nothing, Span(np.zeros(nothing.shape, dtype=np.int64), nothing)
        span = self.placing.span(steps)
        growth = self._now - self.values[span.then]
        growth[np.isnan(span.elapsed)] = np.nan
        return growth, span

    @cached_property
    def _now(self) -> Floats:
        """Return the newest value at each step."""
        return self.values[self.placing.now[0]]

    @cached_property
    def _moved(self) -> Floats:
        """Return when each series last grew, up to each sample; the time of its first sample where it never did."""
        timeline = self.placing.timeline
        marks = np.where(self._grows, np.arange(len(self._grows)), -1)
        return timeline.times[np.maximum(np.maximum.accumulate(marks), timeline.offsets[:-1][timeline.rows])]

    def events(self, steps: Ints, seconds: float) -> tuple[Floats, Span]:
        """Return `change` as the count of events that a ratio is taken over.

        NaN where it has come to a halt: no event for `seconds` nor for three times the usual time between two.
        """
        growth, span = self.change(steps)
        if len(self.values) == 0 or not self.whole:
            return growth, span
        newest, until = self.placing.now
        with np.errstate(divide="ignore", invalid="ignore"):
            patience = np.maximum(self.steps(seconds) * self.grid.step, 3.0 * span.elapsed / growth)
            halted = until - self._moved[newest] > patience
        return np.where(halted, np.nan, growth), span

    def history(self) -> Ints:
        """Return the widest width that the samples allow at each step, shape (grid.size,)."""
        return np.arange(self.placing.lead, self.placing.lead + self.grid.size, dtype=np.int64)


def widen(grown: Callable[[Ints], Floats], steps: Ints, limit: Ints, least: float = 10.0) -> Ints:
    """Return widths, (n, T), doubled from `steps` while the counters `grown` over them moved by less than `least`.

    `limit` is the widest allowed; it spreads over (n, T). Where all moved enough, `steps` itself is the answer.
    """
    growth = grown(steps)
    limit = np.maximum(np.broadcast_to(limit, growth.shape), steps)
    while True:
        few = (growth < least) & (steps < limit)
        if not few.any():
            return steps
        steps = np.where(few, np.minimum(2 * steps, limit), steps)
        growth = grown(steps)


def combine(values: Floats, rows: Ints, size: int, how: Combine, stamps: Floats | None = None) -> Floats:
    """Gather series into rows, shape (size, T); series of row -1 are left out, rows without series are NaN.

    `last` takes at each step the value whose sample is newest (`stamps`), of equal ones that of the later series.

    >>> combine(np.array([[1.0, np.nan], [3.0, np.nan]]), np.array([0, 0]), 1, "sum")
    array([[ 4., nan]])
    """
    if len(rows) == size and np.array_equal(rows, np.arange(size)):
        return values
    known = np.flatnonzero(rows >= 0)
    order = known[np.argsort(rows[known], kind="stable")]
    ids, starts = np.unique(rows[order], return_index=True)
    if len(ids) < len(order) and how != "last":
        return gather(values, rows, size, how)
    if len(ids) == len(order) == size:
        return values[order]
    result = np.full((size, values.shape[1]), np.nan)
    if len(ids) == len(order):
        result[ids] = values[order]
    else:
        result[ids] = _latest(values[order], None if stamps is None else stamps[order], starts)
    return result


def _without_resets(block: Block) -> tuple[Floats, NDArray[np.bool_]]:
    """Return values that never fall, and which samples are higher than the one before them in their series."""
    steps = np.diff(block.values, prepend=0.0)
    starts = block.offsets[:-1]
    steps[starts[starts < len(steps)]] = 0.0
    falls, grows = steps < 0.0, steps > 0.0
    if not falls.any():
        return block.values, grows
    grows |= falls & (block.values > 0.0)
    lost = np.cumsum(np.where(falls, np.roll(block.values, 1), 0.0))
    at_start = np.repeat(lost[np.minimum(starts, len(lost) - 1)], np.diff(block.offsets))
    return block.values + (lost - at_start), grows


def _latest(values: Floats, stamps: Floats | None, starts: Ints) -> Floats:
    """Return the value with the newest stamp in each group of rows."""
    newest = np.where(np.isfinite(values), 0.0 if stamps is None else stamps, -np.inf)
    best = np.maximum.reduceat(newest, starts, axis=0)
    sizes = np.diff(np.append(starts, len(values)))
    wins = (newest == np.repeat(best, sizes, axis=0)) & np.isfinite(newest)
    index = np.where(wins, np.arange(len(values))[:, None], -1)
    chosen = np.maximum.reduceat(index, starts, axis=0)
    picked = np.take_along_axis(values, np.maximum(chosen, 0), axis=0)
    return np.where(chosen >= 0, picked, np.nan)
