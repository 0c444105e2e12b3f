"""Real timestamps on an even grid: holes, slow signals, counters, rates and their ratios."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import END, MemoryStore, Samples, counter, series, ticks, without
from small_library import NODE, library, one, read, signal

from rca.model import Measurement
from rca.sources.assemble import Deployment

TEMP = signal("node", "temp")


def row(
    samples: Samples, query: str = "temp", *, seconds: float = 900.0, step: float | None = None, **more: object
) -> np.ndarray:
    """Return the only row of a node signal."""
    held = [series("temp", NODE, samples)]
    snapshot = read(
        MemoryStore(held), library(x=signal("node", query, **more)), seconds=seconds, deployment=Deployment(step=step)
    )
    return one(snapshot).window[0]


# grid


def test_grid_follows_the_samples_and_ends_with_the_window() -> None:
    snapshot = read(MemoryStore([series("temp", NODE, ticks(20.0))]), library(x=TEMP))
    assert snapshot.step == 15.0
    assert snapshot.times.tolist() == [END - 900 + 15 * n for n in range(61)]
    assert snapshot.before_times[-1] == snapshot.times[0] - 15.0
    assert snapshot.before_times[0] == END - 900 - 3600
    assert one(snapshot).window.shape == (1, 61)
    assert one(snapshot).interval == 15.0


@pytest.mark.parametrize(("spacing", "step"), [(14.998, 15.0), (30.0, 30.0), (0.2, 1.0), (900.0, 300.0), (2.5, 2.5)])
def test_step(spacing: float, step: float) -> None:
    held = [series("temp", NODE, ticks(20.0, step=spacing, seconds=2000.0))]
    assert read(MemoryStore(held), library(x=TEMP), seconds=1800.0).step == step


def test_step_is_that_of_the_fastest_common_scrape() -> None:
    held = [series("fast", NODE, ticks(1.0, step=1.0, seconds=60.0))]
    held += [series("temp", {"instance": f"n{n}"}, ticks(1.0)) for n in range(30)]
    held += [series("slow", {"instance": f"n{n}"}, ticks(1.0, step=60.0)) for n in range(60)]
    given = library(x=TEMP, y=signal("node", "fast"), z=signal("node", "slow"))
    assert read(MemoryStore(held), given).step == 15.0
    assert read(MemoryStore(held), given, deployment=Deployment(step=10.0)).step == 10.0


def test_a_missed_scrape_is_a_hole() -> None:
    found = row(without(ticks(20.0), 30.0, 300.0, 315.0))
    assert np.flatnonzero(np.isnan(found)).tolist() == [60 - 21, 60 - 20, 60 - 2]


def test_the_last_sample_of_a_step_wins() -> None:
    found = row(sorted([*ticks(1.0), (END - 41.0, 2.0)]))
    assert found[-4] == 2.0
    assert found[-3] == 1.0


@pytest.mark.parametrize("phase", [0.0, 3.0, 7.4, 7.5, 7.6, 12.0])
def test_no_phase_of_the_scrapes_makes_holes(phase: float) -> None:
    jitter = np.random.default_rng(0)
    samples = [(time - phase + jitter.uniform(-0.05, 0.05), value) for time, value in ticks(20.0, seconds=1200.0)]
    found = row(samples, step=15.0)
    assert np.isfinite(found[:-1]).all()


def test_a_slow_signal_is_carried_for_its_own_interval_only() -> None:
    slow = without(ticks(7.0, step=60.0), 240.0)
    held = [series("temp", NODE, slow), *(series("fast", {"instance": f"n{n}"}, ticks(1.0)) for n in range(3))]
    snapshot = read(MemoryStore(held), library(x=TEMP, y=signal("node", "fast")))
    found = one(snapshot).window[0]
    assert snapshot.step == 15.0
    assert one(snapshot).interval == 60.0
    holes = np.flatnonzero(np.isnan(found)).tolist()
    assert holes == [60 - 15, 60 - 14, 60 - 13]  # of a missing minute, a sample's own interval is bridged


def test_the_first_steps_are_carried_from_before_the_window() -> None:
    late = [(time - 20.0, value) for time, value in ticks(7.0, step=60.0, seconds=1200.0)]
    held = [series("temp", NODE, late), *(series("fast", {"instance": f"n{n}"}, ticks(1.0)) for n in range(3))]
    found = one(read(MemoryStore(held), library(x=TEMP, y=signal("node", "fast")))).window[0]
    assert np.isfinite(found).all()


def test_nan_is_no_sample() -> None:
    samples = [(time, np.nan if time == END - 60.0 else value) for time, value in ticks(20.0)]
    assert np.flatnonzero(np.isnan(row(samples))).tolist() == [56]


# counters


def rated(samples: Samples, query: str = "rate(c_total[1m])", *, seconds: float = 900.0, **more: object) -> Measurement:
    held = [series("c_total", NODE, samples)]
    return one(read(MemoryStore(held), library(x=signal("node", query, **more)), seconds=seconds))


def test_rate_of_an_even_counter_is_even() -> None:
    found = rated(counter(3.0))
    assert np.allclose(found.window, 3.0)
    assert found.smoothing == 60.0


def test_increase_and_arithmetic() -> None:
    assert np.allclose(rated(counter(3.0), "increase(c_total[2m])").window, 360.0)
    assert np.allclose(rated(counter(3.0), "1 - rate(c_total[1m]) * 60 / 100").window, -0.8)


def test_a_missed_scrape_does_not_dent_a_rate() -> None:
    assert np.allclose(rated(without(counter(3.0), 300.0)).window, 3.0)


@pytest.mark.parametrize("phase", [0.0, 4.0, 7.5, 11.0])
def test_rates_do_not_depend_on_the_phase_of_the_scrapes(phase: float) -> None:
    shifted = [(time - phase, 3.0 * (time - phase)) for time, _ in counter(0.0)]
    assert np.allclose(rated(shifted).window[0, :-1], 3.0)


def test_a_reset_counts_from_zero() -> None:
    samples = [(time, value - 3e6 + 3000.0 if time > END - 450.0 else value) for time, value in counter(3.0)]
    found = rated(samples).window[0]
    assert (found >= 0.0).all()
    assert np.allclose(np.delete(found, np.s_[31:36]), 3.0)


def test_a_dead_counter_yields_no_rate() -> None:
    found = rated([(time, value) for time, value in counter(3.0) if time <= END - 450.0]).window[0]
    dead = np.flatnonzero(np.isnan(found))
    assert dead.tolist() == list(range(33, 61))  # 2.5 intervals after the last sample


def test_a_rate_needs_two_samples_and_two_intervals() -> None:
    assert (
        "x"
        in read(
            MemoryStore([series("c_total", NODE, counter(3.0)[-1:])]), library(x=signal("node", "rate(c_total[1m])"))
        ).absent
    )
    slow = rated(counter(3.0, step=60.0))
    assert slow.smoothing == 120.0
    assert np.allclose(slow.window[0, 1:], 3.0)


def test_a_gap_ends_the_rate_and_is_not_averaged_over() -> None:
    samples = [
        (time, value + (900.0 if time >= END - 300.0 else 0.0))
        for time, value in counter(3.0)
        if not END - 600.0 < time < END - 300.0
    ]
    found = rated(samples).window[0]
    assert np.isnan(found[24:41]).all()
    assert np.allclose(found[41:], 3.0)


def ratio(steps: float, took: float, query: str, **more: object) -> Measurement:
    """Return a time per step where a step takes `steps` seconds and each adds `took`."""
    done = [(time, float(np.floor((time - END + 1e6) / steps))) for time, _ in counter(0.0, seconds=3000.0)]
    held = [series("s_total", NODE, done), series("t_sum", NODE, [(time, took * count) for time, count in done])]
    return one(read(MemoryStore(held), library(x=signal("node", query, **more))))


def test_a_ratio_is_exact_per_event() -> None:
    found = ratio(2.0, 1.7, "rate(t_sum[1m]) / rate(s_total[1m])")
    assert np.allclose(found.window, 1.7)
    assert found.smoothing == 60.0


def test_a_ratio_over_few_events_looks_further_back() -> None:
    found = ratio(46.0, 40.0, "rate(t_sum[1m]) / rate(s_total[1m])")
    assert np.allclose(found.window, 40.0)
    assert 460.0 <= found.smoothing <= 960.0
    every = ratio(46.0, 40.0, "1 / rate(s_total[1m])").window
    assert np.allclose(every, 46.0, rtol=0.1)


def test_a_stalled_denominator_yields_nothing() -> None:
    stop = END - 400.0
    done = [(time, float(np.floor((min(time, stop) - END + 1e6) / 2.0))) for time, _ in counter(0.0)]
    held = [series("s_total", NODE, done), series("t_sum", NODE, [(time, 1.7 * count) for time, count in done])]
    found = one(read(MemoryStore(held), library(x=signal("node", "rate(t_sum[1m]) / rate(s_total[1m])")))).window[0]
    assert np.allclose(found[:33], 1.7)
    assert np.isnan(found[40:]).all()
    still = [(time, 5.0) for time, _ in done]
    absent = read(
        MemoryStore([series("s_total", NODE, still), series("t_sum", NODE, still)]),
        library(x=signal("node", "rate(t_sum[1m]) / rate(s_total[1m])")),
    ).absent
    assert absent["x"] == "its series have no usable sample in the window"


def test_a_ratio_of_sums_is_a_ratio_of_sums() -> None:
    held = [
        series(name, {**NODE, "device": device}, counter(rate))
        for name, device, rate in [
            ("a_total", "sda", 10.0),
            ("a_total", "sdb", 30.0),
            ("b_total", "sda", 5.0),
            ("b_total", "sdb", 20.0),
        ]
    ]
    text = "sum by (instance) (rate(a_total[1m])) / sum by (instance) (rate(b_total[1m]))"
    assert np.allclose(one(read(MemoryStore(held), library(x=signal("node", text)))).window, 40.0 / 25.0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 80), min_size=2, max_size=60, unique=True), st.floats(0.1, 50.0))
def test_any_samples_of_an_even_counter_give_its_rate_or_nothing(kept: list[int], rate: float) -> None:
    samples = [sample for index, sample in enumerate(counter(rate, seconds=1200.0)) if index in kept]
    held = [series("c_total", NODE, samples), *(series("temp", {"instance": f"n{n}"}, ticks(1.0)) for n in range(3))]
    found = read(MemoryStore(held), library(x=signal("node", "rate(c_total[1m])"), y=TEMP)).measurements.get("x")
    if found is not None:
        known = found.window[np.isfinite(found.window)]
        assert np.allclose(known, rate, rtol=1e-6)
