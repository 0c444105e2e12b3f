"""What launches a job writes: torchrun, one agent a node, started by Slurm's srun, whose lines stand between.

Sources: torch/distributed/elastic/multiprocessing/{api,errors}.py; srun and slurmstepd of Slurm.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rca.physics.cluster import Ints
from rca.physics.run import JobTrace, Trace
from rca.physics.voices.fates import (
    CLOSED,
    DIES,
    ENDED,
    KILLED,
    LAUNCH,
    LIVES,
    MEMORY,
    NODE_FAILURE,
    STARVED,
    TIMES_OUT,
    UNREACHABLE,
    VANISHES,
    Fates,
)
from rca.physics.voices.stamps import Said, moment
from rca.physics.written import Logs

_CODES = {KILLED: -9, STARVED: -9, MEMORY: 1, LAUNCH: -6, CLOSED: -6, UNREACHABLE: -6, TIMES_OUT: -6}
_SIGNALS = {-9: "SIGKILL", -6: "SIGABRT"}
_GONE_AFTER = {MEMORY: 1.0, LAUNCH: 1.0, KILLED: 0.1, STARVED: 0.1, TIMES_OUT: 8.0, CLOSED: 4.0, UNREACHABLE: 4.0}
"""Seconds from the last word of a process to its end."""
_SAME_LOOK = 0.1
_JOB = 4711
_RULE, _LINE = "=" * 60, "-" * 60
_SENDS = {"2.4": 858, "2.6": 897}
_FAILS = {"2.4": 833, "2.6": 869}
_HELP = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"


def pids(trace: Trace, job: JobTrace) -> Ints:
    """Return the process id of each rank (R,); the agent of its node has the one 40 below the first."""
    layout = job.layout
    slot = trace.plant.hardware.slot[layout.gpu]
    found: Ints = 2140 + 37 * layout.node % 5000 + slot
    return found


class Failed(NamedTuple):
    """A process that its agent has seen fail."""

    rank: int
    local: int
    pid: int
    code: int
    time: float


class Launcher:
    """What stands in the log of a job's launcher; `epoch` is when the scenario begins, in unix seconds."""

    def __init__(self, trace: Trace, job: JobTrace, told: Fates, epoch: float) -> None:
        self._trace, self._job, self._told, self._epoch = trace, job, told, epoch
        self._logs = job.layout.job.logs or Logs()
        self._torch = self._logs.torch
        self._pids = pids(trace, job)
        self._slot = trace.plant.hardware.slot[job.layout.gpu]
        self._gone = np.array([_GONE_AFTER.get(how, 0.0) for how in told.how.tolist()]) + told.when

    def lines(self) -> Iterator[Said]:
        """Yield the lines of each node's agent and of Slurm, not yet in the order of time."""
        told = self._told
        if not np.isfinite(told.stopped):
            return
        if self._logs.peers == "killed" and (told.how == ENDED).any():
            yield from self._cancelled()
            return
        yield from self._lost_nodes()
        for node in np.unique(self._job.layout.node).tolist():
            ranks = np.flatnonzero(self._job.layout.node == node)
            failed = [rank for rank in ranks.tolist() if int(told.how[rank]) in _CODES]
            if failed and not (told.how[ranks] == VANISHES).any():
                yield from self._agent(node, ranks.tolist(), min(failed, key=lambda rank: self._gone[rank]))

    def _lost_nodes(self) -> Iterator[Said]:
        for node, at in self._vanished().items():
            text = f"srun: error: Node failure on {self._trace.plant.hardware.nodes[node]}"
            yield Said(self._epoch + at + NODE_FAILURE, text)

    def _vanished(self) -> Mapping[int, float]:
        layout, told = self._job.layout, self._told
        gone = np.flatnonzero(told.how == VANISHES)
        return {int(layout.node[rank]): float(told.when[rank]) for rank in gone.tolist()}

    def _cancelled(self) -> Iterator[Said]:
        """Yield how Slurm ends the whole step."""
        told, names = self._told, self._trace.plant.hardware.nodes
        at = self._epoch + float(told.when[told.how == ENDED].min()) - 0.5
        vanished = list(self._vanished())
        reason = "TASK FAILURE"
        if vanished:
            reason = "NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"
            yield from (Said(at, f"srun: error: Node failure on {names[node]}") for node in vanished)
        for rank in np.flatnonzero(np.isin(told.how, DIES)).tolist():
            node = int(self._job.layout.node[rank])
            yield Said(at, f"srun: error: {names[node]}: task {node}: Exited with exit code 1")
        yield Said(at + 0.1, "srun: Job step aborted: Waiting up to 62 seconds for job step to finish.")
        first = names[int(self._job.layout.node[0])]
        cancelled = f"STEP {_JOB}.0 ON {first} CANCELLED AT {moment(at + 0.1):%Y-%m-%dT%H:%M:%S} DUE TO {reason}"
        yield Said(at + 0.1, f"slurmstepd: error: *** {cancelled} ***")

    def _agent(self, node: int, ranks: Sequence[int], first: int) -> Iterator[Said]:
        """Yield how the agent of a node ends, one of whose processes has failed."""
        told = self._told
        at = float(self._gone[first]) + _SAME_LOOK
        dead = [rank for rank in ranks if int(told.how[rank]) in _CODES and self._gone[rank] <= at]
        failed = [self._failed(rank) for rank in sorted(dead, key=lambda rank: self._gone[rank])]
        agent, now = int(self._pids[ranks[0]]) - 40 - int(self._slot[ranks[0]]), self._epoch + at
        for rank in ranks:
            if rank not in dead and int(told.how[rank]) != LIVES:
                sending = f"Sending process {self._pids[rank]} closing signal SIGTERM"
                yield Said(now, self._head(now, "W", agent) + sending)
        one = failed[0]
        ended = f"failed (exitcode: {one.code}) local_rank: {one.local} (pid: {one.pid}) of binary: /usr/bin/python3"
        now += 0.4
        yield Said(now, self._head(now, "E", agent) + ended)
        yield from (Said(now, line) for line in (*_RAISED, *self._block(node, failed)))
        name = self._trace.plant.hardware.nodes[node]
        yield Said(
            now + 0.6, f"srun: error: {name}: task {node - int(self._job.layout.node[0])}: Exited with exit code 1"
        )

    def _failed(self, rank: int) -> Failed:
        code = _CODES[int(self._told.how[rank])]
        return Failed(
            rank, int(self._slot[rank]), int(self._pids[rank]), code, self._epoch + float(self._gone[rank]) + _SAME_LOOK
        )

    def _block(self, node: int, failed: Sequence[Failed]) -> Iterator[str]:
        name = self._trace.plant.hardware.nodes[node]
        yield from (_RULE, "pretrain_gpt.py FAILED", _LINE, "Failures:")
        for place, one in enumerate(failed[1:], 1):
            yield from self._entry(place, one, name)
        if len(failed) == 1:
            yield "  <NO_OTHER_FAILURES>"
        yield from (_LINE, "Root Cause (first observed failure):")
        yield from self._entry(0, failed[0], name)
        yield _RULE

    def _entry(self, place: int, one: Failed, node: str) -> Iterator[str]:
        yield f"[{place}]:"
        yield f"  time      : {moment(one.time):%Y-%m-%d_%H:%M:%S}"
        yield f"  host      : {node}"
        yield f"  rank      : {one.rank} (local_rank: {one.local})"
        yield f"  exitcode  : {one.code} (pid: {one.pid})"
        yield "  error_file: <N/A>"
        signal = f"Signal {-one.code} ({_SIGNALS.get(one.code)}) received by PID {one.pid}"
        yield f"  traceback : {signal if one.code < 0 else _HELP}"

    def _head(self, time: float, level: str, agent: int) -> str:
        """Return what torchrun's logging puts in front of a line."""
        at = moment(time)
        if self._torch == "2.1":
            name = {"W": "WARNING", "E": "ERROR"}[level]
            return f"[{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03d}] torch.distributed.elastic.multiprocessing.api: [{name}] "
        number = (_SENDS if level == "W" else _FAILS)[self._torch]
        source = f"torch/distributed/elastic/multiprocessing/api.py:{number}"
        return f"{level}{at:%m%d %H:%M:%S}.{at.microsecond // 1000:03d}000 {agent} {source}] "


_RAISED = (
    "Traceback (most recent call last):",
    '  File "/usr/local/bin/torchrun", line 8, in <module>',
    "    sys.exit(main())",
    '  File "/usr/local/lib/python3.10/dist-packages/torch/distributed/run.py", line 918, in main',
    "    run(args)",
    '  File "/usr/local/lib/python3.10/dist-packages/torch/distributed/launcher/api.py", line 269, in launch_agent',
    "    raise ChildFailedError(",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
)
