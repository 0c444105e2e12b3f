"""The collective that each rank waits in when a job stops, and how far it has come in its communicator.

A layer of a tensor group sums four times a micro-batch, forward and backward. Parameters are gathered and gradients summed
in a few buckets a step. Point-to-point batches are those of one-forward-one-backward in Megatron, and every rank counts
its own: source: megatron/core/pipeline_parallel/schedules.py.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rca.physics.cluster import Ints
from rca.physics.run import JobTrace, Trace, generator
from rca.physics.voices.fates import BLOCKED, SLEEPS, Fates
from rca.physics.voices.groups import CONTEXT, DATA, PIPELINE, TENSOR, WORLD
from rca.physics.voices.nccl import UNSIZED, Work

_LAYERS, _HIDDEN, _BUCKETS, _BUCKET = 80, 8192, 4, 2**23


class Kind(NamedTuple):
    """The collectives of one kind of communicator: how many a step, which one is next, and what that is."""

    each: Ints
    next: Ints
    operation: str
    sizes: tuple[int, int]


def batches(stages: int, micro_batches: int) -> list[int]:
    """Return how many point-to-point batches a rank of each stage makes in a step.

    >>> batches(4, 8)
    [11, 21, 19, 9]
    """
    found = []
    for stage in range(stages):
        warm = min(stages - stage - 1, micro_batches)
        if stage == 0:
            found.append(warm + micro_batches)
        elif stage == stages - 1:
            found.append(micro_batches + 1)
        else:
            found.append(2 * micro_batches + 2 * warm + 1)
    return found


def works(trace: Trace, job: JobTrace, told: Fates) -> list[Work]:
    """Return what each rank waits in, as its watchdog would tell it."""
    layout = job.layout
    row = int(np.searchsorted(trace.edges, told.stopped))
    done, share = int(job.progress[row]), float(job.progress[row] % 1.0)
    kinds = _kinds(job, share)
    dice = generator(trace.plant.scenario.seed, f"ahead {job.plan.row}").random(len(layout))
    fed = _fed(told, layout.reads)
    found = []
    for rank, kind in enumerate(told.wait.kind.tolist()):
        group, at = told.groups[kind], kinds[kind]
        operation, sizes, ahead = at.operation, at.sizes, 24 if kind == TENSOR else 2
        if fed[rank]:
            operation, sizes, ahead = "BROADCAST", (layout.job.tokens + 1,) * 2, 0
        if told.odd[rank]:
            operation = "_ALLGATHER_BASE" if operation != "_ALLGATHER_BASE" else "ALLREDUCE"
            sizes = (_HIDDEN, _HIDDEN * group.size)
        number = int(at.each[rank]) * done + int(at.next[rank])
        name = (int(group.place[rank]), group.own, int(group.guid[rank]), group.name)
        found.append(Work(rank, *name, number, number + int(dice[rank] * (ahead + 1)), operation, sizes))
    return found


def _fed(told: Fates, reads: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark the ranks that wait for the batch, which the reader of their tensor group has not got."""
    held = reads & np.isin(told.how, (SLEEPS, BLOCKED))
    marked = np.zeros_like(held)
    if TENSOR in told.groups:
        members = told.groups[TENSOR].members
        marked[members[held[members].any(axis=1)]] = True
    waiting: NDArray[np.bool_] = marked & (told.wait.kind == TENSOR)
    return waiting


def _kinds(job: JobTrace, share: float) -> Mapping[str, Kind]:
    layout, written = job.layout, job.layout.job
    count = len(layout)
    layers = max(_LAYERS // written.pp, 1)
    summed = 4 * layers * written.micro_batches
    gathered = summed // 2
    stage = np.array(batches(written.pp, written.micro_batches))[layout.index("pp")]
    size = _HIDDEN * written.tokens // written.cp
    even = -(-_BUCKET // written.dp) * written.dp

    def one(each: Ints | int, after: Ints | int, operation: str, sizes: tuple[int, int]) -> Kind:
        return Kind(np.broadcast_to(each, count), np.broadcast_to(after, count), operation, sizes)

    reduced = one(2 * _BUCKETS, _BUCKETS + 1, "_REDUCE_SCATTER_BASE", (even, even // written.dp))
    alone = written.dp == count
    return {
        TENSOR: one(summed, int(share * summed) + 1, "ALLREDUCE", (size, size)),
        CONTEXT: one(gathered, int(share * gathered) + 1, "_ALLGATHER_BASE", (size, size * written.cp)),
        PIPELINE: one(stage, (share * stage).astype(np.int64) + 1, "COALESCED", (UNSIZED, UNSIZED)),
        DATA: reduced,
        WORLD: one(_BUCKETS if alone else summed, 1, "ALLREDUCE", (_BUCKET, _BUCKET)),
    }
