"""What to ask a store for: queries become selectors, each asked once over all the time that it is needed."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rca import detectors, promql
from rca.errors import Problem, ProblemsError
from rca.library import PHASES, Library
from rca.model import Window
from rca.promql import Expression, Samples, samples
from rca.sources.expressions import SHORT, Sampled, lookback
from rca.sources.grid import Timeline, clean
from rca.sources.labels import LabelSets, Pool, metric_names
from rca.sources.series import Block, Matcher, Selector, Store

Aliases = Mapping[str, tuple[tuple[str, float], ...]]
HOSTS, UPLINKS = "node_uname_info", "infiniband_switch_uplink_info"
_AGAINST_BASELINE = (
    detectors.AboveBaseline,
    detectors.BelowBaseline,
    detectors.NotFalling,
    detectors.Drifting,
    detectors.OneOf,
    detectors.Rising,
    detectors.Stalled,
    detectors.Missing,
)


class Query(NamedTuple):
    """One query of a signal: its text, its plan, the answer that each part of the plan reads, by number, and what the
    store lacks for it."""

    text: str
    plan: Expression
    reads: Mapping[Samples, int]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Questions:
    """Everything to ask. Answers are numbered: first those to `selectors`, then those to `served`, queries that only
    a server can evaluate.

    `bases` is the library's spelling of the metric of each selector, `back` says of each answer whether it reaches
    back over the baseline. `queries` are those of each signal, `infos` the answers that hold info metrics.
    """

    selectors: Sequence[Selector]
    served: Sequence[str]
    bases: Sequence[str]
    back: Sequence[bool]
    queries: Mapping[str, Sequence[Query]]
    infos: Mapping[str, int]
    aliases: Aliases = field(default_factory=dict)

    def factor(self, number: int, name: str) -> float:
        """Return how many units of a spelling make one of the library's."""
        return dict(self.aliases.get(self.bases[number], ())).get(name, 1.0)


class Answered(NamedTuple):
    """A selector's series, without sentinels and with every spelling in the unit of the library's; how many sentinels
    were dropped, and how many series have clocks that jump."""

    block: Block
    blanks: int
    jumping: int


def with_baseline(library: Library) -> frozenset[str]:
    """Return the signals that need samples from before the window: those that some rule compares with their own past,
    those that these are derived from, the phases of the job, what a symptom is measured by, and the limits of causes:
    one that was passed long before the trouble did not start it."""
    waiting = [PHASES]
    for rule in library.rules.values():
        limited = [
            leaf.signal for leaf in library.conditions(rule) if isinstance(leaf, detectors.Above | detectors.Below)
        ]
        waiting += [one for one in limited if rule.role == "root" and library.signals[one].entity == rule.entity]
        waiting += [leaf.signal for leaf in library.conditions(rule) if isinstance(leaf, _AGAINST_BASELINE)]
        waiting += [rule.measure] if rule.symptom is not None and rule.measure else []
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        signal = library.signals.get(name)
        if signal is not None and name not in found:
            found.add(name)
            waiting += signal.derived.inputs() if signal.derived is not None else ()
    return frozenset(found)


def questions(library: Library, names: frozenset[str], window: Window, aliases: Aliases) -> Questions:
    """Work out what to ask a store that has these metric names.

    Raises ProblemsError where a query is not PromQL.
    """
    wanted = _Wanted(names, window, aliases)
    past = with_baseline(library)
    queries: dict[str, list[Query]] = {}
    problems: list[Problem] = []
    for name, signal in sorted(library.signals.items()):
        for text in signal.queries:
            try:
                queries.setdefault(name, []).append(wanted.query(text, back=name in past))
            except ValueError as error:
                problems.append(Problem(f"signal {name}", f"{text!r} is not PromQL: {error}"))
    if problems:
        raise ProblemsError(tuple(problems))
    infos = {
        name: wanted.add(Samples(name, "", ()), (name,), SHORT, back=name in library.entities.rank_info)
        for name in (*library.entities.rank_info, HOSTS, UPLINKS)
        if name in names
    }
    selectors = [*wanted.selectors()]
    served = {text: len(selectors) + number for number, text in enumerate(wanted.served)}
    for name, asked in queries.items():
        queries[name] = [
            query._replace(reads=dict.fromkeys(samples(query.plan), served[query.text]))
            if query.text in served and not query.missing
            else query
            for query in asked
        ]
    back = [*wanted.back, *wanted.served.values()]
    return Questions(selectors, list(wanted.served), wanted.bases(), back, queries, infos, aliases)


def answers(
    store: Store, asked: Questions, end: float, leading: Collection[int] = ()
) -> Iterator[tuple[int, Answered]]:
    """Yield (index of the selector, its series) as the store answers; those in `leading` are asked for first."""
    order = sorted(range(len(asked.selectors)), key=lambda number: number not in leading)
    for place, block in store.fetch([asked.selectors[number] for number in order]):
        index = order[place]
        tidy, blanks, jumping = clean(block, end)
        yield index, Answered(_rescaled(tidy, dict(asked.aliases.get(asked.bases[index], ()))), blanks, jumping)


class Sampling:
    """Turns blocks into series that share their label sets and timelines."""

    def __init__(self) -> None:
        self._pool: Pool | None = None
        self._timelines: list[Timeline] = []

    def add(self, block: Block) -> Sampled:
        """Return the series of a block."""
        if self._pool is None:
            self._pool = block.labels.pool if isinstance(block.labels, LabelSets) else Pool()
        labels = self._pool.adopt(block.labels)
        for timeline in self._timelines:
            if timeline.fits(block):
                return Sampled(block, labels, timeline)
        self._timelines.append(Timeline(block.offsets, block.times))
        return Sampled(block, labels, self._timelines[-1])


class _Wanted:
    """Collects selectors; equal ones are asked once, from the earliest start on."""

    def __init__(self, names: frozenset[str], window: Window, aliases: Aliases) -> None:
        self.names = names
        self.window = window
        self.aliases = aliases
        self.back: list[bool] = []
        self.served: dict[str, bool] = {}
        self._index: dict[tuple[str, tuple[str, ...], tuple[Matcher, ...]], int] = {}
        self._history: list[float] = []

    def add(self, one: Samples, names: tuple[str, ...], history: float, *, back: bool) -> int:
        """Ask for a selector under these names, with so many seconds of history before the grid."""
        matchers = tuple(Matcher(*match) for match in one.matches)
        index = self._index.setdefault((one.name, names, matchers), len(self._index))
        if index == len(self.back):
            self.back.append(False)
            self._history.append(0.0)
        self.back[index] |= back
        self._history[index] = max(self._history[index], history)
        return index

    def query(self, text: str, *, back: bool) -> Query:
        """Compile a query, and ask for what it reads, unless some of that is missing."""
        plan = promql.plan(text)
        if plan is None:
            missing = tuple(sorted(promql.metric_names(text) - self.names))
            if not missing:
                self.served[text] = self.served.get(text, False) or back
            return Query(text, Samples("", text, ()), {}, missing)
        found = {one: self._spellings(one) for one in samples(plan)}
        missing = tuple(one.name or one.pattern for one, names in found.items() if not names)
        if missing:
            return Query(text, plan, {}, missing)
        history = lookback(plan)
        selectors = {one: self.add(one, names, history[one], back=back) for one, names in found.items()}
        return Query(text, plan, selectors, ())

    def _spellings(self, one: Samples) -> tuple[str, ...]:
        """Return the names that the store has for a metric, the library's spelling first."""
        others = [other for other, _ in self.aliases.get(one.name, ()) if other in self.names]
        return (*one.select(self.names), *others)

    def selectors(self) -> Iterator[Selector]:
        """Yield the selectors with their times."""
        for (_, names, matchers), index in self._index.items():
            start = self.window.start - (self.window.baseline if self.back[index] else 0.0)
            yield Selector(names, matchers, start - self._history[index], self.window.end)

    def bases(self) -> list[str]:
        """Return the library's spelling of each selector's metric."""
        return [base for base, _, _ in self._index]


def _rescaled(block: Block, factors: Mapping[str, float]) -> Block:
    """Divide the samples of other spellings by their units per unit of the library's spelling."""
    named = metric_names(block.labels) if factors else []
    if not any(factors.get(name, 1.0) != 1.0 for name in set(named)):
        return block
    scales = [factors.get(name, 1.0) for name in named]
    divisors = np.repeat(np.array(scales), np.diff(block.offsets))
    return Block(block.labels, block.offsets, block.times, block.values / divisors)
