"""Report -> one HTML file: opens offline, needs no script, prints, and reads in light and dark."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rca.model import Cause, Evidence, Link, Report
from rca.picture import Chart, Map, Picture
from rca.plain import percent, unix
from rca.render import _svg
from rca.render import _words as words
from rca.runs import Plot

MOST_BOXES = 8
"""So many rejected causes are drawn; all are listed."""
MOST_BARS = 40
"""So many findings are in the timeline, the first to begin."""


_AXES = {"node": "node", "gpu": "GPU", "dp": "replica", "pp": "pipeline stage"}


class Drawn(NamedTuple):
    """A drawing, and the words around it: what it shows, more in small print, its query and where to run that again, and
    the line of a log that it counts."""

    title: str
    text: str
    svg: Markup
    legend: str = ""
    query: str = ""
    link: str = ""
    quote: str = ""


@dataclass(frozen=True)
class Told:
    """A cause as the page tells it."""

    position: int
    cause: Cause
    probability: str
    name: str
    since: str
    weight: str
    members: str
    chain: tuple[tuple[str, str, str, str], ...]
    numbers: tuple[Drawn, ...]


def render(report: Report, picture: Picture | None = None, server: str = "") -> str:
    """Write a page; with the address of a Prometheus each query is a link to its expression browser."""
    return environment().get_template("report.html").render(**told(report, picture, server))


@cache
def environment() -> Environment:
    """Return where the templates of all pages are found; what they show is escaped."""
    return Environment(
        loader=PackageLoader("rca"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def told(report: Report, picture: Picture | None = None, server: str = "") -> dict[str, object]:
    """Return what `body.html` shows of a report."""
    shown, drawn = words.safe(report), picture or Picture()
    return {
        "report": shown,
        "verdict": words.verdict(shown),
        "status": shown.status.replace("_", " "),
        "span": words.span(shown),
        "jobs": words.listed(shown.jobs) or "none seen",
        "course": words.course(shown),
        "causes": [_told(at, cause, shown, drawn, server) for at, cause in enumerate(shown.causes, start=1)],
        "graph": _graph(shown),
        "timeline": _timeline(shown),
        "progress": [
            (job, [_drawn(one, shown, None, server) for one in charts]) for job, charts in drawn.jobs if charts
        ],
        "maps": [_mapped(one) for one in drawn.maps],
        "enabling": words.enabling(shown.not_checked),
        "rejected": [(one.cause, words.name(one.entity), one.why) for one in shown.rejected],
        "unexplained": [(one.finding, words.gathered(one), one.text) for one in shown.unexplained],
        "last_words": words.last_words(shown),
        "absent": [(one.rule, words.name(one.entity), one.text) for one in shown.not_affected],
    }


def runs(plots: Sequence[Plot]) -> list[Drawn]:
    """Draw runs of a job over what they have done."""
    return [Drawn(one.title, one.about, _raw(_svg.curves(one))) for one in plots]


def _raw(svg: str) -> Markup:
    """Take a drawing into the page as it is."""
    return Markup(svg)  # noqa: S704 - every text in it is escaped where it is drawn


def _told(position: int, cause: Cause, report: Report, drawn: Picture, server: str) -> Told:
    charts = drawn.causes[position - 1] if position <= len(drawn.causes) else ()
    onset = unix(cause.since) if cause.since else None
    by_query = {(one.signal, one.text): one for one in charts}
    return Told(
        position=position,
        cause=cause,
        probability=percent(cause.probability),
        name=words.name(cause.entity),
        since=words.clock(cause.since, report) if cause.since else "",
        weight=words.ended(words.weight(cause)),
        members=words.listed([words.name(member) for member in cause.members], 16),
        chain=tuple(_link(link, report) for link in cause.chain),
        numbers=tuple(
            _number(one, by_query.get((one.signal, one.text)), report, onset, server) for one in cause.evidence
        ),
    )


def _link(link: Link, report: Report) -> tuple[str, str, str, str]:
    since = f" since {words.clock(link.since, report)}" if link.since else ""
    return link.layer, link.finding, f"{words.crowd(link)}{since}", link.text


def _number(shown: Evidence, chart: Chart | None, report: Report, onset: float | None, server: str) -> Drawn:
    if shown.quote is not None:
        quote = words.quoted(shown.quote, report)
        return Drawn(shown.signal, shown.text, Markup(), "", shown.query, quote=quote)
    if chart is not None:
        return _drawn(chart, report, onset, server)
    return Drawn(shown.signal, shown.text, Markup(), "", shown.query, _expression(shown.query, report, server))


def _drawn(chart: Chart, report: Report, onset: float | None, server: str) -> Drawn:
    times = chart.times
    span = _svg.Span(float(times[0]), unix(report.window.start), float(times[-1]), onset)
    legend = [chart.whose]
    if chart.band is not None:
        legend.append(f"grey: 10 to 90 % of {chart.band.peers:,} peers, and their median")
    if chart.reference is not None:
        legend.append("dashed: what it is compared with")
    if onset is not None:
        legend.append("vertical: the onset")
    link = _expression(chart.query, report, server)
    return Drawn(chart.signal, chart.text, _raw(_svg.chart(chart, span)), "; ".join(legend), chart.query, link)


def _expression(query: str, report: Report, server: str) -> str:
    """Return the address at which a Prometheus draws a query over the window and an hour before."""
    if not query or not server:
        return ""
    length = unix(report.window.end) - unix(report.window.start) + 3600.0
    asked = {
        "g0.expr": query, "g0.tab": "0", "g0.range_input": f"{length:.0f}s", "g0.end_input": report.window.end,
    }  # fmt: skip
    return f"{server.rstrip('/')}/graph?{urlencode(asked)}"


def _mapped(shown: Map) -> Drawn:
    odd = sorted((one for one in shown.squares if one.level), key=lambda one: (-abs(one.level), one.name))
    most = words.listed([f"{one.name} ({one.reads})" for one in odd], 6)
    text = f"Off the usual {shown.usual}: {most}." if odd else f"All read the usual, {shown.usual}."
    return Drawn(
        f"{shown.summary}, job {shown.job}",
        text,
        _raw(_svg.squares(shown)),
        f"{shown.signal}: a column is a {_AXES[shown.columns]}, a row a {_AXES[shown.rows]}",
    )


def _graph(report: Report) -> Markup:
    """Draw the chains of the causes that are told in detail, and what was rejected."""
    nodes: dict[str, _svg.Node] = {}
    edges: dict[tuple[str, str], bool] = {}
    for position, cause in enumerate(report.causes, start=1):
        if not words.detailed(position, cause):
            continue
        first = f"{cause.cause} on {cause.entity}"
        note = f"{words.name(cause.entity)}: {cause.summary} ({percent(cause.probability)})"
        detail = f"{percent(cause.probability)} {words.name(cause.entity)}"
        nodes[first] = _svg.Node(first, cause.layer, cause.cause, detail, note, "cause")
        for link in cause.chain[1:]:
            nodes.setdefault(link.finding, _box(link))
        keys = {cause.cause: first, **{link.finding: link.finding for link in cause.chain[1:]}}
        for link in cause.chain[1:]:
            edge = (keys.get(link.origin, first), link.finding)
            edges[edge] = edges.get(edge, False) or position == 1
    for lost in report.rejected[:MOST_BOXES] if nodes else ():
        key = f"{lost.cause} on {lost.entity}"
        nodes.setdefault(
            key, _svg.Node(key, lost.layer, lost.cause, words.name(lost.entity), f"rejected: {lost.why}", "rejected")
        )
    return _raw(_svg.graph(list(nodes.values()), edges)) if nodes else Markup()


def _box(link: Link) -> _svg.Node:
    return _svg.Node(link.finding, link.layer, link.finding, words.crowd(link), link.text, "link")


def _timeline(report: Report) -> Markup:
    """Draw when findings began."""
    chosen = {link.finding for cause in report.causes[:1] for link in cause.chain}
    bars = sorted(_bars(report, chosen), key=lambda bar: (bar.since, not bar.bold, bar.text))[:MOST_BARS]
    if not bars:
        return Markup()
    start, end = unix(report.window.start), unix(report.window.end)
    return _raw(_svg.timeline(bars, _svg.Span(start, start, end)))


def _bars(report: Report, chosen: Sequence[str] | set[str]) -> Iterator[_svg.Bar]:
    for one in report.findings:
        if one.since:
            yield _svg.Bar(unix(one.since), one.layer, f"{one.finding} on {words.gathered(one)}", one.finding in chosen)
