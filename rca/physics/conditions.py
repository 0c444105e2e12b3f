"""Faults as arrays: what holds where, between two changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from rca.library import seconds
from rca.model import Floats
from rca.physics.cluster import Hardware, Ints
from rca.physics.layout import Layout
from rca.physics.written import Fault, Scenario, Where

Kind = Literal["gpu", "node", "export", "rank", "replica", "job"]


class Effect(NamedTuple):
    """A field of `Fault`: which rows it sets, and what holds without a fault (a str names a figure of the hardware)."""

    kind: Kind
    healthy: float | str


EFFECTS: Mapping[str, Effect] = {
    "cooling": Effect("gpu", 1.0),
    "inlet_rise": Effect("gpu", 0.0),
    "power_limit": Effect("gpu", "power_limit"),
    "power_brake": Effect("gpu", 0.0),
    "clock_limit": Effect("gpu", np.inf),
    "compute": Effect("gpu", 1.0),
    "utilisation": Effect("gpu", np.nan),
    "pcie_width": Effect("gpu", 16.0),
    "pcie_generation": Effect("gpu", "pcie_generation"),
    "pcie_replays": Effect("gpu", 0.0),
    "nvlink_bandwidth": Effect("gpu", 1.0),
    "nvlink_crc": Effect("gpu", 0.0),
    "nvlink_recoveries": Effect("gpu", 0.0),
    "port_rate": Effect("gpu", "port_rate"),
    "symbol_errors": Effect("gpu", 0.0),
    "link_recoveries": Effect("gpu", 0.0),
    "flaps": Effect("gpu", 0.0),
    "port_lanes": Effect("gpu", 16.0),
    "cpu_taken": Effect("node", 0.0),
    "cpu_clock": Effect("node", 1.0),
    "launch_delay": Effect("node", 0.0),
    "memory_taken": Effect("node", 0.0),
    "disk_bandwidth": Effect("node", "disk_bandwidth"),
    "mount_latency": Effect("export", 0.002),
    "read_bytes": Effect("rank", np.nan),
    "tokens": Effect("replica", 1.0),
    "work": Effect("rank", 1.0),
    "gc_pause": Effect("rank", np.nan),
    "sequence_spread": Effect("job", 0.0),
    "congestion": Effect("job", 1.0),
    "sockets": Effect("job", 0.0),
    "saving": Effect("job", 1.0),
    "stuck": Effect("rank", 0.0),
    "gone": Effect("rank", 0.0),
    "out_of_memory": Effect("rank", 0.0),
    "mismatched": Effect("rank", 0.0),
    "down": Effect("node", 0.0),
    "lost": Effect("gpu", 0.0),
    "frozen": Effect("gpu", 0.0),
    "port_down": Effect("gpu", 0.0),
    "mount_frozen": Effect("export", 0.0),
}


@dataclass(frozen=True, eq=False)
class Plant:
    """The scenario with its hardware and its jobs laid out on it."""

    scenario: Scenario
    hardware: Hardware
    layouts: tuple[Layout, ...]

    def rows(self, kind: Kind) -> int:
        """Return how many rows of a kind there are; ranks count through all jobs."""
        sizes = {
            "gpu": len(self.hardware.node),
            "node": len(self.hardware.nodes),
            "export": len(self.hardware.exports),
            "job": len(self.layouts),
        }
        return sizes.get(kind, sum(map(len, self.layouts)))

    def ranks(self, job: int) -> slice:
        """Return the rows of one job among all ranks."""
        start = sum(map(len, self.layouts[:job]))
        return slice(start, start + len(self.layouts[job]))

    def healthy(self, name: str) -> float:
        """Return what an effect's value is without a fault."""
        value = EFFECTS[name].healthy
        if isinstance(value, str):
            cluster, model = self.scenario.cluster, self.hardware.model
            return float(getattr(cluster if hasattr(cluster, value) else model, value))
        return value


@dataclass(frozen=True, eq=False)
class Conditions:
    """What holds from `since` (seconds) to the next change: one array a fault field, a row an entity of its kind."""

    since: float
    values: Mapping[str, Floats]

    def __getitem__(self, name: str) -> Floats:
        return self.values[name]


def unfold(plant: Plant) -> tuple[Conditions, ...]:
    """Return the conditions between changes, in order of time; the first hold from 0 s."""
    faults = plant.scenario.faults
    changes = {0.0} | {seconds(fault.at) for fault in faults} | {seconds(f.until) for f in faults if f.until}
    return tuple(_conditions(plant, faults, since) for since in sorted(changes))


def healthy(plant: Plant) -> Conditions:
    """Return the conditions without any fault."""
    return _conditions(plant, (), 0.0)


def _conditions(plant: Plant, faults: Sequence[Fault], since: float) -> Conditions:
    values = {name: np.full(plant.rows(effect.kind), plant.healthy(name)) for name, effect in EFFECTS.items()}
    for fault in faults:
        if seconds(fault.at) <= since and (fault.until is None or since < seconds(fault.until)):
            for name, effect in EFFECTS.items():
                value = getattr(fault, name)
                if value is not None:
                    values[name][select(plant, fault.on, effect.kind)] = float(value)
    return Conditions(since, values)


def select(plant: Plant, where: Where, kind: Kind) -> Ints:
    """Return the rows of a kind that a place stands for; empty where the place does not exist.

    A rank stands for its GPU and its node, `replica` effects of a rank reach its whole replica, and a NIC `mlx5_3` is
    row 3 of its node.
    """
    hardware = plant.hardware
    if kind == "export":
        return np.flatnonzero([where.export in (None, export) for export in hardware.exports])
    if kind == "job":
        return np.flatnonzero([where.job in (None, layout.job.id) for layout in plant.layouts])
    ranks = np.concatenate([_ranks(plant, layout, where, kind) for layout in plant.layouts] or [np.zeros(0, bool)])
    if kind in ("rank", "replica"):
        return np.flatnonzero(ranks)
    slot = int(where.device.removeprefix("mlx5_")) if where.device else where.gpu
    chosen = np.ones(len(hardware.node), dtype=bool)
    if where.node is not None:
        chosen &= hardware.node == (hardware.nodes.index(where.node) if where.node in hardware.nodes else -1)
    if slot is not None:
        chosen &= hardware.slot == slot
    if (where.job, where.rank, where.stage, where.replica) != (None, None, None, None):
        held = np.concatenate([layout.gpu for layout in plant.layouts])[ranks]
        chosen &= np.isin(np.arange(len(chosen)), held)
    return np.flatnonzero(chosen) if kind == "gpu" else np.unique(hardware.node[chosen])


def _ranks(plant: Plant, layout: Layout, where: Where, kind: Kind) -> Ints:
    """Mark the ranks of one job that a place stands for."""
    hardware = plant.hardware
    chosen = np.full(len(layout), where.job in (None, layout.job.id))
    for axis, index in (("pp", where.stage), ("dp", where.replica)):
        if index is not None:
            chosen &= layout.index(axis) == index
    if where.node is not None:
        chosen &= layout.node == (hardware.nodes.index(where.node) if where.node in hardware.nodes else -1)
    if where.gpu is not None:
        chosen &= hardware.slot[layout.gpu] == where.gpu
    if where.rank is not None:
        chosen &= np.arange(len(layout)) == where.rank
    if kind == "replica":
        chosen = np.isin(layout.index("dp"), layout.index("dp")[chosen])
    return chosen
