"""Operation-level traces of training jobs as the series that a training exporter would have shown.

A row of a trace is one operation: who, in which step, from when and for how long. An exporter adds the durations of
each phase up and counts steps, and is scraped while it does so.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
from memory_store import MemoryStore, Samples, series

from rca.model import Floats

SCRAPE = 15.0
EPOCH = 1_780_000_000.0
TIMERS = {
    "forward-compute": ("train_phase_duration_seconds_sum", {"phase": "forward_compute"}),
    "backward-compute": ("train_phase_duration_seconds_sum", {"phase": "backward_compute"}),
    "grads-reduce-scatter": ("train_collective_wait_seconds_total", {"group": "dp"}),
    "params-all-gather": ("train_collective_wait_seconds_total", {"group": "dp"}),
    "forward-recv": ("train_collective_wait_seconds_total", {"group": "pp"}),
    "backward-recv": ("train_collective_wait_seconds_total", {"group": "pp"}),
}
"""The operations that an exporter has timers for, and under which name."""


class Trace(NamedTuple):
    """A job by step: `length` (S,) seconds of each step, `spent` (R, S) seconds by metric and labels of each rank."""

    job: str
    ranks: tuple[int, ...]
    places: Mapping[int, tuple[int, int]]
    length: Floats
    spent: Mapping[tuple[str, tuple[tuple[str, str], ...]], Floats]


def read(path: Path, job: str, repeats: int = 1) -> Trace:
    """Read a trace. `repeats` plays its steps so often, where a few are less than a window holds."""
    columns = pq.read_table(path).to_pydict()
    ranks, rank = np.unique(columns["rank"], return_inverse=True)
    steps, step = np.unique(columns["step"], return_inverse=True)
    duration, kind = np.array(columns["duration"], dtype=np.float64), np.array(columns["optype"])
    length = np.zeros(len(steps))
    np.maximum.at(length, step, np.array(columns["start_ts"], dtype=np.float64) + duration)
    spent: dict[tuple[str, tuple[tuple[str, str], ...]], Floats] = {}
    for operation, (name, labels) in TIMERS.items():
        matrix = spent.setdefault((name, tuple(labels.items())), np.zeros((len(ranks), len(steps))))
        rows = kind == operation
        np.add.at(matrix, (rank[rows], step[rows]), duration[rows])
    places = dict(zip(columns["rank"], zip(columns["dp_rank"], columns["stage"], strict=True), strict=True))
    return Trace(
        job,
        tuple(ranks.tolist()),
        places,
        np.tile(length, repeats),
        {name: np.tile(matrix, repeats) for name, matrix in spent.items()},
    )


def watched(trace: Trace) -> tuple[MemoryStore, float]:
    """Return what Prometheus would hold of a trace, and when it ends."""
    ended = np.cumsum(trace.length)
    times = np.arange(0.0, ended[-1] + SCRAPE, SCRAPE)
    done = np.searchsorted(ended, times, side="right")
    return MemoryStore(list(_series(trace, EPOCH + times, done))), EPOCH + times[-1]


def _series(trace: Trace, times: Floats, done: np.ndarray) -> Iterator[tuple[dict[str, str], Samples]]:
    def counter(per_step: Floats) -> Samples:
        return np.stack([times, np.concatenate([[0.0], np.cumsum(per_step)])[done]], axis=1)

    for row, rank in enumerate(trace.ranks):
        labels = {"job_id": trace.job, "rank": str(rank)}
        dp, pp = map(str, trace.places[rank])
        place = {"dp_rank": dp, "pp_rank": pp, "tp_rank": "0", "node": f"node-{row // 8:02d}", "gpu": str(row % 8)}
        ones = np.ones_like(trace.length)
        yield series("train_rank_info", {**labels, **place}, np.stack([times, np.ones_like(times)], axis=1))
        yield series("train_steps_total", labels, counter(ones))
        yield series("train_step_duration_seconds_sum", labels, counter(trace.length))
        yield series("train_step_duration_seconds_count", labels, counter(ones))
        for (name, extra), matrix in trace.spent.items():
            yield series(name, {**labels, **dict(extra)}, counter(matrix[row]))
