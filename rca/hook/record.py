"""How what a loop says becomes series: the state between two calls, and nothing of the outside but clocks."""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from rca.hook.layout import Place
from rca.hook.series import STATES, Labels, Series
from rca.hook.settings import Settings
from rca.hook.timers import FAILURES, CudaTimer, HostTimer, Timer

LOG = logging.getLogger("rca.hook")
PHASE = "train_phase_duration_seconds"
FORWARD, BACKWARD, BATCH = "forward_compute", "backward_compute", "batch_generator"
_MEMORY_EVERY = 5.0
"""Seconds between two looks at the allocator's counts."""
_ENOUGH = 10
"""Failures of CUDA after which it is asked no more."""
_ZEROES: tuple[tuple[str, Labels], ...] = (
    ("train_steps_total", ()), ("train_data_wait_seconds_total", ()), ("train_gc_seconds_total", ()),
    ("train_skipped_steps_total", ()), ("train_checkpoint_failures_total", ()), ("train_hook_errors_total", ()),
    ("train_nonfinite_steps_total", (("kind", "nan"),)), ("train_nonfinite_steps_total", (("kind", "inf"),)),
)  # fmt: skip
"""Counters that begin at 0, so that their first rise is seen."""

Values = Mapping[str, float]


class Line:
    """What the log will say of a step: written once, when it has ended and its numbers are told."""

    __slots__ = ("data", "ended", "told", "written")

    def __init__(self) -> None:
        self.data: dict[str, float] = {}
        self.ended = self.told = self.written = False

    def write(self) -> None:
        """Write it, if it is time."""
        if self.ended and self.told and not self.written:
            self.written = True
            if LOG.isEnabledFor(logging.INFO):
                text = " ".join(f"{name}={brief(value)}" for name, value in self.data.items())
                LOG.info("%s", text, extra={"event": "TRAIN_STEP", "data": self.data})


def brief(value: float) -> str:
    """Write a number for people.

    >>> brief(1048576.0), brief(0.000150001), brief(2.3456789)
    ('1048576', '0.000150001', '2.34568')
    """
    return str(int(value)) if math.isfinite(value) and value == int(value) else f"{value:.6g}"


class Record:
    """What one rank has done so far. Any value may be missing or odd; nothing raises."""

    def __init__(self, series: Series, settings: Settings, introduce: Callable[[Mapping[str, str]], None]) -> None:
        self.series = series
        self.place: Place | None = None
        self.clock, self.now = settings.around.clock, settings.around.now
        self.host: Timer = HostTimer(self.clock)
        self.timer: Timer = self.host
        self.cuda: CudaTimer | None = None
        self.within = ""  # the phase that is being timed
        self.ready: Any = None  # when this rank's own gradients were there
        self.held = 0  # blocks that hold a state
        self.state = ""
        self._introduce = introduce
        self._modules = settings.around.modules if settings.cuda_events else {}
        self._told: set[str] = set()
        self._failed = 0
        self._stepping = False
        self._before = self._inside = 0.0  # waits for input since the last step, before and inside of this one
        self._line = Line()
        self._collecting, self._looked, self._saved = math.nan, -math.inf, math.nan
        for metric, labels in _ZEROES:
            series.add(metric, 0.0, labels)
        series.set("train_start_timestamp_seconds", self.now())
        self.enter("init")

    def complain(self, about: str, text: str) -> None:
        """Count what cannot be used, and say it once."""
        self.series.add("train_hook_errors_total", 1.0)
        if about not in self._told:
            self._told.add(about)
            LOG.warning("%s", text, extra={"event": "HOOK_ERROR"})

    def enter(self, state: str) -> None:
        """Be in a state from now on."""
        if state not in STATES:
            self.complain(f"state {state}", f"state '{state}' is not known, it would be one of {', '.join(STATES)}")
            return
        self.state = state
        for one in STATES:
            self.series.set("train_state", float(one == state), (("state", one),))

    # steps

    def begin_step(self) -> None:
        """Train from now on, unless a block holds another state."""
        self._stepping, self._inside, self._line = True, 0.0, Line()
        if self.state != "train" and not self.held:
            self.enter("train")
        if self.cuda is None and "torch" in self._modules:
            self._guarded(self._find_cuda)

    def end_step(self, seconds: float, number: int | None) -> None:
        """Count a step that ended well; a wait for its input before it belongs to it."""
        series, fed, seconds = self.series, self._before + self._inside, seconds + self._before
        self._stepping, self._before = False, 0.0
        line = self._line
        line.data |= {"step_seconds": round(seconds, 6), "data_wait_seconds": round(fed, 6)}
        series.add("train_steps_total", 1.0)
        series.observe("train_step_duration_seconds", seconds)
        counted = self._floats({} if number is None else {"step": number}, float)
        if counted:
            series.set("train_step", counted["step"])
            line.data = {**counted, **line.data}
        series.set("train_last_step_timestamp_seconds", self.now())
        line.ended = True
        line.write()
        if self.cuda is not None:
            self._guarded(self._look)

    def break_step(self) -> None:
        """Leave a step that an exception ended."""
        self._stepping, self._before, self.within, self.ready = False, 0.0, "", None

    # what timed blocks bring

    def mark(self) -> Any:  # noqa: ANN401 - a mark of the timer
        """Mark this moment, None where CUDA is in trouble."""
        if self.cuda is None:
            return self.clock()
        try:
            return self.cuda.mark()
        except FAILURES as error:
            self.trouble(error)
            return None

    def phased(self, name: str, timer: Timer, start: Any, end: Any) -> None:  # noqa: ANN401 - marks of a timer
        """Take a phase; what came after the gradients of a backward pass were there is a wait for others."""
        ready, self.ready = self.ready, None

        def settle() -> None:
            self.series.observe(PHASE, timer.between(start, end), (("phase", name),))

        def split() -> None:
            self.series.observe(PHASE, timer.between(start, ready), (("phase", name),))
            self.series.observe(PHASE, timer.between(ready, end), (("phase", "grads_sync"),))
            self.series.add("train_collective_wait_seconds_total", timer.between(ready, end), (("group", "dp"),))

        timer.when(end, settle if ready is None or name != BACKWARD else split)

    def fed(self, seconds: float) -> None:
        """Take a wait for input."""
        self.series.add("train_data_wait_seconds_total", seconds)
        if self._stepping:
            self._inside += seconds
        else:
            self._before += seconds

    def batched(self, _: str, timer: Timer, start: Any, end: Any) -> None:  # noqa: ANN401
        """Take a wait for input inside of the forward pass, whose work it is not."""
        timer.when(end, lambda: self.series.observe(PHASE, timer.between(start, end), (("phase", BATCH),)))

    def awaited(self, group: str, timer: Timer, start: Any, end: Any) -> None:  # noqa: ANN401
        """Take a wait for the others of a group."""
        labels = (("group", group),)
        timer.when(
            end, lambda: self.series.add("train_collective_wait_seconds_total", timer.between(start, end), labels)
        )

    # checkpoints

    def saved(self, op: str, mode: str, seconds: float, told: Mapping[str, int | None]) -> None:
        """Take a checkpoint that is complete; `told` may hold its step and bytes."""
        series, now = self.series, self.now()
        series.observe("train_checkpoint_duration_seconds", seconds, (("op", op), ("mode", mode)))
        event = "CHECKPOINT_LOAD" if op == "load" else "CHECKPOINT_SAVE"
        if op == "save":
            series.set("train_checkpoint_interval_seconds", now - self._saved)
            series.set("train_last_checkpoint_timestamp_seconds", now)
            self._saved = now
            for metric, value in (
                ("train_last_checkpoint_step", told["step"]),
                ("train_checkpoint_bytes", told["bytes"]),
            ):
                if isinstance(value, int):
                    series.set(metric, float(value))
        data = {"seconds": round(seconds, 3), **{name: value for name, value in told.items() if value is not None}}
        LOG.info("checkpoint %s took %.3f s", op, seconds, extra={"event": event, "data": data})

    def unsaved(self, op: str, seconds: float, reason: str) -> None:
        """Take a checkpoint that an exception ended."""
        self.series.add("train_checkpoint_failures_total", float(op == "save"))
        data = {"op": op, "seconds": round(seconds, 3)}
        text = "checkpoint %s failed after %.3f s: %s"
        LOG.error(text, op, seconds, reason, extra={"event": "CHECKPOINT_FAILED", "data": data})

    # numbers

    def later(self, take: Callable[[Values], None], told: Mapping[str, Any]) -> None:
        """Hand over numbers as floats, those on the GPU once it has come to them."""
        given = {name: value for name, value in told.items() if value is not None}
        away = {name for name, value in given.items() if getattr(value, "is_cuda", False)}
        if not away or self.cuda is None:
            take(self._floats(given, float))
            return
        self._guarded(lambda: self._put_off(take, given, away))

    def _put_off(self, take: Callable[[Values], None], given: Mapping[str, Any], away: set[str]) -> None:
        cuda = self.cuda
        assert cuda is not None
        here = self._floats({name: value for name, value in given.items() if name not in away}, float)
        copies = {name: cuda.copy(given[name]) for name in away}
        cuda.when(cuda.mark(), lambda: take({**here, **self._floats(copies, cuda.read)}))

    def _floats(self, given: Mapping[str, Any], read: Callable[[Any], float]) -> dict[str, float]:
        found = {}
        for name, value in given.items():
            try:
                found[name] = read(value.detach() if hasattr(value, "detach") else value)  # autograd would warn
            except FAILURES as error:
                self.complain(f"value {name}", f"{name}: is no number, {type(error).__name__}: {error}")
        return found

    def told(self, told: Mapping[str, Any]) -> None:
        """Take what a step gave, this one or the one that has just ended."""
        line = self._line
        self.later(lambda values: self._stepped(values, line), told)

    def _stepped(self, told: Values, line: Line) -> None:
        series, loss, norm = self.series, told.get("loss"), told.get("grad_norm")
        if loss is not None:
            series.set("train_loss", loss, (("loss", "lm"),))
        for name in ("grad_norm", "learning_rate"):
            if name in told:
                series.set(f"train_{name}", told[name])
        odd = [one for one in (loss, norm) if one is not None and not math.isfinite(one)]
        if odd:
            kind = "nan" if any(map(math.isnan, odd)) else "inf"
            series.add("train_nonfinite_steps_total", 1.0, (("kind", kind),))
            data = {**line.data, **{name: told[name] for name in ("loss", "grad_norm") if name in told}}
            text = " ".join(f"{name}={brief(value)}" for name, value in data.items())
            LOG.warning("%s", text, extra={"event": "NONFINITE", "data": data})
        for name in ("tokens", "samples"):
            if name in told:
                series.set(f"train_batch_{name}", told[name])
                self._count(name, told[name])
        line.data |= told
        line.told = True
        line.write()

    def _count(self, name: str, amount: float) -> None:
        """Count tokens or samples, on the rank that speaks for its replica; tokens are spread over context ranks."""
        place = self.place
        if place is None or place.counts:
            share = place.cp_size if place is not None and name == "tokens" else 1
            self.series.add(f"train_{name}_total", amount * share)

    def noted(self, told: Values) -> None:
        """Take what is known now and then."""
        for name, value in told.items():
            self.series.set(f"train_{name}", value, (("loss", "lm"),) if name == "validation_loss" else ())
        if "validation_loss" in told:
            data = {"validation_loss": told["validation_loss"]}
            LOG.info("validation_loss=%s", brief(data["validation_loss"]), extra={"event": "EVALUATION", "data": data})

    def checked(self, metric: str, event: str, *, same: bool) -> None:
        """Take the outcome of a check; the counter is there as soon as somebody checks."""
        self.series.add(metric, 0.0 if same else 1.0)
        if not same:
            LOG.error("a check found a difference", extra={"event": event, "data": dict(self._line.data)})

    def collected(self, phase: str) -> None:
        """Take the beginning or the end of a garbage collection."""
        if phase == "start":
            self._collecting = self.clock()
        else:
            self.series.add("train_gc_seconds_total", self.clock() - self._collecting)
            self._collecting = math.nan

    # the GPU

    def _guarded(self, action: Callable[[], None]) -> None:
        """Do something with CUDA; where that fails time and again, do without."""
        try:
            action()
        except FAILURES as error:
            self.trouble(error)

    def trouble(self, error: BaseException) -> None:
        """Count a failure of CUDA, which the loop will meet by itself; after a few do without."""
        self._failed += 1
        self.complain("cuda", f"cuda: {type(error).__name__}: {error}")
        if self._failed >= _ENOUGH:
            self.cuda, self.timer, self._modules = None, self.host, {}

    def _find_cuda(self) -> None:
        self.cuda = CudaTimer.find(self._modules)
        if self.cuda is not None:
            self.timer = self.cuda
            self._introduce(self.cuda.gpu())

    def _look(self) -> None:
        """Take what the GPU has come to, and now and then the allocator's counts."""
        cuda, now = self.cuda, self.clock()
        assert cuda is not None
        cuda.settle()
        if now - self._looked >= _MEMORY_EVERY:
            self._looked = now
            for metric, value in cuda.memory().items():
                self.series.set(metric, value)
