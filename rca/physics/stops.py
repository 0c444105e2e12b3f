"""What stops a job: one rank that does not come, and all others spin in their collectives."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rca.physics.conditions import Conditions, Plant
from rca.physics.layout import Layout


@dataclass(frozen=True, eq=False)
class Stop:
    """Ranks (R,) that sleep on their host with their memory kept, ranks without a process, and ranks that spin in another
    collective than the others.
    """

    asleep: NDArray[np.bool_]
    dead: NDArray[np.bool_]
    odd: NDArray[np.bool_]
    cut: bool

    @property
    def halted(self) -> bool:
        """Say whether no step can end."""
        return self.cut or bool((self.asleep | self.dead | self.odd).any())


def stop(plant: Plant, row: int, layout: Layout, conditions: Conditions) -> Stop:
    """Return what stops a job; a port that is down cuts off only jobs that span several nodes."""
    ranks = plant.ranks(row)
    dead = (
        (conditions["gone"][ranks] > 0)
        | (conditions["out_of_memory"][ranks] > 0)
        | (conditions["down"][layout.node] > 0)
        | (conditions["lost"][layout.gpu] > 0)
    )
    asleep = (
        (conditions["stuck"][ranks] > 0)
        | (conditions["frozen"][layout.gpu] > 0)
        | waits_for_mount(plant, layout, conditions)
    )
    cut = len(np.unique(layout.node)) > 1 and bool((conditions["port_down"][layout.gpu] > 0).any())
    odd = (conditions["mismatched"][ranks] > 0) & ~dead & ~asleep
    return Stop(asleep & ~dead, dead, odd, cut)


def waits_for_mount(plant: Plant, layout: Layout, conditions: Conditions) -> NDArray[np.bool_]:
    """Mark the ranks (R,) that read their input from a mount that answers nothing."""
    frozen = np.zeros(len(plant.hardware.nodes), dtype=bool)
    frozen[plant.hardware.mount_node[conditions["mount_frozen"][plant.hardware.mount_export] > 0]] = True
    reads: NDArray[np.bool_] = layout.reads & frozen[layout.node]
    return reads if layout.job.data.source == "mount" else np.zeros_like(reads)
