"""Rules on snapshots: persistence, phases, counts, overrides, and which condition decided."""

import msgspec
import numpy as np
import pytest
from read_once import load
from synthetic import Job

from rca import graph
from rca.detectors import Above, All, Any, Below, Condition, Logged, Not, Unless
from rca.evaluate import Look, median
from rca.graph import Graph
from rca.library import Library, Override, Rule
from rca.rows import hold


@pytest.fixture(scope="module")
def library() -> Library:
    return load()


def row(states: str) -> np.ndarray:
    return np.array([[{"+": 1, "-": -1, "?": 0}[one] for one in states]], dtype=np.int8)


@pytest.mark.parametrize(
    ("states", "state", "first", "why"),
    [
        ("----++++", 1, 4, "true for the last four"),
        ("-----+++", -1, 0, "only three"),
        ("++++----", 1, 0, "ended within twice the length"),
        ("++++---------", -1, 0, "over for long"),
        ("--++++++-+++++", 1, 2, "one odd sample does not end it"),
        ("++++----------++++", 1, 14, "the last of two"),
        ("----++++????????", 1, 4, "what is unknown since then keeps the last state"),
        ("????????", 0, 0, "nothing known"),
        ("-???????", 0, 0, "known for too short a time to be healthy"),
        ("------??", -1, 0, "seen to be absent"),
        ("+?+?+?+?+?", 1, 0, "half of the samples are enough"),
        ("+-+-+-+-+-", -1, 0, "flickering is no finding"),
    ],
)
def test_a_finding_lasts(states: str, state: int, first: int, why: str) -> None:
    found, begin, _ = hold(row(states), 4, 8)
    assert found[0] == state, why
    if state == 1:
        assert begin[0] == first, why


def test_a_window_shorter_than_for_says_nothing() -> None:
    assert hold(row("+++"), 4, 8)[0].tolist() == [0]
    assert hold(row("---"), 4, 8)[0].tolist() == [0]


def rule(condition: Condition, entity: str = "gpu", **more: object) -> Rule:
    settings: dict[str, object] = {"id": "x", "layer": "physical", "summary": "x", "role": "root", "hold": "1m"}
    return Rule(entity=entity, when=condition, **{**settings, **more})  # type: ignore[arg-type]


HOT = Above(signal="gpu_temperature", limit=80)


def test_a_finding_does_not_outlive_what_excludes_it(library: Library) -> None:
    job = Job()
    job.signals["gpu_temperature"][0, :] = 90.0
    job.signals["gpu_temperature"][0, -6:] = 40.0
    plain, cool = HOT, Unless(of=Below(signal="gpu_temperature", limit=50))
    look = Look(library, job.snapshot(library))
    assert look.judge(rule(plain)).state[0] == 1, "it was hot a minute ago"
    assert look.judge(rule(All(of=(plain, cool)))).state[0] == -1


def hot(library: Library, rows: list[int]) -> Look:
    job = Job(dp=16, columns=40, past=20)
    job.signals["gpu_temperature"][rows, 30:] = 90.0
    return Look(library, job.snapshot(library))


def test_true_false_and_unknown(library: Library) -> None:
    job = Job(dp=16, columns=40, past=20)
    job.signals["gpu_temperature"][3] = 90.0
    job.signals["gpu_temperature"][4] = np.nan
    look = Look(library, job.snapshot(library))
    assert look.judge(rule(HOT)).state[2:6].tolist() == [-1, 1, 0, -1]
    assert look.judge(rule(Not(HOT))).state[2:6].tolist() == [1, -1, 0, 1]
    absent = Above(signal="gpu_xid", limit=1)
    assert set(look.judge(rule(All((HOT, absent)))).state.tolist()) == {-1, 0}
    assert look.judge(rule(Any((HOT, absent)))).state[2:6].tolist() == [0, 1, 0, 0]


def test_members_are_counted_or_reduced(library: Library) -> None:
    look = hot(library, [0, 1, 8])
    two = Above(signal="gpu_temperature", limit=80, reduce="count", at_least=2)
    share = Above(signal="gpu_temperature", limit=80, reduce="count", at_least="10%")
    hottest = Above(signal="gpu_temperature", limit=80, reduce="max")
    assert look.judge(rule(two, "node")).state.tolist() == [1, -1]
    assert look.judge(rule(share, "node")).state.tolist() == [1, 1]
    assert look.judge(rule(hottest, "node")).state.tolist() == [1, 1]


def test_rules_judged_side_by_side_are_what_they_are_one_by_one(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = Graph(hot(library, [0, 1, 8])).judged
    monkeypatch.setattr(graph, "MANY", 1)
    together = Graph(hot(library, [0, 1, 8])).judged
    assert [*alone] == [*together] == sorted(library.rules)
    for name, judged in alone.items():
        other = together[name]
        for one, two in ((judged.state, other.state), (judged.first, other.first), (judged.recent, other.recent)):
            assert np.array_equal(one, two), name


def test_a_rank_reads_its_gpu(library: Library) -> None:
    assert hot(library, [5]).judge(rule(HOT, "rank")).found().tolist() == [5]


def test_only_and_overrides(library: Library) -> None:
    assert hot(library, [0, 8]).judge(rule(HOT, only={"node": "node-01"})).found().tolist() == [8]
    cooler = Override(rule="x", match={"node": "node-00"}, set={"gpu_temperature.limit": 95.0})
    look = hot(msgspec.structs.replace(library, overrides=(cooler,)), [0, 8])
    assert look.judge(rule(HOT)).found().tolist() == [8]
    slower = Override(rule="x", set={"for": "20m"})
    assert not len(hot(msgspec.structs.replace(library, overrides=(slower,)), [0]).judge(rule(HOT)).found())


def test_other_phases_do_not_count(library: Library) -> None:
    job = Job(dp=16, columns=40, past=20)
    job.signals["gpu_temperature"][3, 40:50] = 90.0
    job.signals["rank_state"][:, 40:50] = 5.0
    look = Look(library, job.snapshot(library))
    assert look.judge(rule(HOT)).found().tolist() == [3], "hardware is judged whatever the job is doing"
    assert not len(look.judge(rule(HOT, phases=("train",))).found())
    assert not len(look.judge(rule(HOT, layer="training")).found())
    assert not len(look.judge(rule(HOT, phases=("eval",))).found())
    assert look.judge(rule(HOT, phases=("save_checkpoint",))).found().tolist() == [3]


def test_an_event_that_nobody_logged_is_unknown(library: Library) -> None:
    assert set(hot(library, []).judge(rule(Logged(signal="NCCL_TIMEOUT"), "rank")).state.tolist()) == {0}


def test_the_conditions_that_decided(library: Library) -> None:
    look = hot(library, [5])
    busy = Above(signal="gpu_utilisation", limit=50)
    judged = look.judge(rule(All((Any((HOT, busy)), Not(Above(signal="gpu_power_limit", limit=800))))))
    readings = {one.leaf.signal: one for one in look.readings(judged, 5)}
    assert set(readings) == {"gpu_temperature", "gpu_utilisation", "gpu_power_limit"}
    assert readings["gpu_temperature"].value == pytest.approx(90.0)
    assert (readings["gpu_power_limit"].denied, readings["gpu_power_limit"].expected) == (True, 800.0)
    cold = look.judge(rule(All((HOT, busy))))
    assert [one.leaf.signal for one in look.readings(cold, 6, -1)] == ["gpu_temperature"]


def test_median_ignores_gaps() -> None:
    assert median(np.array([np.nan, 3.0, 1.0])) == 2.0
    assert np.isnan(median(np.array([np.nan])))
