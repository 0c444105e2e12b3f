"""Answers as JSON lines; a log line has the fields of the hook's own schema, so that it can be read again."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from rca.loglines import Line
from rca.logs.answers import Answer, Counts, FirstErrors, Lines, Silence, Silent, Summary, Told
from rca.logs.levels import Levels, Misuse
from rca.logs.suspects import Suspect, Suspects


def render(told: Told) -> Iterator[str]:
    """Yield JSON lines, and at the end of a summary what reading met."""
    for one in _objects(told.answer):
        yield msgspec.json.encode(one, enc_hook=str).decode() + "\n"


def _objects(answer: Answer) -> Iterator[Mapping[str, Any]]:
    match answer:
        case Lines() | FirstErrors():
            yield from map(line, answer.lines)
        case Counts():
            for row in answer.rows:
                yield {
                    "timestamp": stamp(row.time), "seconds": answer.width, "rank": number(row.rank), "event": row.event or None,
                    "level": row.level or None, "lines": row.lines,
                }  # fmt: skip
        case Silence():
            yield from map(_silent, answer.ranks)
        case Summary():
            yield _summary(answer)
        case Suspects():
            yield from map(_suspect, answer.found)
        case Levels():
            yield from map(_misuse, answer.found)


def _summary(answer: Summary) -> Mapping[str, Any]:
    return {
        "where": answer.where,
        "files": answer.files,
        "bytes": answer.size,
        "start": stamp(answer.span.first) if answer.span else None,
        "end": stamp(answer.span.last) if answer.span else None,
        "ranks": answer.silence.known,
        "expected_ranks": answer.silence.expected,
        "silent": [_silent(one) for one in answer.silence.ranks],
        "ranks_without_error": answer.errors.clean,
        "first_errors": [line(one) for one in answer.errors.lines],
        "levels": [_misuse(one) for one in answer.levels.found],
    }


def _silent(one: Silent) -> Mapping[str, Any]:
    return {
        "rank": number(one.rank),
        "silent_seconds": None if one.seconds is None else round(one.seconds, 3),
        "last": None if one.line is None else line(one.line),
    }


def _suspect(one: Suspect) -> Mapping[str, Any]:
    return {
        "ranks": [number(rank) for rank in one.ranks],
        "place": one.place or None,
        "why": one.why,
        "first": None if one.first is None else line(one.first),
        "last": None if one.last is None else line(one.last),
    }


def _misuse(one: Misuse) -> Mapping[str, Any]:
    return {
        "kind": one.kind, "level": one.level, "should": one.should or None, "event": one.event or None, "shape": one.shape,
        "lines": one.lines, "ranks": [number(rank) for rank in one.ranks], "why": one.why,
        "start": stamp(one.since), "end": stamp(one.until), "first": line(one.line),
    }  # fmt: skip


def line(one: Line) -> Mapping[str, Any]:
    """Return a log line as JSON can hold it; what is not known is null."""
    fields = {
        "timestamp": stamp(one.time), "rank": number(one.rank), "node": one.node, "level": one.level or None,
        "event": one.event or None, "event_id": one.event_id, "message": one.message, "extra": one.extra,
        "file": one.source.file, "offset": one.source.offset,
    }  # fmt: skip
    odd = {"attempt": one.attempt, "flaw": one.flaw}
    return fields | {key: value for key, value in odd.items() if value}


def number(rank: str | None) -> int | str | None:
    """Return a rank as the number that it is, as the hook writes it."""
    return int(rank) if rank is not None and rank.isdecimal() else rank


def stamp(time: float | None) -> str | None:
    """Write a time as RFC 3339 in UTC, to the microsecond where it tells them.

    >>> stamp(1780000000.5), stamp(1780000000.123456)
    ('2026-05-28T20:26:40.500Z', '2026-05-28T20:26:40.123456Z')
    """
    if time is None:
        return None
    micros = round(time * 1e6)
    text = datetime.fromtimestamp(micros // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    rest = f"{micros % 1_000_000:06d}"
    return f"{text}.{rest[:3] if rest.endswith('000') else rest}Z"
