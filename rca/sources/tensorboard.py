"""TensorBoard event files, read without TensorBoard: records of TFRecord that hold protocol buffers.

A folder that holds event files is a run. Scalars are read whether they were written as a simple value or as a tensor;
images, histograms and texts are not looked at. What a process was writing when it ended is left out, and said.
"""

import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from rca.errors import SourceError
from rca.imports import Tally
from rca.plain import natural
from rca.sources.foreign import Place, Ways, files, unreadable
from rca.sources.kept import Kept, Series
from rca.sources.messages import message
from rca.sources.runs import Run

_EVENT: Any = message("Event")
_HEAD = struct.Struct("<QI")
_LARGEST = 1 << 30
"""A record of more bytes is none: the length itself is damaged, or this is another file."""
_SAMPLES = re.compile(r"[ _]vs[ _]samples$")
"""Megatron writes each value once more over samples; those are left aside knowingly."""
_RANK = re.compile(r"rank[_-]?(\d+)")
_DTYPES = {1: ("<f4", "float_val"), 2: ("<f8", "double_val"), 3: ("<i4", "int_val"), 9: ("<i8", "int64_val")}
"""Types of tensors that a scalar comes in (tensorflow's types.proto), how their bytes are laid out, and their own field."""


class Torn(NamedTuple):
    """Where reading a file had to stop, and whether that is only its last record, which was not written whole."""

    byte: int
    last: bool


def read(place: Place, ways: Ways) -> Kept:
    """Read an event file, or every run below a folder; raises SourceError where there is none, or a file is another."""
    path = place.file()
    found = [one for one in files(path, ("",)) if "tfevents" in one.name]
    if not found:
        raise SourceError(f"{place.shown}: no event files of TensorBoard (events.out.tfevents...) in it")
    tally = Tally("tags")
    runs: dict[Path, list[Path]] = {}
    for one in sorted(found, key=lambda one: natural(one.name)):
        runs.setdefault(one.parent, []).append(one)
    series: list[Series] = []
    said: list[str] = []
    for folder, parts in sorted(runs.items()):
        job, rank = job_of(folder, path if path.is_dir() else path.parent, place.name)
        run = Run({"job_id": job, "rank": rank}, ways.imports, None, tally)
        for one in parts:
            said += _read_file(one, run)
        series += run.series()
    return Kept(series, place.shown, [*said, *tally.said(place.shown)])


def job_of(folder: Path, top: Path, name: str) -> tuple[str, str]:
    """Name the job and the rank of a run by its folder below the one that was named.

    >>> job_of(Path("tb/llama/rank_3"), Path("tb"), ""), job_of(Path("tb"), Path("tb"), "")
    (('llama', '3'), ('tb', '0'))
    """
    parts = list(folder.relative_to(top).parts)
    ranks = [match[1] for match in map(_RANK.fullmatch, parts) if match]
    inner = "/".join(part for part in parts if not _RANK.fullmatch(part))
    job = f"{name}/{inner}".strip("/") if name else inner or top.resolve().name
    return job, ranks[-1] if ranks else "0"


def _read_file(path: Path, run: Run) -> Iterator[str]:
    """Read the scalars of one file into its run, and yield what was odd."""
    stop = None
    seen = 0
    for at in records(path):
        if isinstance(at, Torn):
            stop = at
            break
        byte, body, check = at
        try:
            event = _EVENT.FromString(body)
        except DecodeError:
            stop = Torn(byte, last=False)
            break
        seen += 1
        if not _take(event, run, body, check):
            stop = Torn(byte, last=False)
            break
    if stop is not None and not stop.last and not seen:
        raise SourceError(f"{path}: byte {stop.byte}: not a record of TensorBoard, is this an event file")
    if stop is not None:
        rest = path.stat().st_size - stop.byte
        yield (
            f"{path}: byte {stop.byte}: the last record is torn, left out" if stop.last
            else f"{path}: byte {stop.byte}: the file is damaged, the {rest} bytes from there on are not read"
        )  # fmt: skip


def _take(event: Any, run: Run, body: bytes, check: int) -> bool:  # noqa: ANN401 - made at run time
    """Take the scalars of an event; say whether its bytes are as they were written, where any is read."""
    wanted = [one for one in event.summary.value if not _SAMPLES.search(one.tag) and run.wants(one.tag)]
    if not wanted:
        return True
    if masked(body) != check:
        return False
    for one in wanted:
        value = one.simple_value if one.HasField("simple_value") else _scalar(one.tensor)
        if value is not None:
            run.add(one.tag, event.wall_time, value, float(event.step))
    return True


def _scalar(tensor: Any) -> float | None:  # noqa: ANN401 - made at run time
    """Return the number in a tensor that holds one."""
    layout, field = _DTYPES.get(tensor.dtype, ("", ""))
    if not layout:
        return None
    values: Sequence[float] = (
        np.frombuffer(tensor.content, layout).tolist() if tensor.content else getattr(tensor, field)
    )
    return float(values[0]) if len(values) == 1 else None


def records(path: Path) -> Iterator[tuple[int, bytes, int] | Torn]:
    """Yield (first byte, body, checksum of the body) of each record of a TFRecord file, and where it had to stop."""
    byte = 0
    try:
        with path.open("rb") as stream:
            while head := stream.read(_HEAD.size):
                if len(head) < _HEAD.size:
                    yield Torn(byte, last=byte > 0)
                    return
                length, check = _HEAD.unpack(head)
                if masked(head[:8]) != check or length > _LARGEST:
                    yield Torn(byte, last=byte > 0 and not head.strip(b"\0") and _blank(stream))
                    return
                body = stream.read(length + 4)
                if len(body) < length + 4:
                    yield Torn(byte, last=True)
                    return
                yield byte, body[:-4], int.from_bytes(body[-4:], "little")
                byte += _HEAD.size + length + 4
    except OSError as error:
        raise unreadable(path, error) from error


def _blank(stream: BinaryIO) -> bool:
    """Say whether only zeros follow, as a machine that lost its power leaves behind."""
    return not any(chunk.strip(b"\0") for chunk in iter(lambda: stream.read(1 << 20), b""))


def _table() -> tuple[int, ...]:
    """Return the table of CRC-32C, polynomial 0x1EDC6F41 (RFC 3720, B.4), reflected."""
    rows = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        rows.append(crc)
    return tuple(rows)


_CRC = _table()


def masked(data: bytes) -> int:
    """Return the masked CRC-32C of some bytes, as TFRecord has it.

    >>> hex(masked(b"123456789"))
    '0xc78ab0e5'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
