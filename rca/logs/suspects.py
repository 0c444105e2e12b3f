"""Where a hang or a crash began, as far as the lines of all ranks tell: who is waited for, and what failed first."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rca.dumps import Dumps
from rca.loglines import Ends, Line
from rca.loglines.heard import NO_DUMPS, SOMEWHERE, SPOKEN, WORLD, Heard, Known, accused, known
from rca.plain import counted, natural
from rca.waits import End, Waits


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


def suspects(found: Iterable[Known], ends: Mapping[str, Ends], world: int | None, dumps: Dumps = NO_DUMPS) -> Suspects:
    """Say where it began; `ends` are the last lines of all ranks, `world` is how many there should be."""
    heard = Heard()
    for one in found:
        heard.take(one)
    everybody = [str(rank) for rank in range(world)] if world is not None else sorted(filter(None, ends), key=natural)
    waits = heard.waits(everybody, dumps)
    begin = min(heard.began, default=None)
    times = [end.line.time for end in ends.values() if end.line.time is not None]
    failures = heard.failures(begin if begin is not None else max(times, default=None))
    waited = list(_waited(waits, ends, failures))
    spoke = len({rank for rank in ends if rank})
    return Suspects(
        [*_first(failures, waits, ends), *waited], spoke, len(everybody), tuple(_said(waits, spoke)), heard.echoes
    )


def _first(failures: Sequence[Known], waits: Waits, ends: Mapping[str, Ends]) -> Iterator[Suspect]:
    """Yield what failed, the rank that others wait for before all others."""
    sought = {rank for end in waits.ends for rank in end.ranks}
    for one in sorted(failures, key=lambda one: one.line.rank not in sought):
        rank = one.rank
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
    told = {one.rank for one in failures}
    for end in accused(waits, ends):
        if told & set(end.ranks):
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


__all__ = ["NO_DUMPS", "Known", "Suspect", "Suspects", "known", "suspects"]
