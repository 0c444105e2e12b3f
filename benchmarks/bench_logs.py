"""Time to read a training log, against the time that `grep -c` takes to count its iteration lines.

A gibibyte of a Megatron job's log: launcher, NCCL, warnings, an iteration line in ninety lines, timers every ten
iterations. `grep` counts lines with `iteration`; `rca` reads every kind of line that it knows, and
counts the rest. Both read the file from the page cache, in alternation, and the best of each counts, by the time of the
processor: what else runs on the machine shall not. What a file of nothing but iteration lines costs, and what the
metrics over time cost, is told beside it.
"""

import argparse
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from rca.imports import Imports
from rca.parsers import Reader
from rca.parsers.reader import blocks
from rca.sources.foreign import Place, Ways
from rca.sources.logs import read as read_source

MIB = 1 << 20
FULL, SMALL = 1024, 16
BETWEEN, EVERY = 89, 10
TARGET = 2.0
"""Half of the speed of `grep -c` at least."""
COUNTED = "iteration"
CHATTER = (
    "node-{0:02d}:{1}:{2} [{3}] NCCL INFO Channel {0:02d}/0 : {1}[{3}] -> {2}[{3}] [send] via NET/IB/{3}/GDRDMA",
    "[rank{1}]:W0822 15:{0:02d}:{3:02d}.{2:06d} {1} torch/distributed/distributed_c10d.py:{2}] a group of {3} members was made in {2} ms",
    "[2026-08-22 15:{0:02d}:{3:02d},{1:03d}] [INFO] [stage_1_and_2.py:{2}:reduce_independent_p_g_buckets_and_remove_grads] bucket {3} holds {1} elements",
    "INFO:megatron.core.distributed.param_and_grad_buffer:bucket {3} of {0} has {2} parameters, first layer {1}, padded to {2}",
    "/usr/lib/python3.12/site-packages/torch/utils/data/dataloader.py:{2}: UserWarning: worker {3} of {0} took {1} ms to start",
)
STEP = (
    " [2026-08-22 {0:02d}:{1:02d}:{2:02d}.{3:06d}] iteration {4:8d}/ 9000000 | consumed samples: {5:12d} | elapsed time per iteration (ms): {6:.1f} | "
    "throughput per GPU (TFLOP/s/GPU): {7:.1f} | learning rate: 1.500000E-04 | global batch size:  1024 | lm loss: {8:.6E} | "
    "loss scale: 1.0 | grad norm: {9:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
TIMERS = """(min, max) time across ranks (ms):
    forward-backward ...............................: (4000.00, 4010.00)
    forward-compute ................................: (1250.00, 1500.00)
    backward-compute ...............................: (2500.00, 2750.00)
    batch-generator ................................: (2.50, 12.50)
    all-grads-sync .................................: (25.00, 27.50)
    optimizer ......................................: (50.00, 51.25)"""


def iteration(step: int, chance: random.Random) -> str:
    """Return the line of a step; a step takes four seconds."""
    second = 4 * step % 86400
    values = (4000 + chance.random() * 50, 400 + chance.random() * 9, 2 + chance.random(), chance.random())
    return STEP.format(
        second // 3600, second // 60 % 60, second % 60, 7919 * step % 1_000_000, step, 1024 * step, *values
    )


def text(chance: random.Random, between: int) -> Iterator[str]:
    """Yield the lines of a log without end."""
    step = 0
    while True:
        for number in range(between):
            yield CHATTER[chance.randrange(len(CHATTER))].format(
                number, chance.randrange(1024), chance.randrange(100_000), chance.randrange(60)
            )
        step += 1
        yield iteration(step, chance)
        if step % EVERY == 0 and between:
            yield TIMERS


def write(path: Path, size: int, between: int) -> None:
    """Write so many bytes of a log: some MiB are made, and repeated with steps that go on."""
    chance, lines, length = random.Random(1), [], 0
    for line in text(chance, between):
        lines.append(line)
        length += len(line) + 1
        if length >= min(size, 16 * MIB):
            break
    block = ("\n".join(lines) + "\n").encode()
    with path.open("wb") as file:
        for _ in range(max(size // len(block), 1)):
            file.write(block)


def read(path: Path) -> tuple[int, int, int]:
    """Read a log; return how many lines it has, how many are unknown, and how many are of steps."""
    reader, steps = Reader(None, UTC), 0
    with path.open("rb") as file:
        for block in blocks(file):
            steps += sum(record.kind == "step" for record in reader.take(block))
    return reader.lines, reader.unknown, steps


def count(path: Path) -> int:
    """Let grep count the iteration lines."""
    return int(subprocess.run(["grep", "-c", COUNTED, str(path)], check=True, capture_output=True).stdout)


def busy() -> float:
    """Return the processor time of this process and of those that it has waited for, in seconds."""
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def taken(work: Callable[[], object]) -> tuple[float, float]:
    """Return the processor time of something, and how long it takes, in seconds."""
    start, begin = busy(), time.perf_counter()
    work()
    return busy() - start, time.perf_counter() - begin


def compare(path: Path, repeats: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Let both read a file in alternation; return the best times of each."""
    times = [(taken(lambda: count(path)), taken(lambda: read(path))) for _ in range(repeats)]
    return min(one for one, _ in times), min(other for _, other in times)


def peak() -> float:
    """Return the most memory that this process has held, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Write a log, read it both ways, and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--small", action="store_true", help="a small log, to see that it runs")
    parser.add_argument("--repeats", type=int, default=5, help="how often both read, the best counts  [5]")
    given, _ = parser.parse_known_args()
    if shutil.which("grep") is None:
        raise SystemExit("grep: not installed")
    size = (SMALL if given.small else FULL) * MIB
    with tempfile.TemporaryDirectory(prefix="rca-bench-") as folder:
        path = Path(folder) / "train.log"
        write(path, size, BETWEEN)
        before = peak()
        lines, unknown, steps = read(path)
        found = count(path)
        print(
            f"{path.stat().st_size / MIB:,.0f} MiB, {lines:,} lines, {steps:,} of steps, {unknown:,} unknown",
            flush=True,
        )
        print(f"grep finds {found:,} of steps: {'right' if found == steps else 'wrong'}")
        reference, ours = compare(path, given.repeats)
        ratio = ours[0] / max(reference[0], 1e-3)
        print(
            f"grep {reference[0]:.2f} s of processor time ({reference[1]:.2f} s passed), rca {ours[0]:.2f} s ({ours[1]:.2f} s passed)"
        )
        print(f"ratio of the best {ratio:.2f}, target {TARGET} x  {'ok' if ratio <= TARGET else 'missed'}")
        print(f"memory grows by {peak() - before:,.0f} MiB")
        whole = taken(lambda: read_source(Place("--logs", str(path)), Ways(Imports(()), UTC)))
        print(f"with metrics over time {whole[0]:.2f} s, peak memory {peak():,.0f} MiB")
        write(path, size // 4, 0)
        reference, ours = compare(path, max(given.repeats // 2, 1))
        rate = path.stat().st_size / MIB / ours[0]
        print(f"a file of nothing but steps: grep {reference[0]:.2f} s, rca {ours[0]:.2f} s, {rate:,.0f} MiB/s")


if __name__ == "__main__":
    main()
