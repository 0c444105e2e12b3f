"""From raw series to a snapshot: several series an entity, what is asked, and what is said about the odd ones."""

import csv

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import END, NO_SERVER, MemoryStore, counter, series, ticks, without
from small_library import NODE, library, one, read, signal

from rca import load, promql
from rca.detectors import AboveBaseline
from rca.errors import ProblemsError
from rca.library import Codes, Derived, Library, Rule, Signal
from rca.sources.series import Block

TEMP = signal("node", "temp")


# several series an entity


def test_devices_meet_each_other_before_the_slowest_is_taken() -> None:
    held = [
        series(name, {**NODE, "device": device}, counter(rate))
        for name, device, rate in [
            ("t_total", "sda", 1.0),
            ("t_total", "sdb", 0.2),
            ("n_total", "sda", 100.0),
            ("n_total", "sdb", 2.0),
        ]
    ]
    found = one(read(MemoryStore(held), library(x=signal("node", "rate(t_total[1m]) / rate(n_total[1m])"))))
    assert np.allclose(found.window, 0.1)


@pytest.mark.parametrize(
    "query",
    [
        'rate(p_sum{phase="f"}[1m]) / rate(s_total[1m])',
        'rate(p_sum{phase="f"}[1m]) / ignoring (phase) rate(s_total[1m])',
        'rate(p_sum{phase="f"}[1m]) / on (instance) group_left () rate(s_total[1m])',
    ],
)
def test_a_label_of_one_side_only(query: str) -> None:
    held = [
        series("p_sum", {**NODE, "phase": "f"}, counter(6.0)),
        series("p_sum", {**NODE, "phase": "b"}, counter(9.0)),
        series("s_total", NODE, counter(2.0)),
    ]
    assert np.allclose(one(read(MemoryStore(held), library(x=signal("node", query)))).window, 3.0)


@pytest.mark.parametrize("query", ["rate(b_bucket[5m])", "sum by (le) (rate(b_bucket[5m]))"])
def test_a_quantile_is_interpolated_inside_its_bucket(query: str) -> None:
    """Of 10 steps a second 6 stay below 1 s, 9 below 2 s: the median lies at 5/6 s, nine in ten at 2 s."""
    held = [
        series("b_bucket", {**NODE, "le": le}, counter(rate)) for le, rate in (("1", 6.0), ("2.0", 9.0), ("+Inf", 10.0))
    ]
    for share, value in ((0.5, 5 / 6), (0.75, 1.5), (0.9, 2.0), (0.99, 2.0)):
        found = one(read(MemoryStore(held), library(x=signal("node", f"histogram_quantile({share}, {query})"))))
        assert np.allclose(found.window[:, 10:], value), share


def test_a_quantile_needs_buckets() -> None:
    given = library(x=signal("node", "histogram_quantile(0.5, rate(b_bucket[5m]))"))
    held = [series("b_bucket", {**NODE, "le": "+Inf"}, counter(1.0))]
    assert "x" in read(MemoryStore(held), given).absent
    assert promql.plan("histogram_quantile(0.5, b_bucket)") is None


@pytest.mark.parametrize(("how", "value"), [("max", 5.0), ("min", 1.0), ("sum", 6.0), ("mean", 3.0)])
def test_combine(how: str, value: float) -> None:
    held = [
        series("temp", {**NODE, "core": "0"}, ticks(1.0)),
        series("temp", {**NODE, "core": "1"}, without(ticks(5.0), 0.0)),
    ]
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
    held = [
        series(xid, {**gpu, "err_code": "79"}, [(time, 79.0) for time, _ in ticks(0.0) if time > END - 400.0]),
        series(xid, {**gpu, "err_code": "0"}, [(time, 0.0) for time, _ in ticks(0.0) if time <= END - 400.0]),
    ]
    found = one(read(MemoryStore(held), library(x=signal("gpu", xid, combine="last")))).window[0]
    assert found[:33].tolist() == [0.0] * 33
    assert found[34:].tolist() == [79.0] * 27


def test_codes_are_numbers_of_label_values() -> None:
    rank = {"job_id": "j", "rank": "0"}
    train = [(time, float(time <= END - 300.0)) for time, _ in ticks(0.0)]
    saving = [(time, 1.0 - value) for time, value in train]
    held = [
        series("train_state", {**rank, "state": "train"}, train),
        series("train_state", {**rank, "state": "save"}, saving),
        series("train_state", {**rank, "state": "dance"}, saving),
    ]
    snapshot = read(
        MemoryStore(held),
        library(x=signal("rank", "train_state", codes=Codes(label="state", values=("init", "train", "save")))),
    )
    found = one(snapshot).window[0]
    assert found[:41].tolist() == [1.0] * 41
    assert found[41:].tolist() == [2.0] * 20
    assert any("unknown dance" in text for text in snapshot.warnings)


TEXT = signal("node", "node_uname_info", codes=Codes(label="release"))


def test_any_text_of_a_label_is_a_number_in_natural_order() -> None:
    kernels = ("5.15.0-100", "5.15.0-99", "5.15.0-100")
    held = [series("node_uname_info", {"instance": f"n{n}:9100", "release": kernels[n]}, ticks(1.0)) for n in range(3)]
    for order in (held, held[::-1]):
        found = one(read(MemoryStore(order), library(x=TEXT)))
        assert found.texts == ("5.15.0-99", "5.15.0-100")
        assert found.window[:, -1].tolist() == [1.0, 0.0, 1.0]


def test_a_label_is_read_under_its_newer_name_too_whatever_the_series_reads() -> None:
    old, new = "DCGM_FI_DRIVER_VERSION", "DCGM_FI_SYSTEM_DRIVER_VERSION"
    held = [
        series("temp", {"Hostname": "n0", "gpu": str(n), label: "550.90.07"}, ticks(0.0))
        for n, label in enumerate((old, new))
    ]
    given = msgspec.structs.replace(
        library(x=signal("gpu", "temp", codes=Codes(label=old))), aliases={old: ((new, 1.0),)}
    )
    assert one(read(MemoryStore(held), given)).window[:, -1].tolist() == [0.0, 0.0]


def test_a_label_that_nobody_exports_is_said() -> None:
    snapshot = read(MemoryStore([series("node_uname_info", NODE, ticks(1.0))]), library(x=TEXT))
    assert snapshot.absent["x"] == "none of its 1 series has a label release"


def test_two_exporters_for_one_gpu_are_said_once() -> None:
    held = [
        series(name, {"Hostname": f"n{n}", "gpu": "0", "instance": f"10.0.0.{target}:9400"}, ticks(float(target)))
        for name in ("temp", "power")
        for n in range(3)
        for target in (1, 2)
    ]
    held += [
        series("temp", {"Hostname": "n9", "gpu": "0", "instance": "a:1"}, ticks(1.0)[:20]),
        series("temp", {"Hostname": "n9", "gpu": "0", "instance": "b:1"}, ticks(1.0)[20:]),
    ]
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
            return Block(
                [{"__name__": "temp", "instance": "n0"}, {"__name__": "temp", "instance": "n1"}],
                offsets,
                flat[:, 0],
                flat[:, 1],
            )

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
    held = [
        series("temp", NODE, ticks(20.0)),
        series("lost", {"color": "red"}, ticks(1.0)),
        series("old", NODE, ticks(1.0, end=END - 2000.0)),
        series("blue", NODE, ticks(1.0)),
    ]
    given = library(
        x=TEMP,
        gone=signal("node", "gone_total", "also_gone"),
        lost=signal("node", "lost"),
        old=signal("node", "old"),
        red=signal("node", 'blue{color="red"}'),
        both=signal("node", "temp + gone"),
        made=signal("node", derived=Derived(sum=("x", "gone"))),
        more=signal("node", derived=Derived(sum=("made",))),
        circle=signal("node", derived=Derived(sum=("circle",))),
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
    rule = Rule(
        id="r", layer="physical", summary="s", entity="node", role="symptom", when=AboveBaseline(signal="sum", by="10%")
    )
    held = [series(name, NODE, ticks(3.0, seconds=6000.0)) for name in ("a", "b", "c")]
    given = library(
        {"r": rule},
        a=signal("node", "a"),
        b=signal("node", "b"),
        c=signal("node", "c"),
        sum=signal("node", derived=Derived(sum=("a", "b"))),
    )
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
    held = [
        series("temp", {"instance": "n0"}, ticks(1.0)),
        series("heat", {"node": "n0"}, ticks(2.0)),
        series("heat", {"node": "n1"}, ticks(2.0)),
    ]
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
    assert NO_SERVER in without_server.absent["x"]


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


def aliased(aliases: dict[str, tuple[tuple[str, float], ...]], **signals: Signal) -> Library:
    return msgspec.structs.replace(library(**signals), aliases=aliases)


CLOCK, HERTZ = "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_SM_CLOCK_HERTZ"


def test_old_and_new_dcgm_names_are_one_metric_in_one_unit() -> None:
    held = [
        series(CLOCK, {"Hostname": "n0", "gpu": "0"}, ticks(1400.0)),
        series(HERTZ, {"hostname": "n1", "gpu": "0"}, ticks(1.5e9)),
    ]
    store = MemoryStore(held)
    snapshot = read(store, aliased(ALIASES, x=signal("gpu", CLOCK, valid=(1.0, 1e4))))
    assert one(snapshot).window[:, 0].tolist() == [1400.0, 1500.0]
    assert [selector.names for selector in store.asked] == [(CLOCK, HERTZ)]
    assert one(snapshot).origin == [{"Hostname": "n0", "gpu": "0"}, {"hostname": "n1", "gpu": "0"}]


def test_the_query_is_spelled_as_the_server_has_it() -> None:
    held = [series(HERTZ, {"hostname": "n1", "gpu": "0"}, ticks(1.5e9))]
    found = one(read(MemoryStore(held), aliased(ALIASES, x=signal("gpu", CLOCK))))
    assert found.query == f"({HERTZ} / 1000000)"
    assert np.allclose(found.window, 1500.0)


def test_a_name_with_several_other_spellings() -> None:
    aliases = {"a": (("b", 10.0), ("c", 0.5))}
    held = [
        series("b", {"instance": "n0"}, ticks(30.0)),
        series("c", {"instance": "n1"}, ticks(30.0)),
        series("a", {"instance": "n2"}, ticks(30.0)),
    ]
    found = one(read(MemoryStore(held), aliased(aliases, x=signal("node", "a"))))
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
    held = [
        series("temp", {"Hostname": f"n{n // 4}", "gpu": str(n // 2 % 2), "pod": str(n)}, ticks(rng.random(61) * 1e3))
        for n in range(12)
    ]
    given = library(
        x=signal("gpu", "temp", combine="sum"), y=signal("gpu", "temp", combine="last"), z=signal("node", "avg(temp)")
    )
    expected, found = (read(MemoryStore([held[n] for n in one_order]), given) for one_order in (range(12), order))
    assert found.warnings == expected.warnings
    for name, measurement in expected.measurements.items():
        assert np.array_equal(found.measurements[name].window, measurement.window, equal_nan=True)
        assert found.measurements[name].origin == measurement.origin
    for kind, table in expected.tables.items():
        assert {name: list(column) for name, column in found.tables[kind].columns.items()} == {
            name: list(column) for name, column in table.columns.items()
        }


def test_shipped_queries_are_all_evaluated_here() -> None:
    loaded = load.survey().library
    assert loaded is not None
    served = {name for name, one in loaded.signals.items() if any(promql.plan(text) is None for text in one.queries)}
    assert served == set()


def test_aliases_are_those_of_the_table() -> None:
    with (load.shipped() / "tables" / "dcgm_aliases.csv").open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    assert all((line["new_name"], float(line["new_per_old_factor"])) in ALIASES[line["old_name"]] for line in rows)
