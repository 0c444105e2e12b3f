"""A scenario file as a source: the simulated cluster answers like a server that has scraped it."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from rca import reader
from rca.errors import Problem, ProblemsError, SourceError
from rca.imports import Imports
from rca.library import Library
from rca.load import phrases
from rca.model import Floats, LogLine, Snapshot, Window
from rca.physics.check import problems
from rca.physics.voices import Page, files
from rca.physics.world import Metric, World, simulate
from rca.physics.written import Scenario
from rca.sources import logs
from rca.sources.assemble import Deployment, assemble
from rca.sources.blocks import appended, matching
from rca.sources.foreign import Place, Ways
from rca.sources.kept import Several
from rca.sources.series import Block, Selector


def read(path: Path) -> Scenario:
    """Read a scenario file, or raise ProblemsError with all that is wrong in it, or that it asks for and cannot be."""
    scenario = reader.read_file(path, Scenario)
    wrong = problems(scenario)
    if wrong:
        raise ProblemsError(tuple(Problem(str(path), text) for text in wrong))
    return scenario


def stage(path: Path, end: float | None = None) -> World:
    """Read a scenario file and let it happen, ending at `end` (unix seconds; default: the scenario's own time)."""
    world = simulate(read(path), end)
    if world.unseen:
        texts = [f"no series at that place is called {name}" for name in world.unseen]
        raise ProblemsError(tuple(Problem(str(path), text) for text in texts))
    return world


class ScenarioStore:
    """A `Store` over the series of a simulated cluster."""

    def __init__(self, world: World) -> None:
        self.world = world

    def names(self, start: float, end: float) -> frozenset[str]:
        """Return the names of all metrics, where the scenario has anything to do with these times."""
        overlaps = start <= self.world.end and end >= self.world.epoch
        return frozenset(self.world.metrics) if overlaps else frozenset()

    def fetch(self, selectors: Sequence[Selector]) -> Iterator[tuple[int, Block]]:
        """Yield the blocks of selectors in their order."""
        for index, selector in enumerate(selectors):
            metrics = [self.world.metrics[name] for name in selector.names if name in self.world.metrics]
            yield index, appended([_cut(metric, selector) for metric in metrics])

    def evaluate(self, query: str, times: Floats) -> Block:  # noqa: ARG002 - the protocol of a store
        """Refuse: there is no server that could evaluate PromQL."""
        raise SourceError(f"scenario: cannot evaluate {query!r}, there is no server behind it")

    def warnings(self) -> tuple[str, ...]:
        """Return nothing: a simulated server does not complain."""
        return ()


class ScenarioSource:
    """Reads a scenario file as if its cluster had been watched by Prometheus."""

    def __init__(self, path: Path, deployment: Deployment | None = None) -> None:
        self.path = path
        self.deployment = deployment

    @cached_property
    def world(self) -> World:
        """Simulate once, when first asked."""
        return stage(self.path)

    def latest(self) -> float:
        """Return the end of the scenario, in unix seconds."""
        return self.world.end

    def snapshot(self, library: Library, window: Window) -> Snapshot:
        """Read all that the library's signals ask for out of the simulated series, and out of the logs of jobs that have
        `logs:`.
        """
        return seen(self.world, library, window, self.deployment)


def seen(world: World, library: Library, window: Window, deployment: Deployment | None = None) -> Snapshot:
    """Read a simulated cluster as one that was watched by Prometheus, whose jobs write logs where they have `logs:`."""
    store, jobs = ScenarioStore(world), world.scenario.all_jobs()
    with TemporaryDirectory(prefix="rca-scenario-") as folder:
        if any(job.logs is not None for job in jobs):
            write(Path(folder), files(world.trace, world.epoch))
        ways = Ways(Imports(()), UTC, templates=phrases())
        places = {job.id: Path(folder) / (job.id if len(jobs) > 1 else "") for job in jobs if job.logs is not None}
        spoken = [logs.read(Place("--scenario", str(place), name), ways) for name, place in places.items()]
        for one in spoken:
            one.place, one.said = "logs", ()  # of a folder that nobody has named
        several = Several([*spoken, store])
        found = logs.told(spoken, [store], window, lambda: assemble(several, library.in_use(), window, deployment))
        quotes, words = (tuple(_below(folder, line) for line in lines) for lines in (found.quotes, found.words))
        return replace(found, quotes=quotes, words=words)


def _below(folder: str, line: LogLine) -> LogLine:
    return line._replace(file=line.file.removeprefix(f"{folder}/"))


def write(folder: Path, pages: Iterable[Page]) -> tuple[int, int]:
    """Write log files below a folder, and return how many, and of how many bytes; SourceError where that cannot be."""
    count = size = 0
    try:
        for name, data, changed in pages:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            os.utime(path, (changed, changed))
            count, size = count + 1, size + len(data)
    except OSError as error:
        raise SourceError(f"{folder}: cannot be written, {(error.strerror or str(error)).lower()}") from error
    return count, size


def _cut(metric: Metric, selector: Selector) -> Block:
    """Return the series of one metric that a selector matches, within its times."""
    rows = matching(metric.labels, selector.matchers)
    times = metric.times[rows]
    there = metric.there[rows] & (times >= selector.start) & (times <= selector.end)
    counts = there.sum(axis=1)
    filled = np.flatnonzero(counts)
    offsets = np.concatenate(([0], np.cumsum(counts[filled]))).astype(np.int64)
    labels = [metric.labels[rows[index]] for index in filled.tolist()]
    return Block(labels, offsets, times[there], metric.values[rows][there])
