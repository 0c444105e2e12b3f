"""How long the last ten seconds of one rank take, against `grep` for that rank over the same files.

    PYTHONPATH=. python benchmarks/bench_logs_slice.py             2 GiB of JSON lines
    PYTHONPATH=. python benchmarks/bench_logs_slice.py --gib 20    the full size

Three layouts of the same lines: a file a rank, a file a node with its eight ranks mixed, and one file of all ranks. In the
second and third one rank falls silent a third before the end, which is the rank asked for: its last line is looked
for from the ends of the files backwards.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

RANKS, PER_NODE, RATE = 1024, 8, 10.0
"""Ranks, those of a node, and lines a second of each."""
START = 1_772_373_600.0
SILENT = 1000
"""The rank that stops, and where: after two thirds of the time."""
ROOT = Path(__file__).resolve().parent.parent


def written(folder: Path, layout: str, size: int) -> tuple[int, float]:
    """Write files of a size together, and return their size and the seconds that they span."""
    folder.mkdir(parents=True)
    beat = [line(START, rank) for rank in range(RANKS)]
    beats = max(size // sum(map(len, beat)), 30)
    names = {"ranks": [f"rank-{rank}.jsonl" for rank in range(RANKS)], "one": ["train.jsonl"] * RANKS}
    names["nodes"] = [f"node-{rank // PER_NODE:03d}.jsonl" for rank in range(RANKS)]
    pending: dict[str, list[bytes]] = {name: [] for name in names[layout]}
    for number in range(beats):
        at = START + number / RATE
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)).encode() + b".%03dZ" % round(at % 1 * 1000)
        for rank, name in enumerate(names[layout]):
            if layout == "ranks" or rank != SILENT or number < beats * 2 // 3:
                pending[name].append(b'{"timestamp":"' + stamp + beat[rank][38:])
        if number % 200 == 199 or number == beats - 1:
            for name, lines in pending.items():
                with (folder / name).open("ab") as file:
                    file.write(b"".join(lines))
                lines.clear()
    return sum(path.stat().st_size for path in folder.iterdir()), beats / RATE


def line(at: float, rank: int) -> bytes:
    """Return one line as the hook writes it."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + ".000Z"
    return (
        f'{{"timestamp":"{stamp}","rank":{rank},"level":"INFO","event":"TRAIN_STEP","event_id":"EVT_1001",'
        f'"message":"step=100 loss=2.31","extra":{{"step":100,"loss":2.31,"step_seconds":4.01,"tokens":1048576}}}}\n'
    ).encode()


def timed(command: list[str]) -> tuple[float, int, int]:
    """Run a command; return its seconds, the lines it printed, and the most memory it took in bytes."""
    begin = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
        assert process.stdout is not None
        lines = process.stdout.read().count(b"\n")
        _, _, usage = os.wait4(process.pid, 0)
    return time.monotonic() - begin, lines, usage.ru_maxrss * 1024


def figures(folder: Path, rank: int, repeats: int) -> Iterator[str]:
    """Yield a row for each try: grep, then ours, so that both find the files in memory or both do not."""
    files = sorted(map(str, folder.iterdir()))
    for _ in range(repeats):
        searched, found, _ = timed(["grep", "-hF", f'"rank":{rank},', *files])
        ours, lines, memory = timed(
            [sys.executable, "-m", "rca.cli", "logs", str(folder), "--rank", str(rank), "--last", "10s", "-o", "json"]
        )
        right = "right" if lines == round(10 * RATE) + 1 else "wrong"
        yield f"{searched:8.2f} s {found:9,} {ours:8.2f} s {lines:6,} {memory / (1 << 30):6.2f} GiB {ours / searched:7.3f}   rank {rank}: {right}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gib", type=float, default=2.0, help="size of the files of each layout")
    parser.add_argument(
        "--layout", action="append", choices=("ranks", "nodes", "one"), help="only this one; may be repeated"
    )
    parser.add_argument("--folder", type=Path, help="where to write the files; they are removed again")
    parser.add_argument("--small", action="store_true", help="quick, for a look whether it runs")
    parser.add_argument("--repeats", type=int, default=2, help="tries of each")
    given = parser.parse_args()
    gib = 0.05 if given.small else given.gib
    folder = Path(tempfile.mkdtemp(prefix="rca-bench-logs-", dir=given.folder))
    try:
        for layout in given.layout or ("ranks", "nodes", "one"):
            size, span = written(folder / layout, layout, int(gib * (1 << 30)))
            print(f"layout {layout}: {size / (1 << 30):.2f} GiB, {RANKS:,} ranks, {span:,.0f} s")
            print("      grep     lines        rca  lines     memory   ratio")
            for rank in (7, SILENT):
                for row in figures(folder / layout, rank, given.repeats):
                    print(row)
            shutil.rmtree(folder / layout)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
