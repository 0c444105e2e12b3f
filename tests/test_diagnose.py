"""The pure core on snapshots made by hand: right entity, right cause, silence in health, and properties that must hold."""

import dataclasses
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from read_once import load
from synthetic import Job

from rca.diagnose import diagnose
from rca.library import Library
from rca.model import Cause, Measurement, Report, Snapshot, Table


@pytest.fixture(scope="module")
def library() -> Library:
    return load()


def heat(job: Job, row: int, *, clock: float = 1200.0, work: float = 1.4, at: int = 20) -> None:
    """Overheat one GPU: its clock falls, its cell works longer, everyone else waits and is less active."""
    on, extra = job.past + at, 2.0 * (work - 1)
    cell = [rank for rank in range(job.tp * job.pp * job.dp) if rank // job.tp == row // job.tp]
    others = [rank for rank in range(job.tp * job.pp * job.dp) if rank not in cell]
    seen = job.signals
    seen["gpu_sm_clock"][row, on:] = clock
    seen["gpu_temperature"][row, on:] = 92.0
    seen["gpu_thermal_violation_ratio"][row, on:] = 0.5
    seen["gpu_tensor_active"][row, on:] *= 1700.0 / clock
    lengthen(job, cell, work, at)
    seen["rank_collective_wait_seconds"][others, on:] += extra
    slow(job, extra, at)


def lengthen(job: Job, ranks: list[int], work: float, at: int = 20) -> None:
    for name in ("rank_forward_seconds", "rank_backward_seconds"):
        job.signals[name][ranks, job.past + at :] *= work


def slow(job: Job, extra: float, at: int = 20) -> None:
    """Lengthen everyone's step: the job is synchronous."""
    on, ratio = job.past + at, 2.4 / (2.4 + extra)
    job.signals["rank_step_seconds"][:, on:] += extra
    job.signals["rank_samples_per_second"][:, on:] *= ratio
    job.signals["gpu_tensor_active"][:, on:] *= ratio


def first(report: Report) -> tuple[str, dict[str, str]]:
    return report.causes[0].cause, report.causes[0].entity.labels


def encoded(report: Report) -> bytes:
    return msgspec.json.encode(report)


def test_a_healthy_job_has_no_cause(library: Library) -> None:
    for seed in range(5):
        report = diagnose(library, Job(seed=seed).snapshot(library))
        assert (report.status, report.causes, report.symptom) == ("healthy", [], "none")


def test_a_hot_gpu_is_named_with_its_chain(library: Library) -> None:
    job = Job()
    heat(job, 10)
    report = diagnose(library, job.snapshot(library))
    assert report.status == "causes_found"
    assert report.symptom == "slow_onset"
    assert first(report) == ("gpu_thermal_throttling", {"node": "node-01", "gpu": "2"})
    cause = report.causes[0]
    assert cause.probability >= 0.8
    layers = [link.layer for link in cause.chain]
    assert layers == sorted(layers, key=["physical", "resource", "communication", "training"].index)
    assert {"slow_cell", "waiting_rank", "long_step", "low_throughput"} <= {link.finding for link in cause.chain}
    waiting = next(link for link in cause.chain if link.finding == "waiting_rank")
    assert (waiting.members, waiting.of) == (63, 64)
    assert [one.rule for one in report.not_affected] == ["loss_not_falling"]
    assert {"gpu_power_capped", "gpu_degraded"} <= {one.cause for one in report.rejected}


def test_without_a_past_the_job_is_slow_always(library: Library) -> None:
    job = Job()
    heat(job, 10, at=-job.past)
    report = diagnose(library, job.snapshot(library, before=False))
    assert report.symptom == "slow_always"
    assert first(report) == ("gpu_thermal_throttling", {"node": "node-01", "gpu": "2"})


def test_tensor_parallel_peers_are_late_together_and_the_gpu_is_named(library: Library) -> None:
    job = Job(tp=8, pp=4, dp=8)
    heat(job, 83)
    report = diagnose(library, job.snapshot(library))
    assert first(report) == ("gpu_thermal_throttling", {"node": "node-10", "gpu": "3"})
    others = [cause for cause in report.causes[1:] if cause.cause != "unknown"]
    assert not others, "neither the node nor the seven peers"


def test_two_faults_come_out_both(library: Library) -> None:
    job = Job()
    heat(job, 10)
    heat(job, 33, clock=1250.0, work=1.35)
    found = {(cause.cause, cause.entity.labels["node"]) for cause in diagnose(library, job.snapshot(library)).causes}
    assert {("gpu_thermal_throttling", "node-01"), ("gpu_thermal_throttling", "node-04")} <= found


def test_a_default_exporter_is_enough_to_blame_heat(library: Library) -> None:
    """No violation counters, no clock reasons, no limits: clock, temperature and the model must do."""
    job = Job()
    heat(job, 10)
    for name in ("gpu_thermal_violation_ratio", "gpu_clock_event_reasons", "gpu_max_op_temperature", "gpu_power_limit"):
        del job.signals[name]
    assert first(diagnose(library, job.snapshot(library))) == (
        "gpu_thermal_throttling",
        {"node": "node-01", "gpu": "2"},
    )


def test_a_hot_gpu_that_keeps_its_clock_is_fine(library: Library) -> None:
    job = Job()
    job.signals["gpu_temperature"][10] += 12.0
    assert diagnose(library, job.snapshot(library)).status == "healthy"


def test_a_throttled_gpu_that_does_not_slow_the_job_is_no_cause_of_slowness(library: Library) -> None:
    """The clock falls a little under a thermal flag, the cell's work does not change."""
    job = Job()
    heat(job, 10, clock=1500.0, work=1.0)
    report = diagnose(library, job.snapshot(library))
    assert report.status == "healthy"
    assert all(cause.probability < 0.5 for cause in report.causes)


def test_a_small_dose_does_not_explain_a_large_effect(library: Library) -> None:
    """A clock 6 % low cannot make the work 60 % longer: the cell is ill for a reason that cannot be told."""
    job = Job()
    heat(job, 10, clock=1560.0, work=1.6)
    report = diagnose(library, job.snapshot(library))
    throttling = [cause for cause in report.causes if cause.cause == "gpu_thermal_throttling"]
    assert not throttling or throttling[0].probability < 0.5


def test_a_busy_gpu_among_boosting_waiters_is_not_accused(library: Library) -> None:
    """Waiters boost to 1,980 MHz; the busy one is power-limited below them, with more work and an equal limit."""
    job = Job()
    job.signals["gpu_sm_clock"][:] = 1980.0
    job.signals["gpu_sm_clock"][10] = 1650.0
    job.signals["gpu_tensor_active"][10] *= 1.3
    lengthen(job, [10], 1.04, at=-job.past)
    report = diagnose(library, job.snapshot(library))
    assert [cause.cause for cause in report.causes if cause.probability >= 0.05] == []


def test_more_tokens_on_one_replica_are_data_skew_named_by_its_reader(library: Library) -> None:
    job = Job(tp=2, pp=4, dp=8)
    ranks = [rank for rank in range(64) if rank // 2 % 8 == 5]
    on = job.past + 20
    job.signals["rank_batch_tokens"][ranks, on:] *= 1.3
    job.signals["gpu_tensor_active"][ranks, on:] *= 1.3
    lengthen(job, ranks, 1.3)
    slow(job, 0.6)
    report = diagnose(library, job.snapshot(library))
    assert first(report) == ("data_skew", {"job": "j", "rank": "10"})
    assert report.causes[0].probability >= 0.8


def test_a_slow_disk_that_starves_one_rank_is_blamed_at_its_node(library: Library) -> None:
    job = Job()
    on = job.past + 20
    job.signals["rank_data_wait_seconds"][12, on:] = 0.6
    job.signals["node_disk_read_latency"][1, on:] = 0.05
    job.signals["node_disk_read_bytes"][1, on:] = 40e6
    job.signals["gpu_utilisation"][12, on:] = 55.0
    slow(job, 0.58)
    report = diagnose(library, job.snapshot(library))
    assert first(report) == ("slow_local_disk", {"node": "node-01"})
    starved = [link for link in report.causes[0].chain if link.finding == "starved_rank"]
    assert [link.entity.labels["rank"] for link in starved] == ["12"]


def test_a_starved_rank_on_a_healthy_host_is_ill_for_an_unknown_reason(library: Library) -> None:
    job = Job()
    job.signals["rank_data_wait_seconds"][12, job.past + 20 :] = 0.6
    slow(job, 0.58)
    report = diagnose(library, job.snapshot(library))
    assert report.status == "inconclusive"
    assert first(report) == ("unknown", {"job": "j", "rank": "12"})


def test_a_slow_step_with_nothing_else_is_inconclusive(library: Library) -> None:
    job = Job()
    slow(job, 0.6)
    report = diagnose(library, job.snapshot(library))
    assert report.status == "inconclusive"
    assert report.causes[0].cause == "unknown"


def test_three_replicas_are_too_few_to_compare(library: Library) -> None:
    job = Job(dp=3)
    heat(job, 1, at=-job.past)
    slow(job, 0.4)
    report = diagnose(library, job.snapshot(library))
    assert report.status == "inconclusive", "unknown is not healthy, and two peers prove nothing"


def test_three_replicas_have_a_past_of_their_own(library: Library) -> None:
    job = Job(dp=3)
    heat(job, 1)
    assert first(diagnose(library, job.snapshot(library))) == (
        "gpu_thermal_throttling",
        {"node": "node-00", "gpu": "1"},
    )


def test_series_that_end_are_not_a_slow_gpu(library: Library) -> None:
    job = Job()
    for name in (
        "gpu_sm_clock",
        "gpu_temperature",
        "gpu_utilisation",
        "gpu_tensor_active",
        "gpu_thermal_violation_ratio",
    ):
        job.signals[name][10, job.past + 20 :] = np.nan
    report = diagnose(library, job.snapshot(library))
    assert (report.status, report.causes) == ("healthy", [])


def test_what_could_not_be_checked_is_said_with_the_line_that_enables_it(library: Library) -> None:
    report = diagnose(library, Job().snapshot(library))
    unchecked = {one.rule: one for one in report.not_checked}
    missing = unchecked["nvlink_fault"].missing
    assert missing == sorted(missing)
    assert {"gpu_fabric_health", "gpu_nvlink_crc_per_minute", "gpu_nvlink_recoveries", "gpu_xid"} <= set(missing)
    assert "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL" in unchecked["nvlink_fault"].enable
    assert "gpu_thermal_throttling" not in unchecked


def test_the_stronger_the_fault_the_more_the_waiters_boost(library: Library) -> None:
    """A degraded GPU at its own clock stands below peers that wait most of the step and boost."""
    job = Job()
    on = job.past + 20
    for name, value in (
        ("gpu_nvlink_recoveries", 0.0),
        ("gpu_nvlink_crc_per_minute", 0.0),
        ("gpu_fabric_health", 1.0),
        ("gpu_xid", 0.0),
    ):
        job.signals[name] = np.full_like(job.signals["gpu_sm_clock"], value)
    lengthen(job, [10], 1.6)
    slow(job, 1.2)
    job.signals["gpu_sm_clock"][:, on:] *= 1.08
    job.signals["gpu_sm_clock"][10, on:] /= 1.08
    job.signals["gpu_tensor_active"][:, on:] /= 1.08
    job.signals["gpu_tensor_active"][10, on:] *= 1.08
    report = diagnose(library, job.snapshot(library))
    assert {cause.cause for cause in report.causes} <= {"gpu_degraded", "unknown"}
    assert probability(report, "gpu_degraded") > 0.1


def test_a_host_that_starves_its_own_job_is_seen_against_its_past(library: Library) -> None:
    """One node is the whole job: there is no other node to compare with."""
    job = Job(dp=8)
    on = job.past + 20
    job.signals["node_cpu_pressure"][:, on:] = 0.6
    job.signals["gpu_utilisation"][:, on:] = 70.0
    lengthen(job, list(range(8)), 1.3)
    slow(job, 0.6)
    assert first(diagnose(library, job.snapshot(library))) == ("cpu_contention", {"node": "node-00"})


def test_two_gpus_of_one_cell_add_up(library: Library) -> None:
    job = Job(tp=8, pp=1, dp=8)
    heat(job, 80 - 56)
    on = job.past + 20
    for name in ("gpu_sm_clock", "gpu_temperature", "gpu_thermal_violation_ratio", "gpu_tensor_active"):
        job.signals[name][25, on:] = job.signals[name][24, on:]
    report = diagnose(library, job.snapshot(library))
    assert first(report) == ("gpu_thermal_throttling", {"node": "node-03"})
    assert [member.labels["gpu"] for member in report.causes[0].members] == ["0", "1"]
    assert report.causes[0].probability >= 0.8


def test_an_edge_is_not_followed_after_its_time(library: Library) -> None:
    """A clock that has been low for minutes while all was well is not why the job slowed down just now."""
    job = Job(columns=120)
    heat(job, 10, at=100)
    job.signals["gpu_sm_clock"][10, job.past + 20 :] = 1200.0
    job.signals["gpu_thermal_violation_ratio"][10, job.past + 20 :] = 0.5
    late = diagnose(library, job.snapshot(library))
    prompt = Job(columns=120)
    heat(prompt, 10, at=100)
    assert probability(late, "gpu_thermal_throttling") < probability(
        diagnose(library, prompt.snapshot(library)), "gpu_thermal_throttling"
    )


def test_checkpoints_do_not_count(library: Library) -> None:
    job = Job()
    for start in range(0, job.past + job.columns, 40):
        pause = slice(start, start + 4)
        job.signals["rank_state"][:, pause] = 5.0
        job.signals["rank_step_seconds"][:, pause] *= 6.0
        job.signals["gpu_utilisation"][::8, pause] = 0.0
        job.signals["gpu_tensor_active"][:, pause] = 0.0
    assert diagnose(library, job.snapshot(library)).status == "healthy"


# -- properties


def shuffled(snapshot: Snapshot, seed: int, library: Library) -> Snapshot:
    """Return the same snapshot with the rows of every table, and the signals, in another order."""
    random = np.random.default_rng(seed)
    orders = {kind: random.permutation(len(table)) for kind, table in snapshot.tables.items()}
    tables = {
        kind: Table(kind, table.key, {name: column[orders[kind]] for name, column in table.columns.items()})
        for kind, table in snapshot.tables.items()
    }
    names = list(snapshot.measurements)
    random.shuffle(names)
    measurements: dict[str, Measurement] = {}
    for name in names:
        one, order = snapshot.measurements[name], orders[library.signals[name].entity]
        before = None if one.before is None else one.before[order]
        measurements[name] = dataclasses.replace(one, window=one.window[order], before=before)
    return dataclasses.replace(snapshot, tables=tables, measurements=measurements)


def faulty(bend: Callable[[Job], None] | None = None) -> Job:
    job = Job(tp=2, pp=2, dp=8, past=40, columns=40)
    heat(job, 6, at=10)
    if bend is not None:
        bend(job)
    return job


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 1000))
def test_the_order_of_entities_and_signals_changes_nothing(seed: int) -> None:
    library = load()
    snapshot = faulty().snapshot(library)
    assert encoded(diagnose(library, shuffled(snapshot, seed, library))) == encoded(diagnose(library, snapshot))


def test_the_same_input_gives_the_same_bytes(library: Library) -> None:
    assert encoded(diagnose(library, faulty().snapshot(library))) == encoded(
        diagnose(library, faulty().snapshot(library))
    )


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10_000), st.floats(0.05, 0.9), st.booleans())
def test_a_missing_sample_never_makes_a_finding(seed: int, share: float, for_good: bool) -> None:
    """Whatever is lost from a healthy job, here and there or from one moment on, nothing is found."""
    library = load()
    job = Job(tp=2, pp=2, dp=8, past=40, columns=40, seed=seed)
    random = np.random.default_rng(seed)
    for values in job.signals.values():
        if for_good:
            values[random.random(len(values)) < share, job.past + int(random.integers(5, 35)) :] = np.nan
        else:
            values[random.random(values.shape) < share] = np.nan
    report = diagnose(library, job.snapshot(library))
    assert [finding.finding for finding in report.findings] == []
    assert report.causes == []


def probability(report: Report, cause: str) -> float:
    found: list[Cause] = [one for one in report.causes if one.cause == cause]
    return found[0].probability if found else 0.0


EVIDENCE = ["gpu_thermal_violation_ratio", "gpu_temperature", "rank_collective_wait_seconds", "rank_samples_per_second"]


@pytest.mark.parametrize("name", EVIDENCE)
def test_more_evidence_for_a_cause_never_lowers_it(library: Library, name: str) -> None:
    """Take one thing away that speaks for the cause: it must not become likelier. The cause is made rare, so that its
    probability has room on both sides."""
    rare = msgspec.structs.replace(library.rules["gpu_thermal_throttling"], prior={"slow_onset": 1e-4})
    library = msgspec.structs.replace(library, rules={**library.rules, rare.id: rare})
    full = probability(diagnose(library, faulty().snapshot(library)), rare.id)
    assert 0.05 < full < 0.9
    job = faulty()
    del job.signals[name]
    assert probability(diagnose(library, job.snapshot(library)), rare.id) <= full


def test_evidence_on_the_way_makes_a_cause_likelier(library: Library) -> None:
    """Without the work phases nothing is seen between the GPU and the step."""
    rare = msgspec.structs.replace(library.rules["gpu_thermal_throttling"], prior={"slow_onset": 1e-4})
    library = msgspec.structs.replace(library, rules={**library.rules, rare.id: rare})
    job = faulty()
    for name in ("rank_forward_seconds", "rank_backward_seconds"):
        del job.signals[name]
    less = probability(diagnose(library, job.snapshot(library)), rare.id)
    assert less < probability(diagnose(library, faulty().snapshot(library)), rare.id)


@pytest.mark.parametrize("work", [1.1, 1.2, 1.3, 1.4, 1.6])
def test_any_size_of_the_fault_names_the_same_gpu(library: Library, work: float) -> None:
    job = Job()
    heat(job, 10, clock=1700.0 / work**1.2, work=work)
    report = diagnose(library, job.snapshot(library))
    assert probability(report, "gpu_thermal_throttling") >= (0.8 if work > 1.15 else 0.0)
    assert [cause.cause for cause in report.causes if cause.cause not in ("gpu_thermal_throttling", "unknown")] == []


# -- what is not seen


def test_a_window_too_short_for_the_rules_is_not_health(library: Library) -> None:
    job = Job(columns=4)
    report = diagnose(library, job.snapshot(library))
    assert report.status == "inconclusive"
    assert any(warning.startswith("window: 60 s is shorter than what") for warning in report.warnings)


def test_a_silent_present_is_not_health(library: Library) -> None:
    job = Job()
    for values in job.signals.values():
        values[:, job.past + 20 :] = np.nan
    report = diagnose(library, job.snapshot(library))
    assert report.status == "inconclusive"
    assert any(warning.startswith("samples: none in the last 600 s") for warning in report.warnings)


def test_series_that_end_are_said(library: Library) -> None:
    job = Job()
    job.signals["gpu_sm_clock"][8:16, job.past + 20 :] = np.nan
    report = diagnose(library, job.snapshot(library))
    assert report.status == "healthy"
    assert (
        "series: gpu_sm_clock ended inside the window on 8 of 64 gpus, for example node=node-01 gpu=0"
        in report.warnings
    )


def test_an_onset_inside_a_window_without_a_past_is_an_onset(library: Library) -> None:
    job = Job()
    heat(job, 10, at=30)
    report = diagnose(library, job.snapshot(library, before=False))
    assert (report.symptom, first(report)[0]) == ("slow_onset", "gpu_thermal_throttling")


def test_hardware_is_judged_between_checkpoints(library: Library) -> None:
    job = Job(tp=8, pp=1, dp=8)
    job.signals["gpu_nvlink_recoveries"] = np.zeros_like(job.signals["gpu_sm_clock"])
    on = job.past + 20
    job.signals["gpu_nvlink_recoveries"][12, on:] = 8.0
    lengthen(job, list(range(8, 16)), 1.3)
    slow(job, 0.6)
    for start in range(job.past, job.past + job.columns, 16):
        job.signals["rank_state"][:, start : start + 3] = 5.0
    report = diagnose(library, job.snapshot(library))
    assert first(report) == ("nvlink_fault", {"node": "node-01", "gpu": "4"})


def test_a_node_that_two_jobs_share_belongs_to_both(library: Library) -> None:
    job = Job()
    on = job.past + 20
    job.signals["rank_data_wait_seconds"][12, on:] = 0.6
    job.signals["node_disk_read_latency"][1, on:] = 0.05
    job.signals["node_disk_read_bytes"][1, on:] = 40e6
    slow(job, 0.58)
    job.columns_of["node"]["job"][1] = ""
    job.signals["node_disk_read_latency"][1, : job.past] = 0.0005
    report = diagnose(library, job.snapshot(library), ["j"])
    assert first(report) == ("slow_local_disk", {"node": "node-01"})


def test_a_busy_job_that_nothing_times_is_not_called_healthy(library: Library) -> None:
    job = Job()
    for name in [name for name in job.signals if name.startswith("rank_")]:
        del job.signals[name]
    report = diagnose(library, job.snapshot(library))
    assert (report.status, report.causes) == ("inconclusive", [])
    assert any("no series tells whether it is slow" in warning for warning in report.warnings)
    job.signals["gpu_utilisation"][:] = 0.0
    report = diagnose(library, job.snapshot(library))
    assert report.status == "healthy"
    assert not any("no series tells whether it is slow" in warning for warning in report.warnings)


def test_causes_of_one_finding_share_what_is_sure_of_it(library: Library) -> None:
    """Two rules that say the same of the same GPU, on a job that is not slow."""
    first = library.rules["gpu_thermal_throttling"]
    twin = msgspec.structs.replace(first, id="twin")
    library = msgspec.structs.replace(library, rules={**library.rules, twin.id: twin})
    job = Job()
    heat(job, 10, work=1.0)
    job.signals["gpu_utilisation"][10, job.past + 10 :] = 50.0
    report = diagnose(library, job.snapshot(library))
    shares = [probability(report, rule) for rule in (first.id, twin.id)]
    assert shares[0] == shares[1] > 0.0
    assert sum(shares) <= 1.0
