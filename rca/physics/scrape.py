"""Scrapes: who is asked when, what was missed, and how a trace looks at those times."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rca.library import seconds
from rca.model import Floats
from rca.physics.cluster import Ints
from rca.physics.layout import ABSENT
from rca.physics.run import DT, Trace, generator
from rca.physics.stops import stop
from rca.physics.written import Exporter

Labels = Mapping[str, str]
MetricType = Literal["gauge", "counter", "info", "summary", "unknown"]
_JOBS = {"dcgm": "dcgm-exporter", "node": "node-exporter", "train": "training"}
_COLLECTION = 30.0  # default collection interval of dcgm-exporter


class Target(NamedTuple):
    """An endpoint that Prometheus scrapes: `node` and `rank` (of job `layout`) say what stands behind it."""

    exporter: Exporter
    node: int
    labels: Labels
    layout: int = -1
    rank: int = -1


@dataclass(frozen=True, eq=False)
class Family:
    """The series of one metric name.

    Series i has `labels[i]` (the target's among them), comes from target `target[i]`, and `draw()` yields (n, S) values
    at the scrapes of these targets, NaN for no sample.
    """

    name: str
    type: MetricType
    labels: Sequence[Labels]
    target: Ints
    draw: Callable[[], Floats]


@dataclass(frozen=True, eq=False)
class Scrapes:
    """Scrape k of target i takes place at `times[i, k]` seconds; `known` while it is configured, `taken` if it worked."""

    targets: Sequence[Target]
    times: Floats
    known: NDArray[np.bool_]
    taken: NDArray[np.bool_]
    interval: float

    def of(self, exporter: Exporter) -> Ints:
        """Return the rows of one exporter's targets, by node or by rank."""
        return np.array([i for i, target in enumerate(self.targets) if target.exporter == exporter], dtype=np.int64)


def schedule(trace: Trace) -> Scrapes:
    """Plan all scrapes of a scenario, with phase, jitter, misses and gaps."""
    telemetry = trace.plant.scenario.telemetry
    rng = generator(trace.plant.scenario.seed, "scrapes")
    targets = _targets(trace)
    interval = seconds(telemetry.interval)
    count = int(trace.edges[-1] / interval)
    phase = rng.uniform(0.0, interval * 0.9, (len(targets), 1))
    times = phase + interval * np.arange(count) + rng.uniform(0.0, 0.05, (len(targets), count))
    taken = rng.random(times.shape) >= telemetry.missed
    known = np.ones(times.shape, dtype=bool)
    down, dead = trace.spread("down") > 0, _dead(trace)
    for row, target in enumerate(targets):
        taken[row] &= ~down[_rows(trace, times[row]), target.node]
        if target.rank >= 0:
            taken[row] &= ~dead[target.layout][_rows(trace, times[row]), target.rank]
            known[row] = trace.jobs[target.layout].state[_rows(trace, times[row])] != ABSENT
        for gap in telemetry.gaps:
            node = trace.plant.hardware.nodes[target.node]
            if gap.exporter == target.exporter and gap.gpu is None and gap.node in (None, node):
                taken[row] &= ~during(times[row], gap.at, gap.until)
    return Scrapes(targets, times, known, taken & known, interval)


def _dead(trace: Trace) -> list[NDArray[np.bool_]]:
    """Return for each job (T, R): ranks without a process."""
    plant = trace.plant
    found = []
    for row, layout in enumerate(plant.layouts):
        found.append(np.stack([stop(plant, row, layout, held).dead for held in trace.conditions])[trace.segment])
    return found


def during(times: Floats, at: str, until: str | None) -> NDArray[np.bool_]:
    """Mark times from `at` until `until`, both durations since the start."""
    return (times >= seconds(at)) & (times < (seconds(until) if until else np.inf))


def _targets(trace: Trace) -> list[Target]:
    plant = trace.plant
    found = []
    for index, node in enumerate(plant.hardware.nodes):
        rack = {"rack": f"rack-{index // plant.scenario.cluster.per_rack}"} if plant.scenario.telemetry.rack else {}
        found.append(Target("dcgm", index, {"instance": f"{node}:9400", "job": _JOBS["dcgm"]}))
        found.append(Target("node", index, {"instance": f"{node}:9100", "job": _JOBS["node"], **rack}))
    for number, layout in enumerate(plant.layouts):
        for rank, gpu in enumerate(layout.gpu):
            at = int(plant.hardware.node[gpu])
            port = 9650 + int(plant.hardware.slot[gpu])
            labels = {"instance": f"{plant.hardware.nodes[at]}:{port}", "job": _JOBS["train"]}
            found.append(Target("train", at, labels, number, rank))
    return found


def collected(trace: Trace, scrapes: Scrapes) -> Floats:
    """Return (nodes, S): when DCGM collected the values that each scrape shows; slow nodes repeat them."""
    rows = scrapes.of("dcgm")
    times = scrapes.times[rows]
    slow = np.isin(trace.plant.hardware.nodes, trace.plant.scenario.telemetry.slow)
    phase = (times[:, :1] * 7.0) % _COLLECTION
    old = np.floor((times - phase) / _COLLECTION) * _COLLECTION + phase
    return np.maximum(np.where(slow[:, None], old, times - 1.0), 0.0)


def _rows(trace: Trace, when: Floats) -> Ints:
    """Return the row of the trace that holds at each time."""
    return np.clip((when / DT).astype(np.int64), 0, len(trace.edges) - 2)


def hold(trace: Trace, values: Floats, rows: Ints, when: Floats) -> Floats:
    """Return (n, S): column `rows[i]` of `values` (T, entities) as it is at `when[i]`."""
    picked: Floats = values[_rows(trace, when), rows[:, None]]
    return picked


def grow(rate: Floats, rows: Ints, when: Floats) -> Floats:
    """Return (n, S): what has come together at `when[i]` of `rate` (T, entities) a second."""
    return between(_summed(rate), rows, when)


def _summed(rate: Floats) -> Floats:
    """Return (T + 1, entities): what has come together at the edges."""
    return np.concatenate([np.zeros((1, rate.shape[1])), np.cumsum(rate * DT, axis=0)])


def between(total: Floats, rows: Ints, when: Floats) -> Floats:
    """Return (n, S): column `rows[i]` of `total` (T + 1, entities), which stands at the edges, at `when[i]`."""
    position = np.clip(when / DT, 0.0, total.shape[0] - 1.000001)
    low = position.astype(np.int64)
    column = rows[:, None]
    start: Floats = total[low, column]
    return start + (total[low + 1, column] - start) * (position - low)


def average(trace: Trace, values: Floats, rows: Ints, when: Floats) -> Floats:
    """Return (n, S): the mean of `values` over the scrape interval before `when[i]`."""
    end = np.maximum(when, DT)
    width = np.minimum(seconds(trace.plant.scenario.telemetry.interval), end)
    total = _summed(values)
    return (between(total, rows, end) - between(total, rows, end - width)) / width


def up(scrapes: Scrapes) -> Family:
    """Return the series that Prometheus writes itself: whether each scrape worked."""
    values = np.where(scrapes.known, scrapes.taken.astype(np.float64), np.nan)
    labels = [target.labels for target in scrapes.targets]
    return Family("up", "gauge", labels, np.arange(len(labels)), lambda: values)


def exported(trace: Trace, name: str) -> bool:
    """Say whether anybody exports a metric of this name."""
    return not any(re.fullmatch(pattern, name) for pattern in trace.plant.scenario.telemetry.absent)
