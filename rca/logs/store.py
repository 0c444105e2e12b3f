"""Lines in order of time, and counts of lines: a few in memory, more in a database on disk."""

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rca.loglines import Line, Wanted
from rca.logs.answers import Count
from rca.plain import natural

if TYPE_CHECKING:
    from rca.logs.database import Database

FEW = 50_000
"""Lines, or counts, that are kept in memory; it is also how many go to the database at once."""


class Store:
    """Lines and counts; `folder` is where the database may spill to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: list[Line] = []
        self._counts: Counter[tuple[float | None, str | None, str, str]] = Counter()
        self._opened: Database | None = None

    @property
    def _base(self) -> "Database":
        """Return the database, opened when it is needed first."""
        if self._opened is None:
            from rca.logs.database import Database  # noqa: PLC0415 - takes longer to load than a small answer

            self._opened = Database(self._folder)
        return self._opened

    def add(self, lines: Iterable[Line]) -> int:
        """Take lines in, and return how many there were."""
        count = 0
        for line in lines:
            self._lines.append(line)
            count += 1
            if len(self._lines) > FEW:
                self._base.add(self._lines)
                self._lines = []
        return count

    def sorted(self, limit: int | None = None) -> Iterator[Line]:
        """Yield the lines in order of time, those without one first; the last ones where there is a limit."""
        if self._opened is None:
            lines = sorted(self._lines, key=_place)
            yield from lines[-limit:] if limit else lines
            return
        self._base.add(self._lines)
        self._lines = []
        yield from self._base.sorted(limit)

    def tally(self, chunk: bytes, wanted: Wanted, rank: str | None, width: float) -> bool:
        """Count the lines of the hook's own schema in a chunk of a file, or say that there are others in it."""
        return len(chunk) > FEW * 20 and self._base.tally(chunk, wanted, rank, width)

    def count(self, lines: Iterable[Line], width: float) -> None:
        """Count lines of any kind, without keeping them, by stretches of time so long."""
        for line in lines:
            time = None if line.time is None else line.time // width * width
            self._counts[time, line.rank, line.event, line.level] += 1
            if len(self._counts) > FEW:
                self._base.count(self._taken())

    def _taken(self) -> list[Count]:
        counts = [Count(*key, number) for key, number in self._counts.items()]
        self._counts.clear()
        return counts

    def tallied(self) -> list[Count]:
        """Return what was counted, in order of time."""
        counts = self._taken()
        if self._opened is not None:
            self._base.count(counts)
            counts = self._base.tallied()
        return sorted(
            counts,
            key=lambda one: (one.time is not None, one.time or 0.0, natural(one.rank or ""), one.event, one.level),
        )

    def close(self) -> None:
        """Let go of the database."""
        if self._opened is not None:
            self._opened.close()


@contextmanager
def opened() -> Iterator[Store]:
    """Open an empty store, and remove what it has written in the end."""
    with tempfile.TemporaryDirectory(prefix="rca-logs-") as folder:
        store = Store(Path(folder))
        try:
            yield store
        finally:
            store.close()


def _place(line: Line) -> tuple[bool, float, str, str, int]:
    """Return what lines are ordered by."""
    return line.time is not None, line.time or 0.0, line.rank or "", line.source.file, line.source.offset
