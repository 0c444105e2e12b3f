"""What a user asks of logs, as it is given on the command line."""

from dataclasses import dataclass
from pathlib import Path

SHOWN, LISTED = 200, 500
"""Lines that a screen, and a page, show where no limit is given."""


@dataclass(frozen=True)
class Question:
    """What is asked."""

    rank: tuple[str, ...] = ()
    event: tuple[str, ...] = ()
    level: str | None = None
    grep: str | None = None
    last: str | None = None
    at: str | None = None
    kind: str | None = None
    every: str | None = None
    world_size: int | None = None
    limit: int | None = None

    @property
    def lines(self) -> bool:
        """Say whether anything is asked for that single lines answer."""
        return any((self.rank, self.event, self.level, self.grep, self.last, self.at))


@dataclass(frozen=True)
class Places:
    """Where the logs are, and how they are to be read."""

    paths: tuple[str, ...] = ()
    match: tuple[str, ...] = ()
    names: str | None = None
    first_rank: int = 0
    zone: str | None = None
    offsets: str | None = None
    dumps: tuple[str, ...] = ()
    pickles: bool = False
    query: str | None = None
    window: str = "1h"
    config: Path | None = None
