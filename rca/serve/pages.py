"""Pages for people: incidents, rules, the server itself, and questions. All can be read without any script."""

import io
from collections.abc import Callable, Mapping
from importlib.resources import files
from urllib.parse import parse_qs

import anyio.to_thread
import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from rca.archive import Filter, FullError
from rca.config import Serving, without_password
from rca.errors import RcaError, SourceError
from rca.incidents import Note, Verdict
from rca.library import Library
from rca.model import Report, Snapshot
from rca.picture import Picture, draw
from rca.plain import visible
from rca.render import html
from rca.serve import rows, shapes
from rca.serve.demand import OnDemand
from rca.serve.gate import RefusalError, body, user
from rca.serve.jobs import Jobs
from rca.serve.paper import sheet, template
from rca.sources.recording import RecordingSource
from rca.webhook import Backend

LISTED = 200
LONGEST = 4000
"""Letters of a note."""
MOST_NOTES = 100
"""Notes on one incident."""
STATES = ("open", "closed")
VERDICTS: Mapping[str, Verdict] = {"": "", "confirmed": "confirmed", "rejected": "rejected"}
_FORM = 64 << 10
_log = structlog.get_logger(__name__)


class Pages:
    """Shows what the archive holds, and takes what people say and ask."""

    def __init__(self, backend: Backend, serving: Serving, demand: OnDemand) -> None:
        self._backend, self._serving, self._demand = backend, serving, demand

    def routes(self) -> list[Route]:
        """Return the paths of the pages."""
        return [
            Route("/", self.start),
            Route("/incidents", self.incidents),
            Route("/incidents/{id}", self.incident, methods=["GET", "POST"]),
            Route("/reports/{id}", self.report),
            *Jobs(self._backend, self._drawn).routes(),
            Route("/rules", self.rules),
            Route("/diagnose", self.diagnose, methods=["GET", "POST"]),
            Route("/status", self.status),
            Route("/static/live.js", self.script),
            Route("/favicon.ico", self.nothing),
        ]

    async def start(self, _: Request) -> Response:
        """Lead to the incidents."""
        return RedirectResponse("incidents", 307)

    async def nothing(self, _: Request) -> Response:
        """Answer browsers, which ask for an icon unasked."""
        return Response(status_code=204)

    async def script(self, _: Request) -> Response:
        """Return the one script, which only keeps a list fresh."""
        text = files("rca").joinpath("templates/live.js").read_text(encoding="utf-8")
        return Response(text, media_type="text/javascript", headers={"Cache-Control": "no-cache"})

    async def incidents(self, request: Request) -> Response:
        """List incidents, those that were seen last first."""
        told = {name: request.query_params.get(name, "").strip() for name in Filter._fields}
        return await anyio.to_thread.run_sync(self._incidents, told)

    def _incidents(self, told: Mapping[str, str]) -> Response:
        archive = self._backend.archive
        version = archive.version()  # first: what changes while the list is made is told as news
        found, verdicts = archive.incidents(Filter(**told), LISTED), archive.verdicts()
        shown = [rows.incident(one, verdicts.get(one.id, "")) for one in found]
        return sheet(
            template("incidents.html").render(version=version, chosen=told, states=STATES, rows=shown, most=LISTED)
        )

    async def incident(self, request: Request) -> Response:
        """Show one incident with the report that opened it and its drawings, or take a note on it."""
        name = request.path_params["id"]
        if request.method != "POST":
            return await anyio.to_thread.run_sync(self._incident, name)
        told = await _form(request)
        verdict, text = VERDICTS.get(told.get("verdict", "")), told.get("note", "").replace("\0", "").strip()
        if verdict is None:
            raise RefusalError(400, "verdict: is confirmed, rejected or empty")
        if len(text) > LONGEST:
            raise RefusalError(400, f"note: is longer than {LONGEST} letters")
        if verdict or text:
            who = user(request.headers.get("authorization", ""), self._serving)
            note = Note(at=self._backend.now(), who=who, verdict=verdict, text=text)
            await anyio.to_thread.run_sync(self._note, name, note)
        return RedirectResponse(f"../incidents/{name}#notes", 303)

    def _note(self, name: str, note: Note) -> None:
        if self._backend.archive.incident(name) is None:
            raise RefusalError(404, "there is no such incident")
        try:
            self._backend.archive.note(name, note, MOST_NOTES)
        except FullError:
            raise RefusalError(400, f"the incident has {MOST_NOTES} notes already") from None

    async def report(self, request: Request) -> Response:
        """Show a report that was kept."""
        return await anyio.to_thread.run_sync(self._report, request.path_params["id"])

    async def rules(self, _: Request) -> Response:
        """List the rules, with when each last fired here, and what it lacks."""
        return await anyio.to_thread.run_sync(self._rules)

    def _rules(self) -> Response:
        health = self._backend.metrics.health
        told = rows.rules(self._backend.library(), self._backend.archive.fired(), health)
        return sheet(template("rules.html").render(layers=told, looked=health.at is not None and rows.clock(health.at)))

    async def diagnose(self, request: Request) -> Response:
        """Ask what to diagnose, and show the report; what goes wrong is said beside the form."""
        if request.method != "POST":
            told = {name: request.query_params.get(name, "") for name in ("job", "at")}
            return sheet(template("diagnose.html").render(asked=told, error="", shown=False))
        told = {"job": "", "at": "", **await _form(request)}
        try:
            question = self._demand.question([told["job"].strip()], told["at"].strip())
            report, seen = await self._demand.answer(question, True)
        except RefusalError as error:
            return sheet(template("diagnose.html").render(asked=told, error=error.text, shown=False), error.status)
        except RcaError as error:
            status = 503 if isinstance(error, SourceError) else 400
            return sheet(template("diagnose.html").render(asked=told, error=visible(str(error)), shown=False), status)
        return await anyio.to_thread.run_sync(self._asked, told, report, seen)

    def _asked(self, asked: Mapping[str, str], report: Report, seen: bytes) -> Response:
        picture = self._picture("on demand", seen or None, report)
        return sheet(
            template("diagnose.html").render(
                asked=asked, error="", shown=True, **html.told(report, picture, self._server())
            )
        )

    async def status(self, _: Request) -> Response:
        """Show how the source and the server are."""
        return await anyio.to_thread.run_sync(self._status)

    def _status(self) -> Response:
        settings, metrics = self._backend.settings(), self._backend.metrics
        return sheet(
            template("status.html").render(
                source=rows.source(settings, metrics.health, metrics),
                ourselves=rows.ourselves(settings, metrics, self._backend.archive.queued()),
            )
        )

    def _incident(self, name: str) -> Response:
        archive = self._backend.archive
        one = archive.incident(name)
        if one is None:
            raise RefusalError(404, "there is no such incident")
        found, kept, said = archive.report(one.report), archive.recording(one.report), archive.notes(name)
        report = None if found is None else msgspec.json.decode(found, type=Report)
        shown = {} if report is None else html.told(report, self._picture(one.report, kept, report), self._server())
        return sheet(
            template("incident.html").render(
                row=rows.incident(one, shapes.verdict(said)),
                facts=rows.facts(one),
                one=one,
                seen=rows.sightings(archive.sightings(name)),
                notes=rows.notes(said),
                longest=LONGEST,
                kept=kept is not None,
                shown=bool(shown),
                **shown,
            )
        )

    def _report(self, name: str) -> Response:
        found = self._backend.archive.report(name)
        if found is None:
            raise RefusalError(404, "there is no such report, or its time is over")
        report = msgspec.json.decode(found, type=Report)
        picture = self._picture(name, self._backend.archive.recording(name), report)
        return sheet(html.render(report, picture, self._server()))

    def _picture(self, name: str, kept: bytes | None, report: Report) -> Picture | None:
        """Draw what a report was made of, where that is kept and can still be read."""
        if kept is None:
            return None
        return self._drawn(name, kept, lambda library, snapshot: draw(library, snapshot, report))

    def _drawn(self, name: str, kept: bytes, choose: Callable[[Library, Snapshot], Picture]) -> Picture | None:
        library = self._backend.library()
        try:
            source = RecordingSource(io.BytesIO(kept))
            return choose(library, source.snapshot(library, source.window))
        except SourceError as error:
            _log.warning("a recording cannot be drawn", report=name, error=str(error))
            return None

    def _server(self) -> str:
        return without_password(self._backend.settings().prometheus.url)


async def _form(request: Request) -> dict[str, str]:
    """Read the fields of a form; of those with the same name the last."""
    told = await body(request, _FORM)
    try:
        return {name: values[-1] for name, values in parse_qs(told.decode(), max_num_fields=20).items()}
    except ValueError as error:
        raise RefusalError(400, "the body is no form") from error
