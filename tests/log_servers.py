"""Servers that keep logs, as far as their documentation tells what they answer: enough to be paged through.

Elasticsearch (`_pit`, `_search`, `_field_caps`), OpenSearch (`_search/point_in_time`) and Loki (`query_range`, `labels`).
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from servers import Listener, Request, serving

MILLI, NANO = 1000, 1_000_000_000


@dataclass
class Elastic:
    """One index of documents; `opensearch` has no tie breaker and opens points in time elsewhere."""

    documents: list[dict]
    opensearch: bool = False
    window: int = 10_000
    shards: dict = field(default_factory=lambda: {"total": 1, "successful": 1, "failed": 0})
    timed_out: bool = False
    kinds: dict = field(default_factory=lambda: {"rank": {"long": {"type": "long", "aggregatable": True}}})
    opened: int = 0
    closed: int = 0

    def answer(self, request: Request) -> None:
        path, query = urlsplit(request.path).path, parse_qs(urlsplit(request.path).query)
        body = json.loads(request.body) if request.body else {}
        if path == "/":
            version = {"number": "2.19.0", "distribution": "opensearch"} if self.opensearch else {"number": "9.1.0"}
            return self.reply(request, {"version": version, "tagline": "You Know, for Search"})
        if path == "/train/_field_caps":
            wanted = query["fields"][0].split(",")
            return self.reply(
                request, {"indices": ["train"], "fields": {k: v for k, v in self.kinds.items() if k in wanted}}
            )
        if path == ("/train/_search/point_in_time" if self.opensearch else "/train/_pit"):
            assert query["keep_alive"]
            assert request.command == "POST"
            self.opened += 1
            return self.reply(request, {"pit_id": "point"} if self.opensearch else {"id": "point"})
        if request.command == "DELETE" and path == ("/_search/point_in_time" if self.opensearch else "/_pit"):
            assert body == ({"pit_id": ["point"]} if self.opensearch else {"id": "point"})
            self.closed += 1
            return self.reply(request, {"succeeded": True, "num_freed": 1})
        if path in {"/_search", "/train/_search"}:
            return self.search(request, body, paged=path == "/_search")
        error = {"type": "index_not_found_exception", "reason": f"no such index [{path.split('/')[1]}]"}
        return self.reply(request, {"error": {**error, "root_cause": [error]}, "status": 404}, 404)

    def search(self, request: Request, body: dict, *, paged: bool) -> None:
        if body["size"] > self.window:
            return self.reply(request, {"error": {"type": "illegal_argument_exception"}, "status": 400}, 400)
        assert not paged or body["pit"]["id"] == "point"
        found = [
            (round(self.time(one) * MILLI), number, one)
            for number, one in enumerate(self.documents)
            if holds(one, body["query"], self.time)
        ]
        found.sort(key=lambda hit: hit[:2], reverse="desc" in json.dumps(body["sort"]))
        spoken: dict = {}
        if "collapse" in body:
            seen: set = set()
            name = body["collapse"]["field"]
            assert body["aggs"]["ranks"]["terms"]["field"] == name
            spoken = self.spoken([hit[2] for hit in found], name)
            found = [hit for hit in found if not (hit[2].get(name) in seen or seen.add(hit[2].get(name)))]
        ties = 1 if self.opensearch or not paged else 2
        after = body.get("search_after")
        hits = [hit for hit in found if after is None or list(hit[:ties]) > after]
        shown = [
            {"_index": "train", "_id": str(number), "_source": one, "sort": [time, number][:ties]}
            for time, number, one in hits[: body["size"]]
        ]
        answer = {**spoken, "took": 1, "timed_out": self.timed_out, "_shards": self.shards, "hits": {"hits": shown}}
        return self.reply(request, {**answer, **({"pit_id": "point"} if paged else {})})

    def spoken(self, found: list[dict], name: str) -> dict:
        """Return how many documents each rank has, and from when to when, as the aggregations tell it."""
        times: dict = {}
        for one in found:
            times.setdefault(one.get(name), []).append(self.time(one) * MILLI)
        buckets = [
            {"key": key, "doc_count": len(own), "first": {"value": min(own)}, "last": {"value": max(own)}}
            for key, own in times.items()
        ]
        return {"aggregations": {"ranks": {"buckets": buckets}}}

    @staticmethod
    def time(one: dict) -> float:
        from datetime import datetime

        return datetime.fromisoformat(one["@timestamp"]).timestamp()

    @staticmethod
    def reply(request: Request, answer: dict, status: int = 200) -> None:
        request.reply(status, json.dumps(answer).encode())


def holds(one: dict, query: dict, time: Callable[[dict], float]) -> bool:
    """Say whether a document fits a query, of the kinds of queries that we ask."""
    ((kind, asked),) = query.items()
    if kind == "bool":
        must = all(holds(one, part, time) for part in asked.get("filter", ()))
        return must and (not asked.get("should") or any(holds(one, part, time) for part in asked["should"]))
    if kind == "range":
        ((name, span),) = asked.items()
        assert (name, span["format"]) == ("@timestamp", "epoch_millis")
        return span["gte"] <= time(one) * MILLI <= span["lte"]
    if kind == "match":
        ((name, value),) = asked.items()
        for part in name.split("."):
            one = one.get(part) if isinstance(one, dict) else None
        return str(one) == value["query"]
    assert kind == "query_string"
    return asked["query"] == "*"


@dataclass
class Loki:
    """Streams by their labels, entries of (nanoseconds, text)."""

    streams: list[tuple[dict[str, str], list[tuple[int, str]]]]
    most: int = 5000
    warnings: list[str] = field(default_factory=list)

    def answer(self, request: Request) -> None:
        parts = urlsplit(request.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path == "/loki/api/v1/labels":
            return self.reply(request, {"status": "success", "data": ["job", "node"]})
        assert parts.path == "/loki/api/v1/query_range"
        if int(query["limit"]) > self.most:
            return request.reply(
                400,
                f"max entries limit per query exceeded, limit > max_entries_limit ({query['limit']} > {self.most})".encode(),
                "text/plain",
            )
        selector, *filters = re.findall(r'\{.*?\}|\|[=~] "(?:[^"\\]|\\.)*"', query["query"])
        if not selector.startswith("{"):
            return self.reply(request, {"status": "success", "data": {"resultType": "matrix", "result": []}})
        found = sorted(
            (at, number, text)
            for number, (labels, entries) in enumerate(self.streams)
            if all(labels.get(name) == value for name, value in re.findall(r'(\w+)="([^"]*)"', selector))
            for at, text in entries
            if int(query["start"]) <= at < int(query["end"]) and all(passes(text, one) for one in filters)
        )
        assert query["direction"] == "forward"
        page = found[: int(query["limit"])]
        result = [
            {"stream": labels, "values": [[str(at), text] for at, of, text in page if of == number]}
            for number, (labels, _) in enumerate(self.streams)
            if any(of == number for _, of, _ in page)
        ]
        data = {"resultType": "streams", "result": result, "stats": {}}
        return self.reply(request, {"status": "success", "data": data, "warnings": self.warnings})

    @staticmethod
    def reply(request: Request, answer: dict) -> None:
        request.reply(200, json.dumps(answer).encode())


def passes(text: str, line_filter: str) -> bool:
    """Say whether a line passes a line filter of LogQL."""
    value = json.loads(line_filter[3:])
    return value in text if line_filter.startswith("|=") else re.search(value, text) is not None


@contextmanager
def holding(server: Elastic | Loki) -> Iterator[Listener]:
    """Run one of them."""
    with serving(server.answer) as listener:
        yield listener
