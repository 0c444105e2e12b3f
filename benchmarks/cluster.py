"""The series of a large job with one ill GPU, as dcgm-exporter and a training exporter write them.

The simulator of scenarios makes the cluster, its faults and its scrapes; of all that it can export, 24 signals are kept
(17 of the GPU, 7 of the training process), each one series per GPU or rank under its real name and labels, and the info
series that ties ranks to GPUs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rca.openmetrics import family_name, selector
from rca.physics.world import Metric, World, simulate
from rca.physics.written import Cluster, Data, Fault, Job, Scenario, Where

GPU_SIGNALS = (
    *(
        f"DCGM_FI_DEV_{name}"
        for name in (
            "SM_CLOCK", "GPU_TEMP", "MEMORY_TEMP", "GPU_MAX_OP_TEMP", "MEM_MAX_OP_TEMP", "ENFORCED_POWER_LIMIT",
            "GPU_UTIL", "CLOCK_THROTTLE_REASONS", "THERMAL_VIOLATION", "PCIE_REPLAY_COUNTER", "PCIE_LINK_WIDTH",
            "PCIE_MAX_LINK_WIDTH", "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
            "XID_ERRORS",
        )
    ),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "DCGM_FI_PROF_SM_ACTIVE",
)  # fmt: skip
RANK_SIGNALS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("train_steps_total", {}),
    ("train_step_duration_seconds_sum", {}),
    ("train_step_duration_seconds_count", {}),
    ("train_phase_duration_seconds_sum", {"phase": "forward_compute"}),
    ("train_phase_duration_seconds_sum", {"phase": "backward_compute"}),
    ("train_collective_wait_seconds_total", {"group": "dp"}),
    ("train_batch_tokens", {}),
)
SIGNALS: tuple[tuple[str, Mapping[str, str]], ...] = (*((name, {}) for name in GPU_SIGNALS), *RANK_SIGNALS)
INFO = "train_rank_info"
GPUS_PER_NODE = 8


@dataclass(frozen=True)
class Shape:
    """Nodes of eight GPUs, and the pipeline depth of the job that fills them with tensor groups of eight."""

    nodes: int
    pp: int

    @property
    def gpus(self) -> int:
        """Return the number of GPUs."""
        return self.nodes * GPUS_PER_NODE

    @property
    def ill(self) -> tuple[str, str]:
        """Return node and index of the ill GPU."""
        return f"node-{self.nodes * 2 // 3:02d}", "1"


def make(shape: Shape, duration: str = "15m", fault: str = "5m", end: float | None = None) -> World:
    """Simulate a quarter of an hour in which a fan fails beside one GPU after five minutes."""
    node, gpu = shape.ill
    job = Job(
        id="llama-405b", tp=GPUS_PER_NODE, pp=shape.pp, dp=shape.nodes // shape.pp, step="4600ms", sync="250ms",
        optimizer="80ms", data=Data(wait="40ms", bytes=20e6), samples=5520, compute=1, intensity=0.8,
    )  # fmt: skip
    return simulate(
        Scenario(
            summary="A fan fails on one GPU of many",
            seed=7,
            duration=duration,
            cluster=Cluster(nodes=shape.nodes),
            job=job,
            faults=(Fault(at=fault, cooling=5.1, on=Where(node=node, gpu=int(gpu))),),
        ),
        end,
    )


def write(world: World, path: Path) -> tuple[int, int]:
    """Write what is kept as OpenMetrics and return the number of series and of samples."""
    wanted: dict[str, list[Mapping[str, str]]] = {INFO: [{}]}
    for name, labels in SIGNALS:
        wanted.setdefault(name, []).append(labels)
    series = samples = 0
    with path.open("w", encoding="utf-8") as stream:
        for name in sorted(wanted):
            metric = world.metrics[name]
            stream.write(f"# TYPE {family_name(metric)} {metric.type}\n")
            for text in _series(metric, wanted[name]):
                stream.write(text)
                series, samples = series + 1, samples + text.count("\n")
        stream.write("# EOF\n")
    return series, samples


def _series(metric: Metric, wanted: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield the text of each series that has one of these label sets; values and times become text once per matrix."""
    times = np.char.mod("%.3f", metric.times)
    for row, labels in enumerate(metric.labels):
        if any(one.items() <= labels.items() for one in wanted):
            name, there = selector(labels), metric.there[row]
            values = map(repr, metric.values[row][there].tolist())
            yield "".join([f"{name} {v} {t}\n" for v, t in zip(values, times[row][there].tolist(), strict=True)])
