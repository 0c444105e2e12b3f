"""The pages of jobs: how far each is, whether it works and learns, and how it does against earlier runs."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from courses import course, noted
from own_server import NOW, Engine, backend, get, refused, report, running
from playwright.sync_api import Browser, Page
from servers import chromium
from test_pages import HOSTILE, PACE, opened

from rca.model import Progress
from rca.plain import stamp
from rca.webhook import Backend


@pytest.fixture
def works(tmp_path: Path) -> Backend:
    """Return a backend with an incident."""
    stands_on = backend(tmp_path, Engine())
    stands_on.archive.absorb(report(NOW), PACE)
    return stands_on


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start a browser."""
    with chromium() as started:
        yield started


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Open a page in a browser that runs no script."""
    with opened(browser, scripts=False) as one:
        yield one


def test_jobs_are_listed_with_how_far_they_are(page: Page, works: Backend) -> None:
    with running(works) as url:
        page.goto(f"{url}/jobs")
        assert page.locator("tbody tr").all_inner_texts() == ["ill\tllama-70b\t\t\t\t\t1\t"]
        noted(works.archive, [*course("llama-70b", NOW - 3300.0, 12), *course("moe", NOW - 86_400.0, 3)])
        noted(works.archive, course(HOSTILE, NOW - 900.0, 4))
        page.goto(f"{url}/incidents")
        page.get_by_role("link", name="Jobs").click()
        assert page.url == f"{url}/jobs"
        states = [row.split("\t")[:2] for row in page.locator("tbody tr").all_inner_texts()]
        assert states == [["ill", "llama-70b"], ["running", HOSTILE], ["silent", "moe"]]
        assert "\t5 d 7 h\t2.455\t3,400\t1\t2026-03-01 14:05:00" in page.locator("tbody tr").first.inner_text()
        assert page.get_by_label("Progress of llama-70b").get_attribute("value") == "783"
        page.get_by_role("link", name="1", exact=True).click()
        assert page.url == f"{url}/incidents?job=llama-70b&state=open"
        told = get(url, "/api/v1/jobs").json()["data"]
        assert [(one["job"], one["state"], one["incidents"]) for one in told] == [
            ("llama-70b", "ill", 1), (HOSTILE, "running", 0), ("moe", "silent", 0),
        ]  # fmt: skip
        assert told[0]["progress"]["step"] == 783
        rows = get(url, f"/api/v1/jobs/{quote(HOSTILE, safe='')}/progress").json()["data"]
        assert [row["step"] for row in rows] == [65, 130, 196, 261]
        assert refused(get(url, "/api/v1/jobs/nowhere/progress"))[0] == 404


def test_a_job_is_compared_with_its_earlier_runs(page: Page, tmp_path: Path) -> None:
    stands_on = backend(tmp_path, Engine())
    noted(stands_on.archive, course("a/<b>", NOW - 86_400.0, 60, rate=3550.0, worse=0.04))
    noted(stands_on.archive, course("a/<b>", NOW - 43_200.0 + 300.0, 144))
    with running(stands_on) as url:
        page.goto(f"{url}/jobs/a/%3Cb%3E")
        assert page.get_by_text("No incident is open.").is_visible()
        assert page.get_by_label("Progress", exact=True).get_attribute("value") == "9391"
        facts = dict(zip(page.locator("dt").all_inner_texts(), page.locator("dd").all_inner_texts(), strict=True))
        assert facts["Step"] == "9,391 of 100,000"
        assert facts["To go"] == "about 4 d 20 h, until 2026-03-06 09:51 at this pace"
        assert page.get_by_text("The tensor pipes work 42 % of the time").is_visible()
        assert page.get_by_text("The loss falls: ").is_visible()
        assert page.get_by_text("At 16.4 B tokens: loss 2.2").inner_text().endswith("throughput 4 % lower.")
        assert page.locator("tbody tr").count() == 2
        assert page.locator("svg.chart .own").count() == page.locator("svg.chart .usual").count() == 2
        assert "over tokens: the present run" in (page.locator("svg.chart").first.get_attribute("aria-label") or "")
        path = page.get_by_role("link", name="progress").get_attribute("href")
        assert path == "../../api/v1/jobs/a%2F%3Cb%3E/progress"
        assert len(get(url, path.removeprefix("../..")).json()["data"]) == 204


def test_figures_that_cannot_be_cost_no_page(tmp_path: Path) -> None:
    stands_on = backend(tmp_path, Engine())
    rows = [Progress(job="a", at=stamp(NOW), step=1, target_step=2**52, step_seconds=1e300, eta_seconds=1e300)]
    noted(stands_on.archive, [*rows, Progress(job="a", at=stamp(NOW + 600.0), loss=1e300, busy=-1.0)])
    noted(stands_on.archive, [Progress(job="b", at=stamp(NOW), step=5, target_step=5, eta_seconds=0.0)])
    noted(stands_on.archive, [Progress(job="..", at=stamp(NOW), eta_seconds=1e300)])
    with running(stands_on) as url:
        for path in ("/jobs", "/jobs/a", "/jobs/b"):
            assert get(url, path).status_code == 200
        assert '<td class="short">done</td>' in get(url, "/jobs").text
        assert refused(get(url, "/jobs/c"))[0] == 404
