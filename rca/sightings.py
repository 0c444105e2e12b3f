"""Which reports named an incident, and how sure they were: rows of the archive."""

from collections.abc import Iterable
from typing import NamedTuple

import sqlalchemy as sql

from rca.incidents import Incident
from rca.tables import SIGHTINGS

MOST = 24
"""Sightings of one incident that are read at most; of more, evenly chosen ones, the first and the last among them."""


class Sighting(NamedTuple):
    """A report that named an incident: when, in unix seconds, and what it said of it."""

    at: float
    report: str
    probability: float
    slowdown: float | None


def write(connection: sql.Connection, named: Iterable[Incident], report: str, at: float) -> None:
    """Keep that a report as of `at` named incidents."""
    rows = [
        {"incident": one.id, "at": at, "report": report, "probability": one.probability, "slowdown": one.slowdown}
        for one in named
    ]
    if rows:
        again = SIGHTINGS.c.incident.in_([str(row["incident"]) for row in rows])
        connection.execute(sql.delete(SIGHTINGS).where(again, SIGHTINGS.c.at == at))
        connection.execute(sql.insert(SIGHTINGS), rows)


def course(connection: sql.Connection, incident: str, most: int = MOST) -> list[Sighting]:
    """Return the sightings of an incident, the oldest first."""
    own = SIGHTINGS.c.incident == incident
    count = connection.execute(sql.select(sql.func.count()).where(own)).scalar_one()
    place = sql.func.row_number().over(order_by=SIGHTINGS.c.at).label("place")
    columns = (SIGHTINGS.c[name] for name in Sighting._fields)
    numbered = sql.select(*columns, place).where(own).subquery()
    wide = max(-(-(count - 1) // (most - 1)), 1)
    chosen = sql.or_((numbered.c.place - 1) % wide == 0, numbered.c.place == count)
    query = sql.select(*(numbered.c[name] for name in Sighting._fields)).where(chosen).order_by(numbered.c.at)
    return [Sighting(*found) for found in connection.execute(query)]


def prune(connection: sql.Connection, since: float) -> None:
    """Forget what was before."""
    connection.execute(sql.delete(SIGHTINGS).where(SIGHTINGS.c.at < since))
