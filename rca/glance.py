"""A look that costs little, to tell whether there is anything to explain.

In a synchronous job every rank steps as all do. So the rules that put a job into a symptom class are judged on a few of
its ranks, by the diagnosis that judges them on all; what only GPUs and hosts could tell is left out, and left out means
that a glance rather suspects too much. Hard events are asked for as filters, which return nothing in health.
"""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from rca import promql
from rca.detectors import All, Any, Condition, Not, OneOf, Rising, Unless, leaves, named
from rca.library import PHASES, Library, Rule
from rca.model import Floats, Snapshot
from rca.sources.series import Block, Matcher, Selector, Store

RANKS = 8
"""So many ranks of each job are looked at: the first, the last, and some between, as stages differ."""
_KINDS = ("rank", "job")
_LEAST = 120.0
_STATES = ("bool", "code")


def reduced(library: Library) -> Library:
    """Return the library of a glance: the rules of symptoms, as far as ranks and their job can tell."""
    kept = {name for name, signal in library.signals.items() if _told_by_ranks(library, name) and signal.entity}
    rules = {}
    for name, rule in library.rules.items():
        when = _pruned(rule.when, kept) if rule.symptom is not None else None
        if when is not None:
            measure = rule.measure if rule.measure in kept else None
            rules[name] = msgspec.structs.replace(rule, when=when, causes=(), measure=measure)
    signals = {name: library.signals[name] for name in sorted(kept | ({PHASES} & library.signals.keys()))}
    return msgspec.structs.replace(library, rules=rules, signals=signals).in_use(told=())


def _told_by_ranks(library: Library, name: str) -> bool:
    """Say whether a signal is measured on ranks or their job, or made of such alone."""
    signal = library.signals.get(name)
    if signal is None:
        return False
    if signal.derived is None:
        return signal.entity in _KINDS
    return all(_told_by_ranks(library, one) for one in signal.derived.inputs())


def _pruned(condition: Condition, kept: set[str]) -> Condition | None:
    """Return a condition without the parts that read other signals; None where nothing is left."""
    if isinstance(condition, All | Any):
        parts = tuple(part for one in condition.of if (part := _pruned(one, kept)) is not None)
        return msgspec.structs.replace(condition, of=parts) if parts else None
    if isinstance(condition, Not | Unless):
        part = _pruned(condition.of, kept)
        return None if part is None else msgspec.structs.replace(condition, of=part)
    return condition if named(condition) <= kept else None


def chosen(snapshot: Snapshot) -> dict[str, tuple[str, ...]]:
    """Return the ranks to look at, job by job.

    >>> _spread([str(rank) for rank in range(64)])
    ('0', '9', '18', '27', '36', '45', '54', '63')
    """
    table = snapshot.tables.get("rank")
    if table is None:
        return {}
    ranks: dict[str, list[str]] = {}
    for job, rank in zip(table.columns["job"].tolist(), table.columns["rank"].tolist(), strict=True):
        ranks.setdefault(job, []).append(rank)
    return {job: _spread(own) for job, own in sorted(ranks.items())}


def _spread(ranks: Sequence[str]) -> tuple[str, ...]:
    places = np.unique(np.linspace(0, len(ranks) - 1, min(RANKS, len(ranks))).astype(int))
    return tuple(ranks[place] for place in places.tolist())


class Few:
    """A `Store` that is asked for some ranks only; series that name no rank are not left out."""

    def __init__(self, store: Store, ranks: Sequence[str]) -> None:
        self._store = store
        pattern = "|".join(["", *sorted(rank for rank in set(ranks) if rank.isalnum())])
        self._matcher = Matcher("rank", "=~", pattern)

    def names(self, start: float, end: float) -> frozenset[str]:
        """Ask the store behind."""
        return self._store.names(start, end)

    def fetch(self, selectors: Sequence[Selector]) -> Iterator[tuple[int, Block]]:
        """Ask the store behind for these ranks."""
        return self._store.fetch([one._replace(matchers=(*one.matchers, self._matcher)) for one in selectors])

    def evaluate(self, query: str, times: Floats) -> Block:
        """Ask the store behind."""
        return self._store.evaluate(query, times)

    def warnings(self) -> tuple[str, ...]:
        """Return what the store behind has said."""
        return self._store.warnings()


def events(library: Library, names: frozenset[str], seconds: float) -> tuple[str, ...]:
    """Write the filters for hard events: how many series of an event counter, code or state have changed in the last
    `seconds`, where a rule that needs no symptom asks for it. Filters of what is not among the metric `names` are left
    out.
    """
    wanted: set[str] = set()
    for rule in library.rules.values():
        if _hard(rule):
            for leaf in leaves(rule.when):
                signal = library.signals.get(leaf.signal)
                state = signal is not None and signal.unit in _STATES and signal.entity not in _KINDS
                if signal is not None and (state or isinstance(leaf, Rising | OneOf)):
                    wanted.update(_changes(query, library, names, seconds) for query in signal.queries)
    return tuple(sorted(wanted - {""}))


def _hard(rule: Rule) -> bool:
    """Say whether a rule is reported where no job shows a symptom."""
    return rule.role == "root" and "none" in rule.prior


def _changes(query: str, library: Library, names: frozenset[str], seconds: float) -> str:
    """Write the filter for one query of a signal, empty where the server has none of its metrics."""
    plan = promql.plan(query)
    found = list(promql.samples(plan)) if plan is not None else []
    if len(found) != 1:
        return ""
    spelt = [*found[0].select(names), *(one for one, _ in library.aliases.get(found[0].name, ()) if one in names)]
    if not spelt:
        return ""
    matches = [*found[0].matches, promql.Match("__name__", "=~", "|".join(dict.fromkeys(spelt)))]
    return f"count(changes({promql.selector(matches)}[{max(seconds, _LEAST):.0f}s]) > 0)"
