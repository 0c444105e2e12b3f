"""Arithmetic on rows of samples with gaps: matrices (n, T), NaN where there is no sample."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rca.model import Floats
from rca.peers import MAD_TO_SIGMA, Indices, sorted_medians

States = NDArray[np.int8]
"""Conditions on rows over time: -1 false, 0 unknown, 1 true."""
HELD = 0.8
"""Share of the known samples of `for` in which a condition must be true: one odd sample does not end a fault."""
IQR_TO_SIGMA = 1.349
QUARTERS = 4
FEWEST = 10
"""Samples that a quarter of the past needs, to be compared with another."""


def states(true: NDArray[np.bool_], known: NDArray[np.bool_]) -> States:
    """Combine what is true with what is known.

    >>> states(np.array([True, False, True]), np.array([True, True, False]))
    array([ 1, -1,  0], dtype=int8)
    """
    return np.asarray((true & known).view(np.int8) - (known > true).view(np.int8))


def carried(values: Floats) -> Floats:
    """Carry the last sample of each row forward.

    >>> carried(np.array([[1.0, np.nan, np.nan], [np.nan, 2.0, np.nan]]))
    array([[ 1.,  1.,  1.],
           [nan,  2.,  2.]])
    """
    filled, width = values.copy(), values.shape[1]
    gaps = np.flatnonzero(np.isnan(values))
    if len(gaps):
        begins = np.ones(len(gaps), dtype=bool)
        begins[1:] = (np.diff(gaps) > 1) | (gaps[1:] % width == 0)
        first = np.maximum.accumulate(np.where(begins, gaps, 0))
        ahead = first % width > 0
        filled.reshape(-1)[gaps[ahead]] = values.reshape(-1)[first[ahead] - 1]
    return filled


def grown(values: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Say from where on rows have grown since their first column, or begun later above zero; and where that is known."""
    filled = carried(values)
    rises = np.zeros(filled.shape, dtype=bool)
    rises[:, 1:] = filled[:, 1:] > np.nan_to_num(filled[:, :-1])
    return np.asarray(np.maximum.accumulate(rises, axis=1)), ~np.isnan(filled)


def centred(values: Floats, known: NDArray[np.bool_]) -> Floats:
    """Take the mean out of each row; unknown samples become 0."""
    plain = np.where(known, values, 0.0)
    mean = plain.sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return np.where(known, plain - mean[:, None], 0.0)


def clipped(values: Floats, width: float = 3.0) -> Floats:
    """Cut each row at so many robust deviations around zero.

    >>> clipped(np.array([[1.0, -1.0, 1.0, 99.0]])).round(2)
    array([[ 1.  , -1.  ,  1.  ,  4.45]])
    """
    bound = width * MAD_TO_SIGMA * sorted_medians(np.abs(values))[:, None]
    return np.asarray(np.clip(values, -bound, bound))


def latched(on: NDArray[np.bool_], off: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Stay on from `on` until `off`, the later of the two deciding at each column."""
    column = np.arange(on.shape[1])
    last_on = np.maximum.accumulate(np.where(on, column, -1), axis=1)
    last_off = np.maximum.accumulate(np.where(off, column, -1), axis=1)
    return np.asarray(last_on > last_off)


def quantile(ordered: Floats, count: NDArray[np.int64], share: float) -> Floats:
    """Return the nearest-rank quantile (n,) of rows whose NaN stand last."""
    position = np.clip(np.round(share * (count - 1)), 0, ordered.shape[1] - 1).astype(np.int64)
    return np.asarray(np.take_along_axis(ordered, position[:, None], axis=1)[:, 0])


def recurring(before: Floats, limit: Floats, share: float, sense: int) -> Floats:
    """Return the level (n, 1) that was passed for a share of the time before, up to the last sample within the limit.

    `limit` (n, 1) is what no usual sample passes, upwards where `sense` is 1, downwards where it is -1.

    >>> recurring(np.array([[9.0, 5.0, 9.0, 9.0, 4.0, 4.0]]), np.array([[8.0]]), 0.1, -1)
    array([[5.]])
    """
    normal = sense * (before - limit) <= 0
    last = before.shape[1] - 1 - np.argmax(normal[:, ::-1], axis=1)
    earlier = np.sort(np.where(np.arange(before.shape[1]) <= last[:, None], sense * before, np.nan), axis=1)
    level: Floats = sense * quantile(earlier, (~np.isnan(earlier)).sum(axis=1), 1.0 - share)[:, None]
    return level


class Past(NamedTuple):
    """What rows read before the window: how many samples (n,), their median and spread (n, 1), in units of a standard
    deviation; and the medians (n, 1) of the first and last quarter of that time, NaN where either has few samples."""

    size: NDArray[np.int64]
    usual: Floats
    spread: Floats
    early: Floats
    late: Floats


def past(before: Floats) -> Past:
    """Sum up what rows (n, B) read before the window."""
    count, spread, ordered = _scattered(before)
    width = before.shape[1] // QUARTERS
    parts = [np.sort(part, axis=1) for part in (before[:, :width], before[:, before.shape[1] - width :])]
    enough = np.all([(~np.isnan(part)).sum(axis=1) >= FEWEST for part in parts], axis=0)
    early, late = (np.where(enough, sorted_medians(part), np.nan)[:, None] for part in parts)
    return Past(count, sorted_medians(ordered)[:, None], spread[:, None], early, late)


def settled(before: Floats, known: Past, by: float, sense: int) -> tuple[Floats, Floats]:
    """Return what rows read in health, and its spread, both (n, 1), where what is wrong may have begun before the window.

    A row whose last quarter lies beyond its first one by the margin `by` has changed on the way. It is compared with its
    first quarter, and its spread is the median one of its quarters: that of the whole holds the change itself.

    >>> before = np.tile(np.repeat([[4.0, 6.0]], 40, axis=1), (1, 1))
    >>> usual, spread = settled(before, past(before), 0.1, 1)
    >>> float(usual[0, 0]), float(spread[0, 0])
    (4.0, 0.0)
    """
    changed = np.flatnonzero(sense * (known.late - known.early)[:, 0] > by * np.abs(known.early[:, 0]))
    if not len(changed):
        return known.usual, known.spread
    usual, spread = known.usual.copy(), known.spread.copy()
    usual[changed] = known.early[changed]
    parts = [_scattered(part)[1] for part in np.array_split(before[changed], QUARTERS, axis=1)]
    spread[changed] = sorted_medians(np.stack(parts, axis=1))[:, None]
    return usual, spread


def _scattered(values: Floats) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Return the number of samples and the spread (n,) of rows, by the distance of their quartiles, and the rows sorted."""
    ordered = np.sort(values, axis=1)
    count = (~np.isnan(ordered)).sum(axis=1)
    low, high = (quantile(ordered, count, share) for share in (0.25, 0.75))
    return count, (high - low) / IQR_TO_SIGMA, ordered


def line(values: Floats, step: float, least: int) -> tuple[Floats, Floats, Floats]:
    """Fit a straight line to each row by least squares: slope a second, its standard error, mean, all (n,).

    Columns are `step` seconds apart; the error is NaN for rows of fewer than `least` samples.
    """
    known = ~np.isnan(values)
    count = known.sum(axis=1)
    time = np.where(known, np.arange(values.shape[1]) * step, 0.0)
    time = np.where(known, time - (time.sum(axis=1) / np.maximum(count, 1))[:, None], 0.0)
    mean = np.where(known, values, 0.0).sum(axis=1) / np.maximum(count, 1)
    left = centred(values, known)
    width = np.maximum((time**2).sum(axis=1), 1e-300)
    slope = (time * left).sum(axis=1) / width
    left = np.where(known, left - slope[:, None] * time, 0.0)
    error = np.sqrt((left**2).sum(axis=1) / np.maximum(count - 2, 1) / width)
    return slope, np.where(count >= least, error, np.nan), mean


def prolonged(values: Floats, before: Floats, since: NDArray[np.int64]) -> tuple[Floats, NDArray[np.int64]]:
    """Put the last columns of `before` ahead of `values`, so many as `since` (n,) says of each row, the others as NaN.

    Returns the rows, and the column (n, 1) where each begins.
    """
    longest = int(since.max(initial=0))
    start = longest - since[:, None]
    whole = np.concatenate([before[:, before.shape[1] - longest :], values], axis=1)
    return np.where(np.arange(whole.shape[1]) < start, np.nan, whole), start


def standing(
    seen: Floats, step: float, factor: float, least: tuple[float, float]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Say where counters (n, T) stand: they have not moved for `least[0]` seconds, and `factor` times their usual time
    between moves; or are above zero and were never seen to move in `least[1]` seconds. And where that is known.
    """
    filled = carried(seen)
    moved = np.zeros(filled.shape, bool)
    moved[:, 1:] = filled[:, 1:] != filled[:, :-1]
    moved[:, 1:] &= ~np.isnan(filled[:, :-1])
    column = np.arange(filled.shape[1])
    last = np.maximum.accumulate(np.where(moved, column, -1), axis=1)
    first = np.where(moved.any(axis=1), moved.argmax(axis=1), 0)
    growth = np.nanmax(np.where(np.isnan(filled), -np.inf, filled), axis=1, initial=-np.inf) - filled[:, 0]
    span = (last[:, -1] - first) * step
    usual = np.divide(span, growth, out=np.zeros(len(filled)), where=growth > 0)
    limit = np.maximum(least[0], factor * usual)[:, None]
    watched = (column - np.argmax(~np.isnan(seen), axis=1)[:, None]) * step
    still = ~moved.any(axis=1, keepdims=True) & (filled > 0) & (watched > least[1])
    known = ((last >= 0) | still) & ~np.isnan(seen)
    return np.where(last >= 0, (column - last) * step > limit, still), known


def eroded(fits: NDArray[np.bool_], width: int) -> NDArray[np.bool_]:
    """Take the `width` columns after each column that does not fit away as well."""
    last = np.maximum.accumulate(np.where(fits, -width - 1, np.arange(fits.shape[1])), axis=1)
    return np.asarray(np.arange(fits.shape[1]) - last > width)


def hold(state: NDArray[np.int8], length: int, recent_columns: int) -> tuple[NDArray[np.int8], Indices, Indices]:
    """Find what is true for `length` samples on end.

    Holds where at least `HELD` of the known samples of the trailing `length` are true and half of them are known, at
    some time in the last `recent_columns` before the end of what is known. A window shorter than `length` says nothing.
    Returns the state (n,), and the first and last column of the finding.
    """
    rows, width = state.shape
    length = max(length, 1)
    known = np.count_nonzero(state, axis=1)
    summary = np.where((known * 2 > width) & (width >= length), -1, 0).astype(np.int8)
    first, recent = np.zeros(rows, np.int64), np.full(rows, max(width - 1, 0), np.int64)
    maybe = np.flatnonzero((state == 1).sum(axis=1) >= HELD * length / 2) if width >= length else np.array([], np.int64)
    if not len(maybe):
        return summary, first, recent
    part = state[maybe]
    true, seen = trailing(part == 1, length), trailing(part != 0, length)
    held = (true >= HELD * seen) & (seen * 2 >= length) & (np.arange(width) >= length - 1) & (true > 0)
    last_seen = width - 1 - np.argmax((part != 0)[:, ::-1], axis=1)
    last_held = np.where(held.any(axis=1), width - 1 - np.argmax(held[:, ::-1], axis=1), -width * 4)
    active = last_seen - last_held < recent_columns
    broken = (
        trailing(~held & (seen * 2 >= length), length + 1) > length
    )  # one odd sample leaves `length` columns unheld
    column = np.arange(width)
    last_break = np.where(broken & (column <= last_held[:, None]), column, -1).max(axis=1)
    inside = held & (column > last_break[:, None])
    begin = np.maximum(np.argmax(inside, axis=1) - length + 1, 0)
    begin += np.argmax(
        (part == 1)[np.arange(len(part))[:, None], np.minimum(begin[:, None] + np.arange(length), width - 1)], axis=1
    )
    summary[maybe[active]] = 1
    first[maybe], recent[maybe] = begin, np.clip(last_held, 0, width - 1)
    return summary, first, recent


def trailing(flags: NDArray[np.bool_], length: int) -> NDArray[np.int64]:
    """Count flags in the trailing `length` columns."""
    total = np.cumsum(flags, axis=1, dtype=np.int64)
    total[:, length:] -= total[:, :-length].copy()
    return total
