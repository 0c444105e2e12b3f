"""Timers as Megatron-LM and DeepSpeed print them: in one line, or in a block of lines after a heading.

Sources: `megatron/core/timers.py` (`minmax`, `max`, `all`; milliseconds, the mean of a step since the last block),
v2.5's `timers.log` in one line, DeepSpeed's `wall_clock_breakdown`. Old versions print maxima under the heading of
pairs, so the value decides, not the heading.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from rca.parsers.keys import MICRO, ONCE, phase_of
from rca.parsers.record import Fields, Record, number

HEADING = b"across ranks (ms):"
_TITLE = re.compile(rb"(?:^|\s{2})([a-zA-Z][\w/-]*):\s*$")
_RANK = re.compile(rb"(?:^|\s{2})rank +(\d+): *([-+.\deE]+)\s*$")
_PAIR = re.compile(rb"([^\n]*\.\.): \((\d+\.\d+), (\d+\.\d+)\)\r?\n")
_LIKELY = re.compile(rb":(?: [ (\d.,+eE)-]+)?[ \r]*$", re.MULTILINE)
"""What may end an entry: a title's colon, or numbers after one."""
_LEAST, _GREATEST, _ONCE = ("phase_min", None), ("phase_max", None), ("once", None)
_BEFORE = (b".", b" ")
"""One of these stands before the colon of an entry."""
_NAMES, _USUAL = 4096, 8
_PATIENCE = 4
"""So many lines of others may stand between two entries of a block: ranks write at the same time."""


class TimerBlock:
    """The lines after a heading, as long as they are timers."""

    def __init__(self, names: "Names") -> None:
        self._names = names
        self._patience = _PATIENCE
        self._timer: Timer | None = None
        self._found: dict[tuple[str, str | None], dict[str, float]] = {}

    def take(self, line: bytes) -> bool:
        """Say whether a line is `name ....: (least, greatest)`, `name ....: greatest` or that of a rank, and keep it.

        >>> block = TimerBlock(Names())
        >>> block.take(b"    forward-compute ......................: (1250.00, 1500.00)"), block.take(b"hello")
        (True, False)
        >>> [(record.kind, record.fields) for record in block.records()]
        [('phase_min', {'forward_compute': 1.25}), ('phase_max', {'forward_compute': 1.5})]
        """
        head, colon, value = line.rpartition(b": ")
        timer = self._names.get(head) if colon and head.endswith(_BEFORE) else None
        if timer is not None:
            least, comma, greatest = value.strip(b" ()\r").partition(b", ")
            if comma:
                self._keep(timer, _LEAST, least)
            self._keep(timer, _GREATEST, greatest if comma else least)
        elif not self._of_rank(line):
            self._patience -= 1
            return False
        self._patience = _PATIENCE
        return True

    def look(self, block: bytes | bytearray, part: tuple[int, int], known: set[int]) -> None:
        """Take what is an entry among the next lines of a part; add where each begins.

        >>> block, known = TimerBlock(Names()), set()
        >>> block.look(b"hello\\noptimizer ....: 50.0\\nhello\\n", (0, 32), known), known
        (None, {6})
        """
        begin, end = part
        while self._patience > 0 and begin < end:
            stop, lines = begin, 0
            while lines < self._patience and stop < end:
                stop, lines = block.find(b"\n", stop, end) + 1 or end, lines + 1
            match = _LIKELY.search(block, begin, stop)
            if match is None:
                self._patience -= lines
                return
            first = block.rfind(b"\n", begin, match.start()) + 1 or begin
            last = block.find(b"\n", match.start(), end)
            last = end if last < 0 else last
            self._patience -= block.count(b"\n", begin, first)
            if self.take(bytes(block[first:last])):
                known.add(first)
            begin = last + 1

    def run(self, block: bytes | bytearray, begin: int, known: set[int]) -> int:
        """Take the pairs that stand together from a line on; add where each begins, and return where they end.

        >>> block, known = TimerBlock(Names()), set()
        >>> block.run(b"optimizer ....: (50.00, 51.25)\\nall-grads-sync ..: (1.0, 2.0)\\nhello\\n", 0, known), known
        (61, {0, 31})
        """
        usual = self._names.usual(block, begin)
        if usual is not None and not _PAIR.match(block, usual[1].end()):  # else a block's end had cut that list short
            phases, match = usual
            printed = match.groups()
            known.update([place for place, _ in match.regs[1::3]])
            for whose, texts in ((_LEAST, printed[1::3]), (_GREATEST, printed[2::3])):
                self._found[whose] = {one: float(text) * 1e-3 for one, text in zip(phases, texts, strict=True) if one}
            return match.end()
        timers: dict[bytes, Timer] = {}
        while (pair := _PAIR.match(block, begin)) is not None:
            head, low, high = pair.groups()
            timer = self._names.get(head)
            if timer is None or timer.once:
                break
            self._keep(timer, _LEAST, low)
            self._keep(timer, _GREATEST, high)
            timers[head] = timer
            known.add(begin)
            begin = pair.end()
        self._names.remember(timers)
        return begin

    def _of_rank(self, line: bytes) -> bool:
        """Take `name:`, and `rank 0: value` after it."""
        if b"rank " in line:
            match = _RANK.search(line)
            if match and self._timer is not None:
                self._keep(self._timer, ("phase", match[1].decode()), match[2])
                return True
        elif line.rstrip().endswith(b":"):
            match = _TITLE.search(line)
            timer = timer_of(match[1].decode()) if match else None
            if timer is not None:
                self._timer = timer
                return True
        return False

    def records(self) -> list[Record]:
        """Return what the block says, a record for each kind and rank."""
        return [Record(kind, None, rank, fields) for (kind, rank), fields in self._found.items()]

    def _keep(self, timer: "Timer", whose: tuple[str, str | None], text: bytes) -> None:
        value = number(text)
        if value is None:
            return
        if timer.phase and not timer.once:
            found = self._found.get(whose)
            if found is None:
                found = self._found[whose] = {}
            found[timer.phase] = value * 1e-3
        elif timer.once and whose is not _LEAST:
            found = self._found.setdefault(_ONCE, {})
            found[timer.once] = max(found.get(timer.once, 0.0), value * 1e-3)


def one_line(line: bytes, at: int) -> list[Record]:
    """Read `time (ms) | name: value | ...`, whose timers are those of the rank that prints.

    >>> [(one.kind, one.fields) for one in one_line(b"time (ms) | forward-compute: 1250.00 | optimizer: 50.0", 0)]
    [('phase', {'forward_compute': 1.25, 'optimizer': 0.05})]
    """
    kinds: dict[str, dict[str, float]] = {"phase": {}, "micro_phase": {}, "once": {}}
    for part in line[at:].split(b"|")[1:]:
        key, _, text = part.partition(b":")
        name, value = key.strip().decode(errors="replace"), number(text)
        if value is None:
            continue
        for kind, phase in (("micro_phase", MICRO.get(name)), ("once", ONCE.get(name)), ("phase", phase_of(name))):
            if phase:
                kinds[kind][phase] = value * 1e-3
                break
    return [Record(kind, None, None, _fields(found)) for kind, found in kinds.items() if found]


def _fields(found: dict[str, float]) -> Fields:
    return dict(found)


class Timer(NamedTuple):
    """What a timer measures: a phase of every step, or one of what does not happen every step; nothing of interest."""

    phase: str
    once: str


def timer_of(name: str) -> Timer | None:
    """Return the timer of a name; one that Megatron lacks is one where its line has the form of an entry."""
    plain = name.removesuffix("-time")
    timer = Timer(phase_of(name), ONCE.get(name) or ONCE.get(plain, ""))
    return timer if timer.phase or timer.once or ("-" in name and " " not in name) else None


class Names:
    """What stands before a number, to the timer that it names; the same few come again and again, in the same order."""

    def __init__(self) -> None:
        self._known: dict[bytes, Timer] = {}
        self._usual: list[tuple[list[str], re.Pattern[bytes]]] = []

    def get(self, head: bytes) -> Timer | None:
        """Return the timer of an entry without what a launcher puts in front; None where it is none.

        >>> names = Names()
        >>> (
        ...     names.get(b"vm-07-14:     load-checkpoint ....."),
        ...     names.get(b"0:     optimizer ...."),
        ...     names.get(b"hello world"),
        ... )
        (Timer(phase='', once='load_checkpoint'), Timer(phase='optimizer', once=''), None)
        """
        timer = self._known.get(head)
        if timer is None and head.endswith(_BEFORE):
            name = head.rstrip(b" .").rpartition(b"  ")[2].strip().decode(errors="replace")
            timer = timer_of(name) or (Timer("", "") if "setup" in name else None)
            if timer is not None and len(self._known) < _NAMES:
                self._known[head] = timer
        return timer

    def remember(self, timers: Mapping[bytes, Timer]) -> None:
        """Take down what stood together, to find it at once when it comes again."""
        if timers and len(self._usual) < _USUAL:
            lines = [rb"()%b: \((\d+\.\d+), (\d+\.\d+)\)\r?\n" % re.escape(head) for head in timers]
            pattern = re.compile(b"".join(lines))
            if pattern not in [one for _, one in self._usual]:
                self._usual.append(([timer.phase for timer in timers.values()], pattern))
                self._usual.sort(key=lambda one: -len(one[0]))

    def usual(self, block: bytes | bytearray, begin: int) -> "tuple[list[str], re.Match[bytes]] | None":
        """Return the phases of pairs that stand together from a line on as they did before, None for others; and where
        each begins and its two numbers, as three groups of a match."""
        for phases, pattern in self._usual:
            match = pattern.match(block, begin)
            if match is not None:
                return phases, match
        return None
