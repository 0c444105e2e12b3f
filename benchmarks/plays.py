"""One run of the accuracy benchmark: let a scenario happen once, watch it in several ways, diagnose its end.

A scenario plays in two forms, as written in `faults:` (strong) and as in `mild:`, under two levels of noise. Play k of
a file takes the seed of the file plus 1,000 k, so that scenarios draw different clusters. Even plays are the strong
form, which people look at when they set thresholds and probabilities; odd plays are the mild form, and score.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from msgspec import structs

from benchmarks.rivals import rivals, written
from benchmarks.scores import Outcome, Said, Truth
from rca.diagnose import diagnose
from rca.library import Library, seconds
from rca.load import load
from rca.model import Floats, Report, Snapshot, Window
from rca.physics.world import World, simulate
from rca.physics.written import Fault, Gap, Scenario
from rca.sources.assemble import assemble
from rca.sources.scenario import ScenarioStore, read
from rca.sources.series import Block, Matcher, Selector, Store

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"
WINDOW = 900.0
EARLIEST = 120.0  # seconds
Moving = TypeVar("Moving", Fault, Gap)
Noise = Literal["written", "noisy"]
Telemetry = Literal["full", "train", "dcgm-extra", "node"]
NOISES: tuple[Noise, ...] = ("written", "noisy")

# What dcgm-exporter exports as it is installed: the lines of its etc/default-counters.csv that are not commented out.
DCGM_DEFAULT = frozenset(
    f"DCGM_FI_{name}"
    for name in (
        "DEV_SM_CLOCK", "DEV_MEM_CLOCK", "DEV_MEMORY_TEMP", "DEV_GPU_TEMP", "DEV_POWER_USAGE",
        "DEV_TOTAL_ENERGY_CONSUMPTION", "DEV_PCIE_REPLAY_COUNTER", "DEV_GPU_UTIL", "DEV_MEM_COPY_UTIL", "DEV_ENC_UTIL",
        "DEV_DEC_UTIL", "DEV_XID_ERRORS", "DEV_FB_FREE", "DEV_FB_USED", "DEV_FB_RESERVED",
        "DEV_NVLINK_BANDWIDTH_TOTAL", "DEV_VGPU_LICENSE_STATUS", "DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "DEV_CORRECTABLE_REMAPPED_ROWS", "DEV_ROW_REMAP_FAILURE", "PROF_GR_ENGINE_ACTIVE", "PROF_PIPE_TENSOR_ACTIVE",
        "PROF_DRAM_ACTIVE", "PROF_PCIE_TX_BYTES", "PROF_PCIE_RX_BYTES",
    )
)  # fmt: skip


class Play(NamedTuple):
    """What to run: a file in a form, its seed and noise, how it is watched, and how many minutes after its last fault
    began (None: when the file ends)."""

    path: Path
    number: int
    noise: Noise
    telemetry: tuple[Telemetry, ...]
    onset: float | None = None

    @property
    def form(self) -> Literal["strong", "mild"]:
        """Return the form that the file has for this play."""
        return "mild" if self.number % 2 and written_in(self.path).mild else "strong"


class Deaf(NamedTuple):
    """A store from which some metrics, and what Prometheus says of their targets, are missing."""

    store: Store
    absent: str
    silent: str

    def names(self, start: float, end: float) -> frozenset[str]:
        """Return the names that are left."""
        return frozenset(name for name in self.store.names(start, end) if not re.fullmatch(self.absent, name))

    def fetch(self, selectors: Sequence[Selector]) -> Iterator[tuple[int, Block]]:
        """Fetch what is left of each selector."""
        return self.store.fetch([self._left(selector) for selector in selectors])

    def evaluate(self, query: str, times: Floats) -> Block:
        """Ask the store behind."""
        return self.store.evaluate(query, times)

    def warnings(self) -> tuple[str, ...]:
        """Return what the store behind has to say."""
        return self.store.warnings()

    def _left(self, selector: Selector) -> Selector:
        names = tuple(name for name in selector.names if not re.fullmatch(self.absent, name))
        own = (Matcher("job", "!=", self.silent),) if "up" in names and self.silent else ()
        return selector._replace(names=names, matchers=(*selector.matchers, *own))


@cache
def written_in(path: Path) -> Scenario:
    """Return the scenario of a file, read once in each process."""
    return read(path)


@cache
def library() -> Library:
    """Return the shipped rules, read once in each process."""
    return load()


def watched(store: Store, telemetry: Telemetry) -> Store:
    """Return a store as a cluster with less telemetry would fill it."""
    if telemetry == "train":
        return Deaf(store, "train_.*", "training")
    if telemetry == "node":
        return Deaf(store, "node_.*", "node-exporter")
    if telemetry == "dcgm-extra":
        spellings = {other for name in DCGM_DEFAULT for other, _ in library().aliases.get(name, ())}
        kept = "|".join(sorted(DCGM_DEFAULT | spellings))
        return Deaf(store, f"(?!(?:{kept})$)DCGM_.*", "")
    return store


def staged(play: Play) -> Scenario:
    """Return the scenario of a play: its form, its seed, its noise."""
    scenario = written_in(play.path)
    scenario = structs.replace(scenario, seed=scenario.seed + 1000 * play.number)
    scenario = scenario.milder() if play.number % 2 else scenario
    scenario = scenario if play.onset is None else ending(scenario, play.onset)
    return noisier(scenario) if play.noise == "noisy" else scenario


def ending(scenario: Scenario, minutes: float) -> Scenario:
    """Return a scenario that ends so many minutes after its last fault began; one without a beginning stays."""
    began = max((seconds(fault.at) for fault in scenario.faults), default=0.0)
    return structs.replace(scenario, duration=f"{round(began + 60.0 * minutes)}s") if began else scenario


def noisier(scenario: Scenario) -> Scenario:
    """Return a scenario with more of all noise.

    Chips and heat sinks differ more, steps vary twice as much, one scrape in fifty fails, and on every third node DCGM
    collects every 30 s only, so that what is scraped together is up to half a minute apart. Faults and gaps begin up to
    two minutes earlier or later.
    """
    cluster, telemetry = scenario.cluster, scenario.telemetry
    nodes = {f"node-{index:02d}" for index in range(0, cluster.nodes, 3)}
    by = float(np.random.default_rng(scenario.seed).uniform(-EARLIEST, EARLIEST))
    return structs.replace(
        scenario,
        cluster=structs.replace(
            cluster,
            clock_spread=1.6 * cluster.clock_spread,
            temperature_spread=1.6 * cluster.temperature_spread,
        ),
        job=None,
        jobs=tuple(structs.replace(job, jitter=2.0 * job.jitter) for job in scenario.all_jobs()),
        faults=tuple(moved(fault, by) for fault in scenario.faults),
        telemetry=structs.replace(
            telemetry,
            missed=max(telemetry.missed, 0.02),
            slow=tuple(sorted(nodes | set(telemetry.slow))),
            gaps=tuple(moved(gap, by) for gap in telemetry.gaps),
        ),
    )


def moved(what: Moving, by: float) -> Moving:
    """Return a fault or a gap that begins and ends some seconds later; what has been so since long before stays."""
    if seconds(what.at) == 0.0:
        return what
    until = None if what.until is None else _later(what.until, by)
    return structs.replace(what, at=_later(what.at, by), until=until)


def _later(duration: str, by: float) -> str:
    return f"{max(round((seconds(duration) + by) * 1000.0), 1)}ms"


def look(world: World, telemetry: Telemetry, end: float) -> tuple[Snapshot, Report]:
    """Diagnose the quarter of an hour before `end`."""
    store = watched(ScenarioStore(world), telemetry)
    snapshot = assemble(store, library().in_use(), Window(end - WINDOW, end))
    return snapshot, diagnose(library(), snapshot)


def played(play: Play) -> list[Outcome]:
    """Let a scenario happen, and return what was said of it for each kind of telemetry."""
    scenario = staged(play)
    world = simulate(scenario)
    expect = scenario.expect
    assert expect is not None, play.path
    outcomes = []
    for telemetry in play.telemetry:
        snapshot, report = look(world, telemetry, world.end)
        outcomes.append(
            Outcome(
                scenario=play.path.stem,
                form=play.form,
                seed=play.number,
                noise=play.noise,
                telemetry=telemetry,
                split="scoring" if play.number % 2 else "tuning",
                expected=expect.status,
                status=report.status,
                truth=tuple(Truth(cause.cause, written(cause.entity)) for cause in expect.causes),
                said=said(report, scenario),
                rivals=rivals(library(), snapshot, scenario.seed),
                gpu_hours=gpu_hours(scenario),
            )
        )
    return outcomes


def said(report: Report, scenario: Scenario) -> tuple[Said, ...]:
    """Return the causes of a report as outcomes hold them.

    A job that is seen through its GPUs alone is called `default`; where there is one job only, it is meant.
    """
    jobs = [job.id for job in scenario.all_jobs()]
    names = {"default": jobs[0]} if len(jobs) == 1 else {}
    found = []
    for cause in report.causes:
        labels = {
            label: names.get(value, value) if label == "job" else value for label, value in cause.entity.labels.items()
        }
        found.append(Said(cause.cause, written(labels), cause.probability))
    return tuple(found)


def gpu_hours(scenario: Scenario) -> float:
    """Return how many GPUs were looked at, times the hours of a window."""
    return scenario.cluster.nodes * scenario.cluster.gpus * WINDOW / 3600.0


def files(only: Sequence[str] = ()) -> list[Path]:
    """Return the scenarios that say what must be found; `only` are names of files without their ending."""
    return [
        path
        for path in sorted(SCENARIOS.glob("*.yaml"))
        if (not only or path.stem in only) and written_in(path).expect is not None
    ]


def endless(path: Path) -> bool:
    """Say whether a scenario is healthy and could go on for ever: nothing in it begins or ends."""
    scenario = written_in(path)
    ends = any(job.ends is not None or job.warm_up is not None for job in scenario.all_jobs())
    healthy = scenario.expect is not None and scenario.expect.status == "healthy"
    return healthy and not (ends or scenario.faults or scenario.telemetry.gaps)


def day(path: Path, hours: int) -> list[Outcome]:
    """Let a healthy scenario go on for some hours, and diagnose each quarter of an hour of it."""
    scenario = structs.replace(written_in(path), duration=f"{hours}h")
    world = simulate(scenario)
    count = int(seconds(scenario.duration) // WINDOW)
    ends = [world.epoch + WINDOW * (number + 1) for number in range(count)]
    reports = [look(world, "full", end)[1] for end in ends]
    return [
        Outcome(
            scenario=path.stem,
            form="strong",
            seed=number,
            noise="written",
            telemetry="full",
            split="scoring",
            expected="healthy",
            status=report.status,
            said=said(report, scenario),
            gpu_hours=gpu_hours(scenario),
        )
        for number, report in enumerate(reports)
    ]
