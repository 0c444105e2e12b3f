"""What a diagnosis saw, in one file: written once, read back bit for bit.

A recording is a zip file: `snapshot.json` holds everything but numbers, each matrix is a `.npy` member. There is no
pickle in it, its members carry a fixed date, and the same snapshot gives the same bytes.
"""

import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from rca.errors import SourceError, UsageError
from rca.library import Library
from rca.model import Floats, LogLine, Measurement, Snapshot, Table, Window

FORMAT = "rca.recording/v1"
_ABOUT = "snapshot.json"
_DATE = (1980, 1, 1, 0, 0, 0)
_LARGEST = 1 << 33  # bytes of one matrix: 16,384 ranks over a week at 15 s take 5 GB


class TableAbout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table: its key, and its columns by name."""

    kind: str
    key: tuple[str, ...]
    columns: dict[str, tuple[str, ...]]


class MeasurementAbout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A measurement but for its matrices, which are the members `window` and `before`.

    Row i's `origin` is the label set number `origin[i]` of the recording's `labels`.
    """

    window: str
    before: str | None
    interval: float
    smoothing: float
    query: str
    origin: tuple[int, ...]
    texts: tuple[str, ...] = ()


class About(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything of a recording but its numbers."""

    format: str
    window: Window
    step: float
    tables: dict[str, TableAbout]
    measurements: dict[str, MeasurementAbout]
    labels: tuple[dict[str, str], ...]
    absent: dict[str, str]
    warnings: tuple[str, ...]
    quotes: tuple[LogLine, ...] = ()
    words: tuple[LogLine, ...] = ()


class _Format(msgspec.Struct):
    format: str


def write(path: Path, snapshot: Snapshot, window: Window) -> None:
    """Save what a diagnosis of `window` saw.

    Raises SourceError where the file cannot be written.
    """
    try:
        with path.open("wb") as stream:
            pour(stream, snapshot, window)
    except OSError as error:
        raise SourceError(f"{path}: cannot be written, {(error.strerror or str(error)).lower()}") from error


def pour(stream: BinaryIO, snapshot: Snapshot, window: Window) -> None:
    """Write what a diagnosis of `window` saw into a stream."""
    labels = _Numbering()
    matrices = {"times": snapshot.times, "before_times": snapshot.before_times}
    measurements = {}
    for number, (name, measurement) in enumerate(snapshot.measurements.items()):
        window_name, before_name = f"{number:04d}.window", f"{number:04d}.before"
        matrices[window_name] = measurement.window
        if measurement.before is not None:
            matrices[before_name] = measurement.before
        measurements[name] = MeasurementAbout(
            window_name,
            None if measurement.before is None else before_name,
            measurement.interval,
            measurement.smoothing,
            measurement.query,
            tuple(labels.number(label) for label in measurement.origin),
            measurement.texts,
        )
    tables = {
        name: TableAbout(table.kind, table.key, {key: tuple(column) for key, column in table.columns.items()})
        for name, table in snapshot.tables.items()
    }
    about = About(
        FORMAT,
        window,
        snapshot.step,
        tables,
        measurements,
        tuple(labels.seen),
        dict(snapshot.absent),
        snapshot.warnings,
        snapshot.quotes,
        snapshot.words,
    )
    _save(stream, msgspec.json.encode(about), matrices)


class _Numbering:
    """Numbers distinct label sets in the order in which they are first met."""

    def __init__(self) -> None:
        self.seen: list[dict[str, str]] = []
        self._numbers: dict[tuple[tuple[str, str], ...], int] = {}

    def number(self, labels: Mapping[str, str]) -> int:
        """Return the number of a label set; the order of its labels is part of it."""
        key = tuple(labels.items())
        if key not in self._numbers:
            self._numbers[key] = len(self.seen)
            self.seen.append(dict(labels))
        return self._numbers[key]


def _save(stream: BinaryIO, about: bytes, matrices: Mapping[str, Floats]) -> None:
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        archive.writestr(_member(_ABOUT), about, compresslevel=6)
        for name, matrix in matrices.items():
            body = io.BytesIO()
            np.lib.format.write_array(body, np.ascontiguousarray(matrix), allow_pickle=False)
            archive.writestr(_member(f"{name}.npy"), body.getbuffer(), compresslevel=6)


def _member(name: str) -> zipfile.ZipInfo:
    """Describe a member so that nothing of the machine gets into it."""
    info = zipfile.ZipInfo(name, _DATE)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = 3
    info.external_attr = 0o644 << 16
    return info


class RecordingSource:
    """Replays a recording: the snapshot as it was, for the window that it was made of."""

    def __init__(self, file: Path | BinaryIO) -> None:
        self.path = file if isinstance(file, Path) else "the recording"
        self._file = file

    @cached_property
    def _content(self) -> tuple[About, Snapshot]:
        try:
            with zipfile.ZipFile(self._file) as archive:
                about = _about(archive)
                matrices = {name: _matrix(archive, name) for name in _names(about)}
            return about, _snapshot(about, matrices)
        except OSError as error:
            raise SourceError(f"{self.path}: cannot be read, {(error.strerror or str(error)).lower()}") from error
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise SourceError(f"{self.path}: is no whole recording ({error}), record again") from error
        except (ValueError, KeyError, msgspec.DecodeError, MemoryError) as error:
            raise SourceError(f"{self.path}: is a damaged recording ({_text(error)}), record again") from error

    @property
    def window(self) -> Window:
        """Return the window that the recording was made of."""
        return self._content[0].window

    def latest(self) -> float:
        """Return the end of the recorded window, in unix seconds."""
        return self.window.end

    def snapshot(self, library: Library, window: Window) -> Snapshot:  # noqa: ARG002 - the protocol of a source
        """Return what was seen; raise UsageError for another window than that of the recording."""
        if window != self.window:
            kept = self.window
            raise UsageError(
                f"{self.path}: holds {kept.start:.0f} to {kept.end:.0f} with {kept.baseline:.0f} s before it, "
                "leave out --at, --window and --baseline"
            )
        return self._content[1]


def _text(error: Exception) -> str:
    return str(error.args[0] if isinstance(error, KeyError) and error.args else error).rstrip(".")


def _about(archive: zipfile.ZipFile) -> About:
    if _ABOUT not in archive.namelist():
        raise zipfile.BadZipFile(f"it lacks {_ABOUT}")
    body = archive.read(_ABOUT)
    written = msgspec.json.decode(body, type=_Format).format
    if written != FORMAT:
        raise ValueError(f"its format is {written!r}, this version reads {FORMAT!r}")
    return msgspec.json.decode(body, type=About)


def _names(about: About) -> Iterator[str]:
    yield from ("times", "before_times")
    for measurement in about.measurements.values():
        yield measurement.window
        if measurement.before is not None:
            yield measurement.before


def _matrix(archive: zipfile.ZipFile, name: str) -> Floats:
    info = archive.getinfo(f"{name}.npy")
    if info.file_size > _LARGEST:
        raise ValueError(f"{name} claims {info.file_size} bytes")
    matrix = np.lib.format.read_array(io.BytesIO(archive.read(info)), allow_pickle=False)
    if matrix.dtype != np.float64:
        raise ValueError(f"{name} holds {matrix.dtype}, not float64")
    found: Floats = matrix
    return found


def _snapshot(about: About, matrices: Mapping[str, Floats]) -> Snapshot:
    tables = {name: _table(table) for name, table in about.tables.items()}
    measurements = {
        name: Measurement(
            window=matrices[each.window],
            before=None if each.before is None else matrices[each.before],
            interval=each.interval,
            smoothing=each.smoothing,
            query=each.query,
            origin=[about.labels[number] for number in _within(each.origin, len(about.labels), name)],
            texts=each.texts,
        )
        for name, each in about.measurements.items()
    }
    times, before = matrices["times"], matrices["before_times"]
    for name, measurement in measurements.items():
        narrow = measurement.window.shape[1:] != times.shape
        if narrow or (measurement.before is not None and measurement.before.shape[1:] != before.shape):
            raise ValueError(f"the matrices of {name} do not fit its times")
    return Snapshot(
        times, before, about.step, tables, measurements, about.absent, about.warnings, about.quotes, about.words
    )


def _within(numbers: Sequence[int], size: int, name: str) -> Sequence[int]:
    if any(not 0 <= number < size for number in numbers):
        raise ValueError(f"{name} refers to labels that are not there")
    return numbers


def _table(about: TableAbout) -> Table:
    columns: dict[str, NDArray[np.object_]] = {}
    for name, values in about.columns.items():
        column = np.empty(len(values), dtype=object)
        column[:] = values
        columns[name] = column
    if len({len(column) for column in columns.values()}) > 1 or any(name not in columns for name in about.key):
        raise ValueError(f"the columns of table {about.kind} do not fit together")
    return Table(about.kind, about.key, columns)
