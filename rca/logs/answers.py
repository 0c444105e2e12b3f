"""What `rca logs` answers, before it is written as text, JSON or a page; and which rank is silent."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import median
from typing import NamedTuple

from rca.loglines import Ends, Line
from rca.logs.levels import Levels
from rca.logs.suspects import Suspects
from rca.plain import natural

LEAST_SILENCE = 10.0
"""A rank is not silent before it has said nothing for so many seconds while others spoke,"""
PAUSES = 5.0
"""and for so many of the pauses that it and the others usually make."""


class Count(NamedTuple):
    """How many lines of an event and a level a rank wrote in a stretch of time that begins at `time`."""

    time: float | None
    rank: str | None
    event: str
    level: str
    lines: int


class Silent(NamedTuple):
    """A rank whose last line lies `seconds` before those of most others; one without `line` left none at all."""

    rank: str
    seconds: float | None
    line: Line | None


class Span(NamedTuple):
    """The first and the last time, in unix seconds."""

    first: float
    last: float


@dataclass(frozen=True)
class Lines:
    """Lines in order of time, to be read once, of `count` that there are; `left_out` earlier ones are not among them."""

    lines: Iterable[Line]
    count: int
    left_out: int = 0


@dataclass(frozen=True)
class Counts:
    """Numbers of lines by stretches of time `width` seconds long, rank, event and level."""

    rows: Sequence[Count]
    width: float


@dataclass(frozen=True)
class FirstErrors:
    """The first error of each rank that has one, the earliest first; `clean` ranks have none."""

    lines: Sequence[Line]
    clean: int


@dataclass(frozen=True)
class Silence:
    """The silent ranks of `known` ones, the longest silent first; most others spoke until `reference`."""

    ranks: Sequence[Silent]
    known: int
    expected: int | None
    reference: float | None


@dataclass(frozen=True)
class Summary:
    """What there is, who is silent, and what went wrong first."""

    where: str
    files: int
    size: int
    span: Span | None
    silence: Silence
    errors: FirstErrors
    levels: Levels


Answer = Lines | Counts | FirstErrors | Silence | Summary | Suspects | Levels


@dataclass(frozen=True)
class Told:
    """An answer, what reading met, and what a page draws: numbers of lines by time, rank and event."""

    answer: Answer
    notes: Sequence[str] = field(default_factory=tuple)
    picture: Counts | None = None
    absent: Sequence[str] = field(default_factory=tuple)
    """Ranks that have no line in the picture, and should."""


def silence(ends: Mapping[str, Ends], world: int | None) -> Silence:
    """Tell which ranks are silent: the last line lies well before that of three quarters of the others, or there is none.

    A rank whose lines tell no time is not compared with those whose lines do. `world` is how many ranks there should be, None where nothing tells it.
    """
    known = {rank: end for rank, end in ends.items() if rank and end.line.time is not None}
    known = {rank: end for rank, end in known.items() if not end.guessed} or known
    wanted = {str(rank) for rank in range(world)} if world is not None else set()
    missing = sorted(wanted - {_global(rank) for rank in ends}, key=natural)
    reference = usual_end([end.line.time for end in known.values() if end.line.time is not None])
    found = [Silent(rank, None, None) for rank in missing]
    if reference is not None:
        pause = median(end.pause for end in known.values())
        late = [
            Silent(rank, reference - (end.line.time or 0.0), end.line)
            for rank, end in known.items()
            if reference - (end.line.time or 0.0) > max(LEAST_SILENCE, PAUSES * max(pause, end.pause))
        ]
        found += sorted(late, key=lambda one: (-(one.seconds or 0.0), natural(one.rank)))
    return Silence(found, len([rank for rank in ends if rank]), world, reference)


def _global(rank: str) -> str:
    return rank.rpartition("/")[2]


def usual_end(times: Sequence[float]) -> float | None:
    """Return until when three quarters of the ranks have spoken at the most, None of no rank.

    >>> usual_end([100.0, 40.0]), usual_end([100.0, 101.0, 99.0, 400.0, 98.0])
    (100.0, 101.0)
    """
    return sorted(times)[ceil(0.75 * (len(times) - 1))] if times else None
