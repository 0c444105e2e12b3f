"""Take the pictures of pages that the documents show, with Debian's Chromium: `make screenshots`."""

import io
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests")]

import msgspec
from courses import course, noted
from playwright.sync_api import ViewportSize, sync_playwright

from rca.archive import Archive, Filter
from rca.config import Serving, Settings
from rca.diagnose import diagnose
from rca.errors import UsageError
from rca.incidents import Note, Pace
from rca.library import Library
from rca.load import load
from rca.metrics import Metrics
from rca.model import Report, ReportWindow, Snapshot, Window
from rca.picture import draw
from rca.plain import stamp, unix
from rca.render import html
from rca.serve.server import server
from rca.sources import recording
from rca.sources.scenario import ScenarioSource
from rca.webhook import Answer, Backend, Question

DOCS = Path(__file__).resolve().parent
SIZE: ViewportSize = {"width": 1000, "height": 1000}
OPEN, FIRST, OVER = "two_faults", "gpu_thermal_throttling", ("rank_stuck", "slow_local_disk")
"""The scenario whose incidents are open, the cause of the one that is shown, and the scenarios that came before."""


class Seen(NamedTuple):
    """A scenario as it was diagnosed."""

    report: Report
    snapshot: Snapshot
    window: Window

    def poured(self) -> bytes:
        """Return its recording."""
        body = io.BytesIO()
        recording.pour(body, self.snapshot, self.window)
        return body.getvalue()


def see(library: Library, scenario: str) -> Seen:
    """Diagnose a scenario."""
    source = ScenarioSource(DOCS.parent / "scenarios" / f"{scenario}.yaml")
    end = source.latest()
    window = Window(end - 900.0, end)
    snapshot = source.snapshot(library, window)
    return Seen(diagnose(library, snapshot), snapshot, window)


def moved(report: Report, days: float) -> Report:
    """Return a report as if it had been made so many days later."""
    ends = [stamp(unix(time) + days * 86400.0) for time in (report.window.start, report.window.end)]
    return msgspec.structs.replace(report, window=ReportWindow(*ends, report.window.step_seconds))


def stand(folder: Path, library: Library, shown: Seen) -> Backend:
    """Return what the server stands on: an archive with incidents, some of them over."""
    archive = Archive(f"sqlite:///{folder / 'rca.db'}")
    at = unix(shown.report.window.end)
    for days, scenario in enumerate(OVER, 2):
        past = see(library, scenario).report
        archive.absorb(moved(past, -days), Pace(0.0, 0.0))
        archive.absorb(moved(msgspec.structs.replace(past, status="healthy", causes=[]), 0.1 - days), Pace(0.0, 0.0))
    for one in archive.absorb(shown.report, Pace(0.0, 0.0)):
        archive.record(one.report, one.last, shown.poured())
        if one.cause == FIRST:
            archive.note(one.id, Note(at=at + 240.0, who="mika", verdict="confirmed", text="The fan has stopped."), 100)

    job = shown.report.jobs[0]
    noted(archive, course(job, at - 5 * 86400.0, 800, worse=0.03, rate=3300.0))
    noted(archive, course(job, at - 2 * 86400.0, 576))

    def ask(_question: Question, _keep: bool) -> Answer:
        raise UsageError("nothing is asked here")

    settings = Settings()
    return Backend(
        archive, ask, lambda: None, lambda: None, lambda: library, lambda: settings, Metrics(at), lambda: at
    )  # fmt: skip


@contextmanager
def running(backend: Backend) -> Iterator[str]:
    """Run the server, and yield its address."""
    own = server(backend, Serving())
    with socket.create_server(("127.0.0.1", 0)) as ear:
        thread = threading.Thread(target=own.run, kwargs={"sockets": [ear]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{ear.getsockname()[1]}"
        finally:
            own.should_exit = True
            thread.join()


def main() -> None:
    """Write docs/images."""
    program = shutil.which("chromium")
    if program is None:
        sys.exit("chromium: not installed, apt-get install chromium")
    images, library = DOCS / "images", load()
    images.mkdir(exist_ok=True)
    shown = see(library, OPEN)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)
        path = Path(folder) / "report.html"
        path.write_text(html.render(shown.report, draw(library, shown.snapshot, shown.report)), encoding="utf-8")
        page.goto(path.as_uri())
        page.screenshot(path=images / "report.png")
        backend = stand(Path(folder), library, shown)
        [newest] = backend.archive.incidents(Filter(cause=FIRST))
        with running(backend) as url:
            for name, address in (
                ("incidents", "incidents"), ("incident", f"incidents/{newest.id}"), ("job", f"jobs/{newest.job}"),
                ("rules", "rules"),
            ):  # fmt: skip
                page.goto(f"{url}/{address}")
                page.screenshot(path=images / f"{name}.png")
        backend.archive.close()
        browser.close()


if __name__ == "__main__":
    main()
