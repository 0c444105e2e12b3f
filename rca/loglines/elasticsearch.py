"""Logs in Elasticsearch or OpenSearch: `_search` over a point in time, paged by `search_after`.

The two differ in how a point in time is opened, and Elasticsearch alone breaks ties of the sorting by itself; where that
does not happen, the lines of the last time of a page are left to the next page, which begins with them. Lines that share
one time and are more than a page holds cannot be told apart then, and are an error.

What is asked for with `--rank`, `--event` and `--level` is asked of the server in the fields in which the shippers of
`deploy/` leave it; a text is looked for here, as the server knows words only.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec

from rca.errors import SourceError, UsageError
from rca.loglines.line import LEVELS, SPELT, Line
from rca.loglines.owners import Owner
from rca.loglines.read import Ends
from rca.loglines.servers import Server, told
from rca.loglines.wanted import Wanted

PAGE, LARGEST = 2_500, 10_000
"""Lines a page, as a rule and at the most: more than `index.max_result_window`, by default that, is refused."""
KEPT = "2m"
"""How long the server keeps a point in time from one page to the next."""
TIME = "@timestamp"
_RANKS = ("rank", "rca.rank")
_EVENTS = ("event", "event_id", "rca.event", "rca.event_id")
_LEVELS = ("level", "rca.level", "log.level")


class _Hit(msgspec.Struct):
    source: dict[str, Any] = msgspec.field(name="_source", default_factory=dict)
    index: str = msgspec.field(name="_index", default="")
    id: str = msgspec.field(name="_id", default="")
    sort: list[Any] = []


class _Hits(msgspec.Struct):
    hits: list[_Hit] = []


class _Shards(msgspec.Struct):
    total: int = 0
    failed: int = 0
    failures: list[dict[str, Any]] = []


class _Value(msgspec.Struct):
    value: float | None = None


class _Spoken(msgspec.Struct):
    key: int | float | str = ""
    doc_count: int = 0
    first: _Value = msgspec.field(default_factory=_Value)
    last: _Value = msgspec.field(default_factory=_Value)

    def pause(self) -> float:
        """Return the seconds between two lines of a rank, on average."""
        return ((self.last.value or 0.0) - (self.first.value or 0.0)) / 1000.0 / max(self.doc_count - 1, 1)


class _Buckets(msgspec.Struct):
    buckets: list[_Spoken] = []


class _Ranks(msgspec.Struct):
    ranks: _Buckets = msgspec.field(default_factory=_Buckets)


class _Page(msgspec.Struct):
    hits: _Hits = msgspec.field(default_factory=_Hits)
    timed_out: bool = False
    shards: _Shards = msgspec.field(name="_shards", default_factory=_Shards)
    pit_id: str = ""
    aggregations: _Ranks = msgspec.field(default_factory=_Ranks)


class _Point(msgspec.Struct):
    id: str = ""
    pit_id: str = ""


class _Version(msgspec.Struct):
    distribution: str = ""


class _Root(msgspec.Struct):
    version: _Version = msgspec.field(default_factory=_Version)


class _Fields(msgspec.Struct):
    fields: dict[str, dict[str, Any]] = {}


def split(url: str) -> tuple[str, str]:
    """Return the base URL of a server and the index behind it.

    >>> split("http://host:9200/proxy/train-*")
    ('http://host:9200/proxy', 'train-*')
    """
    parts = urlsplit(url)
    base, _, index = parts.path.rstrip("/").rpartition("/")
    if not index:
        raise UsageError(
            f"{url.rpartition('@')[2]}: no index is named, write it behind the address, for example /train-logs"
        )
    return urlunsplit((parts.scheme, parts.netloc, base, "", "")), index


@dataclass
class Elasticsearch(Server):
    """An index, an alias, a data stream or a pattern of them."""

    index: str = ""
    opensearch: bool | None = None

    def asked_for(self, wanted: Wanted) -> Iterator[Line]:
        """Yield the lines that may be wanted, in order of time."""
        start, end = self.stretch(wanted)
        if start > end:
            return
        query = self._query(wanted, start, end)
        point = self._open()
        try:
            for hit in self._pages(query, point):
                line = self._line(hit)
                if line is not None:
                    yield line
        finally:
            self._close(point)

    def last(self, ranks: frozenset[str] = frozenset()) -> dict[str, Ends]:
        """Return the last line of every rank, or of those given: the server collapses all others."""
        field = self._sortable(_RANKS)
        if field is None:
            return super().last(ranks)
        self.step(f"asking {self.where} for the last line of every rank")
        query = self._query(Wanted(ranks=ranks), self.asked.start, self.asked.end)
        ends = {"first": {"min": {"field": TIME}}, "last": {"max": {"field": TIME}}}
        spoken = {"terms": {"field": field, "size": LARGEST}, "aggs": ends}
        asked = {
            "size": LARGEST, "query": query, "sort": [{TIME: "desc"}], "collapse": {"field": field}, "aggs": {"ranks": spoken},
        }  # fmt: skip
        page = self._search(f"{_quoted(self.index)}/_search", asked)
        pauses = {str(one.key): one.pause() for one in page.aggregations.ranks.buckets}
        lines: Iterable[Line] = [line for hit in page.hits.hits if (line := self._line(hit)) is not None]
        lines = lines if self.names is None else self.names.named(lines)
        return {line.rank: Ends(line, pauses.get(line.rank, 0.0)) for line in lines if line.rank is not None}

    def _line(self, hit: _Hit) -> Line | None:
        time = hit.sort[0] / 1000.0 if hit.sort and isinstance(hit.sort[0], int | float) else None
        return self.made(hit.source, Owner(), time, f"{self.where}/{hit.index}/{hit.id}")

    def _pages(self, query: Mapping[str, Any], point: dict[str, str]) -> Iterator[_Hit]:
        """Yield all hits, page by page."""
        asked: dict[str, Any] = {
            "size": PAGE, "query": query, "sort": [{TIME: {"order": "asc"}}], "pit": point, "track_total_hits": False,
        }  # fmt: skip
        while True:
            self.step(f"asking {self.where}, {self.taken:,} lines so far")
            page = self._search("_search", asked)
            point["id"] = page.pit_id or point["id"]
            hits = page.hits.hits
            if len(hits) < asked["size"]:
                yield from hits
                return
            kept = hits if len(hits[-1].sort) > 1 else [hit for hit in hits if hit.sort != hits[-1].sort]
            if kept:
                yield from kept
                asked |= {"search_after": kept[-1].sort, "size": PAGE}
            elif asked["size"] < LARGEST:
                asked["size"] = LARGEST
            else:
                raise SourceError(
                    f"{self.where}: more than {LARGEST:,} lines of one time, ask for a --rank or an --event"
                )

    def _search(self, path: str, asked: Mapping[str, Any]) -> _Page:
        body = self.session.post(f"{self.site.url}/{path}", data=msgspec.json.encode(asked), headers=_JSON).content
        page = self.decoded(body, _Page, "a search")
        if page.timed_out:
            self.notes.of("the search timed out on the server, lines are missing", self.where)
        if page.shards.failed:
            why = {
                str(one.get("reason", {}).get("reason", ""))
                for one in page.shards.failures
                if isinstance(one.get("reason"), dict)
            }
            reason = f" ({told(sorted(why))})" if why - {""} else ""
            self.notes.of(
                f"{page.shards.failed} of {page.shards.total} shards failed{reason}, lines are missing", self.where
            )
        return page

    def _open(self) -> dict[str, str]:
        """Open a point in time; which way it is done tells the kind of server."""
        if self.opensearch is None:
            self.opensearch = self._kind()
        path = "_search/point_in_time" if self.opensearch else "_pit"
        answer = self.session.post(
            f"{self.site.url}/{_quoted(self.index)}/{path}", params={"keep_alive": KEPT}, headers=_JSON
        )
        point = self.decoded(answer.content, _Point, "a point in time")
        return {"id": point.id or point.pit_id, "keep_alive": KEPT}

    def _close(self, point: Mapping[str, str]) -> None:
        """Let go of a point in time; it passes away by itself where that fails."""
        path = "_search/point_in_time" if self.opensearch else "_pit"
        body = {"pit_id": [point["id"]]} if self.opensearch else {"id": point["id"]}
        try:
            self.session.delete(f"{self.site.url}/{path}", data=msgspec.json.encode(body), headers=_JSON)
        except SourceError as error:
            self.notes.of(f"a point in time was not closed: {error}", self.where)

    def _kind(self) -> bool:
        """Say whether this is an OpenSearch; who may not ask that speaks to an Elasticsearch."""
        try:
            body = self.get("", {})
        except SourceError:
            return False
        return self.decoded(body, _Root, "itself").version.distribution == "opensearch"

    def _sortable(self, names: Sequence[str]) -> str | None:
        """Return the first of some fields whose values the server can group by."""
        asked = [one for name in names for one in (name, f"{name}.keyword")]
        body = self.get(f"{_quoted(self.index)}/_field_caps", {"fields": ",".join(asked)})
        found = self.decoded(body, _Fields, "its fields").fields
        for name in asked:
            kinds = found.get(name, {})
            if kinds and all(isinstance(kind, dict) and kind.get("aggregatable") for kind in kinds.values()):
                return name
        return None

    def _query(self, wanted: Wanted, start: float, end: float) -> dict[str, Any]:
        """Return the query for lines that may be wanted."""
        span = {"gte": int(start * 1000), "lte": int(end * 1000) + 1, "format": "epoch_millis"}
        filters: list[dict[str, Any]] = [{"range": {TIME: span}}]
        if self.asked.query:
            filters.append({"query_string": {"query": self.asked.query}})
        if wanted.ranks:
            filters.append(_any(_RANKS, sorted(wanted.ranks)))
        if wanted.events:
            filters.append(_any(_EVENTS, sorted(wanted.events)))
        if wanted.level:
            grave = LEVELS[LEVELS.index(wanted.level) :]
            words = {word for word, level in SPELT.items() if level in grave}
            filters.append(
                _any(_LEVELS, sorted(words | {word.lower() for word in words} | {word.title() for word in words}))
            )
        return {"bool": {"filter": filters}}


_JSON = {"Content-Type": "application/json"}


def _any(fields: Sequence[str], values: Sequence[str]) -> dict[str, Any]:
    """Return a condition: one of some fields has one of some values, be it text, a keyword or a number."""
    single = [
        {"match": {name: {"query": value, "operator": "and", "lenient": True}}} for name in fields for value in values
    ]
    return {"bool": {"should": single, "minimum_should_match": 1}}


def _quoted(index: str) -> str:
    return quote(index, safe="*,-_.:<>{}")
