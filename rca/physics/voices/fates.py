"""What becomes of each rank when a job stops: who says nothing, who dies with words of its own, and who gives up when.

All ranks wait in one collective or another for those that do not come. A rank of the same tensor (then context) group
waits there, those of other stages of its replica in their pipeline, all others where the gradients are summed. So a wait
spreads over the whole job, and each rank waits in the one communicator that it has come to.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import dijkstra

from rca.library import seconds
from rca.model import Floats
from rca.physics.cluster import Ints
from rca.physics.host import thrashed
from rca.physics.layout import Layout
from rca.physics.run import JobTrace, Trace, generator
from rca.physics.stops import Stop, stop, waits_for_mount
from rca.physics.voices.groups import CONTEXT, DATA, PIPELINE, TENSOR, WORLD, Group, groups
from rca.physics.written import Logs

LIVES, SLEEPS, BLOCKED, FROZEN, VANISHES, KILLED, STARVED, MEMORY, LAUNCH, ENDED, CLOSED, UNREACHABLE, TIMES_OUT = (
    range(13)
)
"""It goes on; it sleeps, is in an uninterruptible read, or its driver does not come back; its node loses power; it is killed,
or killed by its host for want of memory; its GPU has no memory left, or does not answer; the launcher ends it; a peer has
closed the connection, or does not answer; its watchdog gives up."""
DIES = (KILLED, STARVED, MEMORY, LAUNCH)
PATIENCE = {"2.1": 1800.0, "2.4": 600.0, "2.6": 600.0}
"""Seconds that ProcessGroupNCCL lets a collective run, by version of PyTorch."""
POLL = 0.1
"""Seconds between two looks of the watchdog."""
HOP = 0.5
"""Seconds from the end of a process to that of a peer whose connection it has closed."""
SIBLINGS = 1.5
"""Seconds until the launcher ends the other ranks of a node, one of which has died,"""
TEARDOWN = 8.0
"""and that a process takes to be gone after its watchdog has given up: gigabytes of it are unmapped."""
RETRIES = 4.096e-6 * 2**20 * 7
"""Seconds until a port gives up sending to one that is gone: NCCL's IB_TIMEOUT of 20, and 7 retries."""
NODE_FAILURE = 300.0
"""Seconds until Slurm takes a node that does not answer for failed: its default SlurmdTimeout."""
_FAINT = 1e-3


class Wait(NamedTuple):
    """In which communicator each rank (R,) waits when it stops, by kind, and since when in seconds of the scenario."""

    kind: NDArray[np.str_]
    since: Floats


@dataclass(frozen=True, eq=False)
class Fates:
    """What becomes of the ranks (R,) of a job: `how`, and `when` in seconds of the scenario its voice ends (inf: never).

    `stopped` is when the job stopped, inf where it did not; `by` (R,) is the rank whose end another saw (-1: none), `odd`
    marks ranks in another collective than the others.
    """

    stopped: float
    how: Ints
    when: Floats
    by: Ints
    wait: Wait
    odd: NDArray[np.bool_]
    groups: dict[str, Group]

    def silent(self) -> Floats:
        """Return (R,): from when on a rank does no step any more."""
        return np.minimum(self.when, self.stopped)


def patience(logs: Logs) -> float:
    """Return how many seconds a collective may run."""
    return PATIENCE[logs.torch] if logs.timeout is None else seconds(logs.timeout)


def fates(trace: Trace, job: JobTrace) -> Fates:
    """Say what becomes of every rank of a job."""
    layout, made = job.layout, dict(groups(job.layout))
    count = len(layout)
    nobody = np.full(count, -1)
    wait = Wait(np.full(count, WORLD), np.full(count, np.inf))
    stops = [stop(trace.plant, job.plan.row, layout, held) for held in trace.conditions]
    begin, end = _stopped(trace, job, stops)
    if begin == end:
        alive = np.full(count, np.inf)
        return Fates(np.inf, np.full(count, LIVES), alive, nobody, wait, np.zeros(count, dtype=bool), made)
    stopped = float(trace.edges[begin])
    out, absent = _out(trace, job, stops, (begin, end))
    first = stops[trace.segment[begin]]
    there = ~(first.asleep | first.dead)
    kind = _kinds(layout, made, ~there | first.odd, first.cut)
    if DATA in made:
        kind[first.odd & (kind == PIPELINE)] = DATA  # a batch of sends and receives is no collective
    wait = Wait(kind, _since(job, trace, begin, kind))
    end_of = _End(trace, job, stopped, wait, made)
    how, when, by = end_of.decide(absent, out)
    return Fates(stopped, how, when, by, wait, first.odd, made)


def _stopped(trace: Trace, job: JobTrace, stops: list[Stop]) -> tuple[int, int]:
    """Return the rows (begin, end) of the stop that ends the job, or lasts at the end: others leave nothing but a gap."""
    halted = np.array([one.halted for one in stops])[trace.segment] & (job.state >= 0)
    dead = np.array([one.dead.any() for one in stops])[trace.segment]
    edge = np.flatnonzero(np.diff(np.concatenate([[0], halted.astype(np.int8), [0]])))
    for begin, end in zip(edge[::2].tolist(), edge[1::2].tolist(), strict=True):
        lasts = trace.edges[end] - trace.edges[begin]
        if dead[begin:end].any() or end == len(halted) or lasts >= patience(job.layout.job.logs or Logs()):
            return begin, end
    return 0, 0


def _out(trace: Trace, job: JobTrace, stops: list[Stop], rows: tuple[int, int]) -> tuple[Floats, Ints]:
    """Return when each rank (R,) falls silent by itself in a stop, inf where it does not, and how."""
    layout, plant = job.layout, trace.plant
    own = plant.ranks(job.plan.row)
    out, how = np.full(len(layout), np.inf), np.full(len(layout), LIVES)
    no_memory = thrashed(trace)
    for segment in dict.fromkeys(trace.segment[slice(*rows)].tolist()):
        held, now = trace.conditions[segment], stops[segment]
        row = max(int(np.flatnonzero(trace.segment == segment)[0]), rows[0])
        short = (no_memory[row] > 0)[layout.node]
        told = [
            (now.asleep, SLEEPS),
            (waits_for_mount(plant, layout, held), BLOCKED),
            (held["frozen"][layout.gpu] > 0, FROZEN),
            (now.dead, KILLED),
            (now.dead & short, STARVED),
            (held["out_of_memory"][own] > 0, MEMORY),
            (held["lost"][layout.gpu] > 0, LAUNCH),
            (held["down"][layout.node] > 0, VANISHES),
        ]
        fresh = (now.asleep | now.dead) & np.isinf(out)
        for marked, what in told:
            how[fresh & marked] = what
        out[fresh] = trace.edges[row]
    return out, how


def _kinds(layout: Layout, made: dict[str, Group], missing: NDArray[np.bool_], cut: bool) -> NDArray[np.str_]:
    """Return the kind of the communicator in which each rank waits for those that are missing."""
    grid = missing.reshape(layout.shape)
    kind = np.full(layout.shape, DATA if DATA in made else PIPELINE if PIPELINE in made else WORLD, dtype="<U8")
    if cut and not missing.any():
        return kind.reshape(-1)
    replica, cell = grid.any(axis=(0, 2, 3), keepdims=True), grid.any(axis=(2, 3), keepdims=True)
    levels = (
        (PIPELINE, replica), (TENSOR, cell), (CONTEXT, grid.any(axis=2, keepdims=True)), (TENSOR, grid.any(axis=3, keepdims=True)),
    )  # fmt: skip
    for name, where in levels:
        if name in made:
            kind[np.broadcast_to(where, layout.shape)] = name
    return kind.reshape(-1)


def _since(job: JobTrace, trace: Trace, begin: int, kind: NDArray[np.str_]) -> Floats:
    """Return when each rank came to where it waits: at once, or when its own part of the step was done."""
    stopped = float(trace.edges[begin])
    step = float(job.steps["seconds"][max(begin - 1, 0)])
    started = stopped - (job.progress[begin] % 1.0) * step
    summed = max(stopped, started + step - job.plan.sync - job.plan.optimizer)
    dice = generator(trace.plant.scenario.seed, f"waits {job.plan.row}").random(len(kind))
    micro_batch = step / job.layout.job.micro_batches
    apart: Floats = np.where(kind == PIPELINE, micro_batch, 0.05) * dice
    at: Floats = np.where(np.isin(kind, (TENSOR, CONTEXT, PIPELINE)), stopped, summed) + apart
    return at


class _End(NamedTuple):
    """How a stop ends."""

    trace: Trace
    job: JobTrace
    stopped: float
    wait: Wait
    made: dict[str, Group]

    def decide(self, absent: Ints, out: Floats) -> tuple[Ints, Floats, Ints]:
        """Return (R,) what becomes of each rank, when its voice ends, and whose end it saw."""
        logs = self.job.layout.job.logs or Logs()
        dice = generator(self.trace.plant.scenario.seed, f"ends {self.job.plan.row}").random((2, len(out)))
        how, when, by = absent.copy(), out.copy(), np.full(len(out), -1)
        died = np.isin(absent, DIES)
        when[died] += dice[0][died]
        waits = absent == LIVES
        gives_up = self.wait.since + patience(logs) + POLL * dice[0]
        how[waits], when[waits] = TIMES_OUT, gives_up[waits]
        if logs.peers == "killed":
            failed = np.where(absent == VANISHES, out + NODE_FAILURE, np.where(died, out, np.inf)).min()
            told = np.where(failed + 2.0 + dice[1] < when, failed + 2.0 + dice[1], np.inf)
            seen, by_launcher = np.full(len(out), -1), waits & np.isfinite(told)
        else:
            told, seen = self._spread(absent, out)
            told += 0.3 * dice[1]
            by_launcher = waits & (seen >= 0) & (self.job.layout.node[seen] == self.job.layout.node)
        sooner = waits & (told < when)
        when[sooner], by[sooner] = told[sooner], seen[sooner]
        how[sooner] = np.where(by_launcher[sooner], ENDED, CLOSED)
        lost = sooner & ~by_launcher & ((by < 0) | (absent[by] == VANISHES))
        how[lost] = UNREACHABLE
        return how, when, by

    def _spread(self, absent: Ints, out: Floats) -> tuple[Floats, Ints]:
        """Return (R,) when the end of others reaches each rank, inf where it never does, and whose end that is.

        An edge leads from a rank that ends to one that sees it: peers in the communicator that it waits in, and ranks of
        the same node, which the launcher ends. Node R stands for what brings the first of them to an end.
        """
        layout, count = self.job.layout, len(out)
        died = np.isin(absent, DIES)
        sources, offsets = np.flatnonzero(died), out[died] - self.stopped
        edges = [(np.full(len(sources), count), sources, offsets + _FAINT)]
        if (layout.job.logs or Logs()).peers == "closed":
            gone = np.flatnonzero(absent == VANISHES)
            edges.append((np.full(len(gone), count), gone, out[gone] - self.stopped + _FAINT))
            edges += self._seen(absent)
            held = self.trace.conditions[self.trace.segment[np.searchsorted(self.trace.edges, self.stopped)]]
            cut = np.flatnonzero(held["port_down"][layout.gpu] > 0)
            edges.append((np.full(len(cut), count), cut, np.full(len(cut), RETRIES)))
        edges.append(self._siblings(absent))
        tail, head, cost = (np.concatenate(part) for part in zip(*edges, strict=True))
        graph = coo_array((cost, (tail, head)), shape=(count + 1, count + 1)).tocsr()
        told, before = dijkstra(graph, indices=np.array([count]), return_predecessors=True)
        seen: Ints = before[0, :count].astype(np.int64)
        return self.stopped + told[0, :count], np.where((seen >= 0) & (seen < count), seen, -1)

    def _seen(self, absent: Ints) -> list[tuple[Ints, Ints, Floats]]:
        """Return the edges to peers on other nodes; a node without power closes no connection, the port gives up on it."""
        found = []
        node = self.job.layout.node
        for kind, group in self.made.items():
            for peer in group.beside():
                here = np.flatnonzero((self.wait.kind == kind) & (absent == LIVES) & (peer >= 0) & (node[peer] != node))
                late = self.wait.since[here] - self.stopped
                late = late * np.isin(absent[peer[here]], (*DIES, VANISHES))
                cost = np.where(absent[peer[here]] == VANISHES, RETRIES, HOP) + late
                found.append((peer[here], here, cost))
        return found

    def _siblings(self, absent: Ints) -> tuple[Ints, Ints, Floats]:
        """Return the edges between ranks of the same node."""
        layout = self.job.layout
        same = [np.flatnonzero(layout.node == node) for node in np.unique(layout.node)]
        pairs = [np.meshgrid(one, one, indexing="ij") for one in same]
        tail, head = (np.concatenate([pair[side].reshape(-1) for pair in pairs]) for side in (0, 1))
        kept = (tail != head) & (absent[head] == LIVES) & (absent[tail] != VANISHES)
        tail, head = tail[kept], head[kept]
        return tail, head, np.where(np.isin(absent[tail], DIES), SIBLINGS, TEARDOWN)
