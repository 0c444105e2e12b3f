"""A made-up cluster as a store that another process can open: what is sent there must be found by name."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np

from rca.model import Floats
from rca.physics.world import World, simulate
from rca.sources.labels import Pool
from rca.sources.scenario import ScenarioStore, read
from rca.sources.series import Block, Selector

SCENARIOS = Path(__file__).parents[1] / "scenarios"


@lru_cache
def world(name: str) -> World:
    """Simulate a scenario, once a process."""
    return simulate(read(SCENARIOS / f"{name}.yaml"))


class Past(ScenarioStore):
    """A cluster whose present is the end of a scenario."""

    def now(self) -> float:
        return self.world.end

    def fetch(self, selectors: Sequence[Selector]) -> Iterator[tuple[int, Block]]:
        return super().fetch([one._replace(end=min(one.end, self.world.end)) for one in selectors])

    def evaluate(self, query: str, times: Floats) -> Block:
        return Block([], np.zeros(1, dtype=np.int64), np.zeros(0), np.zeros(0))


@contextmanager
def opened(_pool: Pool | None) -> Iterator[Past]:
    """Open the cluster of `cooling_fault`."""
    yield Past(world("cooling_fault"))


@contextmanager
def broken(_pool: Pool | None) -> Iterator[Past]:
    """Fail as nobody foresaw."""
    raise FileNotFoundError("no such thing")
    yield


@contextmanager
def away(_pool: Pool | None) -> Iterator[Past]:
    """Fail as a server that is away."""
    from rca.errors import SourceError

    raise SourceError("http://prometheus: connection refused")
    yield
