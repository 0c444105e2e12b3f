"""The pages of the server: what people see of incidents, in a real browser, and with no script at all."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import msgspec
import pytest
from axe_playwright_python.sync_playwright import Axe
from made_up import SCENARIOS
from own_server import Engine, backend, get, refused, running
from playwright.sync_api import Browser, Page, sync_playwright
from servers import binary

from rca.config import Serving
from rca.diagnose import diagnose
from rca.incidents import Pace
from rca.library import Library
from rca.load import load
from rca.model import Report, Window
from rca.serve.pages import POLICY
from rca.sources import recording
from rca.sources.scenario import ScenarioSource
from rca.webhook import Backend

HOSTILE = "<script>alert(1)</script>"
PACE = Pace(0.0, 300.0)


@pytest.fixture(scope="module")
def library() -> Library:
    return load()


@pytest.fixture(scope="module")
def seen(library: Library) -> tuple[Report, bytes]:
    """Diagnose the cooling fault, and record what was seen."""
    source = ScenarioSource(SCENARIOS / "cooling_fault.yaml")
    window = Window(source.latest() - 900.0, source.latest())
    snapshot = source.snapshot(library, window)
    kept = BytesIO()
    recording.pour(kept, snapshot, window)
    return diagnose(library, snapshot), kept.getvalue()


@pytest.fixture
def works(tmp_path: Path, library: Library, seen: tuple[Report, bytes]) -> Backend:
    """Return a backend with an incident whose recording is kept."""
    stands_on = backend(tmp_path, Engine(), library)
    [incident] = stands_on.archive.absorb(seen[0], PACE)
    stands_on.archive.record(incident.report, incident.last, seen[1])
    return stands_on


@pytest.fixture
def url(works: Backend) -> Iterator[str]:
    with running(works) as base:
        yield base


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = binary("chromium")
    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield one
        one.close()


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    """Open a page in a browser that runs no script; nothing may be asked of anybody else, or complained about."""
    context = browser.new_context(java_script_enabled=False)
    opened = context.new_page()
    said: list[str] = []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("request", lambda request: said.append(request.url) if not request.url.startswith(url) else None)
    yield opened
    context.close()
    assert said == []


def test_from_the_list_to_the_incident_with_its_drawings(page: Page, url: str, works: Backend) -> None:
    page.goto(url)
    assert page.url == f"{url}/incidents"
    page.get_by_role("link", name="gpu_thermal_throttling").click()
    [incident] = works.archive.incidents()
    assert page.url == f"{url}/incidents/{incident.id}"
    assert "gpu_thermal_throttling on gpu node=node-07 gpu=1" in page.get_by_role("heading", level=1).inner_text()
    assert page.locator("svg.graph .node.cause").count() == 1
    assert page.locator("svg.chart").count() > 5
    assert page.locator("svg.map:not(.key)").count() == 5
    assert page.get_by_text(f"{incident.gpu_hours_lost:,.1f}", exact=True).is_visible()
    page.get_by_role("link", name="report", exact=True).click()
    assert page.url == f"{url}/api/v1/reports/{incident.report}"


def test_the_list_is_filtered_and_can_be_bookmarked(page: Page, url: str) -> None:
    page.goto(f"{url}/incidents")
    page.get_by_label("node").fill("node-07")
    page.get_by_label("state").select_option("open")
    page.get_by_role("button", name="Filter").click()
    assert page.locator("tbody tr").count() == 1
    page.goto(f"{page.url.replace('node-07', 'node-08')}")
    assert page.locator("tbody tr").count() == 0
    assert page.get_by_label("node").input_value() == "node-08"
    assert page.get_by_text("None that fits.").is_visible()


@pytest.mark.parametrize("path", ["/incidents", "/incidents/{id}", "/reports/{report}"])
def test_pages_keep_to_the_policy_and_to_the_rules_of_access(
    browser: Browser, url: str, works: Backend, path: str
) -> None:
    [incident] = works.archive.incidents()
    answer = get(url, path.format(id=incident.id, report=incident.report))
    assert answer.status_code == 200
    assert answer.headers["Content-Security-Policy"] == POLICY
    assert answer.headers["Content-Type"].startswith("text/html")
    assert "<script" not in answer.text
    context = browser.new_context(bypass_csp=True)  # axe is a script, which our policy forbids
    opened = context.new_page()
    opened.set_content(answer.text.replace("http-equiv", "data-was"))
    found = Axe().run(opened).response["violations"]
    context.close()
    assert [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in {"serious", "critical"}] == []


def test_an_incident_is_shown_without_what_is_no_longer_kept(url: str, works: Backend) -> None:
    [incident] = works.archive.incidents()
    with works.archive._writing() as connection:
        connection.exec_driver_sql("delete from recordings")
    text = get(url, f"/incidents/{incident.id}").text
    assert 'class="graph"' in text
    assert 'class="chart"' not in text
    with works.archive._writing() as connection:
        connection.exec_driver_sql("delete from reports")
    text = get(url, f"/incidents/{incident.id}").text
    assert "The report that opened it is no longer kept." in text
    assert "GPU hours lost" in text


def test_a_damaged_recording_costs_the_drawings_only(url: str, works: Backend) -> None:
    [incident] = works.archive.incidents()
    works.archive.record(incident.report, incident.last, b"no zip")
    answer = get(url, f"/incidents/{incident.id}")
    assert answer.status_code == 200
    assert 'class="graph"' in answer.text
    assert 'class="chart"' not in answer.text


def test_what_is_not_there_is_said(url: str) -> None:
    assert refused(get(url, "/incidents/nowhere"))[0] == 404
    assert refused(get(url, "/reports/nowhere"))[0] == 404


def test_a_label_is_text_on_every_page(tmp_path: Path, library: Library, seen: tuple[Report, bytes]) -> None:
    told = msgspec.json.encode(seen[0]).replace(b'"node-07"', msgspec.json.encode(HOSTILE))
    told = told.replace(b'"llama-70b"', msgspec.json.encode(HOSTILE))
    stands_on = backend(tmp_path, Engine(), library)
    [incident] = stands_on.archive.absorb(msgspec.json.decode(told, type=Report), PACE)
    with running(stands_on) as url:
        for path in (
            "/incidents",
            f"/incidents/{incident.id}",
            f"/reports/{incident.report}",
            "/incidents?job=%3Cscript%3E",
        ):
            text = get(url, path).text
            assert "<script" not in text
            assert "&lt;script&gt;" in text


def test_who_has_no_login_sees_no_page(tmp_path: Path, library: Library) -> None:
    (tmp_path / "token").write_text("secret\n")
    with running(backend(tmp_path, Engine(), library), Serving(token_file=str(tmp_path / "token"))) as url:
        answer = get(url, "/incidents")
        assert refused(answer)[0] == 401
        assert answer.headers["WWW-Authenticate"].startswith("Basic")
        assert get(url, "/incidents", headers={"Authorization": "Bearer secret"}).status_code == 200
