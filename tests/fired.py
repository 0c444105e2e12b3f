"""Which rules hold on a snapshot, and along which edges of the causal graph its causes are told."""

from typing import NamedTuple, TypeAlias

from rca.diagnose import SURE, canonical, completed
from rca.evaluate import Look
from rca.graph import Graph
from rca.infer import infer
from rca.library import Library
from rca.model import Snapshot

Edge: TypeAlias = tuple[str, str, bool]
"""Cause, effect, and whether it accuses: what a step of a chain says of its edge."""


class Fired(NamedTuple):
    """Rules that held on some entity and edges that led from a named cause to a finding; beside these, rules that were
    seen to hold nowhere, and edges that led to none though their effect could be seen.
    """

    rules: frozenset[str]
    edges: frozenset[Edge]
    silent_rules: frozenset[str]
    silent_edges: frozenset[Edge]


def edges(library: Library) -> frozenset[Edge]:
    """Return all edges of the causal graph."""
    return frozenset((rule.id, edge.effect, edge.accuses) for rule in library.rules.values() for edge in rule.causes)


def fired(library: Library, snapshot: Snapshot) -> Fired:
    """Diagnose a snapshot once more, and look at what the report is made of."""
    look = Look(library, completed(library, canonical(library, snapshot)))
    graph = Graph(look)
    verdict = infer(graph, range(look.size("job")))
    named = [one.candidate for one in verdict.standings if one.probability >= SURE]
    led = frozenset((step.origin, step.effect, step.accuses) for candidate in named for step in candidate.steps)
    held = {name for name, judged in graph.judged.items() if (judged.state == 1).any()}
    denied = {name for name, judged in graph.judged.items() if (judged.state == -1).any()} - held
    blind = frozenset(edge for edge in edges(library) if edge[1] not in held | denied)
    return Fired(frozenset(held), led, frozenset(denied), edges(library) - led - blind)
