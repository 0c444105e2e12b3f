"""What the kernels of hosts write: a GPU that is lost or does not answer, the OOM killer, a port without a link, a mount.

Formats: NVIDIA's open-gpu-kernel-modules and lines quoted from hosts for Xid 79 and 119; mm/oom_kill.c, kernel/hung_task.c,
net/sunrpc/clnt.c and drivers/net/ethernet/mellanox/mlx5 of Linux.
"""

from collections.abc import Iterator

import numpy as np

from rca.physics.conditions import Conditions
from rca.physics.dcgm import bus
from rca.physics.run import Trace
from rca.physics.voices.stamps import Said, system

_NO_ANSWER = 45.0
"""Seconds that the driver waits for the GPU's own processor."""
_MAJOR = 180.0
"""Seconds until an NFS client complains of a server: timeo of 60 s, doubled once for retrans=2."""
_HUNG = 120.0
_OOM = 1_900_000_000
"""kB of memory that a rank's process holds."""


class Hosts:
    """The kernels of a scenario's hosts; `epoch` is when it begins, in unix seconds."""

    def __init__(self, trace: Trace, epoch: float) -> None:
        self._trace, self._epoch = trace, epoch
        self._names = trace.plant.hardware.nodes

    def of_machines(self) -> Iterator[tuple[int, Said]]:
        """Yield lines of GPUs and ports with their node, in the order of the changes."""
        before = None
        for held in self._trace.conditions:
            for name, tell in (("lost", self._lost), ("frozen", self._frozen), ("port_down", self._down)):
                fresh = held[name] > 0 if before is None else (held[name] > 0) & ~(before[name] > 0)
                for gpu in np.flatnonzero(fresh).tolist():
                    yield from tell(gpu, held.since)
            if before is not None:
                for gpu in np.flatnonzero((before["port_down"] > 0) & ~(held["port_down"] > 0)).tolist():
                    yield from self._up(gpu, held.since)
            before = held

    def kills(self, node: int, at: float, pid: int) -> Iterator[tuple[int, Said]]:
        """Yield the lines of the OOM killer that takes a rank's process."""
        memory = f"anon-rss:{_OOM}kB, file-rss:912384kB, shmem-rss:24117248kB"
        for after, text in (
            (0.0, "python3 invoked oom-killer: gfp_mask=0x1100cca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0"),
            (0.4, f"oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,task_memcg=/system.slice/slurmstepd.scope/job_4711,task=python3,pid={pid},uid=1000"),
            (0.4, f"Out of memory: Killed process {pid} (python3) total-vm:{_OOM + 412_000_000}kB, {memory}, UID:1000 pgtables:4125696kB oom_score_adj:0"),
            (2.1, f"oom_reaper: reaped process {pid} (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:24117248kB"),
        ):  # fmt: skip
            yield self._line(node, at + after, text)

    def hangs(self, node: int, at: float, pid: int) -> Iterator[tuple[int, Said]]:
        """Yield what is written of a process that reads from a mount which answers nothing."""
        hardware = self._trace.plant.hardware
        mine = hardware.mount_export[hardware.mount_node == node].tolist()
        held: Conditions = self._trace.conditions[self._trace.segment[np.searchsorted(self._trace.edges, at)]]
        server = next(hardware.exports[one].partition(":")[0] for one in mine if held["mount_frozen"][one] > 0)
        yield self._line(node, at + _MAJOR, f"nfs: server {server} not responding, still trying")
        for after in (1.6 * _HUNG, 2.6 * _HUNG):
            waited = 120 if after < 2 * _HUNG else 241
            yield self._line(node, at + after, f"INFO: task python3:{pid} blocked for more than {waited} seconds.")
            yield self._line(node, at + after, "      Not tainted 6.8.0-45-generic #45-Ubuntu")
            disables = '"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.'
            yield self._line(node, at + after, disables)
            state = f"task:python3         state:D stack:0     pid:{pid}  tgid:{pid}  ppid:{pid - 1}   flags:0x00000002"
            yield self._line(node, at + after, state)

    def _lost(self, gpu: int, at: float) -> Iterator[tuple[int, Said]]:
        card = self._card(gpu)
        for text in (
            f"NVRM: Xid (PCI:{card}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            f"NVRM: GPU {card}.0: GPU has fallen off the bus.",
        ):
            yield self._line(self._node(gpu), at, text)

    def _frozen(self, gpu: int, at: float) -> Iterator[tuple[int, Said]]:
        slot = int(self._trace.plant.hardware.slot[gpu])
        waits = (
            f"Timeout after 45s of waiting for RPC response from GPU{slot} GSP! Expected function 76 (GSP_RM_CONTROL)"
        )
        text = f"NVRM: Xid (PCI:{self._card(gpu)}): 119, pid=1187, name=nv-hostengine, {waits} (0x2080a068 0x4)."
        yield self._line(self._node(gpu), at + _NO_ANSWER, text)

    def _down(self, gpu: int, at: float) -> Iterator[tuple[int, Said]]:
        yield self._line(self._node(gpu), at, f"{self._port(gpu)}: Link down")

    def _up(self, gpu: int, at: float) -> Iterator[tuple[int, Said]]:
        yield self._line(self._node(gpu), at, f"{self._port(gpu)}: Link up")

    def _card(self, gpu: int) -> str:
        """Return a GPU's PCI address as NVRM writes it, without the function."""
        return bus(int(self._trace.plant.hardware.slot[gpu])).lower()[4:].removesuffix(".0")

    def _port(self, gpu: int) -> str:
        slot = int(self._trace.plant.hardware.slot[gpu])
        return f"mlx5_core 0000:{0x19 + 16 * slot:02x}:00.0 ens{slot}np0"

    def _node(self, gpu: int) -> int:
        return int(self._trace.plant.hardware.node[gpu])

    def _line(self, node: int, at: float, text: str) -> tuple[int, Said]:
        time = self._epoch + at
        return node, Said(time, f"{system(time)} {self._names[node]} kernel: {text}")
