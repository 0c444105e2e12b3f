"""One synchronous training step, from work to waits.

Ranks of one tensor x context group (a cell) are late together: their collectives run inside the work phases. Stages of
a replica wait for each other in receives, replicas wait for each other before the gradients are summed. What is left
of the step is wait, so the ill rank waits least.

With work w of S stages and m micro-batches, one-forward-one-backward takes `sum(w) / m + (m - 1) / m * max(w)`: each
stage fills or drains once, the slowest sets the pace between. Equal stages give the usual bubble (S - 1) / (m + S - 1).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

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
HELD = 32  # what follows from conditions alone is worked out once, not in each step of a simulation


@dataclass(frozen=True, eq=False)
class Step:
    """Mean times of a step in seconds: by cell (pp, dp), by rank (R,), by replica (dp,), by gradient group (pp, cp, tp).

    A rank's work, receives, `dp_wait`, `sync`, the optimizer and what it waits for slower groups add up to `seconds`.
    `forward` includes `data`, as Megatron's timer does. `busy` is a rank's own kernel time and `idle` the time in which
    its GPU holds no kernel; the rest of the step it spins in collectives. `pause` (R,) is how long Python collects
    garbage, empty where that is not counted.
    """

    seconds: float
    data: Floats
    forward: Floats
    backward: Floats
    forward_recv: Floats
    backward_recv: Floats
    dp_wait: Floats
    sync: Floats
    cycles: Floats
    busy: Floats
    idle: Floats
    pause: Floats


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
    slowest = busy.max(axis=-2, keepdims=True)
    pace = (slowest - busy) * (micro_batches - 1) / micro_batches
    before = np.cumsum(part, axis=-2) - part
    after = np.flip(np.cumsum(np.flip(part, axis=-2), axis=-2), axis=-2) - part
    stage = np.arange(busy.shape[-2])[:, None]
    upstream = busy.argmax(axis=-2)[..., None, :] < stage
    total = part.sum(axis=-2) + slowest[..., 0, :] * (micro_batches - 1) / micro_batches
    return total, before + np.where(upstream, pace, 0.0), after + np.where(upstream, 0.0, pace)


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


def take(plan: Plan, plant: Plant, conditions: Conditions, clock: Floats, rng: np.random.Generator) -> Step:
    """Take some steps under the given clocks (R,) in MHz and return their mean."""
    layout, job = plan.layout, plan.layout.job
    ranks = plant.ranks(plan.row)
    shape = layout.shape
    load = (plan.work[layout.index("pp")] * conditions["tokens"][ranks] * conditions["work"][ranks]).reshape(shape)
    kernels = load * _kernel_factor(plan, conditions, clock).reshape(shape)
    links = load * _tp_share(plan) / conditions["nvlink_bandwidth"][layout.gpu].reshape(shape)
    gaps = load * job.host * _launch_delay(conditions)[layout.node].reshape(shape)
    own = kernels + links + gaps + load * _copy_share(conditions, layout).reshape(shape)
    cell = own.max(axis=(2, 3))
    noise = np.maximum(1.0 + job.jitter * rng.standard_normal((2, plan.draws, *cell.shape)), 0.5)
    spread = conditions["sequence_spread"][plan.row]
    if spread > 0:
        lengths = np.exp(spread * rng.standard_normal((plan.draws, 1, cell.shape[1])) - 0.5 * spread**2)
        noise = noise * lengths
    forward, backward = FORWARD * cell * noise[0], (1.0 - FORWARD) * cell * noise[1]
    work = forward + backward
    sync = _transfer(plan, conditions, rng)
    data = _data_wait(plan, plant, conditions, (work.mean(axis=0), sync))
    pause = _pauses(plan, conditions["gc_pause"][ranks], rng)
    held = pause.reshape(-1, *shape).max(axis=(3, 4))
    total, forward_recv, backward_recv = pipeline(work + held + data, job.micro_batches)
    moved = _stage_transfer(plan, conditions)
    ready = total + moved
    slowest = ready.max(axis=-1, keepdims=True)
    mean = (work.mean(axis=0) / cell)[:, :, None, None]
    reads = layout.reads.reshape(shape)
    depth = np.arange(job.pp)[:, None] / max(job.pp - 1, 1)
    return Step(
        seconds=float((slowest[..., 0] + sync.max(axis=(1, 2, 3)) + plan.optimizer).mean()),
        data=data,
        forward=data + (forward + held).mean(axis=0),
        backward=backward.mean(axis=0),
        forward_recv=forward_recv.mean(axis=0) + moved * depth,
        backward_recv=backward_recv.mean(axis=0) + moved * (1.0 - depth),
        dp_wait=(slowest - ready).mean(axis=0),
        sync=sync.mean(axis=0),
        cycles=(load * mean * _cycle_share(plan)).reshape(-1),
        busy=(kernels * mean).reshape(-1) + plan.optimizer,
        idle=(gaps * mean + reads * data[:, :, None, None]).reshape(-1) + pause.mean(axis=0),
        pause=pause.mean(axis=0) if job.gc is not None else np.zeros(0),
    )


def _pauses(plan: Plan, lasts: Floats, rng: np.random.Generator) -> Floats:
    """Return (draws, R): seconds of each step in which Python collects garbage, on all ranks at once or on some."""
    gc = plan.layout.job.gc
    if gc is None:
        return np.zeros((1, len(lasts)))
    ranks = 1 if gc.together else len(lasts)
    collects = rng.random((plan.draws, ranks)) < 1.0 / gc.every
    return np.where(collects, np.where(np.isnan(lasts), seconds(gc.pause), lasts), 0.0)


def _tp_share(plan: Plan) -> float:
    return plan.layout.job.tp_share if plan.layout.job.tp > 1 else 0.0


def _cycle_share(plan: Plan) -> float:
    """Return tensor cycles a second of nominal work, in MHz of tensor pipe."""
    return plan.layout.job.tensor * plan.nominal_clock * (1.0 - _tp_share(plan))


def _kernel_factor(plan: Plan, conditions: Conditions, clock: Floats) -> Floats:
    """Return by how much a rank's own kernels are stretched; the part bound by memory does not feel the clock."""
    compute = plan.layout.job.compute
    stretch = compute * plan.nominal_clock / clock + (1.0 - compute)
    return (1.0 - _tp_share(plan)) * stretch * conditions["compute"][plan.layout.gpu]


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


@lru_cache(maxsize=HELD)
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


def _transfer(plan: Plan, conditions: Conditions, rng: np.random.Generator) -> Floats:
    """Return (draws, pp, cp, tp): gradient transfer of each group; a ring is as slow as its slowest port."""
    groups = _slow_port(plan, conditions).max(axis=1)
    congestion = conditions["congestion"][plan.row]
    shape = (plan.draws, *groups.shape)
    jitter = np.exp((0.02 + 0.25 * (congestion > 1.0)) * rng.standard_normal(shape))
    crossing = plan.sync * groups * (1.0 + (congestion - 1.0) * jitter)
    flaps = conditions["flaps"][plan.layout.gpu].reshape(plan.layout.shape).max(axis=1)
    if flaps.any():
        crossing = crossing + OUTAGE * rng.poisson(np.broadcast_to(flaps * seconds(plan.layout.job.step), shape))
    return np.where(plan.layout.crosses, crossing, plan.sync * NVLINK_SHARE) * np.exp(0.01 * rng.standard_normal(shape))


@lru_cache(maxsize=HELD)
def _stage_transfer(plan: Plan, conditions: Conditions) -> Floats:
    """Return (dp,): activations between stages; a pipeline is as slow as its slowest port."""
    slow = _slow_port(plan, conditions).max(axis=(0, 2, 3))
    moved: Floats = slow * plan.p2p * conditions["congestion"][plan.row]
    return moved


@lru_cache(maxsize=HELD)
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


def _data_wait(plan: Plan, plant: Plant, conditions: Conditions, rest: tuple[Floats, Floats]) -> Floats:
    """Return (pp, dp): how long a cell waits for its input.

    Loaders prefetch, so a reader's step can never be shorter than its storage and its CPUs need: it waits for what the
    rest of its own step (work, transfer, optimizer) does not hide, and for the copy to its GPU. Its tensor peers wait
    in the broadcast.
    """
    layout = plan.layout
    work, sync = rest
    loading = np.maximum(read_seconds(plan, plant, conditions), _prepare_seconds(plan, conditions))
    reading, copying = (
        part.reshape(layout.shape).max(axis=(2, 3)) for part in (loading, _batch_copy(plan, plant, conditions))
    )
    hidden = pipeline(work, layout.job.micro_batches)[0] + sync.max(axis=(1, 2, 3)).mean() + plan.optimizer + plan.p2p
    tokens = conditions["tokens"][plant.ranks(plan.row)].reshape(layout.shape).max(axis=(2, 3))
    reads = layout.reads.reshape(layout.shape).any(axis=(2, 3))
    return np.where(reads, np.maximum(plan.data * tokens, reading - hidden) + copying, 0.0)
