"""Lines of any number in a DuckDB of their own: within a bound of memory, beyond it in a folder that goes with it.

It sorts and groups on disk where memory does not suffice, and counts lines of the hook's own schema by itself.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb
import msgspec

from rca.errors import SourceError
from rca.loglines import LEVELS, Line, Source, Wanted
from rca.logs.answers import Count

MEMORY = "768MB"
"""What DuckDB may take; beyond it spills to disk."""
_COLUMNS = {
    "time": "DOUBLE", "rank": "VARCHAR", "node": "VARCHAR", "level": "VARCHAR", "event": "VARCHAR",
    "event_id": "VARCHAR", "message": "VARCHAR", "extra": "VARCHAR", "file": "VARCHAR", "byte": "BIGINT",
    "attempt": "INTEGER", "flaw": "VARCHAR",
}  # fmt: skip
_ALL = ", ".join(_COLUMNS)
_FETCHED = 2_000
_READ = """
CREATE OR REPLACE TEMP TABLE chunk AS
SELECT epoch_us(try_cast("timestamp" AS TIMESTAMPTZ)) / 1e6 AS time, coalesce(rank, $2) AS rank, level, coalesce(event, '') AS event,
  event_id, length("timestamp") = 24 AND suffix("timestamp", 'Z') AS ours
FROM read_json($1, format = 'newline_delimited', ignore_errors = true, maximum_object_size = 1048576, columns = {
  timestamp: 'VARCHAR', rank: 'VARCHAR', level: 'VARCHAR', event: 'VARCHAR', event_id: 'VARCHAR'})
"""
_ODD = """
SELECT count(*) FILTER (NOT coalesce(ours AND event <> '' AND time IS NOT NULL AND regexp_full_match(rank, '0|[1-9][0-9]*')
  AND level IN ('DEBUG', 'INFO', 'WARN', 'ERROR'), false)) + (count(*) NOT BETWEEN $1 - 1 AND $1)::BIGINT FROM chunk
"""
_COUNT = """
INSERT INTO tallies SELECT time, rank, event, level, lines FROM read_json($1, format = 'newline_delimited', columns = {
  time: 'DOUBLE', rank: 'VARCHAR', event: 'VARCHAR', level: 'VARCHAR', lines: 'BIGINT'})
"""
_TALLY = """
INSERT INTO tallies SELECT floor(time / $1) * $1, rank, event, level, count(*) FROM chunk
WHERE time BETWEEN $2 AND $3 AND (len($4) = 0 OR rank IN $4) AND (len($5) = 0 OR event IN $5 OR event_id IN $5) AND level IN $6
GROUP BY ALL
"""


class Database:
    """Lines, in the order of their times."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._base = duckdb.connect(
            ":memory:",
            config={
                "memory_limit": MEMORY, "temp_directory": str(folder / "spill"), "preserve_insertion_order": False,
                "autoinstall_known_extensions": False, "autoload_known_extensions": False,
            },
        )  # fmt: skip
        self._base.execute(f"CREATE TABLE lines ({', '.join(f'{name} {kind}' for name, kind in _COLUMNS.items())})")
        self._base.execute(
            "CREATE TABLE tallies (time DOUBLE, rank VARCHAR, event VARCHAR, level VARCHAR, lines BIGINT)"
        )

    def add(self, lines: Sequence[Line]) -> None:
        """Take lines in."""
        spool = self._folder / "spool.jsonl"
        with _room(self._folder):
            spool.write_bytes(b"\n".join(map(_row, lines)))
            self._base.execute(
                f"INSERT INTO lines SELECT {_ALL} FROM read_json(?, format = 'newline_delimited', columns = ?)",  # noqa: S608 - our own names
                [str(spool), _COLUMNS],
            )

    def sorted(self, limit: int | None = None) -> Iterator[Line]:
        """Yield the lines in order of time, those without one first; the last ones where there is a limit."""
        order = "time {0} NULLS {1}, rank {0}, file {0}, byte {0}"
        newest = f"FROM lines ORDER BY {order.format('DESC', 'LAST')} LIMIT {limit}" if limit else "FROM lines"
        with _room(self._folder):
            found = self._base.execute(f"SELECT {_ALL} FROM ({newest}) ORDER BY {order.format('ASC', 'FIRST')}")  # noqa: S608 - likewise
            while rows := found.fetchmany(_FETCHED):
                yield from map(_line, rows)

    def tally(self, chunk: bytes, wanted: Wanted, rank: str | None, width: float) -> bool:
        """Count the lines of the hook's own schema in a chunk of a file; `rank` is that of lines that name none.

        Return False, with nothing counted, where a line of the chunk is of another kind.
        """
        spool = self._folder / "chunk.jsonl"
        with _room(self._folder):
            spool.write_bytes(chunk)
            self._base.execute(_READ, [str(spool), rank])
            odd = self._base.execute(_ODD, [len(chunk.split(b"\n"))]).fetchone()
            if odd is not None and odd[0]:
                return False
            levels = LEVELS[LEVELS.index(wanted.level) :] if wanted.level else LEVELS
            self._base.execute(
                _TALLY, [width, wanted.start, wanted.end, sorted(wanted.ranks), sorted(wanted.events), list(levels)]
            )
        return True

    def count(self, counts: Iterable[Count]) -> None:
        """Take in what was counted elsewhere."""
        spool = self._folder / "counts.jsonl"
        with _room(self._folder):
            spool.write_bytes(b"\n".join(msgspec.json.encode(_clean_count(one)) for one in counts))
            self._base.execute(_COUNT, [str(spool)])

    def tallied(self) -> list[Count]:
        """Return what was counted, by time, rank, event and level."""
        with _room(self._folder):
            rows = self._base.execute(
                "SELECT time, rank, event, level, sum(lines)::BIGINT FROM tallies GROUP BY ALL ORDER BY ALL"
            ).fetchall()
        return [Count(*row) for row in rows]

    def close(self) -> None:
        """Let go of the database."""
        self._base.close()


@contextmanager
def _room(folder: Path) -> Iterator[None]:
    """Put into words that there is no room for all lines."""
    try:
        yield
    except (duckdb.OutOfMemoryException, duckdb.IOException, OSError) as error:
        said = str(error).splitlines()[0]
        raise SourceError(
            f"{folder.parent}: no room for all lines ({said}), set TMPDIR to a larger disk or ask for fewer lines"
        ) from error


def _row(line: Line) -> bytes:
    """Write a line as a row; what no text may hold (halves of pairs, zeros) is spelt out or replaced."""
    row = {
        "time": line.time, "rank": line.rank, "node": line.node, "level": line.level, "event": line.event,
        "event_id": line.event_id, "message": line.message, "extra": _extra(line), "file": line.source.file,
        "byte": line.source.offset, "attempt": line.attempt, "flaw": line.flaw,
    }  # fmt: skip
    try:
        written = msgspec.json.encode(row)
    except UnicodeEncodeError:
        written = b""
    if written and b"\\u0000" not in written:
        return written
    return msgspec.json.encode({key: _clean(value) if isinstance(value, str) else value for key, value in row.items()})


def _clean_count(one: Count) -> Mapping[str, object]:
    return {key: _clean(value) if isinstance(value, str) else value for key, value in one._asdict().items()}


def _extra(line: Line) -> str:
    if not line.extra:
        return ""
    try:
        return msgspec.json.encode(line.extra, enc_hook=str).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode({key: _clean(str(value)) for key, value in line.extra.items()}).decode()


def _clean(text: str) -> str:
    return text.replace("\0", "\ufffd").replace("\\u0000", "\ufffd").encode("utf-8", "backslashreplace").decode()


def _line(row: tuple) -> Line:  # type: ignore[type-arg]
    time, rank, node, level, event, event_id, message, extra, file, byte, attempt, flaw = row
    beside = msgspec.json.decode(extra) if extra else {}
    return Line(time, rank, node, level, event, event_id, message, beside, Source(file, byte), attempt, flaw)
