"""What stops a job: one rank that does not come, and all others spin in their collectives."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rca.physics.conditions import Conditions, Plant
from rca.physics.layout import Layout


@dataclass(frozen=True, eq=False)
class Stop:
    """Ranks (R,) that sleep on their host with their memory kept, and ranks without a process."""

    asleep: NDArray[np.bool_]
    dead: NDArray[np.bool_]
    cut: bool

    @property
    def halted(self) -> bool:
        """Say whether no step can end."""
        return self.cut or bool(self.asleep.any() or self.dead.any())


def stop(plant: Plant, row: int, layout: Layout, conditions: Conditions) -> Stop:
    """Return what stops a job; a port that is down cuts off only jobs that span several nodes."""
    ranks = plant.ranks(row)
    dead = (
        (conditions["gone"][ranks] > 0) | (conditions["down"][layout.node] > 0) | (conditions["lost"][layout.gpu] > 0)
    )
    asleep = (conditions["stuck"][ranks] > 0) | (conditions["frozen"][layout.gpu] > 0)
    cut = len(np.unique(layout.node)) > 1 and bool((conditions["port_down"][layout.gpu] > 0).any())
    return Stop(asleep & ~dead, dead, cut)
