"""How far jobs were, and when: rows of the archive, one a job every five minutes, read back as courses."""

from collections.abc import Sequence

import msgspec
import sqlalchemy as sql

from rca.model import Progress
from rca.plain import unix
from rca.tables import PROGRESS

EVERY = 300.0
"""Seconds between two rows of one job, at least."""
KEPT = 90 * 86400.0
"""How long a row is kept, in seconds."""
MOST = 2000
"""Rows of one job that are read at most; of more, evenly chosen ones, the last among them."""


def write(connection: sql.Connection, told: Sequence[Progress]) -> None:
    """Keep how far jobs are, where no row of the last five minutes says it already."""
    for at in sorted({one.at for one in told}):
        time = unix(at)
        near = sql.select(PROGRESS.c.job).where(PROGRESS.c.at > time - EVERY, PROGRESS.c.at < time + EVERY)
        known = set(connection.execute(near).scalars())
        fresh = {_key(one.job): one for one in told if one.at == at}
        rows = [{"job": job, "at": time, "body": _packed(one)} for job, one in fresh.items() if job not in known]
        if rows:
            connection.execute(sql.insert(PROGRESS), rows)


def latest(connection: sql.Connection) -> list[Progress]:
    """Return the last row of each job, in the order of their names."""
    last = sql.select(PROGRESS.c.job, sql.func.max(PROGRESS.c.at).label("at")).group_by(PROGRESS.c.job).subquery()
    both = sql.and_(PROGRESS.c.job == last.c.job, PROGRESS.c.at == last.c.at)
    query = sql.select(PROGRESS.c.body).join(last, both).order_by(PROGRESS.c.job)
    return [_unpacked(body) for body in connection.execute(query).scalars()]


def course(connection: sql.Connection, job: str, most: int = MOST) -> list[Progress]:
    """Return the rows of a job, the oldest first."""
    own = PROGRESS.c.job == _key(job)
    count = connection.execute(sql.select(sql.func.count()).where(own)).scalar_one()
    back = sql.func.row_number().over(order_by=PROGRESS.c.at.desc()).label("back")
    numbered = sql.select(PROGRESS.c.at, PROGRESS.c.body, back).where(own).subquery()
    chosen = (numbered.c.back - 1) % max(-(-count // most), 1) == 0
    query = sql.select(numbered.c.body).where(chosen).order_by(numbered.c.at)
    return [_unpacked(body) for body in connection.execute(query).scalars()]


def prune(connection: sql.Connection, at: float) -> None:
    """Forget what is older than is kept."""
    connection.execute(sql.delete(PROGRESS).where(PROGRESS.c.at < at - KEPT))


def _key(job: str) -> str:
    """Return a job's name as every database can hold it: PostgreSQL takes no NUL."""
    return job.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _packed(one: Progress) -> bytes:
    """Write a row without what is not known."""
    known = {name: value for name, value in msgspec.structs.asdict(one).items() if value is not None}
    return msgspec.json.encode(known)


def _unpacked(body: bytes) -> Progress:
    return msgspec.json.decode(body, type=Progress)
