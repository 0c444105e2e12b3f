"""Where a hang or a crash began, as far as the lines of all ranks tell: who is waited for, and what failed first."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import NamedTuple

from rca.dumps import Dumps
from rca.loglines import Ends, Line
from rca.phrases import Matcher, Template
from rca.plain import counted, natural
from rca.waits import Call, End, Waits, Word, trace

WORLD = "world"
"""The communicator of all ranks, by one name for all that PyTorch gives it."""
SOMEWHERE = "somewhere"
"""A wait in a communicator whose members nobody tells: that a rank waits is known, and no number is compared."""
_DEFAULT = frozenset({"0", "default_pg"})
_BATCH = 2048
NO_DUMPS = Dumps()
SPOKEN = 0.5
"""Who left no word is accused only where at least this share of the ranks left one: else most logs are elsewhere."""
BEFORE, SOON = 600.0, 120.0
"""A failure is the reason of a wait, or of the end of the logs, where it came so many seconds before it at most, and so
many after it: what a job has survived for longer is something else."""


class Known(NamedTuple):
    """A line that a template knows, and what it says."""

    line: Line
    template: Template
    groups: Mapping[str, str]


class Suspect(NamedTuple):
    """Where it may have begun: ranks, or what a line names, and why; `first` is the line that says so, `last` what a rank
    wrote last.
    """

    ranks: tuple[str, ...]
    place: str
    why: str
    first: Line | None = None
    last: Line | None = None


@dataclass(frozen=True)
class Suspects:
    """The suspects, the likeliest first, `spoke` ranks of `of`; `said` is what else is known, in words.

    `echoes` counts lines that only tell that something failed elsewhere.
    """

    found: Sequence[Suspect]
    spoke: int
    of: int
    said: Sequence[str] = field(default_factory=tuple)
    echoes: int = 0


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


def suspects(found: Iterable[Known], ends: Mapping[str, Ends], world: int | None, dumps: Dumps = NO_DUMPS) -> Suspects:
    """Say where it began; `ends` are the last lines of all ranks, `world` is how many there should be."""
    roots: list[Known] = []
    calls: dict[tuple[str, str], Call] = {}
    words: list[Word] = []
    began: list[float] = []
    echoes = 0
    for one in found:
        if one.template.role == "root":
            roots.append(one)
        echoes += one.template.role == "echo"
        rank = one.groups.get("rank") or _own(one)
        if rank is not None and _waits(one, rank, calls, words) and one.line.time is not None:
            began.append(one.line.time - float(one.groups.get("ran_ms", 0.0)) / 1000.0)
    everybody = [str(rank) for rank in range(world)] if world is not None else sorted(filter(None, ends), key=natural)
    members = {WORLD: everybody, SOMEWHERE: everybody, **dumps.members}
    waits = trace([*calls.values(), *dumps.calls], [*words, *dumps.words], members)
    begin = min(began, default=None)
    times = [end.line.time for end in ends.values() if end.line.time is not None]
    failures = _failures(roots, begin if begin is not None else max(times, default=None))
    waited = list(_waited(waits, ends, failures))
    spoke = len({rank for rank in ends if rank})
    return Suspects(
        [*_first(failures, waits, ends), *waited], spoke, len(everybody), tuple(_said(waits, spoke)), echoes
    )


def _own(one: Known) -> str | None:
    """Return the rank that a line is of: its own, else the number in the communicator of all."""
    return one.line.rank or (one.groups.get("group_rank") if _group(one.groups) == WORLD else None)


def _group(groups: Mapping[str, str]) -> str:
    """Return the communicator that a line speaks of, nothing where it tells none; many have the same name beside it.

    >>> _group({"group": "0", "group_name": "default_pg"}), _group({"group": "7", "group_name": "TP"}), _group({})
    ('world', 'TP 7', '')
    """
    number, name = groups.get("group", ""), groups.get("group_name", "")
    if number in _DEFAULT or (not number and name in _DEFAULT):
        return WORLD
    return f"{name} {number}".strip() if number else ""


def _waits(one: Known, rank: str, calls: dict[tuple[str, str], Call], words: list[Word]) -> bool:
    """Note what a line says of a wait, and say whether it says anything of one."""
    groups = one.groups
    if "waited_for" in groups:
        words.append(Word(rank, groups["waited_for"]))
        return True
    if not {"sequence", "last_enqueued"} & groups.keys():
        return False
    waits, group = "sequence" in groups, _group(groups)
    if waits and group != WORLD:
        calls[rank, SOMEWHERE] = Call(rank, SOMEWHERE, 0, -1)
    if not group:
        return waits
    number = int(groups.get("sequence", 0))
    entered = int(groups.get("last_enqueued", number))
    completed = int(groups.get("last_completed", number - 1))
    before = calls.get((rank, group))
    if before is not None:
        entered, completed = max(entered, before.entered), max(completed, before.completed)
    operation = groups.get("operation") or (before.operation if before is not None else "")
    calls[rank, group] = Call(rank, group, entered, completed, operation)
    return waits


def _failures(roots: Sequence[Known], about: float | None) -> list[Known]:
    """Return what failed about the time that a wait began, or the logs end, the first first."""
    timed = [one for one in roots if one.line.time is not None]
    timed.sort(key=lambda one: (one.line.time or 0.0, natural(one.line.rank or "")))
    near = [one for one in timed if about is None or about - BEFORE <= (one.line.time or 0.0) <= about + SOON]
    first: dict[tuple[str | None, str], Known] = {}
    for one in near:
        first.setdefault((one.line.rank or one.line.node, one.template.id), one)
    return list(first.values())


def _first(failures: Sequence[Known], waits: Waits, ends: Mapping[str, Ends]) -> Iterator[Suspect]:
    """Yield what failed, the rank that others wait for before all others."""
    sought = {rank for end in waits.ends for rank in end.ranks}
    for one in sorted(failures, key=lambda one: one.line.rank not in sought):
        rank = one.groups.get("rank") or one.line.rank
        place = ", ".join(
            f"{name} {value}"
            for name, value in (
                ("node", one.line.node),
                ("gpu", one.groups.get("pci")),
                ("process", one.groups.get("pid")),
            )
            if value
        )
        waiting = next((end.waiting for end in waits.ends if rank in end.ranks), 0)
        why = one.template.summary + (f"; {counted(waiting, 'rank')} wait for it" if waiting else "")
        last = ends.get(rank or "")
        yield Suspect((rank,) if rank else (), place, why, one.line, last.line if last is not None else None)


def _waited(waits: Waits, ends: Mapping[str, Ends], failures: Sequence[Known]) -> Iterator[Suspect]:
    """Yield those that are waited for and of whom no failure is known."""
    told = {one.groups.get("rank") or one.line.rank for one in failures}
    quiet = [end for end in waits.ends if end.why == "silent"]
    trusted = waits.of and waits.spoke >= SPOKEN * waits.of
    for end in waits.ends:
        if told & set(end.ranks) or (end.why == "silent" and len(quiet) > 1 and not trusted):
            continue
        last = ends.get(end.ranks[0]) if len(end.ranks) == 1 else None
        yield Suspect(end.ranks, "", _why(end), None, last.line if last is not None else None)


def _why(end: End) -> str:
    named = [group for group in end.groups if group not in {WORLD, SOMEWHERE}]
    where = f" in {', '.join(named[:3])}" if named else ""
    waiting = f"{counted(end.waiting, 'rank')} {'waits' if end.waiting == 1 else 'wait'} for it{where}"
    match end.why:
        case "silent":
            return f"{waiting}, and it says nothing of waiting itself"
        case "absent":
            return f"{waiting}, and it has not entered what they are in"
        case "behind":
            return f"{waiting}: it is still in a collective that they have left"
        case "mismatched":
            return f"{waiting}: it is in another operation than they are"
    return f"they wait for each other{where}, {counted(end.waiting, 'more rank')} wait for them"


def _said(waits: Waits, spoke: int) -> Iterator[str]:
    """Say what is known beside the suspects."""
    for group in waits.joined:
        if group == SOMEWHERE:
            yield "all ranks wait, and their lines do not tell in which communicator: what they count is not compared"
            continue
        whose = "all ranks" if group == WORLD else f"all of {group}"
        yield f"{whose} have entered the same collective: nobody is missing there, look at the network and the GPUs"
    quiet = sum(len(end.ranks) for end in waits.ends if end.why == "silent")
    if quiet > 1 and waits.spoke < SPOKEN * waits.of:
        yield f"only {waits.spoke:,} of {waits.of:,} ranks say what they wait for, so the {quiet:,} others are not accused"
    if not spoke:
        yield "no line names a rank"


__all__ = ["Known", "Suspect", "Suspects", "known", "suspects"]
