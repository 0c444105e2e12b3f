"""A recording gives back what was seen, bit for bit, and says clearly when it cannot."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca.errors import SourceError, UsageError
from rca.library import Entities, Library
from rca.model import Measurement, Snapshot, Table, Window
from rca.sources.recording import FORMAT, RecordingSource, write

LIBRARY = Library(signals={}, entities=Entities(kinds={}, relations={}, labels={}), rules={})
WINDOW = Window(1_767_571_200.5, 1_767_572_100.5, 60.0)


def snapshot(values: list[float] | None = None) -> Snapshot:
    gpus = np.empty(2, dtype=object)
    gpus[:] = ["0", "1"]
    nodes = np.empty(2, dtype=object)
    nodes[:] = ["node-é", ""]
    window = np.array(values or [1.5, np.nan, -0.0, np.inf, 1e-308, 0.1, 2.0, 3.0]).reshape(2, -1)
    before = np.arange(8.0).reshape(2, 4)
    origin = [{"Hostname": "node-é", "gpu": "0"}, {"gpu": "1"}]
    columns = int(window.shape[1])
    return Snapshot(
        times=WINDOW.end + 15.0 * np.arange(1 - columns, 1),
        before_times=WINDOW.start + 15.0 * np.arange(-4, 0),
        step=15.0,
        tables={"gpu": Table("gpu", ("node", "gpu"), {"node": nodes, "gpu": gpus}), "job": empty_table()},
        measurements={
            "gpu_sm_clock": Measurement(window, before, 15.0, 60.0, "DCGM_FI_DEV_SM_CLOCK", origin),
            "gpu_power": Measurement(window[:, ::-1], None, 30.0, 0.0, "", ()),
            "none": Measurement(np.zeros((0, columns)), np.zeros((0, 4))),
        },
        absent={"nic_rate": "no series node_infiniband_rate_bytes_per_second on the server"},
        warnings=("a warning", "another"),
    )


def empty_table() -> Table:
    return Table("job", ("job",), {"job": np.empty(0, dtype=object)})


def assert_same(one: Snapshot, two: Snapshot) -> None:
    assert one.times.tobytes() == two.times.tobytes()
    assert one.before_times.tobytes() == two.before_times.tobytes()
    assert (one.step, dict(one.absent), one.warnings) == (two.step, dict(two.absent), two.warnings)
    assert list(one.tables) == list(two.tables)
    for name, table in one.tables.items():
        other = two.tables[name]
        assert (table.kind, table.key, list(table.columns)) == (other.kind, other.key, list(other.columns))
        for column, cells in table.columns.items():
            assert cells.tolist() == other.columns[column].tolist()
            assert other.columns[column].dtype == object
    assert list(one.measurements) == list(two.measurements)
    for name, measurement in one.measurements.items():
        other = two.measurements[name]
        assert measurement.window.tobytes() == other.window.tobytes()
        assert measurement.window.shape == other.window.shape
        assert (measurement.before is None) == (other.before is None)
        if measurement.before is not None and other.before is not None:
            assert measurement.before.tobytes() == other.before.tobytes()
        told = (measurement.interval, measurement.smoothing, measurement.query, list(measurement.origin))
        assert told == (other.interval, other.smoothing, other.query, list(other.origin))


@given(st.lists(st.floats(width=64), min_size=2, max_size=2))
def test_what_goes_in_comes_out(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    path = tmp_path_factory.mktemp("recording") / "seen.rca"
    given_snapshot = snapshot(values)
    write(path, given_snapshot, WINDOW)
    source = RecordingSource(path)
    assert source.window == WINDOW
    assert source.latest() == WINDOW.end
    assert_same(given_snapshot, source.snapshot(LIBRARY, source.window))


def test_the_same_snapshot_gives_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "one", snapshot(), WINDOW)
    write(tmp_path / "two", snapshot(), WINDOW)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    replayed = RecordingSource(tmp_path / "one")
    write(tmp_path / "three", replayed.snapshot(LIBRARY, WINDOW), replayed.window)
    assert (tmp_path / "three").read_bytes() == (tmp_path / "one").read_bytes()


def test_another_window_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "seen", snapshot(), WINDOW)
    with pytest.raises(UsageError, match=r"seen: holds 1767571200 to 1767572100 with 60 s before it, leave out --at"):
        RecordingSource(tmp_path / "seen").snapshot(LIBRARY, WINDOW._replace(end=WINDOW.end + 1))


def fails(path: Path) -> str:
    with pytest.raises(SourceError) as caught:
        RecordingSource(path).latest()
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


def test_a_file_that_is_not_there_or_is_none(tmp_path: Path) -> None:
    assert fails(tmp_path / "nowhere") == "cannot be read, no such file or directory"
    assert fails(tmp_path) == "cannot be read, is a directory"
    (tmp_path / "text").write_text("hello")
    assert fails(tmp_path / "text") == "is no whole recording (File is not a zip file), record again"
    with zipfile.ZipFile(tmp_path / "other", "w") as archive:
        archive.writestr("readme", "hello")
    assert fails(tmp_path / "other") == "is no whole recording (it lacks snapshot.json), record again"


def test_a_truncated_file_is_told_at_every_length(tmp_path: Path) -> None:
    write(tmp_path / "seen", snapshot(), WINDOW)
    whole = (tmp_path / "seen").read_bytes()
    for length in range(0, len(whole), 97):
        (tmp_path / "cut").write_bytes(whole[:length])
        assert "recording" in fails(tmp_path / "cut")


def test_a_flipped_byte_never_gets_through(tmp_path: Path) -> None:
    write(tmp_path / "seen", snapshot(), WINDOW)
    whole = (tmp_path / "seen").read_bytes()
    for place in range(0, len(whole), 13):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        (tmp_path / "bad").write_bytes(damaged)
        try:
            found = RecordingSource(tmp_path / "bad").snapshot(LIBRARY, WINDOW)
        except (SourceError, UsageError):
            continue
        assert_same(snapshot(), found)  # a byte that carries nothing, such as a date


def rewritten(path: Path, change: dict[str, object]) -> Path:
    """Return a copy of a recording whose description has other values."""
    target = path.with_name("rewritten")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            body = old.read(name)
            if name == "snapshot.json":
                body = json.dumps(json.loads(body) | change).encode()
            new.writestr(name, body)
    return target


def test_a_description_that_does_not_fit(tmp_path: Path) -> None:
    write(tmp_path / "seen", snapshot(), WINDOW)
    newer = fails(rewritten(tmp_path / "seen", {"format": "rca.recording/v9"}))
    assert (
        newer
        == f"is a damaged recording (its format is 'rca.recording/v9', this version reads '{FORMAT}'), record again"
    )
    assert "refers to labels that are not there" in fails(rewritten(tmp_path / "seen", {"labels": []}))
    assert "unknown field `more`" in fails(rewritten(tmp_path / "seen", {"more": 1}))
    with zipfile.ZipFile(tmp_path / "seen") as archive:
        about = json.loads(archive.read("snapshot.json"))
    about["measurements"]["none"]["window"] = "before_times"
    assert "do not fit" in fails(rewritten(tmp_path / "seen", {"measurements": about["measurements"]}))
    about["measurements"]["none"]["window"] = "9999.window"
    assert "9999.window" in fails(rewritten(tmp_path / "seen", {"measurements": about["measurements"]}))


def test_no_pickle_is_read(tmp_path: Path) -> None:
    write(tmp_path / "seen", snapshot(), WINDOW)
    target = tmp_path / "pickled"
    with zipfile.ZipFile(tmp_path / "seen") as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            if name == "times.npy":
                with new.open(name, "w") as member:
                    np.lib.format.write_array(member, np.array([{}, {}], dtype=object), allow_pickle=True)
            else:
                new.writestr(name, old.read(name))
    assert "damaged" in fails(target)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be written, no such file or directory"):
        write(tmp_path / "no" / "folder", snapshot(), WINDOW)
