"""Series of node_exporter about a node's board: clocks, memory errors, file systems, PCIe links and pause frames.

Names and labels: node_exporter's end-to-end fixture. PCIe links of ports carry the port's name in `device`, as the
relabelling rule writes it that the signal asks for. Statistics of the ethtool collector: those of mlx5, `rx_prio3_pause`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from rca.model import Floats
from rca.physics.cluster import Ints
from rca.physics.host import thrashed
from rca.physics.run import Trace, generator
from rca.physics.scrape import Family, Labels, MetricType, Scrapes, grow, hold
from rca.physics.step import HEADROOM

_FREQUENCY = 3.1e9  # Hz that loaded CPUs hold when nothing slows them
_IDLE_FREQUENCY = 1.2e9
_SPEED = 3.2e10  # transfers a second of a PCIe lane, Gen5
_INODE = 16384.0  # bytes of a file system for each inode
_PAUSES = 2000.0  # frames a second of a port that takes in nothing


class _Mount(NamedTuple):
    """A mounted file system: its size in bytes, and which share of it is free."""

    point: str
    device: str
    kind: str
    size: float
    free: float


_MOUNTS = (
    _Mount("/", "/dev/md0", "ext4", 9e11, 0.6),
    _Mount("/scratch", "/dev/nvme0n1", "xfs", 7e12, 0.4),
    _Mount("/dev/shm", "tmpfs", "tmpfs", 1.08e12, 0.9),  # noqa: S108 - a name in a label, nothing is written there
    _Mount("/snap/core", "/dev/loop0", "squashfs", 6e7, 0.0),
)


@dataclass(frozen=True, eq=False)
class Board:
    """A trace as its boards see it; `loaded` (T, N) says where something trains."""

    trace: Trace
    scrapes: Scrapes
    loaded: Floats

    @property
    def nodes(self) -> Ints:
        """Return the row of each node."""
        return np.arange(len(self.trace.plant.hardware.nodes))

    def each(self, *labels: Labels) -> tuple[list[Labels], Ints]:
        """Return the extra labels and the node of series that stand once on every node, for each of these labels."""
        return [one for one in labels for _ in self.nodes], np.tile(self.nodes, len(labels))

    def gauge(self, name: str, rows: tuple[Sequence[Labels], Ints], values: Floats) -> Family:
        """Return series that read `values` (T, series)."""
        family, when = self._family(name, "gauge", rows)
        return Family(*family, partial(hold, self.trace, values, np.arange(len(rows[1])), when))

    def counter(self, name: str, rows: tuple[Sequence[Labels], Ints], rates: Floats) -> Family:
        """Return series that count `rates` (T, series) a second, in whole numbers."""
        family, when = self._family(name, "counter" if name.endswith("_total") else "unknown", rows)
        return Family(*family, lambda: np.floor(grow(rates, np.arange(len(rows[1])), when)))

    def _family(
        self, name: str, kind: MetricType, rows: tuple[Sequence[Labels], Ints]
    ) -> tuple[tuple[str, MetricType, Sequence[Labels], Ints], Floats]:
        extra, node = rows
        target = self.scrapes.of("node")[node]
        labels = [{**self.scrapes.targets[t].labels, **more} for t, more in zip(target, extra, strict=True)]
        return (name, kind, labels, target), self.scrapes.times[target]


def families(trace: Trace, scrapes: Scrapes, epoch: float) -> Iterator[Family]:
    """Yield the series of all boards; `epoch` is the unix time of the scenario's start."""
    hardware = trace.plant.hardware
    loaded = np.zeros((len(trace.segment), len(hardware.nodes)))
    for gpu, at in enumerate(hardware.node):
        loaded[:, at] = np.maximum(loaded[:, at], trace.gpu["running"][:, gpu])
    board = Board(trace, scrapes, loaded)
    yield _time(board, epoch)
    yield from _processors(board)
    yield _inlet(board)
    yield from _memory(board)
    yield from _file_systems(board)
    yield from _links(board)
    if trace.plant.scenario.cluster.roce:
        yield from _pauses(board)


def _time(board: Board, epoch: float) -> Family:
    target = board.scrapes.of("node")
    labels = [board.scrapes.targets[t].labels for t in target]
    return Family("node_time_seconds", "gauge", labels, target, lambda: epoch + board.scrapes.times[target])


def _processors(board: Board) -> Iterator[Family]:
    trace = board.trace
    slowed = trace.spread("cpu_clock")
    shape = slowed.shape
    noise = 1.0 + 0.01 * generator(trace.plant.scenario.seed, "frequency").standard_normal(shape)
    speed = np.where(board.loaded > 0, _FREQUENCY * slowed, _IDLE_FREQUENCY) * noise
    rows = board.each(*({"cpu": str(cpu)} for cpu in range(trace.plant.scenario.cluster.cpus)))
    yield board.gauge("node_cpu_scaling_frequency_hertz", rows, speed[:, rows[1]])
    rows = board.each({"package": "0"}, {"package": "1"})
    hot = np.where(slowed < 1.0, 2.0, 0.0)
    yield board.counter("node_cpu_package_throttles_total", rows, hot[:, rows[1]])


def _inlet(board: Board) -> Family:
    """Return what the management controller says of the air in front of each node, in whole degrees."""
    trace = board.trace
    rise = np.zeros_like(board.loaded)
    for gpu, at in enumerate(trace.plant.hardware.node):
        rise[:, at] = np.maximum(rise[:, at], trace.spread("inlet_rise")[:, gpu])
    noise = 0.3 * generator(trace.plant.scenario.seed, "inlet").standard_normal(rise.shape)
    air = np.round(trace.plant.scenario.cluster.inlet + rise + noise)
    return board.gauge("ipmi_temperature_celsius", board.each({"id": "4", "name": "Inlet Temp"}), air)


def _memory(board: Board) -> Iterator[Family]:
    nothing = np.zeros_like(board.loaded)
    used_up = thrashed(board.trace)
    yield board.counter("node_vmstat_pgmajfault", board.each({}), 2.0 + 5000.0 * used_up)
    yield board.counter("node_vmstat_oom_kill", board.each({}), nothing)
    yield board.gauge("node_memory_HardwareCorrupted_bytes", board.each({}), nothing)
    for kind in ("correctable", "uncorrectable"):
        rows = board.each({"controller": "0"}, {"controller": "1"})
        yield board.counter(f"node_edac_{kind}_errors_total", rows, np.tile(nothing, 2))


def _file_systems(board: Board) -> Iterator[Family]:
    labels = [{"device": one.device, "fstype": one.kind, "mountpoint": one.point} for one in _MOUNTS]
    rows = board.each(*labels)
    shape = (len(board.loaded), len(rows[1]))
    prefix = "node_filesystem"
    size, free, fixed = (
        np.broadcast_to(np.repeat(np.array(column), len(board.nodes)), shape)
        for column in (
            [one.size for one in _MOUNTS],
            [one.size * one.free for one in _MOUNTS],
            [float(one.kind == "squashfs") for one in _MOUNTS],
        )
    )
    yield board.gauge(f"{prefix}_size_bytes", rows, size)
    yield board.gauge(f"{prefix}_avail_bytes", rows, free)
    yield board.gauge(f"{prefix}_files", rows, np.floor(size / _INODE))
    yield board.gauge(f"{prefix}_files_free", rows, np.floor(free / _INODE))
    yield board.gauge(f"{prefix}_readonly", rows, fixed)


def _links(board: Board) -> Iterator[Family]:
    hardware = board.trace.plant.hardware
    lanes = board.trace.spread("port_lanes")
    labels = [
        {"segment": "0000", "bus": f"{0x19 + 16 * slot:02x}", "device": f"mlx5_{slot}", "function": "0"}
        for slot in hardware.slot.tolist()
    ]
    rows = (labels, hardware.node)
    prefix = "node_pcidevice"
    yield board.gauge(f"{prefix}_current_link_width", rows, lanes)
    yield board.gauge(f"{prefix}_max_link_width", rows, np.full_like(lanes, 16.0))
    for which in ("current", "max"):
        yield board.gauge(f"{prefix}_{which}_link_transfers_per_second", rows, np.full_like(lanes, _SPEED))


def _pauses(board: Board) -> Iterator[Family]:
    """Yield pause frames: a port that cannot drain sends them, and those that send to it receive them; so do all of a
    congested job.
    """
    trace, hardware = board.trace, board.trace.plant.hardware
    rate = trace.spread("port_rate")
    lanes = 3.94e9 * trace.spread("pcie_width") * 2.0 ** (trace.spread("pcie_generation") - 5.0)
    room = np.minimum(lanes, HEADROOM * hardware.model.port_rate * trace.spread("port_lanes") / 16.0)
    sent = _PAUSES * trace.gpu["running"] * np.clip(1.0 - room / rate, 0.0, 1.0)
    received = np.zeros_like(sent)
    for slot in np.unique(hardware.slot):
        rail = np.flatnonzero(hardware.slot == slot)
        received[:, rail] = sent[:, rail].sum(axis=1, keepdims=True) - sent[:, rail]
    for job in trace.jobs:
        received[:, job.layout.gpu] += 400.0 * (trace.spread("congestion")[:, [job.plan.row]] - 1.0)
    labels: list[Labels] = [{"device": f"ens{slot}np0"} for slot in hardware.slot]
    for name, frames in (("transmitted", sent), ("received", received)):
        noise = np.exp(0.4 * generator(trace.plant.scenario.seed, name).standard_normal(frames.shape))
        yield board.counter(f"node_ethtool_{name}_prio3_pause", (labels, hardware.node), (frames + 0.3) * noise)
