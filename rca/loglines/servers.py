"""Servers that keep logs, by URL: which kind one is, how it is reached, and what all kinds have in common.

es+http://host:9200/train-logs     Elasticsearch, or OpenSearch (also elasticsearch+, opensearch+)
loki+https://host/loki             Loki
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC
from statistics import median
from typing import Any, TypeVar

import msgspec
import requests

from rca import config
from rca.errors import SourceError, UsageError
from rca.loglines.files import Notes
from rca.loglines.line import Line, Source
from rca.loglines.owners import Owner
from rca.loglines.parse import Habit, Parser
from rca.loglines.read import Ends
from rca.loglines.stamps import Stamps
from rca.loglines.wanted import Names, Wanted, chosen
from rca.sources import http

T = TypeVar("T")
MOST_LINES = 5_000_000
"""Lines that one question may bring over the network."""
ELASTICSEARCH = http.Api(
    "an Elasticsearch", "elasticsearch", "write the index behind the address, as es+http://host:9200/train-logs"
)
LOKI = http.Api("a Loki", "loki", "set the base URL, with the path that a gateway puts in front of /loki/api/v1")
_KINDS = {"es": "elasticsearch", "elasticsearch": "elasticsearch", "opensearch": "elasticsearch", "loki": "loki"}
_WANTED = "write es+http://host:9200/index or loki+http://host:3100"


@dataclass(frozen=True)
class Asked:
    """What a server is asked for besides lines: its own query, and from when to when, in unix seconds."""

    query: str
    start: float
    end: float


@dataclass
class Server:
    """What the kinds of servers have in common; `where` is the address without credentials."""

    where: str
    asked: Asked
    notes: Notes
    session: requests.Session
    site: http.Site
    step: Callable[[str], None] = lambda _: None
    offsets: Mapping[str, float] = field(default_factory=dict)
    names: Names | None = None
    """What gives a name to lines that have none."""
    taken: int = 0

    def lines(self, wanted: Wanted) -> Iterator[Line]:
        """Yield the lines that are wanted, in order of time as far as the server tells it."""
        yield from chosen(self.asked_for(wanted), wanted, self.names)

    def asked_for(self, wanted: Wanted) -> Iterator[Line]:
        """Yield what the server gives for the lines that are wanted, and others."""
        raise NotImplementedError

    def last(self, ranks: frozenset[str] = frozenset()) -> dict[str, Ends]:
        """Return the last line of every rank, or of those given, as reading all lines tells it."""
        found: dict[str, Line] = {}
        pauses: dict[str, list[float]] = {}
        for line in self.lines(Wanted(ranks=ranks)):
            before = found.get(line.rank or "")
            if before is None or (line.time or 0.0) >= (before.time or 0.0):
                found[line.rank or ""] = line
            if before is not None and line.time is not None and before.time is not None:
                pauses.setdefault(line.rank or "", []).append(abs(line.time - before.time))
                del pauses[line.rank or ""][:-_REMEMBERED]
        return {rank: Ends(line, median(pauses.get(rank, [0.0]))) for rank, line in found.items()}

    def span(self) -> tuple[float, float] | None:
        """Return from when to when is asked for."""
        return self.asked.start, self.asked.end

    def world(self) -> int | None:
        """Return nothing: a server does not tell how many ranks there should be."""
        return None

    def stretch(self, wanted: Wanted) -> tuple[float, float]:
        """Return from when to when lines are wanted, with room for clocks that are not right."""
        start, end = wanted.start, wanted.end
        if wanted.latest is not None:
            start, end = (
                min(wanted.latest.values(), default=end) - wanted.last,
                max(wanted.latest.values(), default=end),
            )
        ahead = [0.0, *self.offsets.values()]
        return max(start + min(ahead), self.asked.start), min(end + max(ahead), self.asked.end)

    def made(self, found: Mapping[str, Any] | bytes, owner: Owner, time: float | None, place: str) -> Line | None:
        """Make a line of what a server holds, as that of a file is made."""
        self.taken += 1
        if self.taken > MOST_LINES:
            raise SourceError(
                f"{self.where}: more than {MOST_LINES:,} lines, ask for a shorter --window, for a --rank or an --event"
            )
        parser = Parser(place, owner, Habit(), Stamps(UTC), time)
        raw = found if isinstance(found, bytes) else msgspec.json.encode(found, enc_hook=str)
        line = parser.read(raw, 0)
        for flaw, count in parser.flaws.items():
            if flaw != "no time":
                self.notes.add(flaw, count)
        if line is None:
            return None
        ahead = self.offsets.get(line.node or "", 0.0)
        told = line.time - ahead if line.time is not None else None
        return line._replace(time=told, source=Source(place, 0), flaw=line.flaw.replace("no time", ""))

    def get(self, path: str, asked: Mapping[str, str | int]) -> bytes:
        """Ask by GET, and return the body."""
        return self.session.get(f"{self.site.url}/{path}", params=dict(asked)).content

    def decoded(self, body: bytes, shape: type[T], what: str) -> T:
        """Return a body as what it should be."""
        try:
            return msgspec.json.decode(body, type=shape)
        except msgspec.DecodeError as error:
            raise SourceError(
                f"{self.where}: the answer is not what {self.site.api.name} says for {what} ({error}), is this one"
            ) from error


_REMEMBERED = 50


def is_url(path: str) -> bool:
    """Say whether a path is the address of a server.

    >>> is_url("loki+http://host"), is_url("es+host:9200/x"), is_url("logs/loki+1")
    (True, True, False)
    """
    return "://" in path or path.partition("+")[0].lower() in _KINDS


@contextmanager
def opened(url: str, asked: Asked, settings: config.Settings, notes: Notes) -> Iterator[Server]:
    """Open the server at a URL; its deadline starts now.

    Raises UsageError for a URL that names no kind of server.
    """
    kind, plus, address = url.partition("+")
    if not plus or kind.lower() not in _KINDS:
        raise UsageError(f"{config.without_password(url)}: which kind of server is that, {_WANTED}")
    try:
        config.check_url(address)
    except ValueError as error:
        raise UsageError(f"{kind}+...: {error}") from error
    if _KINDS[kind.lower()] == "loki":
        from rca.loglines.loki import Loki  # noqa: PLC0415 - it knows this module

        session, site = _connected(settings.loki, address, LOKI)
        server: Server = Loki(site.url, asked, notes, session, site)
    else:
        from rca.loglines.elasticsearch import Elasticsearch, split  # noqa: PLC0415 - likewise

        base, index = split(address)
        session, site = _connected(settings.elasticsearch, base, ELASTICSEARCH)
        known = True if kind.lower() == "opensearch" else None
        server = Elasticsearch(f"{site.url}/{index}", asked, notes, session, site, index=index, opensearch=known)
    with session:
        yield server


def _connected(server: config.Server, url: str, api: http.Api) -> tuple[requests.Session, http.Site]:
    session, site = http.connect(msgspec.structs.replace(server, url=url), api)
    session.mount(site.url, http.Adapter(site, 1))
    return session, site


def told(values: Sequence[str]) -> str:
    """Write a few values in one line.

    >>> told(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    return ", ".join(values[:3]) + (f" and {len(values) - 3} more" if len(values) > 3 else "")
