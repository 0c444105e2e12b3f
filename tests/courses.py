"""Made-up courses of jobs: rows of progress as the schedule notes them."""

from collections.abc import Sequence

import numpy as np

from rca.archive import Archive
from rca.journal import EVERY
from rca.model import Progress
from rca.plain import stamp

BATCH = 4_194_304
PACE = 4.6


def course(
    job: str, begin: float, rows: int, *, first: int = 0, rate: float = 3400.0, worse: float = 0.0
) -> list[Progress]:
    """Return rows of a run that begins at a step, as of a time: its loss falls as a power of the tokens."""
    noise = np.random.default_rng(rows).standard_normal(rows)
    told = []
    for row in range(rows):
        step = first + round((row + 1) * EVERY / PACE)
        loss = 1.7 + 60.0 * (step * BATCH) ** -0.2 + worse + 0.01 * float(noise[row])
        told.append(
            Progress(
                job=job,
                at=stamp(begin + row * EVERY),
                step=step,
                target_step=100_000,
                tokens=step * BATCH,
                tokens_per_gpu_second=rate,
                step_seconds=PACE,
                loss=round(loss, 4),
                ranks=64,
                busy=0.42,
                busy_signal="gpu_tensor_active",
                eta_seconds=(100_000 - step) * PACE,
            )
        )
    return told


def noted(archive: Archive, rows: Sequence[Progress]) -> None:
    """Let rows of progress come in as time passes."""
    for row in rows:
        archive.progressed([row])
