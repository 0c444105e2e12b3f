"""Time of the pure `diagnose()`, against the time that numpy takes for median and MAD of the same matrices.

A job of 16,384 GPUs (tensor 8, pipeline 4, data 512), 24 signals measured on every GPU or rank, 120 samples each, first
with one ill GPU, then with 200 at once. Median and MAD are those over all entities at each time (`np.median`, axis 0),
of the 24 measured matrices alone: derived ones, tables, chains and words are in the time of `diagnose()` only.
Both sides run in alternation, the best of each counts.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests")]

import numpy as np
from synthetic import Job

from rca.diagnose import diagnose
from rca.library import Library
from rca.load import load
from rca.model import Floats, Report, Snapshot

FURTHER = {
    "gpu_memory_temperature": 70.0,
    "gpu_memory_max_op_temperature": 95.0,
    "gpu_power": 680.0,
    "gpu_sm_active": 0.9,
    "gpu_pcie_link_width": 16.0,
    "gpu_pcie_max_link_width": 16.0,
    "gpu_pcie_link_gen": 5.0,
    "gpu_pcie_max_link_gen": 5.0,
}
"""Signals beside those of the synthetic job, with their level on a healthy GPU."""
STEADY = ("max", "pcie")
FIRST, STRIDE = 10, 80
"""The first ill GPU, and how far the next one is away: far enough to stand in another cell, on another node."""


@dataclass(frozen=True)
class Size:
    """How large the job is, over how many samples, and how many GPUs are ill at once in the second run."""

    tp: int
    pp: int
    dp: int
    samples: int
    causes: int

    @property
    def gpus(self) -> int:
        """Return the number of GPUs, which is that of ranks."""
        return self.tp * self.pp * self.dp


FULL = Size(tp=8, pp=4, dp=512, samples=120, causes=200)
SMALL = Size(tp=8, pp=2, dp=40, samples=40, causes=3)


def make_job(size: Size, ill: int) -> tuple[Job, tuple[str, ...]]:
    """Return a job of which some GPUs have been hot and slow for most of the window, and its signals that count."""
    job = Job(tp=size.tp, pp=size.pp, dp=size.dp, columns=size.samples, past=1)
    random = np.random.default_rng(1)
    for name, level in FURTHER.items():
        spread = 0.0 if any(part in name for part in STEADY) else 0.01
        job.signals[name] = level * (1 + spread * random.standard_normal((size.gpus, size.samples + 1)))
    onset = 1 + size.samples // 6
    for row in range(FIRST, FIRST + ill * STRIDE, STRIDE):
        cell = slice(row // size.tp * size.tp, row // size.tp * size.tp + size.tp)
        job.signals["gpu_sm_clock"][row, onset:] = 1200.0
        job.signals["gpu_temperature"][row, onset:] = 92.0
        job.signals["gpu_thermal_violation_ratio"][row, onset:] = 0.5
        for phase in ("forward", "backward"):
            job.signals[f"rank_{phase}_seconds"][cell, onset:] *= 1.4
    job.signals["rank_step_seconds"][:, onset:] += 0.8
    return job, tuple(name for name, values in job.signals.items() if len(values) == size.gpus)


def spread_of(matrices: Sequence[Floats]) -> None:
    """Compute median and MAD over the entities of each matrix."""
    for values in matrices:
        centre = np.median(values, axis=0)
        np.median(np.abs(values - centre), axis=0)


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def compare(library: Library, size: Size, ill: int, repeats: int) -> tuple[float, float, Report]:
    """Return the best seconds of numpy and of `diagnose()`, and the report."""
    job, names = make_job(size, ill)
    snapshot: Snapshot = job.snapshot(library, before=False)
    matrices = [snapshot.measurements[name].window for name in names]
    if len(matrices) != 24:
        raise SystemExit(f"{len(matrices)} signals are measured on {size.gpus} entities, 24 should be")
    report = diagnose(library, snapshot)
    numpy_seconds, own_seconds = [], []
    for _ in range(repeats):
        numpy_seconds.append(timed(lambda: spread_of(matrices)))
        own_seconds.append(timed(lambda: diagnose(library, snapshot)))
    return min(numpy_seconds), min(own_seconds), report


def main() -> None:
    """Run both sizes of trouble and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--small", action="store_true", help="a small job, to see that it runs")
    parser.add_argument("--repeats", type=int, default=3, help="how often each side runs, the best counts  [3]")
    given, _ = parser.parse_known_args()
    size = SMALL if given.small else FULL
    library = load(None)
    print(f"diagnose(): {size.gpus:,} GPUs x {size.samples} samples x 24 signals")
    print(f"{'ill GPUs':>9} {'named':>6} {'median+MAD':>11} {'diagnose()':>11} {'ratio':>6} {'target':>7}")
    for ill, target in ((1, 2.0), (size.causes, 4.0)):
        theirs, ours, report = compare(library, size, ill, given.repeats)
        wanted = {f"{row // 8:02d}/{row % 8}" for row in range(FIRST, FIRST + ill * STRIDE, STRIDE)}
        found = {
            f"{cause.entity.labels.get('node', '').removeprefix('node-')}/{cause.entity.labels.get('gpu', '')}"
            for cause in report.causes
            if cause.cause == "gpu_thermal_throttling"
        }
        verdict = "ok" if ours <= target * theirs else "missed"
        print(
            f"{ill:>9} {len(wanted & found):>6} {theirs:>9.3f} s {ours:>9.3f} s {ours / theirs:>6.2f} {target:>5.1f} x"
            f"  {verdict}"
        )
        first = report.causes[0] if report.causes else None
        print(f"{'':>9} first cause: {first.cause} on {first.entity}" if first else f"{'':>9} no cause", flush=True)


if __name__ == "__main__":
    main()
