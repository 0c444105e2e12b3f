"""Logs of Megatron-LM and Megatron-DeepSpeed as jobs wrote them: every iteration line is read, and its numbers are kept."""

import re
from collections import Counter
from datetime import UTC
from pathlib import Path

import numpy as np
import pytest

from rca.imports import Imports
from rca.parsers import Reader, Record
from rca.sources.foreign import Place, Ways
from rca.sources.kept import Kept
from rca.sources.logs import read
from rca.sources.series import Selector

ITERATION = re.compile(rb"iteration +\d+/ *\d+ \|")
LOSS = re.compile(rb"iteration +(\d+)/.*?lm[ -]loss: ([-+.\dE]+)")
SPIKE = "tr11-176B-ml_01_2022-04-12-first-lm-loss-spike.log"
HUGE = "tr1-13B-base_01_a-huge-lm-loss-spike.log"


def records(path: Path) -> list[Record]:
    reader = Reader(None, UTC)
    return reader.take(path.read_bytes()) + reader.flush()


def kept(path: Path) -> Kept:
    return read(Place("--logs", str(path)), Ways(Imports(()), UTC))


def values(store: Kept, name: str) -> list[float]:
    (_, block), = store.fetch([Selector((name,), (), 0.0, 1e12)])  # fmt: skip
    assert len(block.labels) == 1
    assert (np.diff(block.times) > 0).all()
    return block.values.tolist()


def training_logs(cases: Path) -> list[Path]:
    folder = cases / "megatron-logs"
    return sorted(
        [
            *folder.glob("bigscience/*.log"),
            *folder.glob("bigscience/*.out"),
            folder / "superbench" / "megatron_deepspeed.log",
        ]
    )


def test_every_iteration_line_is_read(cases: Path) -> None:
    found = 0
    for path in training_logs(cases):
        text = path.read_bytes()
        printed = [one for one in records(path) if one.kind == "step" and "by" not in one.fields]
        assert len(printed) == len(ITERATION.findall(text)), path.name
        losses = {float(step): float(loss) for step, loss in LOSS.findall(text)}
        assert {one.fields["step"]: one.fields["loss:lm"] for one in printed if "loss:lm" in one.fields} == losses, (
            path.name
        )
        found += len(printed)
    assert found > 100


def test_series_agree_with_the_text(cases: Path) -> None:
    for path in training_logs(cases):
        losses = [float(loss) for _, loss in LOSS.findall(path.read_bytes())]
        store = kept(path)
        assert values(store, "train_step")[-1] == max(
            float(step) for step in re.findall(rb"iteration +(\d+)/", path.read_bytes())
        )
        if losses:
            assert values(store, "train_loss") == losses, path.name


def test_blooms_loss_spike_is_led_by_its_gradient_norm(cases: Path) -> None:
    store = kept(cases / "megatron-logs" / "bigscience" / SPIKE)
    losses, norms = values(store, "train_loss"), values(store, "train_grad_norm")
    assert (losses[0], max(losses)) == (2.198845, 5.098124)
    leads = losses.index(max(losses)) - next(at for at, norm in enumerate(norms) if norm > 10 * norms[0])
    assert 2 <= leads <= 4
    seconds = values(store, "train_step_seconds")
    assert max(seconds) < 1.05 * min(seconds)


def test_a_gradient_norm_of_nothing_is_kept_as_it_is(cases: Path) -> None:
    store = kept(cases / "megatron-logs" / "bigscience" / HUGE)
    assert set(values(store, "train_grad_norm")) == {0.0}
    assert max(values(store, "train_loss")) == 8.715872


def test_a_log_with_host_prefixes_and_blocks_of_timers(cases: Path) -> None:
    path = cases / "megatron-logs" / "superbench" / "megatron_deepspeed.log"
    store = kept(path)
    assert values(store, "train_step_duration_seconds_count")[-1] == 5.0
    assert values(store, "train_step_duration_seconds_sum")[-1] == pytest.approx(
        76.0153 + 75.254 + 75.2496 + 75.1824 + 74.4949
    )
    assert values(store, "train_tokens_total")[-1] == 20971520.0
    assert store.told("rank") >= {"0", "15"}
    once = [one for one in records(path) if one.kind == "once"]
    assert [one.fields for one in once] == [{"load_checkpoint": pytest.approx(0.01661)}]
    assert Counter(one.kind for one in records(path))["saving"] == 1


def test_other_files_beside_it_are_no_training_logs(cases: Path) -> None:
    folder = cases / "megatron-logs" / "superbench"
    for path in [*folder.glob("nccl_*.log"), folder / "monitor.jsonl"]:
        reader = Reader()
        assert reader.take(path.read_bytes()) == []
        assert reader.unknown == reader.lines
