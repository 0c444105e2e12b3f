"""What a job says of itself: its loss, its throughput, and its phases where only minima and maxima are printed."""

from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
from memory_store import END, MemoryStore, Samples, counter, series, ticks
from read_once import load

from rca.diagnose import diagnose
from rca.library import Library
from rca.model import Measurement, Report, Snapshot, Window
from rca.physics.world import World, simulate
from rca.physics.written import Scenario
from rca.sources.assemble import assemble
from rca.sources.scenario import ScenarioStore, read

SCENARIOS = Path(__file__).parents[1] / "scenarios"
HEALTHY = (
    "batch_ramp", "healthy", "healthy_pp", "hot_but_fine", "idle_gpu", "periodic_checkpoint", "periodic_evaluation",
    "planned_gc", "printed_timers_healthy", "warm_up",
)  # fmt: skip
THRESHOLDS = ("heavy_communication", "link_underused", "gpu_underused", "gpu_memory_full")
"""The thresholds that hold on healthy fleets too; the fifth, of the loss, is `loss_not_falling`."""


@cache
def library() -> Library:
    return load()


def snapshot(world: World) -> Snapshot:
    return assemble(ScenarioStore(world), library().in_use(), Window(world.end - 900, world.end))


def report(scenario: Scenario) -> Report:
    return diagnose(library(), snapshot(simulate(scenario)))


def scenario(name: str) -> Scenario:
    return read(SCENARIOS / f"{name}.yaml")


def stated(name: str) -> Report:
    return report(scenario(name))


def found(report: Report) -> set[str]:
    return {finding.finding for finding in report.findings}


def measured(signal: str, *held: tuple[dict[str, str], Samples]) -> Measurement:
    """Read one shipped signal, and what it is made of, out of series in memory."""
    wanted, waiting = {}, [signal]
    while waiting:
        name = waiting.pop()
        one = wanted[name] = library().signals[name]
        waiting += one.derived.inputs() if one.derived is not None else ()
    some = msgspec.structs.replace(library(), signals=wanted, rules={})
    return assemble(MemoryStore(held), some, Window(END - 600, END)).measurements[signal]


def rank(number: int, **more: str) -> dict[str, str]:
    return {"job_id": "a", "rank": str(number), **more}


# signals


@pytest.mark.parametrize(
    ("signal", "name", "labels", "samples", "value"),
    [
        ("job_loss", "training_loss", {"job_id": "a"}, ticks(2.5), 2.5),
        ("rank_samples_per_second", "training_samples_total", rank(0), counter(64.0), 64.0),
        ("rank_step_seconds", "training_step_duration_seconds", rank(0), ticks(1.5), 1.5),
        ("gpu_memory_used", "gpu_memory_used_bytes", {"node": "n0", "gpu_id": "3"}, ticks(2.0**30), 1024.0),
        ("node_disk_read_bytes", "disk_read_bytes", {"node": "n0"}, ticks(4e7), 4e7),
        ("rank_matmul_latency", "XPU_TIMER_MM_KERNEL_AVG_LATENCY", {"job_name": "a", "rank": "1"}, ticks(813.0), 813.0),
        ("rank_hang_reported", "XPU_TIMER_COMMON_HANG", {"job_name": "a", "rank": "1"}, ticks(1.0), 1.0),
        ("gpu_bus_bandwidth", "nccl_bus_bandwidth_gbs", {"node": "n0", "gpu": "GPU0", "n_nodes": "4"}, ticks(310.0), 310.0),
    ],
)  # fmt: skip
def test_other_names_of_a_measurement(
    signal: str, name: str, labels: dict[str, str], samples: Samples, value: float
) -> None:
    assert np.allclose(measured(signal, series(name, labels, samples)).window, value)


def test_tokens_per_gpu_count_every_rank_and_not_those_that_count_tokens() -> None:
    steps = [series("train_steps_total", rank(number), counter(0.5)) for number in range(4)]
    tokens = [series("train_tokens_total", rank(number), counter(8000.0)) for number in (0, 2)]
    assert np.allclose(measured("job_tokens_per_gpu", *steps, *tokens).window, 4000.0)


def test_billion_tokens_per_server_and_day() -> None:
    ranks = [series("train_tokens_total", rank(number), counter(10000.0)) for number in range(2)]
    infos = [series("train_rank_info", rank(number, node=f"n{number}"), ticks(1.0)) for number in range(2)]
    up = [series("up", {"job": "node", "instance": f"n{number}:9100"}, ticks(1.0)) for number in range(2)]
    found = measured("job_billion_tokens_per_server_day", *ranks, *infos, *up).window
    assert np.allclose(found, 10000.0 * 86400.0 / 1e9)


def test_the_spread_of_work_leaves_data_loading_out() -> None:
    def printed(phase: str, low: float, high: float) -> list[tuple[dict[str, str], Samples]]:
        label = {"job_id": "a", "phase": phase}
        return [
            series("train_phase_min_seconds", label, ticks(low)),
            series("train_phase_max_seconds", label, ticks(high)),
        ]

    held = printed("forward_compute", 1.0, 3.1) + printed("backward_compute", 2.0, 2.2)
    assert np.allclose(measured("job_work_spread", *held).window, 5.3 / 3.0)
    held += printed("batch_generator", 0.0, 2.0)
    assert np.allclose(measured("job_work_spread", *held).window, 3.3 / 3.0)


def test_skew_is_the_lateness_between_the_first_and_the_last_rank() -> None:
    held = [series("train_steps_total", rank(number), counter(0.5)) for number in range(3)]
    waits = zip(range(3), (0.05, 0.2, 0.25), strict=True)
    held += [series("train_collective_wait_seconds_total", rank(n, group="dp"), counter(wait)) for n, wait in waits]
    assert np.allclose(measured("job_gradient_skew_seconds", *held).window, 0.4)


# thresholds


@pytest.mark.parametrize("name", HEALTHY)
def test_thresholds_stay_silent_on_healthy_jobs(name: str) -> None:
    assert not found(stated(name)) & {*THRESHOLDS, "uneven_work", "uneven_input", "slow_transfer", "abnormal_loss"}


def test_thresholds_speak_for_no_cause() -> None:
    rules = library().rules
    assert {rules[name].role for name in THRESHOLDS} == {"symptom"}
    assert not [rules[name].symptom for name in THRESHOLDS if rules[name].symptom]
    into = [edge for rule in rules.values() for edge in rule.causes if edge.effect in THRESHOLDS]
    out = [edge for name in THRESHOLDS for edge in rules[name].causes]
    assert into
    assert not [edge for edge in into + out if edge.accuses]


@pytest.mark.parametrize(
    ("name", "shows"),
    [
        ("gpu_underused", {"DCGM_FI_DEV_GPU_UTIL": 40}),
        ("gpu_memory_full", {"DCGM_FI_DEV_FB_USED": 80500, "DCGM_FI_DEV_FB_FREE": 500}),
    ],
)
def test_a_threshold_that_is_met_is_a_finding_of_a_healthy_job(name: str, shows: dict[str, float]) -> None:
    written = scenario("healthy")
    fault = msgspec.convert({"at": "66m", "shows": shows}, type(scenario("cooling_fault").faults[0]))
    said = report(msgspec.structs.replace(written, faults=(fault,)))
    assert name in found(said)
    assert (said.status, said.causes) == ("healthy", [])


def test_communication_beyond_two_fifths_of_the_step() -> None:
    written = scenario("healthy")
    assert written.job is not None
    job = msgspec.structs.replace(written.job, sync="900ms")
    said = report(msgspec.structs.replace(written, job=job))
    assert {"heavy_communication", "link_underused"} <= found(said)
    assert said.status == "healthy"


# the loss


def test_a_loss_that_is_no_number_is_told_from_an_exporter_that_is_silent() -> None:
    assert "loss_divergence" in found(stated("loss_nan"))
    assert "abnormal_loss" not in found(stated("loss_reporter_silent"))


def test_a_job_that_starts_anew_has_no_spike() -> None:
    written = scenario("loss_spike")
    fault = written.faults[0]
    shows = {"train_loss": 9.0, "train_grad_norm": 9.0, "train_step": 40.0}
    said = report(msgspec.structs.replace(written, faults=(msgspec.structs.replace(fault, shows=shows),)))
    assert (said.status, said.causes) == ("healthy", [])


# minima and maxima


def test_printed_extremes_say_that_a_rank_is_late_and_not_which() -> None:
    said = stated("printed_timers_degraded")
    assert "uneven_work" in found(said)
    assert [(cause.cause, cause.entity.kind) for cause in said.causes] == [("unknown", "job")]


def test_a_slow_disk_is_input_and_no_work() -> None:
    written = scenario("slow_local_disk")
    said = report(
        msgspec.structs.replace(written, telemetry=msgspec.structs.replace(written.telemetry, timers="minmax"))
    )
    assert "uneven_input" in found(said)
    assert "uneven_work" not in found(said)
    assert said.causes[0].cause == "slow_local_disk"


def test_congestion_is_transfer_and_no_work() -> None:
    written = scenario("network_congestion")
    said = report(
        msgspec.structs.replace(written, telemetry=msgspec.structs.replace(written.telemetry, timers="minmax"))
    )
    assert "slow_transfer" in found(said)
    assert "uneven_work" not in found(said)
    assert said.causes[0].cause == "network_congestion"


# garbage collection


def test_pauses_of_unequal_ranks_add_up_and_those_at_one_time_do_not() -> None:
    apart, together = (snapshot(simulate(scenario(name))) for name in ("python_gc", "planned_gc"))
    assert np.nanmedian(apart.measurements["job_gc_share"].window[:, -20:]) > 0.05
    assert np.nanmedian(apart.measurements["job_least_wait_share"].window[:, -20:]) > 0.1
    assert np.nanmedian(together.measurements["job_gc_share"].window) > 0.05
    assert np.nanmedian(together.measurements["job_least_wait_share"].window) < 0.03


def test_collections_that_nobody_counts_are_not_guessed() -> None:
    written = scenario("python_gc")
    telemetry = msgspec.structs.replace(written.telemetry, absent=("train_gc_seconds_total",))
    said = report(msgspec.structs.replace(written, telemetry=telemetry))
    assert "python_gc" not in {cause.cause for cause in said.causes}
    assert "python_gc" in {entry.rule for entry in said.not_checked}
