"""The communicators of a job, as Megatron makes them: who is in which, by which number and name PyTorch knows it.

Every rank calls for all of them in the same order, so the number that is unique in a job (`guid`) counts them all, and
that inside a process (`own`) only those that the rank is in. Source: megatron/core/parallel_state.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rca.physics.cluster import Ints
from rca.physics.layout import Layout

WORLD, DATA, CONTEXT, TENSOR, PIPELINE = "world", "data", "context", "tensor", "pipeline"
_AXES = {DATA: 1, CONTEXT: 2, TENSOR: 3, PIPELINE: 0}
_NAMES = {
    WORLD: "default_pg",
    DATA: "DATA_PARALLEL_GROUP",
    CONTEXT: "CONTEXT_PARALLEL_GROUP",
    TENSOR: "TENSOR_MODEL_PARALLEL_GROUP",
    PIPELINE: "PIPELINE_MODEL_PARALLEL_GROUP",
}


@dataclass(frozen=True, eq=False)
class Group:
    """The communicators of one kind: `members` (groups, size), the `guid` (R,) of each rank's and its `place` (R,) in it."""

    kind: str
    name: str
    own: int
    members: Ints
    guid: Ints
    place: Ints

    @property
    def size(self) -> int:
        """Return how many ranks each has."""
        return int(self.members.shape[1])

    def beside(self) -> tuple[Ints, Ints]:
        """Return who is before and after each rank (R,): a pipeline has ends (-1), all else is a ring."""
        before, after = np.roll(self.members, 1, axis=1), np.roll(self.members, -1, axis=1)
        if self.kind == PIPELINE:
            before[:, 0] = after[:, -1] = -1
        found = np.full((2, len(self.guid)), -1)
        found[0][self.members], found[1][self.members] = before, after
        return found[0], found[1]


def groups(layout: Layout) -> Mapping[str, Group]:
    """Return the communicators by their kind; a job that only sums gradients does so among all ranks, in `world`.

    >>> from rca.physics.cluster import assemble
    >>> from rca.physics.layout import place
    >>> from rca.physics.written import Cluster, Job
    >>> made = groups(place(Job(id="a", tp=2, dp=4, pp=2), assemble(Cluster(nodes=2), np.random.default_rng(0))))
    >>> made["tensor"].guid[:6].tolist(), made["tensor"].place[:6].tolist(), made["tensor"].own
    ([5, 5, 6, 6, 7, 7], [0, 1, 0, 1, 0, 1], 2)
    >>> made["data"].members[0].tolist()
    [0, 2, 4, 6]
    """
    everybody = np.arange(len(layout))
    made = {WORLD: Group(WORLD, _NAMES[WORLD], 0, everybody[None, :], np.zeros_like(everybody), everybody)}
    count = 1
    for kind, axis in _AXES.items():
        size = layout.shape[axis]
        if size == 1 or size == len(layout):
            continue
        members = np.moveaxis(everybody.reshape(layout.shape), axis, -1).reshape(-1, size)
        guid, place = np.empty_like(everybody), np.empty_like(everybody)
        guid[members] = count + np.arange(len(members))[:, None]
        place[members] = np.arange(size)
        made[kind] = Group(kind, _NAMES[kind], len(made), members, guid, place)
        count += len(members)
    return made
