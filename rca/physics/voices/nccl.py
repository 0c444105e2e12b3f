"""What ProcessGroupNCCL writes when a rank waits in vain, its peer closes a connection, or its GPU fails.

`[Rank 3]` is the place in the communicator, `[rank17]` in front of a line the rank in the job. Sequence numbers count in
one communicator; those of point-to-point batches count what a rank itself has sent or received, so they differ from
stage to stage. Sources: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp and lines quoted in issues of the versions 2.1,
2.4 and 2.6; misc/socket.cc and transport/net_ib.cc of NCCL.
"""

from collections.abc import Iterator
from typing import NamedTuple

from rca.physics.voices.stamps import Said, logged

UNSIZED = 2**64 - 1
"""What a batch of sends and receives says of its size."""
_NCCL = {"2.1": "2.18.1", "2.4": "2.20.5", "2.6": "2.21.5"}
_FAILED = (
    "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations "
    "might run on corrupted/incomplete data."
)
_DOWN = "To avoid data inconsistency, we are taking the entire process down."
_NOT_TRACED = (
    "Stack trace of the failed collective not found, potentially because FlightRecorder is disabled. You can enable it by "
    "setting TORCH_NCCL_TRACE_BUFFER_SIZE to a non-zero value."
)
_ASYNCHRONOUS = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
    "",
)


class Version(NamedTuple):
    """What differs from version to version: lines of the source, who ends, and by which exception."""

    caught: int
    status: int
    failed: int
    down: int
    ended: int
    who: str
    exception: str
    raised: str


VERSIONS = {
    "2.1": Version(
        474, 0, 488, 494, 915, "NCCL", "std::runtime_error", "../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:476"
    ),
    "2.4": Version(
        607, 1664, 621, 627, 1515, "Process group", "c10::DistBackendError",
        "../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:609",
    ),
    "2.6": Version(
        629, 2168, 681, 695, 1895, "Process group", "c10::DistBackendError",
        "/pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:632",
    ),
}  # fmt: skip


class Work(NamedTuple):
    """A collective that does not end: where, which, and how far the rank has come there.

    `place` is the rank's in the communicator, of `own` and `guid` number and a name.
    """

    rank: int
    place: int
    own: int
    guid: int
    name: str
    sequence: int
    enqueued: int
    operation: str
    sizes: tuple[int, int]


class Voice(NamedTuple):
    """A process of one version of PyTorch."""

    torch: str

    def head(self, time: float, rank: int, number: int, level: str = "E") -> str:
        """Return what stands in front of a line; 2.1 tells no time and no rank.

        >>> Voice("2.6").head(1767571200.25, 17, 629), Voice("2.1").head(0.0, 17, 474)
        ('[rank17]:[E105 00:00:00.250000000 ProcessGroupNCCL.cpp:629] ', '[E ProcessGroupNCCL.cpp:474] ')
        """
        if self.torch == "2.1":
            return f"[{level} ProcessGroupNCCL.cpp:{number}] "
        return f"[rank{rank}]:[{level}{logged(time)} ProcessGroupNCCL.cpp:{number}] "

    def prefixed(self, rank: int) -> str:
        """Return what stands in front of the lines of a traceback."""
        return "" if self.torch == "2.1" else f"[rank{rank}]: "

    def group(self, work: Work) -> str:
        """Return how a line names the communicator and the rank in it."""
        if self.torch == "2.1":
            return f"[Rank {work.place}] "
        if self.torch == "2.4":
            return f"[PG {work.guid} ({work.name}) Rank {work.place}] "
        return f"[PG ID {work.own} PG GUID {work.guid}({work.name}) Rank {work.place}] "

    def times_out(self, time: float, work: Work, patience: float, ran: float) -> Iterator[Said]:
        """Yield what a watchdog writes that gives up on a collective after `ran` seconds, and its process with it."""
        version = VERSIONS[self.torch]
        size = f"NumelIn={work.sizes[0]}, NumelOut={work.sizes[1]}"
        told = (
            f"[Rank {work.place}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={work.sequence}, "
            f"OpType={work.operation}, {size}, Timeout(ms)={round(patience * 1000)}) ran for {round(ran * 1000)} milliseconds "
            "before timing out."
        )
        yield Said(time, self.head(time, work.rank, version.caught) + told)
        yield from self._failed(time + 2e-4, work, timed_out=True)
        raised = f"Exception raised from checkTimeout at {version.raised} (most recent call first):"
        yield from self._ends(time + 1e-3, work, [told, raised, *_frames("WorkNCCL::checkTimeout")])

    def loses_peer(self, time: float, work: Work, said: tuple[str, str]) -> Iterator[Said]:
        """Yield what a process writes whose peer is gone; `said` is what NCCL warns of, with its place in front, and its
        last error.
        """
        warned, last = said
        yield Said(time, "")
        yield Said(time, warned)
        yield from self._failed(time + 0.05, work, timed_out=False)
        line = 2363 if self.torch == "2.6" else 1687
        where = f"/pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:{line}"
        told = [
            f"NCCL error: remote process exited or there was a network error, NCCL version {_NCCL[self.torch]}",
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
            "Last error:",
            last,
            f"Exception raised from checkForNCCLErrorsInternal at {where} (most recent call first):",
        ]
        yield from self._ends(time + 0.051, work, [*told, *_frames("checkForNCCLErrorsInternal")])

    def loses_gpu(self, time: float, work: Work) -> Iterator[Said]:
        """Yield what a process writes whose GPU answers no more."""
        raised = "Exception raised from c10_cuda_check_implementation at /pytorch/c10/cuda/CUDAException.cpp:43 "
        told = ["CUDA error: unspecified launch failure", *_ASYNCHRONOUS, f"{raised}(most recent call first):"]
        yield from self._ends(time, work, [*told, *_frames("WorkNCCL::finishedGPUExecutionInternal")])

    def _failed(self, time: float, work: Work, *, timed_out: bool) -> Iterator[Said]:
        version = VERSIONS[self.torch]
        done = work.sequence - 1
        status = self.head(time, work.rank, version.status) + self.group(work)
        if self.torch == "2.4":
            counts = f"last enqueued NCCL work: {work.enqueued}, last completed NCCL work: {done}."
            caught = f"Exception (either an error or timeout) detected by watchdog at work: {work.sequence}, {counts}"
            yield Said(time, status + caught)
            if timed_out:
                again = self.head(time, work.rank, 1709) + self.group(work)
                yield Said(time, f"{again}Timeout at NCCL work: {work.sequence}, {counts}")
        if self.torch == "2.6":
            counts = f"PG status: last enqueued work: {work.enqueued}, last completed work: {done}"
            yield Said(time, f"{status} failure detected by watchdog at work sequence id: {work.sequence} {counts}")
            yield Said(time, self.head(time, work.rank, 667) + _NOT_TRACED)
        own = "" if self.torch == "2.1" else f"[Rank {work.place}] "
        yield Said(time, self.head(time, work.rank, version.failed) + own + _FAILED)
        yield Said(time, self.head(time, work.rank, version.down) + own + _DOWN)

    def _ends(self, time: float, work: Work, told: list[str]) -> Iterator[Said]:
        """Yield the end of a watchdog, and with it of the process; the exception is told twice."""
        version = VERSIONS[self.torch]
        ended = f"{self.group(work)}{version.who} watchdog thread terminated with exception: {told[0]}"
        yield Said(time, self.head(time, work.rank, version.ended) + ended)
        yield from (Said(time, line) for line in (*told[1:], ""))
        yield Said(time, f"terminate called after throwing an instance of '{version.exception}'")
        yield Said(time, f"  what():  {ended}")
        yield from (Said(time, line) for line in (*told[1:], ""))


def _frames(where: str) -> list[str]:
    library = "/usr/local/lib/python3.10/dist-packages/torch/lib"
    return [
        f"frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f2a1b3161b6 in {library}/libc10.so)",
        f"frame #1: c10d::ProcessGroupNCCL::{where} + 0x2b4 (0x7f29c8ffec74 in {library}/libtorch_cuda.so)",
        f"frame #2: c10d::ProcessGroupNCCL::ncclCommWatchdog() + 0x14d (0x7f29c9001a6d in {library}/libtorch_cuda.so)",
        "frame #3: clone + 0x44 (0x7f2a1f735a04 in /usr/lib/x86_64-linux-gnu/libc.so.6)",
    ]


def out_of_memory(voice: Voice, rank: int, device: int, capacity: float) -> list[str]:
    """Return the traceback of a process whose GPU, of `capacity` GiB, has no room left for 2 GiB."""
    free, other = 1.31, 3.27
    used = capacity - free
    name = "torch.cuda.OutOfMemoryError" if voice.torch == "2.1" else "torch.OutOfMemoryError"
    total = "capacty" if voice.torch == "2.1" else "capacity"
    advice = (
        "If reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation.  See documentation "
        "for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
        if voice.torch == "2.1"
        else "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
        "fragmentation.  See documentation for Memory Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )
    told = (
        f"{name}: CUDA out of memory. Tried to allocate 2.00 GiB. GPU {device} has a total {total} of {capacity:.2f} GiB of "
        f"which {free:.2f} GiB is free. Including non-PyTorch memory, this process has {used:.2f} GiB memory in use. Of the "
        f"allocated memory {used - other:.2f} GiB is allocated by PyTorch, and {other - 1.0:.2f} GiB is reserved by PyTorch but "
        f"unallocated. {advice}"
    )
    lines = [
        "Traceback (most recent call last):",
        '  File "/workspace/pretrain_gpt.py", line 312, in <module>',
        "    pretrain(",
        '  File "/workspace/megatron/training/training.py", line 401, in pretrain',
        "    iteration, num_floating_point_operations_so_far = train(",
        '  File "/workspace/megatron/core/transformer/mlp.py", line 121, in forward',
        "    intermediate_parallel, bias_parallel = self.linear_fc1(hidden_states)",
        told,
    ]
    return [voice.prefixed(rank) + line for line in lines]
