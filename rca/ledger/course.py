"""How far the account of one rank's steps has come, and how fields of records are read."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from rca.parsers.record import Fields

PACE = 20
"""So many lines say how long a step takes, for the time that is left."""
_TOLD = {"step_seconds", "samples", "tokens", "batch_samples"}


@dataclass
class Course:
    """How far one rank's account of the steps has come.

    Two frameworks may print a line for the same step: `step` is that of the last line, `told` that of the last line
    with times and counts. `guess` is the mean and number of the steps before the last line by the time between lines:
    they count when the line after it tells no time of a step either. `own` says whether the rank speaks of steps
    itself, `waits` whether it tells there how long it waited for input, `excused` that a step without a number has been
    counted already.
    """

    step: float | None = None
    told: float | None = None
    guess: tuple[float, float] | None = None
    samples: float | None = None
    tokens: float | None = None
    time: float | None = None
    skipped: float | None = None
    overflows: float = 0.0
    own: bool = False
    excused: bool = False
    waits: bool = False
    pace: deque[float] = field(default_factory=lambda: deque(maxlen=PACE))

    def advance(self, fields: Fields, interval: float | None) -> tuple[float, bool]:
        """Return how many steps were done since the last line, and whether training began again before it.

        `interval` is the number of steps between lines, as far as the log tells it.

        >>> course = Course()
        >>> [course.advance({"step": step}, 10.0) for step in (10.0, 20.0, 20.0, 11.0)]
        [(10.0, False), (10.0, False), (0.0, False), (10.0, True)]
        """
        if "step" not in fields:
            return number(fields, "steps"), False
        step, before = number(fields, "step"), self.step
        if before is not None and step >= before:
            self.step = step
            return step - before, False
        if before is not None:
            self.restart()
        self.step = step
        return min(interval or 1.0, step), before is not None

    def restart(self) -> None:
        """Forget what counts from the first step on: it does not go on from where it was."""
        self.step = self.told = self.samples = self.tokens = self.skipped = self.time = self.guess = None
        self.overflows = 0.0
        self.pace.clear()

    def tell(self, fields: Fields, done: float) -> float:
        """Return how many steps the times and counts of a line stand for."""
        if not _TOLD & fields.keys():
            return 0.0
        if "step" not in fields:
            return max(done, 1.0)
        step, before = number(fields, "step"), self.told
        self.told = step
        return max(done, 1.0) if before is None else max(step - before, 0.0)

    def mean(self, done: float, time: float) -> tuple[float, float]:
        """Return the mean and number of the steps before the line before this, by the time between lines."""
        before = self.guess or (0.0, 0.0)
        known = self.time is not None and time > self.time
        self.guess = ((time - (self.time or 0.0)) / done, done) if known else None
        return before

    def grow(self, name: str, fields: Fields, otherwise: float) -> float:
        """Return by how much a count from the first step on has grown; `otherwise` where no line before told it."""
        if name not in fields:
            return otherwise
        total, before = number(fields, name), self.samples if name == "samples" else self.tokens
        if name == "samples":
            self.samples = total
        else:
            self.tokens = total
        return min(otherwise, total) if before is None else max(total - before, 0.0)


def wide(fields: Fields) -> bool:
    """Say whether a line about steps speaks for the whole job: all do but those of structured logs, each of its rank."""
    return "steps" not in fields


def number(fields: Fields, name: str) -> float:
    """Return a field as a number, 0 where there is none."""
    value = fields.get(name, 0.0)
    return value if isinstance(value, float) else 0.0


def numbers(fields: Fields) -> Iterator[tuple[str, float]]:
    """Yield the fields that are numbers."""
    for name, value in fields.items():
        if isinstance(value, float):
            yield name, value
