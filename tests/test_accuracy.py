"""The accuracy benchmark: figures of a made-up list of outcomes, by hand, and three small scenarios through all of it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from memory_store import END, MemoryStore, series, ticks
from msgspec import structs
from read_once import load

from benchmarks.plays import SCENARIOS, Deaf, Play, day, files, moved, noisier, played, staged, watched
from benchmarks.rivals import LIMITS, limits, loudest
from benchmarks.scores import Outcome, Said, Truth, summarise
from benchmarks.tables import one_line, tables
from rca.library import Entities, Library, Signal
from rca.model import Measurement, Snapshot, Table, seconds
from rca.physics.written import Fault
from rca.sources.scenario import read
from rca.sources.series import Matcher, Selector

HOT, DISK, PORT = Truth("hot", "gpu=1"), Truth("disk", "node=a"), Truth("port", "device=p")


def outcome(seed: int, truth=(HOT,), said=(), **changes) -> Outcome:
    fields = {"expected": "causes_found", "status": "causes_found", **changes}
    sure = tuple(Said(*pair, probability) for pair, probability in said)
    return Outcome(
        scenario=fields.pop("scenario", "made_up"), form="mild", seed=seed, noise="written", telemetry="full",
        split="scoring", truth=truth, said=sure, gpu_hours=25.0, **fields,
    )  # fmt: skip


UNKNOWN = Truth("unknown", "gpu=1")
MADE_UP = [
    outcome(1, said=[(HOT, 0.9), (DISK, 0.1)], rivals={"loud": (Truth("", "gpu=1"),), "plain": (HOT,)}),
    outcome(3, said=[(UNKNOWN, 0.6), (HOT, 0.4)], status="inconclusive", rivals={"loud": (Truth("", "gpu=7"),)}),
    outcome(5, said=[(Truth("hot", "gpu=2"), 0.8)]),
    outcome(7, said=[], status="inconclusive"),
    outcome(9, (HOT, DISK), [(DISK, 0.9), (HOT, 0.7)]),
    outcome(11, (HOT, DISK), [(DISK, 0.8)]),
    outcome(13, (), [(PORT, 0.3)], expected="inconclusive", status="inconclusive"),
    outcome(15, (), [], expected="healthy", status="healthy", scenario="calm", rivals={"plain": (PORT,)}),
    outcome(17, (), [(PORT, 0.6)], expected="healthy", scenario="calm"),
]


def test_figures_of_a_made_up_list():
    summary = summarise(MADE_UP)
    hot, disk, unknown = (next(row for row in summary.rows if row.name == name) for name in ("hot", "disk", "unknown"))
    # six cases of hot: right, behind unknown, elsewhere, silence, right beside disk, missing beside disk
    assert (hot.cases, hot.top1, hot.top3) == (6, 2 / 6, 3 / 6)
    assert hot.entity == 3 / 6, "unknown on the right GPU names the right entity"
    assert hot.sure == 2 / 6
    assert hot.wrong == 1 / 6
    assert hot.inconclusive == 2 / 6
    # (0.01 + 0.01), (0.36), (1 + 0.64), 1, (0.01 + 0.09), (0.04 + 1)
    assert hot.brier == pytest.approx((0.02 + 0.36 + 1.64 + 1.0 + 0.10 + 1.04) / 6)
    assert hot.confused == "nothing 2, hot elsewhere 1"
    assert (disk.cases, disk.top1, disk.sure) == (2, 1.0, 1.0)
    assert (unknown.cases, unknown.top1, unknown.wrong) == (1, 1.0, 0.0)
    assert (summary.overall.cases, summary.overall.top1) == (9, 5 / 9)
    assert (summary.both, summary.doubles) == (1 / 2, 2)
    assert summary.brier == pytest.approx((0.02 + 0.36 + 1.64 + 1.0 + 0.10 + 1.04 + 0.09 + 0.0 + 0.36) / 9)
    # one alarm in 2 x 25 GPU hours: 12,000 GPU hours are a day of 500 GPUs
    assert summary.alarms == pytest.approx(240.0)
    assert [(decoy.name, decoy.runs, decoy.alarms, decoy.unsettled) for decoy in summary.decoys] == [("calm", 2, 1, 1)]
    assert summary.rivals == {"loud": (0.0, 1 / 9, 0), "plain": (1 / 9, 1 / 9, 1)}
    assert summary.confusions == (
        ("hot -> nothing", 2, "made_up/mild/seed 11/written"),
        ("healthy (calm) -> port", 1, "calm/mild/seed 17/written"),
        ("hot -> hot elsewhere", 1, "made_up/mild/seed 5/written"),
        ("hot -> unknown", 1, "made_up/mild/seed 3/written"),
    )


def test_a_list_below_a_healthy_verdict_helps_nobody():
    (row,) = summarise([outcome(1, said=[(HOT, 0.1)], status="healthy")]).rows
    assert (row.top1, row.top3, row.entity, row.confused) == (0.0, 0.0, 0.0, "healthy 1")


def test_a_line_names_the_targets_that_are_missed():
    text = one_line("scoring", "full", MADE_UP)
    assert text == (
        "scoring (full telemetry): 9 runs, top-1 0.556 (target 0.92), top-3 0.667 (target 0.98), "
        "entity 0.667 (target 0.95), wrong 0.143, inconclusive 0.429, both 0.500 (target 0.85) of 2, "
        "1 false alarms in 2 healthy runs, 240.00 a day and 500 GPUs, Brier 0.512 (target 0.08)"
    )
    assert "target" not in one_line("scoring", "full", MADE_UP[7:8])


def test_splits_and_telemetry_stand_apart():
    other = [outcome(2, said=[(HOT, 1.0)])]
    text = tables([*MADE_UP, *(structs.replace(one, split="tuning", telemetry="node") for one in other)])
    assert text.count("scoring: mild form") == 1
    assert "without node · tuning: strong form" in text
    assert "confused    2 x  hot -> nothing  (made_up/mild/seed 11/written)" in text


SMALL = ("gpu_power_capped", "two_faults", "series_ends")


def test_three_small_scenarios_in_one_seed():
    table = [one for name in SMALL for one in played(Play(SCENARIOS / f"{name}.yaml", 1, "written", ("full",)))]
    capped, double, calm = table
    assert [one.id for one in table] == [f"{name}/{form(name)}/seed 1/written" for name in SMALL]
    assert capped.truth == (Truth("gpu_power_capped", "gpu=5 node=node-02"),)
    assert len(double.truth) == 2
    assert (calm.truth, calm.expected) == ((), "healthy")
    summary = summarise(table)
    assert (summary.overall.cases, summary.overall.top1, summary.overall.wrong) == (3, 1.0, 0.0)
    assert (summary.both, summary.alarms) == (1.0, 0.0)
    assert calm.gpu_hours == 8.0, "32 GPUs for a quarter of an hour"
    assert {name for one in table for name in one.rivals} == {"random entity", "highest robust z", "plain limits"}
    assert all(place for one in table for rival in one.rivals.values() for _, place in rival)


def form(name: str) -> str:
    return "mild" if read(SCENARIOS / f"{name}.yaml").mild else "strong"


def test_seed_and_form_split_together():
    path = SCENARIOS / "gpu_power_capped.yaml"
    even, odd = (Play(path, number, "written", ("full",)) for number in (2, 3))
    assert (even.form, odd.form) == ("strong", form("gpu_power_capped"))
    written = read(path)
    assert staged(even).faults == written.faults
    assert staged(odd).faults == (written.mild or written.faults)
    assert {staged(even).seed, staged(odd).seed} == {written.seed + 2000, written.seed + 3000}


def test_noise_is_more_of_everything():
    written = read(SCENARIOS / "series_ends.yaml")
    noisy = noisier(written)
    assert noisy.all_jobs()[0].jitter == 2 * written.all_jobs()[0].jitter
    assert noisy.cluster.clock_spread > written.cluster.clock_spread
    assert noisy.cluster.temperature_spread > written.cluster.temperature_spread
    assert (noisy.telemetry.missed, noisy.telemetry.slow) == (0.02, ("node-00", "node-03"))
    (gap,), (before,) = noisy.telemetry.gaps, written.telemetry.gaps
    assert 0 < abs(seconds(gap.at) - seconds(before.at)) <= 120
    assert (gap.exporter, gap.node, noisy.expect) == (before.exporter, before.node, written.expect)


@pytest.mark.parametrize(
    ("at", "until", "moved_at", "moved_until"),
    [("62m", None, "3730000ms", None), ("1m", "2m", "70000ms", "130000ms"), ("0s", None, "0s", None)],
)
def test_faults_move_as_a_whole(at, until, moved_at, moved_until):
    fault = moved(Fault(at=at, until=until, cooling=4.0), 10.0)
    assert (fault.at, fault.until, fault.cooling) == (moved_at, moved_until, 4.0)


def test_every_scenario_takes_part():
    assert [path.stem for path in files()] == sorted(path.stem for path in SCENARIOS.glob("*.yaml"))


STORE = MemoryStore(
    [
        series("train_loss", {}, ticks(2.0)),
        series("DCGM_FI_DEV_SM_CLOCK", {}, ticks(1980.0)),
        series("DCGM_FI_DEV_GPU_TEMP_CELSIUS", {}, ticks(60.0)),
        series("DCGM_FI_DEV_THERMAL_VIOLATION", {}, ticks(0.0)),
        series("node_load1", {}, ticks(1.0)),
        series("up", {"job": "node-exporter"}, ticks(1.0)),
        series("up", {"job": "training"}, ticks(1.0)),
    ]
)


@pytest.mark.parametrize(
    ("telemetry", "gone", "left"),
    [
        ("full", set(), 2),
        ("train", {"train_loss"}, 1),
        ("node", {"node_load1"}, 1),
        ("dcgm-extra", {"DCGM_FI_DEV_THERMAL_VIOLATION"}, 2),
    ],
)
def test_an_exporter_that_is_left_out_leaves_nothing(telemetry, gone, left):
    store = watched(STORE, telemetry)
    everything = STORE.names(0, END)
    assert everything - store.names(0, END) == gone
    (found,) = [block for _, block in store.fetch([Selector(tuple(sorted(everything)), (), 0, END)])]
    assert {labels["__name__"] for labels in found.labels} == everything - gone
    (targets,) = [block for _, block in store.fetch([Selector(("up",), (Matcher("job", "=~", ".*"),), 0, END)])]
    assert len(targets.labels) == left
    assert isinstance(store, Deaf) == (telemetry != "full")


def test_a_healthy_day_is_looked_at_window_by_window():
    outcomes = day(SCENARIOS / "healthy.yaml", 1)
    assert [(one.seed, one.expected, one.status, one.accused) for one in outcomes] == [
        (number, "healthy", "healthy", ()) for number in range(4)
    ]


def test_the_program_prints_its_tables(tmp_path):
    target = tmp_path / "outcomes.json"
    command = [sys.executable, str(Path(SCENARIOS).parent / "benchmarks" / "bench_accuracy.py"), "--seeds", "1"]
    flags = ["--only", "gpu_power_capped", "--without", "dcgm-extra", "--processes", "1", "--json", str(target)]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("without dcgm-extra · scoring: mild form")
    assert "\nscoring (without dcgm-extra): 2 runs" in done.stdout
    assert target.read_text().count('"scenario"') == 2


def little(name: str, values: list[float]) -> tuple[Library, Snapshot]:
    """Return a library of one signal, and eight GPUs that have read these values all the time."""
    rows = len(values)
    columns = {
        "node": np.array(["n0"] * rows, dtype=object),
        "gpu": np.array(list(map(str, range(rows))), dtype=object),
    }
    window = np.repeat(np.array(values)[:, None], 20, axis=1)
    snapshot = Snapshot(
        times=END + 15.0 * np.arange(20), before_times=np.zeros(0), step=15.0,
        tables={"gpu": Table("gpu", ("node", "gpu"), columns)}, measurements={name: Measurement(window)},
    )  # fmt: skip
    signal = Signal(summary=name, entity="gpu", layer="physical", unit="celsius")
    return Library(signals={name: signal}, entities=Entities(kinds={}, relations={}, labels={}), rules={}), snapshot


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([50.0, 51, 49, 50, 58, 50, 51, 50], (Truth("", "gpu=4 node=n0"),)),  # 8 above 50, 1 % of it is 0.5
        ([0.0, 0, 0, 0, 0, 1, 0, 0], (Truth("", "gpu=5 node=n0"),)),
        ([50.0] * 8, ()),
        ([50.0, 90, 50, 50], ()),  # four are too few for a median
    ],
)
def test_the_loudest_is_furthest_from_the_median(values, expected):
    assert loudest(*little("gpu_temperature", values)) == expected


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("gpu_temperature", [60.0, 86, 91, 60], (Truth("gpu_thermal_throttling", "gpu=2 node=n0"),)),
        ("gpu_temperature", [84.0] * 4, ()),
        ("gpu_xid", [0.0, 0, 94, 0], (Truth("gpu_memory_fault", "gpu=2 node=n0"),)),
        ("gpu_utilisation", [99.0, 40, 99, 99], (Truth("gpu_degraded", "gpu=1 node=n0"),)),
    ],
)
def test_plain_limits_know_neither_peers_nor_past(name, values, expected):
    assert limits(*little(name, values)) == expected


def test_the_shipped_signals_know_what_limits_are_about():
    assert {one.signal for one in LIMITS} <= set(load().signals)
    assert {one.cause for one in LIMITS} <= {rule.id for rule in load().rules.values() if rule.role == "root"}
