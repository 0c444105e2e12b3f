"""The log files that ranks, hosts and launchers of a scenario would have written: what happened, in their own words.

    for page in files(world.trace, world.epoch):
        (folder / page.path).write_bytes(page.data)

Nothing is made from templates of known lines. Who says what follows from the physics: a rank that sleeps says nothing,
its peers wait in their communicators until their watchdogs give up, a process that dies closes its connections. What a
fault only `shows` is not in any log.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from rca.library import seconds
from rca.physics.conditions import Conditions
from rca.physics.run import JobTrace, Trace
from rca.physics.voices.fates import (
    BLOCKED,
    CLOSED,
    DIES,
    LAUNCH,
    MEMORY,
    STARVED,
    TIMES_OUT,
    UNREACHABLE,
    Fates,
    fates,
    patience,
)
from rca.physics.voices.kernel import Hosts
from rca.physics.voices.launcher import Launcher, pids
from rca.physics.voices.nccl import Voice, Work, out_of_memory
from rca.physics.voices.stamps import Said, collected
from rca.physics.voices.steps import Pages, started
from rca.physics.voices.works import works
from rca.physics.written import Logs

_ALLOCATABLE = 0.9935 / 1024.0
"""GiB that PyTorch sees of a MiB of a GPU's memory."""


class Page(NamedTuple):
    """A log file: its path below the folder, what stands in it, and when its last line was written, in unix seconds."""

    path: str
    data: bytes
    changed: float


def files(trace: Trace, epoch: float) -> Iterator[Page]:
    """Yield the log files of a scenario that begins at `epoch` (unix seconds).

    `NODE/rank_R.jsonl` are the hook's lines of a rank and `NODE/rank_R.err` its standard error, `launcher.log` is of the
    job, `NODE/kern.log` of a host that has anything to say. Several jobs have a folder each.
    """
    hosts = Hosts(trace, epoch)
    kernel = list(hosts.of_machines())
    for job in trace.jobs:
        name = f"{job.layout.job.id}/" if len(trace.jobs) > 1 else ""
        speaker = _Speaker(trace, job, epoch)
        kernel += speaker.kernel(hosts)
        for page in speaker.pages():
            yield page._replace(path=name + page.path)
    yield from _kernels(trace, kernel, epoch)


def _kernels(trace: Trace, told: Iterable[tuple[int, Said]], epoch: float) -> Iterator[Page]:
    """Yield what hosts have written until the end of the scenario, or of their power."""
    end = epoch + float(trace.edges[-1])
    by_node: dict[int, list[Said]] = {}
    for node, said in told:
        if said.time < min(end, epoch + _power(trace.conditions, node)):
            by_node.setdefault(node, []).append(said)
    for node, lines in sorted(by_node.items()):
        lines.sort(key=lambda one: one.time)
        text = "".join(f"{one.text}\n" for one in lines)
        yield Page(f"{trace.plant.hardware.nodes[node]}/kern.log", text.encode(), lines[-1].time)


def _power(conditions: Iterable[Conditions], node: int) -> float:
    """Return when a node goes down, inf where it never does."""
    return next((held.since for held in conditions if held["down"][node] > 0), np.inf)


class _Speaker:
    """What the ranks and the launcher of one job write."""

    def __init__(self, trace: Trace, job: JobTrace, epoch: float) -> None:
        self._trace, self._job, self._epoch = trace, job, epoch
        self._logs = job.layout.job.logs or Logs()
        self._voice = Voice(self._logs.torch)
        self._told: Fates = fates(trace, job)
        self._pids = pids(trace, job)
        self._end = epoch + float(trace.edges[-1])
        self._works = works(trace, job, self._told) if np.isfinite(self._told.stopped) else []

    def pages(self) -> Iterator[Page]:
        """Yield the files of all ranks, and the launcher's."""
        layout = self._job.layout
        steps = Pages(self._trace, self._job, self._epoch)
        last = np.minimum(self._told.silent(), float(self._trace.edges[-1]))
        for rank, until in enumerate(last.tolist()):
            folder = self._trace.plant.hardware.nodes[layout.node[rank]]
            path = f"{folder}/rank_{rank}"
            yield Page(f"{path}.jsonl", steps.of(rank, until, int(self._pids[rank])), self._epoch + until)
            yield self._page(f"{path}.err", self._stderr(rank))
        launcher = Launcher(self._trace, self._job, self._told, self._epoch)
        yield self._page("launcher.log", sorted(launcher.lines(), key=lambda one: one.time))

    def kernel(self, hosts: Hosts) -> Iterator[tuple[int, Said]]:
        """Yield what hosts write of the job's processes."""
        told, node = self._told, self._job.layout.node.tolist()
        for rank in np.flatnonzero(told.how == STARVED).tolist():
            yield from hosts.kills(node[rank], float(told.when[rank]) - 0.5, int(self._pids[rank]))
        for rank in np.flatnonzero(told.how == BLOCKED).tolist():
            yield from hosts.hangs(node[rank], float(told.when[rank]), int(self._pids[rank]))

    def _page(self, path: str, lines: Iterable[Said]) -> Page:
        """Return a file of text, in front of which the collector's time stands where there is one."""
        kept = [one for one in lines if one.time < self._end]
        heads = {time: collected(time) for time in {one.time for one in kept}} if self._logs.format == "cri" else {}
        text = "".join(f"{heads.get(one.time, '')}{one.text}\n" for one in kept)
        return Page(path, text.encode(), kept[-1].time if kept else self._end)

    def _stderr(self, rank: int) -> Iterator[Said]:
        yield from self._greeting(rank)
        told = self._told
        for fault in self._trace.plant.scenario.faults:
            if fault.says is not None and fault.on.rank == rank and fault.on.job in (None, self._job.layout.job.id):
                yield Said(self._epoch + seconds(fault.at), self._voice.prefixed(rank) + fault.says)
        how, now = int(told.how[rank]), self._epoch + float(told.when[rank])
        if how == TIMES_OUT:
            ran = float(told.when[rank] - told.wait.since[rank])
            yield from self._voice.times_out(now, self._works[rank], patience(self._logs), ran)
        elif how in (CLOSED, UNREACHABLE):
            yield from self._voice.loses_peer(now, self._works[rank], self._lost_peer(rank))
        elif how == LAUNCH:
            yield from self._voice.loses_gpu(now, self._works[rank])
        elif how == MEMORY:
            yield from self._memory(rank, now)

    def _greeting(self, rank: int) -> Iterator[Said]:
        """Yield what PyTorch warns of at the first barrier of any job that names no device."""
        begun = started(self._trace, self._job)
        if begun is None or self._logs.torch == "2.1":
            return
        device = int(self._trace.plant.hardware.slot[self._job.layout.gpu[rank]])
        world = Work(rank, rank, 0, 0, "default_pg", 0, 0, "", (0, 0))
        at = self._epoch + begun + 9.0 + 1e-3 * (rank % 97)
        text = (
            f" using GPU {device} to perform barrier as devices used by this process are currently unknown. This can "
            "potentially cause a hang if this rank to GPU mapping is incorrect. Specify device_ids in barrier() to force use "
            "of a particular device, or call init_process_group() with a device_id."
        )
        number = 4115 if self._logs.torch == "2.6" else 3960
        yield Said(at, self._voice.head(at, rank, number, "W") + self._voice.group(world) + text)

    def _memory(self, rank: int, now: float) -> Iterator[Said]:
        hardware = self._trace.plant.hardware
        device = int(hardware.slot[self._job.layout.gpu[rank]])
        for line in out_of_memory(self._voice, rank, device, hardware.model.memory * _ALLOCATABLE):
            yield Said(now, line)

    def _lost_peer(self, rank: int) -> tuple[str, str]:
        """Return what NCCL warns of, with its place in front, and its last error, when a peer is gone."""
        layout, hardware = self._job.layout, self._trace.plant.hardware
        peer = int(self._told.by[rank])
        port = 32768 + (7919 * rank) % 28000
        place = int(hardware.slot[layout.gpu[rank]])
        pid = int(self._pids[rank])
        head = f"{hardware.nodes[layout.node[rank]]}:{pid}:{pid + 400} [{place}]"
        if int(self._told.how[rank]) == CLOSED:
            last = f"socketProgress: Connection closed by remote peer {hardware.nodes[layout.node[peer]]}<{port}>"
            return f"{head} misc/socket.cc:49 NCCL WARN {last}", last
        node = int(layout.node[peer if peer >= 0 else rank])
        address = f"10.0.{node // 250}.{node % 250 + 1}<{port}>"
        where = f"localGid ::ffff:10.1.{int(layout.node[rank]) // 250}.{int(layout.node[rank]) % 250 + 1}"
        last = f"NET/IB: Got completion from peer {address} with status=12 opcode=0 len=0 vendor err 129 (Send) {where} hca mlx5_{place}"
        return f"{head} transport/net_ib.cc:1698 NCCL WARN {last}", last


__all__ = ["DIES", "Page", "files"]
