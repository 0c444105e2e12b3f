"""Time of a whole `rca diagnose` against a real Prometheus, against the time to fetch the same series raw.

8,192 GPUs on 1,024 nodes with one ill GPU, 24 signals (196,608 series, and 8,192 that tie ranks to GPUs), 15 minutes at
15 s, in a Prometheus on the same machine. `raw` sends the very requests that `rca` sends, as many at once, reads the
bodies and throws them away. `rca` is the program as its users start it, from the start of the process to its end. Both
run in alternation, and the medians count: on a machine with neighbours the best of many short runs meets a quieter moment
than the best of as many long ones. The ratio of the best is told too.
"""

import argparse
import json
import multiprocessing
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests")]

import requests
from cluster import SIGNALS, Shape, make, write
from servers import backfill, prometheus

from rca.config import Server
from rca.plain import stamp

FULL = Shape(nodes=1024, pp=8)
SMALL = Shape(nodes=16, pp=2)
WINDOW = 900.0
TARGET = 2.0
MEMORY = 4096
CAUSE = "gpu_thermal_throttling"


@dataclass(frozen=True)
class Run:
    """One run of a side: its wall time, its own CPU time, that of the server, and the bytes that the server sent."""

    wall: float
    own: float
    server: float
    sent: float
    memory: float = 0.0


class Meter:
    """Reads what the server says of its own CPU time and of the bytes that it has sent."""

    def __init__(self, url: str) -> None:
        self.url = url

    def read(self) -> tuple[float, float]:
        """Return CPU seconds and bytes since the server started."""
        lines = requests.get(f"{self.url}/metrics", timeout=60).text.splitlines()
        cpu = [line for line in lines if line.startswith("process_cpu_seconds_total ")]
        sent = [
            line
            for line in lines
            if line.startswith("prometheus_http_response_size_bytes_sum") and '"/api/v1/query"' in line
        ]
        return float(cpu[0].split()[-1]), sum(float(line.split()[-1]) for line in sent)


def requests_in(log: Path) -> list[dict[str, str]]:
    """Return the requests for series in a server's query log; the small ones for its clock are left out."""
    entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    params = [entry["params"] for entry in entries if entry.get("httpRequest", {}).get("path") == "/api/v1/query"]
    return [{"query": one["query"], "time": one["end"]} for one in params if "[" in one["query"]]


def asks(query: str, name: str, labels: Mapping[str, str]) -> bool:
    """Say whether a query reads a metric, with no matcher against these labels."""
    fits = all(f"{label}=" not in query or f'{label}="{value}"' in query for label, value in labels.items())
    return fits and re.search(rf'["|]{name}["|]', query) is not None


def fetch_raw(url: str, asked: Sequence[dict[str, str]], workers: int) -> None:
    """Send requests, so many at once, and read their answers to the end."""
    waiting: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
    for form in asked:
        waiting.put(form)

    def work() -> None:
        with requests.Session() as session:
            session.headers["Accept-Encoding"] = "identity"
            while not waiting.empty():
                try:
                    form = waiting.get_nowait()
                except queue.Empty:
                    return
                answer = session.post(f"{url}/api/v1/query", data=form, stream=True, timeout=600)
                answer.raise_for_status()
                for _ in answer.raw.stream(1 << 20):
                    pass

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_raw(url: str, asked: Sequence[dict[str, str]], meter: Meter) -> Run:
    """Measure the raw fetch."""
    cpu, sent = meter.read()
    own, start = time.process_time(), time.perf_counter()
    fetch_raw(url, asked, Server().workers)
    wall, own = time.perf_counter() - start, time.process_time() - own
    later, more = meter.read()
    return Run(wall, own, later - cpu, more - sent)


def run_rca(url: str, end: float, report: Path, meter: Meter) -> Run:
    """Measure the program; its report goes to a file."""
    settings = report.with_name("rca.yaml")
    settings.write_text("prometheus: {timeout: 10m}\n")
    command = [
        sys.executable, "-m", "rca.cli", "diagnose", "--config", str(settings), "--prometheus", url,
        "--at", stamp(end), "--window", f"{WINDOW:.0f}s", "-o", "json",
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(report.with_name("bytecode"))  # compiled, as pip leaves what it installs
    cpu, sent = meter.read()
    start = time.perf_counter()
    with report.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, cwd=Path(__file__).resolve().parents[1], env=environment)
        _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in {0, 10, 11}:
        raise SystemExit(f"rca diagnose: exit status {process.returncode}")
    later, more = meter.read()
    return Run(wall, usage.ru_utime + usage.ru_stime, later - cpu, more - sent, usage.ru_maxrss / 1024)


def judge(report: Path, shape: Shape) -> str:
    """Say whether the first cause of a report is the ill GPU."""
    found = json.loads(report.read_bytes())
    if not found["causes"]:
        return f"{found['status']}, no cause: wrong"
    first = found["causes"][0]
    node, gpu = shape.ill
    right = first["cause"] == CAUSE and first["entity"]["labels"] == {"node": node, "gpu": gpu}
    where = " ".join(f"{name}={value}" for name, value in first["entity"]["labels"].items())
    return f"{first['cause']} on {where}, probability {first['probability']:.2f}: {'right' if right else 'wrong'}"


def show(side: str, run: Run) -> None:
    """Print one run."""
    memory = f"{run.memory:>7,.0f} MiB" if run.memory else ""
    print(
        f"{side:>6} {run.wall:>8.2f} s {run.own:>9.2f} s {run.server:>9.2f} s {run.sent / 1e6:>8.1f} MB {memory}",
        flush=True,
    )


def compare(url: str, end: float, shape: Shape, given: argparse.Namespace) -> None:
    """Run both sides in alternation and print what they take."""
    meter, report = Meter(url), given.folder / "report.json"
    run_rca(url, end, report, meter)  # fills the log, compiles the program, warms the server up
    asked = requests_in(given.folder / "queries.log")
    missing = [name for name, labels in SIGNALS if not any(asks(form["query"], name, labels) for form in asked)]
    if missing:
        print(f"not asked for, as no rule reads them: {', '.join(missing)}")
    print(f"{len(asked)} requests for series, {Server().workers} at once")
    print(f"{'':>6} {'wall':>10} {'own CPU':>11} {'server CPU':>11} {'sent':>11} {'peak memory':>11}")
    raw, ours = [], []
    for _ in range(given.repeats):
        raw.append(run_raw(url, asked, meter))
        show("raw", raw[-1])
        ours.append(run_rca(url, end, report, meter))
        show("rca", ours[-1])
    ratio, best = (of(run.wall for run in ours) / of(run.wall for run in raw) for of in (median, min))
    memory = max(run.memory for run in ours)
    verdict = "ok" if ratio <= TARGET else "missed"
    print(f"ratio of the medians {ratio:.2f}, of the best {best:.2f}, target {TARGET:.1f} x  {verdict}")
    print(f"peak memory {memory:,.0f} MiB, target {MEMORY:,} MiB  {'ok' if memory < MEMORY else 'missed'}")
    print(judge(report, shape))


def made(shape: Shape, path: Path) -> tuple[int, int, float]:
    """Write a cluster's series to a file, and return how many series and samples there are and when they end."""
    world = make(shape)
    return (*write(world, path), world.end)


def main() -> None:
    """Fill a server and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--small", action="store_true", help="a small job, to see that it runs")
    parser.add_argument("--repeats", type=int, default=5, help="how often each side runs  [5]")
    parser.add_argument("--profile", action="store_true", help="say where the time of a diagnosis goes")
    given, _ = parser.parse_known_args()
    missing = [program for program in ("prometheus", "promtool") if shutil.which(program) is None]
    if missing:
        raise SystemExit(f"{' and '.join(missing)}: not installed, apt-get install prometheus")
    shape = SMALL if given.small else FULL
    with tempfile.TemporaryDirectory(prefix="rca-bench-") as name:
        given.folder = Path(name)
        start, text = time.perf_counter(), given.folder / "series.om"
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as maker:  # a child inherits our peak memory
            series, samples, end = maker.submit(made, shape, text).result()
        print(f"{shape.gpus:,} GPUs, {len(SIGNALS)} signals: {series:,} series, {samples:,} samples", flush=True)
        backfill(text, given.folder / "server" / "data")
        text.unlink()
        print(f"made and loaded in {time.perf_counter() - start:.0f} s", flush=True)
        logging = f"global: {{scrape_interval: 15s, query_log_file: '{given.folder / 'queries.log'}'}}\n"
        with prometheus(given.folder / "server", config=logging) as url:
            compare(url, end, shape, given)
            if given.profile:
                from stages import profile  # noqa: PLC0415 - only then needed

                profile(url, end, WINDOW)


if __name__ == "__main__":
    main()
