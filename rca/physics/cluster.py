"""The hardware of a scenario, as arrays: one row a node, a GPU (with the NIC beside it), a mount.

Figures of GPU models: nvidia-smi dumps in public repositories for clocks, limits and thresholds; idle and spin power
and the power of a full load at maximum clock are field values.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rca.model import Floats
from rca.physics.written import Cluster

Ints = NDArray[np.int64]
POWER_EXPONENT = 2.4  # dynamic power over clock near the power limit: voltage rises with frequency


class GpuModel(NamedTuple):
    """What a GPU model can do: MHz, watts, degrees Celsius, MiB, bytes a second."""

    name: str
    max_clock: float
    idle_clock: float
    memory_clock: float
    power_limit: float
    idle_power: float
    spin_power: float
    full_power: float
    max_op: float
    slowdown: float
    memory_max_op: float
    pcie_generation: float
    memory: float
    port_rate: float


# fmt: off
MODELS = {
    "A100": GpuModel(
        "NVIDIA A100-SXM4-80GB", 1410.0, 210.0, 1593.0, 400.0, 60.0, 30.0, 405.0,
        85.0, 89.0, 95.0, 4.0, 81920.0, 25e9,
    ),
    "H100": GpuModel(
        "NVIDIA H100 80GB HBM3", 1980.0, 345.0, 2619.0, 700.0, 75.0, 60.0, 840.0,
        87.0, 89.0, 95.0, 5.0, 81559.0, 50e9,
    ),
}
# fmt: on


@dataclass(frozen=True, eq=False)
class Hardware:
    """All that stands in the cluster; GPU g is slot `slot[g]` of node `node[g]`, NIC g stands beside it.

    `full_power` (G,) is what a chip draws at maximum clock under full load: bad silicon draws more, and so reaches a
    lower clock at the limit. `resistance` (G,) is kelvin per watt to the air of temperature `air` (G,).
    """

    model: GpuModel
    nodes: tuple[str, ...]
    node: Ints
    slot: Ints
    full_power: Floats
    resistance: Floats
    air: Floats
    exports: tuple[str, ...]
    mount_node: Ints
    mount_export: Ints

    def nominal_clock(self, intensity: float = 1.0) -> float:
        """Return the clock in MHz that a median chip holds at the power limit under kernels of this power.

        >>> round(assemble(Cluster(nodes=1), np.random.default_rng(0)).nominal_clock())
        1751
        """
        room = (self.model.power_limit - self.model.idle_power) / (self.model.full_power * intensity)
        return float(min(1.0, room ** (1.0 / POWER_EXPONENT)) * self.model.max_clock)


def assemble(cluster: Cluster, rng: np.random.Generator) -> Hardware:
    """Build the hardware with its manufacturing spread."""
    model = MODELS[cluster.model]
    count = cluster.nodes * cluster.gpus
    slot = np.tile(np.arange(cluster.gpus), cluster.nodes)
    names = tuple(f"node-{index:02d}" for index in range(cluster.nodes))
    clock = np.clip(1.0 + cluster.clock_spread * rng.standard_normal(count), 0.92, 1.08)
    spread = np.clip(1.0 + cluster.temperature_spread * rng.standard_normal(count), 0.85, 1.15)
    target = 36.0 / (model.power_limit - 10.0)  # a front slot under full load stands 36 degrees above its air
    rear = (slot >= cluster.gpus / 2.0) * cluster.rear
    mounted = [
        (names.index(node), export)
        for export, mount in enumerate(cluster.mounts)
        for node in (mount.nodes or names)
        if node in names
    ]
    return Hardware(
        model=model,
        nodes=names,
        node=np.repeat(np.arange(cluster.nodes), cluster.gpus),
        slot=slot,
        full_power=model.full_power * clock**-POWER_EXPONENT,
        resistance=target * spread,
        air=cluster.inlet + rear + 0.5 * rng.standard_normal(count),
        exports=tuple(mount.export for mount in cluster.mounts),
        mount_node=np.array([node for node, _ in mounted], dtype=np.int64),
        mount_export=np.array([export for _, export in mounted], dtype=np.int64),
    )
