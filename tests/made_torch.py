"""As much of torch on a GPU as `rca.hook` speaks to: work is queued, and the GPU comes to it when the test says so."""

from contextlib import contextmanager
from types import SimpleNamespace


class Event:
    """A mark in the stream, as `torch.cuda.Event(enable_timing=True)`."""

    def __init__(self, torch: "Torch") -> None:
        self._torch = torch
        self.at = 0.0

    def record(self) -> None:
        self._torch.check()
        self.at = self._torch.ordered

    def query(self) -> bool:
        self._torch.check()
        return self.at <= self._torch.done

    def elapsed_time(self, end: "Event") -> float:
        self._torch.check()
        assert end.query(), "torch raises where an event has not passed"
        return (end.at - self.at) * 1e3


class Tensor:
    """A number on the GPU; to read it in the loop's own stream would wait for all that is queued there."""

    is_cuda = True

    def __init__(self, torch: "Torch", value: float) -> None:
        self._torch, self._value, self._made = torch, value, torch.ordered

    def detach(self) -> "Tensor":
        return self

    def clone(self) -> "Tensor":
        return Tensor(self._torch, self._value)

    def __float__(self) -> float:
        self._torch.check()
        if not self._torch.aside or self._made > self._torch.done:
            self._torch.waited += 1
        return self._value


class Torch:
    """The module, as it stands in `sys.modules`."""

    __version__ = "9.9"

    def __init__(self) -> None:
        self.ordered = self.done = 0.0
        self.initialised, self.broken, self.aside = True, False, False
        self.waited = self.looked = 0
        self.cuda = SimpleNamespace(
            is_initialized=lambda: self.initialised, current_device=lambda: 0, Stream=object, stream=self._stream,
            Event=lambda enable_timing: Event(self), memory_stats=self._memory,
            get_device_properties=lambda _: SimpleNamespace(
                uuid="12345678-1234-1234-1234-123456789abc", pci_domain_id=0, pci_bus_id=0x8D, pci_device_id=0
            ),
        )  # fmt: skip

    def check(self) -> None:
        if self.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    @contextmanager
    def _stream(self, _):
        self.aside = True
        yield
        self.aside = False

    def _memory(self, device: int) -> dict[str, int]:
        self.check()
        self.looked += 1
        return {
            "allocated_bytes.all.current": 1024, "reserved_bytes.all.current": 2048, "allocated_bytes.all.peak": 1536,
            "num_alloc_retries": 3, "num_ooms": 0,
        }  # fmt: skip

    def tensor(self, value: float) -> Tensor:
        return Tensor(self, value)

    def works(self, seconds: float) -> None:
        """Queue some work."""
        self.ordered += seconds

    def catches_up(self) -> None:
        """Do all that is queued."""
        self.done = self.ordered
