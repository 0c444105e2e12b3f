"""What a training log's records add up to: the metrics of one job."""

import math
from collections.abc import Callable, Iterator
from statistics import median
from typing import NamedTuple

from rca.ledger.checkpoints import Checkpoints
from rca.ledger.course import Course, number, numbers, wide
from rca.ledger.families import FAMILIES, GAUGES, STATES
from rca.ledger.phases import Phases
from rca.ledger.values import JOB, REPORTER, Extra, Key, Sample, Values
from rca.parsers.record import Fields, Record, bad

_EVENTS = 200
_UNKNOWN: Extra = (("reason", "unknown"),)
_SIZES = ("world_size", "dp", "tp", "pp", "cp", "ep", "sequence_length", "batch_samples")


class Options(NamedTuple):
    """What a log does not tell: the name of the job, sizes where they are not printed, the rank that prints."""

    job: str = "default"
    world_size: int | None = None
    sequence_length: int | None = None
    gpus_per_server: int | None = None
    rank: str | None = None


class Ledger:
    """Takes the records of one job in their order and holds the values of its metrics.

    >>> ledger = Ledger(Options("j"))
    >>> ledger.add(Record("step", 100.0, None, {"step": 7.0, "step_seconds": 0.5, "loss:lm": 2.0}), 0.0)
    >>> [(one.name, one.labels, one.value) for one in ledger.samples() if one.name == "train_loss"]
    [('train_loss', {'job_id': 'j', 'rank': 'last', 'loss': 'lm'}, 2.0)]
    """

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self.values = Values()
        self.sizes: dict[str, float] = {}
        self.log_interval: float | None = None
        self.time: float | None = None
        self._courses: dict[str, Course] = {}
        self._printer = ""
        self._prints_seconds = False
        self._phases = Phases(self.values)
        self._checkpoints = Checkpoints(self.values)
        self._events: set[Extra] = set()
        self._entered: dict[str, tuple[str, dict[Key, None]]] = {}

    @property
    def reporter(self) -> str:
        """Return the name of the rank that prints for all: `last` where only that is known of it."""
        if self.options.rank is not None:
            return self.options.rank
        if self._printer in ("", "last"):
            world = self.size("world_size")
            return "last" if world is None else f"{world - 1:.0f}"
        return self._printer

    def size(self, name: str) -> float | None:
        """Return a size of the job: as the user gave it, else as the log told it."""
        given = getattr(self.options, name, None)
        return self.sizes.get(name) if given is None else float(given)

    def add(self, record: Record, at: float) -> None:
        """Take a record; `at` is its time where it tells none, unix seconds."""
        time = at if record.time is None else record.time
        self.time = time
        rank = record.rank or REPORTER
        action = _ACTIONS.get(record.kind)
        if action is not None:
            action(self, record.fields, rank, time)

    def samples(self) -> Iterator[Sample]:
        """Yield the values of all series as they stand, in the order of their names and labels."""
        yield from self.values.samples(self.options.job, self.reporter)

    def course(self, rank: str) -> Course:
        """Return how far a rank's account has come."""
        return self._courses.setdefault(rank, Course())

    # steps

    def step(self, fields: Fields, rank: str, time: float) -> None:
        """Take a line about a step."""
        course, values = self.course(rank), self.values
        course.own = True
        if rank == REPORTER:
            by = str(fields.get("by", "last"))
            self._printer = "last" if "last" in (by, self._printer) else by
        self._checkpoints.commit(rank)
        done, again = course.advance(fields, self.log_interval)
        count = course.tell(fields, done)
        if wide(fields):
            self._phases.begin(done, rank)
        seconds = self._take_time(course, fields, (done, count, time), rank)
        values.add("train_steps_total", rank, done)
        values.add("train_restarts_total", rank, float(again), _UNKNOWN)
        self._count_bad(course, fields, rank)
        self.gauges(fields, rank, time)
        if done:
            values.set("train_last_step_timestamp_seconds", rank, time)
            self.enter("train", rank)
        if "data_seconds" in fields:
            course.waits = True
            values.add("train_data_wait_seconds_total", rank, number(fields, "data_seconds"))
        tokens = self._count_work(course, fields, count, rank)
        course.time = time
        if seconds is not None:
            values.set("train_step_seconds", rank, seconds)
        if wide(fields):
            self._look_ahead(course, fields)
            self._derive(fields, seconds, tokens / count if count else 0.0)

    def _restart(self, rank: str) -> None:
        """Begin a new run of a rank that has done steps before."""
        course = self.course(rank)
        if course.step is not None:
            self.values.add("train_restarts_total", rank, 1.0, _UNKNOWN)
            course.restart()

    def _take_time(self, course: Course, fields: Fields, since: tuple[float, float, float], rank: str) -> float | None:
        """Count the time of the steps since the last line that told it; return the mean of a step."""
        done, count, time = since
        if "step_seconds" in fields:
            self._prints_seconds = True
            seconds = number(fields, "step_seconds")
        elif self._prints_seconds or not done:
            return None
        else:
            seconds, count = course.mean(done, time)
        if not 0.0 < seconds < math.inf or not count:
            return None
        self.values.observe("train_step_duration_seconds", rank, seconds, count)
        course.pace.append(seconds)
        if wide(fields):
            self._phases.seconds = seconds
        return seconds

    def _count_bad(self, course: Course, fields: Fields, rank: str) -> None:
        """Count steps without a usable number, and those that were left out for it."""
        values, counted = self.values, number(fields, "nonfinite")
        kinds = {"nan": counted, "inf": 0.0}
        if not counted and not course.excused:
            for kind in {bad(value) for name, value in fields.items() if name == "grad_norm" or name[:5] == "loss:"} - {
                ""
            }:
                kinds[kind] = 1.0
        course.excused = False
        for kind, count in kinds.items():
            values.add("train_nonfinite_steps_total", rank, count, (("kind", kind),))
        values.add("train_skipped_steps_total", rank, number(fields, "skipped"))
        if "skipped_total" in fields:
            total = number(fields, "skipped_total")
            before = max(total - course.overflows, 0.0) if course.skipped is None else course.skipped
            values.add("train_skipped_steps_total", rank, total - before - course.overflows)
            course.skipped, course.overflows = total, 0.0

    def _count_work(self, course: Course, fields: Fields, count: float, rank: str) -> float:
        """Count samples and tokens; return the tokens that came new."""
        length = number(fields, "sequence_length") or self.size("sequence_length") or 0.0
        samples = course.grow("samples", fields, number(fields, "batch_samples") * count) + number(
            fields, "rank_samples"
        )
        tokens = course.grow("tokens", fields, samples * length if wide(fields) else 0.0) + number(
            fields, "batch_tokens"
        )
        if samples or "samples" in fields:
            self.values.add("train_samples_total", rank, samples)
        known = rank != REPORTER or self.size("world_size") is not None  # else nobody can tell what a GPU does of it
        if known and (tokens or "tokens" in fields):
            self.values.add("train_tokens_total", rank, tokens)
        return tokens

    def gauges(self, fields: Fields, rank: str, time: float) -> None:  # noqa: ARG002 - what all actions take
        """Set what is a gauge as it stands; a loss that a line leaves out is absent."""
        values = self.values
        losses = [name for name in fields if name[:5] == "loss:"]
        if not losses and wide(fields) and "by" not in fields and "step" in fields:
            for key in [one for one in values.values if one.name == "train_loss" and one.rank == rank]:
                values.drop(key)
        for name in losses:
            values.set("train_loss", rank, number(fields, name), (("loss", name[5:]),))
        for name, value in fields.items():
            gauge = GAUGES.get(name)
            if gauge is not None and isinstance(value, float):
                values.set(gauge[0], rank, value * gauge[1])

    # what follows from it

    def _look_ahead(self, course: Course, fields: Fields) -> None:
        target = number(fields, "target_steps") or self.sizes.get("target_steps", 0.0)
        if not target or course.step is None:
            return
        self.values.set("train_target_steps", JOB, target)
        self.values.set("train_progress_ratio", JOB, min(course.step / target, 1.0))
        if course.pace:
            self.values.set("train_eta_seconds", JOB, max(target - course.step, 0.0) * median(course.pace))

    def _derive(self, fields: Fields, seconds: float | None, per_step: float) -> None:
        """Set the throughput in the units that people compare; what is printed goes before what is worked out."""
        world, servers = self.size("world_size"), self.size("gpus_per_server")
        total = number(fields, "tokens_per_second") or (per_step / seconds if seconds else 0.0)
        each = number(fields, "tokens_per_gpu_second") or (total / world if world else 0.0)
        total = total or (each * world if world else 0.0)
        if world is not None:
            seen = len({self.reporter if rank == REPORTER else rank for rank, one in self._courses.items() if one.own})
            self.values.set("train_unseen_ranks", JOB, max(world - seen, 0.0))
        daily = number(fields, "billion_tokens_per_server_day") or (each * servers * 86400.0 / 1e9 if servers else 0.0)
        for name, value in (
            ("train_tokens_per_second", total),
            ("train_tokens_per_gpu_per_second", each),
            ("train_billion_tokens_per_server_per_day", daily),
        ):
            if value:
                self.values.set(name, JOB, value)

    # phases

    def phase(self, fields: Fields, rank: str, time: float) -> None:  # noqa: ARG002
        """Take the phases of a step on a rank; one that says nothing else did the steps of all."""
        self._phases.take(fields, rank)
        if rank != REPORTER and not self.course(rank).own:
            self.values.add("train_steps_total", rank, self._phases.steps)

    def micro_phase(self, fields: Fields, rank: str, time: float) -> None:  # noqa: ARG002
        """Take the phases of a micro-batch."""
        self._phases.take_micro(fields)

    def phase_min(self, fields: Fields, rank: str, time: float) -> None:  # noqa: ARG002
        """Take the phases of the fastest rank."""
        self._phases.take_extremes("train_phase_min_seconds", fields)

    def phase_max(self, fields: Fields, rank: str, time: float) -> None:  # noqa: ARG002
        """Take the phases of the slowest rank."""
        self._phases.take_extremes("train_phase_max_seconds", fields)

    def once(self, fields: Fields, rank: str, time: float) -> None:  # noqa: ARG002
        """Take the time of what does not happen every step."""
        for phase, seconds in numbers(fields):
            op = phase.removesuffix("_checkpoint")
            if op != phase:
                self._checkpoints.timed(op, seconds, rank)
            else:
                self.values.observe("train_phase_duration_seconds", rank, seconds, 1.0, (("phase", phase),))

    # checkpoints and states

    def enter(self, state: str, rank: str) -> None:
        """Set the state of a rank."""
        entered, keys = self._entered.get(rank, ("", {}))
        if entered == state:
            self.values.again(keys)
            return
        keys = {Key("train_state", rank, (("state", one),)): None for one in STATES}
        for one in STATES:
            self.values.set("train_state", rank, float(one == state), (("state", one),))
        self._entered[rank] = (state, keys)

    def saving(self, fields: Fields, rank: str, time: float) -> None:  # noqa: ARG002
        """Take the beginning of a checkpoint."""
        self._checkpoints.begin_save(time)
        self.enter("save_checkpoint", rank)

    def saved(self, fields: Fields, rank: str, time: float) -> None:
        """Take a checkpoint that is complete."""
        course = self.course(rank)
        self._checkpoints.save(fields, number(fields, "step") if "step" in fields else course.step, rank, time)
        if course.own:
            self.enter("train", rank)

    def save_failed(self, fields: Fields, rank: str, time: float) -> None:  # noqa: ARG002
        """Take a checkpoint that could not be written."""
        self.values.add("train_checkpoint_failures_total", rank, 1.0)

    def loading(self, fields: Fields, rank: str, time: float) -> None:  # noqa: ARG002
        """Take the beginning of reading a checkpoint."""
        self._checkpoints.begin_load(time)
        self.enter("load_checkpoint", rank)

    def loaded(self, fields: Fields, rank: str, time: float) -> None:
        """Take a checkpoint that was read: training goes on from its step."""
        self._restart(rank)
        if "step" in fields:
            course = self.course(rank)
            course.step = course.told = number(fields, "step")
        self._checkpoints.load(fields, rank, time)

    def validation(self, fields: Fields, rank: str, time: float) -> None:  # noqa: ARG002
        """Take the loss of an evaluation."""
        for name in fields:
            if name[:5] == "loss:":
                self.values.set("train_validation_loss", rank, number(fields, name), (("loss", name[5:]),))

    def state(self, fields: Fields, rank: str, time: float) -> None:
        """Take a change of state."""
        found = str(fields.get("state", ""))
        if found in STATES:
            self.enter(found, rank)
        if found == "init":
            self.values.set("train_start_timestamp_seconds", rank, time)

    def started(self, fields: Fields, rank: str, time: float) -> None:
        """Take the start of a rank's process."""
        self.arguments(fields, rank, time)
        self._restart(rank)
        self.values.set("train_start_timestamp_seconds", rank, time)
        self.enter("init", rank)

    def arguments(self, fields: Fields, rank: str, time: float) -> None:  # noqa: ARG002
        """Take what the job was started with."""
        self.sizes.update(numbers(fields))
        self.log_interval = self.sizes.get("log_interval")
        if "world_size" not in self.sizes and self.options.world_size is None:
            return
        names = {"sequence_length": "seq_len", "batch_samples": "global_batch_size"}
        sizes = {name: self.size(name) for name in _SIZES}
        labels = tuple((names.get(name, name), f"{size:.0f}") for name, size in sizes.items() if size is not None)
        if self.values.values.get(Key("train_job_info", JOB, labels)) is None:  # a thousand ranks say the same
            self.values.drop_all("train_job_info")
        self.values.set("train_job_info", JOB, 1.0, labels)

    # what else is said

    def memory(self, fields: Fields, rank: str, time: float) -> None:
        """Take the memory of a rank."""
        self.gauges(fields, rank, time)

    def extreme(self, fields: Fields, rank: str, time: float) -> None:  # noqa: ARG002
        """Take a number of a rank that is the least or the greatest; the first of a report ends those before it."""
        for name, value in numbers(fields):
            if name == "round_trip_seconds" and fields.get("extreme") == "min":
                self.values.drop_all("train_straggler_")
            if f"train_straggler_{name}" in FAMILIES:
                self.values.set(f"train_straggler_{name}", rank, value, (("extreme", str(fields.get("extreme"))),))

    def rerun(self, fields: Fields, rank: str, time: float) -> None:  # noqa: ARG002
        """Take the outcome of a validation or of a rerun."""
        outcome = fields.get("outcome")
        self.values.add("train_unexpected_results_total", rank, float(outcome == "unexpected"))
        self.values.add("train_rerun_mismatches_total", rank, float(outcome in ("transient", "persistent")))

    def overflow(self, fields: Fields, rank: str, time: float) -> None:
        """Take a step that was left out because a gradient overflowed."""
        self.course(rank).overflows += 1.0
        self.values.add("train_skipped_steps_total", rank, 1.0)
        self.gauges(fields, rank, time)

    def skipped(self, fields: Fields, rank: str, time: float) -> None:  # noqa: ARG002
        """Take a step that did not update the weights."""
        self.values.add("train_skipped_steps_total", rank, 1.0)

    def nonfinite(self, fields: Fields, rank: str, time: float) -> None:  # noqa: ARG002
        """Take a step whose loss or gradient was no number; the line of the step itself is not counted again."""
        kinds = {bad(value) for value in fields.values()} - {""}
        self.values.add("train_nonfinite_steps_total", rank, 1.0, (("kind", "inf" if kinds == {"inf"} else "nan"),))
        self.course(rank).excused = True

    def wait(self, fields: Fields, rank: str, time: float) -> None:  # noqa: ARG002
        """Take a wait for input, where the lines about steps do not tell it."""
        if not self.course(rank).waits:
            self.values.add("train_data_wait_seconds_total", rank, number(fields, "data_seconds"))

    def oom(self, fields: Fields, rank: str, time: float) -> None:  # noqa: ARG002
        """Take that memory did not suffice."""
        self.values.add("train_oom_total", rank, 1.0)

    def restart(self, fields: Fields, rank: str, time: float) -> None:  # noqa: ARG002
        """Take that the launcher begins again."""
        self._restart(rank)

    def event(self, fields: Fields, rank: str, time: float) -> None:  # noqa: ARG002
        """Count any other event."""
        extra = (("event", str(fields.get("event"))), ("level", str(fields.get("level"))))
        if extra not in self._events and len(self._events) >= _EVENTS:
            extra = (("event", "OTHER"), ("level", ""))
        self._events.add(extra)
        self.values.add("train_log_events_total", rank, 1.0, extra)


Action = Callable[[Ledger, Fields, str, float], None]
_ACTIONS: dict[str, Action] = {
    "arguments": Ledger.arguments, "event": Ledger.event, "extreme": Ledger.extreme, "gauge": Ledger.gauges,
    "loaded": Ledger.loaded, "loading": Ledger.loading, "memory": Ledger.memory, "micro_phase": Ledger.micro_phase,
    "nonfinite": Ledger.nonfinite, "once": Ledger.once, "oom": Ledger.oom, "overflow": Ledger.overflow,
    "phase": Ledger.phase, "phase_max": Ledger.phase_max, "phase_min": Ledger.phase_min, "rerun": Ledger.rerun,
    "restart": Ledger.restart, "save_failed": Ledger.save_failed, "saved": Ledger.saved, "saving": Ledger.saving,
    "skipped": Ledger.skipped, "started": Ledger.started, "state": Ledger.state, "step": Ledger.step,
    "validation": Ledger.validation, "wait": Ledger.wait,
}  # fmt: skip
