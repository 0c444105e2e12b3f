"""GPUs read in a process of their own: a driver that hangs keeps nobody waiting but that process.

What was read last is shown until it is too old; then nothing is, and `up` says so. A process that says nothing for long
is ended and started again, and so is one that has ended; where even that hangs, nobody starts a second one.
"""

import contextlib
import importlib
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import ModuleType

from rca.errors import SourceError
from rca.exporter.nvml import Family, Node, Snapshot

LEAST = 2.0
"""Seconds between two readings, at least: to ask the driver takes time from who trains."""
FIRST = 60.0
"""Seconds within which a driver that nobody uses yet should have started its GPUs."""
PATIENCE = 30.0
PAUSE = 10.0
_SPAWN = multiprocessing.get_context("spawn")


class Gpus:
    """What the GPUs of this node say, read every `interval` seconds.

    `clock` is monotonic. `tell` takes what is to be said of trouble.
    """

    pause = PAUSE
    """Seconds before another try."""

    def __init__(
        self,
        hostname: str,
        interval: float,
        tell: Callable[[str], None],
        clock: Callable[[], float],
        library: str = "pynvml",
    ) -> None:
        self._started = (hostname, max(interval, LEAST), library)
        self._tell, self._clock = tell, clock
        self._interval = max(interval, LEAST)
        self._latest: tuple[float, Snapshot] | None = None
        self._ending = threading.Event()
        self._process: SpawnProcess | None = None
        self.restarts = 0

    @property
    def up(self) -> bool:
        """Say whether what was read last still holds."""
        return self._latest is not None and self._clock() - self._latest[0] < 2.0 * self._interval + PATIENCE

    def snapshot(self) -> Snapshot:
        """Return what was read last, nothing where that is too old."""
        return self._latest[1] if self._latest is not None and self.up else Snapshot((), {}, {})

    def start(self) -> None:
        """Read once, and go on reading in the background; raises SourceError where there is nothing to read."""
        line = self._begin()
        said = line.recv() if line.poll(FIRST) else f"NVML does not answer within {FIRST:g} s"
        if isinstance(said, str):
            self._kill()
            raise SourceError(f"nvml: {said}")
        self._latest = (self._clock(), said)
        threading.Thread(target=self._watch, args=(line,), name="rca-gpus", daemon=True).start()

    def close(self) -> None:
        """End the process that reads."""
        self._ending.set()
        self._kill()

    def _begin(self) -> Connection:
        ours, theirs = _SPAWN.Pipe(duplex=False)
        process = _SPAWN.Process(target=run, args=(theirs, *self._started), daemon=True, name="rca-nvml")
        process.start()
        theirs.close()
        self._process = process
        if self._ending.is_set():
            self._kill()
        return ours

    def _watch(self, line: Connection) -> None:
        """Take what is read, and begin anew where nothing comes any more."""
        while not self._ending.is_set():
            said = self._next(line)
            if isinstance(said, Snapshot):
                self._latest = (self._clock(), said)
                continue
            if self._ending.is_set():
                return
            self._tell(f"{said}; it is tried again")
            line.close()
            self._kill()
            while self._process is not None and self._process.is_alive() and not self._ending.wait(self.pause):
                self._kill()
            if self._ending.wait(self.pause):
                return
            self.restarts += 1
            line = self._begin()

    def _next(self, line: Connection) -> Snapshot | str:
        """Return the next reading, or why there is none."""
        try:
            if not line.poll(self._interval + FIRST):
                return f"NVML has not answered for {self._interval + FIRST:g} s"
            said: Snapshot | str = line.recv()
        except (EOFError, OSError):
            return "the process that reads NVML has ended"
        return said

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join(1.0)


def run(line: Connection, hostname: str, interval: float, library: str) -> None:
    """Read GPUs and send what they say, until nobody takes it any more: the whole of the process that reads."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError), reading(hostname, library) as node:
        if isinstance(node, str):
            line.send(node)
            return
        while True:
            line.send(node.read())
            node.wait(interval) if node.listens else time.sleep(interval)


@contextmanager
def reading(hostname: str, library: str) -> Iterator[Node | str]:
    """Open NVML, and yield the node, or why there is none."""
    try:
        nvml = importlib.import_module(library)
    except ImportError:
        yield "nvidia-ml-py is not installed, pip install 'rca[nvml]'"
        return
    node = Node(nvml, hostname, time.monotonic)  # noqa: TID251 - the clock is handed in here
    try:
        node.open()
    except nvml.NVMLError as error:
        yield absent(nvml, error)
        return
    yield node if node.boards else "there is no GPU on this node"


def absent(nvml: ModuleType, error: Exception) -> str:
    """Say why NVML cannot be used."""
    if isinstance(error, nvml.NVMLError_LibraryNotFound):
        return "libnvidia-ml.so.1 is not there, is the NVIDIA driver installed on this node"
    if isinstance(error, nvml.NVMLError_DriverNotLoaded):
        return "the NVIDIA driver is not loaded, is there a GPU on this node"
    return f"NVML cannot be used: {str(error).lower()}"


def families(gpus: Gpus) -> tuple[Family, ...]:
    """Return what the GPUs say, and how well they can be read."""
    said = gpus.snapshot()
    unsupported = tuple(({"gpu": gpu}, float(count)) for gpu, count in sorted(said.unsupported.items()))
    errors = tuple(({"error": error}, float(count)) for error, count in sorted(said.errors.items()))
    own = (
        Family("rca_exporter_nvml_up", "gauge", "Whether NVML answers.", (({}, float(gpus.up)),)),
        Family("rca_exporter_nvml_restarts_total", "counter", "Times the process that reads NVML was started again.", (({}, float(gpus.restarts)),)),
        Family("rca_exporter_nvml_unsupported_fields", "gauge", "Numbers that a GPU or its driver does not know.", unsupported),
        Family("rca_exporter_nvml_errors_total", "counter", "Questions that NVML answered with an error.", errors),
    )  # fmt: skip
    return (*said.families, *own)
