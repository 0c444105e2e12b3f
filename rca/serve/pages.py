"""Pages for people: the incidents, and one of them with the report that opened it. They need no script."""

import io
from collections.abc import Mapping
from functools import partial

import anyio.to_thread
import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from rca.archive import Filter
from rca.config import without_password
from rca.errors import SourceError
from rca.incidents import Incident
from rca.model import Report
from rca.picture import Picture, draw
from rca.plain import counted, percent, stamp, visible
from rca.render import html
from rca.serve.gate import RefusalError
from rca.sources.recording import RecordingSource
from rca.webhook import Backend

LISTED = 200
POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
STATES = ("open", "closed")
_HEADERS = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}
_log = structlog.get_logger(__name__)


class Pages:
    """Shows what the archive holds."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return the paths of the pages."""
        return [
            Route("/", self.start),
            Route("/incidents", self.incidents),
            Route("/incidents/{id}", self.incident),
            Route("/reports/{id}", self.report),
            Route("/favicon.ico", self.nothing),
        ]

    async def start(self, _: Request) -> Response:
        """Lead to the incidents."""
        return RedirectResponse("incidents", 307)

    async def nothing(self, _: Request) -> Response:
        """Answer browsers, which ask for an icon unasked."""
        return Response(status_code=204)

    async def incidents(self, request: Request) -> Response:
        """List incidents, those that were seen last first."""
        told = {name: request.query_params.get(name, "").strip() for name in Filter._fields}
        found = await anyio.to_thread.run_sync(self._backend.archive.incidents, Filter(**told), LISTED)
        return _page("incidents.html", chosen=told, states=STATES, rows=[_row(one) for one in found], most=LISTED)

    async def incident(self, request: Request) -> Response:
        """Show one incident, and the report that opened it with its drawings."""
        return await anyio.to_thread.run_sync(self._incident, request.path_params["id"])

    async def report(self, request: Request) -> Response:
        """Show a report that was kept."""
        return await anyio.to_thread.run_sync(self._report, request.path_params["id"])

    def _incident(self, name: str) -> Response:
        one = self._backend.archive.incident(name)
        if one is None:
            raise RefusalError(404, "there is no such incident")
        body = self._backend.archive.report(one.report)
        report = None if body is None else msgspec.json.decode(body, type=Report)
        shown = {} if report is None else html.told(report, self._picture(one.report, report), self._server())
        return _page("incident.html", row=_row(one), facts=_facts(one), one=one, shown=bool(shown), **shown)

    def _report(self, name: str) -> Response:
        body = self._backend.archive.report(name)
        if body is None:
            raise RefusalError(404, "there is no such report, or its time is over")
        report = msgspec.json.decode(body, type=Report)
        return _answer(html.render(report, self._picture(name, report), self._server()))

    def _picture(self, name: str, report: Report) -> Picture | None:
        """Draw what a report was made of, where that is kept and can still be read."""
        kept = self._backend.archive.recording(name)
        if kept is None:
            return None
        library = self._backend.library()
        try:
            source = RecordingSource(io.BytesIO(kept))
            return draw(library, source.snapshot(library, source.window), report)
        except SourceError as error:
            _log.warning("a recording cannot be drawn", report=name, error=str(error))
            return None

    def _server(self) -> str:
        return without_password(self._backend.settings().prometheus.url)


def _row(one: Incident) -> Mapping[str, str]:
    """Return what a list shows of an incident."""
    return {
        "id": one.id,
        "state": one.state,
        "cause": one.cause,
        "layer": one.layer,
        "place": visible(str(one.entity)),
        "job": visible(one.job) or "none",
        "since": _time(one.since),
        "last": _time(one.last),
        "probability": percent(one.probability),
        "summary": visible(one.summary),
    }


def _facts(one: Incident) -> list[tuple[str, str]]:
    """Return what is known of an incident's life, in words."""
    facts = [
        ("Began", _time(one.since)),
        ("Opened", _time(one.opened) if one.opened is not None else "not yet"),
        ("Last seen", _time(one.last)),
        ("Closed", _time(one.closed) if one.closed is not None else "no"),
        ("Symptom", one.symptom.replace("_", " ")),
        ("Ranks held up", f"{one.ranks:,}"),
        ("GPU hours lost", f"{one.gpu_hours_lost:,.1f}"),
        ("Seen before", f"{counted(one.seen_before, 'time')} here in 28 days"),
    ]
    return facts + ([("Came back", counted(one.flaps, "time"))] if one.flaps else [])


def _time(time: float) -> str:
    """Write a time for a list, in UTC.

    >>> _time(0.0)
    '1970-01-01 00:00:00'
    """
    return stamp(time)[:19].replace("T", " ")


def _page(name: str, **fields: object) -> Response:
    return _answer(html.environment().get_template(name).render(**fields))


_answer = partial(Response, media_type="text/html", headers=_HEADERS)
