"""A simulated cluster that happens now: one exporter for all of it, which a real Prometheus scrapes.

    rca simulate scenarios/cooling_fault.yaml --to history.om --listen 127.0.0.1:9700

What lies behind the present is history, for `promtool tsdb create-blocks-from openmetrics`; the rest happens as time
goes by, and when the scenario is over it begins again. Series carry the labels of the targets that they would come from,
so the scrape needs `honor_labels: true`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread

import numpy as np

from rca.errors import SourceError
from rca.model import Floats, seconds
from rca.openmetrics import family_name, number, selector
from rca.physics.world import Metric, World, simulate
from rca.physics.written import Scenario

SOON = 60.0
"""So many seconds from now the first fault begins, where nobody says when the scenario ends."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TYPES = {"info": "gauge", "unknown": "untyped"}


def ending(scenario: Scenario, now: float) -> float:
    """Return when a scenario ends whose first fault begins soon; one without faults has two thirds behind it.

    >>> from rca.physics.written import Cluster, Fault
    >>> ending(Scenario(summary="", duration="75m", cluster=Cluster(nodes=1), faults=(Fault(at="65m"),)), 0.0)
    660.0
    """
    duration = seconds(scenario.duration)
    begins = [begin for fault in scenario.faults if (begin := seconds(fault.at)) > 0.0]
    return now + duration - max(min(begins) - SOON, 0.0) if begins else now + duration / 3.0


class Present:
    """A scenario as time goes by; when it is over, it happens again, as after a repair and a restart."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._turn = Lock()

    def exposition(self, at: float) -> str:
        """Return what the cluster's exporters say at a time, in Prometheus' text format."""
        with self._turn:
            if at > self._world.end:
                scenario = self._world.scenario
                begin = at - seconds(scenario.telemetry.interval)  # every target has been drawn once
                self._world = simulate(scenario, begin + seconds(scenario.duration))
            return "".join(lines(self._world, at))


def lines(world: World, at: float) -> Iterator[str]:
    """Yield each family's type and its series with their values at a time."""
    interval = seconds(world.scenario.telemetry.interval)
    families: dict[str, list[Metric]] = {}
    for metric in world.metrics.values():
        name = family_name(metric) if metric.type == "summary" else metric.name
        families.setdefault(name, []).append(metric)
    for name, metrics in sorted(families.items()):
        yield f"# TYPE {name} {_TYPES.get(metrics[0].type, metrics[0].type)}\n"
        for metric in metrics:
            for labels, value in zip(metric.labels, reading(metric, at, interval).tolist(), strict=True):
                if value == value:  # noqa: PLR0124 - a series that says nothing is not there
                    yield f"{selector(labels)} {number(value)}\n"


def reading(metric: Metric, at: float, interval: float) -> Floats:
    """Return (n,): what each series was last drawn as, NaN where it says nothing, or has missed two drawings.

    Nothing is put between two drawings: what belongs together, steps and the time that they took, would come apart.
    """
    rows = np.arange(len(metric.labels))
    known = (metric.times <= at).sum(axis=1)
    last = np.maximum(known - 1, 0)
    gone = (known == 0) | (at - metric.times[rows, last] > 2.0 * interval)
    said: Floats = np.where(gone, np.nan, metric.values[rows, last])
    return said


@contextmanager
def listening(world: World, listen: str, clock: Callable[[], float]) -> Iterator[str]:
    """Serve a cluster's present at `/metrics` of HOST:PORT while the block runs; yield the address.

    Raises SourceError where nobody can listen there.
    """
    host, _, port = listen.rpartition(":")
    present = Present(world)
    present.exposition(clock())  # draws everything, so that the first scrape is as quick as the others

    class Exporter(BaseHTTPRequestHandler):
        """Answers scrapes."""

        def do_GET(self) -> None:
            """Serve `/metrics`, and whoever asks whether we are there."""
            known = self.path.partition("?")[0] in ("/metrics", "/-/ready", "/-/healthy")
            told = present.exposition(clock()) if self.path.startswith("/metrics") else "ready\n"
            body = (told if known else "look at /metrics\n").encode()
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - it is called so there
            """Say nothing: a scrape is no event."""

    try:
        server = ThreadingHTTPServer((host.strip("[]"), int(port)), Exporter)
    except OSError as error:
        said = (error.strerror or str(error)).lower()
        raise SourceError(f"--listen: {listen}: {said}, choose another address or port") from error
    server.daemon_threads = True
    Thread(target=server.serve_forever, name="rca-live", daemon=True).start()
    try:
        yield f"http://{host}:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()
