"""What could not be checked, and for want of which signals: rules anywhere, and suspects of this very diagnosis."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rca.detectors import All, Any, Condition, Not, Unless, named
from rca.evaluate import Look
from rca.graph import Graph
from rca.infer import Verdict
from rca.library import Effect, Rule
from rca.peers import Indices

CLEAR = 0.9
"""A finding that a cause of this probability explains leaves nobody else to suspect."""
HALF = 0.5
MOST = 5
"""So many suspects that could not be checked are listed, likeliest first."""


class Unchecked(NamedTuple):
    """A root rule without an answer: on these `rows` of its kind, or on no entity at all where there are none named;
    `lacks` are the signals that are missing.
    """

    rule: Rule
    lacks: tuple[str, ...]
    rows: Indices


def unchecked(graph: Graph, verdict: Verdict) -> list[Unchecked]:
    """Return the root rules that could be judged nowhere, then suspects on which a rule could not be judged."""
    nowhere = [*_nowhere(graph)]
    listed = {one.rule.id for one in nowhere}
    best: dict[str, tuple[float, Unchecked]] = {}
    for weight, one in _suspects(graph, verdict):
        if one.rule.id not in listed and weight > best.get(one.rule.id, (0.0, one))[0]:
            best[one.rule.id] = (weight, one)
    ordered = sorted(best.values(), key=lambda found: (-found[0], found[1].rule.id))
    return nowhere + [one for _, one in ordered[:MOST]]


def _nowhere(graph: Graph) -> Iterator[Unchecked]:
    for judged in graph.judged.values():
        if judged.rule.role == "root" and not judged.state.any():
            lacks = lacking(graph.look, judged.rule.when, judged.rule.entity, np.arange(len(judged.state)))
            if lacks:
                yield Unchecked(judged.rule, tuple(sorted(lacks)), np.zeros(0, dtype=np.int64))


def _suspects(graph: Graph, verdict: Verdict) -> Iterator[tuple[float, Unchecked]]:
    """Yield the rules that could be behind a finding and were not judged where they would have to hold, with the share
    of jobs of this symptom that they start.
    """
    roots = [judged for judged in graph.judged.values() if judged.rule.role == "root" and (judged.state == 0).any()]
    for finding, row, symptom in _open(graph, verdict):
        kind = graph.look.library.rules[finding].entity
        for judged in roots:
            for edge in graph.edges[judged.rule.id]:
                rows = _behind(graph, (kind, row), judged.rule, edge) if edge.effect == finding else None
                if rows is None or symptom not in judged.rule.prior:
                    continue
                dark = rows[judged.state[rows] == 0]
                lacks = lacking(graph.look, judged.rule.when, judged.rule.entity, dark) if len(dark) else ()
                if lacks:
                    weight = judged.rule.prior[symptom] * edge.strength
                    yield weight, Unchecked(judged.rule, tuple(sorted(lacks)), dark)


def _open(graph: Graph, verdict: Verdict) -> Iterator[tuple[str, int, str]]:
    """Yield the findings (rule, row) that want a cause and have no sure one, with the symptom of their job."""
    clear: dict[str, set[int]] = {}
    for standing in verdict.standings:
        if standing.chosen and standing.probability >= CLEAR:
            for name, rows in standing.candidate.explained.items():
                clear.setdefault(name, set()).update(rows.tolist())
    for job, (symptom, rules) in verdict.classes.items():
        yield from ((rule, job, symptom) for rule in rules if job not in clear.get(rule, ()))
        for name in sorted(verdict.accusing):
            align = graph.look.joins.align(graph.judged[name].rule.entity, "job")
            if align is None or align.way != "coarser":
                continue
            found = graph.judged[name].found()
            mine = [row for row in found[align.rows[found] == job].tolist() if row not in clear.get(name, ())]
            yield from ((name, row, symptom) for row in mine[:8])


def _behind(graph: Graph, place: tuple[str, int], rule: Rule, edge: Effect) -> Indices | None:
    """Return the rows of a rule's kind that lead to a finding by an edge; None where that is not known."""
    kind, row = place
    if not edge.accuses:
        return None
    return graph.look.joins.members(kind, edge.via, rule.entity, row)


def lacking(look: Look, condition: Condition, kind: str, rows: Indices) -> frozenset[str]:
    """Return the measured signals without which a condition stays unknown on some entities.

    What is only excluded where it is known is not needed; what only counts where it is known (`not: {unless: ...}`)
    would help.
    """
    if isinstance(condition, Not) and isinstance(condition.of, Unless):
        return lacking(look, condition.of.of, kind, rows)
    if isinstance(condition, Unless) or _mostly(look.states(condition, kind)[rows] != 0):
        return frozenset()
    if isinstance(condition, Not):
        return lacking(look, condition.of, kind, rows)
    if isinstance(condition, All | Any):
        return frozenset[str]().union(*(lacking(look, part, kind, rows) for part in condition.of))
    return frozenset[str]().union(*(_blank(look, name, kind, rows) for name in named(condition)))


def _blank(look: Look, signal: str, kind: str, rows: Indices) -> frozenset[str]:
    """Return the measured signals of which a signal has too few samples on some entities."""
    described, measured = look.library.signals.get(signal), look.snapshot.measurements.get(signal)
    if described is None or (measured is not None and not _silent(look, signal, kind, rows)):
        return frozenset()
    if described.derived is None:
        return frozenset({signal})
    needed = [name for name in described.derived.inputs() if name not in described.derived.plus]
    return frozenset[str]().union(*(_blank(look, name, kind, rows) for name in needed))


def _silent(look: Look, signal: str, kind: str, rows: Indices) -> bool:
    """Say whether a signal falls silent on just these entities: most others have it, for most of the time."""
    known = np.isfinite(look.snapshot.measurements[signal].window)
    align = look.joins.align(kind, look.library.signals[signal].entity)
    if align is None or (known.mean(axis=1) > HALF).mean() <= HALF:
        return False
    theirs = align.rows[rows] if align.way == "coarser" else np.flatnonzero(np.isin(align.rows, rows))
    theirs = theirs[theirs >= 0]
    return len(theirs) > 0 and not _mostly(known[theirs])


def _mostly(known: NDArray[np.bool_]) -> bool:
    """Say whether some row is known for more than half of the time; less says nothing of a rule."""
    return bool((known.mean(axis=1) > HALF).any()) if known.size else False
