"""What our server has to endure, in parts that tests run for seconds and `make soak` for an hour."""

import json
import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import requests
import servers
from own_process import Own, awaited, running, scaled_rules, serve
from read_once import load

from rca import openmetrics
from rca.archive import Archive
from rca.config import Settings
from rca.metrics import Metrics
from rca.model import Floats, seconds
from rca.physics.world import simulate
from rca.physics.written import Cluster, Fault, Job, Scenario, Where
from rca.plain import stamp
from rca.sources.assemble import Deployment
from rca.sources.labels import Pool
from rca.sources.scenario import ScenarioStore, read, stage
from rca.sources.series import Block, Selector
from rca.watch import Eyes, Rules, Watch
from rca.webhook import LATER

LOOP = Path(__file__).parent / "integration" / "loop.yaml"
SHIPPED = Path(__file__).parents[1] / "deploy" / "alertmanager" / "alertmanager.yml"
SCALED = {"window": "40s", "baseline": "5m", "interval": "2s"}
"""Settings that go with `scaled_rules`."""
SURE = ("gpu_power_capped", "node-02", "1")
"""What `loop.yaml` is about: the cause, and the node and index of its GPU."""
Mode = Literal["well", "down", "slow", "errors"]


# -- many deliveries, and a process that is killed


@dataclass
class Acknowledged:
    """What a server has taken: the fingerprints, how long each answer took, and what it answered."""

    fingerprints: set[str] = field(default_factory=set)
    taken: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    def late(self, share: float = 0.99) -> float:
        """Return the time of an answer, in seconds, that a share of them did not exceed."""
        return sorted(self.taken)[max(round(share * len(self.taken)) - 1, 0)]


def body(fingerprint: str, starts: float) -> bytes:
    """Return a delivery of one alert, as Alertmanager sends it."""
    alert = {
        "status": "firing", "labels": {"alertname": "TrainJobSlow", "job_id": "loop", "replica": fingerprint},
        "annotations": {}, "startsAt": stamp(starts), "endsAt": "0001-01-01T00:00:00Z", "fingerprint": fingerprint,
    }  # fmt: skip
    return msgspec.json.encode({"version": "4", "status": "firing", "truncatedAlerts": 0, "alerts": [alert]})


def send(url: str, bodies: dict[str, bytes], pause: float, stop: threading.Event, known: Acknowledged) -> None:
    """Send deliveries one after the other over one connection; what fails is tried again, until told to stop."""
    with requests.Session() as session:
        for fingerprint, told in bodies.items():
            due = time.monotonic() + pause
            while not stop.is_set():
                start = time.monotonic()
                try:
                    answer = session.post(f"{url}/api/v1/alerts", data=told, timeout=10)
                except requests.RequestException:
                    stop.wait(0.02)
                    continue
                known.statuses[answer.status_code] += 1
                if answer.status_code == 202:
                    known.taken.append(time.monotonic() - start)
                    known.fingerprints.add(fingerprint)
                    break
                stop.wait(0.1)
            stop.wait(max(due - time.monotonic(), 0.0))


def burst(url: str, count: int, connections: int, within: float, starts: float) -> Acknowledged:
    """Send so many deliveries over so many connections within so many seconds, and wait for all answers."""
    known, stop = Acknowledged(), threading.Event()
    names = [f"{number:016x}" for number in range(count)]
    shares = [names[first::connections] for first in range(connections)]
    pause = within / max(len(shares[0]), 1)
    senders = [
        threading.Thread(target=send, args=(url, {name: body(name, starts) for name in share}, pause, stop, known))
        for share in shares
    ]
    for sender in senders:
        sender.start()
        time.sleep(pause / connections)  # senders keep no common time
    for sender in senders:
        sender.join()
    return known


@contextmanager
def past(folder: Path) -> Iterator[tuple[str, float]]:
    """Run a Prometheus that holds a fault, and yield its URL and a start of alerts that leads there."""
    world = stage(LOOP, float(int(time.time())) - 600.0)  # not so long ago that it would be forgotten
    text = folder / "past.om"
    with text.open("w", encoding="utf-8") as stream:
        stream.writelines(openmetrics.lines(world))
    fault = world.epoch + seconds(read(LOOP).faults[0].at)
    with servers.prometheus(folder / "prometheus", text) as url:
        yield url, fault + 25.0 - LATER


def killed(folder: Path, kills: int, rng: random.Random) -> dict[str, int]:
    """Kill a server again and again while alerts pour in; return what was counted when all was over.

    Asserts that each alert that was acknowledged is diagnosed once, and that there is one incident.
    """
    with past(folder) as (source, starts):
        settings = {**SCALED, "prometheus": {"url": source}, "rules": str(scaled_rules(folder / "rules"))}
        server = serve(folder, settings)
        known, stop = Acknowledged(), threading.Event()
        senders = []
        for number in range(4):
            mine = {
                f"{number:02x}{one:014x}": body(f"{number:02x}{one:014x}", starts + one % 10) for one in range(20_000)
            }
            senders.append(threading.Thread(target=send, args=(server.url, mine, 1.5, stop, known)))
        for sender in senders:
            sender.start()
        try:
            for _ in range(kills):
                server.start(ready=rng.random() < 0.7)  # else it may be killed before it is ready
                time.sleep(rng.uniform(0.0, 8.0))  # a diagnosis takes two or three
                server.kill()
        finally:
            stop.set()
            for sender in senders:
                sender.join()
        server.start()
        awaited(lambda: waiting(server.url) == 0, 120.0, "all alerts are looked into")
        assert server.stop() == 0
    return {"acknowledged": len(known.fingerprints), **settled(folder / "rca.db", known.fingerprints, server)}


def waiting(url: str) -> int:
    """Return how many alerts wait, as the server says."""
    lines = requests.get(f"{url}/metrics", timeout=30).text.splitlines()
    return int(float(next(line.split()[1] for line in lines if line.startswith("rca_webhook_queue_length "))))


def settled(store: Path, acknowledged: set[str], server: Own) -> dict[str, int]:
    """Look into the file of incidents, and count; asserts that nothing is lost or there twice."""
    with sqlite3.connect(store) as connection:
        alerts = connection.execute("select body, state, report, said from alerts").fetchall()
        reports = {name for (name,) in connection.execute("select id from reports")}
        incidents = connection.execute("select job, cause, place from incidents").fetchall()
    prints = Counter(json.loads(told)["fingerprint"] for told, *_ in alerts)
    assert acknowledged <= prints.keys(), "an alert that was acknowledged is lost"
    assert max(prints.values()) == 1
    assert {(state, said) for _, state, _, said in alerts} == {("done", "")}
    assert {report for _, _, report, _ in alerts} <= reports
    looked = [json.loads(line) for line in server.said().splitlines() if '"alerts looked into"' in line]
    assert sum(one["alerts"] for one in looked) <= len(alerts), "an alert was looked into twice"
    assert len(set(incidents)) == len(incidents), "an incident is there twice"
    assert [cause for _, cause, _ in incidents] == [SURE[0]]
    assert "Traceback" not in server.said()
    return {"kept": len(alerts), "diagnoses": len(looked), "incidents": len(incidents)}


# -- a Prometheus in bad weather


class Weather:
    """Stands between our server and a Prometheus, and answers well, badly, late or not at all."""

    def __init__(self, behind: str, slow: float) -> None:
        self.mode: Mode = "well"
        self._behind, self._slow = behind, slow
        self._count = 0
        self._lock = threading.Lock()
        self._own = threading.local()

    def answer(self, request: servers.Request) -> None:
        """Answer one request."""
        with self._lock:
            self._count += 1
            odd = self._count % 2
        if self.mode == "down":
            request.close_connection = True
            return
        if self.mode == "slow":
            request.wait(self._slow)
        if self.mode == "errors" and odd:
            request.reply(500, b'{"status":"error","errorType":"internal","error":"it rains"}')
            return
        headers = {name: request.headers[name] for name in ("Content-Type",) if name in request.headers}
        if not hasattr(self._own, "session"):
            self._own.session = requests.Session()
        url = self._behind + request.path
        asked = self._own.session.request(request.command, url, data=request.body, headers=headers, timeout=60)
        request.reply(asked.status_code, asked.content, asked.headers.get("Content-Type", "application/json"))


class Lengths(NamedTuple):
    """How long everything takes, in seconds: scrapes, the health before the fault, how long the fault has lasted when all
    begins, how long each weather lasts at least, and how late a slow answer is.
    """

    scrape: int
    health: int
    begun: int
    lasting: float
    slow: float
    settings: dict[str, object]
    scaled: bool


SHORT = Lengths(5, 480, 30, 10.0, 5.0, {**SCALED, "incidents": {"for": "0s", "keep_firing_for": "5s"}}, scaled=True)
LONG = Lengths(15, 4500, 600, 300.0, 30.0, {}, scaled=False)


class Site(NamedTuple):
    """What runs: our server, and what stands between it and Prometheus; Alertmanager is away, its port is known."""

    server: Own
    weather: Weather
    alertmanager: int
    folder: Path


@contextmanager
def site(folder: Path, lengths: Lengths) -> Iterator[Site]:
    """Run an ill cluster that happens now, a Prometheus that knows its past, and our server, which watches it."""
    with ExitStack() as stack:
        cluster = stack.enter_context(running(_ill(folder, lengths)))
        servers.backfill(folder / "history.om", folder / "prometheus" / "data")
        scrape = "1s" if lengths.scaled else f"{lengths.scrape}s"
        config = msgspec.json.encode({
            "global": {"scrape_interval": scrape, "scrape_timeout": scrape},
            "scrape_configs": [{
                "job_name": "cluster", "honor_labels": True,
                "static_configs": [{"targets": [cluster.url.partition("//")[2]]}],
            }],
        }).decode()  # fmt: skip
        source = stack.enter_context(servers.prometheus(folder / "prometheus", config=config))
        weather = Weather(source, lengths.slow)
        between = stack.enter_context(servers.serving(weather.answer))
        port = servers.free_port()
        timeout = {"timeout": "4s"} if lengths.scaled else {}
        rules = {"rules": str(scaled_rules(folder / "rules"))} if lengths.scaled else {}
        settings = {
            **lengths.settings, **rules, "prometheus": {"url": between.url, **timeout},
            "alertmanagers": [f"http://127.0.0.1:{port}"],
        }  # fmt: skip
        yield Site(stack.enter_context(running(serve(folder, settings, "--watch"))), weather, port, folder)


def _ill(folder: Path, lengths: Lengths) -> Own:
    """Return the cluster of `loop.yaml`, whose fault lasts."""
    duration = lengths.health + lengths.begun + 7200
    written = LOOP.read_text(encoding="utf-8").replace("duration: 15m", f"duration: {duration}s")
    written = written.replace("{at: 8m, until: 510s,", f"{{at: {lengths.health}s,")
    scenario = folder / "ill.yaml"
    scenario.write_text(written.replace("interval: 5s", f"interval: {lengths.scrape}s"))
    port, end = servers.free_port(), int(time.time()) - lengths.health - lengths.begun + duration
    arguments = ["simulate", str(scenario), "--to", str(folder / "history.om"), "--listen", f"127.0.0.1:{port}"]
    return Own(folder, "cluster", port, [*arguments, "--at", stamp(float(end))])


def counted(url: str, name: str) -> float:
    """Return a metric of our server, summed over its labels."""
    lines = requests.get(f"{url}/metrics", timeout=30).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.partition("{")[0].partition(" ")[0] == name)


def incident(url: str) -> dict[str, Any]:
    """Return the one incident of the cause that `loop.yaml` is about."""
    told = requests.get(f"{url}/api/v1/incidents", timeout=30).json()["data"]
    [found] = [one for one in told if one["cause"] == SURE[0]] or [{}]
    return dict(found)


def endured(site: Site, lengths: Lengths, say: Callable[[str], None]) -> None:
    """Let Alertmanager and then Prometheus be away, slow and wrong while an incident is open: it stays open and the same,
    and what was not sent is sent afterwards.
    """
    url = site.server.url
    took = awaited(
        lambda: incident(url).get("state") == "open", 180.0, f"an incident opens {site.server.said()[-2000:]}"
    )
    say(f"the incident is open after {took:.0f} s")
    before = incident(url)["id"]
    time.sleep(lengths.lasting)
    say(f"Alertmanager away: {counted(url, 'rca_notifications_failed_total'):.0f} alerts not taken")
    assert counted(url, "rca_notifications_failed_total") > 0
    with servers.alertmanager(site.folder / "alertmanager", SHIPPED, site.alertmanager) as beside:
        took = awaited(lambda: sent(beside, before), 120.0, "the alert arrives once Alertmanager is there")
        say(f"Alertmanager back: the alert arrives after {took:.0f} s")
        for mode in ("down", "slow", "errors"):
            say(_weathered(site, mode, before, lengths.lasting))
            assert sent(beside, before), "the alert still fires"
    assert "Traceback" not in site.server.said()


def sent(alertmanager: str, root: str) -> bool:
    """Say whether an Alertmanager holds the root cause of an incident."""
    told = requests.get(f"{alertmanager}/api/v2/alerts", timeout=30).json()
    return any(one["labels"].get("root_cause_id") == root for one in told)


def _weathered(site: Site, mode: Mode, known: str, lasting: float) -> str:
    """Let a weather last while an incident is open, until looks have failed where they must; say what came of it."""
    url = site.server.url
    before = [counted(url, name) for name in _COUNTED]
    site.weather.mode = mode
    begun, harmed = time.monotonic(), mode == "errors"
    while not harmed or time.monotonic() < begun + lasting:
        assert time.monotonic() < begun + lasting + 60.0, f"no look failed while Prometheus was {mode}"
        harmed = harmed or counted(url, _COUNTED[1]) > before[1]
        now = incident(url)
        assert (now["id"], now["state"]) == (known, "open"), f"{mode}: {now}"
        time.sleep(min(1.0, lasting / 10))
    site.weather.mode = "well"
    looks, failed, left = (counted(url, name) - old for name, old in zip(_COUNTED, before, strict=True))
    last = incident(url)["last"]
    took = awaited(lambda: incident(url)["last"] > last, lasting + 120.0, f"after {mode}: the incident is seen again")
    return f"{mode}: {looks:.0f} looks, {failed:.0f} failed, {left:.0f} left out; seen again after {took:.0f} s"


_COUNTED = ("rca_evaluations_total", "rca_evaluation_failures_total", "rca_ticks_missed_total")


# -- memory


class Days(ScenarioStore):
    """A simulated cluster up to a present that moves on."""

    def __init__(self, ticks: int) -> None:
        length = 4500 + 30 * ticks
        pulled = tuple(
            Fault(at=f"{start}s", until=f"{start + 600}s", power_brake=True, on=Where(node="node-01", gpu=1))
            for start in range(4740, length, 7200)  # known of, and paid for, when memory is compared
        )
        super().__init__(
            simulate(
                Scenario(
                    summary="A power brake is pulled every two hours", duration=f"{length}s",
                    cluster=Cluster(nodes=2, gpus=4), job=Job(id="days", dp=8, step="4s"), faults=pulled,
                )
            )
        )  # fmt: skip
        self.time = self.world.epoch + 4500.0

    def now(self) -> float:
        """Return the present."""
        return self.time

    def fetch(self, selectors: Sequence[Selector]) -> Iterator[tuple[int, Block]]:
        """Yield what had been scraped by now."""
        return super().fetch([one._replace(end=min(one.end, self.time)) for one in selectors])

    def evaluate(self, query: str, times: Floats) -> Block:
        """Find no hard event."""
        return Block([], np.zeros(1, dtype=np.int64), np.zeros(0), np.zeros(0))


def remembered(folder: Path, ticks: int, every: int) -> list[float]:
    """Tick so often, half a minute apart, and return how many MiB the process holds now and then."""
    days, metrics, archive = Days(ticks), Metrics(0.0), Archive(f"sqlite:///{folder / 'rca.db'}")

    @contextmanager
    def opened(_pool: Pool | None) -> Iterator[Days]:
        yield days

    rules = Rules(Settings(), load(), Deployment(), opened)
    watch = Watch(Eyes(rules, archive, metrics), archive, metrics, days.now)
    held = []
    for number in range(ticks):
        days.time += 30.0
        watch.tick(strict=True)
        if (number + 1) % every == 0:
            held.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20)
    archive.close()
    return held
