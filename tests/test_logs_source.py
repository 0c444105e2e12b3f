"""Training logs as a source: what was when, also where lines tell no time."""

import gzip
import os
from datetime import UTC
from pathlib import Path

import numpy as np
import pytest
from log_lines import BLOCK, LINES

from rca.errors import SourceError, UsageError
from rca.imports import Imports
from rca.model import Floats
from rca.sources.foreign import Place, Ways
from rca.sources.kept import Kept
from rca.sources.logs import read
from rca.sources.series import Selector

EPOCH = 1787412142.0
WAYS = Ways(Imports(()), UTC)


def logged(step: int, second: int | None = None, more: str = "") -> str:
    stamp = "" if second is None else f"[2026-08-22 15:{22 + (22 + second) // 60:02d}:{(22 + second) % 60:02d}.000000] "
    return f" {stamp}iteration {step}/ 100 | elapsed time per iteration (ms): 10000.0 | lm loss: {1 + step}.0 |{more}\n"


def kept(path: Path, name: str = "") -> Kept:
    return read(Place("--logs", str(path), name), WAYS)


def series(store: Kept, name: str) -> tuple[Floats, Floats]:
    """Return the times and values of the only series of a name."""
    (_, block), = store.fetch([Selector((name,), (), 0.0, 1e12)])  # fmt: skip
    assert len(block.labels) == 1
    return block.times, block.values


def written(folder: Path, text: str, name: str = "train.log") -> Path:
    path = folder / name
    path.write_text(text)
    os.utime(path, (EPOCH, EPOCH))
    return path


def test_lines_with_times_are_where_they_say(tmp_path: Path) -> None:
    store = kept(written(tmp_path, "".join(logged(step, 10 * step) for step in range(1, 4))), "llama")
    times, losses = series(store, "train_loss")
    assert times.tolist() == [EPOCH + 10, EPOCH + 20, EPOCH + 30]
    assert losses.tolist() == [2.0, 3.0, 4.0]
    assert store.told("job_id") == {"llama"}
    assert series(store, "train_steps_total")[1].tolist() == [1.0, 2.0, 3.0]
    assert series(store, "train_step_duration_seconds_sum")[1].tolist() == [10.0, 20.0, 30.0]
    assert any("the one that prints is called last" in said for said in store.warnings())


def test_without_any_time_the_file_was_written_at_the_last_line(tmp_path: Path) -> None:
    store = kept(written(tmp_path, "hello\n" + "".join(logged(step) for step in (1, 2, 4))))
    times, losses = series(store, "train_loss")
    assert times.tolist() == [EPOCH - 30, EPOCH - 20, EPOCH]
    assert losses.tolist() == [2.0, 3.0, 5.0]
    assert any("have no time" in said for said in store.warnings())


def test_lines_without_a_time_go_on_from_the_last_that_has_one(tmp_path: Path) -> None:
    start = "[before the start of training step] datetime: 2026-08-22 15:22:22\n"
    later = "[2026-08-22 15:24:22] successfully saved checkpoint from iteration 2 to /ckpt\n"
    times, _ = series(
        kept(written(tmp_path, start + logged(1) + logged(2) + later + logged(3) + logged(4))), "train_loss"
    )
    assert times.tolist() == [EPOCH + 10, EPOCH + 20, EPOCH + 120, EPOCH + 130]


def test_a_line_without_a_time_is_of_the_moment_of_a_line_about_the_same_step(tmp_path: Path) -> None:
    engine = "[2026-08-22 15:22:{:02d},000] [INFO] [logging.py:96:log_dist] [Rank 0] step={}, skipped=0, lr=[0.1], mom=[(0.9, 0.95)]\n"
    store = kept(written(tmp_path, "".join(engine.format(22 + 11 * step, step) + logged(step) for step in range(1, 4))))
    assert series(store, "train_loss")[0].tolist() == [EPOCH + 11, EPOCH + 22, EPOCH + 33]
    overflow = LINES["deepspeed overflow"][0].replace("22,500", "{},000") + "\n"
    text = logged(1) + overflow.format(32) + logged(2) + overflow.format(42) + logged(3)
    assert series(kept(written(tmp_path, text)), "train_loss")[0].tolist() == [EPOCH, EPOCH + 10, EPOCH + 20]


def test_timers_are_of_the_moment_of_their_step(tmp_path: Path) -> None:
    store = kept(written(tmp_path, logged(1, 0) + BLOCK + logged(2, 10)))
    (_, block), = store.fetch([Selector(("train_phase_max_seconds",), (), 0.0, 1e12)])  # fmt: skip
    assert set(block.times.tolist()) == {EPOCH}
    assert {labels["phase"] for labels in block.labels} == {
        "forward_backward",
        "forward_compute",
        "optimizer_copy_params",
    }


def test_short_steps_are_looked_at_together(tmp_path: Path) -> None:
    times, values = series(
        kept(written(tmp_path, "".join(logged(step, step) for step in range(1, 31)))), "train_steps_total"
    )
    assert len(times) == 6
    assert np.diff(times).tolist() == [5.0] * 5
    assert values[-1] == 30.0


def test_a_folder_is_one_job_and_each_file_may_tell_its_rank(tmp_path: Path) -> None:
    text = '{{"timestamp": {}, "rank": {}, "event": "TRAIN_STEP", "extra": {{"step": {}, "step_seconds": 1.0}}}}\n'
    for rank in range(3):
        written(
            tmp_path, "".join(text.format(EPOCH + 10 * step, rank, step) for step in range(1, 5)), f"rank-{rank}.jsonl"
        )
    packed = tmp_path / "rank-7.log.gz"
    packed.write_bytes(gzip.compress((logged(1, 0) + logged(2, 10)).encode()))
    written(tmp_path, "nothing", "notes.md")
    store = kept(tmp_path)
    assert store.told("rank") == {"0", "1", "2", "7"}
    (_, block), = store.fetch([Selector(("train_steps_total",), (), 0.0, 1e12)])  # fmt: skip
    assert block.values[block.offsets[1:] - 1].tolist() == [4.0, 4.0, 4.0, 2.0]


def test_what_is_no_training_log_is_refused_with_what_is_in_it(tmp_path: Path) -> None:
    path = written(tmp_path, "hello 7\nhello 8\nworld\n")
    with pytest.raises(
        SourceError,
        match=r"train.log: none of its 3 lines is one of a training framework that is known, such as 'hello #'; 'world'",
    ):
        kept(path)
    with pytest.raises(SourceError, match=r"train\.log: its logs hold no line"):
        kept(written(tmp_path, ""))
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no log in it"):
        kept(tmp_path / "empty")
    with pytest.raises(UsageError, match="no such file"):
        kept(tmp_path / "missing.log")
    broken = tmp_path / "broken.log.gz"
    broken.write_bytes(gzip.compress(logged(1, 0).encode() * 1000)[:-20])
    with pytest.raises(SourceError, match=r"broken.log.gz: cannot be read"):
        kept(broken)
