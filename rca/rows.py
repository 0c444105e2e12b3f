"""Arithmetic on rows of samples with gaps: matrices (n, T), NaN where there is no sample."""

import numpy as np
from numpy.typing import NDArray

from rca.model import Floats
from rca.peers import MAD_TO_SIGMA, sorted_medians


def carried(values: Floats) -> Floats:
    """Carry the last sample of each row forward."""
    last = np.maximum.accumulate(np.where(np.isnan(values), -1, np.arange(values.shape[1])), axis=1)
    carried = np.take_along_axis(values, np.maximum(last, 0), axis=1)
    return np.where(last < 0, np.nan, carried)


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
