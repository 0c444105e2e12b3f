"""The causal graph on a snapshot: what a candidate leads to, and how much of that is seen.

Causes and effects meet in hubs (effect rule, relation, group of entities): all members of a hub are one observation.
A hub whose members can be seen blocks the way: what lies behind it is explained by it, and scored no more.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from msgspec import structs

from rca.detectors import leaves
from rca.earlier import Earlier
from rca.evaluate import Judgement, Look, median
from rca.library import Effect, Gain, Library, Rule, seconds
from rca.model import Symptom
from rca.peers import Indices

SEVERITY: tuple[Symptom, ...] = ("crashed", "stalled", "numeric", "slow_onset", "slow_always")
NO_ROWS = np.array([], dtype=np.int64)
ENOUGH = 0.5
"""A cause that accounts for less than half of an effect is not the cause of it (What-if: M_W, M_S of at least 0.5)."""
WHOLE = 0.75
"""Share of a coarser entity's members that must be ill alike before it is named instead of them."""
THREADS, MANY = 2, 1024
"""Rules are judged by so many threads where there are so many entities of a kind; more of them wait for each other."""
LATE = 0.2
"""How likely a cause is to be seen clearly after its effect."""


class Dose(NamedTuple):
    """The size of a finding: |ln(value / expected)|, and |value - expected| in the unit of its signal."""

    relative: float
    absolute: float
    unit: str


class Hub(NamedTuple):
    """One observation for or against a candidate: of the `seen` members of an effect, those in `true` show it.

    `strength` is the probability that a member shows it, `share` how much of the observed size the cause accounts
    for (NaN: not known), `late` whether the times of cause and effect do not fit; `old` whether the cause was there
    already when the effect was not, `standing` whether the effect was there then as well.
    """

    effect: str
    via: str
    true: Indices
    seen: int
    strength: float
    share: float
    any_member: bool
    late: bool
    old: bool = False
    standing: bool = False


class Step(NamedTuple):
    """One hop of a chain: `rows` of rule `effect` out of `of` that can be seen, reached from rule `origin`.

    A hop that does not accuse is a consequence on the side: explained, and no part of the story.
    """

    origin: str
    effect: str
    rows: Indices
    of: int
    accuses: bool


@dataclass(frozen=True, eq=False)
class Candidate:
    """A root rule that holds on an entity: what speaks for and against it, and what it would explain.

    `rows` are the rule's entities, several where a coarser `kind` is ill as a whole; `place` is the row of `kind`.
    """

    rule: Rule
    rows: Indices
    kind: str
    place: int
    hubs: tuple[Hub, ...]
    steps: tuple[Step, ...]
    explained: Mapping[str, Indices] = field(default_factory=dict)

    @property
    def row(self) -> int:
        """The first of the rule's entities, which stands for all of them."""
        return int(self.rows[0])


def accusing(library: Library) -> frozenset[str]:
    """Return the symptom rules that lead to a symptom class of a job: findings that want a cause."""
    causes: dict[str, list[str]] = {}
    for rule in library.rules.values():
        for edge in rule.causes:
            if edge.accuses:
                causes.setdefault(edge.effect, []).append(rule.id)
    upstream: set[str] = set()
    waiting = [rule.id for rule in library.rules.values() if rule.symptom]
    while waiting:
        found = [cause for cause in causes.get(waiting.pop(), ()) if cause not in upstream]
        upstream.update(found)
        waiting += found
    return frozenset(
        rule for rule in upstream if library.rules[rule].role == "symptom" and not library.rules[rule].symptom
    )


class Graph:
    """All rules judged on one snapshot, and the walks from candidates through what is seen."""

    def __init__(self, look: Look, jobs: Sequence[int] | None = None) -> None:
        """Judge all rules; with `jobs` (rows) only what belongs to these counts."""
        self.look = look
        judged = _judged(look)
        self.judged = {name: _inside(look, judged[name], jobs) for name in sorted(judged)}
        self._stand_in()
        self.edges = _edges(look.library)
        self._doses: dict[tuple[str, int], Dose | None] = {}
        self._beyond: dict[tuple[str, bytes], tuple[Step, ...]] = {}
        self._reach: dict[tuple[str, str], float] = {}
        self._earlier = Earlier(look)

    def _stand_in(self) -> None:
        """Leave what stands in for other rules to where none of these could be judged."""
        for name, judged in self.judged.items():
            others = [self.judged[other].state != 0 for other in judged.rule.instead_of]
            if others:
                state = np.where(np.any(others, axis=0), 0, judged.state).astype(np.int8)
                self.judged[name] = Judgement(judged.rule, state, judged.first, judged.recent)

    def candidates(self) -> list[Candidate]:
        """Return every root rule that holds on an entity, with its hubs."""
        roots = [judged for judged in self.judged.values() if judged.rule.role == "root"]
        return [self._candidate(judged.rule, *place) for judged in roots for place in self._places(judged)]

    def _places(self, judged: Judgement) -> list[tuple[str, int, Indices]]:
        """Return where a rule holds: a coarser entity that is ill as a whole, and single ones.

        Entities of one coarser entity that would bring about the very same are one candidate too: nothing could tell
        them apart, and they add up.
        """
        rule, found = judged.rule, judged.found()
        single = [(rule.entity, int(row), np.array([row])) for row in found]
        align = None if rule.widen is None else self.look.joins.align(rule.entity, rule.widen)
        if rule.widen is None or align is None or align.way != "coarser" or len(found) < 2:
            return single
        size = np.bincount(align.rows[align.rows >= 0], minlength=self.look.size(rule.widen))
        places: list[tuple[str, int, Indices]] = []
        for place in np.unique(align.rows[found]):
            rows = found[align.rows[found] == place]
            alike = [rows] if place >= 0 and len(rows) >= max(2, WHOLE * size[place]) else self._alike(rule, rows)
            places += [
                (rule.widen, int(place), part) if len(part) > 1 else (rule.entity, int(part[0]), part) for part in alike
            ]
        return places

    def _alike(self, rule: Rule, rows: Indices) -> list[Indices]:
        """Group entities by what they would bring about."""
        kinds: dict[tuple[bytes, ...], list[int]] = {}
        for row in rows:
            reach = tuple(self.members(rule, np.array([row]), effect).tobytes() for effect in rule.causes[:1])
            kinds.setdefault(reach if any(reach) else (bytes(row),), []).append(int(row))
        return [np.array(group) for group in kinds.values()]

    def _candidate(self, rule: Rule, kind: str, place: int, rows: Indices) -> Candidate:
        hubs: list[Hub] = []
        steps: list[Step] = []
        for effect in self.edges[rule.id]:
            met: tuple[list[Hub], list[Step], float] = ([], [], effect.strength)
            self._walk(rule, rows, effect, met)
            dated = [self._dated(rule, rows, hub) for hub in met[0]]
            hubs += dated
            old = [hub.old for hub in dated] or [
                self._predates(rule, rows, step.effect, step.rows) for step in met[1][:1]
            ]
            steps += [] if any(old) else met[1]
        explained: dict[str, Indices] = {}
        for step in steps:
            explained[step.effect] = np.union1d(explained.get(step.effect, NO_ROWS), step.rows)
        return Candidate(rule, rows, kind, place, _once(hubs), tuple(steps), explained)

    def _dated(self, rule: Rule, rows: Indices, hub: Hub) -> Hub:
        """Say of a hub what of it was there already while the job ran well."""
        if not len(hub.true):
            return hub
        if self._predates(rule, rows, hub.effect, hub.true):
            return hub._replace(old=True)
        return hub._replace(standing=not len(self.fresh(hub.effect, hub.true[:64])))

    def _walk(self, rule: Rule, rows: Indices, effect: Effect, gathered: tuple[list[Hub], list[Step], float]) -> None:
        """Follow one edge from an unseen or candidate rule: score what is seen, walk on through what is not.

        Where no entity of the effect's kind is known at all (no ranks, no cells) the way goes on from the rule itself.
        """
        hubs, steps, strength = gathered
        target = self.judged[effect.effect]
        members = self.members(rule, rows, effect)
        true, seen = members[target.state[members] == 1], int((target.state[members] != 0).sum())
        if not len(members):
            nobody = effect.accuses and not self.look.size(target.rule.entity)
            for further in self.edges[effect.effect] if nobody else ():
                if further.accuses:
                    onward = structs.replace(further, gain=effect.gain or further.gain)
                    self._walk(rule, rows, onward, (hubs, steps, strength * further.strength))
            return
        if seen == 0:
            for further in self.edges[effect.effect]:
                self._walk(target.rule, members, further, (hubs, steps, strength * further.strength))
            return
        hub = self._hub(rule, rows, effect, (true, seen, strength))
        if effect.accuses and hub is not None:
            hubs.append(hub)
        if len(true) and (hub is None or not hub.share < ENOUGH):
            steps.append(Step(rule.id, effect.effect, true, seen, effect.accuses))
            steps.extend(self.beyond(target.rule, true))

    def _hub(self, rule: Rule, rows: Indices, effect: Effect, seen: tuple[Indices, int, float]) -> Hub | None:
        """Weigh a hub whose members are seen; None where the effect is too small to be seen."""
        true, visible, strength = seen
        expected = self._expected(rule, rows, effect)
        if not len(true) and expected is not None and expected < self._margin(effect):
            return None
        share = self._share(expected, effect, true)
        late = bool(len(true)) and self._untimely(self.judged[rule.id], rows, effect, true)
        return Hub(effect.effect, effect.via, true, visible, strength, share, effect.members == "any", late)

    def _predates(self, rule: Rule, rows: Indices, effect: str, true: Indices) -> bool:
        """Say whether a cause was there already while the job ran well, and its effect was not."""
        return self._earlier.predates((self.judged[rule.id], rows), (self.judged[effect], true))

    def fresh(self, name: str, rows: Indices) -> Indices:
        """Return those findings of a rule that were not there, or were less, while the job still ran well."""
        return rows[~self._earlier.lasting(self.judged[name], rows)]

    def members(self, rule: Rule, rows: Indices, effect: Effect) -> Indices:
        """Return the rows of the effect's kind that share the relation with any of these rows."""
        kind = self.look.library.rules[effect.effect].entity
        found = [
            self.look.joins.members(rule.entity, effect.via, kind, int(row)) for row in self._spread(rule, rows, effect)
        ]
        known = [rows for rows in found if rows is not None and len(rows)]
        if len(known) == 1:
            return known[0]
        return np.unique(np.concatenate(known)) if known else NO_ROWS

    def reach(self, rule: str, effect: str) -> float:
        """Return how strongly a rule brings about an effect: at once, or through kinds of which no entity is known."""
        if (rule, effect) not in self._reach:
            kinds = self.look.library.rules
            ways = [
                edge.strength * (1.0 if edge.effect == effect else self.reach(edge.effect, effect))
                for edge in self.edges[rule]
                if edge.accuses and (edge.effect == effect or not self.look.size(kinds[edge.effect].entity))
            ]
            self._reach[rule, effect] = max(ways, default=0.0)
        return self._reach[rule, effect]

    def _spread(self, rule: Rule, rows: Indices, effect: Effect) -> Indices:
        """Return one row for each group of the relation: members of one group lead to the same hub."""
        if len(rows) < 2:
            return rows
        group = self.look.joins.groups(rule.entity, (effect.via,))[rows]
        return rows[np.unique(group, return_index=True)[1]]

    def beyond(self, rule: Rule, rows: Indices) -> tuple[Step, ...]:
        """Return what findings of a symptom rule bring about in turn, as far as it is seen and large enough."""
        key = (rule.id, rows.tobytes())
        if key not in self._beyond:
            steps: list[Step] = []
            for effect in self.edges[rule.id]:
                target = self.judged[effect.effect]
                members = self.members(rule, rows, effect)
                true = members[target.state[members] == 1]
                fits = len(true) and not self._share(self._expected(rule, rows, effect), effect, true) < ENOUGH
                if fits and not self._predates(rule, rows, effect.effect, true):
                    steps.append(
                        Step(rule.id, effect.effect, true, int((target.state[members] != 0).sum()), effect.accuses)
                    )
                    steps.extend(self.beyond(target.rule, true))
            self._beyond[key] = tuple(steps)
        return self._beyond[key]

    def _expected(self, rule: Rule, rows: Indices, effect: Effect) -> float | None:
        """Return the size that an effect should have, after the dose at its causes; None where that is not known."""
        gain = effect.gain
        if gain is None:
            return None
        doses = [(self.dose(rule.id, int(row), gain.of), self._busy(rule, int(row), gain)) for row in rows[:64]]
        absolute = self._absolute(effect)
        sizes = [(one.absolute if absolute else one.relative) / busy for one, busy in doses if one is not None]
        known = [size for size in sizes if math.isfinite(size)]
        return gain.factor * max(known) if known else None

    def _busy(self, rule: Rule, row: int, gain: Gain) -> float:
        """Return the share of the time in which a dose shows, 1 where that is not known."""
        values = None if gain.over is None else self.look.values(gain.over, rule.entity)
        if values is None:
            return 1.0
        judged = self.judged[rule.id]
        share = median(values[row, int(judged.first[row]) : int(judged.recent[row]) + 1])
        return min(max(share, 0.1), 1.0) if math.isfinite(share) else 1.0

    def _absolute(self, effect: Effect) -> bool:
        """Say whether an edge's doses are compared in seconds."""
        assert effect.gain is not None
        signals = self.look.library.signals
        measure = measured(self.look.library.rules[effect.effect])
        return signals[effect.gain.of].unit == "seconds" == signals[measure].unit

    def _share(self, expected: float | None, effect: Effect, true: Indices) -> float:
        """Return how much of an observed effect a dose accounts for, at most 1; NaN where that is not known."""
        if expected is None or not len(true):
            return float("nan")
        sizes = [self.dose(effect.effect, int(row)) for row in true[:64]]
        seen = [size.absolute if self._absolute(effect) else size.relative for size in sizes if size is not None]
        seen = [size for size in seen if math.isfinite(size)]
        return min(1.0, expected / max(*seen, 1e-12)) if seen else float("nan")

    def _margin(self, effect: Effect) -> float:
        """Return the smallest size at which an effect is noticed, relative; 0 where its detector has no margin."""
        rule = self.look.library.rules[effect.effect]
        margins = [
            leaf.by
            for leaf in self.look.library.conditions(rule)
            if leaf.signal == measured(rule) and hasattr(leaf, "by")
        ]
        plain = [
            float(by[:-1]) / 100 if isinstance(by, str) else float(by)
            for by in margins
            if not isinstance(by, str) or by.endswith("%")
        ]
        return math.log1p(2 * min(plain)) if plain and effect.gain and not self._absolute(effect) else 0.0

    def _untimely(self, cause: Judgement, rows: Indices, effect: Effect, true: Indices) -> bool:
        """Say whether a cause was first seen clearly after its effect, or the effect later than the edge allows.

        Clearly is more than scrapes, smoothing and `for` can hide; a cause that was there when the window began may
        have begun at any time before.
        """
        times, target = self.look.snapshot.times, self.judged[effect.effect]
        begin = int(cause.first[rows].min())
        gap = float(times[int(target.first[true].min())] - times[begin])
        tolerance = self.tolerance(cause.rule) + self.tolerance(target.rule)
        return gap < -tolerance or (begin > 0 and gap > tolerance + seconds(effect.within))

    def symptom(self, judged: Judgement, row: int) -> Symptom | None:
        """Return the class that a finding puts its job into: `onset` where it clearly began inside the window."""
        began = int(judged.first[row]) * self.look.snapshot.step > self.tolerance(judged.rule)
        return judged.rule.onset if began and judged.rule.onset else judged.rule.symptom

    def tolerance(self, rule: Rule) -> float:
        """Return by how many seconds the beginning of a finding may be off."""
        measured = [self.look.snapshot.measurements.get(leaf.signal) for leaf in self.look.library.conditions(rule)]
        known = [one.interval + one.smoothing for one in measured if one is not None]
        return max(known, default=0.0) + seconds(rule.hold)

    def dose(self, rule: str, row: int, signal: str | None = None) -> Dose | None:
        """Return the size of a finding by its measure, or by another signal of its conditions."""
        judged = self.judged[rule]
        wanted = signal or measured(judged.rule)
        key = (f"{rule}/{wanted}", row)
        if key not in self._doses:
            self._doses[key] = self._dose(judged, row, wanted)
        return self._doses[key]

    def _dose(self, judged: Judgement, row: int, wanted: str) -> Dose | None:
        unit = self.look.library.signals[wanted].unit
        for reading in self.look.readings(judged, row):
            if reading.leaf.signal == wanted and math.isfinite(reading.expected) and math.isfinite(reading.value):
                gap = reading.value - reading.expected
                ratio = reading.value / reading.expected if reading.expected else math.inf
                return Dose(abs(math.log(ratio)) if 0 < ratio < math.inf else math.inf, abs(gap), unit)
        values = self.look.values(wanted, judged.rule.entity)
        if values is None:
            return None
        level = median(values[row, int(judged.first[row]) : int(judged.recent[row]) + 1])
        return Dose(math.inf, abs(level), unit) if math.isfinite(level) else None


def _edges(library: Library) -> dict[str, tuple[Effect, ...]]:
    """Return the edges of each rule, those to what stands in for an effect included."""
    instead: dict[str, list[str]] = {}
    for rule in library.rules.values():
        for other in rule.instead_of:
            instead.setdefault(other, []).append(rule.id)
    found = {}
    for rule in library.rules.values():
        own = {(edge.effect, edge.via) for edge in rule.causes}
        more = {
            (other, edge.via): structs.replace(edge, effect=other)
            for edge in rule.causes
            for other in instead.get(edge.effect, ())
            if (other, edge.via) not in own and other != rule.id and rule.id not in library.rules[other].instead_of
        }
        found[rule.id] = (*rule.causes, *more.values())
    return found


def _once(hubs: Iterable[Hub]) -> tuple[Hub, ...]:
    """Leave one hub for each set of findings, the strongest: what several unseen ways lead to is one observation."""
    best: dict[tuple[str, bytes], Hub] = {}
    for hub in hubs:
        key = (hub.effect, hub.true.tobytes())
        if key not in best or hub.strength > best[key].strength:
            best[key] = hub
    return tuple(best.values())


def _judged(look: Look) -> dict[str, Judgement]:
    """Judge all rules; where entities are many, those of one kind in one thread and those of the next in another.

    Most of the time goes into numpy, which lets other threads run meanwhile; rules on the same kind share what they
    measure.
    """
    kinds: defaultdict[str, list[Rule]] = defaultdict(list)
    for rule in look.library.rules.values():
        kinds[rule.entity].append(rule)
    if max(map(look.size, kinds), default=0) < MANY:
        return {rule.id: look.judge(rule) for rules in kinds.values() for rule in rules}
    with ThreadPoolExecutor(THREADS) as pool:
        batches = pool.map(lambda rules: [look.judge(rule) for rule in rules], sorted(kinds.values(), key=len)[::-1])
        return {judged.rule.id: judged for batch in batches for judged in batch}


def _inside(look: Look, judged: Judgement, jobs: Sequence[int] | None) -> Judgement:
    """Leave a judgement to the entities of some jobs; what lies outside counts as not judged."""
    if jobs is None:
        return judged
    state = np.where(look.inside(judged.rule.entity, jobs), judged.state, 0).astype(np.int8)
    return Judgement(judged.rule, state, judged.first, judged.recent)


def measured(rule: Rule) -> str:
    """Return the signal whose deviation is the size of a rule's findings."""
    return rule.measure or next(iter(leaves(rule.when))).signal


def job_symptoms(graph: Graph, jobs: Iterable[int]) -> dict[int, tuple[Symptom, tuple[str, ...]]]:
    """Return for each ill job (row) its worst symptom class and the rules that show it."""
    classes: dict[int, tuple[Symptom, tuple[str, ...]]] = {}
    judged = [one for one in graph.judged.values() if one.rule.symptom and one.rule.entity == "job"]
    for job in jobs:
        shown = [(graph.symptom(one, job), one.rule.id) for one in judged if one.state[job] == 1]
        for symptom in SEVERITY:
            rules = tuple(rule for shown_as, rule in shown if shown_as == symptom)
            if rules:
                classes[job] = (symptom, rules)
                break
    return classes
