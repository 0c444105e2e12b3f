"""Logs of a training job: the metrics that their lines add up to, as an exporter would have shown them, and what their
lines say of failures and waits.

A line without a time happened when the last line with one was written, or so much later as its steps took. Where no
line of a file has a time, the last one was written when the file was.
"""

import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rca.errors import SourceError
from rca.ledger import Ledger, Options
from rca.ledger.values import Key, labels_of
from rca.loglines import PATTERNS, Naming, Notes, find
from rca.loglines import Logs as Lines
from rca.loglines.known import Templates
from rca.loglines.read import UNTIMED, ZONELESS
from rca.logs.steps import nodes_apart
from rca.model import LogLine, Snapshot, Window
from rca.parsers.reader import BLOCK, OTHERS, Reader, blocks, new_strainer, rank_of
from rca.parsers.record import Record
from rca.plain import counted
from rca.sources.blocks import nothing
from rca.sources.foreign import Place, Ways, files, open_bytes, unreadable, zone_name
from rca.sources.kept import Kept, Series, extent
from rca.sources.logged import Said, Told, last_words, places
from rca.sources.logged import read as logged
from rca.sources.ranks import DEFAULT
from rca.sources.series import Store
from rca.sources.spans import carried

RESOLUTION = 5.0
"""Steps shorter than this, in seconds, are looked at together: a scrape would not see them one by one either."""
_SUFFIXES = tuple(
    end + gz for end in (".log", ".out", ".err", ".txt", ".jsonl", ".json", ".stdout", ".stderr") for gz in ("", ".gz")
)
SILENCE = 150.0
"""Seconds after the last line that are looked at of a job that has failed: that it takes no step in them is seen. They are
long enough for a stall beside a hard event, and too short for one by itself."""
_LOOK = 4500.0
WHOLE = 64 << 20
"""Bytes of logs that are read from beginning to end; of more, what is asked for."""
_MTIME = "no line tells a time, what is known in it is taken to be of the file's last change"
HEAD = 1 << 12
"""Bytes at the beginning of a log in which there is mostly a line with a time."""
_SHOWN, _WIDEST = 3, 60
_ENDS = {"step", "overflow"}
"""What is written at the end of a step: an iteration line without a time after it is of the same moment."""


def read(place: Place, ways: Ways) -> "Spoken":
    """Read a log, or all logs of a folder, as those of one job; raises SourceError where none of them is one."""
    found = files(place.file(), _SUFFIXES)
    notes = Notes()
    lines = Lines(find([place.path], Naming(), PATTERNS, notes), ways.zone, notes)
    if not found and not lines.files:
        raise SourceError(f"{place.shown}: no log in it, their names end in .log, .out, .err, .txt or .jsonl")
    job, ahead = place.name or DEFAULT, nodes_apart(lines)
    told = Told(replace(lines, offsets=ahead), Templates(lambda: ways.templates), job, ways.dumps)
    reading = Reading(found, ways, told.lines)
    covered = (reading.since(), np.inf)
    logs = reading.logs(covered, job)
    said = [*logs.said(place.shown), *(_apart(place.shown, node, seconds) for node, seconds in sorted(ahead.items()))]
    spoken = Spoken(logs.series(), (place.shown, said), told)
    spoken.reading, spoken.covered = reading, covered
    if not spoken.blocks and not spoken.tells():
        raise SourceError(f"{place.shown}: {_strange(logs)}")
    return spoken


class Reading(NamedTuple):
    """How the metrics of some logs are read."""

    paths: Sequence[Path]
    ways: Ways
    lines: Lines

    def since(self) -> float:
        """Return from when on they are read at first: of large logs the end that is mostly asked for."""
        last, large = latest(self.lines), sum(log.size for log in self.lines.files) > WHOLE
        return last - _LOOK if last is not None and large else -np.inf

    def logs(self, stretch: tuple[float, float], job: str) -> "Logs":
        """Read those of a stretch of time, and what stands at the beginning of each."""
        logs = Logs(Options(job=job), self.ways)
        known = {log.path: log for log in self.lines.files}
        for path in self.paths:
            log = known.get(str(path))
            logs.take(path, self.lines.part(log, *stretch) if log is not None and np.isfinite(stretch[0]) else None)
        return logs


def _apart(shown: str, node: str, seconds: float) -> str:
    which = "ahead" if seconds > 0 else "behind"
    return f"{shown}: the clock of {node} is {abs(seconds):,.1f} s {which}, by the steps that all ranks end together; lines are corrected"


def latest(lines: Lines) -> float | None:
    """Return when the last line was written; a clock that is more than a day ahead of most is not believed."""
    times = sorted(one.line.time for one in lines.closing() if one.line.time is not None and not one.guessed)
    return max((time for time in times if time <= times[len(times) // 2] + 86400.0), default=None)


def _noted(notes: Notes) -> Iterator[str]:
    """Say what reading lines met that may hide something."""
    for said, paths in sorted(notes.files.items()):
        if said.startswith(ZONELESS):  # the reader of metrics has said that
            continue
        more = f" and {counted(len(paths) - 1, 'more file')}" if len(paths) > 1 else ""
        yield f"{paths[0]}{more}: {_MTIME if said == UNTIMED else said}"


class Spoken(Kept):
    """A `Store` over the metrics of a job's logs and over what their lines say, which are read when a time is asked for."""

    def __init__(self, series: Sequence[Series], place: tuple[str, Sequence[str]], told: Told) -> None:
        super().__init__(series, *place)
        self.told_by = told
        self._places = True
        self._own = dict(self.blocks)
        self.reading: Reading | None = None
        self.covered = (-np.inf, np.inf)
        self._read: tuple[float, float] | None = None
        self._said = Said((), (), failed=False)

    @cached_property
    def _span(self) -> tuple[float, float] | None:
        """Return the first and the last time of lines; where samples tell when they begin, the last alone is looked for."""
        lines, own = self.told_by.lines, extent(self._own.values())
        if own is None:
            return lines.span()
        last = latest(lines)
        if last is None:
            return own
        return min(own[0], last), last if own[1] > last + 86400.0 else max(own[1], last)

    def of_job(self, job: str) -> "Spoken":
        """Return the same with all that is of the job `default` named to be of this one."""
        own = Kept.of_job(self, job)
        told = self.told_by._replace(job=job) if self.told_by.job == DEFAULT else self.told_by
        made = Spoken((), (self.place, self.said), told)
        made._own = {name: block for name, block in own.blocks.items() if name in self._own}
        made.blocks = dict(made._own)
        made.reading, made.covered = self.reading, self.covered
        return made

    def nobodys(self) -> bool:
        """Say whether the job has no name."""
        return self.told_by.job == DEFAULT or super().nobodys()

    def tells(self) -> bool:
        """Say whether any line is known."""
        end = self.extent()
        return end is not None and (bool(self._said.quotes) or "log_lines_total" in self.names(*end))

    def extent(self) -> tuple[float, float] | None:
        """Return the times of the first and the last sample or line; of a job that has failed a while more, in which
        nothing came."""
        if self._span is None:
            return None
        first, last = self._span
        self._look(max(first, last - _LOOK), last + SILENCE)
        return first, last + SILENCE * self._said.failed

    def names(self, start: float, end: float) -> frozenset[str]:
        """Return the metric names that have samples in [start, end], once the lines of that time are read."""
        self._look(start, end)
        return super().names(start, end)

    def warnings(self) -> tuple[str, ...]:
        """Return what was said when the logs were read, and how many ranks left no line."""
        said = [*self.said, *_noted(self.told_by.lines.notes)]
        if strange := sorted(self._said.strangers):
            said.append(
                f"{self.place}: hosts on which no rank of the job runs are left out: {counted(len(strange), 'host')}, {strange[0]}"
            )
        none = self._said.wordless
        if not none:
            return tuple(said)
        world = self.told_by.lines.world() or 0
        which = f"rank {none[0]} left none" if len(none) == 1 else f"{len(none):,} left none, such as rank {none[0]}"
        return (*said, f"{self.place}: {world - len(none):,} of {world:,} ranks left lines, {which}")

    def quotes(self) -> tuple[LogLine, ...]:
        """Return the lines that stand behind what was asked for last."""
        return tuple(self._said.quotes)

    def words(self, end: float) -> tuple[LogLine, ...]:
        """Return the last lines of each rank up to a time, where the job has failed by then."""
        return tuple(last_words(self.told_by, end)) if self._said.failed else ()

    def place_ranks(self, places: bool) -> None:
        """Say where ranks run, as far as lines tell, or leave that to others."""
        if places != self._places:
            self._places, self._read = places, None

    def _look(self, start: float, end: float) -> None:
        """Read the lines of a stretch of time, unless that was done."""
        if self._read is not None and self._read[0] <= start and self._read[1] - SILENCE <= end <= self._read[1]:
            return
        self._read = (start, end)
        if self.reading is not None and not self.covered[0] <= start <= end <= self.covered[1]:
            self.covered = (start, end)
            self._own = Kept(self.reading.logs(self.covered, self.told_by.job).series(), "").blocks
        steps = self._own.get("train_steps_total", nothing()).times
        steps = np.unique(steps[(steps >= start) & (steps <= end)])
        self._said = logged(self.told_by, (start, end), steps)
        own = self._own
        if self._said.failed and self._span is not None:
            until = min(end, self._span[1] + SILENCE)  # no further: beside what a server has, it would seem to live on
            own = {name: carried(block, until) for name, block in own.items()}
        ranks = places(self._said, self.told_by.job) if self._places else []
        self.blocks = {**Kept([*self._said.series, *ranks], "").blocks, **own}


class Clock:
    """The times of a file's records, those without one included, in unix seconds once `now` is."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.ends = False
        self._step: float | None = None
        self._last: float | None = None

    def tell(self, record: Record) -> float:
        """Return when a record was written.

        >>> clock = Clock(100.0)
        >>> clock.tell(Record("step", None, None, {"step": 10.0, "step_seconds": 2.0}))
        102.0
        >>> clock.tell(Record("step", None, None, {"step": 20.0, "step_seconds": 2.0}))
        122.0
        """
        if record.time is not None:
            self.now, self.ends = record.time, record.kind in _ENDS
        step, seconds = record.fields.get("step"), record.fields.get("step_seconds")
        if record.kind != "step" or not isinstance(step, float) or not isinstance(seconds, float):
            return self.now
        steps = step - self._step if self._step is not None and step > self._step else 1.0
        if record.time is None and not self.ends and 0.0 < seconds * steps < 1e9:
            self.now = max(self.now, (self.now if self._last is None else self._last) + seconds * steps)
        self._step, self._last, self.ends = step, self.now, False
        return self.now


class Logs:
    """Reads the logs of one job, and keeps how its metrics were over time."""

    def __init__(self, options: Options, ways: Ways) -> None:
        self.ledger = Ledger(options)
        self.readers: dict[Path, Reader] = {}
        self._ways = ways
        self._strainer = new_strainer()
        self._columns: dict[Key, tuple[array[float], array[float]]] = {}
        self._timeless: list[Path] = []

    def take(self, path: Path, part: tuple[int, int] | None = None) -> None:
        """Read one log, or what stands at its beginning and the lines that begin between two bytes."""
        clock, held, last = Clock(self._begin(path)), -np.inf, 0.0
        reader = self.readers[path] = self._reader(path)
        touched = self.ledger.values.touched
        touched.clear()
        for record in _records(path, reader, part=part):
            time = clock.tell(record)
            if time >= held + RESOLUTION:
                self._keep(last)
                held = time
            self.ledger.add(record, time)
            last = time
        self._keep(last)

    def _reader(self, path: Path) -> Reader:
        return Reader(rank_of(path.name), self._ways.zone, self._strainer)

    def _begin(self, path: Path) -> float:
        """Return the time before the first record: that of the first line with a time, less what steps took until then."""
        clock, first, empty = Clock(), 0.0, True
        for record in _records(path, self._reader(path), HEAD):
            empty = False
            if clock.ends and record.time is None and record.kind == "step":
                seconds = record.fields.get("step_seconds")
                return first - (seconds if isinstance(seconds, float) and 0.0 < seconds < 1e9 else 0.0)
            if record.time is not None and not clock.ends:
                first = record.time - clock.now
                if record.kind not in _ENDS or not clock.now:
                    return first
            clock.tell(record)
        if first:
            return first
        if not empty:
            self._timeless.append(path)
        return path.stat().st_mtime - clock.now

    def _keep(self, time: float) -> None:
        """Keep the values that have changed."""
        touched, values = self.ledger.values.touched, self.ledger.values.values
        for key in touched:
            column = self._columns.get(key)
            if column is None:
                column = self._columns[key] = (array("d"), array("d"))
            column[0].append(time)
            column[1].append(values[key])
        touched.clear()

    def series(self) -> list[Series]:
        """Return the series so far, each in the order of its times; of equal times the last sample counts."""
        found = []
        for key, (times, values) in sorted(self._columns.items()):
            labels = labels_of(key, self.ledger.options.job, self.ledger.reporter)
            moments, numbers = np.array(times), np.array(values)
            order = np.argsort(moments, kind="stable")
            moments, numbers = moments[order], numbers[order]
            last = np.append(moments[1:] != moments[:-1], True)
            found.append(Series({"__name__": key.name, **labels}, moments[last], numbers[last]))
        return found

    def said(self, shown: str) -> list[str]:
        """Return what a reader of the series should know."""
        said = [
            f"{path}: its lines have no time, so times are counted back from when the file was last written"
            for path in self._timeless[:_SHOWN]
        ]
        if len(self._timeless) > _SHOWN:
            said.append(f"{shown}: {len(self._timeless) - _SHOWN} more logs have no times in their lines")
        if self.ledger.reporter == "last" and any(key.rank == "\0" for key in self._columns):
            said.append(f"{shown}: does not tell the number of ranks, the one that prints is called last")
        if self.ledger.time is not None and len(self._timeless) < len(self.readers):
            said.append(
                f"{shown}: times without a zone are taken for those of {zone_name(self._ways.zone, self.ledger.time)}"
            )
        return said


def _records(path: Path, reader: Reader, size: int = BLOCK, part: tuple[int, int] | None = None) -> Iterator[Record]:
    """Yield the records of a file, so many bytes at once; of a part those from its beginning on, and of its block the rest.

    Raises SourceError where the file cannot be read.
    """
    begin, end = part or (0, sys.maxsize)
    with open_bytes(path) as file:
        try:
            if begin > HEAD:
                yield from reader.take(next(blocks(file, HEAD)))
                file.seek(max(begin, file.tell()))
            for block in blocks(file, size if part is None else min(size, max(end - begin, HEAD))):
                yield from reader.take(block)
                if file.tell() >= end:
                    break
        except (OSError, EOFError) as error:
            raise unreadable(path, error) from error
    yield from reader.flush()


def _strange(logs: Logs) -> str:
    """Say that nothing was understood, and show what there is."""
    lines = sum(reader.lines for reader in logs.readers.values())
    shapes = [
        shape
        for reader in logs.readers.values()
        for shape, _ in reader.shapes.most_common(_SHOWN)
        if shape not in ("", OTHERS)
    ]
    if not lines:
        return "its logs hold no line"
    shown = f", such as {'; '.join(repr(shape[:_WIDEST]) for shape in shapes[:_SHOWN])}" if shapes else ""
    return f"none of its {counted(lines, 'line')} is one of a training framework that is known{shown}"


def told(spoken: Sequence[Spoken], stores: Sequence[Store], window: Window, ask: Callable[[], Snapshot]) -> Snapshot:
    """Ask for a snapshot of logs beside other stores, and add the lines that stand behind it.

    Logs place ranks on nodes and GPUs only where no other store does.
    """
    names = [one.names(window.start - window.baseline, window.end) for one in stores] if spoken else []
    for one in spoken:
        one.place_ranks(not any("train_rank_info" in some for some in names))
    seen = ask()
    quotes = tuple(line for one in spoken for line in one.quotes())
    words = tuple(line for one in spoken for line in one.words(window.end))
    return replace(seen, quotes=quotes, words=words)
