"""Weights & Biases: a real offline run, the framing of its log, and history that was exported."""

import json
import math
import struct
import zlib
from pathlib import Path

import importing
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from rca.errors import SourceError, UsageError
from rca.sources import wandb
from rca.sources.kept import Kept
from rca.sources.messages import message
from rca.sources.wandb import Torn, records

REAL = importing.FOREIGN / "run-c96qfcwe.wandb"
"""What wandb 0.31.0 wrote, offline: twelve rows, every ten steps, the ninth loss NaN."""
START = 1767571200.0
ROWS = [
    {
        "_step": at,
        "_timestamp": START + 10 * at,
        "train/loss": 3.0 - at / 10,
        "train/global_step": 20 * at,
        "system.gpu.1.temp": 60 + at,
    }
    for at in range(4)
]


def read(path: Path, name: str = "") -> Kept:
    return wandb.read(importing.place(path, name), importing.ways())


def framed(bodies: list[bytes]) -> bytes:
    """Frame records as LevelDB does, in blocks of 32 KiB."""
    data = bytearray(b":W&B" + struct.pack("<HB", 0xBEE1, 0))
    for body in bodies:
        rest, first = body, True
        while first or rest:
            left = 32768 - len(data) % 32768
            if left < 7:
                data += b"\0" * left
                continue
            part, rest = rest[: left - 7], rest[left - 7 :]
            kind = (1 if not rest else 2) if first else (4 if not rest else 3)
            data += struct.pack("<IHB", zlib.crc32(part, zlib.crc32(bytes([kind]))), len(part), kind) + part
            first = False
    return bytes(data)


def row(**values: float) -> bytes:
    made = message("Record")()
    for key, value in values.items():
        made.history.item.add(key=key, value_json=json.dumps(value))
    return made.SerializeToString()


def test_a_real_offline_run():
    kept = read(REAL)
    who = {"job_id": "llama-70b", "rank": "0"}
    losses = [value for _, value in importing.samples(kept, "train_loss", loss="lm", **who)]
    assert losses[:8] == [pytest.approx(3.0 - step / 10) for step in range(1, 9)]
    assert math.isnan(losses[8])
    assert len(losses) == 12
    assert [value for _, value in importing.samples(kept, "train_step", **who)] == [
        10.0 * step for step in range(1, 13)
    ]
    assert [value for _, value in importing.samples(kept, "train_nonfinite_steps_total", kind="nan", **who)][-1] == 1.0
    assert kept.warnings() == (f"{REAL}: 1 of 4 names are not read: deep.er",)


def test_a_folder_of_runs(tmp_path):
    for run in ("a", "b"):
        folder = tmp_path / f"offline-run-{run}" / "files"
        folder.mkdir(parents=True)
        (folder.parent / f"run-{run}.wandb").write_bytes(REAL.read_bytes())
    assert read(tmp_path).told("job_id") == {"llama-70b-c96qfcwe"}
    assert read(tmp_path / "offline-run-a", "mine").told("job_id") == {"mine"}


def test_system_metrics_are_of_the_node_that_the_run_names(tmp_path):
    about, stats = message("Record")(), message("Record")()
    about.run.run_id, about.run.host = "r1", "node-07"
    stats.stats.timestamp.seconds, stats.stats.timestamp.nanos = int(START), 500_000_000
    stats.stats.item.add(key="gpu.1.temp", value_json="92.0")
    stats.stats.item.add(key="gpu.1.memoryAllocatedBytes", value_json=str(80 * 2**30))
    (tmp_path / "run-r1.wandb").write_bytes(framed([about.SerializeToString(), stats.SerializeToString()]))
    kept = read(tmp_path)
    who = {"Hostname": "node-07", "gpu": "1", "job_id": "r1"}
    assert importing.samples(kept, "DCGM_FI_DEV_GPU_TEMP", **who) == [(START + 0.5, 92.0)]
    assert importing.samples(kept, "DCGM_FI_DEV_FB_USED", **who) == [(START + 0.5, 81920.0)]


def exported(path: Path, kind: str) -> Path:
    path = path / f"llama.{kind}"
    if kind == "csv":
        lines = [
            ",".join(["", *ROWS[0]]),
            *(",".join([str(at), *map(str, one.values())]) for at, one in enumerate(ROWS)),
        ]
        path.write_text("\n".join([*lines, "4,4,,,,"]) + "\n")
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(one) + "\n" for one in ROWS))
    elif kind == "json":
        path.write_text(json.dumps(ROWS))
    else:
        parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json", "parquet"])
def test_exported_history(tmp_path, kind):
    kept = read(exported(tmp_path, kind), "llama")
    times = [START + 10 * at for at in range(4)]
    assert importing.samples(kept, "train_loss", job_id="llama") == list(zip(times, (3.0, 2.9, 2.8, 2.7), strict=True))
    assert importing.samples(kept, "train_step") == list(zip(times, (0.0, 20.0, 40.0, 60.0), strict=True))
    assert importing.samples(kept, "DCGM_FI_DEV_GPU_TEMP", gpu="1", Hostname="llama") == list(
        zip(times, (60.0, 61.0, 62.0, 63.0), strict=True)
    )


def test_a_time_per_step_counts_the_steps_of_training_and_not_calls(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [
        {"_step": at, "_timestamp": START + at, "trainer/global_step": 50 * at, "iteration-time": 2.0}
        for at in range(3)
    ]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    assert [value for _, value in importing.samples(read(path), "train_step_duration_seconds_sum")] == [
        0.0,
        100.0,
        200.0,
    ]


def test_odd_rows_are_counted_and_said(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"_timestamp": 1767571200123, "loss": NaN}\nnonsense\n{"loss": 1}\n{"_timestamp": 1767571201, "loss": 2}\n{"_time'
    )
    kept = read(path)
    assert importing.samples(kept, "train_loss")[-1] == (1767571201.0, 2.0)
    assert importing.samples(kept, "train_loss")[0][0] == 1767571200.123
    assert kept.warnings() == (
        f"{path}: 2 lines are no JSON, left out, for example line 2",
        f"{path}: 1 row without _timestamp, left out",
    )
    path = tmp_path / "b.csv"
    path.write_text("_timestamp,loss\n1767571200,1\n1767571201\n1767571202,3\n")
    assert read(path).warnings() == (f"{path}: 1 line with another number of cells than the header, left out",)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.wandb", b"", "byte 0: not a record of W&B, is this the log of an offline run"),
        ("a.wandb", b"something else", "byte 0: not a record of W&B"),
        ("a.csv", b"", "a.csv:1: no column _timestamp, is this an exported history"),
        ("a.csv", b"a,b\n1,2\n", "a.csv:1: no column _timestamp"),
        ("a.jsonl", b"hello\n", "a.jsonl:1: not a JSON object a line"),
        ("a.jsonl", b'{"loss": 1}\n', "a.jsonl: no row has _timestamp, export the history with it"),
        ("a.json", b"[1, 2]", "a.json: not a list of JSON objects"),
        ("a.parquet", b"hello", "a.parquet: not a Parquet file"),
    ],
)  # fmt: skip
def test_what_is_no_such_file_is_told(tmp_path, name, data, said):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(SourceError) as caught:
        read(path)
    assert said in str(caught.value)


def test_places_without_runs(tmp_path):
    with pytest.raises(UsageError, match="no such file or folder"):
        read(tmp_path / "nowhere")
    with pytest.raises(SourceError, match="neither a run of W&B"):
        read(tmp_path)


GOOD = [row(_timestamp=START + at, loss=1.0) for at in range(5)]


@pytest.mark.parametrize(
    ("change", "said", "left"),
    [
        (lambda data: data[:-3], "the last record is torn, left out", 4),
        (lambda data: data + b"\0" * 100, "the last record is torn, left out", 5),
        (lambda data: data[:-20] + b"?" + data[-19:], "the log is damaged", 4),
    ],
    ids=["cut", "zeros", "a byte"],
)
def test_damage_is_told_with_its_byte(tmp_path, change, said, left):
    path = tmp_path / "a.wandb"
    path.write_bytes(change(framed(GOOD)))
    kept = read(path)
    assert len(importing.samples(kept, "train_loss")) == left
    assert said in kept.warnings()[0]
    assert kept.warnings()[0].startswith(f"{path}: byte ")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 70_000).map(bytes), max_size=4))
def test_records_of_any_length_come_back(tmp_path_factory, bodies):
    path = tmp_path_factory.mktemp("wandb") / "x"
    data = framed(bodies)
    path.write_bytes(data)
    assert [one[1] for one in records(path)] == bodies
    for cut in {len(data) // 2, max(len(data) - 1, 0)}:
        path.write_bytes(data[:cut])
        found = [one for one in records(path) if not isinstance(one, Torn)]
        assert [one[1] for one in found] == bodies[: len(found)]
