"""Work that keeps pace with a store: tables and signals are worked out while later answers are on their way."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from rca.library import Library
from rca.model import Window
from rca.sources.asking import Answered, Questions, Sampling
from rca.sources.derive import Members, Work
from rca.sources.expressions import SHORT, Sampled
from rca.sources.grid import EDGE, Grid, common_step
from rca.sources.measure import Bench, Material, Times
from rca.sources.ranks import members
from rca.sources.readings import Readings
from rca.sources.series import Block
from rca.sources.tables import World, build
from rca.sources.topology import Topology

TRIES = 2
"""So many drafts are begun before all answers are in: what a draft takes is lost if a later answer upsets it."""


class Draft:
    """Tables and signals from the answers so far.

    It stands as long as later answers tell of nobody new, and is right in the end if they change nothing else that it
    is built on either.
    """

    def __init__(self, desk: "Desk", world: World, times: Times) -> None:
        self.times = times
        self.directory = build(desk.library.entities, world)
        material = Material(desk.series, desk.failed, desk.readings.readers, desk.readings.codes, self.directory)
        self.bench = Bench(desk.asked, material, times)
        self.derived = Work(desk.library.signals, Members(desk.library.entities, self.directory.tables))
        self._desk = desk
        self._world = world
        self._sizes = desk.readings.sizes()
        self._open = [name for name, signal in sorted(desk.library.signals.items()) if signal.derived is None]

    def advance(self) -> None:
        """Measure every signal whose answers are all in, and compute those that are derived from them."""
        for name in [name for name in self._open if self._desk.complete(name)]:
            self.derived.take(name, self.bench.measure(name, self._desk.library.signals[name]))
            self._open.remove(name)

    def stands(self) -> bool:
        """Say whether nobody new was told of since."""
        return self._desk.readings.sizes() == self._sizes

    def fits(self, world: World, times: Times) -> bool:
        """Say whether it would be the same if it was begun now."""
        told = [(one.hosts, one.uplinks, one.active, len(one.infos)) for one in (self._world, world)]
        return self.stands() and self.times == times and told[0] == told[1]


class Desk:
    """Where answers come in; what is worked out of them is the same in whatever order they come."""

    def __init__(
        self, library: Library, asked: Questions, window: Window, topology: Topology, step: float | None
    ) -> None:
        self.library = library
        self.asked = asked
        self.readings = Readings(library, asked)
        self.answered: dict[int, Answered] = {}
        self.series: dict[int, Sampled] = {}
        self.failed: dict[int, str] = {}
        self._window = window
        self._topology = topology
        self._step = step
        self._sampling = Sampling()
        self.draft: Draft | None = None
        self._tries = TRIES

    def add(self, number: int, one: Answered) -> None:
        """Take a selector's answer, and do what can be done with it."""
        self.answered[number] = one
        self.add_block(number, one.block)
        if self.draft is not None and not self.draft.stands():
            self.draft = None
        if self.draft is None and self._tries and self.readings.leading <= self.series.keys():
            self._tries -= 1
            self.draft = self._begun()
        if self.draft is not None:
            self.draft.advance()

    def add_block(self, number: int, block: Block) -> None:
        """Take the series of any answer."""
        self.series[number] = self._sampling.add(block)
        self.readings.add(number, self.series[number])

    def complete(self, name: str) -> bool:
        """Say whether all that a signal's queries read is in."""
        numbers = {number for query in self.asked.queries.get(name, ()) for number in query.reads.values()}
        return all(number in self.series or number in self.failed for number in numbers)

    def finished(self) -> Draft:
        """Return the draft of all answers."""
        if self.draft is None or not self.draft.fits(self._world(), self.times()):
            self.draft = self._begun()
        self.draft.advance()
        return self.draft

    def _begun(self) -> Draft:
        return Draft(self, self._world(), self.times())

    def _world(self) -> World:
        world = self.readings.world(self.series, self._topology)
        return replace(world, infos=members(world.infos, self._window.start - SHORT))

    def times(self) -> Times:
        """Choose the grids by the answers so far."""
        return choose_times(self.asked, self.series, self._window, self._step)


def choose_times(asked: Questions, series: Mapping[int, Sampled], window: Window, step: float | None) -> Times:
    """Choose the grid: the given step, or the usual spacing of the fastest samples that are common."""
    if step is None:
        infos = set(asked.infos.values())
        found = [(one.timeline.interval, len(one.labels)) for number, one in series.items() if number not in infos]
        step = common_step([(seconds, count) for seconds, count in found if seconds is not None])
    size = max(int((window.end - window.start) / step + 1e-6) + 1, 1)
    inner = Grid(window.end, step, size)
    ahead = max(int(window.baseline / step + 1e-6), 0)
    whole = Grid(window.end, step, size + ahead)
    if any(asked.back[len(asked.selectors) :]):
        return Times(inner, whole, whole)
    back = [one.timeline.times for number, one in series.items() if asked.back[number]]
    earliest = min((float(times.min()) for times in back if len(times)), default=window.end)
    used = -int(np.ceil((earliest - inner.start) / step - 1.0 + EDGE))
    return Times(inner, whole, Grid(window.end, step, size + min(max(used, 0), ahead)))
