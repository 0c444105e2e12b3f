"""The pages of the server: what people see of incidents, in a real browser, and with no script at all."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
import requests
from axe_playwright_python.sync_playwright import Axe
from courses import course, noted
from made_up import SCENARIOS
from own_server import NOW, Engine, Slow, backend, get, refused, running
from playwright.sync_api import Browser, Page
from read_once import load
from servers import chromium
from test_incidents import ILL

from rca.archive import Alert, Archive
from rca.config import Serving
from rca.diagnose import diagnose
from rca.errors import SourceError, UsageError
from rca.incidents import Note, Pace
from rca.library import Library
from rca.metrics import Look
from rca.model import EntityRef, Report, Window
from rca.plain import stamp, unix
from rca.serve.pages import MOST_NOTES
from rca.serve.paper import POLICY
from rca.sources import recording
from rca.sources.scenario import ScenarioSource
from rca.webhook import Backend, Question

SCRIPT = '<script src="static/live.js" defer></script>'
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
    """Start a browser."""
    with chromium() as started:
        yield started


@contextmanager
def opened(browser: Browser, *, scripts: bool) -> Iterator[Page]:
    """Open a page; nothing may be asked of anybody else than the server, or complained about."""
    context = browser.new_context(java_script_enabled=scripts)
    one = context.new_page()
    said: list[str] = []
    one.on("console", lambda message: said.append(message.text))
    one.on("pageerror", lambda error: said.append(str(error)))
    one.on("request", lambda asked: None if asked.url.startswith("http://127.0.0.1:") else said.append(asked.url))
    yield one
    context.close()
    assert said == []


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Open a page in a browser that runs no script."""
    with opened(browser, scripts=False) as one:
        yield one


@pytest.fixture
def alive(browser: Browser) -> Iterator[Page]:
    """Open a page in a browser that runs ours."""
    with opened(browser, scripts=True) as one:
        yield one


def unscripted(text: str) -> str:
    """Return a page without our one script."""
    return text.replace(SCRIPT, "")


def test_from_the_list_to_the_incident_with_its_drawings(url: str, page: Page, works: Backend) -> None:
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


def test_the_list_is_filtered_and_can_be_bookmarked(url: str, page: Page) -> None:
    page.goto(f"{url}/incidents")
    page.get_by_label("node").fill("node-07")
    page.get_by_label("state").select_option("open")
    page.get_by_role("button", name="Filter").click()
    assert page.locator("tbody tr").count() == 1
    page.goto(f"{page.url.replace('node-07', 'node-08')}")
    assert page.locator("tbody tr").count() == 0
    assert page.get_by_label("node").input_value() == "node-08"
    assert page.get_by_text("None that fits.").is_visible()


@pytest.mark.parametrize(
    "path",
    [
        "/incidents",
        "/incidents/{id}",
        "/reports/{report}",
        "/jobs",
        "/jobs/llama-70b",
        "/rules",
        "/diagnose",
        "/status",
    ],
)
def test_pages_keep_to_the_policy_and_to_the_rules_of_access(
    browser: Browser, url: str, works: Backend, path: str
) -> None:
    [incident] = works.archive.incidents()
    works.archive.note(incident.id, Note(at=NOW, who="ops", verdict="confirmed", text="a fan stood still"), 9)
    noted(works.archive, [*course("llama-70b", NOW - 86_400.0, 40), *course("llama-70b", NOW - 43_200.0, 30)])
    address = path.format(id=incident.id, report=incident.report)
    answer = get(url, address)
    assert answer.status_code == 200
    assert answer.headers["Content-Security-Policy"] == POLICY
    assert answer.headers["Content-Type"].startswith("text/html")
    assert "<script" not in unscripted(answer.text)
    assert (SCRIPT in answer.text) == (path == "/incidents")
    context = browser.new_context(bypass_csp=True)  # axe is a script, which our policy forbids
    one = context.new_page()
    one.goto(url + address)
    found = Axe().run(one).response["violations"]
    context.close()
    assert [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in {"serious", "critical"}] == []


def other(number: int) -> Report:
    """Return the report of an incident on another node."""
    place = EntityRef("gpu", {"node": f"node-2{number}", "gpu": "0"})
    return msgspec.structs.replace(ILL, causes=[msgspec.structs.replace(ILL.causes[0], entity=place)])


def test_the_list_keeps_itself_up_to_date(url: str, alive: Page, works: Backend) -> None:
    alive.goto(f"{url}/incidents?state=open")
    assert alive.locator("tbody tr").count() == 1
    alive.get_by_text("The list keeps itself up to date.").wait_for()
    writer = Archive(str(works.archive._engine.url))  # as another process would
    writer.absorb(other(1), PACE)
    writer.close()
    alive.get_by_role("cell", name="gpu node=node-21 gpu=0").wait_for(timeout=10_000)
    works.archive.note(works.archive.incidents()[0].id, Note(at=NOW, verdict="rejected"), 9)
    alive.get_by_text("open, rejected").wait_for(timeout=10_000)
    assert alive.url == f"{url}/incidents?state=open"
    assert alive.locator("tbody tr").count() == len(works.archive.incidents())


def test_a_server_that_ends_keeps_nobody_listening(works: Backend) -> None:
    with running(works) as url:
        answer = requests.get(f"{url}/api/v1/events", stream=True, timeout=10)
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        lines = answer.iter_lines(decode_unicode=True)
        assert (
            next(line for line in lines if line.startswith("data:"))[6:] == f'{{"version":"{works.archive.version()}"}}'
        )
        began = time.monotonic()
    assert time.monotonic() - began < 5.0
    assert "data:" not in "".join(lines)


def test_a_cause_is_confirmed_and_stays_so(page: Page, tmp_path: Path, library: Library, works: Backend) -> None:
    [incident] = works.archive.incidents()
    with running(works) as url:
        page.goto(f"{url}/incidents/{incident.id}")
        page.get_by_label("right").check()
        page.get_by_label("Note").fill(f"a fan stood still\n{HOSTILE}")
        page.get_by_role("button", name="Keep").click()
        assert page.url == f"{url}/incidents/{incident.id}#notes"
    again = backend(tmp_path, Engine(), library)
    with running(again) as url:
        page.goto(f"{url}/incidents/{incident.id}")
        assert page.get_by_text("cause confirmed").count() == 2
        assert page.locator("#notes .note").inner_text() == f"a fan stood still\n{HOSTILE}"
        told = get(url, f"/api/v1/incidents/{incident.id}").json()["data"]
        assert told["verdict"] == "confirmed"
        [note] = told["notes"]
        assert (note["who"], note["at"], note["text"].split()[0]) == ("", "2026-03-01T14:05:00Z", "a")
        page.get_by_label("wrong").check()
        page.get_by_role("button", name="Keep").click()
        page.goto(f"{url}/incidents")
        assert page.get_by_text("open, rejected").is_visible()


def test_a_note_says_who_wrote_it(tmp_path: Path, works: Backend) -> None:
    (tmp_path / "password").write_text("secret")
    [incident] = works.archive.incidents()
    told = {"verdict": "rejected", "note": "no"}
    with running(works, Serving(username="ops", password_file=str(tmp_path / "password"))) as url:
        address, login = f"{url}/incidents/{incident.id}", ("ops", "secret")
        assert requests.post(address, told, timeout=10).status_code == 401
        answer = requests.post(address, told, auth=login, timeout=10, allow_redirects=False)
        assert answer.status_code == 303
        answer = requests.post(address, told, auth=login, timeout=10, headers={"Origin": "http://elsewhere"})
        assert refused(answer)[0] == 403
        assert [(one.who, one.verdict, one.text) for one in works.archive.notes(incident.id)] == [
            ("ops", "rejected", "no")
        ]


def test_what_is_no_note_is_refused(url: str, works: Backend) -> None:
    [incident] = works.archive.incidents()
    address = f"{url}/incidents/{incident.id}"
    for odd in ({"verdict": "odd"}, {"note": "x" * 4001}, b"\xff", {f"n{n}": "1" for n in range(99)}):
        assert refused(requests.post(address, odd, timeout=10))[0] == 400
    assert refused(requests.post(f"{url}/incidents/nowhere", {"note": "x"}, timeout=10))[0] == 404
    assert requests.post(address, {"note": " ", "verdict": ""}, timeout=10).status_code == 200
    assert works.archive.notes(incident.id) == []
    for number in range(MOST_NOTES):
        works.archive.note(incident.id, Note(at=NOW, text=str(number)), MOST_NOTES)
    assert refused(requests.post(address, {"note": "x"}, timeout=10))[0] == 400


def test_a_recording_can_be_fetched(url: str, works: Backend, seen: tuple[Report, bytes]) -> None:
    [incident] = works.archive.incidents()
    assert f"../api/v1/recordings/{incident.report}" in get(url, f"/incidents/{incident.id}").text
    answer = get(url, f"/api/v1/recordings/{incident.report}")
    assert (answer.headers["Content-Type"], answer.content) == ("application/zip", seen[1])
    assert refused(get(url, "/api/v1/recordings/nowhere"))[0] == 404


def test_a_job_is_shown_with_its_progress_and_its_incidents(url: str, page: Page, works: Backend) -> None:
    page.goto(f"{url}/incidents")
    page.get_by_role("link", name="llama-70b").click()
    assert page.url == f"{url}/jobs/llama-70b"
    assert page.get_by_role("heading", name="How job llama-70b gets on").is_visible()
    assert page.locator("svg.chart").count() > 2
    assert page.locator("svg.map:not(.key)").count() == 5
    page.get_by_role("link", name="gpu_thermal_throttling on").click()
    [incident] = works.archive.incidents()
    assert page.url == f"{url}/incidents/{incident.id}"
    assert refused(get(url, "/jobs/nowhere"))[0] == 404
    assert refused(get(url, "/jobs/"))[0] == 404
    works.archive.record(incident.report, incident.last, b"no zip")
    assert "gpu_thermal_throttling" in get(url, "/jobs/llama-70b").text


def test_a_job_of_any_name_has_a_page(page: Page, tmp_path: Path, library: Library, seen: tuple[Report, bytes]) -> None:
    told = msgspec.json.encode(seen[0]).replace(b'"llama-70b"', msgspec.json.encode("a/b ?#%<i>"))
    stands_on = backend(tmp_path, Engine(), library)
    stands_on.archive.absorb(msgspec.json.decode(told, type=Report), PACE)
    with running(stands_on) as url:
        page.goto(f"{url}/incidents")
        page.get_by_role("link", name="a/b").click()
        assert page.get_by_role("heading", level=1).inner_text() == "a/b ?#%<i>"
        assert page.get_by_text("No recording of it is kept").is_visible()
        page.get_by_role("link", name="Rules").click()
        assert page.url == f"{url}/rules"
        page.goto(f"{url}/jobs/a/b%20%3F%23%25%3Ci%3E")
        page.get_by_role("link", name="Status").click()
        assert page.url == f"{url}/status"


def test_rules_are_told_with_when_they_fired_and_what_they_lack(url: str, page: Page, works: Backend) -> None:
    page.goto(f"{url}/rules")
    assert page.get_by_text("Nobody has looked yet").is_visible()
    works.metrics.saw(Look(3.0, 0.0, {"nic_down": ("nic_state", "nic_errors")}))
    works.metrics.evaluated(NOW - 60.0, 1.5, 0.0)
    page.goto(f"{url}/rules")
    assert page.locator("tbody tr").count() == len(works.library().rules)
    assert "not judged: no data: nic_state, nic_errors" in page.locator("#nic_down").inner_text()
    assert "never" in page.locator("#nic_down").inner_text()
    row = page.locator("#gpu_thermal_throttling")
    assert "1 in all" in row.inner_text()
    row.get_by_role("link").click()
    assert page.url == f"{url}/incidents?cause=gpu_thermal_throttling"
    assert page.locator("tbody tr").count() == 1


def test_a_diagnosis_is_asked_for_and_shown(page: Page, tmp_path: Path, library: Library) -> None:
    engine = Engine()
    with running(backend(tmp_path, engine, library)) as url:
        page.goto(f"{url}/incidents")
        page.get_by_role("link", name="Diagnose").click()
        page.get_by_label("job").fill("llama-70b")
        page.get_by_label("at").fill("-10m")
        page.get_by_role("button", name="Diagnose").click()
        assert engine.asked == [Question(NOW - 600.0, ("llama-70b",))]
        assert "gpu_thermal_throttling" in page.get_by_role("heading", level=1).inner_text()
        assert page.get_by_label("job").input_value() == "llama-70b"
        assert page.locator("svg.graph").count() == 1


def test_what_is_wrong_with_a_question_is_said_in_words(tmp_path: Path, library: Library) -> None:
    engine = Engine(errors=[SourceError("prometheus: no <answer>"), UsageError("no such job: 'x'")])
    with running(backend(tmp_path, engine, library), Serving(max_diagnoses=1)) as url:
        for told, status, said in (
            ({"at": "soon"}, 400, "at: not a time"),
            ({"job": "x"}, 503, "prometheus: no &lt;answer&gt;"),
            ({"job": "x"}, 400, "no such job"),
        ):
            answer = requests.post(f"{url}/diagnose", told, timeout=10)
            assert answer.status_code == status
            assert said in answer.text
            assert 'role="alert"' in answer.text
        assert engine.asked == [Question(None, ("x",))] * 2


def test_diagnoses_of_people_and_programs_are_few_together(tmp_path: Path, library: Library) -> None:
    slow = Slow()
    with running(backend(tmp_path, slow, library), Serving(max_diagnoses=1)) as url:
        first = threading.Thread(target=requests.post, args=(f"{url}/diagnose", {}), kwargs={"timeout": 10})
        first.start()
        assert slow.entered.acquire(timeout=10)
        answer = requests.post(f"{url}/diagnose", {}, timeout=10)
        assert (answer.status_code, "1 diagnoses are under way" in answer.text) == (503, True)
        assert requests.post(f"{url}/api/v1/diagnose", timeout=10).status_code == 503
        slow.gone.set()
        first.join(10)


def test_the_state_of_source_and_server_is_told(url: str, page: Page, works: Backend) -> None:
    def told() -> dict[str, str]:
        page.goto(f"{url}/status")
        return dict(zip(page.locator("dt").all_inner_texts(), page.locator("dd").all_inner_texts(), strict=True))

    assert told()["Last look"] == "none yet"
    works.archive.accept([Alert(fingerprint="1", status="firing", labels={}, annotations={}, starts=NOW)], NOW)
    works.archive.claim("another", NOW)
    works.metrics.saw(Look(42.0, 0.5, {"nic_down": ("nic_state",)}))
    works.metrics.evaluated(NOW - 60.0, 1.5, 0.0)
    facts = told()
    assert facts["Last look"] == "2026-03-01 14:04:00"
    assert (facts["Newest sample"], facts["Rules without data"], facts["Alerts that wait"]) == ("42.0 s old", "1", "1")
    assert facts["Series of no known place"] == "50 %"
    assert facts["Alertmanagers"] == "none"
    works.metrics.failed(SourceError(f"no answer {HOSTILE}"))
    assert told()["How it went"] == f"no answer {HOSTILE}"


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
    noted(stands_on.archive, [*course(HOSTILE, NOW - 7200.0, 9), *course(HOSTILE, NOW - 3600.0, 5)])
    with running(stands_on) as url:
        for path in (
            "/incidents",
            "/jobs",
            f"/incidents/{incident.id}",
            f"/reports/{incident.report}",
            "/incidents?job=%3Cscript%3E",
            f"/jobs/{quote(HOSTILE, safe='')}",
            "/diagnose?job=%3Cscript%3E",
        ):
            text = unscripted(get(url, path).text)
            assert "<script" not in text
            assert "&lt;script&gt;" in text


def test_who_has_no_login_sees_no_page(tmp_path: Path, library: Library) -> None:
    (tmp_path / "token").write_text("secret\n")
    with running(backend(tmp_path, Engine(), library), Serving(token_file=str(tmp_path / "token"))) as url:
        answer = get(url, "/incidents")
        assert refused(answer)[0] == 401
        assert answer.headers["WWW-Authenticate"].startswith("Basic")
        assert get(url, "/incidents", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_people_are_told_on_a_page_what_cannot_be_shown(page: Page, works: Backend) -> None:
    with running(works) as base:
        programs = get(base, "/incidents/nowhere")
        asked = requests.get(f"{base}/incidents/<b>nowhere", headers={"Accept": "text/html"}, timeout=10)
        api = requests.get(f"{base}/api/v1/incidents/nowhere", headers={"Accept": "text/html"}, timeout=10)
        wrong = requests.post(f"{base}/", headers={"Accept": "text/html"}, timeout=10)
        page.set_content(asked.text)
        assert page.get_by_role("heading", level=1).inner_text() == "This cannot be shown"
        assert page.get_by_text("there is no such incident.").is_visible()
        assert page.locator("nav a").first.get_attribute("href") == "../incidents"
    assert programs.headers["Content-Type"] == api.headers["Content-Type"] == "application/json"
    assert asked.status_code == 404
    assert asked.headers["Content-Security-Policy"] == POLICY
    assert wrong.status_code == 405
    assert "405" in wrong.text
    assert set(wrong.headers["Allow"].split(", ")) == {"GET", "HEAD"}


def test_the_reports_of_an_incident_are_listed_over_time(
    page: Page, works: Backend, seen: tuple[Report, bytes]
) -> None:
    first = unix(seen[0].window.end)
    window = msgspec.structs.replace(seen[0].window, end=stamp(first + 30.0))
    works.archive.absorb(msgspec.structs.replace(seen[0], window=window), PACE)
    [incident] = works.archive.incidents()
    with running(works) as url:
        page.goto(f"{url}/incidents/{incident.id}")
        page.get_by_text("Reports that name it").click()
        rows = page.locator("details tbody tr")
        assert rows.count() == 2
        rows.first.get_by_role("link").click()
        assert page.url == f"{url}/reports/{incident.latest}"
