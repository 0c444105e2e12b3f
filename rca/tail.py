"""Read what has been added to one file since it was read last, in blocks of complete lines.

What was read is known by the last bytes of it: a file that no longer has them there was truncated or written anew. Each
read opens the file again, which is when a network file system asks its server what is new.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

BLOCK = 4 << 20
LONGEST = 16 << 20
"""A line longer than this is left out, and counted."""
MARK = 256
PROGRESS = 64 << 10
"""What stands before the last carriage return of an unfinished line this long has been overwritten: progress bars."""


class Key(NamedTuple):
    """What the file system knows a file by, whatever its name."""

    device: int
    inode: int


class MovedError(Exception):
    """Another file has this name now."""


class ChangedError(Exception):
    """The file no longer holds what was read of it: it was truncated, or written anew."""


@dataclass
class Counts:
    """What reading has met: bytes, lines left out (too long, or never finished), files truncated, renamed, unreadable."""

    read: int = 0
    too_long: int = 0
    broken: int = 0
    truncations: int = 0
    rotations: int = 0
    errors: int = 0


def key_of(status: os.stat_result) -> Key:
    """Return what a file is known by."""
    return Key(status.st_dev, status.st_ino)


@dataclass(slots=True)
class Tail:
    """How far one file has been read.

    Before `offset` all lines have been handed out. Up to `seen` it has been looked at: between the two lies a line that
    is not complete. `mark` are the bytes before `seen`. `carry` is how a line began whose rest is in this file.
    The file stays open after a read, for it may lose its name before the next; `leave` closes it.
    """

    path: str
    key: Key
    counts: Counts
    offset: int = 0
    seen: int = 0
    mark: bytes = b""
    carry: bytes = b""
    skipping: bool = False
    changed: tuple[int, int] = (-1, -1)
    file: int | None = None

    def stale(self, status: os.stat_result) -> bool:
        """Say whether the file has changed since it was read."""
        return (status.st_size, status.st_mtime_ns) != self.changed

    def blocks(self) -> Iterator[bytes]:
        """Open the file and yield complete lines until its end.

        Raises MovedError or ChangedError where it is not what was read so far, OSError where it cannot be read.
        """
        file = opened(self.path)
        if key_of(os.fstat(file)) != self.key:
            os.close(file)
            raise MovedError
        self.leave()
        self.file = file
        yield from self.rest()

    def rest(self) -> Iterator[bytes]:
        """Yield complete lines of the file that is held open, whether it still has a name or not."""
        assert self.file is not None
        status = os.fstat(self.file)
        size, more = BLOCK, True
        while more:
            data, more = self._read(self.file, size)
            more = more and self.seen <= status.st_size  # what is written meanwhile is for the next look
            before = self.offset
            if lines := self._lines(data):
                yield lines
            size = BLOCK if self.offset > before else size * 4
            if more and size > LONGEST:
                self._give_up()
                size = BLOCK
        self.changed = (status.st_size, status.st_mtime_ns)

    def _read(self, file: int, size: int) -> tuple[bytes, bool]:
        """Return what stands before `seen`, and whether there is more; look whether what was seen is still there.

        Zeros at the end are not written yet: network file systems grow a file first and fill it then.
        """
        begin = min(self.offset, self.seen - len(self.mark))
        wanted = max(size + self.offset, self.seen) - begin
        data = os.pread(file, wanted, begin)
        more = len(data) == wanted
        if not more:
            data = data.rstrip(b"\0")
        if data[self.seen - len(self.mark) - begin : self.seen - begin] != self.mark:
            raise ChangedError
        end = begin + len(data)
        self.counts.read += end - self.seen
        self.seen, self.mark = end, data[-MARK:]
        return data, more

    def _lines(self, data: bytes) -> bytes:
        """Move `offset` behind the last complete line of the data, which end at `seen`, and return the lines."""
        ahead = self.seen - len(data)
        if self.skipping:
            cut = data.find(b"\n", self.offset - ahead) + 1
            self.skipping = not cut
            self.offset = ahead + (cut or len(data))
        begin = self.offset - ahead
        if data[begin : begin + 1] == b"\0":  # what lies before the place where a writer went on after a truncation
            begin = len(data) - len(data[begin:].lstrip(b"\0"))
            self.offset = ahead + begin
        cut = data.rfind(b"\n", begin) + 1
        if not cut:
            if len(data) - begin > PROGRESS:
                self.offset = ahead + (data.rfind(b"\r", begin) + 1 or begin)
            return b""
        self.offset = ahead + cut
        lines, self.carry = self.carry + data[begin:cut] if self.carry else data[begin:cut], b""
        return lines

    def _give_up(self) -> None:
        """Leave out the line at `offset`: it is too long to be one."""
        self.skipping, self.offset, self.carry = True, self.seen, b""
        self.counts.too_long += 1

    def unfinished(self) -> bytes:
        """Return what there is of a line that no newline has ended yet."""
        if self.skipping or self.seen == self.offset:
            return self.carry
        try:
            file = opened(self.path) if self.file is None else os.dup(self.file)
        except OSError:
            return self.carry
        try:
            return self.carry + os.pread(file, self.seen - self.offset, self.offset).lstrip(b"\0")
        finally:
            os.close(file)

    def restart(self, copy: "Tail | None") -> None:
        """Begin at the beginning; with a line that began in the copy, where there is one."""
        self.carry = copy.unfinished() if copy is not None else b""
        self.skipping = copy is not None and copy.skipping
        self.offset, self.seen, self.mark, self.changed = 0, 0, b"", (-1, -1)

    def copied_to(self, path: str) -> "Tail | None":
        """Return how far a copy of this file has been read, as far as this one was; None where it is no copy."""
        if not self.mark:
            return None
        try:
            file = opened(path)
        except OSError:
            return None
        try:
            if os.pread(file, len(self.mark), self.seen - len(self.mark)) != self.mark:
                return None
            key = key_of(os.fstat(file))
        except OSError:
            return None
        finally:
            os.close(file)
        return Tail(path, key, self.counts, self.offset, self.seen, self.mark, self.carry, self.skipping)

    def leave(self) -> None:
        """Let go of the file."""
        if self.file is not None:
            with contextlib.suppress(OSError):
                os.close(self.file)
            self.file = None


def opened(path: str) -> int:
    """Open a regular file for reading, and wait for nobody; raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(0, "is no regular file")
    return file


class Stream:
    """What arrives in a pipe, such as standard input, in blocks of complete lines."""

    def __init__(self, name: str, file: int, counts: Counts) -> None:
        self.name, self.file, self._counts = name, file, counts
        self.ended = False
        self._rest = b""
        self._skipping = False

    def block(self) -> bytes:
        """Read once, which waits for data, and return the lines that are complete; at the end also the last one."""
        data = os.read(self.file, BLOCK)
        self._counts.read += len(data)
        self.ended = not data
        if self.ended:
            last, self._rest = self._rest, b""
            return last + b"\n" if last else b""
        first, newline, more = data.partition(b"\n")
        self._hold(first)
        if not newline:
            return b""
        line, self._rest = self._rest + newline if not self._skipping else b"", b""
        self._skipping = False
        lines, newline, rest = more.rpartition(b"\n")
        self._hold(rest)
        return line + lines + newline

    def _hold(self, part: bytes) -> None:
        """Keep a part of a line until the rest arrives."""
        rest = b"" if self._skipping else self._rest + part
        if len(rest) > PROGRESS:
            rest = rest[rest.rfind(b"\r") + 1 :]
        if len(rest) > LONGEST:
            self._counts.too_long += 1
            self._skipping, rest = True, b""
        self._rest = rest
