"""The events that a training job's logs speak of, by name and stable id; one table holds them, `rules/tables/events.csv`.

    from rca.hook import events

    log.error("rank 1 waits for rank 2", extra={"event": events.NCCL_TIMEOUT})

The table is read when the first event is asked for, not before.
"""

import csv
from functools import cache
from pathlib import Path
from typing import NamedTuple

PLAIN = "MESSAGE"
"""What a line is that names no event."""


class Event(NamedTuple):
    """One event: WARN recovers by itself, ERROR needs a person."""

    id: str
    name: str
    level: str
    layer: str
    meaning: str
    source: str

    def __str__(self) -> str:
        """Return the name, as it stands in a log."""
        return self.name


@cache
def table() -> dict[str, Event]:
    """Return all events by name; none where the table was not brought along."""
    package = Path(__file__).resolve().parents[1]  # nothing is imported here: a fork may come in between
    for folder in (package, package.parent):
        path = folder / "rules" / "tables" / "events.csv"
        if path.is_file():
            rows = csv.DictReader(line for line in path.read_text(encoding="utf-8").splitlines() if line[:1] != "#")
            events = (Event(row["event_id"], row["event"], *(row[one] for one in Event._fields[2:])) for row in rows)
            return {event.name: event for event in events}
    return {}


def find(name: str) -> Event | None:
    """Return an event by its name or id, None where there is no such event."""
    found = table().get(name)
    return found or next((event for event in table().values() if event.id == name), None)


def __getattr__(name: str) -> Event:
    """Give every event as a constant of this module."""
    found = table().get(name) if name.isupper() else None
    if found is None:
        raise AttributeError(f"rca.hook.events: no event '{name}', they are listed in rules/tables/events.csv")
    return found
