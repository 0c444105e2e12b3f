"""Everything that Prometheus would hold of a scenario: series by metric name, with real timestamps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rca.library import seconds
from rca.model import Floats
from rca.physics import board, dcgm, host, training
from rca.physics.overlay import Overlay, overlays, relabelled
from rca.physics.run import Trace, happen
from rca.physics.scrape import Family, MetricType, Scrapes, exported, schedule, up
from rca.physics.written import Scenario

Laid = tuple[Overlay, Sequence[NDArray[np.bool_]]]
"""What a fault shows, and for each family of a metric the series (n,) that show it."""
EPOCH = 1767571200.0  # 2026-01-05T00:00:00Z, when every scenario begins unless told otherwise


class Metric:
    """All series of one metric name; values are drawn when they are first asked for."""

    def __init__(self, families: Sequence[Family], scrapes: Scrapes, stamps: Floats, laid: Sequence[Laid] = ()) -> None:
        self.name = families[0].name
        self.type: MetricType = families[0].type
        self.labels = [{"__name__": self.name, **labels} for family in families for labels in family.labels]
        self._families = families
        self._scrapes = scrapes
        self._stamps = stamps
        self._laid = laid

    @cached_property
    def times(self) -> Floats:
        """Return (n, S): unix seconds of each scrape, whole milliseconds."""
        times: Floats = self._stamps[np.concatenate([family.target for family in self._families])]
        return times

    @cached_property
    def values(self) -> Floats:
        """Return (n, S): the samples, NaN where a scrape gave none."""
        parts = []
        for number, family in enumerate(self._families):
            taken = self._scrapes.known if family.name == "up" else self._scrapes.taken
            values = family.draw()
            for overlay, rows in ((one, rows[number]) for one, rows in self._laid):
                values = np.where(rows[:, None], overlay.laid(values, self._scrapes.times[family.target]), values)
            parts.append(np.where(taken[family.target], values, np.nan))
        return np.concatenate(parts)

    @cached_property
    def there(self) -> NDArray[np.bool_]:
        """Return (n, S): where there is a sample."""
        mask: NDArray[np.bool_] = ~np.isnan(self.values)
        return mask


@dataclass(frozen=True, eq=False)
class World:
    """A simulated cluster as its monitoring shows it, from `epoch` to `end` in unix seconds.

    `unseen` is what faults show or count on series that this cluster has not.
    """

    scenario: Scenario
    trace: Trace
    metrics: Mapping[str, Metric]
    epoch: float
    end: float
    unseen: tuple[str, ...] = ()


def simulate(scenario: Scenario, end: float | None = None) -> World:
    """Simulate a scenario so that it ends at `end` (default: `EPOCH` plus its duration); `check` it first."""
    trace = happen(scenario)
    epoch = EPOCH if end is None else end - seconds(scenario.duration)
    scrapes = schedule(trace)
    grouped: dict[str, list[Family]] = {}
    marked = any(fault.labels for fault in scenario.faults)
    for family in _families(trace, scrapes, epoch):
        if exported(trace, family.name) and len(family.labels):
            grouped.setdefault(family.name, []).append(relabelled(trace.plant, family, scrapes) if marked else family)
    laid: dict[str, list[Laid]] = {}
    unseen = []
    for overlay in overlays(scenario):
        rows = [overlay.rows(trace.plant, family, scrapes) for family in grouped.get(overlay.metric, ())]
        laid.setdefault(overlay.metric, []).append((overlay, rows))
        if not any(mask.any() for mask in rows) and exported(trace, overlay.metric):
            unseen.append(overlay.written)
    stamps = np.round((epoch + scrapes.times) * 1000.0) / 1000.0
    metrics = {name: Metric(grouped[name], scrapes, stamps, laid.get(name, ())) for name in sorted(grouped)}
    return World(scenario, trace, metrics, epoch, epoch + seconds(scenario.duration), tuple(unseen))


def _families(trace: Trace, scrapes: Scrapes, epoch: float) -> Iterator[Family]:
    yield up(scrapes)
    yield from dcgm.families(trace, scrapes)
    yield from host.families(trace, scrapes, epoch)
    yield from board.families(trace, scrapes, epoch)
    yield host.uplinks(trace, scrapes)
    yield from training.families(trace, scrapes, epoch)
