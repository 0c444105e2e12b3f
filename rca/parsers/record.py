"""What a line of a training log says, in names and units that are the same for every framework."""

import math
from collections.abc import Mapping

import msgspec

Fields = Mapping[str, float | str]


class Record(msgspec.Struct, frozen=True, gc=False):
    """One thing that a log says: what kind of thing, when (unix seconds), on which rank, and its numbers.

    `time` is None where the line has none, `rank` where the line does not name one: a framework then prints on one
    rank for all. A field that is NaN or infinite was printed so.

    | kind | fields |
    |---|---|
    | `step` | `step`, `target_steps`, `step_seconds` (mean of the steps since the last such line), `loss:NAME`, `grad_norm`, `params_norm`, `learning_rate`, `loss_scale`, `batch_samples`, `samples` and `tokens` (since the first step), `skipped` and `nonfinite` (steps since the last line), `teraflops` (per GPU and second), `by` (who prints where no rank is named) |
    | `phase` | seconds of a step by phase, on the rank that is named, or on the one that prints |
    | `micro_phase` | the same of one micro-batch |
    | `phase_min`, `phase_max` | the same of the fastest and the slowest rank, whichever they are |
    | `once` | seconds by phase of what does not happen every step: `save_checkpoint`, `load_checkpoint`, `eval` |
    | `memory` | `allocated_bytes`, `peak_bytes`, `reserved_bytes` |
    | `saving`, `saved`, `loading`, `loaded` | `step`, `seconds` where they are said, `mode` |
    | `save_failed` | nothing |
    | `validation` | `step`, `loss:NAME` |
    | `state` | `state` |
    | `arguments` | what the job was started with: `world_size`, `sequence_length`, `tp`, `pp` ... |
    | `extreme` | one number of one rank that is the least or the greatest of all: its name, `extreme` is `min` or `max` |
    | `rerun` | `outcome` is `unexpected`, `transient`, `persistent` or `reproducible`, `step` |
    | `overflow` | `loss_scale` |
    | `wait` | `data_seconds`: time that a step waited for its input |
    | `oom` | nothing |
    | `event` | `event`, `level`: any other event of a structured log |
    """

    kind: str
    time: float | None
    rank: str | None
    fields: Fields


def number(text: bytes | str) -> float | None:
    """Read a number as logs write it, thousands separators included; None for anything else.

    >>> number(b"3,456"), number("1.5E-04"), number(b" nan"), number(b"n/a")
    (3456.0, 0.00015, nan, None)
    """
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return float(text.replace(b",", b"") if isinstance(text, bytes) else text.replace(",", ""))
    except ValueError:
        return None


def bad(value: object) -> str:
    """Return `nan` or `inf` for a number that is none, else nothing.

    >>> bad(math.nan), bad(-math.inf), bad(1.0), bad("text")
    ('nan', 'inf', '', '')
    """
    if not isinstance(value, float) or math.isfinite(value):
        return ""
    return "nan" if math.isnan(value) else "inf"
