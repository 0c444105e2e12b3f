"""What NVML says of the GPUs of this node, under the names, labels and units of dcgm-exporter.

NVML is asked through `pynvml` (the package nvidia-ml-py). What a GPU or driver does not know is left out and counted. A
GPU that is lost says nothing, as with dcgm-exporter.
"""

import ctypes
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import NamedTuple, TypeAlias

from rca.exporter.dcgm import CALLS, VALUES, Call, Kind

Labels: TypeAlias = dict[str, str]
Reading: TypeAlias = tuple[str, Kind, str, Labels, float]
"""A name, type, help, labels beside those of the GPU, and a value."""
WINDOW = 300.0
"""Seconds over which dcgm-exporter counts Xid errors."""
ALL_LINKS = 0xFFFFFFFF
MOST_LINKS = 36
_UNKNOWN = (
    "NVMLError_NotSupported",
    "NVMLError_FunctionNotFound",
    "NVMLError_InvalidArgument",
    "NVMLError_NoPermission",
)
_OVER = ("NVMLError_Uninitialized", "NVMLError_DriverNotLoaded", "NVMLError_LibRmVersionMismatch")
_LOST = ("NVMLError_GpuIsLost",)


class Family(NamedTuple):
    """One metric with its series."""

    name: str
    type: Kind
    help: str
    samples: tuple[tuple[Labels, float], ...]


class Snapshot(NamedTuple):
    """What was read at once: metrics, how many numbers each GPU does not know, and how often each error was met."""

    families: tuple[Family, ...]
    unsupported: dict[str, int]
    errors: dict[str, int]


class Lost(Exception):  # noqa: N818 - it is no fault of ours
    """The GPU has fallen off the bus."""


@dataclass
class Board:
    """One GPU: its handle, its labels, and what must be remembered of it."""

    handle: object
    labels: Labels
    links: int
    traffic: tuple[float, float] | None = None
    xid: int = 0


@dataclass
class Node:
    """The GPUs of a node; `clock` is monotonic, in seconds."""

    nvml: ModuleType
    hostname: str
    clock: Callable[[], float]
    boards: list[Board] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    _events: object = None
    _xids: deque[tuple[float, int, int]] = field(default_factory=deque)
    """When, on which GPU, and which."""

    def open(self) -> None:
        """Find the GPUs, and ask to be told of their Xid errors; raises NVMLError where NVML does not work."""
        nvml = self.nvml
        nvml.nvmlInit()
        driver = text(nvml.nvmlSystemGetDriverVersion())
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                self.boards.append(self._board(index, driver))
            except Lost:
                continue
            except nvml.NVMLError as error:
                self._count(error)
        self._listen()

    def _board(self, index: int, driver: str) -> Board:
        nvml = self.nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        labels = {
            "gpu": str(index),
            "UUID": text(nvml.nvmlDeviceGetUUID(handle)),
            "pci_bus_id": text(nvml.nvmlDeviceGetPciInfo(handle).busId),
            "device": f"nvidia{nvml.nvmlDeviceGetMinorNumber(handle)}",
            "modelName": text(nvml.nvmlDeviceGetName(handle)),
            "Hostname": self.hostname,
            "DCGM_FI_DRIVER_VERSION": driver,
        }
        [links] = self._numbered(handle, [(nvml.NVML_FI_DEV_NVLINK_LINK_COUNT, 0)])
        return Board(handle, labels, min(int(links or 0), MOST_LINKS))

    def read(self) -> Snapshot:
        """Read everything once; raises NVMLError where NVML itself is over."""
        families: dict[str, tuple[Kind, str, list[tuple[Labels, float]]]] = {}
        unsupported: dict[str, int] = {}
        for index, board in enumerate(self.boards):
            missing: list[str] = []
            try:
                rows = list(self._read(board, missing))
            except Lost:
                rows = []  # its last Xid error says why
            for name, kind, said, more, value in [*rows, *self._xid(index, board)]:
                families.setdefault(name, (kind, said, []))[2].append(({**board.labels, **more}, value))
            unsupported[board.labels["gpu"]] = len(missing)
        found = tuple(Family(name, kind, said, tuple(rows)) for name, (kind, said, rows) in sorted(families.items()))
        return Snapshot(found, unsupported, dict(self.errors))

    def wait(self, seconds: float) -> None:
        """Take note of Xid errors for so many seconds."""
        nvml, end = self.nvml, self.clock() + seconds
        while (left := end - self.clock()) > 0:
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, int(left * 1000) + 1)
            except nvml.NVMLError as error:
                if is_one(nvml, error, ("NVMLError_Timeout",)):
                    continue
                raise
            for index, board in enumerate(self.boards):
                if address(board.handle) == address(event.device):
                    board.xid = int(event.eventData)
                    self._xids.append((self.clock(), index, board.xid))

    @property
    def listens(self) -> bool:
        """Say whether any GPU tells of Xid errors."""
        return self._events is not None

    def _listen(self) -> None:
        """Ask to be told of Xid errors; where no GPU can, they stay unknown."""
        nvml = self.nvml
        try:
            events = nvml.nvmlEventSetCreate()
            heard = sum(self._told(board, events) for board in self.boards)
        except nvml.NVMLError as error:
            self._count(error)
            return
        self._events = events if heard else None

    def _told(self, board: Board, events: object) -> bool:
        try:
            self.nvml.nvmlDeviceRegisterEvents(board.handle, self.nvml.nvmlEventTypeXidCriticalError, events)
        except self.nvml.NVMLError as error:
            self._count(error)
            return False
        return True

    def _read(self, board: Board, missing: list[str]) -> Iterator[Reading]:
        """Yield what one GPU says, and note the names of what it does not know."""
        results: dict[tuple[str, tuple[str, ...]], object] = {}
        for call in CALLS:
            asked = (call.function, call.arguments)
            if asked not in results:
                results[asked] = self._ask(board, call)
            if (result := results[asked]) is None:
                missing.append(call.name)
            else:
                yield call.name, call.type, call.help, {}, part(result, call.part) * call.factor
        yield from self._values(board, missing)
        yield from self._traffic(board, missing)
        yield from self._states(board)
        yield from self._fabric(board, missing)

    def _ask(self, board: Board, call: Call) -> object:
        """Return what a function says of a GPU, None where it does not know."""
        nvml = self.nvml
        try:
            arguments = [getattr(nvml, name) for name in call.arguments]
            result: object = getattr(nvml, call.function)(board.handle, *arguments)
        except AttributeError:
            return None  # an older pynvml
        except nvml.NVMLError as error:
            self._met(error)
            return None
        return result

    def _values(self, board: Board, missing: list[str]) -> Iterator[Reading]:
        """Yield what stands in numbered fields, all of them asked at once."""
        asked: list[tuple[int, int]] = []
        places: list[tuple[int, int]] = []
        for value in VALUES:
            number = getattr(self.nvml, value.field, None)
            scopes = [] if number is None else list(range(board.links)) if value.links else [0]
            places.append((len(asked), len(scopes)))
            asked += [(number, scope) for scope in scopes if number is not None]
        answers = self._numbered(board.handle, asked)
        for value, (begin, count) in zip(VALUES, places, strict=True):
            known = [answer for answer in answers[begin : begin + count] if answer is not None]
            if known:
                yield value.name, value.type, value.help, {}, sum(known)
            else:
                missing.append(value.name)

    def _numbered(self, handle: object, asked: list[tuple[int, int]]) -> list[float | None]:
        """Return numbered fields of a GPU, each with the link that is meant."""
        if not asked:
            return []
        nvml = self.nvml
        try:
            answers = nvml.nvmlDeviceGetFieldValues(handle, asked)
        except nvml.NVMLError as error:
            self._met(error)
            return [None] * len(asked)
        return [number(nvml, answer) for answer in answers]

    def _traffic(self, board: Board, missing: list[str]) -> Iterator[Reading]:
        """Yield what goes over all NVLinks, which DCGM has as thousands of KiB/s, from one reading to the next."""
        nvml, name, at = self.nvml, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", self.clock()
        ways = [(getattr(nvml, f"NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_{way}"), ALL_LINKS) for way in ("TX", "RX")]
        sent, received = self._numbered(board.handle, ways)
        if sent is None or received is None:
            missing.append(name)
            return
        before, board.traffic = board.traffic, (at, sent + received)
        if before is not None and at > before[0] and sent + received >= before[1]:
            said = "Traffic of all NVLinks, sent and received (in thousands of KiB/s)."
            yield name, "gauge", said, {}, (sent + received - before[1]) / (at - before[0]) / 1000

    def _states(self, board: Board) -> Iterator[Reading]:
        """Yield the state of each NVLink."""
        asked = [(self.nvml.NVML_FI_DEV_NVLINK_GET_STATE, link) for link in range(board.links)]
        for link, state in enumerate(self._numbered(board.handle, asked)):
            if state is not None:
                said = "State of an NVLink (0 inactive, 1 active, 2 asleep)."
                yield "DCGM_FI_DEV_NVLINK_GET_STATE", "gauge", said, {"nvlink": str(link)}, state

    def _fabric(self, board: Board, missing: list[str]) -> Iterator[Reading]:
        """Yield how the NVLink fabric is; DCGM tells success from failure where NVML has a state and a status."""
        nvml = self.nvml
        manager, health = "DCGM_FI_DEV_FABRIC_MANAGER_STATUS", "DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY"
        try:
            info = nvml.c_nvmlGpuFabricInfo_v3_t()
            nvml.nvmlDeviceGetGpuFabricInfoV(board.handle, ctypes.byref(info))
        except AttributeError:
            missing += [manager, health]
            return
        except nvml.NVMLError as error:
            self._met(error)
            missing += [manager, health]
            return
        failed = info.state == nvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status != nvml.NVML_SUCCESS
        said = "Fabric manager (0 not supported, 1 not started, 2 in progress, 3 success, 4 failure)."
        yield manager, "gauge", said, {}, 4.0 if failed else float(info.state)
        said = "NVLink fabric health (0 not supported, 1 healthy, 2 unhealthy, 3 limited)."
        yield health, "gauge", said, {}, float(info.healthSummary)

    def _xid(self, index: int, board: Board) -> Iterator[Reading]:
        """Yield the last Xid error, and how often each came of late; nothing where nobody tells."""
        if not self.listens:
            return
        while self._xids and self._xids[0][0] < self.clock() - WINDOW:
            self._xids.popleft()
        said = "Last Xid error since the exporter began, 0 before the first."
        yield "DCGM_FI_DEV_XID_ERRORS", "gauge", said, {"err_code": str(board.xid)}, float(board.xid)
        counted = Counter(xid for _, where, xid in self._xids if where == index)
        window = {"window_size_in_ms": f"{WINDOW * 1000:.0f}"}
        for xid, count in sorted(counted.items()):
            yield (
                "DCGM_EXP_XID_ERRORS_COUNT",
                "gauge",
                "Xid errors of the last five minutes.",
                {"xid": str(xid), **window},
                count,
            )

    def _met(self, error: Exception) -> None:
        """Take an error of one question for what it is: nothing known, a GPU that is lost, or the end of NVML."""
        if is_one(self.nvml, error, _UNKNOWN):
            return
        self._count(error)
        if is_one(self.nvml, error, _LOST):
            raise Lost
        if is_one(self.nvml, error, _OVER):
            raise error

    def _count(self, error: Exception) -> None:
        self.errors[str(error).lower()] += 1


def is_one(nvml: ModuleType, error: Exception, names: tuple[str, ...]) -> bool:
    """Say whether an error is of one of the classes named; they differ between versions of pynvml."""
    return isinstance(error, tuple(getattr(nvml, name) for name in names if hasattr(nvml, name)))


def number(nvml: ModuleType, answer: object) -> float | None:
    """Return the value of a numbered field, None where the GPU does not know it."""
    if getattr(answer, "nvmlReturn") != nvml.NVML_SUCCESS:  # noqa: B009 - a struct of ctypes
        return None
    kinds = {
        nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        getattr(nvml, "NVML_VALUE_TYPE_SIGNED_INT", 5): "siVal",
        getattr(nvml, "NVML_VALUE_TYPE_UNSIGNED_SHORT", 6): "usVal",
    }
    kind = kinds.get(getattr(answer, "valueType"))  # noqa: B009 - likewise
    return None if kind is None else float(getattr(getattr(answer, "value"), kind))  # noqa: B009 - likewise


def part(result: object, wanted: str | int | None) -> float:
    """Return the part of a result that is wanted.

    >>> part((3, 4), 1), part(7, None)
    (4.0, 7.0)
    """
    if wanted is None:
        return float(result)  # type: ignore[arg-type]
    return float(result[wanted] if isinstance(wanted, int) else getattr(result, wanted))  # type: ignore[index]


def text(said: str | bytes) -> str:
    """Return a text that older versions of pynvml have as bytes.

    >>> text(b"GPU-1"), text("GPU-1")
    ('GPU-1', 'GPU-1')
    """
    return said.decode(errors="replace") if isinstance(said, bytes) else said


def address(handle: object) -> int | None:
    """Return where a handle points to: two handles of one GPU point to the same place."""
    return ctypes.cast(handle, ctypes.c_void_p).value  # type: ignore[arg-type]
