"""How far jobs are, and how fast: what a report tells of them beside what is wrong."""

import math
from typing import NamedTuple

import numpy as np

from rca.library import Library
from rca.model import Floats, Progress, Snapshot
from rca.peers import sorted_medians
from rca.plain import stamp
from rca.rows import carried

LATEST = 300.0
"""What is told is of so many seconds before the end of the window."""
LARGEST = 2.0**53
"""From here on numbers count nothing: they are wrong, and not every program can read them."""
BUSY = {"gpu_tensor_active": 1.0, "gpu_sm_active": 1.0, "gpu_utilisation": 0.01}
"""The signals that say whether GPUs are busy, the one that says most first, and what makes a share of them."""


class _Busy(NamedTuple):
    share: float
    signal: str


def progress(library: Library, snapshot: Snapshot) -> list[Progress]:
    """Tell of each job what is known of it; a job of which nothing is known is left out."""
    table = snapshot.tables.get("job")
    if table is None:
        return []
    recent = _Recent(library, snapshot)
    told = [recent.progress(row, str(job)) for row, job in enumerate(table.columns["job"])]
    return [one for one in told if one != Progress(job=one.job, at=one.at)]


class _Recent:
    """What the signals of jobs read lately."""

    def __init__(self, library: Library, snapshot: Snapshot) -> None:
        self._kinds = {name: signal.entity for name, signal in library.signals.items()}
        self._snapshot = snapshot
        self._at = stamp(float(snapshot.times[-1])) if len(snapshot.times) else ""
        self._columns = max(round(LATEST / snapshot.step), 1)

    def progress(self, row: int, job: str) -> Progress:
        """Return what is known of one job."""
        done, number = self._last("job_steps", row), self._last("job_step_number", row)
        step = done if math.isnan(number) else number
        target, pace = self._last("job_target_steps", row), self._median("job_step_seconds", row)
        rate, ranks = self._median("job_tokens_per_gpu", row), self._ranks(row, job)
        tokens = in_all(self._last("job_tokens", row), done, number, rate * ranks * pace)
        busy = self._busy(job)
        return Progress(
            job=job,
            at=self._at,
            step=_whole(step),
            target_step=_whole(target),
            tokens=_whole(tokens),
            tokens_per_gpu_second=_known(rate),
            step_seconds=_known(pace),
            loss=_known(self._median("job_loss", row)),
            ranks=_whole(ranks),
            busy=_known(busy.share),
            busy_signal=busy.signal,
            eta_seconds=_known(max(target - step, 0.0) * pace),
        )

    def _seen(self, name: str, kind: str) -> Floats:
        """Return the latest samples of a signal, shape (n, T); none where the signal is not of that kind."""
        measurement = self._snapshot.measurements.get(name)
        if measurement is None or self._kinds.get(name) != kind:
            return np.full((0, 0), np.nan)
        return measurement.window[:, -self._columns :]

    def _median(self, name: str, row: int) -> float:
        seen = self._seen(name, "job")
        return float(sorted_medians(seen[row])) if len(seen) else math.nan

    def _last(self, name: str, row: int) -> float:
        seen = self._seen(name, "job")
        return float(carried(seen[row : row + 1])[0, -1]) if seen.size else math.nan

    def _ranks(self, row: int, job: str) -> float:
        """Return how many ranks report, else how many are known."""
        reporting = self._median("job_gpus", row)
        table = self._snapshot.tables.get("rank")
        if math.isnan(reporting) and table is not None:
            return float(np.count_nonzero(table.columns["job"] == job)) or math.nan
        return reporting

    def _busy(self, job: str) -> _Busy:
        """Return the median activity of a job's GPUs, by the best signal that says it."""
        table = self._snapshot.tables.get("gpu")
        if table is not None and "job" in table.columns:
            own = np.flatnonzero(table.columns["job"] == job)
            for name, factor in BUSY.items():
                seen = self._seen(name, "gpu")
                share = float(sorted_medians(seen[own].ravel())) * factor if len(seen) else math.nan
                if not math.isnan(share):
                    return _Busy(share, name)
        return _Busy(math.nan, "")


def in_all(counted: float, done: float, number: float, per_step: float) -> float:
    """Return the tokens since the first step of a job, also where its processes were started again later.

    `counted` is what they have counted in the `done` steps since then, `number` the step that they are at, `per_step`
    what a step takes now. Some exporters go on counting over restarts: where that fits better, `counted` is all.

    >>> in_all(4e6, 4.0, 10.0, 1e6), in_all(10e6, 4.0, 10.0, 1e6), in_all(4e6, 4.0, math.nan, math.nan)
    (10000000.0, 10000000.0, 4000000.0)
    """
    if not all(0.0 < value < LARGEST for value in (counted, done, number)):
        return counted
    whole, expected = counted / done * number, per_step * number
    if 0.0 < expected < LARGEST and abs(math.log(counted / expected)) < abs(math.log(whole / expected)):
        return counted
    return whole


def _known(value: float) -> float | None:
    """Return a number with six significant digits; None for NaN.

    >>> _known(2.3123456789), _known(math.nan)
    (2.31235, None)
    """
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _whole(value: float) -> int | None:
    return round(value) if abs(value) < LARGEST else None
