"""Logs of a training job: the metrics that their lines add up to, as an exporter would have shown them.

A line without a time happened when the last line with one was written, or so much later as its steps took. Where no
line of a file has a time, the last one was written when the file was.
"""

from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rca.errors import SourceError
from rca.ledger import Ledger, Options
from rca.ledger.values import Key, labels_of
from rca.parsers.reader import OTHERS, Reader, blocks, rank_of
from rca.parsers.record import Record
from rca.plain import counted
from rca.sources.foreign import Place, Ways, files, open_bytes, unreadable, zone_name
from rca.sources.kept import Kept, Series

RESOLUTION = 5.0
"""Steps shorter than this, in seconds, are looked at together: a scrape would not see them one by one either."""
_SUFFIXES = tuple(
    end + gz for end in (".log", ".out", ".err", ".txt", ".jsonl", ".json", ".stdout", ".stderr") for gz in ("", ".gz")
)
_SHOWN, _WIDEST = 3, 60
_ENDS = {"step", "overflow"}
"""What is written at the end of a step: an iteration line without a time after it is of the same moment."""


def read(place: Place, ways: Ways) -> Kept:
    """Read a log, or all logs of a folder, as those of one job; raises SourceError where none of them is one."""
    found = files(place.file(), _SUFFIXES)
    if not found:
        raise SourceError(f"{place.shown}: no log in it, their names end in .log, .out, .err, .txt or .jsonl")
    logs = Logs(Options(job=place.name or "default"), ways)
    for path in found:
        logs.take(path)
    series = logs.series()
    if not series:
        raise SourceError(f"{place.shown}: {_strange(logs)}")
    return Kept(series, place.shown, logs.said(place.shown))


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
        self._columns: dict[Key, tuple[array[float], array[float]]] = {}
        self._timeless: list[Path] = []

    def take(self, path: Path) -> None:
        """Read one log from its beginning to its end."""
        clock, held, last = Clock(self._begin(path)), -np.inf, 0.0
        reader = self.readers[path] = self._reader(path)
        touched = self.ledger.values.touched
        touched.clear()
        for record in _records(path, reader):
            time = clock.tell(record)
            if time >= held + RESOLUTION:
                self._keep(last)
                held = time
            self.ledger.add(record, time)
            last = time
        self._keep(last)

    def _reader(self, path: Path) -> Reader:
        return Reader(rank_of(path.name), self._ways.zone)

    def _begin(self, path: Path) -> float:
        """Return the time before the first record: that of the first line with a time, less what steps took until then."""
        clock, first, empty = Clock(), 0.0, True
        for record in _records(path, self._reader(path)):
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


def _records(path: Path, reader: Reader) -> Iterator[Record]:
    """Yield the records of a file; raises SourceError where it cannot be read."""
    with open_bytes(path) as file:
        try:
            for block in blocks(file):
                yield from reader.take(block)
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
    shown = f", such as {'; '.join(repr(shape[:_WIDEST]) for shape in shapes[:_SHOWN])}" if shapes else ""
    return f"none of its {counted(lines, 'line')} is one of a training framework that is known{shown}"
