"""Runs of experiment trackers: points by name, step and time become the series that a training job would export."""

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rca.imports import Found, Imports, System, Tally
from rca.model import Floats
from rca.sources.kept import Series

GAP = 3.0
"""A rate holds for at most so many usual times between two of its values: nothing is known of a longer pause."""


@dataclass(eq=False)
class Points:
    """Samples of one name as they come: unix seconds, values, and the x axis (NaN where there is none)."""

    times: "array[float]" = field(default_factory=lambda: array("d"))
    values: "array[float]" = field(default_factory=lambda: array("d"))
    steps: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, time: float, value: float, step: float = float("nan")) -> None:
        """Append a sample."""
        self.times.append(time)
        self.values.append(value)
        self.steps.append(step)

    def ordered(self) -> tuple[Floats, Floats, Floats]:
        """Return times, values and steps, ascending in time; of equal times the last sample stays."""
        times, values, steps = (np.frombuffer(one, dtype=np.float64) for one in (self.times, self.values, self.steps))
        if len(times) > 1 and not bool(np.all(np.diff(times) > 0.0)):
            order = np.argsort(times, kind="stable")
            order = order[np.append(np.diff(times[order]) > 0.0, True)]
            times, values, steps = times[order], values[order], steps[order]
        return times.copy(), values.copy(), steps.copy()


class Heap:
    """Points by what they become. Where several names become one series, that of the first row of the table counts."""

    def __init__(self) -> None:
        self._points: dict[tuple[str, tuple[tuple[str, str], ...]], dict[int, tuple[Found, Points]]] = {}

    def points(self, found: Found, labels: Mapping[str, str]) -> Points:
        """Return where the points of a name with these labels go."""
        key = (found.row.metric, tuple(sorted(labels.items())))
        return self._points.setdefault(key, {}).setdefault(found.order, (found, Points()))[1]

    def chosen(self) -> Iterator[tuple[Found, dict[str, str], Points]]:
        """Yield for each series the name that counts, its labels and its points."""
        for (_, labels), by_order in sorted(self._points.items(), key=lambda one: one[0]):
            filled = [order for order, (_, points) in by_order.items() if len(points.times)]
            if filled:
                found, points = by_order[min(filled)]
                yield found, dict(labels), points

    def series(self) -> Iterator[Series]:
        """Yield the series."""
        for found, labels, points in self.chosen():
            yield from _taken(found, labels, points)


class Run:
    """One run of a tracker, written by one process: what its names become.

    Training values carry the labels `job_id` and `rank`; values of a GPU its node, its index and the job.
    """

    def __init__(self, who: Mapping[str, str], imports: Imports, system: System | None, tally: Tally) -> None:
        self._job, self._rank, self._node = who["job_id"], who.get("rank", "0"), who.get("node", "")
        self._imports = imports
        self._systems: tuple[System, ...] = ("training",) if system is None else ("training", system)
        self._tally = tally
        self._heap = Heap()
        self._names: dict[str, Points | None] = {}

    def wants(self, name: str) -> bool:
        """Say whether points of a name are read."""
        return self._of(name) is not None

    def add(self, name: str, time: float, value: float, step: float = float("nan")) -> None:
        """Take a point."""
        points = self._of(name)
        if points is not None:
            points.add(time, value, step)

    def _of(self, name: str) -> Points | None:
        if name not in self._names:
            found = self._imports.find(name, *self._systems)
            self._tally.note(name, read=found is not None)
            self._names[name] = None if found is None else self._heap.points(found, self._labels(found))
        return self._names[name]

    def _labels(self, found: Found) -> dict[str, str]:
        labels = dict(found.labels)
        if "gpu" not in labels:
            return {**labels, "job_id": self._job, "rank": self._rank}
        return {**labels, "Hostname": labels.pop("node", "") or self._node or self._job, "job_id": self._job}

    def series(self) -> list[Series]:
        """Return its series; the x axis of the names that are read becomes the count of steps, or of samples."""
        who = {"job_id": self._job, "rank": self._rank}
        chosen = list(self._heap.chosen())
        axis = next((points.ordered() for one, _, points in chosen if one.row.takes == "axis"), None)
        found: list[Series] = []
        longest: dict[str, tuple[Floats, Floats]] = {}
        for one, labels, points in chosen:
            if one.row.takes == "axis":
                continue
            times, _, steps = points.ordered()
            if one.row.metric == "train_loss":
                found += _nonfinite(points, who)
            if one.row.system == "training" and len(times) > len(longest.get(one.row.axis, ((),))[0]):
                longest[one.row.axis] = times, steps
            found += _taken(one, labels, points, axis)
        if axis is not None:
            longest[""] = axis[0], axis[1]
        for counts, (times, counted) in sorted(longest.items()):
            found += _progress(times, counted, counts == "samples", who)
        return found


def _taken(
    found: Found, labels: Mapping[str, str], points: Points, axis: tuple[Floats, Floats, Floats] | None = None
) -> Iterator[Series]:
    """Yield what points become: themselves, or what they add up to over steps or over time.

    `axis` holds the times and numbers of steps where they are told apart from the points.
    """
    times, values, steps = points.ordered()
    steps = steps if axis is None else np.interp(times, axis[0], axis[1])
    name, values = found.row.metric, values * found.row.factor
    if found.row.takes == "value":
        yield Series({"__name__": name, **labels}, times, values)
        return
    finite = np.isfinite(values)
    times, values, steps = times[finite], values[finite], steps[finite]
    if found.row.takes == "per_second":
        yield Series({"__name__": name, **labels}, times, np.cumsum(values * _passed(times)))
    elif found.row.takes == "per_step":
        done = _grown(steps)
        total = np.cumsum(values * done)
        yield Series({"__name__": name if name.endswith("_total") else f"{name}_sum", **labels}, times, total)
        if not name.endswith("_total"):
            yield Series({"__name__": f"{name}_count", **labels}, times, np.cumsum(done))


def _grown(steps: Floats) -> Floats:
    """Return by how much an x axis grew to each of its values; where it falls back, a run was resumed.

    >>> _grown(np.array([10.0, 20.0, 15.0, 25.0]))
    array([ 0., 10.,  0., 10.])
    """
    return np.nan_to_num(np.maximum(np.diff(steps, prepend=steps[:1]), 0.0))


def _passed(times: Floats) -> Floats:
    """Return the seconds that each value of a rate stands for: since the one before it, a long pause aside.

    >>> _passed(np.array([0.0, 10.0, 20.0, 900.0]))
    array([ 0., 10., 10., 30.])
    """
    passed = np.diff(times, prepend=times[:1])
    return np.minimum(passed, GAP * float(np.median(passed[1:]))) if len(times) > 1 else passed


def _progress(times: Floats, counted: Floats, samples: bool, labels: Mapping[str, str]) -> Iterator[Series]:
    """Yield the counter of what an x axis counts, and the number of the step."""
    known = np.isfinite(counted)
    times, counted = times[known], counted[known]
    if not len(times):
        return
    new: NDArray[np.bool_] = np.append(True, np.diff(counted) != 0.0)
    times, counted = times[new], counted[new]
    total = "train_samples_total" if samples else "train_steps_total"
    yield Series({"__name__": total, **labels}, times, np.cumsum(_grown(counted)))
    if not samples:
        yield Series({"__name__": "train_step", **labels}, times, counted)


def _nonfinite(points: Points, labels: Mapping[str, str]) -> Iterator[Series]:
    """Yield how often the loss was no number so far, where it ever was none."""
    times, values, _ = points.ordered()
    for kind, mask in (("nan", np.isnan(values)), ("inf", np.isinf(values))):
        if mask.any():
            yield Series(
                {"__name__": "train_nonfinite_steps_total", "kind": kind, **labels}, times, np.cumsum(mask) * 1.0
            )
