"""The schedule over a made-up cluster whose present moves on: little is asked in health, incidents open and close."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from read_once import load
from servers import serving

from rca.archive import Archive
from rca.config import Keeping, Settings
from rca.diagnose import diagnose
from rca.errors import SourceError, UsageError
from rca.metrics import Metrics
from rca.model import Floats
from rca.physics.world import World, simulate
from rca.render.json import render
from rca.sources.assemble import Deployment
from rca.sources.labels import Pool
from rca.sources.recording import RecordingSource
from rca.sources.scenario import ScenarioStore, read
from rca.sources.series import Block, Selector
from rca.watch import Eyes, Question, Rules, Shard, Watch

SCENARIOS = Path(__file__).parents[1] / "scenarios"


@lru_cache
def world(name: str) -> World:
    return simulate(read(SCENARIOS / f"{name}.yaml"))


class Present(ScenarioStore):
    """A made-up cluster up to a present that the test moves on; counts what is asked."""

    def __init__(self, name: str) -> None:
        super().__init__(world(name))
        self.time = self.world.end - 720.0
        self.asked: list[Selector] = []
        self.filters = 0
        self.failure: Exception | None = None

    def now(self) -> float:
        if self.failure is not None:
            raise self.failure
        return self.time

    def fetch(self, selectors: Sequence[Selector]) -> Iterator[tuple[int, Block]]:
        self.asked += selectors
        return super().fetch([one._replace(end=min(one.end, self.time)) for one in selectors])

    def evaluate(self, query: str, times: Floats) -> Block:
        self.filters += 1
        return Block([], np.zeros(1, dtype=np.int64), np.zeros(0), np.zeros(0))


class Cluster:
    """A watch over a made-up cluster."""

    def __init__(self, name: str, archive: Archive, settings: Settings | None = None, shard: Shard = Shard()) -> None:  # noqa: B008
        self.present = Present(name)
        self.archive = archive
        self.metrics = Metrics(0.0)
        rules = Rules(settings or Settings(interval="1m"), load(), Deployment(), self.opened)
        self.eyes = Eyes(rules, archive, self.metrics, shard)
        self.watch = Watch(self.eyes, archive, self.metrics, lambda: self.present.time)

    @contextmanager
    def opened(self, pool: Pool | None) -> Iterator[Present]:
        yield self.present

    def run(self, seconds: float, every: float = 60.0) -> None:
        """Let time pass, a tick now and then."""
        for _ in range(round(seconds / every)):
            self.present.time += every
            self.watch.tick()

    def count(self, name: str) -> float:
        """Return a metric of the watch."""
        lines = self.metrics.text("")[0].decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    one = Archive(f"sqlite:///{tmp_path / 'rca.db'}")
    yield one
    one.close()


def test_in_health_a_tick_asks_little(archive: Archive) -> None:
    cluster = Cluster("healthy", archive)
    cluster.run(60)
    everything = len(cluster.present.asked)
    cluster.present.asked.clear()
    cluster.run(180)
    ticks = len(cluster.present.asked) / 3
    assert ticks < everything / 3
    assert all("rank" in {match.label for match in one.matchers} for one in cluster.present.asked)
    assert cluster.present.filters > 0
    assert not archive.alive(0.0)


def test_all_is_read_every_few_minutes(archive: Archive) -> None:
    cluster = Cluster("healthy", archive)
    swept = []
    for _ in range(12):
        cluster.run(60)
        swept.append(cluster.eyes.past.swept)
    assert np.diff(sorted(set(swept))).tolist() == [300.0, 300.0]


def test_a_fault_opens_one_incident_that_can_be_replayed(archive: Archive, tmp_path: Path) -> None:
    cluster = Cluster("cooling_fault", archive)
    cluster.run(720)
    [incident] = archive.incidents()
    assert (incident.cause, incident.state) == ("gpu_thermal_throttling", "open")
    assert incident.gpu_hours_lost > 0
    report, recorded = archive.report(incident.report), archive.recording(incident.report)
    assert report is not None
    assert recorded is not None
    (tmp_path / "opened.rec").write_bytes(recorded)
    source = RecordingSource(tmp_path / "opened.rec")
    again = diagnose(load(), source.snapshot(load(), source.window))
    assert render(again).encode() == report
    assert cluster.count("rca_evaluation_failures_total") == 0


def test_a_fault_that_no_rank_shows_is_found_by_the_sweep(archive: Archive) -> None:
    cluster = Cluster("silent_data_skew", archive)
    cluster.run(420)
    assert [one.cause for one in archive.incidents()] == ["slow_local_disk"]


def test_a_source_that_is_away_ends_nothing_and_begins_nothing(archive: Archive) -> None:
    cluster = Cluster("cooling_fault", archive)
    cluster.run(480)
    before = archive.incidents()
    assert [one.state for one in before] == ["open"]
    cluster.present.failure = SourceError("http://prometheus: connection refused")
    cluster.run(180)
    assert archive.incidents() == before
    assert cluster.count('rca_evaluation_failures_total{reason="source"}') == 3
    cluster.present.failure = None
    cluster.run(60)
    [after] = archive.incidents()
    assert (after.id, after.state) == (before[0].id, "open")
    assert after.last > before[0].last


def test_shards_share_the_jobs(tmp_path: Path) -> None:
    found = []
    for number in (1, 2):
        archive = Archive(f"sqlite:///{tmp_path / str(number)}.db")
        cluster = Cluster("cooling_fault", archive, shard=Shard(number, 2))
        cluster.run(480)
        found += archive.incidents()
        archive.close()
    assert [one.cause for one in found] == ["gpu_thermal_throttling"]


@pytest.mark.parametrize("number", [1, 2])
def test_the_jobs_of_others_are_no_reason_to_look(archive: Archive, number: int) -> None:
    cluster = Cluster("two_jobs", archive, shard=Shard(number, 2))
    cluster.present.time = cluster.present.world.end - 1200.0
    cluster.run(60)
    assert len(cluster.eyes.past.ranks) == 1
    everything = len(cluster.present.asked)
    cluster.present.asked.clear()
    cluster.run(120)
    assert len(cluster.present.asked) / 2 < everything / 3


def test_alerts_go_to_every_peer_and_again_after_one_was_away(archive: Archive) -> None:
    with (
        serving(lambda request: request.reply(200, b"")) as well,
        serving(lambda request: request.reply(500, b"")) as ill,
    ):
        settings = Settings(interval="1m", alertmanagers=(well.url, ill.url), incidents=Keeping(keep_firing_for="1m"))
        cluster = Cluster("cooling_fault", archive, settings)
        cluster.run(540)
        assert well.requests
        assert cluster.count("rca_notifications_failed_total") > 0
        assert cluster.count("rca_notifications_sent_total") > 0


def test_questions_are_answered_for_any_job_time_and_place(archive: Archive) -> None:
    cluster = Cluster("cooling_fault", archive)
    cluster.present.time = cluster.present.world.end
    eyes = cluster.eyes
    now = eyes.ask(Question(), keep=False).report
    assert now.causes[0].cause == "gpu_thermal_throttling"
    assert (
        eyes.ask(Question(places=({"node": now.causes[0].entity.labels["node"]},)), keep=False).report.jobs == now.jobs
    )
    node = now.causes[0].entity.labels["node"]
    for spelt in (node.upper(), f"{node}.dc1.example"):
        assert eyes.ask(Question(places=({"node": spelt},)), keep=False).report.jobs == now.jobs
    assert eyes.ask(Question(at=cluster.present.world.end - 900.0), keep=False).report.status == "healthy"
    with pytest.raises(UsageError, match="no such job: 'llama-70', did you mean 'llama-70b'"):
        eyes.ask(Question(jobs=("llama-70",)), keep=False)
