"""Who waits for whom in a job that stands still: from what ranks have entered to the ranks that all others wait for.

A rank that has entered a collective waits for the members of its communicator that have not. Sequence numbers count inside
one communicator and are compared only there. A rank that is missing in one communicator and waits in another is a victim of
the other; who is waited for and waits in nothing is where the wait ends, and may have left no word at all.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import networkx as nx

Why: TypeAlias = Literal["silent", "absent", "behind", "mismatched", "deadlocked"]


class Call(NamedTuple):
    """The last that is known of a rank in a communicator: the numbers of the last collective that it has enqueued and of
    the last that it has completed (-1: none yet), and what the first one that is not complete is, where that is told.
    """

    rank: str
    group: str
    entered: int
    completed: int
    operation: str = ""

    @property
    def number(self) -> int:
        """Return the number of the collective that the rank is in, or would enter next."""
        return self.completed + 1

    @property
    def waits(self) -> bool:
        """Say whether the rank is in a collective."""
        return self.entered > self.completed


class Word(NamedTuple):
    """A rank that waits for another, as it says itself: a receive, or a line of its log."""

    rank: str
    on: str


class End(NamedTuple):
    """Ranks at which the wait ends: those of one end are in it together, `waiting` others wait for them, `why` tells what
    is known of them: they left no word (`silent`), they have entered less than the others (`absent`), they are in a
    collective still that the others have left (`behind`), they are in another operation (`mismatched`), or they wait for
    each other (`deadlocked`).
    """

    ranks: tuple[str, ...]
    waiting: int
    why: Why
    groups: tuple[str, ...] = ()


class Waits(NamedTuple):
    """What came of it: the ends, those that most wait for first; communicators whose members are known, have all entered
    and none has left, so that nobody is missing there; and how many ranks spoke, of those that should have.
    """

    ends: tuple[End, ...]
    joined: tuple[str, ...]
    spoke: int
    of: int


class _Hub(NamedTuple):
    """One collective of a communicator that somebody waits in."""

    group: str
    number: int
    operation: str


def trace(calls: Sequence[Call], words: Sequence[Word], members: Mapping[str, Iterable[str]]) -> Waits:
    """Follow the waits to their ends; `members` names the ranks of each communicator.

    >>> four = {"world": ["0", "1", "2", "3"]}
    >>> trace([Call(rank, "world", 7, 6) for rank in "013"], [], four).ends
    (End(ranks=('2',), waiting=3, why='silent', groups=('world',)),)
    """
    import networkx as nx  # noqa: PLC0415 - 0.2 s, and few diagnoses follow waits

    known = {group: frozenset(ranks) for group, ranks in members.items()}
    graph, joined = _graph(calls, words, known)
    ranks = {call.rank for call in calls} | {word.rank for word in words}
    spoke = frozenset(ranks)
    everybody = ranks.union(*known.values(), (word.on for word in words))
    busy = Counter(call.rank for call in calls if call.waits) + Counter(word.rank for word in words)
    ends = []
    whole = nx.condensation(graph)
    for part in whole:
        if whole.out_degree(part) or (not whole.in_degree(part) and len(whole.nodes[part]["members"]) == 1):
            continue
        inside = whole.nodes[part]["members"]
        those = {node for node in inside if isinstance(node, str)}
        if not those:
            continue
        behind = {
            node for above in (part, *nx.ancestors(whole, part)) for node in whole.nodes[above]["members"]
        }  # fmt: skip
        ends.append(_end(calls, those, behind, spoke, busy))
    order = sorted(ends, key=lambda end: (-end.waiting, _natural(end.ranks)))
    return Waits(tuple(order), tuple(sorted(joined)), len(spoke), len(everybody))


def _graph(
    calls: Sequence[Call], words: Sequence[Word], known: Mapping[str, frozenset[str]]
) -> tuple["nx.DiGraph[str | _Hub]", set[str]]:
    """Return who waits for whom, through the collectives that they are in, and the communicators that all have entered."""
    import networkx as nx  # noqa: PLC0415 - 0.2 s, and few diagnoses follow waits

    graph: nx.DiGraph[str | _Hub] = nx.DiGraph()
    by_group: defaultdict[str, dict[str, Call]] = defaultdict(dict)
    for call in calls:
        by_group[call.group][call.rank] = call
    joined = set()
    for group, own in by_group.items():
        hubs: defaultdict[_Hub, set[str]] = defaultdict(set)
        for call in own.values():
            if call.waits:
                hubs[_Hub(group, call.number, call.operation)].add(call.rank)
        everybody = known.get(group, frozenset(own))
        for hub, inside in hubs.items():
            there = {rank for rank, call in own.items() if _takes_part(call, hub)}
            missing = everybody - there
            if missing:
                graph.add_edges_from((rank, hub) for rank in inside)
                graph.add_edges_from((hub, rank) for rank in missing)
            elif group in known and inside >= everybody:
                joined.add(group)
    graph.add_edges_from((word.rank, word.on) for word in words)
    return graph, joined


def _takes_part(call: Call, hub: _Hub) -> bool:
    """Say whether a rank has entered a collective: it has enqueued it, and is in no other operation of that number."""
    if call.entered < hub.number:
        return False
    other = call.number == hub.number and call.operation and hub.operation and call.operation != hub.operation
    return not other


def _end(
    calls: Sequence[Call], those: set[str], behind: set[str | _Hub], spoke: frozenset[str], busy: Mapping[str, int]
) -> End:
    """Say what is known of the ranks at which a wait ends."""
    hubs = [node for node in behind if isinstance(node, _Hub)]
    groups = tuple(sorted({hub.group for hub in hubs}))
    others = sum(isinstance(node, str) for node in behind)
    if len(those) == 1:
        alone: Why = "behind" if any(busy.get(rank) for rank in those) else "absent" if those <= spoke else "silent"
        return End(tuple(those), others - 1, alone, groups)
    odd = _odd(calls, those)
    if odd:
        return End(_sorted(odd), others - len(odd), "mismatched", groups)
    return End(_sorted(those), others - len(those), "deadlocked", groups)


def _odd(calls: Sequence[Call], those: set[str]) -> set[str]:
    """Return the ranks that are in another operation than most, in a collective that has several."""
    by_number: defaultdict[tuple[str, int], defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for call in calls:
        if call.rank in those and call.waits and call.operation:
            by_number[call.group, call.number][call.operation].add(call.rank)
    odd: set[str] = set()
    for operations in by_number.values():
        most = max(len(ranks) for ranks in operations.values())
        fewer = [ranks for ranks in operations.values() if len(ranks) < most]
        odd = odd.union(*fewer)
    return odd


def _sorted(ranks: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(ranks, key=lambda rank: (len(rank), rank)))


def _natural(ranks: Sequence[str]) -> list[tuple[int, str]]:
    return [(len(rank), rank) for rank in ranks]
