"""Choose the set of causes that explains the findings best, and say how sure that is.

The score of a candidate is the logarithm of prior(cause) / leak(cause) times the likelihood ratios of its hubs: how
much likelier the findings are with the cause than without. Each further cause pays its own prior, findings that a
chosen cause explains count no more, and every cause competes with the candidates that explain the same, and with
`unknown`, which explains anything but has a prior of its own.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rca.graph import ENOUGH, LATE, Candidate, Graph, Hub, accusing, job_symptoms
from rca.library import Rule
from rca.model import History, Symptom
from rca.peers import Indices

UNKNOWN_PRIOR = 0.1
RELAPSES = 4
"""A cause that a place had n times within a month has n + 1 times its prior there; more than this count no more."""
UNLISTED = 0.1
"""A symptom class that a rule's prior does not list has the smallest listed prior times this."""
MISFIT = math.log(0.2)
"""What an effect far out of proportion to its cause counts."""

Covered = dict[str, Indices]


class Standing(NamedTuple):
    """A candidate after the inference: `probability`, whether it was `chosen`, and the stronger rival, if any."""

    candidate: Candidate
    probability: float
    chosen: bool
    rival: Candidate | None


class Doubt(NamedTuple):
    """The probability that a job's trouble has a cause that is no candidate, and the finding (rule, row) it would be
    behind, where a candidate stands for that."""

    probability: float
    finding: tuple[str, int] | None


@dataclass(frozen=True, eq=False)
class Verdict:
    """All candidates best first, the findings that nothing explains, and the doubts of each ill job."""

    standings: tuple[Standing, ...]
    unexplained: Mapping[str, Indices]
    doubts: Mapping[int, Doubt]
    classes: Mapping[int, tuple[Symptom, tuple[str, ...]]]
    accusing: frozenset[str]


def infer(graph: Graph, jobs: Iterable[int], history: History | None = None) -> Verdict:
    """Explain the findings on these jobs (rows of the job table); what was ill before is likelier to be ill again."""
    classes = job_symptoms(graph, jobs)
    contest = Contest(graph, classes, history or {})
    chosen = contest.cover()
    standings = sorted(
        contest.standings(chosen), key=lambda one: (-one.probability, one.candidate.rule.id, one.candidate.row)
    )
    return Verdict(
        tuple(standings),
        contest.unexplained(chosen),
        contest.doubts(chosen, standings),
        classes,
        accusing(graph.look.library),
    )


class Contest:
    """The candidates of one snapshot and the scores between them."""

    def __init__(self, graph: Graph, classes: Mapping[int, tuple[Symptom, tuple[str, ...]]], history: History) -> None:
        self._graph = graph
        self._history = history
        self._look = graph.look
        self._rules = graph.look.library.rules
        self._classes = classes
        self._accusing = accusing(graph.look.library)
        self.candidates = graph.candidates()
        self._priors = [self._prior(one) for one in self.candidates]
        self._direct = [self._targets(one) for one in self.candidates]
        self._sharers: dict[tuple[str, int], list[int]] = {}
        for number, targets in enumerate(self._direct):
            for target in targets:
                self._sharers.setdefault(target, []).append(number)

    def jobs_of(self, candidate: Candidate) -> list[int]:
        """Return the ill jobs that a candidate explains, as rows."""
        found = []
        for job, (_, rules) in self._classes.items():
            if any(job in candidate.explained.get(rule, ()) for rule in rules):
                found.append(job)
        return found

    def _prior(self, candidate: Candidate) -> float:
        """Return the log prior of a candidate, of the symptom class that it explains and its share of the entities."""
        rule = candidate.rule
        symptom = self._symptom(candidate)
        smallest = min(rule.prior.values(), default=1e-3) * UNLISTED
        place = str(self._look.snapshot.tables[candidate.kind].entity(candidate.place))
        times = 1 + min(self._history.get((rule.id, place), 0), RELAPSES)
        return math.log(times * rule.prior.get(symptom, smallest) / self._population(candidate.kind, candidate.place))

    def _symptom(self, candidate: Candidate) -> Symptom:
        """Return the symptom class that a candidate is weighed in: that of the ill job which it explains, or on which
        it shows an effect that wants a cause (a lesser fault beside a greater one)."""
        jobs = self.jobs_of(candidate) or [
            job
            for job in self._classes
            for hub in candidate.hubs
            if len(hub.true)
            and _fits(hub)
            and (not hub.standing or self._classes[job][0] == "slow_always")
            and self._look.inside(self._rules[hub.effect].entity, [job])[hub.true].any()
        ]
        return self._classes[jobs[0]][0] if jobs else "none"

    def _population(self, kind: str, row: int) -> int:
        """Return how many entities of a kind there are in the job of a row, or in all where it is in none."""
        job = self._look.joins.align(kind, "job")
        if job is None or job.way != "coarser" or job.rows[row] < 0:
            return max(self._look.size(kind), 1)
        return int((job.rows == job.rows[row]).sum())

    def _targets(self, candidate: Candidate) -> set[tuple[str, int]]:
        """Return the findings on which a candidate is weighed, or those of its jobs where none is between; none where
        all that it should bring about came long after it."""
        direct = {(hub.effect, int(row)) for hub in candidate.hubs for row in hub.true[:256] if _fits(hub)}
        if direct or any(hub.old for hub in candidate.hubs):
            return direct
        return {("", job) for job in self.jobs_of(candidate)}

    def gain(self, number: int, covered: Covered) -> float:
        """Return the log score of adding a candidate to what is covered already."""
        candidate = self.candidates[number]
        leak = max(candidate.rule.leak, 1e-9)
        return self._priors[number] - math.log(leak) + sum(self._weight(hub, covered) for hub in candidate.hubs)

    def _weight(self, hub: Hub, covered: Covered) -> float:
        """Return the log likelihood ratio of one hub: log(P(seen | cause) / P(seen | no cause)) by shares of members.

        With strength s and leak l a member that shows the effect weighs log((s + (1 - s) l) / l), one that does not
        log(1 - s).
        """
        if not len(hub.true) and self._standstill(hub):
            return 0.0
        leak, strength = self._leak(hub), min(hub.strength, 0.999)
        fresh = len(hub.true) if hub.effect not in covered else int((~np.isin(hub.true, covered[hub.effect])).sum())
        absent = hub.seen - len(hub.true)
        shown, silent = fresh / max(hub.seen, 1), absent / max(hub.seen, 1)
        if hub.any_member and len(hub.true):
            shown, silent = float(fresh > 0), 0.0
        observed = math.log((strength + (1 - strength) * leak) / leak)
        if not _fits(hub):
            observed = MISFIT
        if hub.late:
            observed += math.log(LATE)
        return shown * observed + silent * math.log(1 - strength)

    def _standstill(self, hub: Hub) -> bool:
        """Say whether an effect would be slowness where all ill jobs stand still: such a job is not slow besides."""
        slow = self._rules[hub.effect].symptom in ("slow_onset", "slow_always")
        return slow and bool(self._classes) and all(one in ("stalled", "crashed") for one, _ in self._classes.values())

    def _leak(self, hub: Hub) -> float:
        return min(max(self._rules[hub.effect].leak, 1e-6), 0.5)

    def rest(self, number: int, covered: Covered) -> float:
        """Return the log score of an unknown cause for what a candidate explains.

        It pays one prior, spread over the entities that could be as ill as those found; rules that could explain the
        same and cannot be checked there make it likelier.
        """
        candidate = self.candidates[number]
        hubs = [hub for hub in candidate.hubs if _fits(hub) and len(hub.true)]
        weights = [
            max(self._weight(hub._replace(strength=0.9, seen=len(hub.true), late=False), covered), 0.0) for hub in hubs
        ]
        share = UNKNOWN_PRIOR * (UNLISTED if self._symptom(candidate) == "none" else 1.0)
        if not hubs:
            return math.log(share)
        spread, hub = min(((self._spread(hub), hub) for hub in hubs), key=lambda one: one[0])
        rest = math.log(share * spread + self._unchecked(hub, candidate)) + sum(weights)
        return rest if self._symptom(candidate) != "none" else float(np.logaddexp(rest, 0.0))  # or nothing is wrong

    def _spread(self, hub: Hub) -> float:
        """Return the share of all entities that a hub's findings are: how well they say where to look."""
        return len(hub.true) / self._population(self._rules[hub.effect].entity, int(hub.true[0]))

    def _unchecked(self, hub: Hub, candidate: Candidate) -> float:
        """Return the prior mass of rules that lead to a hub's findings and could not be judged there."""
        mass = 0.0
        target = self._rules[hub.effect]
        symptom = self._symptom(candidate)
        for judged in self._graph.judged.values():
            rule = judged.rule
            edges = [effect for effect in self._graph.edges[rule.id] if effect.effect == hub.effect and effect.accuses]
            if rule.role != "root" or rule.id == candidate.rule.id:
                continue
            if not edges:  # what leads there through kinds that nobody sees
                reach = self._graph.reach(rule.id, hub.effect)
                mass += _share(rule, symptom) * reach * judged.unjudged
                continue
            rows = self._look.joins.members(target.entity, edges[0].via, rule.entity, int(hub.true[0]))
            dark = 0 if rows is None else int((judged.state[rows] == 0).sum())
            if dark and rows is not None:
                mass += _share(rule, symptom) * edges[0].strength * dark / self._population(rule.entity, int(rows[0]))
        return mass

    def cover(self) -> list[int]:
        """Choose candidates greedily, best first, while each beats an unknown cause and explains something new."""
        chosen: list[int] = []
        covered: Covered = {}
        gains = {number: self.gain(number, covered) for number in range(len(self.candidates)) if self._direct[number]}
        while gains:
            best = max(gains, key=lambda number: (gains[number], -number))
            gain = gains.pop(best)
            if not self._news(best, covered) or gain <= self.rest(best, covered):
                continue
            chosen.append(best)
            self._take(best, covered)
            for rival in self._rivals(best):
                if rival in gains:
                    gains[rival] = self.gain(rival, covered)
        return self._swapped(chosen)

    def _take(self, number: int, covered: Covered) -> None:
        for rule, rows in self.candidates[number].explained.items():
            covered[rule] = np.union1d(covered[rule], rows) if rule in covered else rows

    def _covered(self, chosen: Iterable[int]) -> Covered:
        """Return what causes explain together."""
        covered: Covered = {}
        for number in chosen:
            self._take(number, covered)
        return covered

    def _news(self, number: int, covered: Covered) -> bool:
        """Say whether a candidate explains a finding that wants a cause and has none yet."""
        explained = self.candidates[number].explained
        wanted = self._accusing | {rule for _, rules in self._classes.values() for rule in rules}
        direct = {rule: rows for rule, rows in explained.items() if rule in self._accusing} or explained
        return any(
            rule in wanted and (rule not in covered or bool((~np.isin(rows, covered[rule])).any()))
            for rule, rows in direct.items()
        )

    def _swapped(self, chosen: list[int]) -> list[int]:
        """Replace chosen causes by one that explains all of theirs, where the whole set scores better so."""
        for number in range(len(self.candidates)):
            if number in chosen or not self._direct[number]:
                continue
            beaten = [one for one in chosen if self._direct[one] <= self._direct[number]]
            if len(beaten) < 2:
                continue
            other = [one for one in chosen if one not in beaten] + [number]
            if self._total(other) > self._total(chosen):
                chosen = other
        return chosen

    def _total(self, chosen: Sequence[int]) -> float:
        covered: Covered = {}
        total = 0.0
        for number in chosen:
            total += self.gain(number, covered)
            self._take(number, covered)
        return total

    def _rivals(self, number: int) -> set[int]:
        """Return the candidates that explain some of the same findings."""
        return {rival for target in self._direct[number] for rival in self._sharers[target]} - {number}

    def _without(self, chosen: Sequence[int], number: int) -> Covered:
        """Return what the chosen causes cover without one of them."""
        covered: Covered = {}
        rivals = self._rivals(number)
        for one in chosen:
            if one != number and one in rivals:
                self._take(one, covered)
        return covered

    def standings(self, chosen: Sequence[int]) -> list[Standing]:
        """Give every candidate its posterior among those that explain the same, and `unknown`."""
        posts: dict[int, Standing] = {}
        for number in chosen:
            rivals = sorted(self._rivals(number) - set(chosen))
            shares = _softmax(self._scores(chosen, number))
            posts[number] = Standing(self.candidates[number], shares[0], True, None)
            for rival, share in zip(rivals, shares[1:-1], strict=True):
                if rival not in posts or posts[rival].probability < share:
                    posts[rival] = Standing(self.candidates[rival], share, False, self.candidates[number])
        covered = self._covered(chosen)
        for number, candidate in enumerate(self.candidates):
            if number not in posts:
                posts[number] = self._alone(number, candidate, covered)
        return list(posts.values())

    def _alone(self, number: int, candidate: Candidate, covered: Covered) -> Standing:
        """Weigh a candidate that shares nothing with a chosen one against those that explain the same, and against
        unknown, or being nothing."""
        others = [self.gain(rival, covered) for rival in self._rivals(number)]
        others.append(self.rest(number, covered) if self._direct[number] else 0.0)
        return Standing(candidate, _softmax([self.gain(number, covered), *others])[0], False, None)

    def unexplained(self, chosen: Sequence[int]) -> dict[str, Indices]:
        """Return the findings of symptoms that no chosen cause explains."""
        covered = self._covered(chosen)
        left = {}
        for name, judged in self._graph.judged.items():
            if judged.rule.role == "symptom":
                rows = judged.found()
                rows = rows[~np.isin(rows, covered.get(name, ()))]
                if len(rows):
                    left[name] = rows
        return left

    def doubts(self, chosen: Sequence[int], standings: Sequence[Standing]) -> dict[int, Doubt]:
        """Return for each ill job how likely it is that its symptom has a cause that is none of the candidates."""
        doubts = {job: Doubt(1.0, None) for job in self._classes}
        for standing in standings:
            if not standing.chosen:
                for job in self.jobs_of(standing.candidate):
                    doubts[job] = Doubt(min(doubts[job].probability, 1.0 - standing.probability), None)
        for number in chosen:
            share = _softmax(self._scores(chosen, number))[-1]
            finding = next(
                ((hub.effect, int(hub.true[0])) for hub in self.candidates[number].hubs if len(hub.true)), None
            )
            for job in self.jobs_of(self.candidates[number]):
                doubts[job] = min(doubts[job], Doubt(share, finding), key=lambda doubt: doubt.probability)
        return doubts

    def _scores(self, chosen: Sequence[int], number: int) -> list[float]:
        """Return the scores of a chosen candidate, of its rivals in order, and of an unknown cause."""
        covered = self._without(chosen, number)
        rivals = sorted(self._rivals(number) - set(chosen))
        return [
            self.gain(number, covered),
            *(self.gain(rival, covered) for rival in rivals),
            self.rest(number, covered),
        ]


def _share(rule: Rule, symptom: Symptom) -> float:
    """Return the share of the jobs with a symptom that a rule starts."""
    return rule.prior.get(symptom, min(rule.prior.values(), default=0.0) * UNLISTED)


def _fits(hub: Hub) -> bool:
    """Say whether a hub's size fits its cause, or cannot be told, and the cause was not there long before it."""
    return not (hub.share < ENOUGH or hub.old)


def _softmax(scores: Sequence[float]) -> list[float]:
    """Return the shares of exp(scores).

    >>> [round(share, 3) for share in _softmax([0.0, math.log(3.0)])]
    [0.25, 0.75]
    """
    top = max(scores)
    powers = [math.exp(score - top) for score in scores]
    return [power / sum(powers) for power in powers]
