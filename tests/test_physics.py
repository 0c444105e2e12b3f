"""The simulated cluster obeys the laws of a synchronous step, whatever is ill."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from readings import TAIL, cycles, gauge, growth, per_step, phase, rate, rows, wait, work

from rca.physics.check import problems
from rca.physics.cluster import assemble
from rca.physics.layout import place
from rca.physics.run import generator
from rca.physics.step import pipeline
from rca.physics.world import World, simulate
from rca.physics.written import (
    Cluster,
    Data,
    Fault,
    Gap,
    Job,
    Mount,
    Saving,
    Scenario,
    Telemetry,
    WarmUp,
    Where,
)

BEFORE = slice(20, 60)
FLAT = Job(id="flat", dp=16, step="2s", sync="200ms", samples=256)
CELLS = Job(id="cells", tp=8, pp=2, dp=4, step="3s", sync="300ms", samples=256)


@cache
def world(job: Job, *faults: Fault, nodes: int = 2, telemetry: Telemetry | None = None) -> World:
    mounts = (Mount(export="filer:/data"),)
    scenario = Scenario(
        summary="test",
        seed=3,
        duration="30m",
        cluster=Cluster(nodes=nodes, mounts=mounts),
        job=job,
        faults=faults,
        telemetry=telemetry or Telemetry(),
    )
    assert problems(scenario) == []
    return simulate(scenario)


def onset(**effect: object) -> Fault:
    where = effect.pop("on")
    assert isinstance(where, Where)
    return Fault(at="18m", on=where, **effect)  # type: ignore[arg-type]


THERMAL = onset(cooling=4.0, on=Where(node="node-01", gpu=3))


def others(values: np.ndarray, ill: int) -> np.ndarray:
    return np.delete(values, ill)


# --------------------------------------------------------------------------------------------------- one straggler
@pytest.mark.parametrize(
    ("fault", "ill"),
    [
        (THERMAL, 11),
        (onset(power_limit=350.0, on=Where(rank=5)), 5),
        (onset(compute=1.4, on=Where(node="node-00", gpu=2)), 2),
        (onset(tokens=1.4, on=Where(rank=9)), 9),
    ],
    ids=["hot", "capped", "degraded", "tokens"],
)
def test_the_ill_rank_waits_least_and_all_ranks_take_equally_long(fault: Fault, ill: int) -> None:
    ward = world(FLAT, fault)
    waits = wait(ward)
    assert waits[ill] < 0.05
    assert others(waits, ill).min() > waits[ill] + 0.2
    steps = per_step(ward, "train_step_duration_seconds_sum")
    np.testing.assert_allclose(steps, steps[0], rtol=0.01)
    assert steps[0] > 1.1 * per_step(ward, "train_step_duration_seconds_sum", BEFORE)[0]


@pytest.mark.parametrize(
    "fault", [THERMAL, onset(power_limit=350.0, on=Where(rank=5)), onset(compute=1.4, on=Where(rank=5))]
)
def test_tensor_cycles_and_bytes_single_out_nobody_with_equal_work(fault: Fault) -> None:
    ward = world(FLAT, fault)
    np.testing.assert_allclose(cycles(ward), np.median(cycles(ward)), rtol=0.05)
    sent = rate(ward, "node_infiniband_port_data_transmitted_bytes_total")
    np.testing.assert_allclose(sent, np.median(sent), rtol=0.03)
    assert np.all(cycles(ward) < 0.95 * cycles(ward, BEFORE))  # all fall together against themselves


def test_more_tokens_are_more_cycles() -> None:
    ward = world(FLAT, onset(tokens=1.4, on=Where(rank=9)))
    assert cycles(ward)[9] / np.median(cycles(ward)) == pytest.approx(1.4, rel=0.05)
    assert gauge(ward, "train_batch_tokens")[9] / np.median(gauge(ward, "train_batch_tokens")) == pytest.approx(
        1.4, rel=0.02
    )


def test_a_throttled_gpu_reads_high_tensor_activity_and_a_low_clock() -> None:
    ward = world(FLAT, THERMAL)
    active, clock = gauge(ward, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"), gauge(ward, "DCGM_FI_DEV_SM_CLOCK")
    assert active[11] > 1.2 * np.median(active)
    assert clock[11] < 0.75 * np.median(clock)
    assert gauge(ward, "DCGM_FI_DEV_GPU_UTIL")[11] > 98
    bits = ward.metrics["DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"].values[11][TAIL].astype(int)
    assert np.all(bits & 0b100000)
    assert growth(ward, "DCGM_FI_DEV_THERMAL_VIOLATION")[11] > 0.9e9 * 23 * 15
    assert others(growth(ward, "DCGM_FI_DEV_THERMAL_VIOLATION"), 11).max() == 0


def test_victims_boost_spin_and_cool_down() -> None:
    ward = world(FLAT, THERMAL)
    for name, sign in (("DCGM_FI_DEV_SM_CLOCK", 1), ("DCGM_FI_DEV_POWER_USAGE", -1), ("DCGM_FI_DEV_GPU_TEMP", -1)):
        change = others(gauge(ward, name) - gauge(ward, name, BEFORE), 11) * sign
        assert change.min() > 0, name
    assert others(gauge(ward, "DCGM_FI_DEV_GPU_UTIL"), 11).min() > 97  # a waiter is not idle


def test_heat_takes_minutes() -> None:
    temperature = world(FLAT, onset(inlet_rise=10.0, on=Where(node="node-00", gpu=1))).metrics["DCGM_FI_DEV_GPU_TEMP"]
    series = temperature.values[1]
    start = np.nanmean(series[60:72])
    assert np.nanmean(series[73:76]) - start < 5
    assert np.nanmean(series[-12:]) - start == pytest.approx(10, abs=1.5)


def test_energy_is_the_integral_of_power() -> None:
    ward = world(FLAT)
    watts = rate(ward, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", BEFORE) / 1e3
    np.testing.assert_allclose(watts, gauge(ward, "DCGM_FI_DEV_POWER_USAGE", BEFORE), rtol=0.02)


# ----------------------------------------------------------------------------------------------------------- cells
def test_the_ranks_of_a_cell_are_late_together_and_the_gpu_layer_names_the_member() -> None:
    ward = world(CELLS, onset(cooling=4.5, on=Where(node="node-06", gpu=5)), nodes=8)
    stage, replica = 1, 2  # node-06 holds ranks 48 to 55: pp 1, dp 2
    busy = work(ward).reshape(2, 4, 8)
    np.testing.assert_allclose(busy[stage, replica], busy[stage, replica, 0], rtol=0.01)
    assert busy[stage, replica].min() > 1.15 * np.delete(busy[stage], replica, axis=0).max()
    clock = gauge(ward, "DCGM_FI_DEV_SM_CLOCK")
    assert clock.argmin() == 53
    waits = wait(ward).reshape(2, 4, 8).mean(axis=2)
    assert waits[stage, replica] == waits.min()
    active = gauge(ward, "DCGM_FI_PROF_SM_ACTIVE").reshape(2, 4, 8)[stage, replica]
    assert active.argmax() == 5
    np.testing.assert_allclose(cycles(ward), np.median(cycles(ward)), rtol=0.06)


def test_a_heavy_replica_is_late_in_every_stage_and_a_heavy_stage_in_every_replica() -> None:
    skewed = work(world(CELLS, Fault(tokens=1.3, on=Where(replica=1)), nodes=8)).reshape(2, 4, 8).mean(axis=2)
    assert np.all(skewed.argmax(axis=1) == 1)
    last = work(world(CELLS, Fault(work=1.4, on=Where(stage=1)), nodes=8)).reshape(2, 4, 8).mean(axis=2)
    assert np.all(last[1] > 1.3 * last[0])


def test_the_parts_of_a_step_add_up_to_it() -> None:
    ward = world(CELLS, nodes=8)
    parts = [phase(ward, name, BEFORE) for name in ("forward_compute", "backward_compute", "grads_sync", "optimizer")]
    total = np.sum(parts, axis=0) + wait(ward, BEFORE)
    np.testing.assert_allclose(total, per_step(ward, "train_step_duration_seconds_sum", BEFORE), rtol=0.01)


def test_a_slow_port_holds_up_its_ring_and_no_other() -> None:
    ward = world(CELLS, onset(port_rate=25e9, on=Where(node="node-06", device="mlx5_5")), nodes=8)
    sync = phase(ward, "grads_sync").reshape(2, 4, 8)
    assert np.all(sync[1, :, 5] > 1.8 * sync[0].max())  # all members of the ring alike
    assert np.delete(sync[1], 5, axis=1).max() < 1.1 * np.median(sync)
    assert gauge(ward, "node_infiniband_rate_bytes_per_second", device="mlx5_5")[6] == 25e9


def test_bubble_of_equal_stages() -> None:
    total, forward, backward = pipeline(np.ones((4, 1)), 8)
    assert total[0] == pytest.approx(1 + 3 / 8)
    assert (forward + backward)[:, 0].tolist() == pytest.approx([3 / 8] * 4)
    assert forward[0, 0] == backward[3, 0] == 0


@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=8), st.integers(1, 32))
def test_waits_and_work_fill_the_pipeline(busy: list[float], micro_batches: int) -> None:
    stages = np.array(busy)[:, None]
    total, forward, backward = pipeline(stages, micro_batches)
    np.testing.assert_allclose(stages + forward + backward, np.broadcast_to(total, stages.shape))
    assert forward.min() >= 0
    assert backward.min() > -1e-9
    waits = (forward + backward)[:, 0]
    assert waits[stages[:, 0].argmax()] == pytest.approx(waits.min())


@given(st.sampled_from([(2, 1, 4, 2), (1, 2, 4, 2), (4, 1, 1, 4), (2, 2, 2, 2)]))
def test_ranks_are_laid_out_as_megatron_does(sizes: tuple[int, int, int, int]) -> None:
    tp, cp, dp, pp = sizes
    layout = place(Job(id="a", tp=tp, cp=cp, dp=dp, pp=pp), assemble(Cluster(nodes=2), generator(0, "x")))
    expected = [
        (t, c, d, p) for p in range(pp) for d in range(dp) for c in range(cp) for t in range(tp)
    ]  # tensor index fastest, pipeline index slowest
    found = list(zip(*(layout.index(axis).tolist() for axis in ("tp", "cp", "dp", "pp")), strict=True))
    assert found == expected


# ------------------------------------------------------------------------------------------------- host and storage
def test_a_slow_disk_starves_the_ranks_of_its_node_and_idles_their_gpus() -> None:
    job = Job(id="flat", dp=16, step="2s", sync="200ms", samples=256, data=Data(bytes=15e6))
    ward = world(job, onset(disk_bandwidth=40e6, on=Where(node="node-01")))
    data = per_step(ward, "train_data_wait_seconds_total")
    assert data[8:].min() > 0.8
    assert data[:8].max() < 0.03
    util = gauge(ward, "DCGM_FI_DEV_GPU_UTIL")
    assert util[8:].max() < 75
    assert util[:8].min() > 97
    spent, done = (rate(ward, f"node_disk_{name}_total") for name in ("read_time_seconds", "reads_completed"))
    assert spent[1] / done[1] > 50 * spent[0] / done[0]
    read = rate(ward, "node_disk_read_bytes_total")
    assert read[0] == pytest.approx(read[1], rel=0.1)  # equal bytes a step
    np.testing.assert_allclose(work(ward), np.median(work(ward)), rtol=0.1)  # loading is not work


def test_tensor_peers_wait_for_the_batch_in_the_broadcast() -> None:
    job = Job(
        id="cells", tp=8, pp=2, dp=4, step="3s", sync="300ms", data=Data(source="mount", bytes=100e6, request=1e6)
    )
    ward = world(job, onset(mount_latency=0.4, on=Where(export="filer:/data")), nodes=8)
    batch = phase(ward, "batch_generator").reshape(2, 4, 8)
    assert batch.min() > 0.5
    np.testing.assert_allclose(batch, batch[:, :, :1] * np.ones(8), rtol=0.02)
    assert len(rows(ward, "train_data_wait_seconds_total")) == 2 * 4  # tensor rank 0 of the first and last stage
    util = gauge(ward, "DCGM_FI_DEV_GPU_UTIL").reshape(2, 4, 8)
    assert util[:, :, 0].max() < 90
    assert util[:, :, 1:].min() > 97


def test_a_crowded_host_leaves_gaps_on_all_its_gpus() -> None:
    ward = world(FLAT, onset(cpu_taken=0.5, on=Where(node="node-00")))
    assert gauge(ward, "DCGM_FI_DEV_GPU_UTIL")[:8].max() < 95
    pressure = rate(ward, "node_pressure_cpu_waiting_seconds_total")
    assert pressure[0] > 0.3
    assert pressure[0] > 3 * pressure[1]


def test_congestion_is_on_many_ports_and_slows_transfers_only() -> None:
    ward = world(CELLS, onset(congestion=2.5, on=Where(job="cells")), nodes=8)
    assert np.median(phase(ward, "grads_sync")) > 2.2 * np.median(phase(ward, "grads_sync", BEFORE))
    np.testing.assert_allclose(work(ward), work(ward, BEFORE), rtol=0.05)
    name = "node_infiniband_np_cnp_packets_sent_total"
    assert np.all(rate(ward, name) > 3 * rate(ward, name, BEFORE))


def test_sequence_imbalance_has_no_persistent_outlier() -> None:
    job = Job(id="flat", dp=16, step="2s", sync="200ms", samples=256)
    ward = world(job, Fault(sequence_spread=0.2))
    whole = slice(0, None)
    busy, step = work(ward, whole), per_step(ward, "train_step_duration_seconds_sum", whole)[0]
    assert busy.max() < 1.1 * np.median(busy)
    assert step - phase(ward, "grads_sync", whole).mean() - busy.max() > 0.1 * step


# ----------------------------------------------------------------------------------------------- phases, jobs, time
def test_a_checkpoint_stops_steps_and_tensor_cores_and_only_writers_idle() -> None:
    job = Job(id="flat", dp=16, step="2s", samples=256, checkpoint=Saving(first="10m", every="60m", lasts="4m"))
    ward = world(job)
    inside = slice(43, 55)
    assert growth(ward, "train_steps_total", inside).max() == 0
    assert gauge(ward, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", inside).max() < 0.01
    util = gauge(ward, "DCGM_FI_DEV_GPU_UTIL", inside)
    assert util[0] < 3
    assert util[1:].min() > 97
    assert gauge(ward, "train_state", inside, state="save_checkpoint").min() == 1
    assert rate(ward, "node_disk_written_bytes_total", inside)[0] > 1e9
    assert growth(ward, "train_steps_total", slice(60, 120)).min() > 400


def test_warm_up_and_end_of_a_job() -> None:
    job = Job(id="flat", dp=16, step="2s", warm_up=WarmUp(at="5m", init="1m", compile="2m"), ends="25m")
    ward = world(job)
    metric = ward.metrics["train_state"]
    since = metric.times[0] - ward.epoch
    assert since[metric.there[0]].min() >= 300
    assert since[metric.there[0]].max() < 1560
    for state, start, end in (
        ("init", 300, 360),
        ("compile", 360, 480),
        ("train", 480, 1500),
        ("finished", 1500, 1560),
    ):
        row = rows(ward, "train_state", state=state)[0]
        on = metric.times[row][metric.values[row] == 1] - ward.epoch
        assert start - 5 <= on.min() < start + 20
        assert on.max() <= end + 5
    assert np.nanmax(ward.metrics["DCGM_FI_DEV_POWER_USAGE"].values[:, :18]) < 90  # nobody is there
    loss = ward.metrics["train_loss"].values[0]
    assert np.isnan(loss[:32]).all()
    assert loss[-25] < loss[40]


def test_gpus_without_a_job_idle() -> None:
    ward = world(Job(id="flat", dp=8, step="2s", samples=256))
    assert gauge(ward, "DCGM_FI_DEV_GPU_UTIL")[8:].max() == pytest.approx(0, abs=1)
    assert gauge(ward, "DCGM_FI_DEV_SM_CLOCK")[8:].max() < 400
    assert len(rows(ward, "train_rank_info")) == 8


def test_telemetry_gaps_renamed_slow_and_absent() -> None:
    gaps = (
        Gap(exporter="dcgm", node="node-00", at="10m", until="15m"),
        Gap(exporter="dcgm", node="node-01", gpu=7, at="20m"),
    )
    telemetry = Telemetry(
        missed=0.05, gaps=gaps, renamed=("node-01",), slow=("node-01",), absent=("DCGM_FI_PROF_SM.*",)
    )
    ward = world(FLAT, telemetry=telemetry)
    old, new = ward.metrics["DCGM_FI_DEV_SM_CLOCK"], ward.metrics["DCGM_FI_DEV_SM_CLOCK_HERTZ"]
    assert {own["Hostname"] for own in old.labels} == {"node-00"}
    assert {own["hostname"] for own in new.labels} == {"node-01"}
    assert np.nanmedian(new.values) == pytest.approx(1e6 * np.nanmedian(old.values), rel=0.1)
    silent = (old.times[0] - ward.epoch >= 600) & (old.times[0] - ward.epoch < 900)
    assert not old.there[:, silent].any()
    assert old.there[:, ~silent].mean() == pytest.approx(0.95, abs=0.04)
    ended = new.times[7] - ward.epoch >= 1200
    assert not new.there[7, ended].any()
    assert new.there[6, ended].mean() > 0.8
    temperature = ward.metrics["DCGM_FI_PROF_TENSOR_UTIL_RATIO"].values[2]
    seen = temperature[~np.isnan(temperature)]
    assert np.mean(np.diff(seen) == 0) > 0.35  # collected every 30 s, scraped every 15
    assert not any(name.startswith("DCGM_FI_PROF_SM") for name in ward.metrics)
    up = ward.metrics["up"]
    assert not np.isnan(up.values).any()
    assert up.values[rows(ward, "up", job="dcgm-exporter")[0], silent].max() == 0


def test_the_plan_is_kept_in_health() -> None:
    for job, nodes in ((FLAT, 2), (CELLS, 8)):
        ward = world(job, nodes=nodes)
        planned = float(job.step.removesuffix("s"))
        assert per_step(ward, "train_step_duration_seconds_sum", slice(0, None))[0] == pytest.approx(planned, rel=0.01)
        assert rate(ward, "train_samples_total", slice(0, None)).sum() == pytest.approx(job.samples / planned, rel=0.02)


def test_scrapes_have_phase_jitter_and_whole_milliseconds() -> None:
    metric = world(FLAT).metrics["train_steps_total"]
    assert len({round(time % 15) for time in metric.times[:, 0]}) > 5
    gaps = np.diff(metric.times, axis=1)
    assert 14.9 < gaps.min() < gaps.max() < 15.1
    np.testing.assert_array_equal(np.round(metric.times * 1000) / 1000, metric.times)
    assert np.all(
        np.diff(np.where(metric.there, metric.values, 0.0), axis=1)[metric.there[:, 1:] & metric.there[:, :-1]] >= 0
    )


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 1000))
def test_the_same_file_gives_the_same_series(seed: int) -> None:
    scenario = Scenario(
        summary="x",
        seed=seed,
        duration="5m",
        cluster=Cluster(nodes=1),
        job=Job(id="a", dp=8),
        faults=(Fault(cooling=3.0),),
    )
    one, two = simulate(scenario), simulate(scenario)
    assert list(one.metrics) == list(two.metrics)
    for name in one.metrics:
        np.testing.assert_array_equal(one.metrics[name].values, two.metrics[name].values)
    later = simulate(scenario, one.end + 1000.0)
    np.testing.assert_allclose(later.metrics["up"].times, one.metrics["up"].times + 1000.0, atol=0.002)


def test_two_jobs_share_a_cluster() -> None:
    jobs = (Job(id="a", dp=8, step="2s"), Job(id="b", first=1, dp=8, step="1s"))
    scenario = Scenario(
        summary="x",
        duration="10m",
        cluster=Cluster(nodes=2),
        jobs=jobs,
        faults=(Fault(compute=2.0, on=Where(job="b", rank=0)),),
    )
    assert problems(scenario) == []
    ward = simulate(scenario)
    whole = slice(0, None)
    assert per_step(ward, "train_step_duration_seconds_sum", whole, job_id="a").mean() == pytest.approx(2, rel=0.02)
    info = {own["rank"]: own for own in ward.metrics["train_rank_info"].labels if own["job_id"] == "b"}
    assert info["0"]["node"] == "node-01"
