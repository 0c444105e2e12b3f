"""InfluxDB's query APIs: InfluxQL at `/query` (versions 1 and 3), Flux at `/api/v2/query` (version 2).

Which one is meant the URL says: `http://influx:8086?db=telegraf` or `http://influx:8086?org=ops&bucket=telegraf`.
Nothing is read before the window is known; then the fields that become metrics, over window and baseline.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import NamedTuple, Protocol
from urllib.parse import parse_qs, urlencode, urlsplit

import msgspec
import requests

from rca import config
from rca.errors import SourceError, UsageError
from rca.model import Floats
from rca.plain import stamp
from rca.sources import http
from rca.sources.foreign import Place, Ways
from rca.sources.influx import Taken
from rca.sources.kept import Kept
from rca.sources.parallel import Job, in_parallel
from rca.sources.series import Block, Selector

INFLUX = http.Api(
    "an InfluxDB",
    "influx",
    "write http://HOST:8086?db=NAME for versions 1 and 3, http://HOST:8086?org=NAME&bucket=NAME for version 2",
)
MARGIN = 1800.0
"""Seconds before the baseline that rates may reach back."""
CHUNK = 10_000
Fields = Mapping[str, Sequence[str]]


class Row(NamedTuple):
    """A point as a server answers: tags, field, unix seconds and value."""

    tags: Mapping[str, str]
    field: str
    time: float
    value: float


class Dialect(Protocol):
    """A query API."""

    def fields(self) -> Fields:
        """Return the fields of each measurement."""
        ...

    def rows(self, measurement: str, fields: Sequence[str], start: float, end: float) -> Iterator[Row]:
        """Yield the points of some fields in [start, end], unix seconds."""
        ...

    def edge(self, measurement: str, field: str, *, last: bool) -> Iterator[Row]:
        """Yield the first or the last point of a field, if there is one."""
        ...

    def said(self) -> Sequence[str]:
        """Return what the server warned of."""
        ...


class InfluxStore:
    """A `Store` over a server: the first question after names reads what the rules want of that time, and keeps it."""

    def __init__(self, dialect: Dialect, talk: "Talk", ways: Ways, node: str) -> None:
        self.site = talk.site
        self._dialect = dialect
        self._talk = talk
        self._ways = ways
        self._node = node
        self._kept: Kept | None = None

    def now(self) -> float:
        """Return the server's clock, unix seconds."""
        self._dialect.fields()
        return self._talk.now()

    def extent(self) -> tuple[float, float] | None:
        """Return the times between which the server has points of what is read, None where it has none."""
        wanted = [(name, fields[0]) for name, fields in self._wanted(Taken(self._ways.imports)).items() if fields]
        first, last = (
            [row.time for name, field in wanted for row in self._dialect.edge(name, field, last=end)]
            for end in (False, True)
        )
        return (min(first), max(last)) if first and last else None

    def names(self, start: float, end: float) -> frozenset[str]:
        """Read what there is in [start, end], and return the names of it."""
        self._kept = self._read(start - MARGIN, end)
        return self._kept.names(start, end)

    def fetch(self, selectors: Sequence[Selector]) -> Iterator[tuple[int, Block]]:
        """Yield the blocks of selectors in their order, out of what was read."""
        if self._kept is None:
            self._kept = self._read(min(one.start for one in selectors), max(one.end for one in selectors))
        return self._kept.fetch(selectors)

    def evaluate(self, query: str, times: Floats) -> Block:
        """Refuse: InfluxDB does not know PromQL."""
        return Kept((), self.site.url).evaluate(query, times)

    def warnings(self) -> tuple[str, ...]:
        """Return what is to be said of what was read."""
        return () if self._kept is None else self._kept.warnings()

    def _read(self, start: float, end: float) -> Kept:
        taken = Taken(self._ways.imports, self._node)
        wanted = self._wanted(taken)
        jobs = [
            Job(f"the points of {name}", partial(self._points, name, fields, start, end))
            for name, fields in wanted.items() if fields
        ]  # fmt: skip
        names = [name for name, fields in wanted.items() if fields]
        for index, rows in in_parallel(jobs, self._talk.workers, self.site):
            for row in rows:
                points = taken.points(names[index], row.tags, row.field)
                if points is not None:
                    points.add(row.time, row.value)
        return Kept(taken.series(), self.site.url, [*self._dialect.said(), *taken.tally.said(self.site.url)])

    def _wanted(self, taken: Taken) -> Fields:
        """Return the fields of each measurement that become something."""
        known = sorted(self._dialect.fields().items())
        return {name: [field for field in fields if taken.find(name, field)] for name, fields in known}

    def _points(self, name: str, fields: Sequence[str], start: float, end: float) -> list[Row]:
        return list(self._dialect.rows(name, fields, start, end))


class Talk:
    """The connection to a server: asks, and remembers the clock of the last answer."""

    def __init__(self, server: config.Server) -> None:
        self._session, self.site = http.connect(server, INFLUX, "Token")
        self._session.mount(self.site.url, http.Adapter(self.site, server.workers))
        self.workers = server.workers
        self._date = ""

    def ask(self, path: str, **options: object) -> bytes:
        """Post a question, and return the body of its answer."""
        answer: requests.Response = self._session.post(f"{self.site.url}{path}", verify=self._session.verify, **options)  # type: ignore[arg-type]
        self._date = answer.headers.get("Date", self._date)
        return answer.content

    def now(self) -> float:
        """Return the time that the last answer carried, unix seconds."""
        try:
            return parsedate_to_datetime(self._date).timestamp()
        except ValueError as error:
            raise SourceError(f"{self.site.url}: answers without a Date, write --at and the time to look at") from error


def opened(place: Place, ways: Ways) -> InfluxStore:
    """Open a server; raises UsageError where its URL does not say what to read there."""
    parts = urlsplit(place.path)
    asked = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    base = parts._replace(query="", fragment="").geturl().rstrip("/")
    try:
        config.check_url(base)
    except ValueError as error:
        raise UsageError(f"--influx: {error}") from error
    unknown = asked.keys() - {"db", "rp", "org", "bucket"}
    if unknown or not ("db" in asked or {"org", "bucket"} <= asked.keys()):
        wrong = f"{min(unknown)!r} is not known in the URL, " if unknown else ""
        raise UsageError(f"--influx: {config.without_password(base)}: {wrong}{INFLUX.hint}")
    talk = Talk(msgspec.structs.replace(ways.influx, url=base))
    dialect: Dialect = (
        InfluxQL(talk, asked["db"], asked.get("rp", "")) if "db" in asked else Flux(talk, asked["org"], asked["bucket"])
    )
    return InfluxStore(dialect, talk, ways, place.name)


class _Series(msgspec.Struct):
    columns: list[str]
    name: str = ""
    tags: dict[str, str] = {}
    values: list[list[str | float | bool | None]] = []


class _Result(msgspec.Struct):
    series: list[_Series] = []
    error: str = ""
    messages: list[dict[str, str]] = []


class _Answer(msgspec.Struct):
    results: list[_Result] = []
    error: str = ""


class InfluxQL:
    """The API of version 1, which version 3 serves too."""

    def __init__(self, talk: Talk, database: str, policy: str) -> None:
        self._talk = talk
        self._form = {"db": database, "epoch": "ms", **({"rp": policy} if policy else {})}
        self._said: dict[str, None] = {}
        self._fields: Fields | None = None

    def fields(self) -> Fields:
        """Return the fields of each measurement that hold numbers."""
        if self._fields is None:
            self._fields = {
                one.name: [str(row[0]) for row in one.values if row[1] in {"float", "integer", "unsigned", "boolean"}]
                for one in self._ask("SHOW FIELD KEYS")
            }
        return self._fields

    def rows(self, measurement: str, fields: Sequence[str], start: float, end: float) -> Iterator[Row]:
        """Yield the points of some fields in [start, end], unix seconds."""
        times = f"time >= {round(start * 1000)}ms AND time <= {round(end * 1000)}ms"
        chosen = ", ".join(map(quoted, fields))
        return self._rows(f"SELECT {chosen} FROM {quoted(measurement)} WHERE {times} GROUP BY *")  # noqa: S608 - quoted

    def edge(self, measurement: str, field: str, *, last: bool) -> Iterator[Row]:
        """Yield the first or the last point of a field, if there is one."""
        order = "DESC" if last else "ASC"
        return self._rows(f"SELECT {quoted(field)} FROM {quoted(measurement)} ORDER BY time {order} LIMIT 1")  # noqa: S608 - quoted

    def _rows(self, query: str) -> Iterator[Row]:
        for one in self._ask(query):
            tags = {key: text for key, text in one.tags.items() if text}
            for row in one.values:
                for field, value in zip(one.columns[1:], row[1:], strict=True):
                    if isinstance(value, int | float) and isinstance(row[0], int | float):
                        yield Row(tags, field, float(row[0]) / 1000.0, float(value))

    def said(self) -> Sequence[str]:
        """Return what the server warned of."""
        return [f"{self._talk.site.url}: {text}" for text in self._said]

    def _ask(self, query: str) -> list[_Series]:
        """Ask one question; its answer comes in chunks, a JSON object each."""
        form = {**self._form, "q": query, "chunked": "true", "chunk_size": str(CHUNK)}
        body = self._talk.ask(
            "/query", data=urlencode(form), headers={"Content-Type": "application/x-www-form-urlencoded"}
        )
        found: list[_Series] = []
        for text in filter(None, (line.strip() for line in body.splitlines())):
            try:
                answer = msgspec.json.decode(text, type=_Answer)
            except msgspec.DecodeError as error:
                raise SourceError(
                    f"{self._talk.site.url}: the answer is not InfluxDB's ({error}), is the URL right"
                ) from error
            for result in (_Result(error=answer.error), *answer.results):
                if result.error:
                    raise SourceError(
                        f"{self._talk.site.url}: {http.shortened(result.error)} (asked for {http.shortened(query, 80)})"
                    )
                self._said |= dict.fromkeys(http.shortened(one.get("text", "")) for one in result.messages)
                found += result.series
        return found


class Flux:
    """The API of version 2."""

    def __init__(self, talk: Talk, org: str, bucket: str) -> None:
        self._talk = talk
        self._path = f"/api/v2/query?{urlencode({'org': org})}"
        self._bucket = text_in_flux(bucket)
        self._fields: Fields | None = None

    def fields(self) -> Fields:
        """Return the fields of each measurement."""
        if self._fields is None:
            schema = 'import "influxdata/influxdb/schema"\n'
            names = [row["_value"] for row in self._ask(f"{schema}schema.measurements(bucket: {self._bucket})")]
            self._fields = {
                name: [
                    row["_value"]
                    for row in self._ask(
                        f"{schema}schema.measurementFieldKeys(bucket: {self._bucket}, measurement: {text_in_flux(name)})"
                    )
                ]
                for name in names
            }
        return self._fields

    def rows(self, measurement: str, fields: Sequence[str], start: float, end: float) -> Iterator[Row]:
        """Yield the points of some fields in [start, end], unix seconds."""
        any_of = " or ".join(f"r._field == {text_in_flux(field)}" for field in fields)
        query = (
            f"from(bucket: {self._bucket}) |> range(start: {stamp(start)}, stop: {stamp(end + 1.0)}) "
            f"|> filter(fn: (r) => r._measurement == {text_in_flux(measurement)} and ({any_of}))"
        )
        return self._rows(query)

    def edge(self, measurement: str, field: str, *, last: bool) -> Iterator[Row]:
        """Yield the first or the last point of a field, if there is one."""
        return self._rows(
            f"from(bucket: {self._bucket}) |> range(start: 0) |> filter(fn: (r) => r._measurement == "
            f"{text_in_flux(measurement)} and r._field == {text_in_flux(field)}) |> group() "
            f'|> sort(columns: ["_time"], desc: {str(last).lower()}) |> limit(n: 1)'
        )

    def _rows(self, query: str) -> Iterator[Row]:
        for row in self._ask(query):
            value = _WORDS.get(row.get("_value", ""), row.get("_value", ""))
            tags = {
                key: text for key, text in row.items() if text and key[:1] != "_" and key not in {"result", "table", ""}
            }
            try:
                time = datetime.fromisoformat(row["_time"]).timestamp()
                yield Row(tags, row["_field"], time, float(value))
            except (KeyError, ValueError):
                continue  # a field of texts

    def said(self) -> Sequence[str]:
        """Return nothing: this API does not warn."""
        return ()

    def _ask(self, query: str) -> Iterator[dict[str, str]]:
        """Ask one question; the answer is annotated CSV, tables after each other with a header each."""
        body = self._talk.ask(
            self._path,
            json={"query": query, "type": "flux", "dialect": {"header": True, "annotations": ["datatype"]}},
            headers={"Accept": "application/csv"},
        )
        header: list[str] = []
        for cells in csv.reader(body.decode("utf-8", "replace").splitlines()):
            if not any(cells) or cells[0].startswith("#"):
                header = []
            elif not header:
                header = cells
                if "_value" not in header and "error" not in header:
                    raise SourceError(f"{self._talk.site.url}: the answer is not InfluxDB's CSV, is the URL right")
            else:
                row = dict(zip(header, cells, strict=False))
                if row.get("error"):
                    raise SourceError(
                        f"{self._talk.site.url}: {http.shortened(row['error'])} (asked for {http.shortened(query, 80)})"
                    )
                yield row


_WORDS = {"true": "1", "false": "0"}


def quoted(name: str) -> str:
    r"""Write an identifier of InfluxQL.

    >>> print(quoted('a"b'))
    "a\"b"
    """
    escaped = re.sub(r'(["\\])', r"\\\1", name)
    return f'"{escaped}"'


def text_in_flux(text: str) -> str:
    r"""Write a string of Flux; a dollar sign must not begin an expression.

    >>> print(text_in_flux('a"${b}'))
    "a\"\${b}"
    """
    escaped = re.sub(r'(["\\]|\$(?=\{))', r"\\\1", text)
    return f'"{escaped}"'
