"""The ASGI application: each path, and what it answers. What blocks runs in threads."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import anyio.to_thread
import msgspec
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from rca import messages
from rca.archive import Alert, Filter, FullError
from rca.config import Serving
from rca.errors import ProblemsError, RcaError, SourceError
from rca.incidents import Incident
from rca.metrics import MOST_OPEN
from rca.model import seconds
from rca.plain import visible
from rca.render import json as written
from rca.serve import shapes
from rca.serve.demand import BUSY, OnDemand
from rca.serve.gate import WEBHOOK, Gate, RefusalError, body
from rca.serve.jobs import known
from rca.serve.live import Bulletin
from rca.serve.openapi import document
from rca.serve.pages import Pages
from rca.serve.paper import refusal
from rca.webhook import Backend, Question, Worker, parse

LIMIT = 100
"""Incidents that are listed where nobody says how many."""
MOST = 1000
_FULL = 30
_SMALL = 64 << 10
_log = structlog.get_logger(__name__)


def app(backend: Backend, serving: Serving) -> Starlette:
    """Return the application; while it runs, its worker looks into the alerts that come in."""
    worker, bulletin = Worker(backend), Bulletin(backend.archive.version)
    desk = Desk(backend, serving, worker, bulletin)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        worker.start()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bulletin.run)
            yield
            tasks.cancel_scope.cancel()
        await anyio.to_thread.run_sync(worker.stop)

    served = Starlette(
        routes=desk.routes(),
        lifespan=lifespan,
        middleware=[Middleware(Gate, serving=serving)],
        exception_handlers={
            RefusalError: _refused, RcaError: _failed, HTTPException: _http, Exception: _unforeseen,
        },
    )  # fmt: skip
    served.state.bulletin = bulletin
    served.router.redirect_slashes = False  # where to would be told by the Host header, which anybody may write
    return served


class Inbox:
    """Stores alerts; what comes in while the disk is busy is stored together, with one wait for the disk.

    Who comes first after that stores for all, and the others find it done.
    """

    def __init__(self, store: Callable[[Sequence[Alert]], None]) -> None:
        self._store = store
        self._next = Batch()
        self._disk = anyio.Lock()

    async def put(self, alerts: Sequence[Alert]) -> None:
        """Return when alerts are stored; raises what stops that."""
        mine = self._next
        mine.alerts.extend(alerts)
        async with self._disk:
            if mine is self._next:
                self._next = Batch()
                try:
                    await anyio.to_thread.run_sync(self._store, mine.alerts)
                    mine.failure = None
                except (RefusalError, RcaError) as error:
                    mine.failure = error
        if mine.failure is not None:
            raise mine.failure


@dataclass
class Batch:
    """Alerts that are stored together, and what stopped that, until it is done."""

    alerts: list[Alert] = field(default_factory=list)
    failure: RefusalError | RcaError | None = field(
        default_factory=lambda: RefusalError(503, "the alerts could not be stored, send them again", BUSY)
    )


class Desk:
    """Answers requests."""

    def __init__(self, backend: Backend, serving: Serving, worker: Worker, bulletin: Bulletin) -> None:
        self._backend, self._serving, self._worker, self._bulletin = backend, serving, worker, bulletin
        self._inbox = Inbox(self._store)
        self._demand = OnDemand(backend, serving.max_diagnoses)
        self._reloading = anyio.CapacityLimiter(1)

    def routes(self) -> list[Route]:
        """Return every path, with the methods that it takes."""
        return [
            Route(WEBHOOK, self.alerts, methods=["GET", "POST"]),
            Route("/api/v1/incidents", self.incidents),
            Route("/api/v1/incidents/{id}", self.incident),
            Route("/api/v1/jobs", self.jobs),
            Route("/api/v1/jobs/{job:path}/progress", self.progress),
            Route("/api/v1/reports/{id}", self.report),
            Route("/api/v1/recordings/{id}", self.recording),
            Route("/api/v1/events", self.events),
            Route("/api/v1/diagnose", self.diagnose, methods=["POST"]),
            Route("/api/v1/rules", self.rules),
            Route("/api/v1/openapi.json", self.openapi),
            Route("/metrics", self.metrics),
            Route("/-/healthy", self.healthy),
            Route("/-/ready", self.ready),
            Route("/-/reload", self.reload, methods=["POST", "PUT"]),
            *Pages(self._backend, self._serving, self._demand).routes(),
        ]

    async def alerts(self, request: Request) -> Response:
        """Take a delivery of Alertmanager, or list the alerts of incidents that are not over."""
        if request.method == "POST":
            return await self._delivered(await body(request, self._serving.max_body))
        alive = await anyio.to_thread.run_sync(self._alive)
        return _success({"alerts": shapes.active(alive, self._backend.settings().incidents.url)})

    async def _delivered(self, told: bytes) -> Response:
        """Store a delivery; only then may it be answered. What is read in no time is read here, without a thread."""
        now = self._backend.now()
        try:
            alerts, ignored = (
                parse(told, now) if len(told) < _SMALL else await anyio.to_thread.run_sync(parse, told, now)
            )
        except ValueError as error:
            raise RefusalError(400, str(error)) from error
        if alerts:
            await self._inbox.put(alerts)
            self._worker.wake()
        return _success(shapes.Received(accepted=len(alerts), ignored=ignored), 202)

    def _store(self, alerts: Sequence[Alert]) -> None:
        most = self._serving.max_waiting
        try:
            fresh = self._backend.archive.accept(alerts, self._backend.now(), most)
        except FullError:
            raise RefusalError(503, f"{most} alerts wait already, send it again later", _FULL) from None
        _log.info("alerts received", alerts=len(alerts), new=fresh)

    def _alive(self) -> list[Incident]:
        return self._backend.archive.alive(float("inf"))

    async def incidents(self, request: Request) -> Response:
        """List incidents, those that were seen last first."""
        told = request.query_params
        wanted = Filter(**{name: told.get(name, "") for name in Filter._fields})
        if wanted.state not in {"", "open", "closed"}:
            raise RefusalError(400, "state: is open or closed")
        limit = told.get("limit", str(LIMIT))
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MOST):
            raise RefusalError(400, f"limit: is a number from 1 to {MOST}")
        found = await anyio.to_thread.run_sync(self._backend.archive.incidents, wanted, int(limit))
        return _success([messages.incident(one) for one in found])

    async def incident(self, request: Request) -> Response:
        """Return one incident."""
        name = request.path_params["id"]
        found = await anyio.to_thread.run_sync(self._backend.archive.incident, name)
        if found is None:
            raise RefusalError(404, "there is no such incident")
        notes = await anyio.to_thread.run_sync(self._backend.archive.notes, name)
        return _success({**messages.incident(found), **shapes.said(notes)})

    async def jobs(self, _: Request) -> Response:
        """List jobs, with how far each was last."""
        return _success(await anyio.to_thread.run_sync(known, self._backend))

    async def progress(self, request: Request) -> Response:
        """Return how far a job was over time."""
        found = await anyio.to_thread.run_sync(self._backend.archive.progress, request.path_params["job"])
        if not found:
            raise RefusalError(404, "nothing is known of how far such a job is")
        return _success(found)

    async def events(self, request: Request) -> Response:
        """Tell of changes of incidents until the listener, or the server, has had enough."""
        if self._bulletin.full:
            raise RefusalError(503, "as many listen as may", _FULL)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        if request.method == "HEAD":
            return Response(headers=headers, media_type="text/event-stream")
        return StreamingResponse(self._bulletin.listen(), headers=headers, media_type="text/event-stream")

    async def recording(self, request: Request) -> Response:
        """Return what a report was made of."""
        name = request.path_params["id"]
        found = await anyio.to_thread.run_sync(self._backend.archive.recording, name)
        if found is None:
            raise RefusalError(404, "there is no such recording, or its time is over")
        headers = {"Content-Disposition": 'attachment; filename="recording.zip"'}
        return Response(found, media_type="application/zip", headers=headers)

    async def report(self, request: Request) -> Response:
        """Return a report that was kept."""
        name = request.path_params["id"]
        found = await anyio.to_thread.run_sync(self._backend.archive.report, name)
        if found is None:
            raise RefusalError(404, "there is no such report, or its time is over")
        return Response(found, media_type="application/json")

    async def diagnose(self, request: Request) -> Response:
        """Diagnose on demand; nothing is kept of it."""
        given = await body(request, _SMALL)
        report = (await self._demand.answer(self._question(given), False)).report
        return Response(written.render(report), media_type="application/json")

    def _question(self, given: bytes) -> Question:
        try:
            asked = msgspec.json.decode(given or b"{}", type=shapes.Asked)
        except (msgspec.DecodeError, RecursionError) as error:
            raise RefusalError(400, f"the body is not what is asked for: {_line(str(error))}") from error
        return self._demand.question((asked.job,) if isinstance(asked.job, str) else tuple(asked.job), asked.at)

    async def rules(self, request: Request) -> Response:
        """List what may be a root cause as Prometheus lists its rules."""
        told = request.query_params
        kind = told.get("type", "alert")
        if kind not in {"alert", "record"}:
            raise RefusalError(400, "type: is alert or record")
        settings, library = self._backend.settings(), self._backend.library()
        alive = await anyio.to_thread.run_sync(self._alive)
        every = shapes.groups(
            library, alive, seconds(settings.interval), settings.incidents.url, self._backend.metrics.health
        )
        wanted = shapes.Chosen(
            tuple(told.getlist("rule_name[]")), tuple(told.getlist("rule_group[]")),
            told.get("exclude_alerts", "").lower() in {"1", "t", "true"},
        )  # fmt: skip
        return _success({"groups": [] if kind == "record" else shapes.chosen(every, wanted)})

    async def openapi(self, _: Request) -> Response:
        """Describe all this."""
        return _json(document())

    async def metrics(self, request: Request) -> Response:
        """Return our own metrics; what waits and what is open is counted when asked."""
        await anyio.to_thread.run_sync(self._count)
        text, content_type = self._backend.metrics.text(request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": content_type})

    def _count(self) -> bool:
        """Note how many alerts wait, and which incidents are open; return whether the archive could be read."""
        metrics, archive = self._backend.metrics, self._backend.archive
        try:
            metrics.queued(archive.queued())
            metrics.opened(
                (one.id, one.cause, one.layer, str(one.entity), one.job)
                for one in archive.incidents(Filter(state="open"), MOST_OPEN)
            )
        except SourceError as error:
            _log.error("the archive cannot be read", error=str(error))
            return False
        return True

    async def healthy(self, _: Request) -> Response:
        """Say that the process runs."""
        return PlainTextResponse("rca is healthy.\n")

    async def ready(self, _: Request) -> Response:
        """Say whether alerts can be stored and are looked into."""
        if not self._worker.alive():
            raise RefusalError(503, "the worker does not run")
        if not await anyio.to_thread.run_sync(self._count):
            raise RefusalError(503, "the archive cannot be read, see the log")
        return PlainTextResponse("rca is ready.\n")

    async def reload(self, _: Request) -> Response:
        """Read rules and settings again; where they are wrong, the old ones stay."""
        problems = await anyio.to_thread.run_sync(self._backend.read_again, limiter=self._reloading)
        if problems:
            raise RefusalError(500, problems)
        return PlainTextResponse("rules and settings were read again.\n")


def _success(data: object, status: int = 200) -> Response:
    return _json({"status": "success", "data": data}, status)


def _json(data: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(data), status, media_type="application/json")


def _line(text: str) -> str:
    return visible(text if len(text) <= 200 else f"{text[:197]}...")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusalError)
    return refusal(request, error)


async def _failed(request: Request, error: Exception) -> Response:
    """Answer for an error that was foreseen: the request cannot work, or what we stand on does not."""
    theirs = not isinstance(error, SourceError | ProblemsError)
    return refusal(request, RefusalError(400 if theirs else 503, str(error), 0 if theirs else BUSY))


async def _http(request: Request, error: Exception) -> Response:
    """Say it our way where the router refuses."""
    assert isinstance(error, HTTPException)
    answer = refusal(request, RefusalError(error.status_code, error.detail.lower()))
    answer.headers.update(error.headers or {})
    return answer


async def _unforeseen(request: Request, _error: Exception) -> Response:
    """Say nothing of an error that nobody foresaw; its traceback is in the log."""
    return refusal(request, RefusalError(500, "internal error, see the log of the server"))
