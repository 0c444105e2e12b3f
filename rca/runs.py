"""Runs of a job: where one ends and the next begins, whether the loss falls, and how a run compares with those before.

Rows of progress are minutes apart. They are set against tokens where every run that is looked at knows them, else
against steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from rca.model import Floats, Progress
from rca.peers import MAD_TO_SIGMA, sorted_medians
from rca.plain import amount, counted, quantity

Axis: TypeAlias = Literal["tokens", "step"]
Figure: TypeAlias = Literal["loss", "tokens_per_gpu_second", "busy"]

EARLIER = 5
"""So many runs before the present one are compared with it."""
FEWEST = 12
"""Rows with a loss that are needed to say whether it falls, an hour of them."""
SURE = 3.0
"""Two stretches differ when their medians are so many standard errors apart."""
NEAR = 5
"""So many rows around a place say what a run read there."""
_ERROR_OF_MEDIAN = 1.2533


@dataclass(frozen=True, eq=False)
class Run:
    """Rows of one run, the oldest first; there is at least one."""

    rows: tuple[Progress, ...]

    def values(self, name: Axis | Figure) -> Floats:
        """Return one number of each row, shape (rows,), NaN where it is not known."""
        return np.array([getattr(one, name) for one in self.rows], dtype=np.float64)

    def last(self, name: Axis | Figure) -> float:
        """Return the last number that is known, NaN where none is."""
        known = self.values(name)
        known = known[np.isfinite(known)]
        return float(known[-1]) if len(known) else np.nan

    def usual(self, name: Figure) -> float:
        """Return the median of a number."""
        return float(sorted_medians(self.values(name)))

    def points(self, axis: Axis, name: Figure) -> tuple[Floats, Floats]:
        """Return where a number is known, and what it is."""
        places, values = self.values(axis), self.values(name)
        known = np.isfinite(places) & np.isfinite(values)
        return places[known], values[known]

    def near(self, axis: Axis, place: float, name: Figure) -> float:
        """Return the median of the few rows that are nearest to a place; NaN where there is none."""
        places, values = self.points(axis, name)
        nearest = np.argsort(np.abs(places - place), kind="stable")[:NEAR]
        return float(sorted_medians(values[nearest]))


class Curve(NamedTuple):
    """A run in a chart: its name, and `values` at `places`."""

    name: str
    places: Floats
    values: Floats


class Plot(NamedTuple):
    """A chart of runs over tokens or steps, the present one first; `about` says in words what is to be seen."""

    title: str
    about: str
    axis: Axis
    unit: str
    curves: tuple[Curve, ...]


def parted(rows: Sequence[Progress]) -> list[Run]:
    """Part the rows of a job, the oldest first, into runs: one begins where the step falls back.

    >>> told = [Progress(job="a", at="", step=step) for step in (10, 20, None, 5, 15, 15)]
    >>> [[one.step for one in run.rows] for run in parted(told)]
    [[10, 20, None], [5, 15, 15]]
    """
    found: list[list[Progress]] = []
    reached = -1
    for row in rows:
        if not found or (row.step is not None and row.step < reached):
            found.append([])
        found[-1].append(row)
        reached = reached if row.step is None else row.step
    return [Run(tuple(run)) for run in found]


def axis(runs: Sequence[Run]) -> Axis:
    """Say what runs are set against: tokens, where most rows of each know them."""
    return "tokens" if all(np.isfinite(run.values("tokens")).mean() > 0.5 for run in runs) else "step"


def place(along: Axis, where: float) -> str:
    """Name a place on an axis.

    >>> place("tokens", 1.2e12), place("step", 12340.0)
    ('1.20 T tokens', 'step 12,340')
    """
    return f"{amount(where)} tokens" if along == "tokens" else f"step {where:,.0f}"


def stretch(along: Axis, length: float) -> str:
    """Name a stretch of an axis.

    >>> stretch("tokens", 4e10), stretch("step", 900.0)
    ('40.0 B tokens', '900 steps')
    """
    return f"{amount(length)} tokens" if along == "tokens" else counted(round(length), "step")


def learning(run: Run) -> str:
    """Say whether the loss of a run falls: the last stretch against the one before it, or that it cannot be told.

    The stretches are an eighth of the run, where these do not differ surely a quarter, and then halves.
    """
    along = axis([run])
    places, losses = run.points(along, "loss")
    if len(losses) < FEWEST or places[-1] <= places[0]:
        few = f"it is known at {counted(len(losses), 'time')}, {FEWEST} are needed"
        return f"It cannot be told yet whether the loss falls: {few if len(losses) < FEWEST else 'no step was done'}."
    said = ""
    for width in sorted({max(FEWEST // 2, len(losses) // part) for part in (8, 4, 2)}):
        then, now, error = _stretches(losses, width)
        long = stretch(along, float(places[-1] - places[-width]))
        said = f"{_loss(now)} over the last {long}, {_loss(then)} over as much before"
        if abs(now - then) > SURE * error:
            return f"The loss {'falls' if now < then else 'rises'}: {said}."
    return f"It cannot be told whether the loss still falls: {said}, which is no more than noise."


def _stretches(values: Floats, width: int) -> tuple[float, float, float]:
    """Return the medians of the last two stretches of so many values, and the standard error of their difference.

    The noise is taken from the differences of neighbours, which a slow fall hardly touches.

    >>> _stretches(np.array([4.0, 4.1, 4.0, 3.0, 3.1, 3.0]), 3)[:2]
    (4.0, 3.0)
    """
    before, lately = values[-2 * width : -width], values[-width:]
    noise = MAD_TO_SIGMA * float(np.median(np.abs(np.diff(values[-2 * width :])))) / np.sqrt(2.0)
    return float(np.median(before)), float(np.median(lately)), _ERROR_OF_MEDIAN * noise * float(np.sqrt(2.0 / width))


def activity(run: Run) -> str:
    """Say whether the GPUs of a job are busy, against what is usual in its run."""
    row = next((one for one in reversed(run.rows) if one.busy is not None), None)
    if row is None or row.busy is None:
        return "It is not known whether the GPUs are busy."
    means = {
        "gpu_tensor_active": "The tensor pipes work {} of the time",
        "gpu_sm_active": "The SMs work {} of the time",
        "gpu_utilisation": "A kernel is resident {} of the time, which GPUs that wait show as well",
    }
    share = quantity(row.busy, "ratio")
    usual = [one.busy for one in run.rows if one.busy is not None and one.busy_signal == row.busy_signal]
    against = f"; {quantity(float(np.median(usual)), 'ratio')} is usual in this run" if len(usual) > 1 else ""
    return f"{means.get(row.busy_signal, '{} busy').format(share)}, median of the GPUs{against}."


def comparison(runs: Sequence[Run]) -> str:
    """Say how the last of some runs does against the one before, at the last place that both have reached.

    The empty string where there is only one, or nothing to compare.
    """
    if len(runs) < 2:
        return ""
    before, present = runs[-2], runs[-1]
    along = axis([before, present])
    where = min(before.last(along), present.last(along))
    first = max((np.nanmin(run.values(along)) for run in (before, present) if np.isfinite(run.last(along))), default=0)
    if not np.isfinite(where):
        return ""
    if where < first:
        return f"The run before ended at {place(along, before.last(along))}, this one began at {place(along, first)}."
    losses = [run.near(along, where, "loss") for run in (present, before)]
    rates = [run.near(along, where, "tokens_per_gpu_second") for run in (present, before)]
    parts = [f"loss {_loss(losses[0])}, the run before {_loss(losses[1])}"] if np.isfinite(losses).all() else []
    parts += [_faster(rates[0], rates[1])] if np.isfinite(rates).all() and rates[1] > 0 else []
    return f"At {place(along, where)}: {'; '.join(parts)}." if parts else ""


def _faster(now: float, then: float) -> str:
    """Say how a throughput compares.

    >>> _faster(96.0, 100.0), _faster(100.2, 100.0)
    ('throughput 4 % lower', 'throughput alike')
    """
    change = now / then - 1.0
    if abs(change) < 0.005:
        return "throughput alike"
    return f"throughput {abs(change) * 100.0:.0f} % {'higher' if change > 0 else 'lower'}"


def plots(runs: Sequence[Run], names: Sequence[str]) -> list[Plot]:
    """Return charts of the last of some runs and those before, whose names are given: the loss, and the throughput."""
    along = axis(runs)
    over = "tokens" if along == "tokens" else "steps"
    found = []
    wanted: tuple[tuple[Figure, str, str], ...] = (
        ("loss", "Loss", "loss"), ("tokens_per_gpu_second", "Tokens per GPU and second", ""),
    )  # fmt: skip
    for name, title, unit in wanted:
        drawn = [Curve(called, *run.points(along, name)) for run, called in zip(runs, names, strict=True)][::-1]
        ends = [places[[0, -1]] for _, places, _ in drawn if len(places)]
        if len(drawn[0].places) < 2 or np.ptp(np.concatenate(ends)) <= 0:
            continue
        last = f"{quantity(float(drawn[0].values[-1]), unit)} at {place(along, float(drawn[0].places[-1]))}"
        others = [one for one in drawn[1:] if len(one.places)]
        beside = f", and {counted(len(others), 'run')} before it" if others else ""
        about = f"{title} over {over}: the present run, last {last}{beside}"
        found.append(Plot(f"{title} over {over}", about, along, unit, (drawn[0], *others)))
    return found


def _loss(value: float) -> str:
    return quantity(value, "loss")


__all__ = [
    "EARLIER", "Axis", "Curve", "Plot", "Run", "activity", "axis", "comparison", "learning", "parted", "place", "plots",
    "stretch",
]  # fmt: skip
