"""What a simulated host shows of its board, and what that does to training."""

from functools import cache

import numpy as np
import pytest
from read_once import load
from readings import per_step

from rca.model import Floats, Window
from rca.physics.check import problems
from rca.physics.world import World, simulate
from rca.physics.written import Cluster, Fault, Job, Saving, Scenario, Where
from rca.sources.assemble import assemble
from rca.sources.scenario import ScenarioStore

JOB = Job(
    id="ring", tp=8, dp=4, step="2s", sync="400ms", checkpoint=Saving(first="5m", every="10m", lasts="30s"), samples=256
)
EARLY, LATE = slice(20, 70), slice(-30, None)


@cache
def world(*faults: Fault, roce: bool = False) -> World:
    cluster = Cluster(nodes=5, roce=roce)
    scenario = Scenario(summary="test", seed=3, duration="30m", cluster=cluster, job=JOB, faults=faults)
    assert problems(scenario) == []
    return simulate(scenario)


def onset(where: Where, **effect: object) -> Fault:
    return Fault(at="18m", on=where, **effect)  # type: ignore[arg-type]


def series(ward: World, name: str, **labels: str) -> Floats:
    metric = ward.metrics[name]
    found = [row for row, one in enumerate(metric.labels) if labels.items() <= one.items()]
    return metric.values[found]


def grown(ward: World, name: str, when: slice, **labels: str) -> float:
    values = series(ward, name, **labels)[:, when]
    return float((np.nanmax(values, axis=1) - np.nanmin(values, axis=1)).sum())


def step(ward: World, when: slice) -> float:
    return float(np.median(per_step(ward, "train_step_duration_seconds_sum", when)))


NODE = {"instance": "node-02:9100"}
THERE = Where(node="node-02")
PORT = Where(node="node-02", device="mlx5_5")


def test_a_healthy_board_has_no_errors_and_room():
    ward = world()
    every = slice(None)
    for name in ("node_edac_correctable_errors_total", "node_vmstat_oom_kill", "node_infiniband_link_downed_total"):
        assert grown(ward, name, every) == 0
    free = series(ward, "node_filesystem_avail_bytes", fstype="xfs") / series(
        ward, "node_filesystem_size_bytes", fstype="xfs"
    )
    assert np.nanmin(free) > 0.2
    assert np.nanmax(series(ward, "node_filesystem_avail_bytes", fstype="squashfs")) == 0
    assert "node_ethtool_transmitted_prio3_pause" not in ward.metrics


def test_idle_cpus_run_slowly_and_that_is_no_fault():
    clocks = np.nanmean(series(world(), "node_cpu_scaling_frequency_hertz"), axis=1)
    idle = np.nanmean(series(world(), "node_cpu_scaling_frequency_hertz", instance="node-04:9100"))
    assert idle < 0.5 * np.median(clocks)


@pytest.mark.parametrize(
    ("effect", "name"),
    [
        ({"cpu_clock": 0.5}, "node_cpu_package_throttles_total"),
        ({"memory_taken": 0.99}, "node_vmstat_pgmajfault"),
    ],
)
def test_a_slow_host_delays_its_cell_and_counts_why(effect, name):
    ward = world(onset(THERE, **effect))
    assert step(ward, LATE) > 1.1 * step(ward, EARLY)
    assert grown(ward, name, LATE, **NODE) > 100 + 10 * grown(ward, name, LATE, instance="node-01:9100")
    util = series(ward, "DCGM_FI_DEV_GPU_UTIL", Hostname="node-02")[:, LATE]
    assert np.nanmax(np.nanmedian(util, axis=1)) < 95


def test_a_flapping_port_loses_its_link_and_holds_up_its_ring():
    ward = world(onset(PORT, flaps=0.1))
    lost = grown(ward, "node_infiniband_link_downed_total", LATE, device="mlx5_5", **NODE)
    assert lost == grown(ward, "node_infiniband_link_downed_total", LATE)
    assert 20 < lost < 60
    assert step(ward, LATE) > 1.1 * step(ward, EARLY)


def test_without_rdma_the_kernel_carries_what_the_ports_did():
    ward = world(onset(Where(), sockets=True))
    sent = "node_infiniband_port_data_transmitted_bytes_total"
    assert grown(ward, sent, LATE) == 0
    assert grown(ward, sent, EARLY) > 0
    for way in ("transmit", "receive"):
        assert grown(ward, f"node_network_{way}_bytes_total", LATE, **NODE) > 1e11
    assert step(ward, LATE) > 1.5 * step(ward, EARLY)


def test_the_host_of_a_narrow_card_pauses_those_that_send_to_its_rail():
    ward = world(onset(PORT, port_lanes=4), roce=True)
    lanes = series(ward, "node_pcidevice_current_link_width", device="mlx5_5", **NODE)
    assert np.nanmax(lanes[:, EARLY]) == 16
    assert np.nanmax(lanes[:, LATE]) == 4
    pauses = "node_ethtool_{}_prio3_pause"
    assert grown(ward, pauses.format("transmitted"), LATE, **NODE) > 1e5
    assert grown(ward, pauses.format("transmitted"), LATE, instance="node-01:9100") < 5000
    assert grown(ward, pauses.format("received"), LATE, device="ens5np0", instance="node-01:9100") > 1e5
    assert grown(ward, pauses.format("received"), LATE, device="ens4np0", instance="node-01:9100") < 5000


def test_a_slow_store_stretches_checkpoints_and_the_job_tells_how_long_they_took():
    ward = world(onset(Where(), saving=4.0))
    lasted = np.diff(series(ward, "train_checkpoint_duration_seconds_sum")[0])
    ended = np.diff(series(ward, "train_checkpoint_duration_seconds_count")[0])
    each = lasted[ended > 0] / ended[ended > 0]
    assert each.round().tolist() == [30.0, 30.0, 120.0]


def test_the_controller_tells_of_warm_air():
    ward = world(onset(THERE, inlet_rise=10.0))
    assert np.nanmedian(series(ward, "ipmi_temperature_celsius", **NODE)[:, LATE]) == 37
    assert np.nanmedian(series(ward, "ipmi_temperature_celsius", instance="node-01:9100")) == 27


def test_cells_know_their_rack_and_leaves_the_job_of_their_ports():
    ward = world()
    tables = assemble(ScenarioStore(ward), load().in_use(), Window(ward.end - 900, ward.end)).tables
    assert tables["cell"].columns["rack"].tolist() == ["rack-0"] * 4
    assert set(tables["switch"].columns["job"]) == {"ring"}
