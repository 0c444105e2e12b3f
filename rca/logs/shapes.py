"""Warnings and errors by their shape: what a message says apart from its numbers."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from rca.loglines import Line

MOST = 2_000
"""Shapes that are told apart; beyond it the rarest are put together, and their lines are counted only."""
MOST_RUNS = 200_000
"""Ranks of all shapes together that are kept, likewise."""
_LETTERS = 240
"""Letters of a message that make its shape."""
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]*\d[0-9a-fA-F]*")
_LIST = re.compile(r"#(?:[-+,.:/ _T]{1,3}#)+Z?")


def shape(message: str) -> str:
    """Return a message without what makes it one of many: numbers, times, and lists of them.

    >>> shape("2026-03-01 14:00:00,123 [WARN] grad_norm=45.6 above 1e1, ranks 3, 12 at 0x7f3a")
    '[WARN] grad_norm=# above #, ranks # at #'
    """
    return _LIST.sub("#", _NUMBER.sub("#", message[:_LETTERS])).removeprefix("# ").strip()


@dataclass(slots=True)
class Run:
    """How often a rank wrote lines of a shape, and when first and last; NaN where they tell no time."""

    lines: int = 0
    first: float = float("nan")
    last: float = float("nan")

    @property
    def pause(self) -> float:
        """Return the seconds between two of the lines, on average."""
        return (self.last - self.first) / max(self.lines - 1, 1)


@dataclass(slots=True)
class Shape:
    """Lines of one level and event that differ by numbers only; `line` is the first that was read."""

    line: Line
    text: str
    lines: int = 0
    attempt: int = 0
    runs: dict[str | None, Run] = field(default_factory=dict)

    @property
    def first(self) -> float | None:
        """Return when the first line was written, None where none tells a time."""
        return min((run.first for run in self.runs.values() if run.first == run.first), default=None)

    @property
    def last(self) -> float | None:
        """Return when the last line was written, likewise."""
        return max((run.last for run in self.runs.values() if run.last == run.last), default=None)


class Shapes:
    """Takes in lines, and keeps what shapes they have."""

    def __init__(self) -> None:
        self.lines: Counter[str] = Counter()
        """How many lines of each level there were."""
        self.lost: Counter[str] = Counter()
        """How many of them had shapes that were too rare to be kept."""
        self._found: dict[tuple[str, str, str], Shape] = {}
        self._runs = 0

    def take(self, line: Line) -> None:
        """Take a line in."""
        self.lines[line.level] += 1
        key = (line.level, line.event, shape(line.message))
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = Shape(line, key[2] or line.event)
        found.lines += 1
        found.attempt = max(found.attempt, line.attempt)
        run = found.runs.get(line.rank)
        if run is None:
            run = found.runs[line.rank] = Run()
            self._runs += 1
        run.lines += 1
        if line.time is not None:
            run.first = line.time if run.first != run.first else min(run.first, line.time)
            run.last = line.time if run.last != run.last else max(run.last, line.time)
        if len(self._found) > MOST or self._runs > MOST_RUNS:
            self._forget()

    def of(self, level: str) -> list[Shape]:
        """Return the shapes of a level, the commonest first."""
        own = [one for (name, _, _), one in self._found.items() if name == level]
        return sorted(own, key=lambda one: (-one.lines, one.text))

    def named(self) -> Iterator[tuple[str, str, Shape]]:
        """Yield level and event of shapes that have one, and the shape."""
        for (level, event, _), one in self._found.items():
            if event:
                yield level, event, one

    def _forget(self) -> None:
        """Put the rarer half of the shapes together."""
        rarest = sorted(self._found, key=lambda key: self._found[key].lines)
        for key in rarest[: max(len(rarest) // 2, 1)]:
            gone = self._found.pop(key)
            self.lost[key[0]] += gone.lines
            self._runs -= len(gone.runs)
