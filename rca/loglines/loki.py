"""Logs in Loki: `query_range`, from the earliest line on, page by page.

Which streams are asked for, only the user can say (`--query '{job="train"}'`). The rest is filtered here; what the server
can rule out by a line filter, which looks at the line as it was written, it is asked to.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from rca.errors import SourceError, UsageError
from rca.loglines.line import Line
from rca.loglines.owners import Owner
from rca.loglines.parse import NODES, RANKS
from rca.loglines.servers import Server, told
from rca.loglines.wanted import PLAIN, Wanted

PAGE = 2_500
"""Lines a page; more than `max_entries_limit_per_query`, by default 5,000, is refused."""
_EXAMPLE = 'write for example {job="train"}'
_NANO = 1_000_000_000
_SELECTOR = re.compile(r"\s*\{.*\}.*", re.DOTALL)
_GRAVE = (
    r"(?i)err|crit|fatal|emerg|alert|panic|severe|traceback|exception|interrupt|segmentation|terminate called|NVRM"
    r"|[EF][0-9]{4} [0-9]{2}:"
)
"""What a line holds that is taken for an error here, and more."""


class _Stream(msgspec.Struct):
    stream: dict[str, str] = {}
    values: list[list[Any]] = []


class _Data(msgspec.Struct):
    result_type: str = msgspec.field(name="resultType", default="")
    result: list[_Stream] = []


class _Answer(msgspec.Struct):
    status: str = ""
    data: _Data = msgspec.field(default_factory=_Data)
    warnings: list[str] = []


class _Labels(msgspec.Struct):
    data: list[str] = []


@dataclass
class Loki(Server):
    """Streams of a Loki."""

    def asked_for(self, wanted: Wanted) -> Iterator[Line]:
        """Yield the lines that may be wanted, in order of the times at which they were sent."""
        start, end = self.stretch(wanted)
        query = self._query(wanted)
        for labels, at, text in self._entries(query, int(start * _NANO), int(end * _NANO) + 1):
            owner = Owner(_first(labels, (*RANKS, "rca_rank")), _first(labels, (*NODES, "instance")))
            line = self.made(text.encode("utf-8", "replace"), owner, at / _NANO, f"{self.where}/{_shown(labels)}")
            if line is not None:
                yield line

    def _entries(self, query: str, start: int, end: int) -> Iterator[tuple[dict[str, str], int, str]]:
        """Yield labels, time and text of all entries; those of a time on which a page ends come again with the next."""
        seen: set[tuple[int, str, str]] = set()
        while start < end:
            self.step(f"asking {self.where}, {self.taken:,} lines so far")
            page = self._page(query, start, end)
            fresh = [one for one in page if (one[1], _shown(one[0]), one[2]) not in seen]
            yield from fresh
            if len(page) < PAGE:
                return
            last = page[-1][1]
            if last == start and not fresh:
                self.notes.of(f"more than {PAGE:,} lines of one nanosecond, some are missing", self.where)
                last += 1
            seen = {(at, _shown(labels), text) for labels, at, text in page if at == last}
            start = last

    def _page(self, query: str, start: int, end: int) -> list[tuple[dict[str, str], int, str]]:
        asked: dict[str, str | int] = {
            "query": query, "start": start, "end": end, "limit": PAGE, "direction": "forward",
        }  # fmt: skip
        answer = self.decoded(self.get("loki/api/v1/query_range", asked), _Answer, "query_range")
        for warning in answer.warnings:
            self.notes.of(f"the server warns: {warning}", self.where)
        if answer.data.result_type != "streams":
            raise UsageError(f"--query: {query!r} asks for numbers, {_EXAMPLE}")
        found = []
        for stream in answer.data.result:
            for value in stream.values:
                if len(value) < 2 or not isinstance(value[0], str) or not value[0].isdecimal():
                    raise SourceError(f"{self.where}: an entry is none: {str(value)[:80]}, is this a Loki server")
                found.append((stream.stream, int(value[0]), str(value[1])))
        return sorted(found, key=lambda one: one[1])

    def _query(self, wanted: Wanted) -> str:
        """Return the user's query with filters for what the server can rule out."""
        query = self.asked.query
        if not query:
            names = told(self.decoded(self.get("loki/api/v1/labels", {}), _Labels, "its labels").data)
            raise UsageError(
                f'--query: a Loki is asked for streams, write for example {{job="train"}}; its labels are {names or "none"}'
            )
        if not _SELECTOR.fullmatch(query):
            raise UsageError(f"--query: {query!r} names no streams, {_EXAMPLE}")
        if wanted.events:
            marks = [one.decode() for one in self.names.marks(wanted)] if self.names is not None else []
            query += f" |~ {_string('|'.join(map(re.escape, sorted([*wanted.events, *marks]))))}"
        if wanted.level == "ERROR":
            query += f" |~ {_string(_GRAVE)}"
        if wanted.text and PLAIN.fullmatch(wanted.text):
            query += f" |= {_string(wanted.text)}"
        return query


def _first(labels: dict[str, str], names: tuple[str, ...]) -> str | None:
    return next((labels[name] for name in names if labels.get(name)), None)


def _shown(labels: dict[str, str]) -> str:
    """Write labels as Loki does.

    >>> _shown({"job": "train"})
    '{job="train"}'
    """
    return "{" + ", ".join(f"{name}={_string(value)}" for name, value in sorted(labels.items())) + "}"


def _string(text: str) -> str:
    """Write a string of LogQL, whose escapes are those of JSON.

    >>> _string('a"b')
    '"a\\\\"b"'
    """
    return msgspec.json.encode(text).decode()
