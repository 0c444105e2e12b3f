"""The schedule: look now and then, explain what is wrong, keep incidents, and tell.

A tick is a glance at the symptoms of each job and at hard events; only where there is something to explain, and every
few minutes for faults that nothing shows, all is read. What was read before is remembered, so that only what is new is
asked for.
"""

import dataclasses
import io
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

import numpy as np
import structlog
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED, JobEvent
from apscheduler.schedulers.background import BackgroundScheduler

from rca import glance, notify
from rca.archive import Archive
from rca.config import Settings
from rca.diagnose import diagnose
from rca.errors import RcaError, UsageError, suggestion
from rca.freshness import silence
from rca.incidents import Incident, Pace
from rca.library import Library
from rca.metrics import Look, Metrics
from rca.model import History, Report, Snapshot, Window, seconds
from rca.plain import stamp
from rca.sources import recording
from rca.sources.assemble import Deployment, collect, shaped, unmapped
from rca.sources.identity import unify
from rca.sources.labels import Pool
from rca.sources.rolling import Memory, Rolling
from rca.sources.series import Store
from rca.webhook import Answer, Question

_LOG = structlog.get_logger()


class Live(Store, Protocol):
    """A store with a present."""

    def now(self) -> float:
        """Return the time that it is there, in unix seconds."""
        ...


Open = Callable[[Pool | None], AbstractContextManager[Live]]
"""Opens the store, for one look; what it reads may share its label sets with what was read before."""


class Rules(NamedTuple):
    """What a process works by, read anew on reload: settings, library, the deployment's topology, and the store."""

    settings: Settings
    library: Library
    deployment: Deployment
    open: Open


class Shard(NamedTuple):
    """The jobs that are ours: those of the shard with this number, from 1, among so many."""

    number: int = 1
    of: int = 1

    def owns(self, job: str) -> bool:
        """Say whether a job is ours; a fault that holds up no job is the first shard's.

        >>> [number for number in (1, 2, 3) if Shard(number, 3).owns("llama-70b")]
        [2]
        """
        return zlib.crc32(job.encode()) % self.of == self.number - 1 if job else self.number == 1


class Saw(NamedTuple):
    """A diagnosis, and what it was made of."""

    report: Report
    snapshot: Snapshot
    window: Window


class Past(Protocol):
    """What has been before."""

    def history(self, at: float) -> History:
        """Count the incidents of the last 28 days by cause and place."""
        ...


class Seen(Protocol):
    """Who is told how well the source can be seen."""

    def saw(self, look: Look) -> None:
        """Take note of a look."""
        ...


class Sight(Protocol):
    """What looks at a source, one look at a time. Raises RcaError where it cannot."""

    rules: Rules

    def start(self) -> None:
        """Get ready."""
        ...

    def close(self) -> None:
        """Look no more; who waits for an answer gets a SourceError."""
        ...

    def owns(self, job: str) -> bool:
        """Say whether a job is ours."""
        ...

    def tick(self, wary: bool) -> Report | None:
        """Look at what is scheduled; return nothing where a glance shows nothing, unless `wary`."""
        ...

    def poured(self) -> bytes:
        """Return what the report of the last tick was made of, as `rca record` writes it."""
        ...

    def ask(self, question: Question, keep: bool) -> Answer:
        """Answer a question, with what was seen where that is to `keep`; unlike the schedule's, it is about any job and
        any time."""
        ...


@dataclass
class Memories:
    """What is known from the last time that all was read: when that was, the ranks to glance at, job by job, the metric
    names, and how many series each filter for hard events returned when all was well."""

    swept: float = -np.inf
    ranks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    usual: Mapping[str, float] = field(default_factory=dict)


class Eyes:
    """A `Sight` in this process."""

    def __init__(self, rules: Rules, archive: Past, metrics: Seen, shard: Shard | None = None) -> None:
        self.rules = rules
        self._archive = archive
        self.past = Memories()
        self._shard = shard or Shard()
        self._metrics = metrics
        self._memory = Memory()
        self._last: Saw | None = None
        self._looking = threading.Lock()

    def start(self) -> None:
        """Be ready as it is."""

    def close(self) -> None:
        """Have nothing to close."""

    def tick(self, wary: bool) -> Report | None:
        """Look at what is scheduled."""
        with self._looking, self.rules.open(self._memory.pool) as store:
            self._last = None
            at = self._present(store)
            why = "wary" if wary else self._suspicion(store, at)
            if not why:
                _LOG.debug("nothing to explain", at=stamp(at))
                return None
            _LOG.info("looking at all", at=stamp(at), why=why)
            saw = self._all(Rolling(store, self._memory), at, self._ours)
            self._remember(store, saw, at)
            self._last = saw
            return saw.report

    def poured(self) -> bytes:
        """Return what the last tick saw; nothing where it was a glance."""
        return b"" if self._last is None else _poured(self._last)

    def owns(self, job: str) -> bool:
        """Say whether a job is ours."""
        return self._shard.owns(job)

    def ask(self, question: Question, keep: bool) -> Answer:
        """Answer a question."""
        with self._looking, self.rules.open(None) as store:
            latest = store.now()
            at = latest if question.at is None else min(question.at, latest)
            saw = self._all(store, at, lambda snapshot, names: _asked(question, snapshot, names))
        return Answer(saw.report, _poured(saw) if keep and saw.report.status != "healthy" else b"")

    def _present(self, store: Live) -> float:
        """Return the present, on the grid of the schedule."""
        interval = seconds(self.rules.settings.interval)
        return float(np.floor(store.now() / interval) * interval)

    def _all(self, store: Store, at: float, jobs: Callable[[Snapshot, Mapping[str, str]], Sequence[str]]) -> Saw:
        """Read all, and judge the `jobs` that a snapshot and the names of spellings of its nodes tell."""
        settings, library, deployment, _ = self.rules
        window = Window(at - seconds(settings.window), at, seconds(settings.baseline))
        seen = collect(store, library.in_use(), window, deployment)
        snapshot = shaped(store, window, seen)
        meant = jobs(snapshot, seen.draft.directory.names)
        report = diagnose(library, snapshot, meant, self._archive.history(at))
        blind = {one.rule: tuple(one.missing) for one in report.not_checked if one.entity is None}
        self._metrics.saw(Look(silence(snapshot), unmapped(seen), blind))
        return Saw(report, snapshot, window)

    def _ours(self, snapshot: Snapshot, _names: Mapping[str, str]) -> Sequence[str]:
        """Return the jobs of this shard; none at all means all of them, and there is always a name that nobody has."""
        return [job for job in _jobs(snapshot) if self._shard.owns(job)] or [""] if self._shard.of > 1 else []

    # -- glances

    def _suspicion(self, store: Live, at: float) -> str:
        """Say in a few words why all should be read, or nothing."""
        settings = self.rules.settings
        if at - self.past.swept >= seconds(settings.incidents.sweep):
            return "sweep"
        changed = self._changed(store, at)
        if changed or not self.past.ranks:  # where no rank tells of itself, events and sweeps are all there is
            return f"events: {changed}" if changed else ""
        return self._symptoms(store, at)

    def _symptoms(self, store: Live, at: float) -> str:
        settings, library, deployment, _ = self.rules
        window = Window(at - seconds(settings.window), at, seconds(settings.baseline))
        few = glance.Few(store, [rank for ranks in self.past.ranks.values() for rank in ranks])
        small = glance.reduced(library)
        report = diagnose(small, shaped(few, window, collect(few, small, window, deployment)))
        for one in report.symptoms:
            if one.symptom != "none" and self._shard.owns(one.job):
                return f"{one.job}: {one.symptom}"
        fresh = sorted({job for job in report.jobs if self._shard.owns(job)} ^ self.past.ranks.keys())
        return f"{fresh[0]}: came or went" if fresh else ""

    def _changed(self, store: Live, at: float) -> str:
        """Return the first filter for hard events that returns twice as many series as when all was well."""
        counts = self._counts(store, at)
        return next((query for query, count in counts.items() if count > 2.0 * self.past.usual.get(query, 0.0)), "")

    def _counts(self, store: Live, at: float) -> dict[str, float]:
        interval = seconds(self.rules.settings.interval)
        queries = glance.events(self.rules.library, self.past.names, 2.0 * interval)
        blocks = [(query, store.evaluate(query, np.array([at]))) for query in queries]
        return {query: float(block.values[-1]) for query, block in blocks if len(block.values)}

    def _remember(self, store: Live, saw: Saw, at: float) -> None:
        """Keep what the next glance needs."""
        names = store.names(saw.window.start, saw.window.end)
        ranks = {job: own for job, own in glance.chosen(saw.snapshot).items() if self._shard.owns(job)}
        self.past = dataclasses.replace(self.past, swept=at, ranks=ranks, names=names)
        if saw.report.status == "healthy":
            self.past.usual = self._counts(store, at)
        self._memory.tidy(saw.window.start)


def _poured(saw: Saw) -> bytes:
    """Write what a report was made of."""
    body = io.BytesIO()
    recording.pour(body, saw.snapshot, saw.window)
    return body.getvalue()


def _jobs(snapshot: Snapshot) -> list[str]:
    table = snapshot.tables.get("job")
    return [] if table is None else [str(name) for name in table.columns["job"]]


def _asked(question: Question, snapshot: Snapshot, names: Mapping[str, str]) -> Sequence[str]:
    """Return the jobs that a question is about; raise UsageError where the source knows none of them.

    `names` has the name of each spelling of a node that the source uses.
    """
    known, table = _jobs(snapshot), snapshot.tables.get("rank")
    there = set(question.jobs) & set(known)
    nodes = [] if table is None or not question.places else np.unique(table.columns["node"]).tolist()
    called = _called({place["node"] for place in question.places}, nodes, names)
    for spelt in question.places:
        place = {**spelt, "node": called[spelt["node"]]}
        if table is not None and place.keys() <= table.columns.keys():
            here = np.logical_and.reduce([table.columns[label] == value for label, value in place.items()])
            there |= set(table.columns["job"][here].tolist())
    if question.jobs and not there:
        name = question.jobs[0]
        raise UsageError(f"no such job: {name!r}{suggestion(name, known)}")
    return sorted(there)


def _called(spellings: Iterable[str], nodes: Sequence[str], names: Mapping[str, str]) -> dict[str, str]:
    """Return what nodes are called, whatever an alert calls them.

    >>> _called({"NODE-07.dc1", "10.0.0.8", "else"}, ["node-07", "node-08"], {"10.0.0.8": "node-08"})
    {'10.0.0.8': 'node-08', 'NODE-07.dc1': 'node-07', 'else': 'else'}
    """
    alike = unify([*spellings, *nodes], {}).canonical
    back = {alike[node]: node for node in nodes}
    return {one: names.get(one) or back.get(alike[one], one) for one in sorted(spellings)}


class Watch:
    """Evaluates, keeps incidents, and tells: what a tick does, and when.

    One that only `follows` looks for nothing new: others bring incidents about, and it sees to their end. `tell` is
    called when there may be something to tell.
    """

    def __init__(self, eyes: Sight, archive: Archive, metrics: Metrics, clock: Callable[[], float]) -> None:
        self.follows = False
        self.tell: Callable[[], None] = lambda: None
        self.eyes = eyes
        self._archive = archive
        self._metrics = metrics
        self.clock = clock
        self._told = -np.inf

    def tick(self, *, strict: bool = False) -> None:
        """Look, and tell what has come of it; a look that fails is counted, and nothing ends by it, unless `strict`."""
        due, started = self.clock(), time.monotonic()  # noqa: TID251 - how long it takes is about real time
        changed: list[Incident] = []
        try:
            wary = any(self.eyes.owns(one.job) for one in self._archive.alive(np.inf))
            report = self.eyes.tick(wary=wary) if wary or not self.follows else None
            if report is not None:
                changed = self.absorb(report)
                self._archive.remember(report, changed, self.eyes.poured)
                self._archive.progressed(report.progress)
            self._metrics.evaluated(due, time.monotonic() - started, self.clock() - due)  # noqa: TID251 - likewise
        except RcaError as error:
            self._metrics.failed(error, due)
            if strict:
                raise
            _LOG.warning("the look failed", error=str(error))
        self.announce(at_once=bool(changed))
        self._archive.prune(self.clock(), seconds(self.eyes.rules.settings.incidents.retention))

    def absorb(self, report: Report) -> list[Incident]:
        """Let incidents advance by a report, and return those that changed."""
        keeping = self.eyes.rules.settings.incidents
        changed = self._archive.absorb(report, Pace(seconds(keeping.hold), seconds(keeping.keep_firing_for)))
        for one in changed:
            _LOG.info("incident", id=one.id, state=one.state, cause=one.cause, entity=str(one.entity), job=one.job)
        return changed

    def announce(self, *, at_once: bool = False) -> None:
        """Send the alerts of all incidents to every Alertmanager, once a minute, or at once; others are told as well."""
        self.tell()
        at, settings = self.clock(), self.eyes.rules.settings
        if not settings.alertmanagers or (at - self._told < notify.RESEND and not at_once):
            return
        incidents = notify.due(self._archive.alive(at - notify.RESOLVED_FOR), at)
        interval, url = seconds(settings.interval), settings.incidents.url
        alerts = [alert for one in incidents for alert in notify.alerts(one, at, interval, url)]
        sent = notify.send(alerts, settings.alertmanagers)
        self._metrics.notified(sum(sent.arrived.values()), len(alerts) * len(sent.failed))
        for peer, said in sorted(sent.failed.items()):
            _LOG.warning("alerts not sent", peer=peer, error=said)
        self._told = -np.inf if sent.failed else at


def scheduled(watch: Watch, metrics: Metrics, interval: float) -> BackgroundScheduler:
    """Return a scheduler that ticks every `interval` seconds, the first time at once.

    While a tick takes longer than that, those that were due are left out and counted.
    """

    def left_out(_event: JobEvent) -> None:
        metrics.missed()
        _LOG.warning("tick left out, the one before has not ended")

    def failed(event: JobEvent) -> None:
        metrics.failed(event.exception)
        _LOG.error("internal error, please report it", exc_info=event.exception)

    scheduler = BackgroundScheduler(timezone=UTC)
    scheduler.add_listener(left_out, EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES)
    scheduler.add_listener(failed, EVENT_JOB_ERROR)
    now = datetime.fromtimestamp(watch.clock(), UTC)
    scheduler.add_job(watch.tick, "interval", seconds=interval, next_run_time=now, max_instances=1, coalesce=True)
    return scheduler
