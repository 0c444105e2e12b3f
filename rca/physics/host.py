"""Series of node_exporter: boot, CPU, pressure, memory, block devices, mounts and InfiniBand ports.

Names and labels: node_exporter's end-to-end fixture. A mount is read through `node_mountstats_nfs_*` (collector
`mountstats`), ports through the `infiniband` collector with hardware counters.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from rca.model import Floats
from rca.physics.cluster import Ints
from rca.physics.layout import STATES
from rca.physics.run import DT, JobTrace, Trace, generator
from rca.physics.scrape import Family, Labels, MetricType, Scrapes, grow, hold
from rca.physics.step import mount_latency, read_bytes, read_seconds, save_factor, thrashing

Draw = Callable[[Floats], Floats]
_REQUEST = 128e3  # bytes of a block device request
_QUEUE = 8.0  # requests in flight on a saturated device
_SAVE_RATE = 1.5e9  # bytes a second that a node writes while it saves a checkpoint
_WRITE_QUEUE = 16.0  # a write of a checkpoint waits for so many others on the file server


@dataclass(frozen=True, eq=False)
class Host:
    """A trace as its nodes see it: arrays (T, N) of rates a second, and (T, G) of ports.

    `kernel_bytes` (T, N) is what jobs send through the kernel instead of RDMA, `mount_write` what they save on mounts.
    """

    trace: Trace
    scrapes: Scrapes
    disk_read: Floats
    mount_read: Floats
    written: Floats
    waiting: Floats
    port_bytes: Floats
    kernel_bytes: Floats
    mount_write: Floats


def families(trace: Trace, scrapes: Scrapes, epoch: float) -> Iterator[Family]:
    """Yield all series of all nodes; `epoch` is the unix time of the scenario's start."""
    host = _observe(trace, scrapes)
    yield from _basics(host, epoch)
    yield from _processors(host)
    yield from _disks(host)
    yield from _mounts(host)
    yield from _ports(host)


def _observe(trace: Trace, scrapes: Scrapes) -> Host:
    """Add up what jobs read, write and send."""
    length, nodes = len(trace.edges) - 1, len(trace.plant.hardware.nodes)
    disk, mount, written, waiting, kernel, saved = (np.zeros((length, nodes)) for _ in range(6))
    port = np.zeros((length, len(trace.plant.hardware.node)))
    for job in trace.jobs:
        moving = (np.diff(job.progress) / DT)[:, None]
        layout = job.layout
        for segment, conditions in enumerate(trace.conditions):
            rows = np.flatnonzero(trace.segment == segment)
            size = np.bincount(layout.node, read_bytes(job.plan, trace.plant, conditions), nodes)
            busy = np.zeros(nodes)
            np.maximum.at(busy, layout.node, read_seconds(job.plan, trace.plant, conditions))
            (disk if layout.job.data.source == "disk" else mount)[rows] += size * moving[rows]
            waiting[rows] = np.maximum(waiting[rows], np.clip(busy * moving[rows], 0.0, 1.0))
        sent = moving * _sent(job, trace.plant.hardware.model.port_rate)
        through = trace.spread("sockets")[:, [job.plan.row]] > 0
        port[:, layout.gpu] += np.where(through, 0.0, sent)
        np.add.at(kernel.T, layout.node, np.where(through, sent, 0.0).T)
        saving = (job.state == STATES.index("save_checkpoint"))[:, None]
        writers = np.unique(layout.node[layout.index("dp") == 0])
        longer = [save_factor(trace.plant, layout, held) for held in trace.conditions]
        rate = _SAVE_RATE / trace.spread("saving")[:, [job.plan.row]] / np.array(longer)[trace.segment, None]
        there = layout.job.checkpoint is not None and layout.job.checkpoint.to == "mount"
        (saved if there else written)[:, writers] += saving * rate
    return Host(trace, scrapes, disk, mount, written, waiting, port, kernel, saved)


def _sent(job: JobTrace, rate: float) -> Floats:
    """Return (R,): bytes that each rank sends to other nodes in a step."""
    layout = job.layout
    crosses = np.broadcast_to(layout.crosses[:, None], layout.shape).reshape(-1)
    return np.where(crosses, 0.85 * rate * job.plan.sync, 0.0) + 0.85 * rate * job.plan.p2p


def _noise(host: Host, purpose: str, shape: tuple[int, ...], sigma: float) -> Floats:
    return np.exp(sigma * generator(host.trace.plant.scenario.seed, purpose).standard_normal(shape))


def _family(host: Host, name: str, rows: tuple[Sequence[Labels], Ints], draw: Draw) -> Family:
    """Make a family whose series `i` has extra labels `rows[0][i]` and stands on node `rows[1][i]`."""
    extra, node = rows
    target = host.scrapes.of("node")[node]
    labels = [{**host.scrapes.targets[t].labels, **more} for t, more in zip(target, extra, strict=True)]
    when = host.scrapes.times[target]
    kind: MetricType = "counter" if name.endswith("_total") else "info" if name.endswith("_info") else "gauge"
    return Family(name, kind, labels, target, lambda: draw(when))


def _each(host: Host, **labels: str) -> tuple[list[Labels], Ints]:
    nodes = np.arange(len(host.trace.plant.hardware.nodes))
    return [labels for _ in nodes], nodes


def _steady(values: Floats) -> Draw:
    """Return the same value of each series at all times."""
    return lambda when: np.repeat(values[:, None], when.shape[1], axis=1)


def _counter(rate: Floats, rows: Ints, start: float = 0.0) -> Draw:
    """Return seconds counted from `rate` (T, entities) a second."""
    return lambda when: start + grow(rate, rows, when)


def _basics(host: Host, epoch: float) -> Iterator[Family]:
    every = _each(host)
    nodes = every[1]
    kernel = {"sysname": "Linux", "release": "5.15.0-1058-generic"}
    names: list[Labels] = [{"nodename": host.trace.plant.hardware.nodes[node], **kernel} for node in nodes]
    yield _family(host, "node_uname_info", (names, nodes), _steady(np.ones(len(nodes))))
    yield _family(host, "node_os_info", _each(host, pretty_name="Ubuntu 22.04.4 LTS"), _steady(np.ones(len(nodes))))
    yield _family(host, "node_dmi_info", _each(host, bios_version="2.1.7"), _steady(np.ones(len(nodes))))
    yield _family(host, "node_network_mtu_bytes", _each(host, device="eth0"), _steady(np.full(len(nodes), 9000.0)))
    yield _family(host, "node_boot_time_seconds", every, partial(hold, host.trace, _boots(host, epoch), nodes))
    yield _family(host, "node_memory_MemTotal_bytes", every, _steady(np.full(len(nodes), 2.16e12)))
    left = 1.0 - host.trace.spread("memory_taken")
    free = np.round(1.4e12 * left * _noise(host, "memory", host.waiting.shape, 0.01))
    yield _family(host, "node_memory_MemAvailable_bytes", every, lambda when: hold(host.trace, free, nodes, when))
    hundred = host.kernel_bytes + 2e5 * _noise(host, "eth", host.waiting.shape, 0.1)
    for way in ("receive", "transmit"):
        yield _family(host, f"node_network_{way}_bytes_total", _each(host, device="eth0"), _counting(hundred, nodes))
    for kind, rates in _pressures(host).items():
        yield _family(host, f"node_pressure_{kind}_seconds_total", every, _counter(rates, nodes, 1e4))


def _boots(host: Host, epoch: float) -> Floats:
    """Return (T, N): unix seconds of each node's last boot; one that was down has booted when it is back."""
    down = host.trace.spread("down") > 0
    back = np.zeros_like(down)
    back[1:] = down[:-1] & ~down[1:]
    since = np.where(back, host.trace.edges[:-1, None], -86400.0 * 12.0 - 977.0 * np.arange(down.shape[1]))
    return epoch + np.maximum.accumulate(since, axis=0)


def thrashed(trace: Trace) -> Floats:
    """Return (T, N): how far each host has used up its memory, from 0 to 1."""
    return np.stack([thrashing(conditions) for conditions in trace.conditions])[trace.segment]


def _pressures(host: Host) -> Mapping[str, Floats]:
    trace = host.trace
    shape = host.waiting.shape
    taken = trace.spread("cpu_taken")
    storage = host.waiting + 0.5 * (host.written + host.mount_write > 0)
    return {
        "cpu_waiting": np.clip(0.05 * _noise(host, "psi cpu", shape, 0.3) + 0.85 * taken, 0.0, 0.98),
        "io_waiting": np.clip(0.01 * _noise(host, "psi io", shape, 0.4) + 0.6 * storage, 0.0, 0.98),
        "io_stalled": np.clip(0.004 * _noise(host, "psi full", shape, 0.4) + 0.3 * storage, 0.0, 0.9),
        "memory_waiting": np.clip(0.001 * _noise(host, "psi mem", shape, 0.5) + 0.6 * thrashed(trace), 0.0, 0.98),
    }


def _processors(host: Host) -> Iterator[Family]:
    trace = host.trace
    cpus = trace.plant.scenario.cluster.cpus
    nodes = len(trace.plant.hardware.nodes)
    node = np.repeat(np.arange(nodes), cpus)
    running = np.zeros((len(trace.segment), nodes))
    for gpu, at in enumerate(trace.plant.hardware.node):
        running[:, at] = np.maximum(running[:, at], trace.gpu["running"][:, gpu])
    taken = trace.spread("cpu_taken")[:, node]
    wanted = (0.02 + 0.33 * running)[:, node] * _noise(host, "cpu", (len(running), len(node)), 0.15)
    wait = np.clip(0.1 * host.waiting[:, node], 0.0, 0.3) * (1.0 - taken)
    user = np.clip(taken + (1.0 - taken) * wanted, 0.0, 0.97)
    waited = wait * (1.0 - user)
    used = {"user": user * 0.88, "system": user * 0.12, "iowait": waited, "steal": 0.0 * user}
    for mode, rate in {**used, "idle": 1.0 - user - waited}.items():
        labels: list[Labels] = [{"cpu": str(index % cpus), "mode": mode} for index in range(len(node))]
        yield _family(host, "node_cpu_seconds_total", (labels, node), _counter(rate, np.arange(len(node))))


def _disks(host: Host) -> Iterator[Family]:
    trace, device = host.trace, _each(host, device="nvme0n1")
    nodes = device[1]
    bandwidth = trace.spread("disk_bandwidth")
    small = 2e6 * _noise(host, "disk", host.disk_read.shape, 0.3)
    read = np.minimum(host.disk_read + small, bandwidth)
    write = np.minimum(host.written + 3.0 * small, bandwidth)
    used = np.clip((read + write) / bandwidth, 0.0, 1.0)
    slow = _REQUEST / bandwidth * (1.0 + (_QUEUE - 1.0) * used)
    latency = (8e-5 + slow) * _noise(host, "disk latency", read.shape, 0.1)
    series = {
        "node_disk_read_bytes_total": read,
        "node_disk_reads_completed_total": read / _REQUEST,
        "node_disk_read_time_seconds_total": read / _REQUEST * latency,
        "node_disk_written_bytes_total": write,
        "node_disk_writes_completed_total": write / _REQUEST,
        "node_disk_write_time_seconds_total": write / _REQUEST * latency * 0.6,
        "node_disk_io_time_seconds_total": used,
    }
    for name, rate in series.items():
        yield _family(host, name, device, _counting(rate, nodes, name))


def _counting(rate: Floats, rows: Ints, name: str = "") -> Draw:
    """Return a counter with a past: whole numbers, unless its name says seconds."""

    def draw(when: Floats) -> Floats:
        total: Floats = 1e5 * (rate[0] > 0)[rows, None] + grow(rate, rows, when)
        return total if "seconds" in name else np.floor(total)

    return draw


def _mounts(host: Host) -> Iterator[Family]:
    trace = host.trace
    hardware = trace.plant.hardware
    if not len(hardware.mount_node):
        return
    latency = trace.spread("mount_latency")[:, hardware.mount_export]
    slowest = np.stack([mount_latency(trace.plant, conditions) for conditions in trace.conditions])[trace.segment]
    first = latency >= slowest[:, hardware.mount_node]
    request = next((job.layout.job.data.request for job in trace.jobs), 1e6)
    saved = np.where(first, host.mount_write[:, hardware.mount_node], 0.0) / request
    reads = 5.0 + np.where(first, host.mount_read[:, hardware.mount_node], 0.0) / request
    taken = latency * _noise(host, "mount", latency.shape, 0.15)
    stored = taken * np.where(saved > 0, _WRITE_QUEUE, 1.0)
    labels: list[Labels] = [
        {
            "export": hardware.exports[export],
            "mountaddr": hardware.exports[export].split(":")[0],
            "operation": "READ",
            "protocol": "tcp",
        }
        for export in hardware.mount_export
    ]
    rows, node = np.arange(len(labels)), hardware.mount_node
    prefix = "node_mountstats_nfs_operations"
    series = {
        f"{prefix}_requests_total": reads,
        f"{prefix}_response_time_seconds_total": reads * taken,
        f"{prefix}_request_time_seconds_total": reads * taken * 1.02,
        f"{prefix}_queue_time_seconds_total": reads * taken * 0.01,
        f"{prefix}_received_bytes_total": reads * request,
    }
    for name, rate in series.items():
        yield _family(host, name, (labels, node), _counting(rate, rows, name))
    writing: list[Labels] = [{**own, "operation": "WRITE"} for own in labels]
    writes = 0.5 + saved
    series = {"requests_total": writes, "response_time_seconds_total": writes * stored}
    series["sent_bytes_total"] = writes * request
    for name, rate in series.items():
        yield _family(host, f"{prefix}_{name}", (writing, node), _counting(rate, rows, name))


def _ports(host: Host) -> Iterator[Family]:
    trace = host.trace
    hardware = trace.plant.hardware
    labels: list[Labels] = [{"device": f"mlx5_{slot}", "port": "1"} for slot in hardware.slot]
    rows, node = np.arange(len(labels)), hardware.node
    place = (labels, node)
    rate = trace.spread("port_rate")
    prefix = "node_infiniband"
    boards = [{**own, "firmware_version": "28.39.3560", "hca_type": "MT4129"} for own in labels]
    yield _family(host, f"{prefix}_info", (boards, node), _steady(np.ones(len(labels))))
    yield _family(host, f"{prefix}_rate_bytes_per_second", place, lambda when: hold(trace, rate, rows, when))
    down = trace.spread("port_down") > 0
    for name, up, broken in (("state_id", 4.0, 1.0), ("physical_state_id", 5.0, 2.0)):
        state = np.where(down, broken, up)
        yield _family(host, f"{prefix}_{name}", place, partial(hold, trace, state, rows))
    crowded = np.ones_like(rate)
    for number, job in enumerate(trace.jobs):
        crowded[:, job.layout.gpu] = trace.spread("congestion")[:, [number]]
    share = host.port_bytes / rate
    waits = (2e4 + 2e6 * share) * _noise(host, "wait", rate.shape, 0.3) * (1.0 + 8.0 * (crowded - 1.0))
    marks = (0.5 + 20.0 * share) * _noise(host, "cnp", rate.shape, 0.5) * (1.0 + 15.0 * (crowded - 1.0))
    sent = host.port_bytes * _noise(host, "port", rate.shape, 0.005)
    series = {
        "port_data_transmitted_bytes_total": sent,
        "port_data_received_bytes_total": sent,
        "port_transmit_wait_total": waits,
        "symbol_error_total": trace.spread("symbol_errors"),
        "link_error_recovery_total": trace.spread("link_recoveries"),
        "link_downed_total": np.diff(down.astype(float), axis=0, prepend=0.0).clip(0.0) / DT + trace.spread("flaps"),
        "np_cnp_packets_sent_total": marks,
        "rp_cnp_packets_handled_total": marks,
    }
    for name, values in series.items():
        yield _family(host, f"{prefix}_{name}", place, _counting(values, rows))


def uplinks(trace: Trace, scrapes: Scrapes) -> Family:
    """Return the fabric exporter's view of which port hangs on which leaf: port k of every node of a unit on leaf k."""
    hardware = trace.plant.hardware
    per_unit = trace.plant.scenario.cluster.per_unit
    labels: list[Labels] = []
    for gpu, (node, slot) in enumerate(zip(hardware.node, hardware.slot, strict=True)):
        unit = int(node) // per_unit
        leaf = f"su{unit}-leaf{slot}"
        labels.append(
            {
                "instance": "fabric:9315",
                "job": "infiniband-exporter",
                "guid": f"0x7cfe90{unit:04x}{int(slot):06x}",
                "port": str(int(node) % per_unit + 1),
                "switch": leaf,
                "uplink": f"{hardware.nodes[node]} mlx5_{slot}",
                "uplink_guid": f"0x98039b{gpu:010x}",
                "uplink_port": "1",
                "uplink_type": "CA",
            }
        )
    target = scrapes.of("node")[hardware.node]
    values = np.ones((len(labels), scrapes.times.shape[1]))
    return Family("infiniband_switch_uplink_info", "info", labels, target, lambda: values)
