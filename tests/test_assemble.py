"""From raw series to a snapshot: grids, counters, several series an entity, and what is said about the odd ones."""

import csv
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import NO_SERVER, MemoryStore, Samples, series
from small_library import library, signal

from rca import load
from rca.detectors import AboveBaseline
from rca.errors import ProblemsError
from rca.library import Codes, Derived, Library, Rule
from rca.model import Measurement, Snapshot, Window
from rca.sources.assemble import Deployment, assemble
from rca.sources.series import Block

END = 1_700_000_400.0
NODE = {"instance": "n0:9100"}
TEMP = signal("node", "temp")


def ticks(value: float | Sequence[float], *, step: float = 15.0, seconds: float = 900.0, end: float = END) -> Samples:
    """Return samples every `step` seconds over the last `seconds`, the last at `end`."""
    times = end - step * np.arange(int(seconds / step), -1, -1)
    values = np.broadcast_to(np.asarray(value, dtype=float), times.shape)
    return list(zip(times.tolist(), values.tolist(), strict=True))


def counter(rate: float, *, step: float = 15.0, seconds: float = 1800.0, end: float = END) -> Samples:
    """Return samples of a counter that grows evenly."""
    return [(time, rate * (time - END + 1e6)) for time, _ in ticks(0.0, step=step, seconds=seconds, end=end)]


def without(samples: Samples, *gone: float) -> Samples:
    """Return samples without those at these seconds before the end."""
    return [(time, value) for time, value in samples if END - time not in gone]


def read(store: MemoryStore, given: Library, *, seconds: float = 900.0, baseline: float = 3600.0,
         deployment: Deployment | None = None) -> Snapshot:
    return assemble(store, given, Window(END - seconds, END, baseline), deployment)


def one(snapshot: Snapshot, name: str = "x") -> Measurement:
    assert name in snapshot.measurements, snapshot.absent
    return snapshot.measurements[name]


def row(samples: Samples, query: str = "temp", *, seconds: float = 900.0, step: float | None = None,
        **more: object) -> np.ndarray:
    """Return the only row of a node signal."""
    held = [series("temp", NODE, samples)]
    snapshot = read(MemoryStore(held), library(x=signal("node", query, **more)), seconds=seconds,
                    deployment=Deployment(step=step))
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
    assert "x" in read(MemoryStore([series("c_total", NODE, counter(3.0)[-1:])]), library(
        x=signal("node", "rate(c_total[1m])"))).absent
    slow = rated(counter(3.0, step=60.0))
    assert slow.smoothing == 120.0
    assert np.allclose(slow.window[0, 1:], 3.0)


def test_a_gap_ends_the_rate_and_is_not_averaged_over() -> None:
    samples = [(time, value + (900.0 if time >= END - 300.0 else 0.0)) for time, value in counter(3.0)
               if not END - 600.0 < time < END - 300.0]
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
    absent = read(MemoryStore([series("s_total", NODE, still), series("t_sum", NODE, still)]),
                  library(x=signal("node", "rate(t_sum[1m]) / rate(s_total[1m])"))).absent
    assert absent["x"] == "its series have no usable sample in the window"


def test_a_ratio_of_sums_is_a_ratio_of_sums() -> None:
    held = [series(name, {**NODE, "device": device}, counter(rate)) for name, device, rate in [
        ("a_total", "sda", 10.0), ("a_total", "sdb", 30.0), ("b_total", "sda", 5.0), ("b_total", "sdb", 20.0)]]
    text = "sum by (instance) (rate(a_total[1m])) / sum by (instance) (rate(b_total[1m]))"
    assert np.allclose(one(read(MemoryStore(held), library(x=signal("node", text)))).window, 40.0 / 25.0)


# several series an entity


def test_devices_meet_each_other_before_the_slowest_is_taken() -> None:
    held = [series(name, {**NODE, "device": device}, counter(rate)) for name, device, rate in [
        ("t_total", "sda", 1.0), ("t_total", "sdb", 0.2), ("n_total", "sda", 100.0), ("n_total", "sdb", 2.0)]]
    found = one(read(MemoryStore(held), library(x=signal("node", "rate(t_total[1m]) / rate(n_total[1m])"))))
    assert np.allclose(found.window, 0.1)


@pytest.mark.parametrize("query", [
    'rate(p_sum{phase="f"}[1m]) / rate(s_total[1m])',
    'rate(p_sum{phase="f"}[1m]) / ignoring (phase) rate(s_total[1m])',
    'rate(p_sum{phase="f"}[1m]) / on (instance) group_left () rate(s_total[1m])',
])
def test_a_label_of_one_side_only(query: str) -> None:
    held = [series("p_sum", {**NODE, "phase": "f"}, counter(6.0)), series("p_sum", {**NODE, "phase": "b"}, counter(9.0)),
            series("s_total", NODE, counter(2.0))]
    assert np.allclose(one(read(MemoryStore(held), library(x=signal("node", query)))).window, 3.0)


@pytest.mark.parametrize(("how", "value"), [("max", 5.0), ("min", 1.0), ("sum", 6.0), ("mean", 3.0)])
def test_combine(how: str, value: float) -> None:
    held = [series("temp", {**NODE, "core": "0"}, ticks(1.0)), series("temp", {**NODE, "core": "1"}, without(ticks(5.0), 0.0))]
    found = one(read(MemoryStore(held), library(x=signal("node", "temp", combine=how)))).window[0]
    assert found[-2] == value
    assert found[-1] == 1.0


def test_an_outer_aggregation_says_how_to_combine() -> None:
    held = [series("temp", {**NODE, "core": str(core)}, ticks(float(core))) for core in range(4)]
    found = one(read(MemoryStore(held), library(x=signal("node", "avg by (instance) (temp) * 2", combine="max"))))
    assert np.allclose(found.window, 3.0)


def test_last_is_the_series_with_the_newest_sample() -> None:
    xid = "DCGM_FI_DEV_XID_ERRORS"
    gpu = {"Hostname": "n0", "gpu": "0"}
    held = [series(xid, {**gpu, "err_code": "79"}, [(time, 79.0) for time, _ in ticks(0.0) if time > END - 400.0]),
            series(xid, {**gpu, "err_code": "0"}, [(time, 0.0) for time, _ in ticks(0.0) if time <= END - 400.0])]
    found = one(read(MemoryStore(held), library(x=signal("gpu", xid, combine="last")))).window[0]
    assert found[:33].tolist() == [0.0] * 33
    assert found[34:].tolist() == [79.0] * 27


def test_codes_are_numbers_of_label_values() -> None:
    rank = {"job_id": "j", "rank": "0"}
    train = [(time, float(time <= END - 300.0)) for time, _ in ticks(0.0)]
    saving = [(time, 1.0 - value) for time, value in train]
    held = [series("train_state", {**rank, "state": "train"}, train),
            series("train_state", {**rank, "state": "save"}, saving),
            series("train_state", {**rank, "state": "dance"}, saving)]
    snapshot = read(MemoryStore(held), library(x=signal("rank", "train_state", codes=Codes(label="state", values=("init", "train", "save")))))
    found = one(snapshot).window[0]
    assert found[:41].tolist() == [1.0] * 41
    assert found[41:].tolist() == [2.0] * 20
    assert any("unknown dance" in text for text in snapshot.warnings)


def test_two_exporters_for_one_gpu_are_said_once() -> None:
    held = [series(name, {"Hostname": f"n{n}", "gpu": "0", "instance": f"10.0.0.{target}:9400"}, ticks(float(target)))
            for name in ("temp", "power") for n in range(3) for target in (1, 2)]
    held += [series("temp", {"Hostname": "n9", "gpu": "0", "instance": "a:1"}, ticks(1.0)[:20]),
             series("temp", {"Hostname": "n9", "gpu": "0", "instance": "b:1"}, ticks(1.0)[20:])]
    snapshot = read(MemoryStore(held), library(x=signal("gpu", "temp"), y=signal("gpu", "power")))
    said = [text for text in snapshot.warnings if "two exporters" in text]
    assert said == ["two exporters for one gpu: 3 have them, for example n0/0 at 10.0.0.1:9400 and 10.0.0.2:9400"]
    assert one(snapshot).window[0, -1] == 2.0


# values that are none


def test_sentinels_and_values_outside_the_range_are_dropped_and_counted() -> None:
    odd = {END - 30.0: 9.223372036854776e18, END - 45.0: np.inf, END - 60.0: -np.inf, END - 75.0: 255.0}
    samples = [(time, odd.get(time, value)) for time, value in ticks(20.0)]
    snapshot = read(MemoryStore([series("temp", NODE, samples)]), library(x=signal("node", "temp", valid=(0.0, 100.0))))
    assert np.flatnonzero(np.isnan(one(snapshot).window[0])).tolist() == [55, 56, 57, 58]
    assert "x: 1 samples outside 0 to 100 dropped, for example 255" in snapshot.warnings
    assert "temp: 3 samples are infinite or mean 'not available', dropped" in snapshot.warnings


def test_clocks_that_jump() -> None:
    samples = [*ticks(20.0), (END + 300.0, 1.0)]
    back = [(time - (200.0 if time > END - 60.0 else 0.0), value) for time, value in ticks(20.0)]

    class Jumping(MemoryStore):
        def _block(self, selector: object) -> Block:
            parts = [np.array(samples), np.array(back)]
            flat = np.concatenate(parts)
            offsets = np.array([0, len(samples), len(samples) + len(back)])
            return Block([{"__name__": "temp", "instance": "n0"}, {"__name__": "temp", "instance": "n1"}], offsets,
                         flat[:, 0], flat[:, 1])

    snapshot = read(Jumping([series("temp", NODE, samples)]), library(x=TEMP))
    said = [text for text in snapshot.warnings if text.startswith("clocks")]
    assert len(said) == 1
    assert said[0].startswith("clocks: 2 series have timestamps after the window")
    assert one(snapshot).window[0, -1] == 20.0


def test_a_window_of_too_few_steps() -> None:
    snapshot = read(MemoryStore([series("temp", NODE, ticks(20.0))]), library(x=TEMP), seconds=30.0)
    assert "window: 30 s is less than three steps of 15 s, ask for a longer one" in snapshot.warnings


# what is asked, and what is absent


def test_absent_signals_say_why() -> None:
    held = [series("temp", NODE, ticks(20.0)), series("lost", {"color": "red"}, ticks(1.0)),
            series("old", NODE, ticks(1.0, end=END - 2000.0)), series("blue", NODE, ticks(1.0))]
    given = library(
        x=TEMP, gone=signal("node", "gone_total", "also_gone"), lost=signal("node", "lost"), old=signal("node", "old"),
        red=signal("node", 'blue{color="red"}'), both=signal("node", "temp + gone"),
        made=signal("node", derived=Derived(sum=("x", "gone"))),
        more=signal("node", derived=Derived(sum=("made",))), circle=signal("node", derived=Derived(sum=("circle",))),
    )
    snapshot = read(MemoryStore(held), given)
    assert snapshot.absent == {
        "gone": "no series gone_total, also_gone on the server",
        "lost": "none of its 1 series names a node",
        "old": "no series matches old",
        "red": 'no series matches blue{color="red"}',
        "both": "no series gone on the server",
        "made": "needs gone: no series gone_total, also_gone on the server",
        "more": "needs gone: no series gone_total, also_gone on the server",
        "circle": "needs circle: is derived from itself",
    }
    assert "x" in snapshot.measurements
    assert '1 series name no node, for example lost{color="red"}' in snapshot.warnings


def test_metrics_that_do_not_exist_are_not_asked_and_equal_selectors_once() -> None:
    store = MemoryStore([series("c_total", NODE, counter(1.0)), series("temp", NODE, ticks(1.0))])
    read(store, library(x=signal("node", "rate(c_total[1m])", "gone"), y=signal("node", "rate(c_total[5m])"), z=TEMP))
    asked = {selector.names: selector for selector in store.asked}
    assert set(asked) == {("c_total",), ("temp",)}
    assert asked["c_total",].start == END - 900.0 - 360.0
    assert asked["temp",].start == END - 900.0 - 60.0
    assert all(selector.end == END for selector in store.asked)


def test_only_what_is_compared_with_its_past_reaches_back() -> None:
    rule = Rule(id="r", layer="physical", summary="s", entity="node", role="symptom",
                when=AboveBaseline(signal="sum", by="10%"))
    held = [series(name, NODE, ticks(3.0, seconds=6000.0)) for name in ("a", "b", "c")]
    given = library({"r": rule}, a=signal("node", "a"), b=signal("node", "b"), c=signal("node", "c"),
                    sum=signal("node", derived=Derived(sum=("a", "b"))))
    store = MemoryStore(held)
    snapshot = read(store, given)
    starts = {selector.names[0]: selector.start for selector in store.asked}
    assert starts == {"a": END - 4560.0, "b": END - 4560.0, "c": END - 960.0}
    assert snapshot.before_times.shape == (240,)
    for name in ("a", "b", "sum"):
        before = one(snapshot, name).before
        assert before is not None
        assert before.shape == (1, 240)
        assert np.isfinite(before).all()
    assert one(snapshot, "c").before is None
    assert np.allclose(one(snapshot, "sum").window, 6.0)


def test_a_query_fills_what_those_before_it_left_empty() -> None:
    held = [series("temp", {"instance": "n0"}, ticks(1.0)), series("heat", {"node": "n0"}, ticks(2.0)),
            series("heat", {"node": "n1"}, ticks(2.0))]
    found = one(read(MemoryStore(held), library(x=signal("node", "temp", "heat"))))
    assert found.window[:, -1].tolist() == [1.0, 2.0]
    assert found.query == "temp"
    assert found.origin == [{"instance": "n0"}, {"node": "n1"}]


def test_what_has_no_plan_is_evaluated_by_the_server() -> None:
    def evaluator(query: str, times: np.ndarray) -> Block:
        assert query == "max_over_time(temp[5m])"
        return Block([{"instance": "n0:1"}], np.array([0, len(times)]), times.copy(), np.full(len(times), 7.0))

    held = [series("temp", NODE, ticks(1.0))]
    given = library(x=signal("node", "max_over_time(temp[5m])"), y=signal("node", "max_over_time(gone[5m])"))
    snapshot = read(MemoryStore(held, evaluator), given)
    assert np.allclose(one(snapshot).window, 7.0)
    assert snapshot.absent == {"y": "no series gone on the server"}
    assert any("gaps under 5 minutes are invisible" in text for text in snapshot.warnings)
    without_server = read(MemoryStore(held), given)
    assert without_server.absent["x"] == NO_SERVER


def test_a_query_that_is_no_promql() -> None:
    with pytest.raises(ProblemsError, match=r"signal x: 'rate\(' is not PromQL"):
        read(MemoryStore([]), library(x=signal("node", "rate(")))


def test_nothing_at_all() -> None:
    snapshot = read(MemoryStore([]), library(x=TEMP))
    assert snapshot.absent == {"x": "no series temp on the server"}
    assert {len(table) for table in snapshot.tables.values()} == {0}
    assert snapshot.step == 15.0


def test_the_stores_warnings_are_passed_on() -> None:
    assert read(MemoryStore([], said=["half an answer"]), library(x=TEMP)).warnings == ("half an answer",)


# spellings


ALIASES = load.dcgm_aliases()
CLOCK, HERTZ = "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_SM_CLOCK_HERTZ"


def test_old_and_new_dcgm_names_are_one_metric_in_one_unit() -> None:
    held = [series(CLOCK, {"Hostname": "n0", "gpu": "0"}, ticks(1400.0)),
            series(HERTZ, {"hostname": "n1", "gpu": "0"}, ticks(1.5e9))]
    store = MemoryStore(held)
    snapshot = read(store, library(x=signal("gpu", CLOCK, valid=(1.0, 1e4))), deployment=Deployment(aliases=ALIASES))
    assert one(snapshot).window[:, 0].tolist() == [1400.0, 1500.0]
    assert [selector.names for selector in store.asked] == [(CLOCK, HERTZ)]
    assert one(snapshot).origin == [{"Hostname": "n0", "gpu": "0"}, {"hostname": "n1", "gpu": "0"}]


def test_the_query_is_spelled_as_the_server_has_it() -> None:
    held = [series(HERTZ, {"hostname": "n1", "gpu": "0"}, ticks(1.5e9))]
    found = one(read(MemoryStore(held), library(x=signal("gpu", CLOCK)), deployment=Deployment(aliases=ALIASES)))
    assert found.query == f"({HERTZ} / 1000000)"
    assert np.allclose(found.window, 1500.0)


def test_a_name_with_several_other_spellings() -> None:
    aliases = {"a": (("b", 10.0), ("c", 0.5))}
    held = [series("b", {"instance": "n0"}, ticks(30.0)), series("c", {"instance": "n1"}, ticks(30.0)),
            series("a", {"instance": "n2"}, ticks(30.0))]
    found = one(read(MemoryStore(held), library(x=signal("node", "a")), deployment=Deployment(aliases=aliases)))
    assert found.window[:, 0].tolist() == [3.0, 60.0, 30.0]


def test_metrics_by_pattern() -> None:
    held = [series(f"p{n}_pause", {**NODE, "device": "eth0"}, counter(1.0)) for n in range(3)]
    text = 'rate({__name__=~"p[0-9]_pause"}[2m])'
    assert np.allclose(one(read(MemoryStore(held), library(x=signal("nic", text, combine="sum")))).window, 3.0)


# properties


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(12)))
def test_the_order_of_series_changes_nothing(order: list[int]) -> None:
    rng = np.random.default_rng(3)
    held = [series("temp", {"Hostname": f"n{n // 4}", "gpu": str(n // 2 % 2), "pod": str(n)}, ticks(rng.random(61) * 1e3))
            for n in range(12)]
    given = library(x=signal("gpu", "temp", combine="sum"), y=signal("gpu", "temp", combine="last"),
                    z=signal("node", "avg(temp)"))
    expected, found = (read(MemoryStore([held[n] for n in one_order]), given) for one_order in (range(12), order))
    assert found.warnings == expected.warnings
    for name, measurement in expected.measurements.items():
        assert np.array_equal(found.measurements[name].window, measurement.window, equal_nan=True)
        assert found.measurements[name].origin == measurement.origin
    for kind, table in expected.tables.items():
        assert {name: list(column) for name, column in found.tables[kind].columns.items()} == {
            name: list(column) for name, column in table.columns.items()}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 80), min_size=2, max_size=60, unique=True), st.floats(0.1, 50.0))
def test_any_samples_of_an_even_counter_give_its_rate_or_nothing(kept: list[int], rate: float) -> None:
    samples = [sample for index, sample in enumerate(counter(rate, seconds=1200.0)) if index in kept]
    held = [series("c_total", NODE, samples), *(series("temp", {"instance": f"n{n}"}, ticks(1.0)) for n in range(3))]
    found = read(MemoryStore(held), library(x=signal("node", "rate(c_total[1m])"), y=TEMP)).measurements.get("x")
    if found is not None:
        known = found.window[np.isfinite(found.window)]
        assert np.allclose(known, rate, rtol=1e-6)


def test_shipped_queries_are_all_evaluated_here() -> None:
    loaded = load.survey().library
    assert loaded is not None
    from rca import promql
    served = [text for one_signal in loaded.signals.values() for text in one_signal.queries if promql.plan(text) is None]
    assert served == []


def test_aliases_are_those_of_the_table() -> None:
    with (load.shipped() / "tables" / "dcgm_aliases.csv").open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    assert all((line["new_name"], float(line["new_per_old_factor"])) in ALIASES[line["old_name"]] for line in rows)
