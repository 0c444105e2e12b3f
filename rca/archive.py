"""Where incidents, their reports and the alerts that came in are kept: SQLite, or PostgreSQL where replicas share it.

What a method returns is on disk. Each is one transaction, and those that read before they write exclude each other, so
several processes may share one database.
"""

import hashlib
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
import sqlalchemy as sql
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from rca import journal, sightings
from rca.config import without_password
from rca.errors import SourceError, UsageError
from rca.incidents import REOPENS_WITHIN, Incident, Note, Pace, advance
from rca.messages import Told
from rca.model import Progress, Record, Report
from rca.plain import unix
from rca.render import json as written
from rca.sightings import Sighting
from rca.tables import ALERTS, CLAIMS, INCIDENTS, NOTES, RECORDINGS, REPORTS, TABLES, TOLD

MEMORY = 28 * 86400.0
"""How long an incident counts when the same trouble comes back, in seconds."""
INCIDENTS_KEPT = 90 * 86400.0
LEASE = 300.0
"""For so many seconds alerts are left to the one who has claimed them; then they are free again, as it may be dead."""
_LOCK = 7461636
_BUSY_MS = 30_000


class Alert(Record, frozen=True, kw_only=True):
    """An alert as Alertmanager delivered it; times are unix seconds, `ends` is None while it fires.

    `truncated` says that alerts of its delivery were left out.
    """

    fingerprint: str
    status: str
    labels: dict[str, str]
    annotations: dict[str, str]
    starts: float
    ends: float | None = None
    source: str = ""
    truncated: bool = False

    @property
    def key(self) -> str:
        """Return what makes two deliveries the same: fingerprint, status and start."""
        return hashlib.sha256(f"{self.fingerprint}\n{self.status}\n{self.starts:.3f}".encode()).hexdigest()


class Filter(NamedTuple):
    """Which incidents to list; an empty field is any."""

    job: str = ""
    cause: str = ""
    layer: str = ""
    node: str = ""
    state: str = ""


class FullError(Exception):
    """As many alerts wait as may."""


class Archive:
    """One database. Raises SourceError where it fails, UsageError where its URL names none."""

    def __init__(self, url: str) -> None:
        self._place = without_password(url)
        try:
            self._engine = sql.create_engine(url, pool_pre_ping=not url.startswith("sqlite"))
        except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
            raise UsageError(
                f"store: {self._place!r} names no database ({error}), write for example sqlite:///rca.db or "
                "postgresql+psycopg://user@host/rca"
            ) from error
        if self._engine.dialect.name == "sqlite":
            sql.event.listen(self._engine, "connect", _settle)
            sql.event.listen(self._engine, "begin", _begin)
        self._turn = threading.Lock()
        with self._writing() as connection:
            TABLES.create_all(connection)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    # -- incidents

    def absorb(self, report: Report, pace: Pace, alerts: Sequence[Alert] = ()) -> list[Incident]:
        """Keep a report, let incidents advance by it, and return those that changed.

        The `alerts` that it answers are settled in the same breath: none is answered twice, whatever is killed when.
        """
        body, at = written.render(report).encode(), unix(report.window.end)
        name = hashlib.sha256(body).hexdigest()[:16]
        packed = zlib.compress(body)
        row = {"id": name, "at": at, "status": report.status, "rules": report.rules, "body": packed}
        late = at - REOPENS_WITHIN * pace.keep
        with self._writing() as connection:
            _put(connection, REPORTS, name, row)
            known = _incidents(connection, sql.or_(INCIDENTS.c.state != "closed", INCIDENTS.c.closed >= late))
            before = {one.id: one for one in known}
            changed = [self._told(connection, one, before.get(one.id), name) for one in advance(known, report, pace)]
            for one in changed:
                never = one.state == "closed" and one.opened is None
                _put(connection, INCIDENTS, one.id, None if never else _row(one))
            sightings.write(connection, (one for one in changed if one.last == at), name, at)
            _settled(connection, alerts, report=name, said="")
        return changed

    def _told(self, connection: sql.Connection, one: Incident, before: Incident | None, report: str) -> Incident:
        """Return an incident with the reports that opened it and named it last, and how often its like was seen before."""
        if before is None:
            seen = sql.select(sql.func.count()).where(
                INCIDENTS.c.cause == one.cause,
                INCIDENTS.c.place == str(one.entity),
                INCIDENTS.c.first >= one.first - MEMORY,
                INCIDENTS.c.id != one.id,
                INCIDENTS.c.id.not_in(_rejected()),
            )
            one = msgspec.structs.replace(one, seen_before=int(connection.execute(seen).scalar_one()))
        opening = before is None or before.opened is None
        named = before is None or one.last > before.last
        return msgspec.structs.replace(
            one, report=report if opening else one.report, latest=report if named else one.latest
        )

    def incidents(self, chosen: Filter | None = None, limit: int = 1000) -> list[Incident]:
        """Return incidents, those that were seen last first; those that never opened are no incidents."""
        wanted = [INCIDENTS.c[name] == value for name, value in (chosen or Filter())._asdict().items() if value]
        with self._reading() as connection:
            found = _incidents(connection, sql.and_(sql.true(), *wanted), limit)
        return [one for one in found if one.opened is not None]

    def incident(self, name: str) -> Incident | None:
        """Return one incident."""
        with self._reading() as connection:
            return next(iter(_incidents(connection, INCIDENTS.c.id == name)), None)

    def sightings(self, name: str) -> list[Sighting]:
        """Return when reports named an incident, the oldest first; of very many, evenly chosen ones."""
        with self._reading() as connection:
            return sightings.course(connection, name)

    def alive(self, since: float) -> list[Incident]:
        """Return the incidents that are pending or open, or were closed at `since` or later."""
        with self._reading() as connection:
            return _incidents(connection, sql.or_(INCIDENTS.c.state != "closed", INCIDENTS.c.closed >= since))

    def history(self, at: float) -> Mapping[tuple[str, str], int]:
        """Count the incidents of the last 28 days by cause and place, those that are still alive aside.

        Where somebody has rejected the cause, it was none.
        """
        query = sql.select(INCIDENTS.c.cause, INCIDENTS.c.place).where(
            INCIDENTS.c.state == "closed", INCIDENTS.c.first >= at - MEMORY, INCIDENTS.c.id.not_in(_rejected())
        )
        with self._reading() as connection:
            return Counter((str(cause), str(place)) for cause, place in connection.execute(query))

    def fired(self) -> dict[str, tuple[float, int]]:
        """Return when each cause was last seen, in unix seconds, and in how many incidents."""
        columns = INCIDENTS.c.cause, sql.func.max(INCIDENTS.c.last), sql.func.count()
        query = sql.select(*columns).where(INCIDENTS.c.state != "pending").group_by(INCIDENTS.c.cause)
        with self._reading() as connection:
            return {str(cause): (float(last), int(number)) for cause, last, number in connection.execute(query)}

    def version(self) -> str:
        """Return what is another after each change of an incident; to ask for it costs little."""
        alive = INCIDENTS.c.state.in_(("pending", "open"))
        asked = (
            sql.select(sql.func.count()).where(INCIDENTS.c.state == "open"),
            sql.select(sql.func.sum(INCIDENTS.c.last)).where(alive),
            sql.select(sql.func.max(INCIDENTS.c.closed)),
            sql.select(sql.func.max(NOTES.c.number)),
        )
        with self._reading() as connection:
            [found] = connection.execute(sql.select(*(one.scalar_subquery() for one in asked)))
        return hashlib.sha256(repr(tuple(found)).encode()).hexdigest()[:16]

    # -- what people say of incidents

    def note(self, incident: str, note: Note, most: int) -> None:
        """Keep what somebody says of an incident; raises FullError where it has `most` notes already."""
        own = sql.select(sql.func.count()).where(NOTES.c.incident == incident)
        with self._writing() as connection:
            if connection.execute(own).scalar_one() >= most:
                raise FullError
            connection.execute(sql.insert(NOTES), [{"incident": incident, **msgspec.structs.asdict(note)}])

    def notes(self, incident: str) -> list[Note]:
        """Return what was said of an incident, the first first."""
        columns = NOTES.c.at, NOTES.c.who, NOTES.c.verdict, NOTES.c.text
        query = sql.select(*columns).where(NOTES.c.incident == incident).order_by(NOTES.c.number)
        with self._reading() as connection:
            return [Note(at=at, who=who, verdict=said, text=text) for at, who, said, text in connection.execute(query)]

    def verdicts(self) -> dict[str, str]:
        """Return the last word on the cause of each incident that somebody has confirmed or rejected."""
        with self._reading() as connection:
            query = sql.select(NOTES.c.incident, NOTES.c.verdict).where(NOTES.c.number.in_(_last_words()))
            return {str(incident): str(verdict) for incident, verdict in connection.execute(query)}

    # -- reports

    def report(self, name: str) -> bytes | None:
        """Return the JSON of a report."""
        with self._reading() as connection:
            body = connection.execute(sql.select(REPORTS.c.body).where(REPORTS.c.id == name)).scalar_one_or_none()
        return None if body is None else zlib.decompress(body)

    def remember(self, report: Report, changed: Sequence[Incident], seen: Callable[[], bytes]) -> None:
        """Keep what the report was made of that opened one of these incidents, to look at it again when it is over."""
        end = unix(report.window.end)
        opening = next((one.report for one in changed if one.opened == end and one.report), "")
        body = seen() if opening else b""
        if body:
            self.record(opening, end, body)

    def record(self, report: str, at: float, body: bytes) -> None:
        """Keep what a report was made of, as `rca record` writes it."""
        with self._writing() as connection:
            connection.execute(sql.delete(RECORDINGS).where(RECORDINGS.c.report == report))
            connection.execute(sql.insert(RECORDINGS), [{"report": report, "at": at, "body": body}])

    def recording(self, report: str) -> bytes | None:
        """Return what a report was made of, None where that is not kept, or no longer."""
        query = sql.select(RECORDINGS.c.body).where(RECORDINGS.c.report == report)
        with self._reading() as connection:
            body: bytes | None = connection.execute(query).scalar_one_or_none()
        return body

    def recorded(self, job: str) -> str:
        """Return the last report about a job's incidents of which a recording is kept; nothing where there is none."""
        query = (
            sql.select(RECORDINGS.c.report)
            .join(INCIDENTS, INCIDENTS.c.report == RECORDINGS.c.report)
            .where(INCIDENTS.c.job == job)
            .order_by(RECORDINGS.c.at.desc())
            .limit(1)
        )
        with self._reading() as connection:
            return str(connection.execute(query).scalar_one_or_none() or "")

    def prune(self, at: float, retention: float) -> None:
        """Forget what is older than `retention`, but reports that incidents refer to, and incidents when they are old."""
        with self._writing() as connection:
            connection.execute(
                sql.delete(INCIDENTS).where(
                    INCIDENTS.c.state == "closed", INCIDENTS.c.last < at - max(retention, INCIDENTS_KEPT)
                )
            )
            connection.execute(
                sql.delete(REPORTS).where(
                    REPORTS.c.at < at - retention,
                    REPORTS.c.id.not_in(sql.select(INCIDENTS.c.report)),
                    REPORTS.c.id.not_in(sql.select(INCIDENTS.c.latest)),
                )
            )
            for table in (TOLD, NOTES):
                connection.execute(sql.delete(table).where(table.c.incident.not_in(sql.select(INCIDENTS.c.id))))
            connection.execute(sql.delete(RECORDINGS).where(RECORDINGS.c.at < at - retention))
            journal.prune(connection, at)
            sightings.prune(connection, at - retention)
            connection.execute(
                sql.delete(ALERTS).where(ALERTS.c.received < at - retention, ALERTS.c.state != "waiting")
            )

    # -- how far jobs are

    def progressed(self, told: Sequence[Progress]) -> None:
        """Keep how far jobs are, at most one row of a job in five minutes."""
        if told:
            with self._writing() as connection:
                journal.write(connection, told)

    def progress(self, job: str) -> list[Progress]:
        """Return how far a job was over time, the oldest first; of very many rows, evenly chosen ones."""
        with self._reading() as connection:
            return journal.course(connection, job)

    def jobs(self) -> list[Progress]:
        """Return how far each job was last, in the order of their names."""
        with self._reading() as connection:
            return journal.latest(connection)

    # -- messages

    def told(self, receiver: str) -> dict[str, Told]:
        """Return what a receiver has been told, by incident."""
        columns = TOLD.c.incident, TOLD.c.said, TOLD.c.until, TOLD.c.tries
        with self._reading() as connection:
            found = connection.execute(sql.select(*columns).where(TOLD.c.receiver == receiver)).all()
        return {str(incident): Told(said, until, tries) for incident, said, until, tries in found}

    def tell(self, receiver: str, incident: str, before: Told | None, after: Told) -> bool:
        """Note what a receiver has been told of an incident; return whether it was still as it was `before`."""
        own = sql.and_(TOLD.c.receiver == receiver, TOLD.c.incident == incident)
        with self._writing() as connection:
            found = connection.execute(sql.select(TOLD.c.said, TOLD.c.until, TOLD.c.tries).where(own)).first()
            if (None if found is None else Told(*found)) != before:
                return False
            connection.execute(sql.delete(TOLD).where(own))
            row = {"incident": incident, "receiver": receiver, **after._asdict()}
            connection.execute(sql.insert(TOLD), [row])
        return True

    # -- alerts that came in

    def accept(self, alerts: Iterable[Alert], at: float, most: int | None = None) -> int:
        """Keep alerts until somebody has looked into them; return how many are new.

        Raises FullError where `most` alerts wait already, and keeps none.
        """
        fresh = {alert.key: alert for alert in alerts}
        with self._writing() as connection:
            if most is not None and _waiting(connection) >= most:
                raise FullError
            for keys in _parts(list(fresh)):
                for key in connection.execute(sql.select(ALERTS.c.key).where(ALERTS.c.key.in_(keys))).scalars():
                    del fresh[key]
            last = connection.execute(sql.select(sql.func.max(ALERTS.c.number))).scalar_one() or 0
            rows = [
                {
                    "key": key, "number": last + number, "received": at, "state": "waiting", "said": "", "report": "",
                    "body": msgspec.json.encode(alert),
                }
                for number, (key, alert) in enumerate(fresh.items(), 1)
            ]  # fmt: skip
            if rows:
                connection.execute(sql.insert(ALERTS), rows)
        return len(fresh)

    def claim(self, owner: str, at: float, among: Sequence[Alert] = (), limit: int = 10_000) -> list[Alert]:
        """Return the alerts that wait, all or those `among` some, the oldest first; they are left to `owner` for a while.

        What another owner has claimed is left to that one. Claiming again makes the while longer.
        """
        if not self.queued():
            return []
        held = sql.select(CLAIMS.c.key).where(CLAIMS.c.owner != owner, CLAIMS.c.until > at)
        free = sql.select(ALERTS.c.body).where(ALERTS.c.state == "waiting", ALERTS.c.key.not_in(held))
        parts = [ALERTS.c.key.in_(keys) for keys in _parts([alert.key for alert in among])] if among else [sql.true()]
        with self._writing() as connection:
            ours: list[Alert] = []
            for part in parts:
                found = connection.execute(free.where(part).order_by(ALERTS.c.number).limit(limit)).scalars()
                ours += [msgspec.json.decode(body, type=Alert) for body in found]
            keys = [alert.key for alert in ours]
            _release(connection, keys)
            if keys:
                rows = [{"key": key, "owner": owner, "until": at + LEASE} for key in keys]
                connection.execute(sql.insert(CLAIMS), rows)
        return ours

    def waiting(self, limit: int = 10_000) -> list[Alert]:
        """Return the alerts that nobody has looked into yet, the oldest first."""
        query = sql.select(ALERTS.c.body).where(ALERTS.c.state == "waiting").order_by(ALERTS.c.number).limit(limit)
        with self._reading() as connection:
            return [msgspec.json.decode(body, type=Alert) for body in connection.execute(query).scalars()]

    def queued(self) -> int:
        """Count the alerts that nobody has looked into yet."""
        with self._reading() as connection:
            return _waiting(connection)

    def settle(self, alerts: Sequence[Alert], report: str = "", said: str = "") -> None:
        """Note that alerts have been looked into: the report, or why there is none."""
        with self._writing() as connection:
            _settled(connection, alerts, report, said)

    # -- connections

    @contextmanager
    def _reading(self) -> Iterator[sql.Connection]:
        try:
            with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                yield connection
        except SQLAlchemyError as error:
            raise self._failure(error) from error

    @contextmanager
    def _writing(self) -> Iterator[sql.Connection]:
        """Open a transaction that no other one of these runs beside.

        Those of this process wait for their turn here: SQLite would let them sleep, and look again now and then.
        """
        try:
            with self._turn, self._engine.begin() as connection:
                if self._engine.dialect.name == "postgresql":
                    connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_LOCK)))
                yield connection
        except SQLAlchemyError as error:
            raise self._failure(error) from error

    def _failure(self, error: SQLAlchemyError) -> SourceError:
        cause = getattr(error, "orig", None) or error
        said = " ".join(str(cause).split())
        return SourceError(f"store {self._place}: {said}, is it reachable, writable and not full")


def _settle(connection: DBAPIConnection, _record: object) -> None:
    """Set a SQLite connection up: readers beside one writer, on disk when committed, patient with others."""
    connection.isolation_level = None  # transactions begin where we say so
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", f"busy_timeout={_BUSY_MS}"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: sql.Connection) -> None:
    """Begin as a writer, or not at all: readers wait for nobody."""
    if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _put(connection: sql.Connection, table: sql.Table, name: str, row: Mapping[str, object] | None) -> None:
    """Put a row in the place of the one with its id; None takes that one away."""
    connection.execute(sql.delete(table).where(table.c.id == name))
    if row is not None:
        connection.execute(sql.insert(table), [row])


def _last_words() -> sql.Select[tuple[int]]:
    """Choose the last note on each incident that confirms or rejects its cause."""
    return sql.select(sql.func.max(NOTES.c.number)).where(NOTES.c.verdict != "").group_by(NOTES.c.incident)


def _rejected() -> sql.Select[tuple[str]]:
    """Choose the incidents whose cause was rejected."""
    return sql.select(NOTES.c.incident).where(NOTES.c.verdict == "rejected", NOTES.c.number.in_(_last_words()))


def _waiting(connection: sql.Connection) -> int:
    query = sql.select(sql.func.count()).where(ALERTS.c.state == "waiting")
    return int(connection.execute(query).scalar_one())


def _settled(connection: sql.Connection, alerts: Sequence[Alert], report: str, said: str) -> None:
    for keys in _parts([alert.key for alert in alerts]):
        connection.execute(
            sql.update(ALERTS).where(ALERTS.c.key.in_(keys)).values(state="done", report=report, said=said)
        )
    _release(connection, [alert.key for alert in alerts])


def _release(connection: sql.Connection, keys: Sequence[str]) -> None:
    """Take claims away."""
    for part in _parts(keys):
        connection.execute(sql.delete(CLAIMS).where(CLAIMS.c.key.in_(part)))


def _parts(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    """Part keys into as many as a statement takes."""
    for start in range(0, len(keys), 500):
        yield keys[start : start + 500]


def _row(one: Incident) -> dict[str, object]:
    return {
        "id": one.id,
        "job": one.job,
        "cause": one.cause,
        "layer": one.layer,
        "place": str(one.entity),
        "node": one.entity.labels.get("node", ""),
        "state": one.state,
        "first": one.first,
        "last": one.last,
        "closed": one.closed,
        "report": one.report,
        "latest": one.latest,
        "body": msgspec.json.encode(one),
    }


def _incidents(connection: sql.Connection, where: sql.ColumnElement[bool], limit: int = 1_000_000) -> list[Incident]:
    query = sql.select(INCIDENTS.c.body).where(where).order_by(INCIDENTS.c.last.desc(), INCIDENTS.c.id).limit(limit)
    return [msgspec.json.decode(body, type=Incident) for body in connection.execute(query).scalars()]
