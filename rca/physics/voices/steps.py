"""The JSON lines of `rca.hook`: a rank starts, steps, saves and ends; a step that waited long for its input is told."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rca.hook import logs
from rca.library import seconds
from rca.model import Floats
from rca.physics.cluster import Ints
from rca.physics.layout import ABSENT, STATES
from rca.physics.run import DT, JobTrace, Trace, generator

MOST = 60e6
"""Bytes of a job's files that are not exceeded by much where nobody says which steps have a line,"""
_LINE = 260.0
"""as one has about so many."""
LONG_BEFORE = 3600.0 * 30.0
"""Seconds for which a job has run that no warm-up begins."""
_ANYBODY = 987_654_321
"""Stands for the rank in lines that are the same on several."""
_LATE, _LEAST = 5.0, 0.1
"""A wait for input is told from so many times the usual, and so much of a step, on."""


class Course(NamedTuple):
    """The steps of a job that have a line: their numbers, when they ended and how long they took, and rows of the trace."""

    number: Ints
    ended: Floats
    lasted: Floats
    row: Ints


def course(trace: Trace, job: JobTrace) -> Course:
    """Return the steps that have a line, in seconds of the scenario."""
    first, last = int(np.floor(job.progress[0])) + 1, int(np.floor(job.progress[-1]))
    count = max(last - first + 1, 0)
    most = MOST / _LINE / len(job.layout)
    every = job.layout.job.logs.every or max(int(np.ceil(count / most)), 1)
    number = np.arange(first, last + 1)
    number = number[number % every == 0]
    ended = np.interp(number, job.progress, trace.edges)
    row = np.clip(np.searchsorted(trace.edges, ended) - 1, 0, len(job.state) - 1)
    dice = generator(trace.plant.scenario.seed, f"timed {job.plan.row}").standard_normal(len(number))
    return Course(number, ended, job.steps["seconds"][row] * (1.0 + 5e-4 * dice), row)


def started(trace: Trace, job: JobTrace) -> float | None:
    """Return when the processes of a job began, None where there never are any."""
    alive = np.flatnonzero(job.state != ABSENT)
    if not len(alive):
        return None
    return float(trace.edges[alive[0]]) if alive[0] > 0 or job.layout.job.warm_up is not None else -LONG_BEFORE


def finished(trace: Trace, job: JobTrace) -> float | None:
    """Return when the processes of a job end in good order, None where they do not."""
    done = np.flatnonzero(job.state == STATES.index("finished"))
    return float(trace.edges[done[0]]) if len(done) else None


class Pages:
    """The lines of all ranks of a job; those that are the same on several are written once."""

    def __init__(self, trace: Trace, job: JobTrace, epoch: float) -> None:
        self._trace, self._job, self._epoch = trace, job, epoch
        self._course = course(trace, job)
        self._steps: dict[tuple[int, int], list[tuple[float, bytes]]] = {}
        self._saves = list(self._saved())
        self._mark = f'"rank":{_ANYBODY}'.encode()

    def of(self, rank: int, until: float, pid: int) -> bytes:
        """Return the lines of a rank before a time in seconds of the scenario."""
        layout = self._job.layout
        begun = started(self._trace, self._job)
        if begun is None:
            return b""
        parts = [self._begin(rank, begun, pid)] if begun < until else []
        lines = self._lines(rank)
        count = len(lines)
        if count and lines[-1][0] >= until:
            count = int(np.searchsorted([time for time, _ in lines], until))
        shared = b"".join(line for _, line in lines[:count])
        parts.append(shared.replace(self._mark, b'"rank":%d' % rank))
        ended = finished(self._trace, self._job)
        if ended is not None and ended < until:
            parts.append(self._line(ended + 1e-3 * (rank % 97), "INFO", "RANK_END", f"rank {rank} ends", {}, rank))
        assert len(layout) > rank
        return b"".join(parts)

    def _begin(self, rank: int, begun: float, pid: int) -> bytes:
        layout = self._job.layout
        node = self._trace.plant.hardware.nodes[layout.node[rank]]
        data = {"world_size": len(layout), "node": node, "pid": pid}
        return self._line(
            begun + 1e-3 * (rank % 97), "INFO", "RANK_START", f"rank {rank} of {len(layout)} starts", data, rank
        )

    def _lines(self, rank: int) -> list[tuple[float, bytes]]:
        """Return what a rank has to say between its start and its end: a reader its own, others what eight of them share."""
        layout = self._job.layout
        reads = bool(layout.reads[rank])
        key = (1, rank) if reads else (0, rank % 8)
        if key not in self._steps:
            told = [*self._stepped(rank if reads else -1, rank % 8), *self._saves]
            self._steps[key] = sorted(told, key=lambda one: one[0])
        return self._steps[key]

    def _stepped(self, reader: int, turn: int) -> Iterator[tuple[float, bytes]]:
        written, layout = self._job.layout.job, self._job.layout
        stage, replica = int(layout.index("pp")[reader]), int(layout.index("dp")[reader])
        data = self._job.steps["data"][self._course.row, stage, replica] if reader >= 0 else None
        usual = max(seconds(written.data.wait), 1e-3)
        for place, (number, ended, lasted) in enumerate(
            zip(self._course.number.tolist(), self._course.ended.tolist(), self._course.lasted.tolist(), strict=True)
        ):
            waited = float(data[place]) if data is not None else 0.0
            at = ended + 1e-3 * (1 + turn) + 2e-4 * (number % 7)
            told = {"step": float(number), "step_seconds": round(lasted, 6), "data_wait_seconds": round(waited, 6)}
            if waited > max(_LATE * usual, _LEAST * lasted):
                ms = round(waited * 1000.0)
                late = f"step={number} data_load_ms={ms}"
                yield at, self._line(at, "WARN", "DATA_LOAD_TIME", late, {"step": float(number), "ms": ms})
            text = f"step={number} step_seconds={lasted:.6g} data_wait_seconds={waited:.6g}"
            yield at, self._line(at, "INFO", "TRAIN_STEP", text, told)

    def _saved(self) -> Iterator[tuple[float, bytes]]:
        """Yield the checkpoints that were written; one that the stop of the job has broken off is none."""
        saving = np.concatenate([[False], self._job.state == STATES.index("save_checkpoint"), [False]])
        changes = np.diff(saving.astype(np.int8))
        begins, ends = np.flatnonzero(changes > 0), np.flatnonzero(changes < 0)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            if end >= len(self._job.state):
                continue
            at, lasted = float(self._trace.edges[end]), (end - begin) * DT - 0.2
            told = {"seconds": round(lasted, 3), "step": int(self._job.progress[end])}
            yield at, self._line(at, "INFO", "CHECKPOINT_SAVE", f"checkpoint save took {lasted:.3f} s", told)

    def _line(
        self, at: float, level: str, event: str, message: str, extra: dict[str, object], rank: int = _ANYBODY
    ) -> bytes:
        return logs.text(logs.Line(self._epoch + at, level, event, message, extra), rank).encode()
