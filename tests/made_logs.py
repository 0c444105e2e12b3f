"""Logs of a small job, as the hook writes them: ranks in step, until one of them falls silent."""

import json
from datetime import UTC, datetime
from pathlib import Path

START = 1_772_373_600.0
"""2026-03-01T14:00:00Z."""
SILENT = 2
TIMED_OUT = START + 1900.0


def stamp(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def line(
    time: float, rank: int, message: str, *, event: str = "TRAIN_STEP", level: str = "INFO", **extra: object
) -> str:
    known = {
        "TRAIN_STEP": "EVT_1001",
        "NCCL_TIMEOUT": "EVT_2001",
        "RANK_START": "EVT_1013",
        "DATA_LOAD_TIME": "EVT_1003",
    }
    fields = {
        "timestamp": stamp(time), "rank": rank, "level": level, "event": event, "event_id": known.get(event),
        "message": message, "extra": extra,
    }  # fmt: skip
    return json.dumps(fields, separators=(",", ":")) + "\n"


def of_rank(rank: int, world: int) -> list[str]:
    """Return the lines of one rank: 25 steps, and what came after them."""
    lines = [line(START, rank, "rank starts", event="RANK_START", world_size=world)]
    lines += [line(START + 4.0 * step + rank / 1000, rank, f"step={step} loss=2.3", step=step) for step in range(1, 26)]
    if rank == SILENT:
        return [*lines, line(START + 101.0, rank, "waits for the loader", event="DATA_LOAD_TIME", level="WARN")]
    said = f"rank={rank} waiting on rank={SILENT} for 1800s"
    return [*lines, line(TIMED_OUT + rank / 1000, rank, said, event="NCCL_TIMEOUT", level="ERROR", seconds=1800)]


def hang(folder: Path, world: int = 8) -> Path:
    """Write a file a rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(world):
        (folder / f"rank-{rank}.jsonl").write_text("".join(of_rank(rank, world)), encoding="utf-8")
    return folder


def mixed(path: Path, world: int = 8) -> Path:
    """Write all ranks into one file, in order of time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = sorted((one for rank in range(world) for one in of_rank(rank, world)), key=lambda one: one[14:38])
    path.write_text("".join(lines), encoding="utf-8")
    return path
