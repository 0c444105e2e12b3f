"""The JSON lines of `rca.hook`: a rank starts, steps, saves and ends; a step that waited long for its input is told."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from rca.hook import logs
from rca.library import seconds
from rca.model import Floats
from rca.physics.cluster import Ints
from rca.physics.layout import ABSENT, STATES
from rca.physics.run import DT, JobTrace, Trace, generator
from rca.physics.written import Logs

MOST = 60e6
"""Bytes of a job's files that are not exceeded by much where nobody says which steps have a line,"""
_LINE = 260.0
"""as one has about so many."""
LONG_BEFORE = 3600.0 * 30.0
"""Seconds for which a job has run that no warm-up begins."""
_ANYBODY = 987_654_321
"""Stands for the rank in lines that are the same on several."""
_TURNS = 8
"""Ranks of a node end a step one after the other, a millisecond apart."""
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
    every = (job.layout.job.logs or Logs()).every or max(int(np.ceil(count / most)), 1)
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
        self._steps: dict[tuple[int, bytes], list[tuple[float, bytes]]] = {}
        self._stage, self._replica = job.layout.index("pp"), job.layout.index("dp")
        self._saves = list(self._saved())
        self._mark = f'"rank":{_ANYBODY}'.encode()

    def of(self, rank: int, until: float, pid: int) -> bytes:
        """Return the lines of a rank before a time in seconds of the scenario."""
        begun, ended = started(self._trace, self._job), finished(self._trace, self._job)
        if begun is None:
            return b""
        late = 1e-3 * (rank % 97)
        parts = [self._begin(rank, begun + late, pid)] if begun < until else []
        lines = self._lines(rank)
        count = bisect_left(lines, until, key=lambda one: one[0])
        shared = b"".join(line for _, line in lines[:count])
        parts.append(shared.replace(self._mark, b'"rank":%d' % rank))
        if ended is not None and ended < until:
            parts.append(self._line(ended + late, "RANK_END", f"rank {rank} ends", {}, rank))
        return b"".join(parts)

    def _begin(self, rank: int, begun: float, pid: int) -> bytes:
        layout = self._job.layout
        node = self._trace.plant.hardware.nodes[layout.node[rank]]
        data = {"world_size": len(layout), "node": node, "pid": pid}
        return self._line(begun, "RANK_START", f"rank {rank} of {len(layout)} starts", data, rank)

    def _lines(self, rank: int) -> list[tuple[float, bytes]]:
        """Return what a rank has to say between its start and its end, once for all that wait as long for their input."""
        waited = self._waited(rank)
        key = (rank % _TURNS, waited.tobytes())
        if key not in self._steps:
            told = [*self._stepped(waited, rank % _TURNS), *self._saves]
            self._steps[key] = sorted(told, key=lambda one: one[0])
        return self._steps[key]

    def _waited(self, rank: int) -> Floats:
        """Return how long each step waited for the input that the rank reads; who reads none waits for the others."""
        layout, row = self._job.layout, self._course.row
        if not layout.reads[rank]:
            return np.zeros(len(row))
        waited: Floats = self._job.steps["data"][row, self._stage[rank], self._replica[rank]]
        return waited

    def _stepped(self, waits: Floats, turn: int) -> Iterator[tuple[float, bytes]]:
        usual = max(seconds(self._job.layout.job.data.wait), 1e-3)
        columns = (one.tolist() for one in (self._course.number, self._course.ended, self._course.lasted, waits))
        for number, ended, lasted, waited in zip(*columns, strict=True):
            at = ended + 1e-3 * (1 + turn) + 2e-4 * (number % 7)
            told = {"step": float(number), "step_seconds": round(lasted, 6), "data_wait_seconds": round(waited, 6)}
            if waited > max(_LATE * usual, _LEAST * lasted):
                ms = round(waited * 1000.0)
                late = f"step={number} data_load_ms={ms}"
                yield at, self._line(at, "DATA_LOAD_TIME", late, {"step": float(number), "ms": ms})
            text = f"step={number} step_seconds={lasted:.6g} data_wait_seconds={waited:.6g}"
            yield at, self._line(at, "TRAIN_STEP", text, told)

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
            yield at, self._line(at, "CHECKPOINT_SAVE", f"checkpoint save took {lasted:.3f} s", told)

    def _line(self, at: float, event: str, message: str, extra: Mapping[str, object], rank: int = _ANYBODY) -> bytes:
        level = "WARN" if event == "DATA_LOAD_TIME" else "INFO"
        return logs.text(logs.Line(self._epoch + at, level, event, message, extra), rank).encode()
