"""How long something took: by the clock of the host, or on the GPU's own stream where that is what works.

On a GPU the host only orders work and runs ahead of it, so its clock says little about a phase. Events in the stream
say when the GPU reached them; they are read later, when they have passed, and nobody waits for them.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

Action = Callable[[], None]
FAILURES = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError,
    Warning,
)  # fmt: skip
"""What torch raises when CUDA is in trouble, or speaks another dialect than expected, and what strange values raise when
they are asked for a number; warnings where they are errors."""
_WAITING = 4096


class Timer(Protocol):
    """Marks points in time, and tells how far apart two are."""

    def mark(self) -> Any:  # noqa: ANN401 - a number, or an event of torch
        """Mark this moment."""

    def between(self, start: Any, end: Any) -> float:  # noqa: ANN401
        """Return the seconds from one mark to another."""

    def when(self, mark: Any, action: Action) -> None:  # noqa: ANN401
        """Do something as soon as a mark has passed."""

    def settle(self) -> None:
        """Do what has become due."""


class HostTimer:
    """Marks by the host's clock; they have passed as soon as they are there."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.mark = clock

    def between(self, start: float, end: float) -> float:
        """Return the seconds between two readings of the clock."""
        return end - start

    def when(self, mark: float, action: Action) -> None:  # noqa: ARG002 - it has passed
        """Do it at once."""
        action()

    def settle(self) -> None:
        """Do nothing, for nothing is put off."""


class CudaTimer:
    """Marks by events in the current stream of the GPU; `torch` is the module, already imported and in use."""

    def __init__(self, torch: Any) -> None:  # noqa: ANN401 - torch is not there to be typed
        self._cuda = torch.cuda
        self._due: deque[tuple[Any, Action]] = deque()
        self._aside = torch.cuda.Stream()
        self.device: int = torch.cuda.current_device()

    @classmethod
    def find(cls, modules: Mapping[str, Any]) -> "CudaTimer | None":
        """Return a timer where torch has been imported and has begun to use CUDA."""
        torch = modules.get("torch")
        return cls(torch) if torch is not None and torch.cuda.is_initialized() else None

    def mark(self) -> Any:  # noqa: ANN401 - an event of torch
        """Record an event."""
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: Any, end: Any) -> float:  # noqa: ANN401
        """Return the seconds between two events that have passed; torch counts in milliseconds."""
        return float(start.elapsed_time(end)) / 1e3

    def when(self, mark: Any, action: Action) -> None:  # noqa: ANN401
        """Put it off until the event has passed; where far too much waits, it is never done."""
        if len(self._due) < _WAITING:
            self._due.append((mark, action))

    def settle(self) -> None:
        """Do what has become due, in order."""
        while self._due and self._due[0][0].query():
            self._due.popleft()[1]()

    def copy(self, tensor: Any) -> Any:  # noqa: ANN401
        """Copy a tensor on the GPU, so that the loop may go on to change it."""
        return tensor.detach().clone()

    def read(self, tensor: Any) -> float:  # noqa: ANN401
        """Read a copy whose event has passed, in a stream of its own: the loop's own stream would be waited for."""
        with self._cuda.stream(self._aside):
            return float(tensor)

    def memory(self) -> dict[str, float]:
        """Return what the caching allocator counts, by metric."""
        stats = self._cuda.memory_stats(self.device)
        return {metric: float(stats[key]) for metric, key in _MEMORY.items() if key in stats}

    def gpu(self) -> dict[str, str]:
        """Return the labels of the GPU that the process works on; the UUID is certain whatever the launcher did."""
        told = self._cuda.get_device_properties(self.device)
        found = {}
        uuid = str(getattr(told, "uuid", ""))
        if uuid:
            found["gpu_uuid"] = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        parts = [getattr(told, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")]
        domain, bus, device = (one if isinstance(one, int) else -1 for one in parts)
        if min(domain, bus, device) >= 0:
            found["pci_bus_id"] = f"{domain:08X}:{bus:02X}:{device:02X}.0"
        return found


_MEMORY = {
    "train_gpu_memory_allocated_bytes": "allocated_bytes.all.current",
    "train_gpu_memory_reserved_bytes": "reserved_bytes.all.current",
    "train_gpu_memory_peak_bytes": "allocated_bytes.all.peak",
    "train_alloc_retries_total": "num_alloc_retries",
    "train_oom_total": "num_ooms",
}
