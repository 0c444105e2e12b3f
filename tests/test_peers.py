"""Robust statistics: agreement with numpy, gaps, small cohorts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rca.peers import MAD_TO_SIGMA, RELATIVE_FLOOR, Cohort, fit, grouped_medians, sorted_medians, visible

values = arrays(np.float64, (12, 5), elements=st.one_of(st.floats(-1e6, 1e6), st.just(np.nan)))


@given(values)
def test_medians_agree_with_numpy(matrix: np.ndarray) -> None:
    found = sorted_medians(matrix)
    for row, median in zip(matrix, found, strict=True):
        known = row[~np.isnan(row)]
        assert np.isnan(median) if not len(known) else median == pytest.approx(np.median(known))


@given(values, arrays(np.int64, 12, elements=st.integers(-1, 3)))
def test_grouped_medians_agree_with_a_loop(matrix: np.ndarray, group: np.ndarray) -> None:
    found = grouped_medians(matrix, group)
    for number in range(int(group.max(initial=-1)) + 1):
        for column in range(5):
            known = matrix[group == number, column]
            known = known[~np.isnan(known)]
            expected = np.median(known) if len(known) else np.nan
            assert found[number, column] == pytest.approx(expected, nan_ok=True)


@given(values, arrays(np.int64, 12, elements=st.integers(-1, 3)))
def test_visible_counts_samples(matrix: np.ndarray, group: np.ndarray) -> None:
    found = visible(matrix, group)
    for number in range(int(group.max(initial=-1)) + 1):
        assert found[number].tolist() == (~np.isnan(matrix[group == number])).sum(axis=0).tolist()


def cohort(group: list[int], pool: list[int] | None = None, across: list[int] | None = None) -> Cohort:
    size = len(group)
    return Cohort(np.array(group), np.array(pool or [0] * size), np.array(across or range(size)))


def test_spread_is_the_scaled_mad_of_the_cohort() -> None:
    readings = np.array([[10.0], [11.0], [12.0], [13.0], [30.0]])
    found = fit(readings, cohort([0] * 5))
    assert found.centre[0, 0] == 12.0
    assert found.spread[0, 0] == pytest.approx(MAD_TO_SIGMA * 1.0)


def test_identical_readings_keep_a_relative_floor() -> None:
    found = fit(np.full((6, 1), 200.0), cohort([0] * 6))
    assert found.spread[0, 0] == pytest.approx(RELATIVE_FLOOR * 200.0)


def test_small_cohorts_borrow_the_spread_of_the_job() -> None:
    """Four stages of different length in three replicas: a cohort of three, a job of twelve."""
    stages = np.repeat([1.0, 2.0, 3.0, 4.0], 3)
    noise = np.tile([0.99, 1.0, 1.01], 4)
    found = fit((stages * noise)[:, None], cohort(np.repeat([0, 1, 2, 3], 3).tolist(), across=[0, 1, 2] * 4))
    assert found.spread[3, 0] == pytest.approx(4 * found.spread[0, 0])
    assert 0 < found.spread[0, 0] < 0.03


def test_a_slow_replica_is_no_spread() -> None:
    """Two replicas of six stages, one a fifth slower in all: the common shift must not hide it."""
    stages = np.repeat(np.arange(1.0, 7.0), 2)
    shift = np.tile([1.0, 1.2], 6)
    readings = (stages * shift)[:, None]
    found = fit(readings, cohort(np.repeat(range(6), 2).tolist(), across=[0, 1] * 6))
    slow = readings[1::2] - found.centre
    assert (slow > 5 * found.spread).all()


def test_fewer_than_five_rows_in_a_job_say_nothing() -> None:
    assert np.isnan(fit(np.array([[1.0], [1.0], [2.0]]), cohort([0, 0, 0])).spread).all()
