"""Pages of jobs: how far each is, whether it works and learns, what ails it, and how it does against earlier runs."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias
from urllib.parse import quote, urlencode

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rca import runs
from rca.archive import Filter
from rca.config import without_password
from rca.library import Library
from rca.model import Progress, Report, Snapshot, seconds
from rca.picture import Picture, follow
from rca.plain import amount, lasting, percent, quantity, significant, unix, visible
from rca.render import html
from rca.runs import Run
from rca.serve import rows, shapes
from rca.serve.gate import RefusalError
from rca.serve.paper import sheet, template
from rca.webhook import Backend

LISTED = 200
PATIENCE = 900.0
"""A job of which nothing was told for so many seconds, and three sweeps, is silent."""
Drawn: TypeAlias = Callable[[str, bytes, Callable[[Library, Snapshot], Picture]], Picture | None]
"""Draws what is chosen of the recording of a report; nothing where that cannot be read."""
_RUNS = runs.EARLIER + 1
_FORESEEN = 10 * 365 * 86_400.0


def known(backend: Backend) -> list[shapes.Job]:
    """Return the jobs that are known: those that are ill first, then those that were heard of last."""
    return shapes.jobs(backend.archive.jobs(), backend.archive.alive(float("inf")), _heard(backend))


def _heard(backend: Backend) -> float:
    """Return since when a job must have been seen, to be no silent one."""
    return backend.now() - max(PATIENCE, 3.0 * seconds(backend.settings().incidents.sweep))


class Jobs:
    """Shows jobs."""

    def __init__(self, backend: Backend, drawn: Drawn) -> None:
        self._backend, self._drawn = backend, drawn

    def routes(self) -> list[Route]:
        """Return the paths of the pages."""
        return [Route("/jobs", self.jobs), Route("/jobs/{job:path}", self.job)]

    async def jobs(self, _: Request) -> Response:
        """List jobs with how far they are."""
        return await anyio.to_thread.run_sync(self._jobs)

    def _jobs(self) -> Response:
        return sheet(template("jobs.html").render(rows=[_row(one) for one in known(self._backend)]))

    async def job(self, request: Request) -> Response:
        """Show how a job gets on, and what has ailed it."""
        depth = request.scope["raw_path"].partition(b"/jobs/")[2].count(b"/") + 1
        return await anyio.to_thread.run_sync(self._job, request.path_params["job"], "../" * depth)

    def _job(self, name: str, root: str) -> Response:
        archive = self._backend.archive
        found, told, verdicts = archive.incidents(Filter(job=name), LISTED), archive.progress(name), archive.verdicts()
        if not name or not (found or told):
            raise RefusalError(404, "nothing is known of such a job")
        state = next((one.state for one in shapes.jobs(told[-1:], found, _heard(self._backend))), "silent")
        listed = [rows.incident(one, verdicts.get(one.id, "")) for one in found]
        return sheet(
            template("job.html").render(
                root=root,
                name=visible(name),
                path=quote(name, safe=""),
                state=state,
                rows=listed,
                most=LISTED,
                open=[row for row in listed if row["state"] == "open"],
                course=_course(told),
                runs=_runs(told),
                **self._last(name),
            )
        )

    def _last(self, name: str) -> dict[str, object]:
        """Return what is drawn of the last recording of a job's incidents."""
        archive = self._backend.archive
        last = archive.recorded(name)
        kept, told = archive.recording(last), archive.report(last)
        if kept is None or told is None:
            return {"shown": False}
        picture = self._drawn(last, kept, lambda library, snapshot: follow(library, snapshot, name))
        server = without_password(self._backend.settings().prometheus.url)
        report = html.told(msgspec.json.decode(told, type=Report), picture, server)
        return {"shown": True, "from": last, **{name: report[name] for name in ("span", "progress", "maps")}}


def _row(one: shapes.Job) -> Mapping[str, object]:
    """Return what the list shows of a job."""
    told = one.progress or Progress(job=one.job, at="")
    return {
        "job": visible(one.job) or "none",
        "path": rows.path(one.job),
        "state": one.state,
        "step": _step(told),
        "bar": _bar(told),
        "eta": lasting(told.eta_seconds) if told.eta_seconds and one.state != "silent" else "",
        "loss": "" if told.loss is None else quantity(told.loss, "loss"),
        "rate": "" if told.tokens_per_gpu_second is None else significant(told.tokens_per_gpu_second),
        "at": rows.clock(unix(told.at)) if told.at else "",
        "incidents": one.incidents,
        "query": urlencode({"job": one.job, "state": "open"}),
    }


def _step(told: Progress) -> str:
    step = "" if told.step is None else f"{told.step:,}"
    return f"{step} of {told.target_step:,}" if step and told.target_step else step


def _bar(told: Progress) -> Mapping[str, int]:
    """Return how far a job is of how much; nothing where either is not known."""
    if told.step is None or not told.target_step:
        return {}
    return {"value": min(told.step, told.target_step), "of": told.target_step}


def _course(told: Sequence[Progress]) -> Mapping[str, object]:
    """Return how far a job is, in figures and words; nothing where that is not known."""
    if not told:
        return {}
    last, present = told[-1], runs.parted(told)[-1]
    facts = [
        ("As of", rows.clock(unix(last.at))),
        ("Step", _step(last)),
        ("To go", _to_go(last)),
        ("Time of a step", "" if last.step_seconds is None else quantity(last.step_seconds, "seconds")),
        ("Tokens seen", "" if last.tokens is None else amount(last.tokens)),
        ("Throughput", _throughput(last)),
        ("Loss", "" if last.loss is None else quantity(last.loss, "loss")),
        ("Ranks", "" if last.ranks is None else f"{last.ranks:,}"),
    ]
    bar = _bar(last)
    return {
        "facts": [(name, value) for name, value in facts if value],
        "bar": bar,
        "share": percent(bar["value"] / bar["of"]) if bar else "",
        "busy": runs.activity(present),
        "learning": runs.learning(present),
    }


def _to_go(last: Progress) -> str:
    """Say how long a job takes still, and until when."""
    if last.eta_seconds is None:
        return ""
    if last.eta_seconds > _FORESEEN:
        return f"about {lasting(last.eta_seconds)}"
    until = rows.clock(unix(last.at) + last.eta_seconds)[:16]
    return f"about {lasting(last.eta_seconds)}, until {until} at this pace" if last.eta_seconds else "nothing"


def _throughput(last: Progress) -> str:
    rate = last.tokens_per_gpu_second
    if rate is None:
        return ""
    whole = "" if last.ranks is None else f", {amount(rate * last.ranks * 86_400.0)} tokens a day in all"
    return f"{significant(rate)} tokens per GPU and second{whole}"


def _runs(told: Sequence[Progress]) -> Mapping[str, object]:
    """Return the present run of a job and those before it: a table, a sentence and charts."""
    last = runs.parted(told)[-_RUNS:]
    names = [f"{number} before" if number else "present" for number in reversed(range(len(last)))]
    called = [f"{name}, began {_began(one)}" for name, one in zip(names, last, strict=True)]
    plots = runs.plots(last, called) if last else []
    return {
        "table": [_told(one, name) for one, name in zip(last, names, strict=True)][::-1],
        "sentence": runs.comparison(last),
        "plots": html.runs(plots),
    }


def _began(run: Run) -> str:
    return rows.clock(unix(run.rows[0].at))


def _told(run: Run, name: str) -> Mapping[str, str]:
    """Return a run as a row of the table."""
    steps = [one.step for one in run.rows if one.step is not None]
    tokens, loss = run.last("tokens"), run.last("loss")
    rate = run.usual("tokens_per_gpu_second")
    return {
        "name": name,
        "began": _began(run),
        "steps": f"{steps[0]:,} to {steps[-1]:,}" if steps else "",
        "tokens": amount(tokens) if tokens == tokens else "",  # noqa: PLR0124 - NaN
        "loss": quantity(loss, "loss") if loss == loss else "",  # noqa: PLR0124 - NaN
        "rate": significant(rate) if rate == rate else "",  # noqa: PLR0124 - NaN
    }
