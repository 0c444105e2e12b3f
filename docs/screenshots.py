"""Take the pictures of pages that the documents show, with Debian's Chromium: `make screenshots`."""

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import ViewportSize, sync_playwright

from rca.diagnose import diagnose
from rca.load import load
from rca.model import Window
from rca.picture import draw
from rca.render import html
from rca.sources.scenario import ScenarioSource

DOCS = Path(__file__).resolve().parent
SIZE: ViewportSize = {"width": 1000, "height": 1000}


def page(scenario: str) -> str:
    """Return the page of a scenario's report."""
    library, source = load(), ScenarioSource(DOCS.parent / "scenarios" / f"{scenario}.yaml")
    end = source.latest()
    snapshot = source.snapshot(library, Window(end - 900.0, end))
    report = diagnose(library, snapshot)
    return html.render(report, draw(library, snapshot, report))


def main() -> None:
    """Write docs/images."""
    program = shutil.which("chromium")
    if program is None:
        sys.exit("chromium: not installed, apt-get install chromium")
    (DOCS / "images").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        path = Path(folder) / "report.html"
        path.write_text(page("two_faults"), encoding="utf-8")
        opened = browser.new_page(viewport=SIZE)
        opened.goto(path.as_uri())
        opened.screenshot(path=DOCS / "images" / "report.png")
        browser.close()


if __name__ == "__main__":
    main()
