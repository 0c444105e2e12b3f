"""What a line of a log says, whoever wrote it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

LEVELS = ("DEBUG", "INFO", "WARN", "ERROR")
"""How grave a line is, by the names that all spellings are brought to."""
SPELT = {
    "TRACE": "DEBUG", "VERBOSE": "DEBUG", "DEBUG": "DEBUG", "D": "DEBUG", "FINE": "DEBUG",
    "INFO": "INFO", "INFORMATION": "INFO", "NOTICE": "INFO", "I": "INFO",
    "WARN": "WARN", "WARNING": "WARN", "W": "WARN",
    "ERROR": "ERROR", "ERR": "ERROR", "E": "ERROR", "SEVERE": "ERROR", "CRITICAL": "ERROR", "CRIT": "ERROR", "F": "ERROR",
    "FATAL": "ERROR", "ALERT": "ERROR", "EMERG": "ERROR", "EMERGENCY": "ERROR", "PANIC": "ERROR",
}  # fmt: skip


class Source(NamedTuple):
    """Where a line stands: the file, or the address of a server, and the byte at which it begins there."""

    file: str
    offset: int


class Line(NamedTuple):
    """One line. `time` is in unix seconds, of the last line before it where it tells none, None where there is no such.

    `rank` and `node` are None where nothing tells them; `level` is one of `LEVELS` or empty. `attempt` counts the starts
    of a rank by the launcher, from 0. `flaw` says what is odd about the line, such as `not JSON`.
    """

    time: float | None
    rank: str | None
    node: str | None
    level: str
    event: str
    event_id: str | None
    message: str
    extra: Mapping[str, Any]
    source: Source
    attempt: int = 0
    flaw: str = ""


def level_of(text: str) -> str:
    """Bring the name of a level to one of `LEVELS`; what is none of them stays as it is, in capitals.

    >>> level_of("warning"), level_of("Critical"), level_of("step")
    ('WARN', 'ERROR', 'STEP')
    """
    name = text.strip().upper()
    return SPELT.get(name, name)
