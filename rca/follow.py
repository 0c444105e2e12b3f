"""Follow logs that grow: files, folders and streams, through rotation and truncation, losing no line and doubling none.

    follower = Follower(["run/", "train.log", "-"], tell)
    for block in follower.poll(clock()):
        ...  # block.source is the name of the log, block.data complete lines

Files are looked at, not waited for: nothing else works on network file systems. A file that was renamed is followed
under its new name to its end; one that has no name any more while it is held open; where one was copied and truncated,
the rest is read from the copy. What happens twice between two looks cannot be told from once.
"""

import os
import re
import select
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

from rca.tail import ChangedError, Counts, Key, MovedError, Stream, Tail, key_of

PATTERNS = ("*.log", "*.out", "*.err", "*.txt", "*.jsonl")
MOST_HELD = 256
MOST_READS = 64
"""How often a stream is read at one look, where it never ceases."""
MOST_FILES = 65_536
WALK = 10.0
"""Seconds between two searches of a folder in which nothing changes, and between two tries of what cannot be read."""
GONE = 60.0
"""A file without a name is let go when it has said nothing for so many seconds."""
_MISSES = 3
_ROTATED = re.compile(r"(?P<name>.+)[.-]\d[\dT.:_-]*(?:\.[A-Za-z]\w*)?")
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip")
_NAMELESS = ".nfs"
"""What a file is called on NFS that was deleted, and is still held open here."""
STDIN = "-"


class Block(NamedTuple):
    """Complete lines of one log, each with its newline; `at` is when they were there at the latest, in unix seconds."""

    source: str
    data: bytes
    at: float


@dataclass(slots=True)
class Source:
    """One log by its name: the file that has it now, and those that had it before."""

    name: str
    given: bool
    current: Tail | None = None
    older: list[Tail] = field(default_factory=list)
    trouble: str = ""
    twin: bool = False
    due: float = 0.0
    heard: float = 0.0
    misses: int = 0


class Follower:
    """Reads what is new in logs each time it is asked.

    `paths` are files, folders and `-`; of a folder, those files are followed whose name or path below it fits one of
    the `patterns`, and which were written to within `since` seconds. `tell` takes the name of a file and what is to be
    said of it.
    """

    def __init__(
        self,
        paths: Sequence[str],
        tell: Callable[[str, str], None],
        patterns: Sequence[str] = PATTERNS,
        since: float = float("inf"),
    ) -> None:
        self.counts = Counts()
        self.gone: list[str] = []
        self._tell, self._patterns, self._since = tell, tuple(patterns), since
        self._folders = [path for path in paths if path != STDIN and os.path.isdir(path)]  # noqa: PTH112 - plain strings
        given = [path for path in paths if path not in self._folders and path != STDIN]
        self.sources = {path: Source(path, given=True) for path in given}
        self.stream = Stream(STDIN, 0, self.counts) if STDIN in paths else None
        self._held: OrderedDict[Key, Tail] = OrderedDict()
        self._owners: dict[Key, str] = {}
        self._copies: set[Key] = set()
        self._listings: dict[str, dict[int, str]] = {}
        self._walked = float("-inf")
        self._stamps: dict[str, int] = {}
        self._first = True

    @property
    def files(self) -> int:
        """Return how many files and streams are followed."""
        streams = self.stream is not None
        return streams + sum((one.current is not None) + len(one.older) for one in tuple(self.sources.values()))

    @property
    def unreadable(self) -> int:
        """Return how many logs cannot be read at present."""
        return sum(bool(source.trouble) for source in tuple(self.sources.values()))

    @property
    def over(self) -> bool:
        """Say whether nothing more can come: there was a stream alone, and it has ended."""
        return self.stream is not None and self.stream.ended and not self.sources and not self._folders

    def wait(self, seconds: float, wake: int | None = None) -> None:
        """Wait until it is time to look again, something arrives in the stream, or somebody writes to `wake`."""
        streams = [self.stream.file] if self.stream is not None and not self.stream.ended else []
        wakes = [wake] if wake is not None else []
        ready, _, _ = select.select([*streams, *wakes], [], [], seconds)
        for file in wakes:
            if file in ready:
                os.read(file, 4096)

    def refresh(self) -> None:
        """Look at everything at the next look, new files in the folders included."""
        self._walked = float("-inf")
        for source in self.sources.values():
            source.due = 0.0

    def poll(self, at: float) -> Iterator[Block]:
        """Yield what is new in every log at a time."""
        self._listings.clear()
        self.gone.clear()
        for source in list(self.sources.values()):
            if at >= source.due:
                yield from self._look(source, at)
        if self._folders and (at - self._walked >= WALK or self._stirred()):
            for source in self._walk(at):
                yield from self._look(source, at)
        yield from self._arrived(at)
        self._first = False

    def unfinished(self, at: float) -> Iterator[Block]:
        """Yield the last line of each log that no newline has ended, as if it had; for who will not look again."""
        for source in self.sources.values():
            for tail in tails(source):
                if line := tail.unfinished():
                    yield Block(source.name, line + b"\n", at)

    def close(self) -> None:
        """Let go of all files."""
        for tail in self._held.values():
            tail.leave()
        self._held.clear()

    def _arrived(self, at: float) -> Iterator[Block]:
        stream = self.stream
        for _ in range(MOST_READS):
            if stream is None or stream.ended or not select.select([stream.file], [], [], 0)[0]:
                return
            if data := stream.block():
                yield Block(stream.name, data, at)

    def _look(self, source: Source, at: float) -> Iterator[Block]:
        """Yield what is new in one log, and note when to look again: seldom where nothing happens."""
        yield from self._news(source, at)
        quiet = at - source.heard if source.heard else 0.0
        source.due = at + (WALK if source.trouble else min(quiet / 60.0, WALK))

    def _news(self, source: Source, at: float) -> Iterator[Block]:
        """Yield what is new in one log, first in the files that had its name before."""
        for tail in list(source.older):
            yield from self._look_back(source, tail, at)
        try:
            status = os.stat(source.name)  # noqa: PTH116 - there are thousands, and each second
        except FileNotFoundError:
            status = None
        except OSError as error:
            self._trouble(source, (error.strerror or str(error)).lower())
            return
        current = source.current
        if current is not None and (status is None or key_of(status) != current.key):
            source.current = None
            source.older.append(current)
            self.counts.rotations += 1
            yield from self._look_back(source, current, at)
        if status is None:
            self._missing(source)
        elif stat.S_ISDIR(status.st_mode) and source.given:
            del self.sources[source.name]
            self._folders.append(source.name)
        elif not stat.S_ISREG(status.st_mode):
            self._trouble(source, "is no regular file")
        elif (owner := self._owners.get(key_of(status), source.name)) != source.name:
            self._twin(source, owner)
        else:
            source.twin = False
            tail = source.current = source.current or self._taken(source, key_of(status))
            yield from self._read(source, tail, status, at)

    def _twin(self, source: Source, owner: str) -> None:
        """Leave out a second name of a file, and say so once."""
        if not source.twin:
            self._tell(source.name, f"is followed already, as {owner}")
        source.twin = True

    def _taken(self, source: Source, key: Key) -> Tail:
        """Return how far the file was read that has the name now: nowhere, unless it had the name before."""
        self._owners[key] = source.name
        for tail in source.older:
            if tail.key == key:
                source.older.remove(tail)
                tail.path = source.name
                return tail
        return Tail(source.name, key, self.counts)

    def _missing(self, source: Source) -> None:
        if source.given:
            if not source.trouble and not source.older:
                self._trouble(source, "is not there")
        elif not source.older:
            del self.sources[source.name]
            self.gone.append(source.name)

    def _look_back(self, source: Source, tail: Tail, at: float) -> Iterator[Block]:
        """Yield what is new in a file that lost the name of its log."""
        status = status_of(tail)
        if status is None and (path := self._listing(tail.path).get(tail.key.inode)) is not None:
            tail.path = path
            status = status_of(tail)
        if status is not None:
            source.misses = 0
            yield from self._read(source, tail, status, at)
            return
        yield from self._drain(source, tail, at)
        source.misses += 1
        if (tail.file is None or at - source.heard > GONE) and source.misses > _MISSES:
            self._let_go(source, tail)

    def _drain(self, source: Source, tail: Tail, at: float) -> Iterator[Block]:
        """Yield what is new in a file that has no name any more."""
        if tail.file is None:
            return
        try:
            for data in tail.rest():
                source.heard = at
                yield Block(source.name, data, at)
        except (ChangedError, OSError):
            tail.leave()  # a network file system may take it away

    def _let_go(self, source: Source, tail: Tail) -> None:
        self.counts.broken += bool(tail.unfinished())
        tail.leave()
        self._held.pop(tail.key, None)
        self._owners.pop(tail.key, None)
        source.older.remove(tail)

    def _read(self, source: Source, tail: Tail, status: os.stat_result, at: float) -> Iterator[Block]:
        """Yield what is new in a file, and in its copy where it was copied and truncated."""
        if not tail.stale(status):
            self._well(source)
            return
        written = min(status.st_mtime, at)
        try:
            for data in tail.blocks():
                yield Block(source.name, data, written)
        except ChangedError:
            yield from self._truncated(source, tail, written)
        except MovedError:
            return  # the next look finds out where to
        except OSError as error:
            self._trouble(source, (error.strerror or str(error)).lower())
            return
        source.heard = at
        self._hold(tail)
        self._well(source)

    def _truncated(self, source: Source, tail: Tail, at: float) -> Iterator[Block]:
        """Yield what a truncated file held behind what was read, if there is a copy of it, and then what it holds now."""
        self.counts.truncations += 1
        copy = self._copy(tail)
        if copy is not None:
            self._copies.add(copy.key)
            try:
                for data in copy.blocks():
                    yield Block(source.name, data, at)
            except (ChangedError, MovedError, OSError):
                self._tell(copy.path, f"changes while the end of {source.name} is read from it, lines may be missing")
        elif tail.seen > tail.offset or tail.carry:
            self.counts.broken += 1
        tail.restart(copy)
        if copy is not None:
            copy.leave()
        try:
            for data in tail.blocks():
                yield Block(source.name, data, at)
        except (ChangedError, MovedError):
            return
        except OSError as error:
            self._trouble(source, (error.strerror or str(error)).lower())

    def _copy(self, tail: Tail) -> Tail | None:
        """Find the copy that was made of a file before it was truncated, the newest if there are several."""
        stem = os.path.splitext(tail.path)[0]  # noqa: PTH122 - plain strings
        others = [path for path in self._listing(tail.path).values() if path != tail.path and path.startswith(stem)]
        copies = [copy for path in others if (copy := tail.copied_to(path)) is not None]
        return max(copies, key=lambda copy: status.st_mtime if (status := status_of(copy)) else 0.0, default=None)

    def _listing(self, path: str) -> dict[int, str]:
        """Return the files of a folder by inode, as of this look."""
        folder = os.path.dirname(path)  # noqa: PTH120 - plain strings
        if folder not in self._listings:
            found = {}
            try:
                with os.scandir(folder or ".") as entries:
                    named = (entry for entry in entries if not entry.name.startswith(_NAMELESS))
                    found = {entry.inode(): os.path.join(folder, entry.name) for entry in named}  # noqa: PTH118
            except OSError:
                pass  # who follows this folder says so
            self._listings[folder] = found
        return self._listings[folder]

    def _hold(self, tail: Tail) -> None:
        """Keep a file open that was read just now, and let go of the one that was read longest ago."""
        self._held[tail.key] = tail
        self._held.move_to_end(tail.key)
        if len(self._held) > MOST_HELD:
            self._held.popitem(last=False)[1].leave()

    def _trouble(self, source: Source, said: str) -> None:
        self.counts.errors += 1
        if said != source.trouble:
            source.trouble = said
            self._tell(source.name, f"cannot be read: {said}; it is tried again")

    def _well(self, source: Source) -> None:
        if source.trouble:
            source.trouble = ""
            self._tell(source.name, "can be read now")

    def _stirred(self) -> bool:
        """Say whether anything was added to a folder, or taken away, since the last search."""
        return any(stamp(folder) != known for folder, known in self._stamps.items())

    def _walk(self, at: float) -> list[Source]:
        """Return new logs in the folders; a link stands back behind the file that it leads to."""
        self._walked = at
        self._stamps.clear()
        known = self._owners.keys() | self._copies
        found = sorted((link, path) for folder in self._folders for path, link in self._files(folder))
        names = {path for _, path in found}
        new = []
        for _, path in found:
            if path in self.sources or rotated(path, names):
                continue
            try:
                status = os.stat(path)  # noqa: PTH116 - plain strings
            except OSError:
                continue  # a link into nowhere, or gone already
            key = key_of(status)
            if key in known or not stat.S_ISREG(status.st_mode) or at - status.st_mtime > self._since:
                continue
            known.add(key)
            if not self._first and self._is_copy(path):
                self._copies.add(key)
            elif len(self.sources) < MOST_FILES:
                self.sources[path] = Source(path, given=False)
                new.append(self.sources[path])
        return new

    def _is_copy(self, path: str) -> bool:
        """Say whether a new file is the copy of a log, made to truncate the log."""
        folder, name = os.path.split(path)
        for source in self.sources.values():
            tail = source.current
            if tail is None or os.path.dirname(source.name) != folder:  # noqa: PTH120 - plain strings
                continue
            stem = os.path.splitext(os.path.basename(source.name))[0]  # noqa: PTH119, PTH122 - plain strings
            if re.match(re.escape(stem) + r"[.\-_]\S*\d", name) and tail.copied_to(path) is not None:
                self._tell(path, f"is a copy of {source.name}, which is followed already")
                return True
        return False

    def _files(self, folder: str) -> Iterator[tuple[str, bool]]:
        """Yield the files below a folder that fit, and whether each is a link; folders that are links are left out."""
        waiting = [folder]
        while waiting:
            here = waiting.pop()
            self._stamps[here] = stamp(here)
            try:
                with os.scandir(here) as entries:
                    inside = list(entries)
            except OSError as error:
                self.counts.errors += 1
                if self._first:
                    self._tell(here, f"cannot be read: {(error.strerror or str(error)).lower()}; it is tried again")
                continue
            for entry in inside:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif self._fits(entry.path[len(folder) :].lstrip("/"), entry.name):
                    yield entry.path, entry.is_symlink()

    def _fits(self, below: str, name: str) -> bool:
        if name.endswith(_PACKED):
            return False
        return any(fnmatchcase(name, pattern) or fnmatchcase(below, pattern) for pattern in self._patterns)


def tails(source: Source) -> list[Tail]:
    """Return all files of a log."""
    return [*source.older, *([source.current] if source.current is not None else [])]


def stamp(folder: str) -> int:
    """Return when a folder was changed last, in nanoseconds; -1 where nobody knows."""
    try:
        return os.stat(folder).st_mtime_ns  # noqa: PTH116 - plain strings
    except OSError:
        return -1


def status_of(tail: Tail) -> os.stat_result | None:
    """Return the status of a file, None where its path leads to it no more."""
    try:
        status = os.stat(tail.path)  # noqa: PTH116 - plain strings
    except OSError:
        return None
    return status if key_of(status) == tail.key else None


def rotated(path: str, names: Iterable[str]) -> bool:
    """Say whether a name is that of a log with a number or date behind it, where the log itself is there too.

    >>> rotated("a/train.log.1", {"a/train.log"}), rotated("a/rank.1", {"a/rank.0"})
    (True, False)
    >>> rotated("a/train-20260301.log", {"a/train.log"})
    True
    """
    match = _ROTATED.fullmatch(path)
    if match is None:
        return False
    stem, ending = os.path.splitext(path)  # noqa: PTH122 - plain strings
    dated = re.fullmatch(r"(.+)[.-]\d{8}[\dT:_-]*", stem)
    return match["name"] in names or (dated is not None and dated[1] + ending in names)
