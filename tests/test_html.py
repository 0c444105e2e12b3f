"""A page is one file: all of the report is in it, it runs nothing, fetches nothing, and people can read it."""

import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page
from read_once import load
from sample_report import cooling_fault, healthy, inconclusive, silent_data_skew
from servers import chromium

from rca.diagnose import diagnose
from rca.model import EntityRef, Report, Window
from rca.picture import Picture, draw
from rca.plain import unix
from rca.render import html
from rca.sources.scenario import ScenarioSource

SAMPLES = (cooling_fault, silent_data_skew, healthy, inconclusive)
SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"
HOSTILE = "<script>alert(1)</script>\"'&"


class Elements(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def named(self, tag: str, name: str = "") -> list[dict[str, str | None]]:
        """Return the attributes of elements by tag, and by a word of their class."""
        return [
            attrs
            for one, attrs in self.found
            if one == tag and (not name or name in (attrs.get("class") or "").split())
        ]


@pytest.fixture(scope="module")
def made() -> dict[str, tuple[Report, Picture]]:
    """Diagnose some scenarios, and draw them."""
    library = load()
    found = {}
    for name in ("cooling_fault", "silent_data_skew", "healthy"):
        source = ScenarioSource(SCENARIOS / f"{name}.yaml")
        snapshot = source.snapshot(library, Window(source.latest() - 900.0, source.latest()))
        report = diagnose(library, snapshot)
        found[name] = (report, draw(library, snapshot, report))
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start a browser."""
    with chromium() as started:
        yield started


@pytest.fixture
def opened(browser: Browser, tmp_path: Path, made: dict[str, tuple[Report, Picture]]) -> Iterator[Page]:
    """Open the page of the cooling fault; nothing may be fetched or complained about."""
    path = tmp_path / "page.html"
    path.write_text(html.render(*made["cooling_fault"], "http://prometheus:9090"), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1100, "height": 900})
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("request", lambda request: said.append(request.url) if request.url != path.as_uri() else None)
    page.goto(path.as_uri())
    yield page
    page.close()
    assert said == []


def test_the_graph_is_that_of_the_report(made: dict[str, tuple[Report, Picture]]) -> None:
    report, picture = made["cooling_fault"]
    page = Elements(html.render(report, picture))
    cause = report.causes[0]
    first = f"{cause.cause} on {cause.entity}"
    keys = {"": first, cause.cause: first, **{link.finding: link.finding for link in cause.chain[1:]}}
    assert {attrs["data-key"] for attrs in page.named("g", "node")} == {
        *keys.values(),
        *(f"{one.cause} on {one.entity}" for one in report.rejected[: html.MOST_BOXES]),
    }
    edges = {(attrs["data-from"], attrs["data-to"]) for attrs in page.named("path", "edge")}
    assert edges == {(keys[link.origin], link.finding) for link in cause.chain[1:]}
    assert len(edges) == len(cause.chain) - 1
    assert len(page.named("path", "chosen")) == len(edges), "the chain of the first cause is bold"
    assert {attrs["data-key"] for attrs in page.named("g", "rejected")} == {
        f"{one.cause} on {one.entity}" for one in report.rejected[: html.MOST_BOXES]
    }


def test_every_number_has_its_chart_and_its_query(made: dict[str, tuple[Report, Picture]]) -> None:
    report, picture = made["cooling_fault"]
    page = html.render(report, picture, "http://prometheus:9090/")
    text = Elements(page).text
    clock = next(one for one in picture.causes[0] if one.signal == "gpu_sm_clock")
    assert clock.band is not None
    assert clock.band.peers == 63
    onset = unix(report.causes[0].since)
    inside = clock.times > onset + 120.0
    assert float(np.nanmax(clock.values[inside])) < 1400.0 < float(np.nanmin(clock.band.low[inside]))
    assert float(np.nanmin(clock.values[clock.times < onset - 60.0])) > 1800.0
    for one in report.causes[0].evidence:
        assert one.text in text
        assert one.query in text
    assert page.count("http://prometheus:9090/graph?g0.expr=") == len(
        [one for one in report.causes[0].evidence if one.query]
    ) + len([one for _, charts in picture.jobs for one in charts if one.query])


def test_the_map_shows_where_it_is(made: dict[str, tuple[Report, Picture]]) -> None:
    _, picture = made["cooling_fault"]
    maps = {one.signal: one for one in picture.maps}
    assert set(maps) == {
        "rank_work_seconds", "rank_collective_wait_seconds", "gpu_sm_clock", "gpu_temperature", "cell_work_seconds",
    }  # fmt: skip
    for name, level in (("rank_work_seconds", 3), ("gpu_sm_clock", -3), ("rank_collective_wait_seconds", -3)):
        odd = [(one.name, one.level) for one in maps[name].squares if one.level]
        assert odd == [("node-07 gpu 1", level)], name
        assert len(maps[name].squares) == 64
    assert [one.name for one in maps["cell_work_seconds"].squares if one.level] == ["dp 57 pp 0"]


@pytest.mark.parametrize("made_by_hand", SAMPLES)
def test_a_report_alone_makes_a_page(made_by_hand: Callable[[], Report]) -> None:
    report = made_by_hand()
    page = html.render(report)
    text = Elements(page).text
    for cause in report.causes:
        assert cause.cause in text
        assert cause.action.text in text
    for one in report.rejected:
        assert one.why in text
    for warning in report.warnings:
        assert warning.splitlines()[0][:30] in text
    assert not re.search(r"<script|javascript:|@import|url\(", page)


def test_a_label_is_text_everywhere(made: dict[str, tuple[Report, Picture]]) -> None:
    report, picture = made["cooling_fault"]
    hostile = msgspec.convert(_poisoned(msgspec.to_builtins(report)), Report)
    assert hostile.causes[0].entity == EntityRef(kind="gpu", labels={"node": HOSTILE, "gpu": HOSTILE})
    maps = tuple(
        one._replace(ticks=(HOSTILE,) * len(one.ticks), squares=tuple(x._replace(name=HOSTILE) for x in one.squares))
        for one in picture.maps
    )
    charts = tuple(tuple(one._replace(whose=HOSTILE) for one in some) for some in picture.causes)
    page = html.render(hostile, Picture(charts, ((HOSTILE, charts[0]),), maps))
    assert "<script" not in page
    assert page.count("&lt;script&gt;") > 20
    parsed = Elements(page)
    assert HOSTILE in parsed.text
    assert not parsed.named("script")


def _poisoned(value: object, inside: str = "") -> object:
    """Put the hostile text into every label value."""
    if isinstance(value, dict):
        return {key: _poisoned(item, "labels" if key == "labels" else inside) for key, item in value.items()}
    if isinstance(value, list):
        return [_poisoned(item, inside) for item in value]
    return HOSTILE if inside == "labels" else value


@pytest.mark.parametrize("name", ["cooling_fault", "silent_data_skew", "healthy"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(
    browser: Browser,
    made: dict[str, tuple[Report, Picture]],
    tmp_path: Path,
    name: str,
    scheme: Literal["light", "dark"],
) -> None:
    path = tmp_path / "page.html"
    policy = re.compile(r"<meta http-equiv.*?>")  # axe is a script, which the page's own policy forbids
    path.write_text(policy.sub("", html.render(*made[name])), encoding="utf-8")
    page = browser.new_page(color_scheme=scheme)
    page.goto(path.as_uri())
    found = Axe().run(page).response["violations"]
    page.close()
    assert [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in {"serious", "critical"}] == []


def test_people_see_the_verdict_first(opened: Page) -> None:
    heading = opened.get_by_role("heading", level=1)
    assert "gpu_thermal_throttling on gpu node=node-07 gpu=1" in heading.inner_text()
    box = heading.bounding_box()
    assert box is not None
    assert box["y"] < 200
    assert opened.locator(".action").is_visible()
    assert opened.locator("svg.graph .node.cause").is_visible()


@pytest.mark.parametrize("width", [360, 1100])
def test_no_page_is_wider_than_its_window(opened: Page, width: int) -> None:
    opened.set_viewport_size({"width": width, "height": 800})
    assert opened.evaluate("document.documentElement.scrollWidth") <= width


def test_a_large_job_stays_small(made: dict[str, tuple[Report, Picture]]) -> None:
    report, picture = made["cooling_fault"]
    one = next(each for each in picture.maps if each.signal == "gpu_sm_clock")
    nodes = tuple(f"node-{number:04}" for number in range(1024))
    random = np.random.default_rng(1)
    squares = tuple(
        one.squares[0]._replace(
            column=column, row=row, name=f"{nodes[column]} gpu {row}", level=int(random.random() < 0.01)
        )
        for column in range(1024)
        for row in range(8)
    )
    large = one._replace(ticks=nodes, squares=squares)
    page = html.render(report, Picture(picture.causes, picture.jobs, (large,) * 5))
    assert len(page) < 3_000_000
    drawn = Elements(page)
    assert len(drawn.named("rect", "high1")) == 5 * sum(square.level for square in squares)
