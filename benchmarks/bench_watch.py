"""Time of a tick of `rca watch`, against the time that Prometheus' own ruler takes for forty composite alert rules.

8,192 GPUs on 1,024 nodes, 24 signals, in a Prometheus on the same machine. First the ruler works alone, then `vmalert`
on the same server, then ticks: one in health, where a glance shows nothing, and one in which a GPU is ill and all is
read and weighed, both with the rolling window warm. Ticks ask at times of our choice, rulers ask for the present.
"""

import argparse
import multiprocessing
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests")]

import composite
import requests
import structlog
from cluster import SIGNALS, Shape, make, write
from servers import backfill, binary, free_port, prometheus, running, serving

from rca.archive import Archive
from rca.config import Server, Settings
from rca.load import load
from rca.metrics import Metrics
from rca.model import seconds
from rca.sources.assemble import Deployment
from rca.sources.labels import Pool
from rca.sources.prometheus import PrometheusStore
from rca.watch import Eyes, Rules, Watch

FULL = Shape(nodes=1024, pp=8)
SMALL = Shape(nodes=16, pp=2)
DURATION, FAULT = "26m", "18m"
HEALTHY, ILL = 17 * 60.0, 23 * 60.0
"""Seconds after the beginning at which the first tick in health, and the first tick in illness, takes place."""
AHEAD = 8 * 60.0
"""So much of the data lies ahead of the start: it is loaded, and the rulers have worked, before it is over."""
INTERVAL = 30.0
CAUSE = "gpu_thermal_throttling"
TARGETS = {"healthy": 0.25, "diagnosing": 1.5}
SETTLED = 3
"""So many cycles of a ruler are waited for; the quickest since the first counts."""


@dataclass
class Present:
    """The time that a tick takes for the present."""

    time: float


class Placed(PrometheusStore):
    """A store of a real server whose present is of our choice."""

    def __init__(self, server: Server, present: Present, pool: Pool | None) -> None:
        super().__init__(server, pool)
        self._present = present

    def now(self) -> float:
        """Return the time of our choice."""
        return self._present.time


def figures(url: str, name: str) -> dict[str, float]:
    """Return the values of a metric of a server, by what stands in the braces."""
    text = requests.get(f"{url}/metrics", timeout=60).text
    found = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE)
    return {labels: float(value) for labels, value in found}


def quickest(read: Callable[[], tuple[float, float]], patience: float) -> float:
    """Watch a ruler for some cycles and return its quickest; `read` gives the cycles done and the length of the last."""
    end, seen, cycles = time.monotonic() + patience, [], 0.0
    while len(seen) < SETTLED:
        if time.monotonic() > end:
            raise SystemExit(f"the ruler did not finish {SETTLED} cycles within {patience:.0f} s")
        time.sleep(0.2)
        done, last = read()
        if done > cycles:
            cycles = done
            seen.append(last)
    return min(seen)


def ruler(url: str) -> tuple[float, float]:
    """Read how many cycles Prometheus' own ruler has done, and how long the last took in seconds."""
    done = sum(figures(url, "prometheus_rule_group_iterations_total").values())
    last = sum(figures(url, "prometheus_rule_group_last_duration_seconds").values())
    return (done if last > 0 else 0.0), last


class Cycles:
    """Reads the cycles of a vmalert off the sum and count of their lengths."""

    def __init__(self, url: str) -> None:
        self.url, self.before = url, (0.0, 0.0)

    def read(self) -> tuple[float, float]:
        """Return how many there were, and the mean length of those since the last reading."""
        total = sum(figures(self.url, "vmalert_iteration_duration_seconds_sum").values())
        count = sum(figures(self.url, "vmalert_iteration_duration_seconds_count").values())
        new = (total - self.before[0]) / max(count - self.before[1], 1.0)
        if count > self.before[1]:
            self.before = total, count
        return count, new


@contextmanager
def vmalert(rules: Path, source: str) -> Iterator[str]:
    """Run a vmalert over rules and yield its URL; its alerts go to a server that throws them away."""
    port = free_port()
    with serving(lambda request: request.reply(200, b"")) as sink, rules.with_suffix(".log").open("wb") as log:
        command = [
            binary("vmalert"), f"-rule={rules}", f"-datasource.url={source}", f"-notifier.url={sink.url}",
            f"-evaluationInterval={INTERVAL:.0f}s", f"-httpListenAddr=127.0.0.1:{port}",
        ]  # fmt: skip
        with running(command, log.fileno()) as process:
            url, end = f"http://127.0.0.1:{port}", time.monotonic() + 30.0
            while process.poll() is None and time.monotonic() < end:
                try:
                    requests.get(f"{url}/metrics", timeout=5)
                except requests.RequestException:
                    time.sleep(0.1)
                else:
                    yield url
                    return
            raise SystemExit(f"vmalert does not run: {rules.with_suffix('.log').read_text()[-2000:]}")


class Ticking:
    """A watch over a server, at times of our choice."""

    def __init__(self, url: str, folder: Path) -> None:
        self.present = Present(0.0)
        server = Server(url=url, timeout="10m")
        rules = Rules(Settings(), load(), Deployment(), partial(Placed, server, self.present))
        self.archive, self.metrics = Archive(f"sqlite:///{folder / 'rca.db'}"), Metrics(0.0)
        self.eyes = Eyes(rules, self.archive, self.metrics)
        self.watch = Watch(self.eyes, self.archive, self.metrics, lambda: self.present.time)

    def tick(self, at: float) -> float:
        """Tick at a time, and return how long that took in seconds."""
        self.present.time = at
        start = time.perf_counter()
        self.watch.tick(strict=True)
        return time.perf_counter() - start

    def ticks(self, first: float, count: int) -> list[float]:
        """Tick some times, the first of them to warm up."""
        return [self.tick(first + INTERVAL * number) for number in range(count + 1)][1:]


def compare(url: str, epoch: float, rulers: dict[str, float], given: argparse.Namespace) -> None:
    """Let ticks happen in health and in illness, and print what they take."""
    ticking = Ticking(url, given.folder)
    swept = ticking.eyes.past
    times = {"healthy": ticking.ticks(epoch + HEALTHY - INTERVAL, given.repeats)}
    if ticking.archive.alive(0.0) or ticking.eyes.past.swept == swept.swept:
        raise SystemExit("the ticks in health did not find health")
    ticking.tick(epoch + ILL - 2 * INTERVAL)
    times["diagnosing"] = ticking.ticks(epoch + ILL - INTERVAL, given.repeats)
    for kind, taken in times.items():
        print(f"{kind:>10} tick {' '.join(f'{one:.2f}' for one in taken)} s, best {min(taken):.2f} s")
    for kind, taken in times.items():
        for name, reference in rulers.items():
            ratio = min(taken) / max(reference, 1e-3)  # a ruler counts in milliseconds
            counts = (
                f", target {TARGETS[kind]} x  {'ok' if ratio <= TARGETS[kind] else 'missed'}" if name == "ruler" else ""
            )
            print(f"{kind:>10} tick / {name}: {ratio:.2f}{counts}")
    found = [(one.cause, dict(one.entity.labels)) for one in ticking.archive.alive(0.0)]
    right = (CAUSE, dict(zip(("node", "gpu"), given.shape.ill, strict=True))) in found
    print(f"found {', '.join(cause for cause, _ in found) or 'nothing'}: {'right' if right else 'wrong'}")


def made(shape: Shape, path: Path, end: float) -> tuple[int, int]:
    """Write a cluster's series to a file, and return how many series and samples there are."""
    return write(make(shape, DURATION, FAULT, end), path)


def ruled(folder: Path, name: str, interval: float) -> tuple[Path, int]:
    """Write the rules, and return the file and how many there are."""
    path = folder / name
    return path, composite.write(path, interval)


def main() -> None:
    """Fill a server, let the rulers work, and measure ticks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--small", action="store_true", help="a small job, to see that it runs")
    parser.add_argument("--repeats", type=int, default=3, help="how many ticks of each kind, the best counts  [3]")
    given, _ = parser.parse_known_args()
    for program in ("prometheus", "promtool"):
        if shutil.which(program) is None:
            raise SystemExit(f"{program}: not installed, apt-get install prometheus")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("error"))
    given.shape, interval = (SMALL, 1.0) if given.small else (FULL, INTERVAL)
    with tempfile.TemporaryDirectory(prefix="rca-bench-") as name:
        given.folder = Path(name)
        start, text = time.time(), given.folder / "series.om"
        end = start + AHEAD
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as maker:  # a child inherits our peak memory
            series, samples = maker.submit(made, given.shape, text, end).result()
        print(f"{given.shape.gpus:,} GPUs, {len(SIGNALS)} signals: {series:,} series, {samples:,} samples", flush=True)
        backfill(text, given.folder / "server" / "data")
        text.unlink()
        print(f"made and loaded in {time.time() - start:.0f} s", flush=True)
        rules, count = ruled(given.folder, "rules.yml", interval)
        subprocess.run([binary("promtool"), "check", "rules", str(rules)], check=True, capture_output=True)
        config = f"global: {{scrape_interval: 15s}}\nrule_files: ['{rules}']\n"
        with prometheus(given.folder / "server", config=config, flags=["--web.enable-lifecycle"]) as url:
            rulers = {"ruler": quickest(partial(ruler, url), 20 * interval + 120.0)}
            (given.folder / "server" / "prometheus.yml").write_text("global: {scrape_interval: 15s}\n")
            requests.post(f"{url}/-/reload", timeout=60).raise_for_status()
            if shutil.which("vmalert") is not None:
                with vmalert(rules, url) as own:
                    rulers["vmalert"] = quickest(Cycles(own).read, 20 * interval + 120.0)
            if time.time() > end:
                print(
                    f"the data ended {time.time() - end:.0f} s before the rulers were done: their figures are too good"
                )
            for who, took in rulers.items():
                print(f"{who:>10} {count} rules, {took:.2f} s a cycle", flush=True)
            compare(url, end - seconds(DURATION), rulers, given)


if __name__ == "__main__":
    main()
