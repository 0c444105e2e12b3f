"""How long the phases of a step take: on the rank that says so, or on the first and the last of all ranks."""

from statistics import fmean

from rca.ledger.course import numbers
from rca.ledger.values import JOB, Values
from rca.parsers.keys import COMMUNICATION
from rca.parsers.record import Fields


class Phases:
    """Phases are told after the line about their steps: they are of all steps of its interval."""

    def __init__(self, values: Values) -> None:
        self.steps = 1.0
        self.seconds: float | None = None
        self._values = values
        self._found: dict[str, list[float]] = {}
        self._micro: dict[str, float] = {}

    def begin(self, steps: float, rank: str) -> None:
        """Begin a new interval of so many steps; what micro-batches took belongs to the step that has just ended."""
        if not steps:
            return
        micro, self._micro = self._micro, {}
        self.steps, self._found = steps, {}
        for phase, seconds in micro.items():
            self._observe(phase, rank, seconds / steps)

    def take(self, fields: Fields, rank: str) -> None:
        """Take the phases of a step on a rank."""
        self._micro = {}
        for phase, seconds in numbers(fields):
            self._observe(phase, rank, seconds)
            self._found.setdefault(phase, []).append(seconds)
        self._share()

    def take_micro(self, fields: Fields) -> None:
        """Take the phases of a micro-batch; several make a step."""
        for phase, seconds in numbers(fields):
            self._micro[phase] = self._micro.get(phase, 0.0) + seconds

    def take_extremes(self, name: str, fields: Fields) -> None:
        """Take the phases of the fastest or the slowest rank."""
        for phase, seconds in numbers(fields):
            self._values.set(name, JOB, seconds, (("phase", phase),))
            self._found.setdefault(phase, []).append(seconds)
        self._share()

    def _observe(self, phase: str, rank: str, seconds: float) -> None:
        self._values.observe("train_phase_duration_seconds", rank, seconds, self.steps, (("phase", phase),))

    def _share(self) -> None:
        """Set the share of communication: of each phase the mean of what is known, which of two extremes is the middle."""
        found = [fmean(seconds) for phase, seconds in self._found.items() if phase in COMMUNICATION]
        if found and self.seconds:
            self._values.set("train_communication_ratio", JOB, sum(found) / self.seconds)
