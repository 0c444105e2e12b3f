"""`rca logs` from its flags to an answer."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from rca import dumps
from rca.config import settle, without_password
from rca.errors import SourceError, UsageError, suggestion
from rca.hook import events
from rca.load import phrases
from rca.loglines import ALWAYS, LEVELS, PATTERNS, Ends, Line, Logs, Naming, Notes, Wanted, find, spelt
from rca.loglines.known import Templates
from rca.loglines.line import level_of
from rca.loglines.owners import pattern_of
from rca.loglines.servers import Asked, Server, is_url
from rca.loglines.servers import opened as reached
from rca.logs import store
from rca.logs.answers import Answer, Counts, FirstErrors, Lines, Silence, Span, Summary, Told, silence
from rca.logs.asked import Places, Question
from rca.logs.levels import Beside, Levels, levels
from rca.logs.shapes import Shapes
from rca.logs.steps import SAMPLED, Course, course, nodes_apart, spread, step, tail
from rca.logs.suspects import NO_DUMPS, Suspects, known, suspects
from rca.plain import counted, natural
from rca.sources import offsets
from rca.sources.foreign import parse_zone
from rca.times import parse_duration, parse_time

PICTURED = 600.0
"""Seconds before the last line that a picture shows where nothing else is asked for."""
MARGIN = 60.0
"""Seconds before the first silence with which a picture begins,"""
LONGEST = 3600.0
"""if that is not longer ago than so many seconds."""
CLOCKS = 5
"""Clocks that are off of which each is told."""
BINS = 120
"""Columns of a picture, and about as many stretches of time in which lines are counted."""
_STEPS = (0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 21600.0, 86400.0)
Step = Callable[[str], None]


class Around(NamedTuple):
    """What a look needs of the world around it: the environment, the present, and whom to tell what is being done."""

    environment: Mapping[str, str]
    now: float
    step: Step


class Readable(Protocol):
    """Whatever holds log lines."""

    notes: Notes

    def lines(self, wanted: Wanted) -> Iterator[Line]:
        """Yield the lines that are wanted."""

    def last(self, ranks: frozenset[str] = frozenset()) -> dict[str, Ends]:
        """Return the last line of every rank, or of those given."""

    def span(self) -> tuple[float, float] | None:
        """Return the first and the last time."""

    def world(self) -> int | None:
        """Return how many ranks there should be, where something tells it."""


@contextmanager
def answered(question: Question, places: Places, around: Around, *, draw: bool = False) -> Iterator[Told]:
    """Answer a question; with `draw` also count what a page draws. The lines of an answer can be read inside only.

    Raises UsageError for what cannot be meant, SourceError for what cannot be read.
    """
    wanted = _wanted(question)
    with _opened(question, places, around) as logs, store.opened() as lines:
        wanted = _timed(question, wanted, logs)
        told = _answer((question, places), wanted, logs, lines)
        notes = tuple(_notes(logs.notes))
        yield Told(told, notes, _pictured(wanted, logs, told) if draw else None, _absent(told))


def _wanted(question: Question) -> Wanted:
    """Return which lines are asked for, at whatever time."""
    level = level_of(question.level) if question.level else ""
    if level and level not in LEVELS:
        raise UsageError(f"--level: no such level: {question.level!r}{suggestion(question.level or '', LEVELS)}")
    return Wanted(
        ranks=frozenset(rank for text in question.rank for rank in ranks_of(text)),
        events=spelt(frozenset(question.event)),
        level=level,
        text=question.grep or "",
    )


def ranks_of(text: str) -> list[str]:
    """Read ranks: `2`, `0-7`, `1,5`, or a name that a launcher's folder gives, `none_x1/3`.

    >>> ranks_of("2,4-6"), ranks_of("node-03/7")
    (['2', '4', '5', '6'], ['node-03/7'])
    """
    ranks: list[str] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if dash and first.isdecimal() and last.isdecimal():
            if not 0 <= int(last) - int(first) < 1_000_000:
                raise UsageError(f"--rank: {part.strip()!r} is no range of ranks, write for example 0-7")
            ranks += map(str, range(int(first), int(last) + 1))
        elif part.strip():
            name = part.strip()
            ranks.append(str(int(name)) if name.isdecimal() else name)
    if not ranks:
        raise UsageError(f"--rank: {text!r} names no rank, write for example 2 or 0-7")
    return ranks


def _timed(question: Question, wanted: Wanted, logs: Readable) -> Wanted:
    """Return what is wanted in the stretch of time that is asked for."""
    last = parse_duration("--last", question.last) if question.last else None
    if last == 0:
        raise UsageError("--last: 0 s hold nothing, write for example 10s")
    if question.at is not None and isinstance(logs, Server):
        return replace(wanted, start=logs.asked.end - last if last else wanted.start, end=logs.asked.end)
    if question.at is not None:
        span = None if re.fullmatch(r"\d{4}-.*", question.at) else logs.span()
        end = parse_time("--at", question.at, span[1] if span else 0.0)
        return replace(wanted, start=end - last if last else wanted.start, end=end)
    if last is None:
        return wanted
    latest = {rank: end.line.time for rank, end in logs.last(wanted.ranks).items() if end.line.time is not None}
    return replace(wanted, latest=latest, last=last)


def _answer(asked: tuple[Question, Places], wanted: Wanted, logs: Readable, lines: store.Store) -> Answer:
    question, places = asked
    match question.kind:
        case "count":
            width = parse_duration("--every", question.every) if question.every else 0.0
            return _counted(wanted, logs, lines, width)
        case "first-error":
            return _errors(wanted, logs, lines)
        case "silent":
            return _silent(question, logs)
        case "suspects":
            return _suspects(question, wanted, logs, places)
        case "levels":
            return _levels(question, wanted, logs)
    return _lines(question, wanted, logs, lines) if question.lines else _summary(question, wanted, logs, lines)


def _lines(question: Question, wanted: Wanted, logs: Readable, lines: store.Store) -> Answer:
    count = lines.add(logs.lines(wanted))
    limit = question.limit if question.limit and question.limit < count else None
    return Lines(lines.sorted(limit), count, count - limit if limit else 0)


def _counted(wanted: Wanted, logs: Readable, lines: store.Store, width: float = 0.0) -> Counts:
    """Count lines; what is of the hook's own schema the store counts by itself."""
    width = width or step_of(_length(wanted, logs) / BINS)
    if isinstance(logs, Logs):
        for chunk in logs.chunks(wanted):
            if not (chunk.plain and lines.tally(chunk.data, wanted, chunk.rank, width)):
                lines.count(chunk.lines(), width)
    else:
        lines.count(logs.lines(wanted), width)
    return Counts(tuple(lines.tallied()), width)


def _length(wanted: Wanted, logs: Readable) -> float:
    """Return how many seconds are asked for."""
    if wanted.latest is not None:
        ends = wanted.latest.values()
        return max(ends, default=0.0) - min(ends, default=0.0) + wanted.last
    span = logs.span() or (0.0, 1.0)
    return max(min(span[1], wanted.end) - max(span[0], wanted.start), 1.0)


def step_of(least: float) -> float:
    """Return a round number of seconds that is no less than another.

    >>> step_of(0.2), step_of(7.0), step_of(1e6)
    (0.5, 10.0, 1000000.0)
    """
    return next((one for one in _STEPS if one >= least), least)


def _errors(wanted: Wanted, logs: Readable, lines: store.Store, shapes: Shapes | None = None) -> FirstErrors:
    """Return the first errors; `shapes` take in all errors and warnings on the way."""
    first: dict[str, Line] = {}
    for line in logs.lines(replace(wanted, level="ERROR" if shapes is None else "WARN")):
        if shapes is not None:
            shapes.take(line)
        before = first.get(line.rank or "") if line.level == "ERROR" else line
        if before is None or (line.time is not None and before.time is not None and line.time < before.time):
            first[line.rank or ""] = line
    lines.add(first.values())
    known = {rank for rank in logs.last(wanted.ranks) if rank and (not wanted.ranks or rank in wanted.ranks)}
    return FirstErrors(tuple(lines.sorted()), len(known - set(first)))


def _silent(question: Question, logs: Readable) -> Silence:
    given = [name for name in ("rank", "event", "level", "grep", "last") if getattr(question, name)]
    if given:
        raise UsageError(f"--silent: it is about all ranks and lines, leave out --{given[0]}")
    ends = logs.last()
    if question.at is not None and isinstance(logs, Logs):
        raise UsageError("--at: who is silent is told at the end of the logs, leave it out")
    return silence(ends, question.world_size or logs.world())


def _suspects(question: Question, wanted: Wanted, logs: Readable, places: Places) -> Suspects:
    """Look for what the lines of the last hour say of a failure, and of waits, unless other lines are asked for."""
    given = [name for name in ("rank", "event", "level", "grep") if getattr(question, name)]
    if given:
        raise UsageError(f"--suspects: it is about all ranks and lines, leave out --{given[0]}")
    span = logs.span()
    if span is not None and not (question.last or question.at):
        wanted = replace(wanted, start=span[1] - LONGEST)
    found = dumps.read(dumps.files(places.dumps), pickles=places.pickles) if places.dumps else NO_DUMPS
    templates = Templates(phrases)
    bare = replace(logs, names=None) if isinstance(logs, Logs) else logs  # lines are looked through once
    told = suspects(
        known(bare.lines(wanted), templates.matcher), logs.last(), question.world_size or logs.world(), found
    )
    first = templates.named(line for one in told.found if (line := one.first) is not None)
    return replace(told, found=[one if one.first is None else one._replace(first=next(first)) for one in told.found])


def _levels(question: Question, wanted: Wanted, logs: Readable) -> Levels:
    """Look for levels that mislead among warnings and errors, and among other lines of events that are graver."""
    given = [name for name in ("rank", "event", "level", "grep") if getattr(question, name)]
    if given:
        raise UsageError(f"--levels: it is about all ranks and lines, leave out --{given[0]}")
    shapes = Shapes()
    for line in logs.lines(replace(wanted, level="WARN")):
        shapes.take(line)
    grave = frozenset(event.name for event in events.table().values() if event.level in {"WARN", "ERROR"})
    bare = (
        replace(logs, names=None) if isinstance(logs, Logs) else logs
    )  # what is named here has a level from here as well
    return levels(shapes, _beside(shapes, wanted, logs), bare.lines(replace(wanted, events=grave)))


def _beside(shapes: Shapes, wanted: Wanted, logs: Readable) -> Beside:
    """Return what is to be known beside the shapes of lines, as far as there is need of it."""
    went = _course(logs) if shapes.lines["ERROR"] else None
    templates = Templates(phrases)
    return Beside(logs.last(), went, templates.template, partial(_restarted, logs), wanted.end)


def _course(logs: Readable) -> Course | None:
    """Return how the job went on, by the ends of some files, or by the last minutes that a server has."""
    if isinstance(logs, Logs):
        logs.step("looking how the job went on")
        return course(one for log in spread(logs.files, SAMPLED) for one in tail(logs, log))
    span = logs.span()
    asked = Wanted(events=spelt(frozenset({"TRAIN_STEP"})), start=span[1] - PICTURED if span else ALWAYS[0])
    return course(one for line in logs.lines(asked) if (one := step(line)) is not None)


def _restarted(logs: Readable, time: float) -> float:
    """Return when ranks were started last after a time, an early one where none were."""
    asked = Wanted(start=time, events=spelt(frozenset({"RANK_START", "JOB_RESTART"})))
    return max((line.time for line in logs.lines(asked) if line.time is not None), default=ALWAYS[0])


def _summary(question: Question, wanted: Wanted, logs: Readable, lines: store.Store) -> Answer:
    silent, span = _silent(question, logs), logs.span()
    shapes = Shapes()
    errors = _errors(wanted, logs, lines, shapes)
    misled = levels(shapes, _beside(shapes, wanted, logs))
    where, files, size = "", 0, 0
    if isinstance(logs, Logs):
        where = _common([log.path for log in logs.files])
        files, size = len(logs.files), sum(log.size for log in logs.files)
    elif isinstance(logs, Server):
        where = logs.where
    return Summary(where, files, size, Span(*span) if span else None, silent, errors, misled)


def _pictured(wanted: Wanted, logs: Readable, told: Answer) -> Counts:
    """Return what a page draws: the lines of the answer, or the end of the logs from a minute before the first silence."""
    if isinstance(told, Counts):
        return told
    if isinstance(told, Silence | Summary | FirstErrors | Levels) and (span := logs.span()) and wanted.latest is None:
        silent = told.silence.ranks if isinstance(told, Summary) else told.ranks if isinstance(told, Silence) else ()
        ends = [one.line.time for one in silent if one.line is not None and one.line.time is not None]
        end = min(span[1], wanted.end)
        start = max(min([end - PICTURED, *(time - MARGIN for time in ends if time > end - LONGEST)]), wanted.start)
        wanted = replace(wanted, start=start, end=end)
    with store.opened() as shown:
        return _counted(wanted, logs, shown)


def _absent(told: Answer) -> tuple[str, ...]:
    """Return the ranks that an answer calls silent."""
    silent = told.silence if isinstance(told, Summary) else told
    return tuple(one.rank for one in silent.ranks) if isinstance(silent, Silence) else ()


@contextmanager
def _opened(question: Question, places: Places, around: Around) -> Iterator[Readable]:
    """Open the files, or the server, that hold the logs."""
    urls = [path for path in places.paths if is_url(path)]
    if urls and len(places.paths) > 1:
        raise UsageError(f"{without_password(urls[0])}: a server stands alone, leave out the others")
    corrected = offsets.load(Path(places.offsets)) if places.offsets else {}
    notes = Notes()
    if urls:
        end = parse_time("--at", question.at, around.now) if question.at else around.now
        asked = Asked(places.query or "", max(end - parse_duration("--window", places.window), 0.0), end)
        with reached(urls[0], asked, settle(places.config, around.environment, {}), notes) as server:
            server.step, server.offsets, server.names = around.step, corrected, Templates(phrases)
            yield server
        return
    if places.query is not None:
        raise UsageError("--query: files are not asked in a language of their own, see --grep")
    zone = parse_zone("--zone", places.zone) if places.zone else None
    around.step("looking for files")
    pattern = pattern_of("--names", places.names) if places.names is not None else None
    files = find(places.paths, Naming(pattern, places.first_rank), places.match or PATTERNS, notes)
    if not files:
        left = notes.passed
        raise SourceError(
            f"{', '.join(places.paths)}: no log is in there"
            + (f"; there are files of other names: {left:,}, see --match" if left else "")
        )
    logs = Logs(files, zone, notes, around.step, offsets=corrected, names=Templates(phrases))
    yield logs if places.offsets else replace(logs, offsets=_clocks(logs))


def _clocks(logs: Logs) -> Mapping[str, float]:
    """Return how far the clocks of nodes are ahead, as far as the steps at the ends of files tell it, and note it."""
    ahead = nodes_apart(logs)
    worst = sorted(ahead, key=lambda node: (-abs(ahead[node]), natural(node)))
    for node in worst[:CLOCKS]:
        which = "ahead" if ahead[node] > 0 else "behind"
        logs.notes.of(
            f"its clock is {abs(ahead[node]):,.1f} s {which} by the steps that all end together, corrected, see --offsets",
            node,
        )
    if len(worst) > CLOCKS:
        others = counted(len(worst) - CLOCKS, "more node")
        logs.notes.of(f"the clocks of {others} are off as well, corrected", worst[CLOCKS])
    return ahead


def _common(paths: Sequence[str]) -> str:
    """Return what paths have in common, the path itself where there is one."""
    if len(paths) == 1:
        return paths[0]
    parts = [path.split("/") for path in paths]
    same = []
    for pieces in zip(*parts, strict=False):
        if len(set(pieces)) > 1:
            break
        same.append(pieces[0])
    return "/".join(same) or "."


def _notes(notes: Notes) -> Iterator[str]:
    """Say what reading met."""
    for said, files in sorted(notes.files.items()):
        shown = files[0] if len(files) == 1 else f"{files[0]} and {counted(len(files) - 1, 'more file')}"
        yield f"{shown}: {said}"
    for flaw, count in sorted(notes.counts.items()):
        yield f"{counted(count, 'line')}: {flaw}"
    if notes.passed:
        yield f"{counted(notes.passed, 'file')} not read, as the names are not those of logs, see --match"
