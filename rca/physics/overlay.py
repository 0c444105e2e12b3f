"""What series show beside the simulation: the `shows` and `counts` of faults, laid over what was drawn."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rca.library import seconds
from rca.model import Floats
from rca.physics.conditions import Plant, select
from rca.physics.scrape import Family, Labels, Scrapes, Target
from rca.physics.written import Fault, Scenario, Where

_SELECTOR = re.compile(r'([a-zA-Z_:][\w:]*)(?:\{(\w+)="([^"]*)"\})?')


@dataclass(frozen=True)
class Overlay:
    """Series of one metric at the place of a fault: what they read, or grow by a second where it `counts`."""

    fault: Fault
    written: str
    value: float
    counts: bool

    @property
    def metric(self) -> str:
        """Return the name of the metric, empty where what is written is no selector."""
        found = _SELECTOR.fullmatch(self.written)
        return found[1] if found else ""

    def rows(self, plant: Plant, family: Family, scrapes: Scrapes) -> NDArray[np.bool_]:
        """Mark the series of a family that are meant, shape (n,)."""
        found = _SELECTOR.fullmatch(self.written)
        if found is None or found[1] != family.name:
            return np.zeros(len(family.labels), dtype=bool)
        named = np.array([found[2] is None or labels.get(found[2]) == found[3] for labels in family.labels], dtype=bool)
        for row in np.flatnonzero(named).tolist():
            named[row] = _there(plant, self.fault.on, family.labels[row], scrapes.targets[family.target[row]])
        return named

    def laid(self, values: Floats, times: Floats) -> Floats:
        """Return series with what this adds to them; `times` (n, S) in seconds from the start."""
        start = seconds(self.fault.at)
        end = seconds(self.fault.until) if self.fault.until else np.inf
        if self.counts:
            return values + np.floor(self.value * np.clip(times - start, 0.0, end - start))
        return np.where((times >= start) & (times < end), self.value, values)


def overlays(scenario: Scenario) -> Iterator[Overlay]:
    """Yield what the faults of a scenario show, in the order of the file."""
    for fault in scenario.faults:
        yield from (Overlay(fault, name, value, False) for name, value in (fault.shows or {}).items())
        yield from (Overlay(fault, name, value, True) for name, value in (fault.counts or {}).items())


def relabelled(plant: Plant, family: Family, scrapes: Scrapes) -> Family:
    """Return a family with the labels that faults change at their places."""
    labels = list(family.labels)
    for fault in plant.scenario.faults:
        for row, own in enumerate(labels) if fault.labels else ():
            said = {name: text for name, text in (fault.labels or {}).items() if name in own}
            if said and _there(plant, fault.on, own, scrapes.targets[family.target[row]]):
                labels[row] = {**own, **said}
    return replace(family, labels=labels)


def _there(plant: Plant, where: Where, labels: Labels, target: Target) -> bool:
    """Say whether a series stands at a place."""
    if "export" in labels:
        return where.export in (None, labels["export"]) and target.node in select(plant, where, "node")
    if target.rank >= 0:
        return plant.ranks(target.layout).start + target.rank in select(plant, where, "rank")
    slot = labels.get("gpu", labels.get("device", "").removeprefix("mlx5_"))
    if not slot.isdigit():
        return target.node in select(plant, where, "node")
    gpus = np.flatnonzero((plant.hardware.node == target.node) & (plant.hardware.slot == int(slot)))
    return bool(np.isin(gpus, select(plant, where, "gpu")).any())
