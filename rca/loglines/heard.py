"""Lines that templates know, and what they say of failures and of waits."""

from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import NamedTuple

from rca.dumps import Dumps
from rca.loglines.line import Line
from rca.phrases import Matcher, Template
from rca.plain import natural
from rca.waits import Call, End, Waits, Word, trace

WORLD = "world"
"""The communicator of all ranks, by one name for all that PyTorch gives it."""
SOMEWHERE = "somewhere"
"""A wait in a communicator whose members nobody tells: that a rank waits is known, and no number is compared."""
NO_DUMPS = Dumps()
_DEFAULT = frozenset({"0", "default_pg"})
_BATCH = 2048
WAITS = frozenset({"waited_for", "sequence", "last_enqueued"})
"""Groups of lines that tell of a wait."""
_OWN_COUNT = frozenset({"COALESCED", "SEND", "RECV", "BATCHED_ISEND_IRECV"})
"""Operations between single ranks: each rank counts its own, so the numbers of such a communicator are not compared.
Source: PyTorch, c10d::OpType, and ProcessGroupNCCL, which counts what is coalesced where it is called."""
SPOKEN = 0.5
"""Who left no word is accused only where at least this share of the ranks left one: else most logs are elsewhere."""
UNREAD = 1.0 / 16.0
"""Of more than this share of the ranks without any log none is accused."""
BEFORE, SOON = 600.0, 120.0
"""A failure is the reason of a wait, or of the end of the logs, where it came so many seconds before it at most, and so
many after it: what a job has survived for longer is something else."""


class Known(NamedTuple):
    """A line that a template knows, and what it says."""

    line: Line
    template: Template
    groups: Mapping[str, str]

    @property
    def rank(self) -> str | None:
        """Return the rank that it speaks of: the one that it names, else its own."""
        return self.groups.get("rank") or self.line.rank


def known(lines: Iterable[Line], matcher: Matcher) -> Iterator[Known]:
    """Yield the lines that templates know."""
    rest = iter(lines)
    while batch := list(islice(rest, _BATCH)):
        texts = [one.message.encode("utf-8", "surrogatepass") for one in batch]
        starts = [0, *accumulate(len(text) + 1 for text in texts)]
        seen = -1
        for found in matcher.find(b"\n".join(texts)):
            number = bisect_right(starts, found.offset) - 1
            if number != seen:
                seen = number
                yield Known(batch[number], matcher.templates[found.template], found.groups)


@dataclass
class Heard:
    """What known lines say: `roots` may be where a failure began, `ended` name ranks whose process others saw end, `began`
    are times since when ranks wait; `echoes` counts lines that only tell that something failed elsewhere, and `echoed` are
    the ranks that wrote any. Numbers in `uneven` communicators are not compared.
    """

    roots: list[Known] = field(default_factory=list)
    calls: dict[tuple[str, str], Call] = field(default_factory=dict)
    words: list[Word] = field(default_factory=list)
    began: list[float] = field(default_factory=list)
    uneven: set[str] = field(default_factory=set)
    ended: list[Known] = field(default_factory=list)
    echoed: set[str] = field(default_factory=set)
    echoes: int = 0

    def take(self, one: Known) -> None:
        """Take a line."""
        if one.template.role == "root":
            self.roots.append(one)
        elif one.template.role == "confirmation" and one.template.fatal and "rank" in one.groups:
            self.ended.append(one)
        elif one.template.role == "echo" and one.line.rank is not None:
            self.echoed.add(one.line.rank)
        self.echoes += one.template.role == "echo"
        own = one.groups.get("group_rank") if _group(one.groups) == WORLD else None
        rank = one.rank or own
        if rank is not None and self._waits(one, rank) and one.line.time is not None:
            self.began.append(one.line.time - float(one.groups.get("ran_ms", 0.0)) / 1000.0)

    def waits(self, everybody: Sequence[str], dumps: Dumps = NO_DUMPS) -> Waits:
        """Follow the waits of a job of these ranks to their ends, with what dumps tell of them."""
        members = {WORLD: everybody, SOMEWHERE: everybody, **dumps.members}
        calls = [one for one in self.calls.values() if one.group not in self.uneven]
        return trace([*calls, *dumps.calls], [*self.words, *dumps.words], members)

    def failures(self, about: float | None) -> list[Known]:
        """Return what failed about the time that a wait began, or the logs end, the first first; of one place each
        template once.

        A rank that others saw end counts where it has left no word of its own, not even that it noticed something.
        """
        spoke = self.echoed | {one.rank for one in self.roots}
        silent = [one for one in self.ended if one.rank not in spoke]
        timed = [one for one in (*self.roots, *silent) if one.line.time is not None]
        timed.sort(key=lambda one: (one.line.time or 0.0, natural(one.line.rank or "")))
        near = [one for one in timed if about is None or about - BEFORE <= (one.line.time or 0.0) <= about + SOON]
        first: dict[tuple[str | None, str], Known] = {}
        for one in near:
            first.setdefault((one.line.rank or one.line.node, one.template.id), one)
        return list(first.values())

    def _waits(self, one: Known, rank: str) -> bool:
        """Note what a line says of a wait, and say whether it says anything of one."""
        groups, calls = one.groups, self.calls
        if "waited_for" in groups:
            self.words += [Word(rank, other) for other in groups["waited_for"].split(",")]
            return True
        if not {"sequence", "last_enqueued"} & groups.keys():
            return False
        waits, group = "sequence" in groups, _group(groups)
        if waits and group != WORLD:
            calls[rank, SOMEWHERE] = Call(rank, SOMEWHERE, 0, -1)
        if not group:
            return waits
        if groups.get("operation") in _OWN_COUNT:
            self.uneven.add(group)
        number = int(groups.get("sequence", 0))
        entered = int(groups.get("last_enqueued", number))
        completed = int(groups.get("last_completed", number - 1))
        before = calls.get((rank, group))
        if before is not None:
            entered, completed = max(entered, before.entered), max(completed, before.completed)
        operation = groups.get("operation") or (before.operation if before is not None else "")
        calls[rank, group] = Call(rank, group, entered, completed, operation)
        return waits


def accused(waits: Waits, known: Container[str]) -> list[End]:
    """Return the ends of waits that say who is to be looked at; `known` ranks left lines at any time.

    Of many that left no word of waiting only where most did; and of many that left no line at all nobody: their logs are
    elsewhere.
    """
    quiet = [rank for end in waits.ends if end.why == "silent" for rank in end.ranks]
    trusted = bool(waits.of) and waits.spoke >= SPOKEN * waits.of
    unread = frozenset(rank for rank in quiet if rank not in known)
    lost = unread if len(unread) > max(1.0, UNREAD * waits.of) else frozenset()
    return [
        end for end in waits.ends if end.why != "silent" or (not lost & set(end.ranks) and (len(quiet) < 2 or trusted))
    ]


def _group(groups: Mapping[str, str]) -> str:
    """Return the communicator that a line speaks of, nothing where it tells none; many have the same name beside it.

    >>> _group({"group": "0", "group_name": "default_pg"}), _group({"group": "7", "group_name": "TP"}), _group({})
    ('world', 'TP 7', '')
    """
    number, name = groups.get("group", ""), groups.get("group_name", "")
    if number in _DEFAULT or (not number and name in _DEFAULT):
        return WORLD
    return f"{name} {number}".strip() if number else ""
