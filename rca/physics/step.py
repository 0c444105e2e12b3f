"""One synchronous training step, from work to waits.

Ranks of one tensor x context group (a cell) are late together: their collectives run inside the work phases. Stages of
a replica wait for each other in receives, replicas wait for each other before the gradients are summed. What is left
of the step is wait, so the ill rank waits least.

With work w of S stages and m micro-batches, one-forward-one-backward takes `sum(w) / m + (m - 1) / m * max(w)`: each
stage fills or drains once, the slowest sets the pace between. Equal stages give the usual bubble (S - 1) / (m + S - 1).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rca.library import seconds
from rca.model import Floats
from rca.physics.cluster import Ints
from rca.physics.conditions import Conditions, Plant
from rca.physics.layout import Layout

FORWARD = 1.0 / 3.0  # share of work in the forward pass; backward takes twice as long
NVLINK_SHARE = 0.3  # of the gradients' time, on groups that stay inside a node and never cross a NIC
HEADROOM = 1.26  # what a port's own PCIe link carries against the port: 63 GB/s of 16 lanes of Gen5 for 400 Gb/s
SOCKET_RATE = 8e9  # bytes a second that a rank gets through the kernel's TCP stack
OUTAGE = 4.0  # seconds that transfers stand still while a port trains its link anew


@dataclass(frozen=True, eq=False)
class Plan:
    """A job's fixed figures: `work` seconds of a stage's step at the nominal clock, and the other parts of the step."""

    layout: Layout
    row: int
    work: Floats
    sync: float
    p2p: float
    optimizer: float
    data: float
    nominal_clock: float
    draws: int


def pipeline(busy: Floats, micro_batches: int) -> tuple[Floats, Floats, Floats]:
    """Return the time of each replica, and how long each cell waits in forward and in backward receives.

    `busy` has shape (..., pp, dp). Waits and work add up to the replica's time.

    >>> total, forward, backward = pipeline(np.array([[2.0], [2.0], [4.0]]), 4)
    >>> total.tolist(), forward[:, 0].tolist(), backward[:, 0].tolist()
    ([5.0], [0.0, 0.5, 1.0], [3.0, 2.5, 0.0])
    """
    part = busy / micro_batches
    pace = (busy.max(axis=-2, keepdims=True) - busy) * (micro_batches - 1) / micro_batches
    before = np.cumsum(part, axis=-2) - part
    after = np.flip(np.cumsum(np.flip(part, axis=-2), axis=-2), axis=-2) - part
    stage = np.arange(busy.shape[-2])[:, None]
    upstream = busy.argmax(axis=-2)[..., None, :] < stage
    waits = before + np.where(upstream, pace, 0.0), after + np.where(upstream, 0.0, pace)
    return duration(busy, micro_batches), *waits


def duration(busy: Floats, micro_batches: int) -> Floats:
    """Return the time of each replica alone; `busy` has shape (..., pp, dp)."""
    lasts: Floats = (busy.sum(axis=-2) + (micro_batches - 1) * busy.max(axis=-2)) / micro_batches
    return lasts


def plan(plant: Plant, job: int, dt: float) -> Plan:
    """Read a job's figures, with work as if all chips were nominal; `calibrate` makes the step last as planned."""
    layout = plant.layouts[job]
    written = layout.job
    fixed = [seconds(written.sync), seconds(written.p2p) * (written.pp > 1), seconds(written.optimizer)]
    data = seconds(written.data.wait)
    step = seconds(written.step)
    room = step - sum(fixed) - data
    bubble = 1.0 + (written.pp - 1) / written.micro_batches
    return Plan(
        layout=layout,
        row=job,
        work=np.full(written.pp, room / bubble),
        sync=fixed[0],
        p2p=fixed[1],
        optimizer=fixed[2],
        data=data,
        nominal_clock=plant.hardware.nominal_clock(written.intensity),
        draws=int(np.clip(round(dt / step), 1, 16)),
    )


class Roll(NamedTuple):
    """Random numbers of one turn, in the order in which they are drawn; `draws` steps stand for all of its steps.

    Normal ones: `work` (2, draws, pp, dp) of forward and backward, `lengths` (draws, 1, dp) of sequences, `crowding` and
    `transfer` (draws, pp, cp, tp) of transfers. `outages` (draws, pp, cp, tp) counts links that are lost, `collects`
    (draws, ranks or 1) marks steps in which Python collects garbage.
    """

    work: Floats
    lengths: Floats
    crowding: Floats
    outages: Ints
    transfer: Floats
    collects: NDArray[np.bool_]


def roll(plan: Plan, conditions: Conditions, rng: np.random.Generator) -> Roll:
    """Draw the random numbers of one turn."""
    job = plan.layout.job
    cells, groups = (plan.draws, job.pp, job.dp), (plan.draws, job.pp, job.cp, job.tp)
    uneven = conditions["sequence_spread"][plan.row] > 0
    return Roll(
        work=rng.standard_normal((2, *cells)),
        lengths=rng.standard_normal((plan.draws, 1, job.dp)) if uneven else np.zeros((plan.draws, 1, job.dp)),
        crowding=rng.standard_normal(groups),
        outages=_outages(plan, conditions, rng),
        transfer=rng.standard_normal(groups),
        collects=_collects(plan, rng),
    )


def _outages(plan: Plan, conditions: Conditions, rng: np.random.Generator) -> Ints:
    """Return (draws, pp, cp, tp): how many links of each gradient group are lost in each step."""
    flaps = conditions["flaps"][plan.layout.gpu].reshape(plan.layout.shape).max(axis=1)
    groups = (plan.draws, *flaps.shape)
    if not flaps.any():
        return np.zeros(groups, dtype=np.int64)
    return rng.poisson(np.broadcast_to(flaps * seconds(plan.layout.job.step), groups))


def _collects(plan: Plan, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Mark (draws, ranks) the steps in which Python collects garbage; one column where all ranks do it at once."""
    gc = plan.layout.job.gc
    if gc is None:
        return np.zeros((plan.draws, 1), dtype=bool)
    return rng.random((plan.draws, 1 if gc.together else len(plan.layout))) < 1.0 / gc.every


class Taken(NamedTuple):
    """Mean of the steps of one turn: what it `lasts`, work and wait for `data` of cells (pp, dp), all in seconds.

    Of ranks (R,): `busy` is a rank's own kernel time and `idle` the time in which its GPU holds no kernel; the rest of
    the step it spins in collectives. `cycles` are those of the tensor pipe, in millions.
    """

    lasts: float
    cell: Floats
    data: Floats
    busy: Floats
    idle: Floats
    cycles: Floats


class Course:
    """T turns of a job under the same conditions, as far as they are settled before any clock is known."""

    def __init__(self, plan: Plan, plant: Plant, conditions: Conditions, rolls: Sequence[Roll]) -> None:
        layout, job = plan.layout, plan.layout.job
        ranks, shape = plant.ranks(plan.row), plan.layout.shape
        load = plan.work[layout.index("pp")] * conditions["tokens"][ranks] * conditions["work"][ranks]
        own = load * (1.0 - _tp_share(plan)) * conditions["compute"][layout.gpu]
        links = load * _tp_share(plan) / conditions["nvlink_bandwidth"][layout.gpu]
        gaps = load * job.host * _launch_delay(conditions)[layout.node]
        dice = Roll(*map(np.array, zip(*rolls, strict=True)))
        self.plan = plan
        self._paced = own * job.compute * plan.nominal_clock
        self._unpaced = own * (1.0 - job.compute)
        self._beside = links + gaps + load * _copy_share(conditions, layout)
        self._noise = _work_noise(plan, conditions, dice)
        self._work = FORWARD * self._noise[:, 0] + (1.0 - FORWARD) * self._noise[:, 1]
        self._mean = self._work.mean(axis=1)
        self._pause = _pauses(plan, conditions["gc_pause"][ranks], dice)
        self._held = self._pause.reshape(*self._pause.shape[:2], *shape).max(axis=(4, 5))
        self._sync = _transfer(plan, conditions, dice)
        self._last = self._sync.max(axis=(2, 3, 4)) + plan.optimizer
        self._hides = self._last.mean(axis=1) + plan.p2p
        self._moved = _stage_transfer(plan, conditions)
        self._input = _input(plan, plant, conditions)
        self._reads = layout.reads.reshape(shape)
        self._share = np.broadcast_to(self._mean[..., None, None], (len(rolls), *shape)).reshape(len(rolls), -1)
        self._idle = gaps * self._share + self._pause.mean(axis=1)
        self._cycles = load * self._share * _cycle_share(plan)

    def take(self, turn: int, clock: Floats) -> Taken:
        """Take the steps of one turn under the given clocks (R,) in MHz."""
        plan, job = self.plan, self.plan.layout.job
        kernels = self._paced / clock + self._unpaced
        cell = (kernels + self._beside).reshape(plan.layout.shape).max(axis=(2, 3))
        data = self._input.wait(duration(cell * self._mean[turn], job.micro_batches) + self._hides[turn])
        lasts = duration(cell * self._work[turn] + self._held[turn] + data, job.micro_batches) + self._moved
        return Taken(
            lasts=float((lasts.max(axis=-1) + self._last[turn]).sum()) / plan.draws,
            cell=cell,
            data=data,
            busy=kernels * self._share[turn] + plan.optimizer,
            idle=self._idle[turn] + (self._reads * data[:, :, None, None]).reshape(-1),
            cycles=self._cycles[turn],
        )

    def steps(self, taken: Sequence[Taken]) -> Mapping[str, Floats]:
        """Return the mean times of the steps of each turn in seconds, arrays (T, ...).

        By cell (pp, dp), by rank (R,), by replica (dp,), by gradient group (pp, cp, tp). A rank's work, receives,
        `dp_wait`, `sync`, the optimizer and what it waits for slower groups add up to `seconds`. `forward` includes
        `data`, as Megatron's timer does. `pause` (R,) is how long Python collects garbage, empty where that is not
        counted.
        """
        job = self.plan.layout.job
        cell, data = (np.array([getattr(one, name) for one in taken])[:, None] for name in ("cell", "data"))
        forward, backward = FORWARD * cell * self._noise[:, 0], (1.0 - FORWARD) * cell * self._noise[:, 1]
        busy = forward + backward + self._held + data
        total, forward_recv, backward_recv = pipeline(busy, job.micro_batches)
        ready = total + self._moved
        depth = np.arange(job.pp)[:, None] / max(job.pp - 1, 1)
        return {
            "seconds": np.array([one.lasts for one in taken]),
            "data": data[:, 0],
            "forward": data[:, 0] + (forward + self._held).mean(axis=1),
            "backward": backward.mean(axis=1),
            "forward_recv": forward_recv.mean(axis=1) + self._moved * depth,
            "backward_recv": backward_recv.mean(axis=1) + self._moved * (1.0 - depth),
            "dp_wait": (ready.max(axis=-1, keepdims=True) - ready).mean(axis=1),
            "sync": self._sync.mean(axis=1),
            "pause": self._pause.mean(axis=1) if job.gc is not None else np.zeros((len(taken), 0)),
        }


def _work_noise(plan: Plan, conditions: Conditions, dice: Roll) -> Floats:
    """Return (T, 2, draws, pp, dp): by how much forward and backward vary, with the lengths of sequences."""
    spread = conditions["sequence_spread"][plan.row]
    lengths = np.exp(spread * dice.lengths - 0.5 * spread**2)
    noise: Floats = np.maximum(1.0 + plan.layout.job.jitter * dice.work, 0.5) * lengths[:, None]
    return noise


def _pauses(plan: Plan, lasts: Floats, dice: Roll) -> Floats:
    """Return (T, draws, R): seconds of each step in which Python collects garbage, on all ranks at once or on some."""
    gc = plan.layout.job.gc
    planned = seconds(gc.pause) if gc is not None else 0.0
    return np.where(dice.collects, np.where(np.isnan(lasts), planned, lasts), 0.0)


def _tp_share(plan: Plan) -> float:
    return plan.layout.job.tp_share if plan.layout.job.tp > 1 else 0.0


def _cycle_share(plan: Plan) -> float:
    """Return tensor cycles a second of nominal work, in MHz of tensor pipe."""
    return plan.layout.job.tensor * plan.nominal_clock * (1.0 - _tp_share(plan))


def thrashing(conditions: Conditions) -> Floats:
    """Return (N,): how far each host has used up its memory, 0 below 95 % taken, 1 with nothing left."""
    taken: Floats = np.clip((conditions["memory_taken"] - 0.95) / 0.05, 0.0, 1.0)
    return taken


def _launch_delay(conditions: Conditions) -> Floats:
    """Return (N,): by what share of its time each host launches later; pages that are read back from disk cost most."""
    taken = conditions["cpu_taken"]
    slower = 1.0 / conditions["cpu_clock"] - 1.0
    delay: Floats = taken / (1.0 - taken) + slower + conditions["launch_delay"] + 2.0 * thrashing(conditions)
    return delay


def _pcie_share(conditions: Conditions, gpu: Ints) -> Floats:
    """Return the PCIe bandwidth of each rank's GPU in bytes a second: 3.94 GB/s a lane in generation 5, half in 4."""
    return 3.94e9 * conditions["pcie_width"][gpu] * 2.0 ** (conditions["pcie_generation"][gpu] - 5.0)


def _copy_share(conditions: Conditions, layout: Layout) -> Floats:
    """Return the extra share of work that host-to-device copies take on a narrow link: nothing on a full one."""
    lanes = conditions["pcie_width"][layout.gpu] / 16.0
    return 0.01 * (1.0 / lanes - 1.0)


def _slow_port(plan: Plan, conditions: Conditions) -> Floats:
    """Return (pp, dp, cp, tp): how many times longer a rank's inter-node transfer takes than at the nominal rate."""
    gpu = plan.layout.gpu
    nominal = np.median(conditions["port_rate"])
    rate = np.minimum(conditions["port_rate"][gpu], _pcie_share(conditions, gpu))
    rate = np.minimum(rate, HEADROOM * nominal * conditions["port_lanes"][gpu] / 16.0)
    if conditions["sockets"][plan.row] > 0:
        rate = np.minimum(rate, SOCKET_RATE)
    factor: Floats = np.maximum(nominal / rate, 1.0).reshape(plan.layout.shape)
    return factor


def _transfer(plan: Plan, conditions: Conditions, dice: Roll) -> Floats:
    """Return (T, draws, pp, cp, tp): gradient transfer of each group; a ring is as slow as its slowest port."""
    groups = _slow_port(plan, conditions).max(axis=1)
    congestion = conditions["congestion"][plan.row]
    jitter = np.exp((0.02 + 0.25 * (congestion > 1.0)) * dice.crowding)
    crossing = plan.sync * groups * (1.0 + (congestion - 1.0) * jitter) + OUTAGE * dice.outages
    return np.where(plan.layout.crosses, crossing, plan.sync * NVLINK_SHARE) * np.exp(0.01 * dice.transfer)


def _stage_transfer(plan: Plan, conditions: Conditions) -> Floats:
    """Return (dp,): activations between stages; a pipeline is as slow as its slowest port."""
    slow = _slow_port(plan, conditions).max(axis=(0, 2, 3))
    moved: Floats = slow * plan.p2p * conditions["congestion"][plan.row]
    return moved


def read_seconds(plan: Plan, plant: Plant, conditions: Conditions) -> Floats:
    """Return (R,): how long the storage needs for the bytes of one step, as all readers of the device share it."""
    layout, data = plan.layout, plan.layout.job.data
    size = read_bytes(plan, plant, conditions)
    node = np.bincount(layout.node, weights=size, minlength=len(plant.hardware.nodes))
    if data.source == "disk":
        shared = (node / conditions["disk_bandwidth"])[layout.node]
    else:
        shared = size / data.request / data.parallel * mount_latency(plant, conditions)[layout.node]
    return np.where(size > 0, shared, 0.0)


def read_bytes(plan: Plan, plant: Plant, conditions: Conditions) -> Floats:
    """Return (R,): bytes a step that each rank reads from its storage."""
    layout = plan.layout
    written = conditions["read_bytes"][plant.ranks(plan.row)]
    return np.where(layout.reads, np.where(np.isnan(written), layout.job.data.bytes, written), 0.0)


def mount_latency(plant: Plant, conditions: Conditions) -> Floats:
    """Return (N,): seconds of a request on the slowest mount of each node; 0 without one."""
    latency = np.zeros(len(plant.hardware.nodes))
    np.maximum.at(latency, plant.hardware.mount_node, conditions["mount_latency"][plant.hardware.mount_export])
    return latency


def save_factor(plant: Plant, layout: Layout, conditions: Conditions) -> float:
    """Return how many times longer a checkpoint takes: writers keep so many requests in flight and no more, so on a
    mount it takes as many times longer as a request does.
    """
    if layout.job.checkpoint is None or layout.job.checkpoint.to == "disk":
        return 1.0
    slowest = mount_latency(plant, conditions)[layout.node[layout.index("dp") == 0]].max()
    return max(float(slowest) / plant.healthy("mount_latency"), 1.0)


def _prepare_seconds(plan: Plan, conditions: Conditions) -> Floats:
    """Return (R,): how long each rank's loaders take to decode the batch of one step on what they get of the CPUs."""
    left = (1.0 - conditions["cpu_taken"]) * conditions["cpu_clock"]
    return (seconds(plan.layout.job.data.prepare) / left)[plan.layout.node]


def _batch_copy(plan: Plan, plant: Plant, conditions: Conditions) -> Floats:
    """Return (R,): by how much longer the batch takes to a GPU whose PCIe link is not what it can be."""
    size, gpu = read_bytes(plan, plant, conditions), plan.layout.gpu
    whole = 3.94e9 * 16.0 * 2.0 ** (plant.healthy("pcie_generation") - 5.0)
    longer: Floats = size / _pcie_share(conditions, gpu) - size / whole
    return longer


class Input(NamedTuple):
    """What a cell waits for its input, all (pp, dp): `least` at least, for what is left of `loading` when the rest of its
    step has passed, and for `copying` to its GPU; cells without `reads` never.
    """

    least: Floats
    loading: Floats
    copying: Floats
    reads: NDArray[np.bool_]

    def wait(self, hidden: Floats) -> Floats:
        """Return (pp, dp): seconds that are waited if `hidden` (dp,) pass beside the loading."""
        return np.where(self.reads, np.maximum(self.least, self.loading - hidden) + self.copying, 0.0)


def _input(plan: Plan, plant: Plant, conditions: Conditions) -> Input:
    """Return how a job's cells wait for their input.

    Loaders prefetch, so a reader's step can never be shorter than its storage and its CPUs need: it waits for what the
    rest of its own step (work, transfer, optimizer) does not hide, and for the copy to its GPU. Its tensor peers wait
    in the broadcast.
    """
    loading = np.maximum(read_seconds(plan, plant, conditions), _prepare_seconds(plan, conditions))
    tokens, copying = conditions["tokens"][plant.ranks(plan.row)], _batch_copy(plan, plant, conditions)
    by_rank = (plan.data * tokens, loading, copying, plan.layout.reads)
    return Input(*(part.reshape(plan.layout.shape).max(axis=(2, 3)) for part in by_rank))
