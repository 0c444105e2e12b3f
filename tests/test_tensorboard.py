"""Event files of TensorBoard, as real writers leave them, and as broken disks do."""

import math
import struct

import importing
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboardX import SummaryWriter

from rca.errors import SourceError, UsageError
from rca.sources import tensorboard
from rca.sources.kept import Kept
from rca.sources.messages import message
from rca.sources.tensorboard import Torn, masked, records

START = 1767571200.0
LLAMA = {"job_id": "llama", "rank": "0"}


def write(folder, values, every=10):
    """Write scalars of (tag, step, value) rows with a real writer, a moment a step."""
    with SummaryWriter(str(folder)) as writer:
        for tag, step, value in values:
            writer.add_scalar(tag, value, step, walltime=START + step * 2.0)
    return next(folder.glob("*tfevents*"))


def read(path, name="") -> Kept:
    return tensorboard.read(importing.place(path, name), importing.ways())


def event(time: float, step: int, **value: object) -> bytes:
    made = message("Event")(wall_time=time, step=step)
    made.summary.value.add(**value)
    return made.SerializeToString()


def framed(*bodies: bytes) -> bytes:
    parts = []
    for body in bodies:
        head = struct.pack("<Q", len(body))
        parts.append(head + struct.pack("<I", masked(head)) + body + struct.pack("<I", masked(body)))
    return b"".join(parts)


def test_what_megatron_writes(tmp_path):
    rows = [
        row
        for step in (10, 20, 30)
        for row in (
            ("lm loss", step, 3.0 - step / 100), ("lm loss vs samples", step * 512, 3.0), ("grad-norm", step, 1.5),
            ("iteration-time", step, 2.0), ("forward-compute-time", step, 0.75), ("loss-scale", step, 1.0),
        )
    ]  # fmt: skip
    write(tmp_path / "llama", rows)
    kept = read(tmp_path)
    times = [START + 20.0, START + 40.0, START + 60.0]
    assert importing.samples(kept, "train_loss", loss="lm", **LLAMA) == [
        (time, pytest.approx(value)) for time, value in zip(times, (2.9, 2.8, 2.7), strict=True)
    ]
    assert importing.samples(kept, "train_grad_norm", **LLAMA) == [(time, 1.5) for time in times]
    assert importing.samples(kept, "train_phase_max_seconds", phase="forward_compute", **LLAMA)[0] == (times[0], 0.75)
    assert importing.samples(kept, "train_step", **LLAMA) == list(zip(times, (10.0, 20.0, 30.0), strict=True))
    assert importing.samples(kept, "train_steps_total", **LLAMA) == list(zip(times, (0.0, 10.0, 20.0), strict=True))
    assert importing.samples(kept, "train_step_duration_seconds_sum", **LLAMA) == list(
        zip(times, (0.0, 20.0, 40.0), strict=True)
    )
    assert importing.samples(kept, "train_step_duration_seconds_count", **LLAMA) == list(
        zip(times, (0.0, 10.0, 20.0), strict=True)
    )
    assert kept.warnings() == (f"{tmp_path}: 1 of 5 tags are not read: loss-scale",)


def test_runs_are_folders_and_ranks_are_folders_in_them(tmp_path):
    for rank in (0, 3):
        write(tmp_path / "llama" / f"rank_{rank}", [("grad_norm", 1, 1.0)])
    write(tmp_path / "other", [("train/loss", 1, 1.0)])
    kept = read(tmp_path)
    assert [dict(labels)["rank"] for labels, _ in importing.every(kept, "train_grad_norm")] == ["0", "3"]
    assert kept.told("job_id") == {"llama", "other"}
    assert read(tmp_path / "llama", "mine").told("job_id") == {"mine"}
    assert read(tmp_path, "mine").told("job_id") == {"mine/llama", "mine/other"}


def test_a_run_that_was_resumed_goes_on_counting(tmp_path):
    write(tmp_path / "a", [("lm loss", step, 1.0) for step in (10, 20, 30)])
    with SummaryWriter(str(tmp_path / "a"), filename_suffix=".second") as writer:
        for step, time in ((20, 100.0), (30, 120.0)):
            writer.add_scalar("lm loss", 1.0, step, walltime=START + time)
    total = [value for _, value in importing.samples(read(tmp_path), "train_steps_total")]
    assert total == [0.0, 10.0, 20.0, 20.0, 30.0], "steps that were done again count again, the way back does not"
    assert [value for _, value in importing.samples(read(tmp_path), "train_step")] == [10.0, 20.0, 30.0, 20.0, 30.0]


def test_a_loss_that_is_no_number_is_counted(tmp_path):
    write(
        tmp_path / "a",
        [("lm loss", 1, 1.0), ("lm loss", 2, math.nan), ("lm loss", 3, math.inf), ("lm loss", 4, math.nan)],
    )
    kept = read(tmp_path)
    assert [value for _, value in importing.samples(kept, "train_nonfinite_steps_total", kind="nan")] == [
        0.0,
        1.0,
        1.0,
        2.0,
    ]
    assert [value for _, value in importing.samples(kept, "train_nonfinite_steps_total", kind="inf")] == [
        0.0,
        0.0,
        1.0,
        1.0,
    ]


def test_steps_of_deepspeed_are_samples(tmp_path):
    write(tmp_path / "a", [("Train/Samples/train_loss", samples, 1.0) for samples in (512, 1024)])
    kept = read(tmp_path)
    assert [value for _, value in importing.samples(kept, "train_samples_total")] == [0.0, 512.0]
    assert "train_steps_total" not in importing.metrics(kept)


@pytest.mark.parametrize(
    "value",
    [
        {"simple_value": 2.5},
        {"tensor": {"dtype": 1, "float_val": [2.5]}},
        {"tensor": {"dtype": 1, "content": struct.pack("<f", 2.5)}},
        {"tensor": {"dtype": 2, "double_val": [2.5]}},
    ],
    ids=str,
)
def test_scalars_are_values_or_tensors(tmp_path, value):
    (tmp_path / "events.out.tfevents.1").write_bytes(framed(event(START, 7, tag="lm loss", **value)))
    assert importing.samples(read(tmp_path), "train_loss") == [(START, 2.5)]


GOOD = framed(*(event(START + step, step, tag="lm loss", simple_value=1.0) for step in range(5)))
SIZE = len(GOOD) // 5


@pytest.mark.parametrize(
    ("data", "said", "left"),
    [
        (GOOD[:-3], f"byte {4 * SIZE}: the last record is torn, left out", 4),
        (GOOD + b"\0" * 4096, f"byte {5 * SIZE}: the last record is torn, left out", 5),
        (GOOD + b"\x07", f"byte {5 * SIZE}: the last record is torn, left out", 5),
        (GOOD[: 2 * SIZE] + b"x" + GOOD[2 * SIZE + 1 :], f"byte {2 * SIZE}: the file is damaged, the {3 * SIZE} bytes from there on are not read", 2),
        (GOOD[: 3 * SIZE - 8] + b"?" + GOOD[3 * SIZE - 7 :], f"byte {2 * SIZE}: the file is damaged, the {3 * SIZE} bytes", 2),
    ],
    ids=["cut", "zeros", "one byte more", "length", "value"],
)  # fmt: skip
def test_damage_is_told_with_its_byte(tmp_path, data, said, left):
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(data)
    kept = read(path)
    assert len(importing.samples(kept, "train_loss")) == left
    assert kept.warnings()[0].startswith(f"{path}: {said}")


def test_what_is_no_such_file_is_told(tmp_path):
    with pytest.raises(UsageError, match="no such file or folder"):
        read(tmp_path / "nowhere")
    with pytest.raises(SourceError, match="no event files of TensorBoard"):
        read(tmp_path)
    (tmp_path / "events.out.tfevents.1").write_bytes(b"this is another file altogether")
    with pytest.raises(SourceError, match=r"tfevents\.1: byte 0: not a record of TensorBoard, is this an event file"):
        read(tmp_path)


def test_an_empty_file_of_a_run_that_has_just_begun(tmp_path):
    (tmp_path / "events.out.tfevents.1").write_bytes(b"")
    assert importing.metrics(read(tmp_path)) == set()


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(0, 400), st.integers(0, 255))
def test_any_bytes_come_back_or_stop_at_the_damage(tmp_path_factory, bodies, at, byte):
    path = tmp_path_factory.mktemp("tb") / "x"
    data = framed(*bodies)
    path.write_bytes(data)
    assert [one[1] for one in records(path) if not isinstance(one, Torn)] == bodies
    if at < len(data):
        path.write_bytes(data[:at] + bytes([byte]) + data[at + 1 :])
        seen = [one[1] for one in records(path) if not isinstance(one, Torn)]
        assert len(seen) <= len(bodies)
