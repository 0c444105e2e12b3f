"""Robust statistics over groups of rows: medians, spread, and the fit that says what a peer should read.

All functions take matrices (n, T) with NaN for "no sample" and group indices (n,) with -1 for "in no group".
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rca.model import Floats

Indices = NDArray[np.int64]
N = TypeVar("N", np.float64, np.int32)
MAD_TO_SIGMA = 1.4826
MIN_PEERS = 5
RELATIVE_FLOOR = 0.005
"""Spread is never taken smaller than this share of the median: identical readings would make any digit an outlier."""

NO_LEVEL = 1e6
"""A residual of so many times the cohort's centre says that the centre is 0, not that the row is far from it."""


@dataclass(frozen=True, eq=False)
class Cohort:
    """Who is compared with whom.

    `group` holds the cohort of each row, `pool` the wider one that lends its spread to small cohorts (the job), and
    `across` the rows' replica inside the pool, whose common shift is no spread. All have shape (n,).
    """

    group: Indices
    pool: Indices
    across: Indices


@dataclass(frozen=True, eq=False)
class Fit:
    """What peers read: `centre` (G, T), `spread` (G, T) in units of a standard deviation; NaN where not enough peers."""

    centre: Floats
    spread: Floats


def sorted_medians(values: Floats) -> Floats:
    """Return medians over the last axis, NaN ignored, NaN where nothing is left.

    >>> sorted_medians(np.array([[3.0, 1.0, np.nan, 2.0]]))
    array([2.])
    """
    ordered = np.sort(values, axis=-1)
    size = ordered.shape[-1]
    if size == 0:
        return np.full(ordered.shape[:-1], np.nan)
    if not np.isnan(ordered[..., -1]).any():
        return np.asarray((ordered[..., (size - 1) // 2] + ordered[..., size // 2]) / 2.0)
    count = size - np.isnan(ordered).sum(axis=-1)
    low = np.take_along_axis(ordered, np.maximum((count - 1) // 2, 0)[..., None], axis=-1)[..., 0]
    high = np.take_along_axis(ordered, np.minimum(count // 2, size - 1)[..., None], axis=-1)[..., 0]
    return np.asarray(np.where(count > 0, (low + high) / 2.0, np.nan))


def grouped_medians(values: Floats, group: Indices) -> Floats:
    """Return the medians (G, T) of each group of rows, G = largest index + 1.

    >>> grouped_medians(np.array([[1.0], [3.0], [8.0]]), np.array([0, 0, 1]))
    array([[2.],
           [8.]])
    """
    count = int(group.max(initial=-1)) + 1
    medians = np.full((count, values.shape[1]), np.nan)
    order = np.argsort(group, kind="stable")[int((group < 0).sum()) :]
    sizes = np.bincount(group[order], minlength=count)
    starts = np.cumsum(sizes) - sizes
    for size in np.unique(sizes[sizes > 0]):
        groups = np.flatnonzero(sizes == size)
        rows = order[starts[groups][:, None] + np.arange(size)]
        medians[groups] = sorted_medians(np.ascontiguousarray(values[rows].swapaxes(1, 2)))
    return medians


def folded(rows: NDArray[N], starts: Indices, fold: np.ufunc) -> NDArray[N]:
    """Reduce rows (n, T) from each of `starts` up to the next, as `fold.reduceat` does.

    That is slow where groups are many and small: then the second members of all groups are folded into the first, and so on.
    """
    sizes = np.diff(starts, append=len(rows))
    if len(starts) < sizes.max():
        return np.asarray(fold.reduceat(rows, starts, axis=0))
    firsts = rows[starts]
    for place in range(1, int(sizes.max())):
        some = np.flatnonzero(sizes > place)
        firsts[some] = fold(firsts[some], rows[starts[some] + place])
    return firsts


def visible(values: Floats, group: Indices) -> Floats:
    """Count the samples (G, T) of each group."""
    count = int(group.max(initial=-1)) + 1
    inside = group >= 0
    if inside.any() and not np.isnan(values).any():
        return np.repeat(np.bincount(group[inside], minlength=count)[:, None].astype(float), values.shape[1], axis=1)
    totals = np.zeros((count, values.shape[1]))
    order = np.flatnonzero(inside)[np.argsort(group[inside], kind="stable")]
    present = ~np.isnan(values[order])
    found, starts = np.unique(group[order], return_index=True)
    if len(found):
        totals[found] = folded(present.astype(np.float64), starts, np.add)
    return totals


def commonest(values: Floats, group: Indices) -> tuple[Floats, Floats]:
    """Return the most frequent value (G, T) of each group of rows, and how many rows have it; of several the lowest.

    >>> commonest(np.array([[2.0], [5.0], [5.0]]), np.array([0, 0, 0]))
    (array([[5.]]), array([[2.]]))
    """
    count, width = int(group.max(initial=-1)) + 1, values.shape[1]
    usual, agreeing = np.full((count, width), np.nan), np.zeros((count, width))
    filled = np.where(np.isnan(values), np.inf, values)
    fresh = np.ones(width, dtype=bool)
    fresh[1:] = (filled[:, 1:] != filled[:, :-1]).any(axis=0)
    row, column = np.nonzero(~np.isnan(values[:, fresh]) & (group >= 0)[:, None])
    if not len(row):
        return usual, agreeing
    found, code = np.unique(values[:, fresh][row, column], return_inverse=True)
    place = group[row] * int(fresh.sum()) + column
    pairs, times = np.unique(place * len(found) + code, return_counts=True)
    order = np.lexsort((-times, pairs // len(found)))
    places, first = np.unique(pairs[order] // len(found), return_index=True)
    best = order[first]
    at_place = np.unravel_index(places, (count, int(fresh.sum())))
    few, so_many = np.full((count, int(fresh.sum())), np.nan), np.zeros((count, int(fresh.sum())))
    few[at_place], so_many[at_place] = found[pairs[best] % len(found)], times[best]
    since = np.cumsum(fresh) - 1
    return few[:, since], so_many[:, since]


def at(per_group: Floats, group: Indices) -> Floats:
    """Spread values per group (G, T) over the rows (n, T); NaN for rows in no group."""
    if not len(per_group):
        return np.full((len(group), per_group.shape[1]), np.nan)
    rows = per_group[np.maximum(group, 0)]
    if (group < 0).any():
        rows[group < 0] = np.nan
    return rows


def fit(values: Floats, cohort: Cohort) -> Fit:
    """Fit centre and spread of each cohort.

    The centre is the median of the cohort, the spread its MAD. A cohort with fewer than `MIN_PEERS` visible members
    borrows the relative spread of the pool's residuals after the common shift of each replica is taken out (a two-way
    fit by medians); a pool with fewer than `MIN_PEERS` rows that have a peer leaves the spread unknown.
    """
    centre = grouped_medians(values, cohort.group)
    residual = values - at(centre, cohort.group)
    spread = MAD_TO_SIGMA * grouped_medians(np.abs(residual), cohort.group)
    count = visible(values, cohort.group)
    small = count < MIN_PEERS
    if small.any():
        spread = np.where(small, _pooled(residual, centre, count, cohort), spread)
    return Fit(centre, np.maximum(spread, RELATIVE_FLOOR * np.abs(centre)))


def _pooled(residual: Floats, centre: Floats, count: Floats, cohort: Cohort) -> Floats:
    """Return the pool's spread per cohort (G, T), scaled to the cohort's centre."""
    level = np.abs(at(centre, cohort.group))
    comparable = (at(count, cohort.group) >= 2) & (level > 0)
    with np.errstate(over="ignore"):
        relative = np.divide(residual, level, out=np.full_like(residual, np.nan), where=comparable)
    relative[np.abs(relative) > NO_LEVEL] = np.nan
    shift = at(grouped_medians(relative, cohort.across), cohort.across)
    relative = relative - np.where(np.isnan(shift), 0.0, shift)
    spread = MAD_TO_SIGMA * grouped_medians(np.abs(relative), cohort.pool)
    spread[visible(relative, cohort.pool) < MIN_PEERS] = np.nan
    pool_of = np.full(len(centre), -1, dtype=np.int64)
    inside = cohort.group >= 0
    pool_of[cohort.group[inside]] = cohort.pool[inside]
    return np.asarray(at(spread, pool_of) * np.abs(centre))
