"""Which lines are asked for, and how most of the others are passed over unread."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import msgspec
from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from rca.hook import events
from rca.loglines.blocks import Block
from rca.loglines.line import LEVELS, Line
from rca.loglines.parse import Habit

ALWAYS = (float("-inf"), float("inf"))
PLAIN = re.compile(r"[ !#-\[\]-~]+")
"""Text that JSON writes as it is."""
_RARE, _BEFORE = 3, 24
"""Digits from which on a number is looked for by itself, and the room in front of it for the word `rank` and zeros."""
NAME = re.compile(r"[A-Z0-9_]+")
"""Text that the name of an event may hold."""
_FEW = 2
"""Literals that are looked for one after the other sooner than all at once."""
_HARMLESS = {"ERROR": (b"DEBUG", b"INFO", b"WARN"), "WARN": (b"DEBUG", b"INFO"), "INFO": (b"DEBUG",)}


@dataclass(frozen=True)
class Wanted:
    """Which lines: within a stretch of time, its ends included, and where told of these ranks, of these events, at least
    as grave, holding a text. `latest` of a rank, where given, is the end of its own stretch, which is `last` long.
    """

    start: float = ALWAYS[0]
    end: float = ALWAYS[1]
    ranks: frozenset[str] = frozenset()
    events: frozenset[str] = frozenset()
    level: str = ""
    text: str = ""
    latest: Mapping[str, float] | None = None
    last: float = 0.0

    @property
    def all(self) -> bool:
        """Say whether all lines are wanted."""
        return self == _ALL

    def holds(self, line: Line) -> bool:
        """Say whether a line is one of those."""
        return self.fits(line) and self.timely(line)

    def fits(self, line: Line) -> bool:
        """Say whether a line is one of those whenever it was written."""
        if self.ranks and line.rank not in self.ranks:
            return False
        if self.events and line.event not in self.events and line.event_id not in self.events:
            return False
        if self.level and (line.level not in LEVELS or LEVELS.index(line.level) < LEVELS.index(self.level)):
            return False
        return not self.text or self.text in line.message or self.text in line.event or self._beside(line)

    def may(self, line: Line) -> bool:
        """Say whether a line is one of those, or would be if it had a name and a level, of which it tells none."""
        if line.event:
            return self.holds(line)
        if (self.ranks and line.rank not in self.ranks) or not self.timely(line):
            return False
        if self.level and line.level in LEVELS and LEVELS.index(line.level) < LEVELS.index(self.level):
            return False
        return not self.text or NAME.fullmatch(self.text) is not None or self.fits(line._replace(level=self.level))

    def _beside(self, line: Line) -> bool:
        return bool(line.extra) and self.text in msgspec.json.encode(line.extra, enc_hook=str).decode()

    def timely(self, line: Line) -> bool:
        """Say whether a line lies in the stretch of time; one that has no time lies in the whole of time only."""
        if line.time is None:
            return (self.start, self.end) == ALWAYS and self.latest is None
        if self.latest is not None:
            until = self.latest.get(line.rank or "")
            return until is not None and until - self.last <= line.time <= until
        return self.start <= line.time <= self.end


_ALL = Wanted()


class Names(Protocol):
    """Tells what lines are that name no event themselves."""

    def named(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Yield lines, in their order, those that name no event with the one that they speak of."""

    def marks(self, wanted: Wanted) -> Mapping[bytes, int]:
        """Return pieces of which every line holds one that is wanted for the name or the level that it is given, and how many
        lines are read from there on.
        """


def chosen(lines: Iterable[Line], wanted: Wanted, names: Names | None) -> Iterator[Line]:
    """Yield those of some lines that are wanted, with their names; only those are named that may be wanted."""
    if names is None:
        yield from lines if wanted.all else filter(wanted.holds, lines)
        return
    named = names.named(lines if wanted.all else filter(wanted.may, lines))
    yield from named if wanted.all else filter(wanted.holds, named)


def spelt(names: frozenset[str]) -> frozenset[str]:
    """Return names and ids of events with the names and ids that belong to them.

    >>> sorted(spelt(frozenset({"NCCL_TIMEOUT"})))
    ['EVT_2001', 'NCCL_TIMEOUT']
    """
    known = [(event.name, event.id) for event in events.table().values() if {event.name, event.id} & names]
    return names | frozenset(chain.from_iterable(known))


_BAD = (
    "ERR", "rror", "CRIT", "crit", "FATAL", "fatal", "Fatal", "SEVERE", "severe", "Exception", "Interrupt", "Traceback",
    "emerg", "EMERG", "alert", "ALERT", "panic", "PANIC", "Segmentation", "terminate called", "NVRM",
)  # fmt: skip
"""What a line of text holds that calls itself an error, or is one."""
_GRAVE = {
    level: (*(re.compile(re.escape(word.encode())) for word in words), re.compile(rb"[" + letters + rb"]\d{4} \d\d:"))
    for level, words, letters in (("ERROR", _BAD, b"EF"), ("WARN", (*_BAD, "WARN", "warn"), b"EFW"))
}


class Telling:
    """Finds in a block of text the lines that may tell a rank, and the last one."""

    def __init__(self, habit: Habit) -> None:
        self._any = habit.json or habit.labelled or habit.local

    def __bool__(self) -> bool:
        """Say whether lines that tell none can be passed over."""
        return not self._any

    @staticmethod
    def spans(data: bytes) -> list[tuple[int, int]]:
        """Return where those lines begin and end, in order."""
        end = len(data.rstrip())
        last = (data.rfind(b"\n", 0, end) + 1, end)
        return sorted({*_around(_TELLS, data), last})


_TELLS = re.compile(rb"ank\W{0,8}\d")


class Sieve:
    """Finds in a block the lines that may be wanted, without reading the others.

    One search is for one literal with something behind it: alternatives would be ten times slower. `marks` gives
    pieces of lines that are wanted for the name that they get.
    """

    def __init__(self, wanted: Wanted, habit: Habit, marks: Callable[[], Mapping[bytes, int]] = dict) -> None:
        self._searches: list[re.Pattern[bytes]] = []
        self._number = b""
        self._literals: _Literals | None = None
        self._harmless = _HARMLESS.get(wanted.level, ()) if habit.json else ()
        if habit.json and wanted.ranks and habit.ranked and all(rank.isdecimal() for rank in wanted.ranks):
            numbers = b"|".join(sorted(rank.encode() for rank in wanted.ranks))
            self._number = numbers if len(wanted.ranks) == 1 and len(numbers) >= _RARE else b""
            self._searches = [re.compile(rb"ank\W{0,8}0*(?:" + numbers + rb")(?!\d)")]
            return
        texts = wanted.events or frozenset([wanted.text] if wanted.text and habit.json else [])
        if texts:
            if all(map(PLAIN.fullmatch, texts)):
                self._look_for({text.encode(): 1 for text in texts} | dict(marks()))
        elif not habit.json and wanted.level in _GRAVE:
            self._searches = list(_GRAVE[wanted.level])
            known = marks()
            self._literals = _Literals(known) if known else None

    def _look_for(self, literals: Mapping[bytes, int]) -> None:
        """Look for literals, all at once where they are many."""
        if len(literals) > _FEW or max(literals.values(), default=1) > 1:
            self._literals = _Literals(literals)
        else:
            self._searches = [re.compile(re.escape(one)) for one in sorted(literals)]

    def __bool__(self) -> bool:
        """Say whether there is anything to sieve by."""
        return bool(self._searches or self._literals or self._harmless)

    def spans(self, data: bytes) -> list[tuple[int, int]]:
        """Return where lines begin and end that may be wanted, in order."""
        if self._harmless and not self._grave(data):
            return []
        if not self._searches and self._literals is None:
            return [(at, at + len(line)) for at, line, _ in Block(0, data).lines() if not self._calm(line)]
        if self._number:
            return list(_of_number(self._searches[0], self._number, data))
        found = {span for search in self._searches for span in _around(search, data)}
        return sorted(found | set(self._literals.spans(data)) if self._literals is not None else found)

    def _calm(self, line: bytes) -> bool:
        """Say whether a line calls itself harmless, and nothing in it calls itself anything else."""
        at = line.find(_SAYS) + len(_SAYS)
        return line.startswith(self._harmless, at) and line.find(_SAYS, at) < 0

    def _grave(self, data: bytes) -> bool:
        """Say whether some line does not call itself harmless, spelt as the hook spells it."""
        calm = sum(data.count(b'"level":"' + level + b'"') for level in self._harmless)
        return calm < data.count(b"\n") + (not data.endswith(b"\n"))


_SAYS = b'"level":"'


def _of_number(search: re.Pattern[bytes], number: bytes, data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where the lines begin and end that hold what is searched, which is near a number that is rare."""
    at = data.find(number)
    while at >= 0:
        if search.search(data, max(at - _BEFORE, 0), at + len(number) + 1):
            begin, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
            end = len(data) if end < 0 else end
            yield begin, end
            at = end
        at = data.find(number, at + 1)


def _around(search: re.Pattern[bytes], data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where the lines begin and end that hold what is searched."""
    at = 0
    while match := search.search(data, at):
        begin = data.rfind(b"\n", 0, match.start()) + 1
        end = data.find(b"\n", match.end())
        end = len(data) if end < 0 else end
        yield begin, end
        at = end + 1


class _Literals:
    """Finds the lines that hold any of some literals, and so many from there on as each says.

    Of a hundred literals a table of states is three times as fast as their tree.
    """

    def __init__(self, lines: Mapping[bytes, int]) -> None:
        ordered = sorted(lines)
        self._lines = [lines[one] for one in ordered]
        self._search = BytesAhoCorasick(ordered, MatchKind.LeftmostFirst, implementation=Implementation.DFA)

    def spans(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield where those lines begin and end, in order."""
        done = -1
        for number, place, _ in self._search.find_matches_as_indexes(data):
            begin = data.rfind(b"\n", 0, place) + 1
            for _ in range(self._lines[number]):
                end = data.find(b"\n", begin)
                end = len(data) if end < 0 else end
                if begin > done:
                    yield begin, end
                    done = end
                begin = end + 1
                if begin >= len(data):
                    break
