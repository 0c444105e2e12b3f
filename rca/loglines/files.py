"""The files that logs lie in: which of a folder they are, and their bytes at any place, packed or not."""

import bz2
import gzip
import lzma
import os
import re
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import IO, NamedTuple

from rca.errors import SourceError
from rca.loglines.owners import Naming, Owner, told_apart

PATTERNS = ("*.jsonl", "*.json", "*.ndjson", "*.log", "*.out", "*.err", "*.txt", "messages", "syslog", "dmesg")
"""What a log is called, before numbers, dates and endings of packers that rotation adds."""
_ROTATED = re.compile(r"(?:[.-]\d[\dT:_-]*)?(?:\.(?:gz|bz2|xz|zst|lz4))?$")
_DATED = re.compile(r"[.-]\d{8}[\dT:_-]*(?=\.\w+$)")
_CHUNK = 1 << 20
_OPENERS: dict[str, Callable[[str], IO[bytes]]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}  # type: ignore[dict-item]
_UNREAD = (".zst", ".lz4")
_DAMAGE = (EOFError, OSError, zlib.error, lzma.LZMAError)


class LogFile(NamedTuple):
    """A file of lines: who wrote it, and its size and the time of its last change as the file system tells them."""

    path: str
    owner: Owner
    size: int
    changed: float

    @property
    def packed(self) -> bool:
        """Say whether the file must be unpacked to be read."""
        return os.path.splitext(self.path)[1] in _OPENERS  # noqa: PTH122 - plain strings


@dataclass
class Notes:
    """What reading met that a reader of the answer should know, counted; nothing is left out in silence.

    `files` are notes on single files by what they say, `counts` numbers of lines by flaw, `passed` is how many files are
    no logs by their names.
    """

    files: dict[str, list[str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    passed: int = 0

    def of(self, said: str, path: str) -> None:
        """Note something of a file."""
        paths = self.files.setdefault(said, [])
        if path not in paths:
            paths.append(path)

    def add(self, said: str, count: int = 1) -> None:
        """Count something."""
        if count:
            self.counts[said] = self.counts.get(said, 0) + count


class Content(NamedTuple):
    """The bytes of an open file, unpacked."""

    file: int
    size: int

    def at(self, offset: int, count: int) -> bytes:
        """Return so many bytes from an offset on, fewer at the end."""
        data = os.pread(self.file, min(count, self.size - offset), offset) if offset < self.size else b""
        while 0 < len(data) < min(count, self.size - offset):
            more = os.pread(self.file, min(count, self.size - offset) - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data


@contextmanager
def opened(log: LogFile, notes: Notes) -> Iterator[Content | None]:
    """Open a file; a packed one is unpacked into a temporary file. None where it cannot be read, which is noted."""
    try:
        file = os.open(log.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        notes.of(f"cannot be read: {(error.strerror or str(error)).lower()}", log.path)
        yield None
        return
    try:
        if log.packed:
            with tempfile.TemporaryFile(prefix="rca-logs-") as whole:
                _unpack(log.path, whole, notes)
                yield Content(whole.fileno(), whole.tell())
        else:
            yield Content(file, os.fstat(file).st_size)
    finally:
        os.close(file)


def _unpack(path: str, whole: IO[bytes], notes: Notes) -> None:
    """Write what a packed file holds, as far as it is sound."""
    try:
        with _OPENERS[os.path.splitext(path)[1]](path) as packed:  # noqa: PTH122 - plain strings
            while chunk := packed.read1(_CHUNK):  # type: ignore[attr-defined]  # gives what is there before it fails
                _write(whole, chunk)
    except _DAMAGE as error:
        notes.of(f"is damaged, read as far as it could be unpacked ({error})", path)
    whole.flush()


def _write(whole: IO[bytes], chunk: bytes) -> None:
    try:
        whole.write(chunk)
    except OSError as error:
        folder = tempfile.gettempdir()
        raise SourceError(
            f"{folder}: cannot hold an unpacked log, {(error.strerror or str(error)).lower()}, set TMPDIR to a larger disk"
        ) from error


def find(paths: Sequence[str], naming: Naming, patterns: Sequence[str], notes: Notes) -> list[LogFile]:
    """Return the log files among paths and below folders, in the order of their names.

    Raises SourceError for a path that is not there.
    """
    found: dict[tuple[int, int], tuple[str, os.stat_result]] = {}
    for path in paths:
        try:
            status = os.stat(path)  # noqa: PTH116 - plain strings
        except OSError as error:
            raise SourceError(f"{path}: cannot be read, {(error.strerror or str(error)).lower()}") from error
        if stat.S_ISDIR(status.st_mode):
            for inside, own in _below(path, patterns, notes):
                found.setdefault((own.st_dev, own.st_ino), (inside, own))
        elif stat.S_ISREG(status.st_mode):
            found.setdefault((status.st_dev, status.st_ino), (path, status))
        else:
            raise SourceError(f"{path}: is no regular file, write it to one first")
    kept = sorted(found.values(), key=lambda item: item[0])
    kept = [(path, status) for path, status in kept if not _unreadable(path, notes)]
    owners = told_apart(naming.owner(path) for path, _ in kept)
    return [
        LogFile(path, owner, status.st_size, status.st_mtime)
        for (path, status), owner in zip(kept, owners, strict=True)
    ]


def _unreadable(path: str, notes: Notes) -> bool:
    if path.endswith(_UNREAD):
        notes.of(f"is packed as {path.rpartition('.')[2]}, which is not read, unpack it first", path)
        return True
    return False


def _below(folder: str, patterns: Sequence[str], notes: Notes) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files below a folder that are logs by their names; the others are counted."""
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        try:
            with os.scandir(here) as entries:
                inside = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            notes.of(f"cannot be read: {(error.strerror or str(error)).lower()}", here)
            continue
        for entry in inside:
            try:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.is_file() and is_log(entry.path[len(folder) :].lstrip("/"), patterns):
                    yield entry.path, entry.stat()
                else:
                    notes.passed += 1
            except OSError as error:
                notes.of(f"cannot be read: {(error.strerror or str(error)).lower()}", entry.path)


def is_log(path: str, patterns: Sequence[str]) -> bool:
    """Say whether a path below a folder fits a pattern, by its name or as a whole, rotated and packed or not.

    >>> [is_log(one, PATTERNS) for one in ("a/rank-3.jsonl.2.gz", "train-20260301.log", "core.712", "kern.log.1")]
    [True, True, False, True]
    """
    name = path.rpartition("/")[2]
    names = {name, _ROTATED.sub("", name), _DATED.sub("", _ROTATED.sub("", name)), path}
    return any(fnmatchcase(one, pattern) for one in names for pattern in patterns)
