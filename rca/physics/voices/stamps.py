"""Times as those who write a job's logs put them; all hosts keep UTC."""

from datetime import UTC, datetime
from typing import NamedTuple


class Said(NamedTuple):
    """One line of text, without its newline, and when it is written, in unix seconds."""

    time: float
    text: str


def moment(time: float) -> datetime:
    """Return a time in UTC."""
    return datetime.fromtimestamp(time, UTC)


def collected(time: float, *, stream: str = "stderr") -> str:
    """Return what a container's collector puts in front of a line, as the CRI writes it.

    >>> collected(1767571200.25)
    '2026-01-05T00:00:00.250000000Z stderr F '
    """
    return f"{moment(time):%Y-%m-%dT%H:%M:%S.%f}000Z {stream} F "


def logged(time: float) -> str:
    """Return a time as PyTorch's own logging has it: month and day in one, the month without a zero in front.

    >>> logged(1767571200.25)
    '105 00:00:00.250000000'
    """
    at = moment(time)
    return f"{at.month}{at:%d %H:%M:%S.%f}000"


def system(time: float) -> str:
    """Return a time as rsyslog writes it to a file.

    >>> system(1767571200.25)
    '2026-01-05T00:00:00.250000+00:00'
    """
    return moment(time).isoformat(timespec="microseconds")
