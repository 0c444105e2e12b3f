"""Alertmanager's webhooks: what a delivery says, what is asked about it, and the worker who asks.

A delivery is parsed and stored before it is answered; the worker takes what is stored and waits, one question at a
time. So nothing that was acknowledged is lost, and a storm of alerts costs one diagnosis. The body's format is version
4 of Alertmanager, as in its `template/template.go` and `notify/webhook/webhook.go`.
"""

import hashlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec
import structlog

from rca.archive import LEASE, Alert, Archive
from rca.config import Settings
from rca.errors import ProblemsError, RcaError, SourceError, UsageError
from rca.incidents import Pace
from rca.library import Entities, Library
from rca.metrics import Metrics
from rca.model import Report, seconds
from rca.notify import ROLES
from rca.plain import lowered, stamp
from rca.sources.identity import Reader

MOST = 10_000
"""Alerts of one delivery that are kept; where there are more, every job is looked at, as for truncated ones."""
TOGETHER = 300.0
"""Alerts whose times lie within so many seconds of each other are one question."""
LATER = 300.0
"""So many seconds after its start an alert is looked into, or now: by then its trouble can be told from a blip."""
PATIENCE = 1800.0
"""For so many seconds a question is asked again, where the source does not answer."""
_SLOWEST = 60.0
_IDLE = 15.0
_GATHERS = 1.0
_MOST_GATHERED = 12
_STOPS_WITHIN = 10.0
_MOST_OBJECTS = 20 * MOST
_AT = re.compile(r"^(?P<said>.*) - at `(?:key in )?\$\.?(?P<place>[^`]*)`$", re.DOTALL)
_log = structlog.get_logger(__name__)


class Question(NamedTuple):
    """What the engine is asked: the end of the window (None: now), and whom to look at.

    `places` are canonical labels, {node} or {node, gpu}, of alerts that name no job: those jobs are meant whose ranks
    ran there at that time. Their nodes are spelt as the alerts spell them. Neither jobs nor places: every job, and so
    too where nobody runs on any of the places.
    """

    at: float | None = None
    jobs: tuple[str, ...] = ()
    places: tuple[Mapping[str, str], ...] = ()


class Answer(NamedTuple):
    """A report, and what it was made of, as `rca record` writes it, where that was asked for."""

    report: Report
    seen: bytes = b""


Ask: TypeAlias = Callable[[Question, bool], Answer]
"""The engine, and whether what it sees is wanted as well; threads may ask at once. Raises SourceError where asking again
may help, else another RcaError."""


class Inquiry(NamedTuple):
    """A question, and the alerts that it answers."""

    question: Question
    alerts: tuple[Alert, ...]


class Delivery(NamedTuple):
    """What was delivered: the alerts, and how many were left out because we sent them ourselves."""

    alerts: tuple[Alert, ...]
    ignored: int


@dataclass(frozen=True)
class Backend:
    """What the server and its worker stand on.

    `announce` sends out what is open, `reload` reads rules and settings again and returns what is wrong with them,
    `library` and `settings` return those in use, `now` the time in unix seconds. `leave` gives up what the engine is
    asked. Those who share the archive have other names each, and have them again after a restart.
    """

    archive: Archive
    ask: Ask
    announce: Callable[[], None]
    reload: Callable[[], str | None]
    library: Callable[[], Library]
    settings: Callable[[], Settings]
    metrics: Metrics
    now: Callable[[], float]
    leave: Callable[[], None] = lambda: None
    name: str = "rca"

    def asked(self, question: Question, keep: bool) -> Answer:
        """Ask the engine, for what it sees as well where that is to `keep`, and count that."""
        began = self.now()
        try:
            answer = self.ask(question, keep)
        except RcaError as error:
            self.metrics.failed(error, began)
            raise
        done = self.now()
        self.metrics.evaluated(began, done - began, done - (began if question.at is None else question.at))
        return answer

    def read_again(self) -> str:
        """Read rules and settings again; return what is wrong with them, and then the old ones stay, or nothing."""
        try:
            problem = self.reload()
        except RcaError as error:
            problem = str(error)
        self.metrics.reloaded(self.now(), well=not problem)
        if problem:
            _log.error("rules and settings are wrong, the old ones stay", problems=problem)
        else:
            _log.info("rules and settings were read again")
        return problem or ""


_Time: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]


class _Alert(msgspec.Struct, rename="camel"):
    status: Literal["firing", "resolved"] = "firing"
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    starts_at: _Time | None = None
    ends_at: _Time | None = None
    generator: str | None = msgspec.field(name="generatorURL", default=None)
    fingerprint: str | None = None


class Body(msgspec.Struct, rename="camel"):
    """The body of a delivery, as far as we read it."""

    alerts: list[_Alert]
    version: str | None = None
    truncated_alerts: int | None = None


def parse(body: bytes, now: float) -> Delivery:
    """Read a delivery; what is missing takes its default, what is unknown is left alone.

    An alert without a start began `now`. Raises ValueError, in one sentence, for what is no delivery.
    """
    try:
        told = msgspec.json.decode(body, type=Body) if body.count(b"{") <= _MOST_OBJECTS else None
    except msgspec.DecodeError as error:
        raise ValueError(_said(error)) from error
    except RecursionError as error:
        raise ValueError("the body is nested too deeply, send Alertmanager's JSON") from error
    if told is None:
        raise ValueError(f"the body has more than {_MOST_OBJECTS} objects, set max_alerts of the receiver")
    if told.version not in {None, "4"}:
        raise ValueError(f"version: {_short(str(told.version))!r} is not known, send version 4")
    truncated = (told.truncated_alerts or 0) > 0 or len(told.alerts) > MOST
    alerts = [_alert(one, now, truncated=truncated) for one in told.alerts[:MOST]]
    others = tuple(alert for alert in alerts if not _ours(alert))
    return Delivery(others, len(alerts) - len(others))


def _said(error: msgspec.DecodeError) -> str:
    """Put a decoder's objection into our words: the place first."""
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return f"the body is not JSON, {_short(lowered(text))}"
    found = _AT.match(text)
    said, place = (found["said"], found["place"]) if found else (text, "")
    return f"{place or 'the body'}: {_short(lowered(said))}"


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:197]}..."


def _alert(told: _Alert, now: float, *, truncated: bool) -> Alert:
    labels = told.labels or {}
    spelt = msgspec.json.encode(dict(sorted(labels.items())))
    starts = told.starts_at.timestamp() if told.starts_at is not None else 0.0
    ends = told.ends_at.timestamp() if told.ends_at is not None and told.status == "resolved" else 0.0
    return Alert(
        fingerprint=told.fingerprint or hashlib.sha256(spelt).hexdigest()[:16],
        status=told.status,
        labels=labels,
        annotations=told.annotations or {},
        starts=starts if starts > 0.0 else now,
        ends=ends if ends > 0.0 else None,
        source=told.generator or "",
        truncated=truncated,
    )


def _ours(alert: Alert) -> bool:
    """Say whether an alert is one that we sent: to look into it would go round in circles."""
    return alert.labels.get("role") in ROLES and "root_cause_id" in alert.labels


def inquiries(alerts: Sequence[Alert], entities: Entities, now: float) -> list[Inquiry]:
    """Return what to ask about alerts that fire: those of one time are one question over all that they name.

    The time asked about is the latest of theirs, so that each of them had begun.
    """
    return [
        Inquiry(_question(group, entities, min(now, group[-1].starts + LATER)), tuple(group))
        for group in _groups(sorted(alerts, key=lambda alert: alert.starts), now)
    ]


def _groups(alerts: Sequence[Alert], now: float) -> Iterator[list[Alert]]:
    """Part alerts, which are in order, where their times are too far from the first of a group."""
    group: list[Alert] = []
    for alert in alerts:
        if group and min(now, alert.starts + LATER) - min(now, group[0].starts + LATER) > TOGETHER:
            yield group
            group = []
        group.append(alert)
    if group:
        yield group


def _question(alerts: Sequence[Alert], entities: Entities, at: float) -> Question:
    """Ask about the jobs of alerts, and the places of those that name none; about all where one names neither."""
    reader = Reader(entities, "gpu")
    seen = [reader.seen[number].values for number in reader.read([alert.labels for alert in alerts]).tolist()]
    if any(alert.truncated for alert in alerts) or not all("job" in one or "node" in one for one in seen):
        return Question(at)
    jobs = {one["job"] for one in seen if "job" in one}
    places = {tuple(_place(one).items()) for one in seen if "job" not in one}
    return Question(at, tuple(sorted(jobs)), tuple(dict(place) for place in sorted(places)))


def _place(values: Mapping[str, str]) -> dict[str, str]:
    """Return where an alert points to; what is no number of a GPU (`device` may be a port or a disk) says the node."""
    gpu = values.get("gpu", "")
    return {"node": values["node"], **({"gpu": gpu} if gpu.isascii() and gpu.isdigit() else {})}


class Worker:
    """Looks into the alerts that wait, one question at a time, in a thread of its own.

    Each piece of work runs in a pool of one thread, so that an error nobody foresaw comes back as a value: it costs
    its own question, and ends no thread.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._pool = ThreadPoolExecutor(1, "rca-worker")
        self._thread = threading.Thread(target=self._run, name="rca-webhook", daemon=True)
        self._stopping, self._woken = threading.Event(), threading.Event()
        self._failing: dict[str, float] = {}
        self._claimed = 0.0

    def start(self) -> None:
        """Begin to work, with what waits from before."""
        self._thread.start()

    def wake(self) -> None:
        """Say that there is something new."""
        self._woken.set()

    def alive(self) -> bool:
        """Say whether work goes on."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Begin nothing more; what is under way is given up, and taken up again after a restart."""
        self._stopping.set()
        self._backend.leave()
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join(_STOPS_WITHIN)
        else:
            self._pool.shutdown()

    def _run(self) -> None:
        pause = 1.0
        while not self._stopping.is_set():
            self._woken.clear()  # a storm arrives in many deliveries: after the first, wait a little for the others
            if self.round():
                pause = 1.0
                self._woken.wait(_IDLE)
                self._gather()
            else:
                self._stopping.wait(pause)
                pause = min(2.0 * pause, _SLOWEST)
        self._pool.shutdown()

    def _gather(self) -> None:
        """Wait until nothing more arrives, but not for ever: a storm is one question, and its senders have quick answers."""
        for _ in range(_MOST_GATHERED):
            self._woken.clear()
            if self._stopping.wait(_GATHERS) or not self._woken.is_set():
                return

    def round(self) -> bool:
        """Look into all that waits now; return whether nothing has to be tried again."""
        taken = self._pool.submit(self._take)
        error = taken.exception()
        if error is not None:
            _log.warning("alerts cannot be read", error=str(error))
            return False
        left = [one for one in taken.result() if not (self._stopping.is_set() or self._answered(one))]
        return not left

    def _take(self) -> list[Inquiry]:
        """Claim what waits, settle what is over by itself, and return what to ask about the rest."""
        self._claimed = self._backend.now()
        waiting = self._backend.archive.claim(self._backend.name, self._claimed)
        over = [alert for alert in waiting if alert.status == "resolved"]
        if over:
            self._backend.archive.settle(over, said="resolved")
        firing = [alert for alert in waiting if alert.status != "resolved"]
        return inquiries(firing, self._backend.library().entities, self._backend.now())

    def _answered(self, inquiry: Inquiry) -> bool:
        """Ask, keep the answer and send it out; return whether that is done with.

        What others have taken up meanwhile, as it took us too long to get there, is theirs.
        """
        if self._backend.now() - self._claimed > LEASE / 4.0:
            renewed = self._pool.submit(
                self._backend.archive.claim, self._backend.name, self._backend.now(), inquiry.alerts
            )
            if not self._say(renewed, "alerts cannot be claimed"):
                return False
            inquiry = inquiry._replace(alerts=tuple(renewed.result()))
            if not inquiry.alerts:
                return True
        error = self._pool.submit(self._answer, inquiry).exception()
        keys = [alert.key for alert in inquiry.alerts]
        if self._stopping.is_set():
            return error is None
        if error is None:
            self._forget(keys)
            self._say(self._pool.submit(self._backend.announce), "incidents could not be sent out")
            return True
        told = {"alerts": len(keys), "error": str(error), "at": stamp(inquiry.question.at or self._backend.now())}
        if isinstance(error, SourceError | ProblemsError) and not self._given_up(keys):
            _log.warning("alerts will be looked into again", **told)
            return False
        if not _foreseen(error):
            self._backend.metrics.failed(error)
        _log.error("alerts cannot be looked into", **told, exc_info=None if _foreseen(error) else error)
        said = str(error) if _foreseen(error) else f"internal error: {type(error).__name__}"
        settled = self._pool.submit(self._backend.archive.settle, inquiry.alerts, said=said)
        self._forget(keys)
        return self._say(settled, "alerts could not be settled")

    def _answer(self, inquiry: Inquiry) -> None:
        """Ask, and keep the report with the alerts that it answers; an alert has waited long enough to be believed.

        A job that the source does not know may be a label that means something else: then all jobs are looked at.
        """
        question = inquiry.question
        try:
            report, seen = self._backend.asked(question, True)
        except UsageError:
            if not question.jobs:
                raise
            report, seen = self._backend.asked(Question(question.at), True)
        pace = Pace(0.0, seconds(self._backend.settings().incidents.keep_firing_for))
        changed = self._backend.archive.absorb(report, pace, inquiry.alerts)
        self._backend.archive.remember(report, changed, lambda: seen)
        _log.info(
            "alerts looked into",
            alerts=len(inquiry.alerts),
            status=report.status,
            causes=[one.cause for one in report.causes[:3]],
            incidents=[one.id for one in changed],
        )

    def _say(self, done: "Future[Any]", what: str) -> bool:
        """Log what went wrong with something, if it did; return whether it went well."""
        error = done.exception()
        if error is not None:
            _log.error(what, error=str(error), exc_info=None if _foreseen(error) else error)
        return error is None

    def _given_up(self, keys: Sequence[str]) -> bool:
        """Say whether one of the alerts has failed for too long."""
        now = self._backend.now()
        return any(now - self._failing.setdefault(key, now) > PATIENCE for key in keys)

    def _forget(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._failing.pop(key, None)


def _foreseen(error: BaseException) -> bool:
    return isinstance(error, RcaError)
