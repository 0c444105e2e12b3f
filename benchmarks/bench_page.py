"""Time from a report of a large job to its page on a screen, against the time of the diagnosis itself.

A job of 8,192 GPUs with one hot GPU (as in `bench_diagnose.py`): what the page shows is chosen and drawn, written as HTML,
and opened in Debian's Chromium until all is laid out and the end of the page is in sight. Best of three each.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests")]

from bench_diagnose import Size, make_job, timed
from playwright.sync_api import Page, sync_playwright

from rca.diagnose import diagnose
from rca.load import load
from rca.picture import draw
from rca.render import html

FULL = Size(tp=8, pp=4, dp=256, samples=80, causes=1)
SMALL = Size(tp=8, pp=2, dp=40, samples=40, causes=1)
REPEATS = 3


def shown(page: Page, address: str) -> None:
    """Open a page, wait until all of it is laid out, and go to its end."""
    page.goto(address)
    page.locator("footer, main > :last-child").last.scroll_into_view_if_needed()


def main() -> None:
    """Print one line for each part, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--small", action="store_true", help="a small job, to see that it runs")
    given, _ = parser.parse_known_args()
    program = shutil.which("chromium")
    if program is None:
        sys.exit("chromium: not installed, apt-get install chromium")
    size, library = SMALL if given.small else FULL, load()
    snapshot = make_job(size, 1)[0].snapshot(library, before=False)
    report = diagnose(library, snapshot)
    judged = min(timed(lambda: diagnose(library, snapshot)) for _ in range(REPEATS))
    drawn = min(timed(lambda: draw(library, snapshot, report)) for _ in range(REPEATS))
    picture = draw(library, snapshot, report)
    written = min(timed(lambda: html.render(report, picture)) for _ in range(REPEATS))
    text = html.render(report, picture)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "report.html"
        path.write_text(text, encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        opened = min(timed(lambda: shown(page, path.as_uri())) for _ in range(REPEATS))
        maps = page.locator("svg.map:not(.key)").count()
        browser.close()
    whole = drawn + written + opened
    print(f"page of {size.gpus:,} ranks, {len(text) / 1000:.0f} kB, {maps} maps")
    print(f"drawn {drawn:.2f} s, written {written:.2f} s, opened {opened:.2f} s; diagnose() {judged:.2f} s")
    print(f"{whole:.2f} s in all, {whole / judged:.2f} of diagnose(); under 3 s: {'ok' if whole < 3.0 else 'missed'}")


if __name__ == "__main__":
    main()
