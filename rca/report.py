"""From verdict to report: findings, chains, numbers and reasons, in words and in the fields of `rca.report/v1`."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from rca.detectors import Detector, leaves
from rca.evaluate import Judgement, Look, median
from rca.evidence import Numbers
from rca.graph import ENOUGH, Candidate, Graph, Step, measured
from rca.infer import Doubt, Standing, Verdict
from rca.library import Rule
from rca.model import (
    LAYERS,
    Action,
    Cause,
    EntityRef,
    Evidence,
    FindingRef,
    Impact,
    JobSymptom,
    Link,
    NotAffected,
    NotChecked,
    Rejected,
)
from rca.peers import Indices
from rca.plain import lowered, percent, quantity, stamp
from rca.unchecked import Unchecked, unchecked

LISTED = 0.05
"""Candidates of at least this probability are causes; what is below is rejected."""
LIKELY = 0.5
"""Causes of at least this probability that explain a job's trouble come first."""
_SLOW = ("slow_onset", "slow_always")


class Writer:
    """Writes the parts of one report."""

    def __init__(self, graph: Graph, verdict: Verdict) -> None:
        self._graph = graph
        self._look: Look = graph.look
        self._verdict = verdict
        self._rules = graph.look.library.rules
        self._numbers = Numbers(graph)

    # -- entities and times

    def entity(self, kind: str, row: int) -> EntityRef:
        """Name a row of a table."""
        return self._look.snapshot.tables[kind].entity(row)

    def since(self, rule: str, rows: Indices) -> str:
        """Return when the first of some findings began."""
        first = int(self._graph.judged[rule].first[rows].min())
        return stamp(float(self._look.snapshot.times[first]))

    def job(self, row: int) -> str:
        """Return the name of a job."""
        return str(self._look.snapshot.tables["job"].columns["job"][row])

    def _group(self, rule: str, rows: Indices) -> EntityRef:
        """Name a finding's entity, or the job of many."""
        kind = self._rules[rule].entity
        jobs = self._look.joins.align(kind, "job")
        if len(rows) == 1 or jobs is None or jobs.way != "coarser":
            return self.entity(kind, int(rows[0]))
        job = int(jobs.rows[rows[0]])
        return self.entity("job", job) if job >= 0 else self.entity(kind, int(rows[0]))

    # -- causes

    def causes(self) -> list[Cause]:
        """Return every candidate of some probability, and the unknown ones, best first.

        A fault that is there and explains no job's trouble comes after what is likely to explain one.
        """
        listed = [one for one in self._verdict.standings if one.probability >= LISTED]
        named = [self._cause(standing) for standing in listed] + self._unknown()
        return sorted(
            named,
            key=lambda one: (one.standing or one.probability < LIKELY, -one.probability, one.cause, str(one.entity)),
        )

    def _cause(self, standing: Standing) -> Cause:
        candidate = standing.candidate
        rule = candidate.rule
        jobs, troubled = self._jobs(candidate), self._troubled(candidate)
        entity, members = self._narrowed(candidate)
        action = rule.action
        return Cause(
            cause=rule.id,
            layer=rule.layer,
            entity=entity,
            jobs=[self.job(job) for job in jobs],
            probability=_rounded(standing.probability),
            since=self.since(rule.id, candidate.rows),
            summary=rule.summary,
            chain=self._chain(candidate),
            evidence=self._proof(candidate),
            explains=sum(len(rows) for rows in candidate.explained.values()),
            impact=self._impact(troubled),
            action=Action(action.do, action.text) if action else Action("investigate", rule.summary),
            runbook=rule.runbook,
            members=members,
            standing=not troubled,
        )

    def _troubled(self, candidate: Candidate) -> list[int]:
        """Return the ill jobs whose symptom a candidate explains, as rows."""
        return [
            job
            for job, (_, rules) in self._verdict.classes.items()
            if any(job in candidate.explained.get(rule, ()) for rule in rules)
        ]

    def _jobs(self, candidate: Candidate) -> list[int]:
        explained = self._troubled(candidate)
        align = self._look.joins.align(candidate.rule.entity, "job")
        if explained or align is None or align.way != "coarser" or align.rows[candidate.row] < 0:
            return explained
        return [int(align.rows[candidate.row])]

    def _narrowed(self, candidate: Candidate) -> tuple[EntityRef, list[EntityRef]]:
        """Name the one member that fits the rule's `narrow`, or the entity with its members."""
        rule = candidate.rule
        whole = self.entity(candidate.kind, candidate.place)
        if rule.narrow is None:
            several = len(candidate.rows) > 1
            return whole, [self.entity(rule.entity, int(row)) for row in candidate.rows] if several else []
        kind = self._look.library.signals[next(leaves(rule.narrow)).signal].entity
        align = self._look.joins.align(rule.entity, kind)
        if align is None or align.way != "finer":
            return whole, []
        rows = np.flatnonzero(align.rows == candidate.row)
        fits = self._look.judge(_as_rule(rule, kind)).state[rows] == 1
        chosen = rows[fits] if fits.sum() == 1 else rows
        members = [self.entity(kind, int(row)) for row in rows]
        return (self.entity(kind, int(chosen[0])) if len(chosen) == 1 else whole), (members if len(rows) > 1 else [])

    def _impact(self, jobs: Sequence[int]) -> Impact:
        ranks = self._look.joins.align("job", "rank")
        count = 0 if ranks is None or ranks.way != "finer" else int(np.isin(ranks.rows, list(jobs)).sum())
        slow = [symptom.slowdown for symptom in self.symptoms(jobs) if symptom.slowdown is not None]
        return Impact(count, max(slow, default=None))

    def _chain(self, candidate: Candidate) -> list[Link]:
        """Tell the story from the cause on, layer by layer."""
        rule, rows = candidate.rule, candidate.rows
        whole = self.entity(candidate.kind, candidate.place)
        text = self._numbers.sentence(rule.id, rows)
        first = Link(rule.id, rule.layer, whole, self.since(rule.id, rows), text, len(rows), len(rows))
        return [first, *(self._link(step) for step in _ordered(candidate.steps, self._rules))]

    def _link(self, step: Step) -> Link:
        layer = self._rules[step.effect].layer
        since, text = self.since(step.effect, step.rows), self._numbers.sentence(step.effect, step.rows)
        entity, kind = self._group(step.effect, step.rows), self._rules[step.effect].entity
        return Link(step.effect, layer, entity, since, text, len(step.rows), step.of, kind, step.origin)

    def _proof(self, candidate: Candidate) -> list[Evidence]:
        """Return the numbers of the cause, then those of each step of its chain."""
        proof = list(self._numbers.evidence(candidate.rule.id, candidate.row))
        for step in _ordered(candidate.steps, self._rules):
            proof += self._numbers.evidence(step.effect, self._numbers.typical(step.effect, step.rows))[:1]
        unique: dict[tuple[str, str], Evidence] = {}
        for one in proof:
            unique.setdefault((one.signal, one.query), one)
        return list(unique.values())

    def _unknown(self) -> list[Cause]:
        """Return an entry for each ill job that has a cause which cannot be told."""
        doubts = self._verdict.doubts
        return [self._untold(job, doubt) for job, doubt in doubts.items() if doubt.probability >= LISTED]

    def _untold(self, job: int, doubt: Doubt) -> Cause:
        """Name the entity that is ill for a reason that cannot be told: the largest finding without a cause."""
        left = next(iter(self.suspects(job)), (self._verdict.classes[job][1][0], np.array([job])))
        rule, rows = left if doubt.finding is None else (doubt.finding[0], np.array([doubt.finding[1]]))
        row = int(rows[0])
        entity = self.entity(self._rules[rule].entity, row)
        links = [
            Link(
                rule,
                self._rules[rule].layer,
                entity,
                self.since(rule, rows[:1]),
                self._numbers.sentence(rule, rows[:1]),
            )
        ]
        text = f"Something that cannot be told from what was seen: {self._numbers.sentence(rule, rows[:1])}"
        action = Action("investigate", "Enable what could not be checked, then look at the entity named.")
        return Cause(
            cause="unknown", layer=self._rules[rule].layer, entity=entity, jobs=[self.job(job)],
            probability=_rounded(doubt.probability), since=self.since(rule, rows[:1]), summary=text, chain=links,
            evidence=self._numbers.evidence(rule, row), explains=0, impact=self._impact([job]), action=action, runbook="",
        )  # fmt: skip

    def suspects(self, job: int) -> list[tuple[str, Indices]]:
        """Return the findings of a job that want a cause and have none: the largest row of each rule first."""
        found = []
        for rule, rows in sorted(self._verdict.unexplained.items()):
            align = self._look.joins.align(self._rules[rule].entity, "job")
            if (
                self._rules[rule].symptom
                or align is None
                or align.way != "coarser"
                or rule not in self._verdict.accusing
            ):
                continue
            inside = rows[align.rows[rows] == job][:64]
            if self._verdict.classes[job][0] != "slow_always":
                inside = self._graph.fresh(rule, inside)
            doses = [(self._graph.dose(rule, int(row)), int(row)) for row in inside]
            sized = sorted(((-dose.relative, row) for dose, row in doses if dose is not None))
            if sized:
                found.append((sized[0][0], rule, np.array([row for _, row in sized])))
        return [(rule, rows) for _, rule, rows in sorted(found, key=lambda one: (one[0], one[1]))]

    # -- the rest of the report

    def symptoms(self, jobs: Sequence[int]) -> list[JobSymptom]:
        """Return what ails each job."""
        return [self._symptom(job) for job in jobs]

    def _symptom(self, job: int) -> JobSymptom:
        if job not in self._verdict.classes:
            return JobSymptom(self.job(job), "none")
        symptom, rules = self._verdict.classes[job]
        slowdown = self._slowdown(job, rules) if symptom in _SLOW else None
        return JobSymptom(self.job(job), symptom, self.since(rules[0], np.array([job])), slowdown)

    def _slowdown(self, job: int, rules: Sequence[str]) -> float | None:
        """Return how many times as long a step takes: against before, or against the time without the wait."""
        step = self._look.values("job_step_seconds", "job")
        columns = self._graph.judged[rules[0]]
        level = math.nan if step is None else median(step[job, int(columns.first[job]) :])
        for rule in rules:
            dose = self._graph.dose(rule, job)
            if dose is not None and dose.unit == "seconds" and level > dose.absolute:
                return float(f"{level / (level - dose.absolute):.4g}")
            if dose is not None and math.isfinite(dose.relative):
                return float(f"{math.exp(dose.relative):.4g}")
        return None

    def findings(self) -> list[FindingRef]:
        """Return every finding; many of one rule in one job are one entry with the number of its members."""
        return [ref for judged in self._graph.judged.values() for ref in self._refs(judged, judged.found())]

    def unexplained(self) -> list[FindingRef]:
        """Return the findings of symptoms that no chosen cause explains."""
        left = self._verdict.unexplained
        return [ref for rule, rows in sorted(left.items()) for ref in self._refs(self._graph.judged[rule], rows)]

    def _refs(self, judged: Judgement, rows: Indices) -> list[FindingRef]:
        rule = judged.rule
        align = self._look.joins.align(rule.entity, "job")
        job = np.zeros(len(rows)) if align is None or align.way != "coarser" else align.rows[rows]
        parts = [rows[job == one] for one in np.unique(job)]
        split = [
            part for rows in parts for part in ([rows] if len(rows) > 8 else [rows[[at]] for at in range(len(rows))])
        ]
        return [
            FindingRef(
                rule.id,
                rule.layer,
                rule.role,
                self._group(rule.id, part),
                self.since(rule.id, part),
                self._numbers.sentence(rule.id, part),
                len(part),
            )
            for part in split
        ]

    def not_affected(self, jobs: Sequence[int]) -> list[NotAffected]:
        """Return the symptoms of ill jobs that were seen to be absent; how far a job gets is told by its own symptom."""
        absent = []
        for judged in self._graph.judged.values():
            rule = judged.rule
            if rule.role != "symptom" or rule.entity != "job" or rule.symptom not in (None, "numeric"):
                continue
            absent += [
                self._absent(rule, job) for job in jobs if job in self._verdict.classes and judged.state[job] == -1
            ]
        return absent

    def _absent(self, rule: Rule, job: int) -> NotAffected:
        signal = self._look.library.signals[measured(rule)]
        values = self._look.values(measured(rule), "job")
        seen = "" if values is None else f", {_trend(values[job], signal.unit)}"
        return NotAffected(rule.id, self.entity("job", job), f"{lowered(signal.summary)}{seen}")

    def rejected(self) -> list[Rejected]:
        """Return the causes that lost, each with the reason: the look-alikes of the chosen ones, then candidates."""
        lost = [one for one in self._verdict.standings if one.probability < LISTED or not one.chosen]
        named = [
            Rejected(one.candidate.rule.id, self._narrowed(one.candidate)[0], self._why(one), one.candidate.rule.layer)
            for one in lost
        ]
        return self._lookalikes() + named

    def _why(self, standing: Standing) -> str:
        candidate = standing.candidate
        for hub in candidate.hubs:
            effect = lowered(self._rules[hub.effect].summary)
            if hub.old:
                return f"was there already when what it should bring about was not ({hub.effect}: {effect})"
            if hub.share < ENOUGH:
                return f"accounts for only {percent(hub.share)} of what it should explain ({hub.effect}: {effect})"
            if hub.seen and not len(hub.true):
                return f"what it should bring about is absent: {hub.effect}, 0 of {hub.seen} ({effect})"
        if standing.rival is not None:
            rival = standing.rival
            return (
                f"{rival.rule.id} on {self._narrowed(rival)[0]} explains the same better"
                f" ({percent(standing.probability)} for this one)"
            )
        if not candidate.explained:
            return "explains nothing of what was found"
        return f"too unlikely ({percent(standing.probability)})"

    def _lookalikes(self) -> list[Rejected]:
        """Say of the causes that look like a chosen one which number speaks against them on the same entity."""
        found: dict[tuple[str, str], Rejected] = {}
        for standing in self._verdict.standings:
            if not standing.chosen or standing.probability < 0.5:
                continue
            for name in standing.candidate.rule.confused_with:
                rejected = self._lookalike(standing.candidate, name)
                if rejected is not None:
                    found.setdefault((name, str(rejected.entity)), rejected)
        return list(found.values())

    def _lookalike(self, candidate: Candidate, name: str) -> Rejected | None:
        rule = self._rules.get(name)
        row = None if rule is None else self._counterpart(candidate, rule)
        if rule is None or row is None or self._graph.judged[name].state[row] != -1:
            return None
        against = next(self._look.readings(self._graph.judged[name], row, -1), None)
        if against is None:
            return None
        why = f"{_sense(against.leaf, against.denied)}: {self._numbers.shown(against).text}"
        return Rejected(name, self.entity(rule.entity, row), why, rule.layer)

    def _counterpart(self, candidate: Candidate, rule: Rule) -> int | None:
        """Return the entity on which a rule would have to hold instead: the candidate's own, or one that it touches."""
        align = self._look.joins.align(candidate.rule.entity, rule.entity)
        if align is None:
            return None
        if align.way == "coarser":
            return int(align.rows[candidate.row]) if align.rows[candidate.row] >= 0 else None
        members = np.flatnonzero(align.rows == candidate.row)
        touched = [rows for name, rows in candidate.explained.items() if self._rules[name].entity == rule.entity]
        hit = members[np.isin(members, np.concatenate(touched))] if touched else members
        return int(hit[0]) if len(hit) else int(members[0]) if len(members) else None

    def not_checked(self) -> list[NotChecked]:
        """Return the root rules that could be judged on no entity, and suspects on which one could not be judged."""
        return [self._unchecked(one) for one in unchecked(self._graph, self._verdict)]

    def _unchecked(self, one: Unchecked) -> NotChecked:
        lines = dict.fromkeys(self._look.library.signals[name].enable for name in one.lacks)
        entity = self._group(one.rule.id, one.rows) if len(one.rows) else None
        enable = "; ".join(line for line in lines if line)
        return NotChecked(one.rule.id, list(one.lacks), enable, entity, len(one.rows))


def _sense(leaf: Detector, denied: bool) -> str:
    """Say in words that a condition does not hold, or that it does and should not."""
    looked_for = str(leaf.__struct_config__.tag).replace("_", " ")
    return f"{leaf.signal} is {'' if denied else 'not '}{looked_for}"


def _as_rule(rule: Rule, kind: str) -> Rule:
    """Return a rule's `narrow` as a rule on the finer kind."""
    assert rule.narrow is not None
    return msgspec.structs.replace(rule, entity=kind, when=rule.narrow, narrow=None, only={})


def _ordered(steps: Sequence[Step], rules: dict[str, Rule]) -> list[Step]:
    """Join the accusing steps to one rule and sort them by layer, in the order of the walk inside one."""
    joined: dict[str, Step] = {}
    for step in steps:
        if step.accuses:
            old = joined.get(step.effect, step)
            rows = np.union1d(old.rows, step.rows)
            joined[step.effect] = step._replace(rows=rows, of=max(step.of, old.of, len(rows)))
    return sorted(joined.values(), key=lambda step: LAYERS.index(rules[step.effect].layer))


def _trend(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], unit: str) -> str:
    known = values[~np.isnan(values)]
    if not len(known):
        return "not seen"
    quarter = max(len(known) // 4, 1)
    return (
        f"from {quantity(median(known[:quarter]), unit)} to {quantity(median(known[-quarter:]), unit)} over the window"
    )


def _rounded(probability: float) -> float:
    return round(min(probability, 0.999), 3)
