"""Scenario files: all of them can be, the two incidents show their numbers, and a wrong one is told what is wrong."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from read_once import load
from readings import TAIL, cycles, gauge, growth, per_step, phase, rate, rows, wait

from rca.errors import ProblemsError, SourceError
from rca.model import Window
from rca.physics.world import World
from rca.sources.scenario import ScenarioSource, ScenarioStore, read, stage

SCENARIOS = Path(__file__).parents[1] / "scenarios"
FILES = sorted(SCENARIOS.glob("*.yaml"))
BEFORE = slice(100, 240)
NEAR = 0.03


@cache
def world(name: str) -> World:
    return stage(SCENARIOS / f"{name}.yaml")


# --------------------------------------------------------------------------------------------------------- the files
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_can_be_and_says_what_must_be_found(path: Path) -> None:
    scenario = read(path)
    assert scenario.expect is not None
    assert (scenario.expect.status == "causes_found") == bool(scenario.expect.causes)
    if scenario.expect.status == "healthy":
        assert scenario.expect.symptom == "none"


def test_faults_are_physical_effects_and_never_rules() -> None:
    library = load()
    for path in FILES:
        faults = path.read_text().partition("\nfaults:")[2].partition("\nexpect:")[0]
        assert not [rule for rule in library.rules if rule in faults], path.stem


# ----------------------------------------------------------------------------------------------- the cooling incident
def test_cooling_fault_shows_the_numbers_of_the_incident() -> None:
    ward, ill = world("cooling_fault"), 57
    assert len(rows(ward, "train_rank_info", node="node-07", gpu="1", rank="57")) == 1
    assert np.nanmedian(ward.metrics["DCGM_FI_DEV_GPU_TEMP"].values[ill, TAIL]) == pytest.approx(92, abs=1)
    assert np.nanmedian(ward.metrics["DCGM_FI_DEV_SM_CLOCK"].values[ill, TAIL]) == pytest.approx(1200, rel=NEAR)
    assert gauge(ward, "DCGM_FI_DEV_GPU_UTIL")[ill] == pytest.approx(45, abs=1)
    assert np.delete(gauge(ward, "DCGM_FI_DEV_GPU_UTIL"), ill).min() > 97
    more = np.delete(wait(ward) - wait(ward, BEFORE), ill)
    assert np.median(more) == pytest.approx(2.3, rel=NEAR)
    assert rate(ward, "train_samples_total", BEFORE).sum() == pytest.approx(1200, rel=NEAR)
    assert rate(ward, "train_samples_total").sum() == pytest.approx(800, rel=NEAR)
    assert gauge(ward, "train_loss")[0] < gauge(ward, "train_loss", BEFORE)[0] - 0.03
    assert np.ptp(cycles(ward)) < 0.1 * np.median(cycles(ward))
    assert wait(ward).argmin() == ill


# ---------------------------------------------------------------------------------------------- the silent data skew
def test_silent_data_skew_shows_the_numbers_of_the_incident() -> None:
    ward, ill = world("silent_data_skew"), 12
    for part in (slice(0, 60), BEFORE, TAIL):  # for as long as the job has run
        util = gauge(ward, "DCGM_FI_DEV_GPU_UTIL", part)
        assert util[ill] == pytest.approx(55, rel=NEAR)
        assert np.median(np.delete(util, ill)) == pytest.approx(95, rel=NEAR)
        data = per_step(ward, "train_data_wait_seconds_total", part)
        assert data[ill] == pytest.approx(0.180, rel=NEAR)
        assert np.median(np.delete(data, ill)) == pytest.approx(0.020, rel=NEAR)
        read_bytes = rate(ward, "node_disk_read_bytes_total", part)
        assert read_bytes[1] == pytest.approx(40e6, rel=NEAR)
        assert np.delete(read_bytes, 1) == pytest.approx(np.full(7, 1.2e9), rel=NEAR)
        step = per_step(ward, "train_step_duration_seconds_sum", part)[0]
        assert 0.240 / step == pytest.approx(0.6, rel=NEAR)  # 40 % less throughput than planned
    assert wait(ward).argmin() == ill
    assert gauge(ward, "train_loss")[0] < gauge(ward, "train_loss", BEFORE)[0]


def test_data_skew_has_a_healthy_disk_and_more_work() -> None:
    ward, ill = world("data_skew"), 12
    assert np.ptp(rate(ward, "node_disk_read_bytes_total")) < 0.02e9
    assert cycles(ward)[ill] > 1.6 * np.median(cycles(ward))
    assert per_step(ward, "train_step_duration_seconds_sum")[0] == pytest.approx(0.4, rel=NEAR)
    assert gauge(ward, "DCGM_FI_DEV_GPU_UTIL")[ill] > 85


# ------------------------------------------------------------------------------------------------------------- decoys
def test_hot_but_fine_is_the_hottest_and_loses_nothing() -> None:
    ward, hot = world("hot_but_fine"), 22
    temperature = gauge(ward, "DCGM_FI_DEV_GPU_TEMP")
    peers = np.delete(temperature.reshape(8, 8)[:, 6], 2)
    assert 8 <= temperature[hot] - np.median(peers) <= 13
    assert temperature.argmax() == hot
    assert growth(ward, "DCGM_FI_DEV_THERMAL_VIOLATION").max() == 0
    assert phase(ward, "backward_compute")[hot] == pytest.approx(phase(ward, "backward_compute", BEFORE)[hot], rel=NEAR)


def test_the_power_cap_bit_is_set_everywhere() -> None:
    bits = world("power_cap_bit").metrics["DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"].values[:, TAIL]
    assert np.mean(bits[~np.isnan(bits)].astype(int) & 4 > 0) > 0.85


def test_the_busy_ones_clock_below_their_boosting_peers() -> None:
    ward = world("busy_boost")
    clock, watts = (gauge(ward, f"DCGM_FI_DEV_{name}").reshape(4, 16) for name in ("SM_CLOCK", "POWER_USAGE"))
    assert np.median(clock[3]) < 0.98 * np.median(clock[:3])
    assert clock.argmin() >= 48
    assert watts[3].min() > 0.95 * 700
    assert gauge(ward, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT").tolist() == [700.0] * 64
    more = cycles(ward).reshape(4, 16)
    assert np.median(more[3]) / np.median(more[:3]) == pytest.approx(1.07, rel=NEAR)


# -------------------------------------------------------------------------------------------------------- as a source
def test_a_scenario_is_a_source() -> None:
    source = ScenarioSource(SCENARIOS / "cooling_fault.yaml")
    end = source.latest()
    seen = source.snapshot(load(), Window(end - 900.0, end, 3600.0))
    gpus = seen.tables["gpu"]
    ill = next(i for i in range(64) if (gpus.columns["node"][i], gpus.columns["gpu"][i]) == ("node-07", "1"))
    assert gpus.columns["rank"][ill] == "57"
    assert np.nanmedian(seen.measurements["gpu_temperature"].window[ill, -20:]) == pytest.approx(92, abs=1)
    assert np.nanmedian(seen.measurements["gpu_sm_clock"].window[ill, -20:]) == pytest.approx(1200, rel=NEAR)
    assert len(seen.tables["rank"]) == 64
    step = seen.measurements["job_step_seconds"]
    assert step.before is not None
    assert np.nanmedian(step.window[:, -20:]) / np.nanmedian(step.before) == pytest.approx(1.5, rel=0.05)


def test_there_is_no_server_behind_it() -> None:
    with pytest.raises(SourceError, match="cannot evaluate 'up', there is no server"):
        ScenarioStore(world("cooling_fault")).evaluate("up", np.zeros(1))


# ---------------------------------------------------------------------------------------------------------- bad input
def wrong(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ProblemsError) as caught:
        stage(path)
    return [str(problem).removeprefix(str(path)) for problem in caught.value.problems]


def test_what_cannot_be_read_is_told_with_its_line(tmp_path: Path) -> None:
    problems = wrong(
        tmp_path,
        "summary: x\nduration: soon\ncluster: {nodes: 0}\njob: {id: a, tpp: 2}\nfaults: [{at: 1m, coolling: 3}]\n",
    )
    assert [problem.partition(": ")[0] for problem in problems] == [":2", ":3", ":4", ":5"]
    assert problems[2] == ":4: unknown key 'tpp', did you mean 'tp'"
    assert problems[3] == ":5: unknown key 'coolling', did you mean 'cooling'"


def test_what_cannot_be_is_told_all_at_once(tmp_path: Path) -> None:
    job = "{id: a, dp: 99, step: 100ms}"
    assert wrong(tmp_path, f"summary: x\ncluster: {{nodes: 2}}\njob: {job}\ntelemetry: {{absent: ['(']}}\n") == [
        ": 'absent' holds '(', which is no regular expression: missing ), unterminated subpattern at position 0",
        ": job 'a' needs 99 GPUs from node 0 on, the cluster ends before",
        ": job 'a': its step of 100ms leaves less than a fifth for work, make it longer",
    ]
    jobs = "[{id: a, dp: 8}, {id: b, dp: 8}, {id: b, first: 1, dp: 8}]"
    assert wrong(tmp_path, f"summary: x\ncluster: {{nodes: 2}}\njobs: {jobs}\n") == [
        ": job 'b' is written twice, give each its own id",
        ": jobs 'a' and 'b' share GPUs, move one with 'first'",
    ]
    faults = "[{at: 1m}, {cooling: 2, on: {node: node-09}}, {port_rate: 1e9, on: {device: eth0}}, {tokens: 2, on: {replica: 8}}]"
    telemetry = "{slow: [node-07], gaps: [{exporter: dcgm, node: host, at: 1m}]}"
    text = f"summary: x\ncluster: {{nodes: 2}}\njob: {{id: a, dp: 8}}\nfaults: {faults}\ntelemetry: {telemetry}\n"
    problems = wrong(tmp_path, text)
    assert problems[0].startswith(": the fault at 1m has no effect, write one of cooling,")
    assert problems[1:] == [
        ": 'cooling' at 0s is on something that this cluster has not",
        ": the fault at 0s is on device 'eth0', ports are named mlx5_0, mlx5_1 and so on",
        ": 'tokens' at 0s is on something that this cluster has not",
        ": there is no 'node-07', this cluster has node-00 to node-01",
        ": there is no 'host', this cluster has node-00 to node-01",
    ]


def test_times_that_cannot_be_simulated(tmp_path: Path) -> None:
    text = "summary: x\nduration: 30s\ncluster: {nodes: 1}\njob: {id: j, dp: 8}\ntelemetry: {interval: 2s}\n"
    assert wrong(tmp_path, text) == [": interval 2s is below the 5 s that the simulation resolves"]
    text = "summary: x\nduration: 30s\ncluster: {nodes: 1}\njob: {id: j, dp: 8}\n"
    assert wrong(tmp_path, text) == [": duration 30s holds fewer than 3 scrapes, make it longer"]


def test_a_cluster_without_a_job_is_refused(tmp_path: Path) -> None:
    found = wrong(tmp_path, "summary: x\ncluster: {nodes: 1}\n")
    assert found == [": no 'job' is given, write one: a cluster without a job has nothing to diagnose"]
