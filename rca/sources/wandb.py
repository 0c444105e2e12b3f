"""Weights & Biases without wandb: offline runs, and history that was exported as CSV, JSON lines or Parquet.

An offline run is a log in LevelDB's framing whose records are protocol buffers; that format has outlived the module
of the wandb package that could read it. Rows of history and of system metrics are read, all else is not looked at.
"""

import csv
import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from google.protobuf.message import DecodeError

from rca.errors import SourceError
from rca.imports import Tally
from rca.plain import counted, natural
from rca.sources.foreign import Place, Ways, files, lines, open_bytes, unreadable
from rca.sources.kept import Kept, Series
from rca.sources.messages import message
from rca.sources.runs import Run

NAN = float("nan")
_RECORD: Any = message("Record")
_BEGIN = b":W&B" + struct.pack("<HB", 0xBEE1, 0)
_HEAD = struct.Struct("<IHB")
_BLOCK = 32768
_EXPORTS = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".ndjson", ".json", ".parquet")
_TIME, _STEP = "_timestamp", "_step"
Row = Mapping[str, float]


class Torn(NamedTuple):
    """Where reading a log had to stop, and whether only its last record is not whole."""

    byte: int
    last: bool


def read(place: Place, ways: Ways) -> Kept:
    """Read an offline run, every one below a folder, or an exported history."""
    path = place.file()
    found = files(path, (".wandb",)) if path.is_dir() or path.suffix == ".wandb" else []
    found = found or files(path, _EXPORTS)
    if not found:
        raise SourceError(
            f"{place.shown}: neither a run of W&B (run-....wandb) nor exported history ({', '.join(_EXPORTS)}) in it"
        )
    tally = Tally("names")
    logs = [_Log(one) for one in sorted(found, key=lambda one: natural(str(one)))]
    names = [log.open() for log in logs]
    series: list[Series] = []
    for log, name in zip(logs, names, strict=True):
        own = f"{name}-{log.run_id}" if names.count(name) > 1 and log.run_id else name
        job = f"{place.name}/{own}" if place.name and len(logs) > 1 else place.name or own
        run = Run({"job_id": job, "node": log.host or place.name}, ways.imports, "wandb", tally)
        for row in log.rows():
            _take(row, run)
        series += run.series()
    said = [text for log in logs for text in log.said]
    return Kept(series, place.shown, [*said, *tally.said(place.shown)])


def _take(row: Row, run: Run) -> None:
    """Take the values of a row."""
    time, step = row[_TIME], row.get(_STEP, NAN)
    for name, value in row.items():
        if name[:1] != "_" and run.wants(name):
            run.add(name, time, value, step)


class _Log:
    """One file: a run's log, or what was exported of one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = self.host = ""
        self.said: list[str] = []
        self._without = 0

    def open(self) -> str:
        """Return the name of the run: its own, else that of its file."""
        name = self.path.name.removesuffix(".gz").rpartition(".")[0]
        if self.path.suffix != ".wandb":
            return name
        for at in records(self.path):
            if isinstance(at, Torn):
                break
            record = self._decoded(at[1])
            if record is not None and record.HasField("environment"):
                self.host = self.host or record.environment.host
            if record is not None and record.HasField("run"):
                self.run_id, self.host = record.run.run_id, record.run.host or self.host
                return str(record.run.display_name or self.run_id or name)
        return name

    def rows(self) -> Iterator[Row]:
        """Yield the rows that tell their time, and keep what was odd."""
        kinds = {".wandb": self._run, ".csv": self._csv, ".parquet": self._parquet}
        seen = 0
        for row in kinds.get(Path(self.path.name.removesuffix(".gz")).suffix, self._json)():
            seen += 1
            time = row.get(_TIME, NAN)
            if math.isfinite(time):
                yield {**row, _TIME: time / 1000.0 if time > 1e11 else time}  # older exports count milliseconds
            else:
                self._without += 1
        if seen and seen == self._without:
            raise SourceError(f"{self.path}: no row has {_TIME}, export the history with it")
        if self._without:
            self.said.append(f"{self.path}: {counted(self._without, 'row')} without {_TIME}, left out")

    def _run(self) -> Iterator[Row]:
        for good, at in enumerate(records(self.path)):
            record = None if isinstance(at, Torn) else self._decoded(at[1])
            if record is None:
                self._stopped(at if isinstance(at, Torn) else Torn(at[0], last=False), good)
                return
            if record.HasField("history"):
                row = dict(_values(record.history.item))
                row.setdefault(_STEP, float(record.history.step.num))
                yield row
            elif record.HasField("stats"):
                stamp = record.stats.timestamp
                yield {**dict(_values(record.stats.item)), _TIME: stamp.seconds + stamp.nanos / 1e9}

    def _stopped(self, at: Torn, good: int) -> None:
        """Keep why reading stopped; raise where nothing came before."""
        if not good:
            raise SourceError(f"{self.path}: byte {at.byte}: not a record of W&B, is this the log of an offline run")
        rest = self.path.stat().st_size - at.byte
        self.said.append(
            f"{self.path}: byte {at.byte}: the last record is torn, left out" if at.last
            else f"{self.path}: byte {at.byte}: the log is damaged, the {rest} bytes from there on are not read"
        )  # fmt: skip

    @staticmethod
    def _decoded(body: bytes) -> Any:  # noqa: ANN401 - made at run time
        try:
            return _RECORD.FromString(body)
        except DecodeError:
            return None

    def _csv(self) -> Iterator[Row]:
        texts = (raw.decode("utf-8-sig" if number == 1 else "utf-8", "replace") for number, raw in lines(self.path))
        rows = csv.DictReader(texts)
        if _TIME not in (rows.fieldnames or ()):
            raise SourceError(f"{self.path}:1: no column {_TIME}, is this an exported history of W&B")
        short = 0
        for row in rows:
            if None in row or None in row.values():
                short += 1
                continue
            yield {name: value for name, text in row.items() if (value := _number(text)) is not None}
        if short:
            self.said.append(
                f"{self.path}: {counted(short, 'line')} with another number of cells than the header, left out"
            )

    def _json(self) -> Iterator[Row]:
        """Yield the objects of JSON lines, or of one list."""
        decoder = msgspec.json.Decoder()
        stream = lines(self.path)
        first = next(stream, (0, b""))
        if first[1].lstrip()[:1] == b"[":
            yield from self._listed()
            return
        bad: list[int] = []
        good = 0
        for number, raw in chain([first], stream):
            if not raw.strip():
                continue
            try:
                row = decoder.decode(raw.replace(b"NaN", b'"NaN"') if b"NaN" in raw and b'"NaN"' not in raw else raw)
                good += isinstance(row, dict)
                yield dict(_flat(row))
            except (msgspec.DecodeError, AttributeError):
                bad.append(number)
        if not good:
            raise SourceError(
                f"{self.path}:{bad[0] if bad else 1}: not a JSON object a line, is this an exported history"
            )
        if bad:
            self.said.append(
                f"{self.path}: {counted(len(bad), 'line')} are no JSON, left out, for example line {bad[0]}"
            )

    def _listed(self) -> Iterator[Row]:
        try:
            with open_bytes(self.path) as stream:
                rows = msgspec.json.decode(stream.read(), type=list[dict[str, object]])
        except msgspec.DecodeError as error:
            raise SourceError(f"{self.path}: not a list of JSON objects ({error})") from error
        except (OSError, EOFError) as error:
            raise unreadable(self.path, error) from error
        yield from (dict(_flat(row)) for row in rows)

    def _parquet(self) -> Iterator[Row]:
        try:
            from pyarrow import ArrowException, parquet  # noqa: PLC0415 - an extra, and heavy
        except ImportError as error:
            raise SourceError(f"{self.path}: Parquet is read with pyarrow, pip install 'rca[parquet]'") from error
        try:
            with parquet.ParquetFile(self.path) as table:
                for batch in table.iter_batches():
                    yield from (dict(_flat(row)) for row in batch.to_pylist())
        except (ArrowException, OSError) as error:
            raise SourceError(f"{self.path}: not a Parquet file ({' '.join(str(error).split())[:200]})") from error


def _values(items: Any) -> Iterator[tuple[str, float]]:  # noqa: ANN401 - made at run time
    """Yield the numbers of a record's items, nested keys joined by points."""
    for item in items:
        name = item.key or ".".join(item.nested_key)
        for field in ("number", "integer"):
            if item.HasField(field):
                yield name, float(getattr(item, field))
                break
        else:
            value = _number(item.value_json or item.json)
            if value is not None:
                yield name, value


def _flat(row: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a JSON object, nested keys joined by points.

    >>> dict(_flat({"loss": 2, "gpu": {"0": {"temp": 63.5}}, "text": "x", "grad": "NaN"}))
    {'loss': 2.0, 'gpu.0.temp': 63.5, 'grad': nan}
    """
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif (isinstance(value, int | float) and not isinstance(value, bool)) or (
            isinstance(value, str) and value in {"NaN", "Infinity", "-Infinity"}
        ):
            yield prefix + key, float(value)


def _number(text: str) -> float | None:
    """Return the number that a text holds, in JSON or not; None where it holds none."""
    try:
        return float(text.strip('"'))
    except ValueError:
        return None


def records(path: Path) -> Iterator[tuple[int, bytes] | Torn]:
    """Yield (first byte, body) of each record of a log, and where it had to stop.

    The framing is LevelDB's, blocks of 32 KiB, with the plain CRC-32 of kind and data.
    """
    try:
        with path.open("rb") as stream:
            if stream.read(len(_BEGIN)) != _BEGIN:
                yield Torn(0, last=False)
                return
            byte = begun = len(_BEGIN)
            parts: list[bytes] = []
            while True:
                left = _BLOCK - byte % _BLOCK
                if left < _HEAD.size:
                    byte += len(stream.read(left))
                    continue
                head = stream.read(_HEAD.size)
                if not head:
                    break
                check, length, kind = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, _BLOCK, 0)
                body = stream.read(length) if length + _HEAD.size <= left else b""
                if len(body) < length:
                    yield Torn(begun if parts else byte, last=len(head) < _HEAD.size or length + _HEAD.size <= left)
                    return
                if zlib.crc32(body, zlib.crc32(head[6:])) != check or kind not in {1, 2, 3, 4}:
                    yield Torn(byte, last=not any(head) and not any(body))
                    return
                if kind in {1, 2}:
                    begun, parts = byte, []
                parts.append(body)
                byte += _HEAD.size + length
                if kind in {1, 4}:
                    yield begun, b"".join(parts)
                    parts = []
            if parts:
                yield Torn(begun, last=True)
    except OSError as error:
        raise unreadable(path, error) from error
