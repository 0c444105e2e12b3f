"""Times and durations as they are given on the command line."""

import re
from datetime import datetime

from rca.errors import UsageError
from rca.plain import seconds

_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d(?:\.\d+)?)(Z|z|[+-]\d\d:\d\d)?")
_BACK = re.compile(r"-\s*(\S+)")
_WANTED = "write now, a time ago as -2h, or RFC 3339 as 2026-03-01T14:00:00Z"


def parse_time(flag: str, text: str, now: float) -> float:
    """Read `now`, a time ago, or an RFC 3339 time with its zone, as unix seconds.

    >>> parse_time("--at", "-2h", 10000.0), parse_time("--at", "1970-01-01T01:00:00+01:00", 0.0)
    (2800.0, 0.0)

    Raises UsageError for all else, a time without a zone included: nobody can tell which one is meant.
    """
    text = text.strip()
    ago = _BACK.fullmatch(text)
    time = now if text == "now" else now - parse_duration(flag, ago[1]) if ago else _rfc3339(flag, text)
    if time < 0:
        raise UsageError(f"{flag}: {text} is before 1970, {_WANTED}")
    return time


def _rfc3339(flag: str, text: str) -> float:
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise UsageError(f"{flag}: not a time: {text!r}, {_WANTED}")
    day, clock, zone = match.groups()
    if zone is None:
        raise UsageError(f"{flag}: {text} has no time zone, write {day}T{clock}Z for UTC or {day}T{clock}+01:00")
    try:
        return datetime.fromisoformat(f"{day}T{clock}{zone.upper()}").timestamp()
    except ValueError as error:
        raise UsageError(f"{flag}: no such time: {text!r}, {error}") from error


def parse_duration(flag: str, text: str) -> float:
    """Read a duration (`15m`, `1h30m`) in seconds, or raise UsageError."""
    try:
        return seconds(text.strip())
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from error
