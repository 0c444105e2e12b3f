"""Rules on a snapshot: which rule holds on which entity, since when, and what the numbers were."""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rca.detectors import (
    AbovePeers,
    All,
    Any,
    BelowPeers,
    Condition,
    Correlated,
    Leaf,
    Missing,
    Not,
    Number,
    Score,
    Set,
    Unless,
    Unlike,
    View,
    leaves,
    named,
    number,
)
from rca.library import BUSY, PHASES, PROGRESS, Library, Override, Rule, seconds
from rca.model import Floats, Measurement, Snapshot
from rca.peers import Cohort, Indices
from rca.relations import Joins, gather, tally
from rca.rows import HELD, States, carried, eroded, hold

HARDWARE = ("physical", "resource")
"""Layers whose root rules hold whatever the job is doing, unless they say otherwise."""
ANY_PHASE = ("any",)
TRAINING = "train"
"""The phase in which a baseline is taken."""
IDLE = 5.0
"""A GPU of which the driver reports less than this, in percent, runs nothing."""
LEAD = 300.0
"""So many seconds before a job's last step may lie what has stopped it."""
RECENT = 240.0
"""A finding is active while it held within so many seconds; the same for every rule, so that a chain ends together."""


class Reading(NamedTuple):
    """What a leaf condition read on one entity against what was expected, over the time of its finding.

    `row` is that of `kind`, where the signal was judged; `denied` marks a condition under `not`.
    """

    leaf: Leaf
    value: float
    expected: float
    row: int
    kind: str
    denied: bool


@dataclass(frozen=True, eq=False)
class Judgement:
    """A rule on all entities of its kind: `state` (n,) is 1 where it holds, -1 where it was seen not to, else 0;
    `first` (n,) is the column where the finding begins, for rows that hold; `recent` (n,) where it last held.
    """

    rule: Rule
    state: States
    first: Indices
    recent: Indices

    def found(self) -> Indices:
        """Return the rows on which the rule holds."""
        return np.flatnonzero(self.state == 1)

    @functools.cached_property
    def unjudged(self) -> float:
        """Return the share of rows on which nothing is known of the rule, 1 where there is no row."""
        return float((self.state == 0).mean()) if len(self.state) else 1.0


class Look:
    """One snapshot under one library; every leaf is scored once, whatever number of rules asks for it."""

    def __init__(self, library: Library, snapshot: Snapshot) -> None:
        self.library = library
        self.snapshot = snapshot
        self.joins = Joins(library.entities, snapshot.tables)
        self._counts: dict[tuple[Leaf, str], States] = {}
        self._read: dict[tuple[str, str], Floats | None] = {}
        self._scores: dict[tuple[Leaf, str], tuple[Score, View] | None] = {}
        self._views: dict[tuple[object, ...], View | None] = {}
        states = library.signals[PHASES].codes if PHASES in library.signals else None
        self._codes = (TRAINING,) if states is None else states.values
        self._phases = _phases(self)
        self._stood = _stood(snapshot)

    def size(self, kind: str) -> int:
        """Return how many entities of a kind there are."""
        table = self.snapshot.tables.get(kind)
        return 0 if table is None else len(table)

    def told(self, job: int) -> bool:
        """Say whether a job (row) tells of its phase, or is known to do nothing as its GPUs are idle."""
        phases, used = self._phases.get("window"), self.snapshot.measurements.get(BUSY)
        if phases is not None and bool(np.isfinite(phases[job]).any()):
            return True
        align = None if used is None else self.joins.align("job", self.library.signals[BUSY].entity)
        if used is None or align is None or align.way != "finer":
            return False
        values = used.window[align.rows == job]
        return bool(np.isfinite(values).any() and np.nanmax(values) < IDLE)

    def inside(self, kind: str, jobs: Sequence[int]) -> NDArray[np.bool_]:
        """Say which entities of a kind belong to these jobs (rows), by their job or by a rank that runs on them."""
        align, ranks, job_of = (self.joins.align(*pair) for pair in ((kind, "job"), (kind, "rank"), ("rank", "job")))
        if align is None or align.way != "coarser":
            return np.ones(self.size(kind), dtype=bool)
        inside = np.isin(align.rows, list(jobs))
        if ranks is not None and ranks.way == "finer" and job_of is not None:
            hosts = ranks.rows[np.isin(job_of.rows, list(jobs))]
            inside[hosts[hosts >= 0]] = True
        return inside

    def judge(self, rule: Rule) -> Judgement:
        """Judge a rule on all entities of its kind, overrides of the deployment included."""
        judgement = self._judged(rule)
        for override in self.library.overrides:
            if override.rule == rule.id:
                judgement = self._overridden(judgement, override)
        return self._only(judgement)

    def _judged(self, rule: Rule) -> Judgement:
        state = np.broadcast_to(self.states(rule.when, rule.entity), (self.size(rule.entity), len(self.snapshot.times)))
        length, recent = (round(time / self.snapshot.step) for time in (seconds(rule.hold), RECENT))
        found, first, last = hold(self._in_phase(state, rule), length, max(recent, 2))
        return Judgement(rule, np.where(self._excluded(rule, length), -1, found).astype(np.int8), first, last)

    def _excluded(self, rule: Rule, columns: int) -> NDArray[np.bool_]:
        """Say which rows are known by now to be something else: a finding does not outlive that."""
        excluded = np.zeros(self.size(rule.entity), dtype=bool)
        for part in rule.when.of if isinstance(rule.when, All) else ():
            if isinstance(part, Unless):
                lately = self.states(part.of, rule.entity)[:, -columns:]
                true = np.count_nonzero(lately == 1, axis=1)
                excluded |= (true > 0) & (true >= HELD * np.count_nonzero(lately, axis=1))
        return excluded

    def _only(self, judgement: Judgement) -> Judgement:
        """Leave a rule to the entities that its `only` names."""
        table = self.snapshot.tables.get(judgement.rule.entity)
        if table is None or not judgement.rule.only:
            return judgement
        fits = _matching(table.columns, judgement.rule.only, len(table))
        return Judgement(
            judgement.rule, np.where(fits, judgement.state, -1).astype(np.int8), judgement.first, judgement.recent
        )

    def _overridden(self, judgement: Judgement, override: Override) -> Judgement:
        table = self.snapshot.tables.get(judgement.rule.entity)
        if table is None:
            return judgement
        fits = _matching(table.columns, override.match, len(table))
        changed = self._judged(override.apply(judgement.rule))
        return Judgement(
            judgement.rule,
            np.where(fits, changed.state, judgement.state).astype(np.int8),
            np.where(fits, changed.first, judgement.first),
            np.where(fits, changed.recent, judgement.recent),
        )

    def states(self, condition: Condition, kind: str) -> States:
        """Return the three-valued state (n, T) of a condition, or (n, 1) where it does not change."""
        if isinstance(condition, All | Any):
            combine = np.minimum if isinstance(condition, All) else np.maximum
            return functools.reduce(combine, [self.states(part, kind) for part in condition.of])
        if isinstance(condition, Not):
            return -self.states(condition.of, kind)
        if isinstance(condition, Unless):
            return _unless(self.states(condition.of, kind))
        return self._leaf(condition, kind)

    def _leaf(self, leaf: Leaf, kind: str) -> States:
        """Score a leaf on the kind where its signal lives, and bring the answer to `kind`."""
        place = self._place(leaf, kind)
        scored = self.score(leaf, kind)
        if place is None or scored is None:
            return np.zeros((self.size(kind), 1), np.int8)
        on, index, reduced = place
        state = scored[0].state
        if reduced:
            return state
        if leaf.reduce == "count":
            counted = self._counts.get((leaf, kind))
            if counted is None:
                counted = self._counts[leaf, kind] = _counted(state, index, self.size(kind), leaf.at_least)
            return counted
        if on == kind:
            return state
        spread = state[index]
        spread[index < 0] = 0
        return spread

    def _place(self, leaf: Leaf, kind: str) -> tuple[str, Indices, bool] | None:
        """Return the kind that a leaf is scored on, the index between it and `kind`, and whether values are reduced
        to `kind` before.
        """
        signal = self.library.signals.get(leaf.signal)
        alignment = None if signal is None else self.joins.align(kind, signal.entity)
        if signal is None or alignment is None:
            return None
        if alignment.way == "coarser":
            return signal.entity, alignment.rows, False
        reduced = leaf.reduce != "count"
        return (kind if reduced else signal.entity), alignment.rows, reduced

    def score(self, leaf: Leaf, kind: str) -> tuple[Score, View] | None:
        """Score a leaf for rules on `kind`; None where its signal was not measured."""
        place = self._place(leaf, kind)
        if place is None:
            return None
        on, index, reduced = place
        key = (leaf, on)
        if key not in self._scores:
            view = self._shared(leaf, on, index if reduced else None)
            self._scores[key] = None if view is None else (leaf.score(view), view)
        return self._scores[key]

    def _shared(self, leaf: Leaf, on: str, index: Indices | None) -> View | None:
        """Return the view of a leaf; leaves that differ in their margins alone share one."""
        reduce = None if index is None else leaf.reduce
        key = (leaf.signal, on, reduce, getattr(leaf, "peers", ()), getattr(leaf, "load", None), named(leaf))
        if key not in self._views:
            self._views[key] = self._view(leaf, on, index)
        return self._views[key]

    def _view(self, leaf: Leaf, on: str, index: Indices | None) -> View | None:
        measured = self.snapshot.measurements.get(leaf.signal)
        others = {name: self.values(name, on) for name in named(leaf) - {leaf.signal}}
        if measured is None or not self.size(on) or any(other is None for other in others.values()):
            return None
        values, before = measured.window, measured.before
        if index is not None:
            by = leaf.reduce or "max"
            values = gather(values, index, self.size(on), by)
            before = None if before is None else gather(before, index, self.size(on), by)
        load = getattr(leaf, "load", None)
        loads = {} if load is None else {load: self.values(load, on)}
        return View(
            values=values,
            before=self._past_in_phase(before, on),
            step=self.snapshot.step,
            interval=measured.interval,
            cohort=self._cohort(leaf, on),
            others={name: value for name, value in {**others, **loads}.items() if value is not None},
            bits=self.library.signals[leaf.signal].bits,
            since=self._since(on),
        )

    def values(self, signal: str, kind: str) -> Floats | None:
        """Return a signal on the rows of `kind`, read from its own or a coarser kind."""
        if (signal, kind) not in self._read:
            self._read[signal, kind] = self._values(signal, kind)
        return self._read[signal, kind]

    def _values(self, signal: str, kind: str) -> Floats | None:
        measured = self.snapshot.measurements.get(signal)
        alignment = self.joins.align(kind, self.library.signals[signal].entity)
        if measured is None or alignment is None or alignment.way != "coarser":
            return None
        rows = measured.window[np.maximum(alignment.rows, 0)] if len(measured.window) else None
        return None if rows is None else np.where((alignment.rows >= 0)[:, None], rows, np.nan)

    def _cohort(self, leaf: Leaf, on: str) -> Cohort | None:
        if not isinstance(leaf, AbovePeers | BelowPeers | Missing | Correlated | Set | Unlike) or not leaf.peers:
            return None
        groups = self.joins.groups
        return Cohort(groups(on, leaf.peers), groups(on, ("job",)), groups(on, ("job", "dp")))

    def _since(self, on: str) -> Indices | None:
        """Return how many columns before the window belong to the incident of each row's job; None where none do."""
        job = None if self._stood is None or not self._stood.any() else self.joins.align(on, "job")
        if self._stood is None or job is None or job.way != "coarser":
            return None
        return np.where(job.rows >= 0, self._stood[np.maximum(job.rows, 0)], 0)

    def _in_phase(self, state: States, rule: Rule) -> States:
        """Make unknown what happened while the job was doing something else."""
        phases = self._phases.get("window")
        job = self.joins.align(rule.entity, "job")
        names = rule.phases or (ANY_PHASE if rule.role == "root" and rule.layer in HARDWARE else (TRAINING,))
        if phases is None or job is None or job.way != "coarser" or names == ANY_PHASE:
            return state
        measured = [
            self.snapshot.measurements[leaf.signal]
            for leaf in leaves(rule.when)
            if leaf.signal in self.snapshot.measurements
        ]
        smear = round(max((one.smoothing for one in measured), default=0.0) / self.snapshot.step)
        wanted = [self._codes.index(phase) for phase in names if phase in self._codes]
        fits = eroded(np.isin(phases, wanted) | np.isnan(phases), smear)
        if fits.all():
            return state
        rows = np.where((job.rows >= 0)[:, None], fits[np.maximum(job.rows, 0)], True)
        return np.where(rows, state, 0).astype(np.int8)

    def _past_in_phase(self, before: Floats | None, on: str) -> Floats | None:
        """Leave out of the baseline what was not training."""
        phases = self._phases.get("before")
        job = self.joins.align(on, "job")
        if before is None or phases is None or job is None or job.way != "coarser":
            return before
        training = np.isin(phases, [self._codes.index(TRAINING)]) | np.isnan(phases)
        if training.all() or phases.shape[1] != before.shape[1]:
            return before
        rows = np.where((job.rows >= 0)[:, None], training[np.maximum(job.rows, 0)], True)
        return np.where(rows, before, np.nan)

    def readings(self, judgement: Judgement, row: int, wanted: int = 1) -> Iterator[Reading]:
        """Yield what the conditions read that make a rule true (`wanted` 1) or false (-1) on one entity."""
        kind = judgement.rule.entity
        columns = slice(int(judgement.first[row]), int(judgement.recent[row]) + 1)
        for leaf, denied in self._deciding(judgement.rule.when, (kind, row, columns), wanted, denied=False):
            place, scored = self._place(leaf, kind), self.score(leaf, kind)
            if place is not None and scored is not None:
                at = _row_of(leaf, row, place, scored[0].state[:, columns])
                if at is not None:
                    yield _reading(leaf, (place[0], at, columns), scored, denied)

    def _deciding(
        self, condition: Condition, place: tuple[str, int, slice], wanted: int, *, denied: bool
    ) -> Iterator[tuple[Leaf, bool]]:
        """Yield the leaves that decide a condition, and whether they stand under `not`."""
        if isinstance(condition, Not | Unless):
            if self._said(condition.of, place) == -wanted:
                yield from self._deciding(condition.of, place, -wanted, denied=not denied)
        elif isinstance(condition, All | Any):
            for part in condition.of:
                if self._said(part, place) == wanted:
                    yield from self._deciding(part, place, wanted, denied=denied)
        else:
            yield condition, denied

    def _said(self, condition: Condition, place: tuple[str, int, slice]) -> int:
        """Return what a condition says on the whole of a stretch of columns."""
        state = self._stretch(condition, place)
        true, false = int((state == 1).sum()), int((state == -1).sum())
        return 0 if true == false == 0 else 1 if true >= false else -1

    def _stretch(self, condition: Condition, place: tuple[str, int, slice]) -> States:
        """Return the state of a condition on one entity over some columns, as `states` has it for all."""
        if isinstance(condition, Not):
            return -self._stretch(condition.of, place)
        if isinstance(condition, Unless):
            return _unless(self._stretch(condition.of, place))
        if isinstance(condition, All | Any):
            combine = np.minimum if isinstance(condition, All) else np.maximum
            return np.asarray(functools.reduce(combine, [self._stretch(part, place) for part in condition.of]))
        kind, row, columns = place
        where, scored = self._place(condition, kind), self.score(condition, kind)
        if where is None or scored is None:
            return np.zeros(1, np.int8)
        _, index, reduced = where
        state = scored[0].state if scored[0].state.shape[1] == 1 else scored[0].state[:, columns]
        if reduced:
            return np.asarray(state[row])
        if condition.reduce == "count":
            members = np.flatnonzero(index == row)
            return np.asarray(_counted(state[members], np.zeros(len(members), np.int64), 1, condition.at_least)[0])
        return np.asarray(state[index[row]]) if index[row] >= 0 else np.zeros(1, np.int8)


def _row_of(leaf: Leaf, row: int, place: tuple[str, Indices, bool], state: States) -> int | None:
    """Return the row that a leaf was scored on for one entity: itself, or the member that shows it most."""
    _, index, reduced = place
    if reduced:
        return row
    if leaf.reduce == "count":
        members = np.flatnonzero(index == row)
        return int(members[np.argmax(state[members].sum(axis=1))]) if len(members) else None
    return int(index[row]) if index[row] >= 0 else None


def _reading(leaf: Leaf, place: tuple[str, int, slice], scored: tuple[Score, View], denied: bool) -> Reading:
    score, view = scored
    kind, row, columns = place
    group = int(score.index[row])
    expected = score.expected[group] if group >= 0 and len(score.expected) else np.array([np.nan])
    if len(expected) > 1:
        expected = expected[columns]
    values = view.values[row, columns]
    if isinstance(leaf, Missing):
        values = carried(view.values[row : row + 1, : columns.stop])[:, -1]
    if isinstance(leaf, Unlike):
        return Reading(leaf, _last(values), _last(expected), row, kind, denied)
    value = _masks(values) if isinstance(leaf, Set) else median(values)
    return Reading(leaf, value, median(expected), row, kind, denied)


def _masks(values: Floats) -> float:
    """Return all bits that were ever set, NaN where nothing is known."""
    known = values[~np.isnan(values)].astype(np.int64)
    return float(np.bitwise_or.reduce(known)) if len(known) else float("nan")


def _last(values: Floats) -> float:
    """Return the last that is known, NaN where nothing is."""
    known = values[~np.isnan(values)]
    return float(known[-1]) if len(known) else float("nan")


def median(values: Floats) -> float:
    """Return the median of what is known, NaN where nothing is."""
    ordered = np.sort(values)
    count = int(np.searchsorted(ordered, np.inf, side="right"))
    return float(ordered[(count - 1) // 2] + ordered[count // 2]) / 2.0 if count else float("nan")


def _unless(state: States) -> States:
    """Return what is not known to be true.

    >>> _unless(np.array([1, 0, -1], dtype=np.int8))
    array([-1,  1,  1], dtype=int8)
    """
    return np.asarray(1 - 2 * (state == 1).view(np.int8))


def _counted(state: States, index: Indices, count: int, at_least: Number) -> States:
    """Say of each group whether enough of its visible members fulfil a condition."""
    true, seen = tally(state == 1, index, count), tally(state != 0, index, count)
    share = isinstance(at_least, str) and at_least.strip().endswith("%")
    wanted = number(at_least) or 0.0
    enough = true >= np.maximum(wanted * seen, 1e-9) if share else true >= wanted
    return np.where(seen > 0, np.where(enough, 1, -1), 0).astype(np.int8)


def _matching(columns: Mapping[str, NDArray[np.object_]], wanted: Mapping[str, str], count: int) -> NDArray[np.bool_]:
    """Say which rows carry these labels; a value is a regular expression over the whole."""
    fits = np.ones(count, dtype=bool)
    for label, pattern in wanted.items():
        column = columns.get(label)
        whole = re.compile(pattern)
        if column is None:
            return np.zeros(count, dtype=bool)
        values = {value: whole.fullmatch(value) is not None for value in set(column)}
        fits &= np.fromiter(map(values.__getitem__, column), bool, count)
    return fits


def _phases(look: Look) -> dict[str, Floats]:
    """Return the phase of each job over the window and before it: what most of its ranks say."""
    measured: Measurement | None = look.snapshot.measurements.get(PHASES)
    alignment = look.joins.align("job", "rank")
    if measured is None or alignment is None or alignment.way != "finer":
        return {}
    count = look.size("job")
    phases = {"window": gather(measured.window, alignment.rows, count, "median")}
    if measured.before is not None:
        phases["before"] = gather(measured.before, alignment.rows, count, "median")
    return phases


def _stood(snapshot: Snapshot) -> Indices | None:
    """Return how many columns before the window an incident reaches: for a job that takes no step in the window, to a
    little before its last one. One that was never seen to take a step has no such beginning.
    """
    steps = snapshot.measurements.get(PROGRESS)
    if steps is None or steps.before is None or not steps.before.shape[1]:
        return None
    seen = carried(np.concatenate([steps.before, steps.window], axis=1))
    ahead = steps.before.shape[1]
    moved = (seen[:, 1:] != seen[:, :-1]) & ~np.isnan(seen[:, :-1])
    last = moved.shape[1] - np.argmax(moved[:, ::-1], axis=1)
    stands = moved.any(axis=1) & (last < ahead) & np.isfinite(steps.window).any(axis=1)
    return np.where(stands, np.minimum(ahead - last + round(LEAD / snapshot.step), ahead), 0)
