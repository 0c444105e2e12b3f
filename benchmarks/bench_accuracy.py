"""How often the diagnosis is right: every scenario, many seeds, two levels of noise, against simpler methods.

Figures of the tuning split say how well thresholds fit what they were set on, those of the scoring split how well they
hold on other seeds and milder faults. `--healthy-hours 24` looks at healthy clusters for a day instead.
"""

import argparse
import gc
import itertools
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")  # processes share the cores, threads of numpy would fight for them
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from benchmarks.plays import NOISES, Play, day, endless, files, library, played
from benchmarks.scores import Outcome
from benchmarks.tables import quiet, tables
from rca.terminal import progress

T = TypeVar("T")
QUICK = 4


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add(
        "--seeds",
        type=int,
        default=20,
        metavar="N",
        help="seeds of each scenario, half of them score, under each noise  [20]",
    )
    add("--quick", action="store_true", help=f"{QUICK} seeds, noise as written only")
    add("--only", action="append", default=[], metavar="SCENARIO", help="this one; may be repeated")
    add("--without", action="append", default=[], choices=["train", "dcgm-extra", "node"],
        help="leave an exporter out (dcgm-extra: all but dcgm-exporter's default fields); may be repeated")  # fmt: skip
    add("--onset", type=float, metavar="MINUTES", help="diagnose so long after the last fault began")
    add("--healthy-hours", type=int, metavar="N", help="look at healthy scenarios for N hours instead")
    add("--processes", type=int, default=os.cpu_count(), metavar="N", help="how many at once  [all cores]")
    add("--json", type=Path, metavar="FILE", help="write every outcome")
    return parser.parse_args()


def plays(given: argparse.Namespace) -> list[Play]:
    """Return all that is to be run, seed by seed; what scores is run under all noises, what is tuned on as written."""
    telemetry = tuple(given.without) or ("full",)
    return [
        Play(path, number, noise, telemetry, given.onset)
        for number in range(1, (QUICK if given.quick else given.seeds) + 1)
        for path in files(given.only)
        for noise in (NOISES if number % 2 and not given.quick else NOISES[:1])
    ]


def spread(processes: int, call: Callable[[T], list[Outcome]], todo: Sequence[T]) -> list[Outcome]:
    """Run something on every item over several processes and return all outcomes in the order of the items."""
    with progress() as step, ProcessPoolExecutor(processes) as pool:
        return list(itertools.chain.from_iterable(_counted(pool.map(call, todo), len(todo), step)))


def _counted(results: Iterable[T], total: int, step: Callable[[str], None]) -> Iterable[T]:
    for number, result in enumerate(results, start=1):
        step(f"{number:,} of {total:,} runs")
        yield result


def main() -> None:
    """Run, print, and write what was asked for."""
    given = arguments()
    start = time.perf_counter()
    library()  # what is wrong with the rules is said here, not by each process
    gc.freeze()  # what is read once is not searched for garbage again and again
    if given.healthy_hours:
        chosen = [path for path in files(given.only) if endless(path)]
        outcomes = spread(given.processes, partial(day, hours=given.healthy_hours), chosen)
        print(quiet(outcomes, given.healthy_hours))
    else:
        todo = plays(given)
        outcomes = spread(given.processes, played, todo)
        print(tables(outcomes))
    spent, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (used.ru_utime + used.ru_stime) / 60
    print(f"\n{len(outcomes):,} diagnoses in {spent / 60:.1f} min on {given.processes} processes, {cpu:.1f} min of CPU")
    if given.json:
        given.json.write_bytes(msgspec.json.format(msgspec.json.encode(outcomes), indent=1))


if __name__ == "__main__":
    main()
