"""Structured logs: a JSON object a line, with `timestamp`, `rank`, `level`, `event`, `message` and `extra`.

What is missing is done without. Numbers come from `extra`, and from `name=value` in the message where they are not
there. NaN and Infinity are no JSON, yet they are written; a line with them is read as Python's `json` reads it.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from rca.parsers.keys import name_of
from rca.parsers.moments import Moments
from rca.parsers.record import Record, bad, number

_LINE = msgspec.json.Decoder(dict[str, Any])
_SAID = re.compile(r"([A-Za-z_]\w*) ?[=:] ?([-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|inf))", re.IGNORECASE)
_BAD = re.compile(r"\s*[-+]?(?:nan|inf|infinity)\s*", re.IGNORECASE)
_OF_A_STEP = {"tokens": "batch_tokens", "samples": "rank_samples"}
"""Counts of one step in a structured log, where other logs count from the first step on."""
_KINDS = {
    "CHECKPOINT_FAILED": "save_failed", "CHECKPOINT_LOAD": "loaded", "CHECKPOINT_SAVE": "saved", "CUDA_OOM": "oom",
    "EVALUATION": "validation", "GRAD_NORM": "gauge", "JOB_RESTART": "restart", "NONFINITE": "nonfinite",
    "RANK_END": "state", "RANK_START": "started", "RERUN_MISMATCH": "rerun", "STEP_SKIPPED": "skipped",
    "TRAIN_STEP": "step",
}  # fmt: skip
"""What the events of `rules/tables/events.csv` are that say more than that they happened."""
_MEANT: dict[str, dict[str, float | str]] = {
    "RANK_END": {"state": "finished"},
    "RERUN_MISMATCH": {"outcome": "transient"},
}
_SECONDS = ("seconds", "duration_seconds", "duration", "duration_s")
_LATEST = 2.5e11
_SCALES = (1e11, 1e14, 1e17)
"""A time beyond these is in milliseconds, microseconds, nanoseconds."""


def structured(line: bytes, moments: Moments) -> list[Record]:
    """Read a JSON line.

    >>> text = b'{"timestamp": "2025-06-12T14:03:21Z", "rank": 3, "event": "TRAIN_STEP", "message": "step=7 lr=1e-4", "extra": {"loss": 2.5}}'
    >>> structured(text, Moments())
    [Record(kind='step', time=1749737001.0, rank='3', fields={'steps': 1.0, 'step': 7.0, 'learning_rate': 0.0001, 'loss:lm': 2.5})]
    """
    found = _decoded(line[line.find(b"{") :])
    event = found.get("event")
    if not isinstance(event, str) or not event:
        return []
    rank, level = found.get("rank"), found.get("level")
    return _records(
        event,
        _time(found.get("timestamp", found.get("time")), moments),
        str(rank) if isinstance(rank, int | str) and not isinstance(rank, bool) and str(rank) else None,
        _numbers(found),
        str(level) if isinstance(level, str) else "",
    )


def _decoded(text: bytes) -> Mapping[str, Any]:
    try:
        return _LINE.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _numbers(found: Mapping[str, Any]) -> dict[str, float]:
    """Return all numbers of a line by name; those of `extra` come before those of the message."""
    said, extra = found.get("message"), found.get("extra")
    extra = extra if isinstance(extra, Mapping) else {}
    numbers: dict[str, float | None] = {}
    if isinstance(said, str):
        numbers = {key: number(text) for key, text in _SAID.findall(said) if key not in extra}
    for values in (found, extra):
        for key, value in values.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                numbers[key] = float(value) if abs(value) < 1e300 or isinstance(value, float) else None
            elif isinstance(value, str) and _BAD.fullmatch(value):
                numbers[key] = number(value)
    return {key: value for key, value in numbers.items() if value is not None}


def _time(value: object, moments: Moments) -> float | None:
    """Read a time: text, or a number of seconds since 1970 or of thousandths of such."""
    if isinstance(value, str):
        return moments.find(value.encode())
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e20:
        return None
    seconds = float(value)
    for scale in _SCALES:
        seconds = seconds / 1e3 if value > scale else seconds
    return seconds if seconds < _LATEST else None


def _wait(numbers: Mapping[str, float], fields: Mapping[str, float | str]) -> float | None:
    """Return how long a step waited for its input, in seconds, however that is called."""
    told = fields.get("data_seconds")
    if isinstance(told, float):
        return told
    for key, factor in (
        ("seconds", 1.0),
        ("duration_seconds", 1.0),
        ("ms", 1e-3),
        ("duration_ms", 1e-3),
        ("elapsed_ms", 1e-3),
    ):
        if key in numbers:
            return numbers[key] * factor
    return None


def _records(
    event: str, time: float | None, rank: str | None, numbers: Mapping[str, float], level: str
) -> list[Record]:
    """Return what an event means; one that means nothing here is counted by its name."""
    fields: dict[str, float | str] = {}
    for key, value in numbers.items():
        name = name_of(key)
        if name is not None:
            fields[_OF_A_STEP.get(name.field, name.field)] = value * name.factor
    wait = _wait(numbers, fields) if event == "DATA_LOAD_TIME" else None
    kind = _KINDS.get(event, "event")
    if kind == "event" and wait is None:
        return [Record("event", time, rank, {"event": event, "level": level})]
    said: dict[str, float | str] = {"step": fields["step"]} if "step" in fields else {}
    if wait is not None:
        kind, said = "wait", {"data_seconds": wait}
    elif kind == "step":
        said = {"steps": 1.0, **fields}
    elif kind == "gauge":
        said = fields
    elif kind == "nonfinite":
        said = {key: value for key, value in fields.items() if bad(value)}
    elif kind == "validation":
        said |= {key: value for key, value in fields.items() if key.startswith("loss:")}
    elif kind in ("saved", "loaded"):
        seconds = next((numbers[key] for key in _SECONDS if key in numbers), None)
        said |= {} if seconds is None else {"seconds": seconds}
    elif kind == "started":
        said |= {key: value for key, value in numbers.items() if key == "world_size"}
    return [Record(kind, time, rank, said | _MEANT.get(event, {}))]
