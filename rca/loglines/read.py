"""Lines of log files: those of a stretch of time, found by bisecting each file, and the last of every rank.

    logs = Logs(find(["/var/log/train"], Naming(), PATTERNS, notes), zone, notes)
    for line in logs.lines(Wanted(start=at - 10.0, end=at)):
        ...

Files are in order of time apart from a few seconds, as every writer leaves them; one that is not is read whole. A line
that tells no time is of the time of the last line before it. What is odd is yielded all the same, with its `flaw`.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import islice
from os.path import basename, splitext
from statistics import median
from typing import NamedTuple

import msgspec

from rca.loglines.blocks import BLOCK, SLACK, Block, Timeline, backwards, before, forwards
from rca.loglines.files import Content, LogFile, Notes, opened
from rca.loglines.line import Line
from rca.loglines.owners import Owner
from rca.loglines.parse import HOSTED, LABELLED, Habit, Parser
from rca.loglines.scan import Piece, Scanners, Seen
from rca.loglines.stamps import Stamps
from rca.loglines.wanted import ALWAYS, Names, Sieve, Telling, Wanted, chosen

_CHUNK = 32 << 20
ZONELESS = "times without a zone"
UNTIMED = "no line tells a time, so none is taken for one of the time asked for"
SAMPLE = 1 << 16
TAIL = 1 << 14
_MOST = 0.8
"""Share of the sampled lines that makes a habit."""
_ASKED, _LARGEST = 8, 1_000_000
_WORLD = re.compile(rb"world[_ ]size\"?[ .]*[:=. ] ?(\d{1,7})\b", re.IGNORECASE)
_NUMBER = re.compile(rb"ank\W{0,8}(\d+)")
"""What every line holds that tells a rank, and others may; see `Telling`."""
_OBJECT = msgspec.json.Decoder(dict[str, object])


@dataclass(frozen=True)
class Ends:
    """The last line of a rank, and the pause that is usual between the lines before it, in seconds."""

    line: Line
    pause: float = 0.0
    guessed: bool = False
    """Whether the time is that of the file's last change, as no line tells one."""


class Chunk(NamedTuple):
    """A part of a file, of complete lines: `plain` where they may all be of the hook's own schema; `lines` reads them."""

    data: bytes
    rank: str | None
    plain: bool
    lines: Callable[[], Iterator[Line]]


@dataclass
class Logs:
    """The log files of a job. `step` is told what is being done."""

    files: Sequence[LogFile]
    zone: tzinfo | None
    notes: Notes
    step: Callable[[str], None] = lambda _: None
    groups: Mapping[str, str] = field(default_factory=dict)
    """What stands before a rank that a file counts inside its node, by path."""
    offsets: Mapping[str, float] = field(default_factory=dict)
    """How many seconds the clock of a node is ahead; times are told without that."""
    names: Names | None = None
    """What gives a name to lines that have none."""

    habits: dict[str, Habit] = field(default_factory=dict)
    """What most lines of a file look like, by path, as far as files have been looked at."""
    ends: dict[str, Ends | None] = field(default_factory=dict)
    """The last line of files, by path, likewise."""
    known: dict[frozenset[str], dict[str, Ends]] = field(default_factory=dict)
    """The last lines of ranks, by what was asked."""
    sieves: dict[tuple[object, ...], Sieve] = field(default_factory=dict)
    """What passes over lines, by what was asked and what a file is like."""

    def __post_init__(self) -> None:
        self.groups = self.groups or self._grouped()

    def lines(self, wanted: Wanted) -> Iterator[Line]:
        """Yield the lines that are wanted, file by file, each in its order."""
        for number, log in enumerate(self.files):
            if self.concerns(log, wanted):
                self.step(f"reading {log.path} ({number + 1:,} of {len(self.files):,})")
                yield from self.of(log, wanted)

    def of(self, log: LogFile, wanted: Wanted) -> Iterator[Line]:
        """Yield the lines of one file that are wanted."""
        with self._page(log) as page:
            if page is not None:
                for begin, end in page.parts(wanted):
                    for block in forwards(page.content, begin, end):
                        yield from page.read(block, wanted)
                page.note()

    @contextmanager
    def _page(self, log: LogFile) -> Iterator["_Page | None"]:
        """Open a file that holds anything."""
        with opened(log, self.notes) as content:
            if content is None or not content.size:
                yield None
                return
            if log.path not in self.habits:
                self.habits[log.path] = habit_of(content)
            yield _Page(log, content, self)

    def chunks(self, wanted: Wanted) -> Iterator[Chunk]:
        """Yield the parts of all files in which lines are that are wanted, raw."""
        for number, log in enumerate(self.files):
            if self.concerns(log, wanted):
                self.step(f"reading {log.path} ({number + 1:,} of {len(self.files):,})")
                with self._page(log) as page:
                    if page is not None:
                        yield from page.chunks(wanted)
                        page.note()

    def concerns(self, log: LogFile, wanted: Wanted) -> bool:
        """Say whether a file may hold lines that are wanted, as far as its name tells."""
        return not wanted.ranks or log.owner.rank is None or log.owner.rank in wanted.ranks

    def last(self, ranks: frozenset[str] = frozenset()) -> dict[str, Ends]:
        """Return the last line of every rank, or of those given; of files that name no rank under an empty name."""
        if ranks in self.known:
            return self.known[ranks]
        found: dict[str, Ends] = {}
        mixed = []
        for number, log in enumerate(self.files):
            if self.concerns(log, Wanted(ranks=ranks)):
                self.step(f"looking for the last line of every rank ({number + 1:,} of {len(self.files):,} files)")
                end = self._end(log)
                if end is not None and log.owner.rank is not None:
                    _later(found, log.owner.rank, end)
                elif end is not None:
                    mixed.append((end.line.time or 0.0, log))
        self._mixed(mixed, ranks, found)
        lines = [end.line for end in found.values()]
        if self.names is not None:
            lines = list(self.names.named(lines))
        named = {rank: replace(end, line=line) for (rank, end), line in zip(found.items(), lines, strict=True)}
        self.known[ranks] = named
        return named

    def closing(self) -> Iterator[Ends]:
        """Yield the last line of every file that holds any."""
        yield from (end for log in self.files if (end := self._end(log)) is not None)

    def _end(self, log: LogFile) -> Ends | None:
        if log.path not in self.ends:
            with self._page(log) as page:
                self.ends[log.path] = None if page is None else page.end()
        return self.ends[log.path]

    def _mixed(self, ends: Sequence[tuple[float, LogFile]], ranks: frozenset[str], found: dict[str, Ends]) -> None:
        """Look for ranks in files of several, from the ends of all of them back in time.

        Of given ranks no more is read than what may hold later lines than those that are known.
        """
        heap = [(-time, number, -1, TAIL if ranks else BLOCK) for number, (time, _) in enumerate(ends)]
        heapify(heap)
        seen: list[set[str]] = [set() for _ in ends]
        own = replace(
            self, files=(), notes=Notes(), step=_quiet, names=None, ends={}, known={}, sieves={}, groups=self.groups or {"": ""}
        )  # fmt: skip
        scanners = Scanners(self.scan, own.scan)
        try:
            while heap and not _over(ranks, found, -heap[0][0]):
                batch = [heappop(heap) for _ in range(min(scanners.width, len(heap)))]
                self.step(f"looking for the last line of every rank in {ends[batch[0][1]][1].path}")
                pieces = [Piece(ends[at][1], end, size, ranks, frozenset(seen[at])) for _, at, end, size in batch]
                for (time, at, _, size), one in zip(batch, scanners.scan(pieces), strict=True):
                    for rank, line in one.lines:
                        seen[at].add(rank)
                        _later(found, rank, Ends(line))
                    if one.begin > 0 and not (ranks and ranks <= seen[at]):
                        began = time if one.time is None else -one.time
                        heappush(heap, (began, at, one.begin, min(size * 4, BLOCK)))
        finally:
            scanners.close()

    def scan(self, piece: Piece) -> Seen:
        """Look through a block of a file for the last line of ranks; through all of it where it must be unpacked."""
        with self._page(piece.log) as page:
            if page is None:
                return Seen(0, None, ())
            if piece.log.packed:
                seen = set(piece.seen)
                blocks = backwards(page.content)
                return Seen(0, None, [one for block in blocks for one in page.ranks(block, piece.ranks, seen)])
            block = before(page.content, page.content.size if piece.end < 0 else piece.end, piece.size)
            lines = list(page.ranks(block, piece.ranks, set(piece.seen)))
            first = page.timeline.next_timed(block.offset, block.offset + len(block.data))
            return Seen(block.offset, None if first is None else first[1], lines)

    def span(self) -> tuple[float, float] | None:
        """Return the first and the last time in all files, None where there is none."""
        times: list[float] = []
        for log in self.files:
            with self._page(log) as page:
                if page is not None:
                    begin, end = page.timeline.next_timed(0, page.content.size), self._end(log)
                    times += [begin[1]] if begin is not None else []
                    times += (
                        [end.line.time] if end is not None and end.line.time is not None and not end.guessed else []
                    )
        return (min(times), max(times)) if times else None

    def part(self, log: LogFile, start: float, end: float) -> tuple[int, int] | None:
        """Return the bytes between which the lines of a stretch of time begin in a file; None where all must be read."""
        with self._page(log) as page:
            parts = [] if page is None or log.packed else page.parts(Wanted(start=start, end=end))
        return parts[0] if parts else None

    def tail(self, log: LogFile, size: int) -> list[Line]:
        """Return the lines in the last so many bytes of a file; those that tell no time before the first that does have none."""
        with self._page(log) as page:
            return [] if page is None else page.tail(size)

    def world(self) -> int | None:
        """Return how many ranks there should be: what the first files say of it, else what the names of all let expect."""
        told = [size for log in self.files[:_ASKED] if (size := self._world(log)) is not None]
        if told:
            return max(told)
        numbers = [
            int(log.owner.rank) for log in self.files if log.owner.rank is not None and log.owner.rank.isdecimal()
        ]
        return max(numbers) + 1 if numbers else None

    def _world(self, log: LogFile) -> int | None:
        with opened(log, self.notes) as content:
            sizes = [int(one) for one in _WORLD.findall(content.at(0, SAMPLE))] if content is not None else []
        return max((size for size in sizes if size <= _LARGEST), default=None)

    def _grouped(self) -> dict[str, str]:
        """Return what tells files apart whose ranks are counted inside a node."""
        local = []
        for log in self.files:
            if log.owner.rank is None:
                with self._page(log):
                    if log.path in self.habits and self.habits[log.path].local:
                        local.append(log)
        if len(local) < 2:
            return {}
        return {log.path: log.owner.node or splitext(basename(log.path))[0] for log in local}  # noqa: PTH119, PTH122


def _quiet(_: str) -> None:
    """Tell nobody what is being done."""


def _over(ranks: frozenset[str], found: Mapping[str, Ends], time: float) -> bool:
    """Say whether later lines than a time are known of all ranks that are asked for."""
    return bool(ranks) and all(rank in found and time < (found[rank].line.time or 0.0) - SLACK for rank in ranks)


def _later(found: dict[str, Ends], rank: str, end: Ends) -> None:
    """Keep the later of two last lines."""
    known = found.get(rank)
    if known is None or (end.line.time or 0.0) >= (known.line.time or 0.0):
        found[rank] = end


class _Page:
    """One open file."""

    def __init__(self, log: LogFile, content: Content, logs: Logs) -> None:
        self.content = content
        self._log, self._notes = log, logs.notes
        self._zone, self._offsets, self._names, self._sieves = logs.zone, logs.offsets, logs.names, logs.sieves
        self._habit = replace(logs.habits[log.path], group=logs.groups.get(log.path, ""))
        self._parser = self._reader()
        self.timeline = Timeline(content, self._reader())

    def _reader(self) -> Parser:
        owner = self._log.owner
        return Parser(self._log.path, Owner(*owner), self._habit, Stamps(self._zone, self._log.changed))

    def parts(self, wanted: Wanted) -> list[tuple[int, int]]:
        """Return the parts of the file in which lines of the times begin that are wanted."""
        whole = [(0, self.content.size)]
        stretches = self._stretches(wanted)
        if stretches == [ALWAYS] or not stretches:
            return whole if stretches else []
        parts: list[tuple[int, int]] = []
        early, late = self._shifts()
        for start, end in stretches:
            part = self.timeline.part(start + early, end + late)
            if parts and part[0] <= parts[-1][1]:
                part = (parts.pop()[0], part[1])
            parts.append(part)
        if not self.timeline.timed:
            self._notes.of(UNTIMED, self._log.path)
            return []
        if not self.timeline.ordered:
            self._notes.of("is not in order of time, and was read whole", self._log.path)
            return whole
        return parts

    def _stretches(self, wanted: Wanted) -> list[tuple[float, float]]:
        if wanted.latest is None:
            return [(wanted.start, wanted.end)]
        own = self._log.owner.rank
        if own is not None:
            ends = [wanted.latest[own]] if own in wanted.latest else []
        else:
            ends = sorted(wanted.latest.values())
        joined: list[tuple[float, float]] = []
        for end in ends:
            start = end - wanted.last
            if joined and start <= joined[-1][1]:
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((start, end))
        return joined

    def chunks(self, wanted: Wanted) -> Iterator[Chunk]:
        """Yield the parts of the file in which lines are that are wanted."""
        plain = (
            self._habit.json and self._habit.ranked and not self._offsets and wanted.latest is None and not wanted.text
        )
        for begin, end in self.parts(wanted):
            for block in forwards(self.content, begin, end, _CHUNK if plain else BLOCK):
                yield Chunk(block.data, self._log.owner.rank, plain, partial(self.read, block, wanted))

    def _sieve(self, wanted: Wanted) -> Sieve:
        """Return what passes over lines; in a file of one rank all lines are of that rank, whether they say so or not."""
        ranks = wanted.ranks if self._log.owner.rank is None else frozenset()
        key = (ranks, wanted.events, wanted.level, wanted.text, self._habit.json, self._habit.ranked)
        if key not in self._sieves:
            marks = partial(self._names.marks, wanted) if self._names is not None else dict
            self._sieves[key] = Sieve(replace(wanted, ranks=ranks), self._habit, marks)
        return self._sieves[key]

    def _shifts(self) -> tuple[float, float]:
        """Return by how much the clocks of a file may be ahead, at the least and at the most."""
        node = self._log.owner.node
        known = [self._offsets.get(node, 0.0)] if node is not None else [0.0, *self._offsets.values()]
        return min(known), max(known)

    def corrected(self, line: Line) -> Line:
        """Return a line with its time as a clock that is right would have told it."""
        ahead = self._offsets.get(line.node or "", 0.0)
        return line._replace(time=line.time - ahead) if ahead and line.time is not None else line

    def read(self, block: Block, wanted: Wanted) -> Iterator[Line]:
        """Yield the lines of a block that are wanted."""
        lines = self._lines(self._parser, block, self._sieve(wanted))
        yield from chosen(map(self.corrected, lines) if self._offsets else lines, wanted, self._names)

    def note(self) -> None:
        """Note what was odd in the lines that were read."""
        for flaw, count in self._parser.flaws.items():
            self._notes.add(flaw, count)
        if self._parser.stamps.yearless:
            self._notes.of(
                "times without a year, which was guessed from the time of the file's last change", self._log.path
            )
        if self._parser.stamps.zoneless:
            self._notes.of(
                f"{ZONELESS}, taken to be of " + ("this machine's" if self._zone is None else f"{self._zone}"),
                self._log.path,
            )

    def end(self) -> Ends | None:
        """Return the last line of the file; its time is that of the file's last change where no line tells one."""
        pauses: list[float] = []
        for block in backwards(self.content, TAIL):
            reader = self._reader()
            lines = [line for offset, raw, ended in block.lines() if (line := reader.read(raw, offset, ended=ended))]
            times = [line.time for line in lines if line.time is not None]
            pauses += [later - earlier for earlier, later in zip(times, islice(times, 1, None), strict=False)]
            if times:
                return Ends(self.corrected(lines[-1]), median(pauses) if pauses else 0.0)
            if block.offset == 0 and lines:
                self._notes.of(
                    "no line tells a time, the last one is taken to be of the file's last change", self._log.path
                )
                return Ends(lines[-1]._replace(time=self._log.changed), guessed=True)
        return None

    def tail(self, size: int) -> list[Line]:
        """Return the lines in the last so many bytes."""
        block, reader = before(self.content, self.content.size, size), self._reader()
        return [
            self.corrected(line)
            for offset, raw, ended in block.lines()
            if (line := reader.read(raw, offset, ended=ended))
        ]

    def ranks(self, block: Block, ranks: frozenset[str], seen: set[str]) -> Iterator[tuple[str, Line]]:
        """Yield the last line in a block of each rank (of those given, or of all) that is not among those `seen`."""
        sieve = self._sieve(Wanted(ranks=ranks)) if ranks else Telling(self._habit)
        if "" not in seen and block.offset + len(block.data) < self.content.size:
            seen.add("")  # who speaks for no rank is looked for at the end alone
        known = (self._habit.json and self._habit.ranked) or ("" in seen and sieve)
        if not ranks and known and seen.issuperset(map(_plain, set(_NUMBER.findall(block.data)))):
            return
        if ranks or not sieve:
            lines = reversed(list(self._lines(self._reader(), block, sieve)))
        else:
            lines = self._news(block, sieve.spans(block.data), seen)
        for line in lines:
            name = line.rank or ""
            if name not in seen and (not ranks or name in ranks):
                seen.add(name)
                yield name, self.corrected(line)

    def _news(self, block: Block, spans: Sequence[tuple[int, int]], seen: set[str]) -> Iterator[Line]:
        """Yield, from the end on, those lines of a block that may be of ranks which are not among those `seen` by then."""
        data = block.data
        for a, b in reversed(spans):
            if "" in seen and seen.issuperset(map(_plain, _NUMBER.findall(data, a, b))):
                continue
            reader = self._reader()
            line = reader.read(data[a:b], block.offset + a, ended=block.ended or b < len(data))
            if line is not None:
                yield line if reader.told else self._dated(line, block)

    def _lines(self, reader: Parser, block: Block, sieve: Sieve | Telling) -> Iterator[Line]:
        """Yield the lines of a block that may be of the ranks that are wanted."""
        raws = block.lines()
        if sieve:
            data, spans = block.data, sieve.spans(block.data)
            raws = ((block.offset + a, data[a:b], block.ended or b < len(data)) for a, b in spans)
        for offset, raw, ended in raws:
            line = reader.read(raw, offset, ended=ended)
            if line is not None:
                yield line if reader.told or not sieve else self._dated(line, block)

    def _dated(self, line: Line, block: Block) -> Line:
        """Return a line that tells no time with that of the last before it in its block, where others were passed over."""
        reader, data, end = self._reader(), block.data, line.source.offset - block.offset - 1
        while end > 0:
            begin = data.rfind(b"\n", 0, end) + 1
            before = reader.read(data[begin:end], 0)
            if before is not None and reader.told:
                return line._replace(time=before.time)
            end = begin - 1
        return line


def habit_of(content: Content) -> Habit:
    """Tell from its beginning what most lines of a file look like."""
    head = content.at(0, SAMPLE)
    lines = [line.strip() for line in head[: head.rfind(b"\n") + 1 or len(head)].split(b"\n") if line.strip()][:200]
    if not lines:
        return Habit()
    objects = [line for line in lines if line[:1] == b"{"]
    shapes: Counter[str] = Counter()
    for line in lines:
        shapes["labelled"] += LABELLED.match(line) is not None
        shapes["hosted"] += HOSTED.match(line) is not None
        shapes["local"] += line[:1] == b"[" and b"]:" in line[:24] and not line.startswith((b"[rank", b"[Rank"))
    least = _MOST * len(lines)
    return Habit(
        json=len(objects) >= least,
        ranked=bool(objects) and all(map(_ranked, objects)),
        labelled=shapes["labelled"] >= least,
        hosted=shapes["hosted"] >= least,
        local=shapes["local"] >= least,
    )


def _plain(number: bytes) -> str:
    return str(int(number))


def _ranked(line: bytes) -> bool:
    try:
        found = _OBJECT.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return True
    return "rank" in found or "global_rank" in found
