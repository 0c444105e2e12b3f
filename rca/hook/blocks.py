"""The blocks of a loop that are timed. None of them swallows an exception, and none raises one."""

from collections.abc import Callable
from typing import Any, Self

from rca.hook.record import FORWARD, Record
from rca.hook.timers import Timer

Take = Callable[[str, Timer, Any, Any], None]


class Step:
    """One step."""

    __slots__ = ("_number", "_record", "_start")

    def __init__(self, record: Record, number: int | None) -> None:
        self._record, self._number = record, number

    def __enter__(self) -> None:
        self._record.begin_step()
        self._start = self._record.clock()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._record.end_step(self._record.clock() - self._start, self._number)
        else:
            self._record.break_step()


class Timed:
    """Something that is timed where it happens, on the GPU's own stream where that is in use."""

    __slots__ = ("_name", "_record", "_start", "_take", "_timer")

    def __init__(self, record: Record, take: Take, name: str) -> None:
        self._record, self._take, self._name = record, take, name

    def __enter__(self) -> None:
        self._timer = self._record.timer
        self._start = self._record.mark()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        record, timer = self._record, self._timer
        if kind is not None or timer is not record.timer or self._start is None:
            return
        end = record.mark()
        if end is not None:
            self._take(self._name, timer, self._start, end)


class Phase(Timed):
    """A phase of a step."""

    __slots__ = ("_outer",)

    def __enter__(self) -> None:
        self._outer, self._record.within = self._record.within, self._name
        super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        super().__exit__(kind, *rest)
        self._record.within = self._outer


class DataWait:
    """A wait for input: the host's time, and inside of the forward pass what that took as well."""

    __slots__ = ("_inner", "_record", "_start")

    def __init__(self, record: Record) -> None:
        self._record = record
        self._inner = Timed(record, record.batched, "") if record.within == FORWARD else None

    def __enter__(self) -> None:
        if self._inner is not None:
            self._inner.__enter__()
        self._start = self._record.clock()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self._record.fed(self._record.clock() - self._start)
        if self._inner is not None:
            self._inner.__exit__(kind, *rest)


class Held:
    """A state that ends with a block."""

    __slots__ = ("_before", "_record")

    def __init__(self, record: Record, before: str) -> None:
        self._record, self._before = record, before

    def __enter__(self) -> None:
        self._record.held += 1

    def __exit__(self, *_: object) -> None:
        self._record.held -= 1
        self._record.enter(self._before)


class Checkpoint:
    """The writing or reading of a checkpoint; `step` and `bytes` may be set while it goes on."""

    def __init__(self, record: Record, op: str, mode: str) -> None:
        self._record, self._op, self._mode = record, op, mode
        self.step: int | None = None
        self.bytes: int | None = None

    def __enter__(self) -> Self:
        record = self._record
        self._held = Held(record, record.state) if self._mode == "sync" else None
        if self._held is not None:
            record.enter(f"{self._op}_checkpoint")
            self._held.__enter__()
        self._start = record.clock()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        record, seconds = self._record, self._record.clock() - self._start
        if kind is None:
            record.saved(self._op, self._mode, seconds, {"step": self.step, "bytes": self.bytes})
        elif issubclass(kind, Exception):
            record.unsaved(self._op, seconds, f"{kind.__name__}: {error}"[:500])
        if self._held is not None:
            self._held.__exit__()
