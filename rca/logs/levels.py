"""Levels that mislead: errors that bury others, warnings that do not end, errors after which all went on, wrong levels.

WARN recovers by itself, ERROR needs a person. A job whose lines say otherwise hides what matters; what is found here is for
the people who write them, and accuses no rank.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rca.hook import events
from rca.loglines import LEVELS, Ends, Line
from rca.logs.shapes import Shape, Shapes
from rca.logs.steps import Course
from rca.phrases import Template
from rca.plain import counted, lasting, natural

FLOOD, SHARE = 100, 0.2
"""A shape buries others where it has so many lines, and so large a part of all errors,"""
EACH = 10
"""and so many lines a rank: what each rank says once as the job ends is an echo."""
OFTEN, LONG = 10, 60.0
"""A warning does not end where a rank has written it so often, for so many seconds, until its own end."""
RARE, PAUSES = 60.0, 3.0
"""It is no longer the same warning after a longer pause; and it has ended so many pauses before the end of the rank."""
STEPS = 20
"""Errors were none where so many steps came after them, for `LONG` seconds at least."""
_LEVELS = {level: number for number, level in enumerate(LEVELS)}
_PLAIN = frozenset({"", events.PLAIN})
_MEANT = {"ERROR": "it needs a person", "WARN": "it recovers by itself", "INFO": "it is the normal course"}
Kind = Literal["flood", "endless", "harmless", "level"]


class Misuse(NamedTuple):
    """A level that misleads: what kind of thing it is, the shape of its lines, how many and of which ranks.

    `should` is the level that they ought to have, empty where that is for people to say; `why` is what is wrong, in words; `line` is
    the first one.
    """

    kind: Kind
    level: str
    should: str
    event: str
    shape: str
    lines: int
    ranks: tuple[str, ...]
    why: str
    line: Line
    since: float | None = None
    until: float | None = None


@dataclass(frozen=True)
class Levels:
    """Levels that mislead, the worst first, among numbers of lines by level; `lost` of them had shapes that were too rare to be kept."""

    found: Sequence[Misuse]
    lines: Mapping[str, int]
    lost: int = 0


@dataclass(frozen=True)
class Beside:
    """What is known besides the lines: the last line of each rank, the course of the job, and which template a line fits."""

    ends: Mapping[str, Ends]
    course: Course | None
    template: Callable[[str], Template | None]
    restarted: Callable[[float], float] = field(default=lambda _: float("-inf"))
    """Returns when ranks were started last after a time, an early one where none were."""
    until: float = float("inf")
    """Lines later than that were not asked for."""


def levels(shapes: Shapes, beside: Beside, calm: Iterable[Line] = ()) -> Levels:
    """Return what misleads among the shapes of warnings and errors; `calm` are lines below, of events that are graver."""
    for line in calm:
        if line.level in _LEVELS and _LEVELS[line.level] < _LEVELS["WARN"]:
            shapes.take(line)
    found = [*_floods(shapes), *_wrong(shapes, beside), *_harmless(shapes, beside), *_endless(shapes, beside)]
    lines = {level: shapes.lines[level] for level in ("WARN", "ERROR")}
    return Levels(_once(found), lines, sum(shapes.lost.values()))


def _once(found: Sequence[Misuse]) -> list[Misuse]:
    """Return each shape once: a flood of a wrong level is told together, and what is either need not be harmless as well."""
    wrong = {(one.level, one.event): one for one in found if one.kind == "level"}
    floods = {(one.level, one.event): one for one in found if one.kind == "flood"}
    shapes = {one.shape for one in floods.values()}
    kept = []
    for one in found:
        key = (one.level, one.event)
        if one.kind == "flood" and key in wrong:
            kept.append(one._replace(why=f"{one.why}; {wrong[key].why}", should=wrong[key].should))
        elif (one.kind == "level" and key in floods) or (
            one.kind == "harmless" and (one.shape in shapes or key in wrong)
        ):
            continue
        else:
            kept.append(one)
    return kept


def _floods(shapes: Shapes) -> Iterator[Misuse]:
    errors = shapes.of("ERROR")
    total = shapes.lines["ERROR"]
    for one in errors:
        if one.lines < max(FLOOD, SHARE * total, EACH * len(one.runs)):
            continue
        among = [other for other in errors if other is not one and _meet(one, other)]
        if not among and not shapes.lost["ERROR"]:
            continue
        span = (one.last or 0.0) - (one.first or 0.0)
        rate = f", {one.lines / span:.3g} a second" if span > 0 else ""
        lines = sum(other.lines for other in among) + shapes.lost["ERROR"]
        kinds = f"{'more than ' if shapes.lost['ERROR'] else ''}{counted(len(among), 'other error')}"
        why = (
            f"{min(one.lines / total, 0.99):.0%} of all ERROR lines{rate}; {kinds} ({counted(lines, 'line')}) "
            f"{'lies' if len(among) == 1 else 'lie'} among them"
        )
        yield _misuse("flood", one, why)


def _meet(one: Shape, other: Shape) -> bool:
    """Say whether lines of another shape may lie among those of one, or soon after them."""
    if None in (one.first, one.last, other.first, other.last):
        return True
    return (other.last or 0.0) >= (one.first or 0.0) and (other.first or 0.0) <= (one.last or 0.0) + LONG


def _endless(shapes: Shapes, beside: Beside) -> Iterator[Misuse]:
    job = max((end.line.time for end in beside.ends.values() if end.line.time is not None), default=None)
    for one in shapes.of("WARN"):
        held: dict[str | None, float] = {}
        for rank, run in one.runs.items():
            own = beside.ends.get(rank or "")
            end = own.line.time if own is not None and own.line.time is not None else job
            if end is None or run.lines < OFTEN or not run.last - run.first >= LONG or run.pause > RARE:
                continue
            if min(end, beside.until) - run.last <= PAUSES * max(run.pause, 1.0):
                held[rank] = run.last - run.first
        if held:
            by = f" by {counted(len(held), 'rank')} of {len(one.runs):,}" if len(held) < len(one.runs) else ""
            why = f"for {lasting(max(held.values()))}, and still at the end{by}: it does not recover"
            yield _misuse("endless", one, why, held)


def _harmless(shapes: Shapes, beside: Beside) -> Iterator[Misuse]:
    course = beside.course
    if course is None:
        return
    found = [one for one in shapes.of("ERROR") if _survived(one, course, beside)]
    started = beside.restarted(min(one.first or 0.0 for one in found)) if found else 0.0
    for one in found:
        first = one.first or 0.0
        if first > started:
            went = f"{counted(round(course.since(first)), 'step')} came after the first of them"
            why = f"{went}, for {lasting(course.until - first)}: what recovers by itself is a WARN"
            yield _misuse("harmless", one, why, should="WARN")


def _survived(one: Shape, course: Course, beside: Beside) -> bool:
    """Say whether a job went on for long after errors of a shape, in the same start of its ranks."""
    first, last = one.first, one.last
    if first is None or last is None or one.attempt < course.attempt or not one.line.message:
        return False
    if last > course.until + max(course.pace, 1.0) or course.until - first < LONG or course.since(first) < STEPS:
        return False
    return not _ends(beside.template(one.line.message))


def _ends(template: Template | None) -> bool:
    """Say whether a line may be that of a process that ends: then others were started for it."""
    return template is not None and (template.fatal or template.general)


def _wrong(shapes: Shapes, beside: Beside) -> Iterator[Misuse]:
    """Yield events whose lines name them at another level than theirs."""
    lines = Counter[tuple[str, str]]()
    most: dict[tuple[str, str], Shape] = {}
    ranks: dict[tuple[str, str], set[str | None]] = {}
    for level, event, one in shapes.named():
        lines[level, event] += one.lines
        ranks.setdefault((level, event), set()).update(one.runs)
        if one.lines > (most[level, event].lines if (level, event) in most else 0):
            most[level, event] = one
    for (level, name), count in lines.most_common():
        its, one = events.table().get(name), most[level, name]
        if its is None or name in _PLAIN or level not in _LEVELS or level == its.level:
            continue
        known = beside.template(one.line.message) if one.line.message else None
        if known is not None and known.event == name and name not in one.line.message:
            continue  # it was given the name here, and its level is that of who wrote it
        why = f"{name} is a matter of {its.level}: {_MEANT[its.level]}"
        found = _misuse("level", one, why, dict.fromkeys(ranks[level, name], 0.0), its.level)
        yield found._replace(lines=count)


def _misuse(
    kind: Kind, one: Shape, why: str, ranks: Mapping[str | None, float] | None = None, should: str = ""
) -> Misuse:
    named = sorted((rank for rank in (one.runs if ranks is None else ranks) if rank), key=natural)
    lines = one.lines if ranks is None else sum(one.runs[rank].lines for rank in ranks if rank in one.runs)
    line = one.line
    return Misuse(kind, line.level, should, line.event, one.text, lines, tuple(named), why, line, one.first, one.last)
