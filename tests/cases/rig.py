"""A cluster of constant numbers, on which an incident says what was different, from when until when.

An incident is a list of what was seen: a metric, the value that it had, and where. Everything else reads what a healthy
cluster shows. Nothing is simulated: what a report of an incident does not say is not derived from what it says.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from memory_store import MemoryStore, Samples, series

from rca.model import Floats

SCRAPE = 15.0
EPOCH = 1_780_000_000.0
MINUTES = 75
JOB = "job-0"
NOISE = 0.005

GPU = {
    "DCGM_FI_DEV_GPU_UTIL": 100.0, "DCGM_FI_DEV_SM_CLOCK": 1410.0, "DCGM_FI_DEV_GPU_TEMP": 50.0,
    "DCGM_FI_DEV_MEMORY_TEMP": 60.0, "DCGM_FI_DEV_POWER_USAGE": 340.0, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": 400.0,
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": 0.0, "DCGM_FI_DEV_FB_USED": 60000.0, "DCGM_FI_DEV_XID_ERRORS": 0.0,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.45, "DCGM_FI_PROF_SM_ACTIVE": 0.85,
}  # fmt: skip
GPU_RATES = {"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 340e3, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 0.0}
NODE = {"node_memory_MemAvailable_bytes": 8e11, "node_memory_MemTotal_bytes": 1e12, "node_boot_time_seconds": 1.77e9}
NODE_RATES = {
    "node_pressure_cpu_waiting_seconds_total": 0.02,
    'node_cpu_seconds_total{cpu="0",mode="idle"}': 0.6,
    'node_cpu_seconds_total{cpu="1",mode="idle"}': 0.6,
    'node_disk_read_time_seconds_total{device="nvme0n1"}': 0.02,
    'node_disk_reads_completed_total{device="nvme0n1"}': 100.0,
    'node_disk_read_bytes_total{device="nvme0n1"}': 1e8,
}
PORT = {"node_infiniband_state_id": 4.0, "node_infiniband_rate_bytes_per_second": 25e9}
PORT_RATES = {
    "node_infiniband_link_downed_total": 0.0,
    "node_infiniband_link_error_recovery_total": 0.0,
    "node_infiniband_symbol_error_total": 0.0,
    "node_infiniband_port_data_transmitted_bytes_total": 5e9,
}
TIMES = {
    "step": "train_step_duration_seconds_sum",
    "forward": 'train_phase_duration_seconds_sum{phase="forward_compute"}',
    "backward": 'train_phase_duration_seconds_sum{phase="backward_compute"}',
    "data": "train_data_wait_seconds_total",
    "wait": 'train_collective_wait_seconds_total{group="dp"}',
}
"""What is told in seconds a step, and the counter that grows by it."""
STEPS = ("train_steps_total", "train_step_duration_seconds_count")
EXACT = (
    "up",
    "_id",
    "_info",
    "UTIL",
    "XID",
    "REASONS",
    "LIMIT",
    "train_state",
    "boot",
    "FB_USED",
    "Total",
    "rate_bytes",
)
"""Names in which no noise belongs: codes, bits, settings."""


class Shown(NamedTuple):
    """What a metric read from minute `at` until `until`: `value`, or points of (minute, value) to draw lines between.

    `metric` is a name, or one with labels; counters say how much they grow a second, and a key of `TIMES` says seconds
    of a step. `pause` is what lies between two steps, and `stepping` 0 that no step ends. `on` narrows by `node`,
    `gpu`, `device` or `rank`.
    """

    metric: str
    value: float | tuple[tuple[float, float], ...]
    on: Mapping[str, str] = {}
    at: float = 0.0
    until: float = float(MINUTES)


class Rig(NamedTuple):
    """Who is there: nodes of some GPUs, one rank on each of them, and how long its healthy step and its parts take.

    `exporters` names those that exist, of dcgm, node, train. `state` is what the ranks say they do.
    """

    nodes: int = 8
    gpus: int = 8
    tp: int = 1
    pp: int = 1
    times: Mapping[str, float] = {"step": 10.0, "forward": 3.0, "backward": 6.0, "data": 0.05, "wait": 0.5}
    exporters: tuple[str, ...] = ("dcgm", "node", "train")
    state: str = "train"


def watched(rig: Rig, shown: tuple[Shown, ...]) -> tuple[MemoryStore, float]:
    """Return what Prometheus would hold, and when it ends."""
    times = np.arange(0.0, MINUTES * 60.0 + 1, SCRAPE)
    noise = np.random.default_rng(1)
    held = []
    for name, where, labels, level, grows in (*_hardware(rig), *_ranks(rig)):
        values, steps = _values(level, name, where, shown, times), np.ones_like(times)
        if name in TIMES or name in STEPS:
            lasting = [_values(rig.times.get(part, 0.0), part, where, shown, times) for part in ("step", "pause")]
            steps = _values(1.0, "stepping", where, shown, times) / (lasting[0] + lasting[1])
        if not any(part in name for part in EXACT):
            values = values * (1.0 + NOISE * noise.standard_normal(len(times)))
        if grows:
            values = np.cumsum(values * steps * SCRAPE) - values[0] * steps[0] * SCRAPE
        metric, extra = _split(TIMES.get(name, name))
        held.append(series(metric, {**labels, **extra}, _samples(times, values)))
    return MemoryStore(held), EPOCH + times[-1]


def _samples(times: Floats, values: Floats) -> Samples:
    there = ~np.isnan(values)
    return np.stack([EPOCH + times[there], values[there]], axis=1)


def _values(level: float, name: str, where: Mapping[str, str], shown: tuple[Shown, ...], times: Floats) -> Floats:
    """Return what a series reads: its level, and what an incident shows instead where and while it does."""
    values, minutes = np.full(len(times), level), times / 60.0
    for one in shown:
        if one.metric == name and one.on.items() <= where.items():
            during = (minutes >= one.at) & (minutes < one.until)
            points = ((one.at, one.value),) if isinstance(one.value, int | float) else one.value
            line = np.interp(minutes, [minute for minute, _ in points], [value for _, value in points])
            values = np.where(during, line, values)
    return values


def _split(metric: str) -> tuple[str, dict[str, str]]:
    name, _, labels = metric.partition("{")
    return name, dict(re.findall(r'(\w+)="([^"]*)"', labels))


Found = tuple[str, dict[str, str], dict[str, str], float, bool]


def _hardware(rig: Rig) -> Iterator[Found]:
    """Yield name, place, labels, level and whether it is a counter, of every series of GPUs, nodes and ports."""
    for index in range(rig.nodes):
        node = f"node-{index:02d}"
        host = {"instance": f"{node}:9100", "job": "node-exporter"}
        if "node" in rig.exporters:
            yield "up", {"node": node}, host, 1.0, False
            yield from _all(NODE, NODE_RATES, {"node": node}, host)
        for gpu in map(str, range(rig.gpus)):
            where = {"node": node, "gpu": gpu, "device": f"mlx5_{gpu}"}
            labels = {"Hostname": node, "gpu": gpu, "modelName": "NVIDIA A100-SXM4-80GB", "job": "dcgm-exporter"}
            if "dcgm" in rig.exporters:
                yield from _all(GPU, GPU_RATES, where, labels)
            if "node" in rig.exporters:
                yield from _all(PORT, PORT_RATES, where, {**host, "device": where["device"], "port": "1"})


def _all(
    levels: Mapping[str, float], rates: Mapping[str, float], where: dict[str, str], labels: dict[str, str]
) -> Iterator[Found]:
    yield from ((name, where, labels, level, False) for name, level in levels.items())
    yield from ((name, where, labels, rate, True) for name, rate in rates.items())


def _ranks(rig: Rig) -> Iterator[Found]:
    """Yield the series of every rank; ranks fill the nodes, tensor index fastest, then data, then pipeline index."""
    count = rig.nodes * rig.gpus if "train" in rig.exporters else 0
    dp = max(count // rig.tp // rig.pp, 1)
    for rank in range(count):
        node, gpu = f"node-{rank // rig.gpus:02d}", str(rank % rig.gpus)
        where, labels = {"node": node, "gpu": gpu, "rank": str(rank)}, {"job_id": JOB, "rank": str(rank)}
        axes = {"tp_rank": rank % rig.tp, "dp_rank": rank // rig.tp % dp, "pp_rank": rank // rig.tp // dp}
        place = {"node": node, "gpu": gpu, **{axis: str(index) for axis, index in axes.items()}}
        yield "train_rank_info", where, {**labels, **place}, 1.0, False
        yield f'train_state{{state="{rig.state}"}}', where, labels, 1.0, False
        for name, spent in rig.times.items():
            yield name, where, labels, spent, True
        for name in STEPS:
            yield name, where, labels, 1.0, True
        if rank == count - 1:
            for name, level in (("train_loss", 2.2), ("train_grad_norm", 0.25), ("train_learning_rate", 6e-5)):
                yield name, where, labels, level, False
