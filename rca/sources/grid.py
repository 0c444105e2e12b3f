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


def intervals(block: Block) -> Floats:
    """Return the usual time between samples of each series, shape (n,), seconds; NaN where a series has no two.

    That is the median of the series, or of all series where its own mean is close to that.

    >>> intervals(Block([{}], np.array([0, 3]), np.array([0.0, 15.0, 45.0]), np.zeros(3)))
    array([22.5])
    """
    counts = np.diff(block.offsets)
    result = np.full(len(counts), np.nan)
    gaps = np.diff(block.times)
    ends = block.offsets[1:-1] - 1
    gaps[ends[(ends >= 0) & (ends < len(gaps))]] = np.nan
    known = gaps[gaps > 0.0]
    many = np.flatnonzero(counts > 1)
    if len(known) == 0:
        return result
    common = float(np.median(known))
    spans = block.times[block.offsets[many + 1] - 1] - block.times[block.offsets[many]]
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


def usual(own: Floats) -> float | None:
    """Return the interval that is usual among series, None where none has one."""
    known = own[np.isfinite(own)]
    return float(np.median(known)) if len(known) else None


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


def place(block: Block, own: Floats, grid: Grid) -> Floats:
    """Place samples on the grid, shape (n, grid.size): the last of a step wins, slow series are carried on.

    `own` (n,) is the interval of each series. A sample of a series slower than the grid stands for up to that
    interval, and half a step of slack.
    """
    rows = np.repeat(np.arange(len(block.labels)), np.diff(block.offsets))
    exact = (block.times - grid.start) / grid.step
    near = np.rint(exact)
    bins = near.astype(np.int64)
    values = np.full((len(block.labels), grid.size), np.nan)
    edge = np.flatnonzero(np.abs(exact - near) > EDGE)
    for pick, column in ((edge, bins[edge] + np.where(exact[edge] > near[edge], 1, -1)), (None, bins)):
        inside = np.flatnonzero((column >= 0) & (column < grid.size))
        samples = inside if pick is None else pick[inside]
        values.reshape(-1)[rows[samples] * grid.size + column[inside]] = block.values[samples]
    limit = np.where(own > SLOW * grid.step, np.floor(own / grid.step + 0.5), 0.0)
    slow = np.flatnonzero(limit > 0.0)
    if len(slow):
        count = np.bincount(rows[bins < 0], minlength=len(own))[slow]
        ahead = np.where(count > 0, block.offsets[slow] + count - 1, -1)
        reach = np.where(count > 0, bins[ahead], -np.inf) + limit[slow]
        source = _carry(np.isfinite(values[slow]), limit[slow], reach)
        cells = np.take_along_axis(values[slow], np.maximum(source, 0), axis=1)
        before = np.where(source == AHEAD, block.values[ahead][:, None], np.nan)
        values[slow] = np.where(source >= 0, cells, before)
    return values


def stamps(block: Block, own: Floats, grid: Grid) -> Floats:
    """Return the times of the samples that `place` puts on the grid, shape (n, grid.size)."""
    return place(Block(block.labels, block.offsets, block.times, block.times), own, grid)


def _carry(present: NDArray[np.bool_], limit: Floats, reach: Floats) -> Ints:
    """Return the column that each cell's value comes from, AHEAD for the sample before the grid, NOWHERE for none.

    A sample counts for `limit` further steps; the one before the grid up to column `reach`. All rows are slow ones.
    """
    column = np.arange(present.shape[1])
    last = np.maximum.accumulate(np.where(present, column, NOWHERE), axis=1)
    last[(last == NOWHERE) & (column <= reach[:, None])] = AHEAD
    return np.where((last >= 0) & (column - last > limit[:, None]), NOWHERE, last)


class Counters:
    """Counters on a grid: how much each series grew up to each step, over a width that may differ by cell.

    A fall is a reset, the new value counts from 0. Differences are taken between real samples: the newest at a step,
    and the newest at least the width before it. Nothing is extrapolated, so a difference and the time between its
    samples belong together.
    """

    def __init__(self, block: Block, own: Floats, grid: Grid) -> None:
        self.grid = grid
        self.first = block.offsets[:-1]
        self.times = block.times
        self.whole = bool(np.all(block.values == np.floor(block.values)))
        self.interval = np.nan_to_num(own, nan=grid.step)
        rows = np.repeat(np.arange(len(block.labels)), np.diff(block.offsets))
        self.values, grows = _without_resets(block, rows)
        marks = np.where(grows, np.arange(len(rows)), -1)
        start = self.first[rows] if len(rows) else self.first[:0]
        self.moved = block.times[np.maximum(np.maximum.accumulate(marks), start)] if len(rows) else block.times
        earliest = float(block.times.min()) if len(rows) else grid.start
        self.lead = max(0, int(np.ceil((grid.start - earliest) / grid.step - 0.5)))
        self.newest = _newest(block, rows, Grid(grid.end, grid.step, grid.size + self.lead))

    def steps(self, seconds: float) -> Ints:
        """Return the width in grid steps of each series, shape (n, 1): the seconds, and at least two intervals."""
        wide = np.maximum(seconds, 2.0 * self.interval)
        return np.ceil(wide / self.grid.step - 0.01).astype(np.int64)[:, None]

    @cached_property
    def now(self) -> tuple[Ints, Floats, Floats]:
        """Return the newest sample at each step, its time and its value; time is NaN where there is none or it is old.

        All have shape (n, grid.size).
        """
        newest = self.newest[:, self.lead :]
        there = np.maximum(newest, 0)
        times = self.times[there]
        fresh = (newest >= self.first[:, None]) & (self.grid.times() - times <= FRESH * self.interval[:, None])
        return there, np.where(fresh, times, np.nan), self.values[there]

    def change(self, steps: Ints) -> tuple[Floats, Floats]:
        """Return growth and the seconds it took, both (n, grid.size); `steps` is the width, (n, 1) or (n, size).

        NaN where the width holds fewer than two real samples, or the newest is older than 2.5 intervals.
        """
        if len(self.times) == 0:
            nothing = np.full((len(self.first), self.grid.size), np.nan)
            return nothing, nothing
        newest, until, value = self.now
        then = np.maximum(self._before(steps), self.first[:, None])
        since = self.times[then]
        target = self.grid.times() - steps * self.grid.step
        stale = np.nonzero(since < target - FRESH * self.interval[:, None])
        then[stale] = np.minimum(then[stale] + 1, newest[stale])
        since[stale] = self.times[then[stale]]
        elapsed = np.where(then < newest, until - since, np.nan)
        return np.where(np.isnan(elapsed), np.nan, value - self.values[then]), elapsed

    def _before(self, steps: Ints) -> Ints:
        """Return the newest sample so many steps before each step, -1 before the first."""
        column = np.arange(self.lead, self.lead + self.grid.size)
        one = int(steps.flat[0]) if steps.size else 0
        if one <= self.lead and bool((steps == one).all()):
            return self.newest[:, self.lead - one : self.lead - one + self.grid.size]
        at = column - steps
        return np.where(at < 0, -1, np.take_along_axis(self.newest, np.maximum(at, 0), axis=1))

    def events(self, steps: Ints, seconds: float) -> tuple[Floats, Floats]:
        """Return `change` as the count of events that a ratio is taken over.

        NaN where it has come to a halt: no event for `seconds` nor for three times the usual time between two.
        """
        growth, elapsed = self.change(steps)
        if len(self.times) == 0 or not self.whole:
            return growth, elapsed
        newest, until, _ = self.now
        with np.errstate(divide="ignore", invalid="ignore"):
            patience = np.maximum(self.steps(seconds) * self.grid.step, 3.0 * elapsed / growth)
            halted = until - self.moved[newest] > patience
        return np.where(halted, np.nan, growth), elapsed

    def history(self) -> Ints:
        """Return the widest width that the samples allow at each step, shape (grid.size,)."""
        return np.arange(self.lead, self.lead + self.grid.size, dtype=np.int64)


def widen(grown: Callable[[Ints], Floats], steps: Ints, limit: Ints, least: float = 10.0) -> Ints:
    """Return widths, (n, T), doubled from `steps` while the counters `grown` over them moved by less than `least`.

    `limit` is the widest allowed; it spreads over (n, T).
    """
    growth = grown(steps)
    limit = np.maximum(np.broadcast_to(limit, growth.shape), steps)
    steps = np.broadcast_to(steps, growth.shape)
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
    known = np.flatnonzero(rows >= 0)
    order = known[np.argsort(rows[known], kind="stable")]
    ids, starts = np.unique(rows[order], return_index=True)
    if len(ids) < len(order) and how != "last":
        return gather(values, rows, size, how)
    result = np.full((size, values.shape[1]), np.nan)
    if len(ids) == len(order):
        result[ids] = values[order]
    else:
        result[ids] = _latest(values[order], None if stamps is None else stamps[order], starts)
    return result


def _without_resets(block: Block, rows: Ints) -> tuple[Floats, NDArray[np.bool_]]:
    """Return values that never fall, and which samples are higher than the one before them in their series."""
    steps = np.diff(block.values, prepend=0.0)
    starts = np.diff(rows, prepend=-1) > 0
    falls = (steps < 0.0) & ~starts
    grows = ((steps > 0.0) & ~starts) | (falls & (block.values > 0.0))
    if not falls.any():
        return block.values, grows
    lost = np.cumsum(np.where(falls, np.roll(block.values, 1), 0.0))
    at_start = lost[block.offsets[:-1][rows]]
    return block.values + (lost - at_start), grows


def _newest(block: Block, rows: Ints, grid: Grid) -> Ints:
    """Return for each series and step the index of the newest sample up to half a step later; one less than its
    first sample where there is none yet."""
    bins = np.ceil((block.times - grid.start) / grid.step - 0.5).astype(np.int64)
    bins = np.maximum(bins, 0)
    inside = bins < grid.size
    counts = np.bincount(rows[inside] * grid.size + bins[inside], minlength=len(block.labels) * grid.size)
    below = np.cumsum(counts.reshape(len(block.labels), grid.size), axis=1, dtype=np.int64)
    return below + block.offsets[:-1][:, None] - 1


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
