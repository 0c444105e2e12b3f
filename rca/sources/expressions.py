"""Plans of queries, evaluated on raw samples: selectors, rates, arithmetic series by series, and reductions.

`bind` ties a plan to blocks and works out which series meet; `Node.answer` then yields values on the grid. The rate in
a denominator sets the width for the whole division: where its counter moved by fewer than ten, both sides look
further back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from rca.model import Floats
from rca.promql import Aggregate, Arithmetic, Expression, Number, Operator, Quantile, Samples
from rca.sources.grid import Combine, Counters, Grid, Ints, Span, Timeline, combine, widen
from rca.sources.labels import LabelSets
from rca.sources.series import Block

SHORT, LONG = 60.0, 600.0
"""Seconds of history before the grid: for a plain selector, and at least for a ratio that may have to look back."""


class Sampled(NamedTuple):
    """The series of a block: their samples, what their labels say, and when they were sampled."""

    block: Block
    labels: LabelSets
    timeline: Timeline


class Answer(NamedTuple):
    """Values (n, T) of a node, a way to the times of their samples where they are plain samples, and the seconds that
    a value is smoothed over."""

    values: Floats
    stamps: Callable[[], Floats] | None = None
    width: float = 0.0


class Node(Protocol):
    """A bound expression: one row a series (`labels`) or, after a reduction, one row an entity (`labels` is None).

    `rows` (n,) says which row of the entity table each belongs to, -1 for none; `interval` is the time between real
    samples in seconds.
    """

    labels: LabelSets | None
    rows: Ints
    interval: float

    def answer(self, steps: Ints | None = None) -> Answer:
        """Evaluate; `steps` is the width of rates that a division around this node asks for, (n, T) or None."""
        ...


class Countable(Node, Protocol):
    """A node that counts events, so that a division by it can choose a width."""

    def counted(self) -> tuple[Ints, Answer]:
        """Return the width in steps, (n, T), in which enough events happened, and the values over it, NaN where nothing
        is counted any more."""
        ...


class Raw:
    """A block on a grid; what several signals ask of it is computed once."""

    def __init__(self, seen: Sampled, grid: Grid) -> None:
        self.block = seen.block
        self.labels = seen.labels
        self.interval = float("nan") if seen.timeline.interval is None else seen.timeline.interval
        self._placing = seen.timeline.on(grid)
        self._counted: dict[float, tuple[Ints, Floats, Span]] = {}

    @cached_property
    def placed(self) -> Floats:
        """Return the values on the grid."""
        return self._placing.place(self.block.values)

    def stamps(self) -> Floats:
        """Return the times of the samples on the grid."""
        return self._placing.place(self.block.times)

    @cached_property
    def counters(self) -> Counters:
        """Return the block as counters."""
        return Counters(self.block, self._placing)

    def counted(self, seconds: float) -> tuple[Ints, Floats, Span]:
        """Return for ratios over at least so many seconds the widths, the growth over them and what it reaches over."""
        if seconds not in self._counted:
            counters = self.counters
            limit = counters.history() if counters.whole else counters.steps(seconds)
            widths = widen(lambda steps: counters.change(steps)[0], counters.steps(seconds), limit)
            self._counted[seconds] = (widths, *counters.events(widths, seconds))
        return self._counted[seconds]


@dataclass(eq=False)
class Constant:
    """A number."""

    value: float
    labels: LabelSets | None = None
    interval: float = float("nan")

    def __post_init__(self) -> None:
        self.rows: Ints = np.zeros(0, dtype=np.int64)

    def answer(self, steps: Ints | None = None) -> Answer:  # noqa: ARG002 - the protocol's signature
        """Return the number; it spreads over any matrix."""
        return Answer(np.array([[self.value]]))


@dataclass(eq=False)
class Gauge:
    """A plain selector."""

    raw: Raw
    rows: Ints

    def __post_init__(self) -> None:
        self.labels: LabelSets | None = self.raw.labels
        self.interval = self.raw.interval

    def answer(self, steps: Ints | None = None) -> Answer:  # noqa: ARG002 - the protocol's signature
        """Return the samples on the grid."""
        return Answer(self.raw.placed, self.raw.stamps)


@dataclass(eq=False)
class Rate:
    """The rate or increase of a selector."""

    raw: Raw
    rows: Ints
    seconds: float
    per_second: bool

    def __post_init__(self) -> None:
        self.labels: LabelSets | None = self.raw.labels
        self.interval = self.raw.interval

    def answer(self, steps: Ints | None = None) -> Answer:
        """Return growth per second, or growth, over the selector's range or the width given."""
        counters = self.raw.counters
        growth, span = counters.change(counters.steps(self.seconds) if steps is None else steps)
        return Answer(growth / span.elapsed if self.per_second else growth, None, span.usual)

    def counted(self) -> tuple[Ints, Answer]:
        """Return the width in which ten events happened, and the values over it."""
        widths, growth, span = self.raw.counted(self.seconds)
        return widths, Answer(growth / span.elapsed if self.per_second else growth, None, span.usual)


@dataclass(eq=False)
class Gathered:
    """A reduction to entities."""

    of: Node
    by: Combine

    def __post_init__(self) -> None:
        self.labels: LabelSets | None = None
        self.rows: Ints = np.unique(self.of.rows[self.of.rows >= 0])
        self.group: Ints = np.where(self.of.rows >= 0, np.searchsorted(self.rows, self.of.rows), -1)
        self.interval = self.of.interval
        self.order = settled(self.of.labels, self.group) if self.by in ("sum", "mean") else None

    def answer(self, steps: Ints | None = None) -> Answer:
        """Return one row an entity."""
        inner = self.of.answer(None if steps is None else steps[self.group])
        return Answer(self._gathered(inner.values), None, inner.width)

    def counted(self) -> tuple[Ints, Answer]:
        """Return the width in which the series of an entity together counted ten events, and their sum over it."""
        if not isinstance(self.of, Rate):
            raise TypeError("only sums of rates have widths")
        counters, seconds = self.of.raw.counters, self.of.seconds
        first = np.ones((len(self.rows), 1), dtype=np.int64)
        np.maximum.at(first, self.group[self.group >= 0], counters.steps(seconds)[self.group >= 0])
        limit = counters.history() if counters.whole else first
        widths = widen(lambda steps: self._gathered(counters.change(steps[self.group])[0]), first, limit)
        return widths, self.answer(widths)

    def _gathered(self, values: Floats) -> Floats:
        if self.order is None:
            return combine(values, self.group, len(self.rows), self.by)
        return combine(values[self.order], self.group[self.order], len(self.rows), self.by)


@dataclass(eq=False)
class Percentile:
    """What a share of the observations stays below, as buckets of a histogram count them (label `le`), an entity a row.

    Between the bounds of a bucket it is interpolated; what lies in the last one reads its lower bound.
    """

    of: Node
    share: float

    def __post_init__(self) -> None:
        self.labels: LabelSets | None = None
        self.rows: Ints = np.unique(self.of.rows[self.of.rows >= 0])
        self.interval = self.of.interval

    def answer(self, steps: Ints | None = None) -> Answer:
        """Return one row an entity."""
        inner = self.of.answer(steps)
        said = [one.get("le", "") for one in self.of.labels or ()]
        edges = np.array([float(text) if text else np.nan for text in said])
        group = np.where(self.of.rows >= 0, np.searchsorted(self.rows, self.of.rows), -1)
        bounds = np.unique(edges[~np.isnan(edges)])
        if len(bounds) < 2:
            return Answer(np.full((len(self.rows), inner.values.shape[1]), np.nan), None, inner.width)
        held = [combine(inner.values[edges == edge], group[edges == edge], len(self.rows), "sum") for edge in bounds]
        return Answer(_quantile(np.maximum.accumulate(np.stack(held), axis=0), bounds, self.share), None, inner.width)


@dataclass(eq=False)
class Joined:
    """Two nodes and an operator; row i is row `left_at[i]` of the left and row `right_at[i]` of the right."""

    op: Operator
    left: Node
    right: Node
    left_at: Ints | None = None
    right_at: Ints | None = None

    def __post_init__(self) -> None:
        many, at = (self.right, self.right_at) if isinstance(self.left, Constant) else (self.left, self.left_at)
        self.labels: LabelSets | None = many.labels
        if at is not None and many.labels is not None:
            self.labels = many.labels.take(at)
        self.rows: Ints = many.rows if at is None else many.rows[at]
        self.interval = float(np.fmax(self.left.interval, self.right.interval))

    def answer(self, steps: Ints | None = None) -> Answer:
        """Evaluate both sides and join them; a division by a count of events chooses its own width."""
        if self.op == "/" and isinstance(self.right, Rate | Gathered) and _counts(self.right):
            widths, right = self.right.counted()
            right = _taken(right, self.right_at)
            steps = widths if self.right_at is None else widths[self.right_at]
        else:
            right = _taken(self.right.answer(_spread(steps, self.right, self.right_at)), self.right_at)
        left = _taken(self.left.answer(_spread(steps, self.left, self.left_at)), self.left_at)
        when = left.stamps if isinstance(self.right, Constant) else None
        when = right.stamps if isinstance(self.left, Constant) else when
        return Answer(_operated(self.op, left.values, right.values), when, max(left.width, right.width))


def bind(expression: Expression, find: Callable[[Samples], tuple[Raw, Ints]]) -> Node:
    """Tie a plan to blocks; `find` yields the block of a selector and the table row of each of its series."""
    if isinstance(expression, Number):
        return Constant(expression.value)
    if isinstance(expression, Aggregate):
        return Gathered(bind(expression.of, find), expression.by)
    if isinstance(expression, Quantile):
        return Percentile(bind(expression.of, find), expression.share)
    if isinstance(expression, Arithmetic):
        left, right = bind(expression.left, find), bind(expression.right, find)
        if isinstance(left, Constant) or isinstance(right, Constant):
            return Joined(expression.op, left, right)
        left_at, right_at = _meet(left, right, expression)
        return Joined(expression.op, left, right, _unless_all(left_at, left), _unless_all(right_at, right))
    raw, rows = find(expression)
    if expression.function == "value":
        return Gauge(raw, rows)
    return Rate(raw, rows, expression.range, expression.function == "rate")


def lookback(expression: Expression, least: float = 0.0) -> dict[Samples, float]:
    """Return for each selector how many seconds of history before the grid its evaluation may use."""
    if isinstance(expression, Samples):
        wide = SHORT if expression.function == "value" else max(expression.range, 2.0 * SHORT) + SHORT
        return {expression: max(wide, least)}
    if isinstance(expression, Aggregate | Quantile):
        return lookback(expression.of, least)
    if isinstance(expression, Number):
        return {}
    if expression.op == "/":
        inner = expression.right.of if isinstance(expression.right, Aggregate) else expression.right
        if isinstance(inner, Samples) and inner.function != "value":
            least = max(least, LONG, 10.0 * inner.range)
    found = lookback(expression.left, least)
    for one, seconds in lookback(expression.right, least).items():
        found[one] = max(seconds, found.get(one, 0.0))
    return found


def settled(labels: LabelSets | None, rows: Ints) -> Ints | None:
    """Return an order of series that does not depend on the store's, None where no row has two."""
    known = rows[rows >= 0]
    if labels is None or len(np.unique(known)) == len(known):
        return None
    return np.array(sorted(range(len(labels)), key=lambda index: sorted(labels[index].items())), dtype=np.int64)


def _quantile(counts: Floats, bounds: Floats, share: float) -> Floats:
    """Return quantiles (n, T) of cumulative counts (B, n, T) below ascending bounds (B,), as Prometheus interpolates.

    >>> _quantile(np.array([[[1.0]], [[3.0]], [[4.0]]]), np.array([1.0, 2.0, np.inf]), 0.5)
    array([[1.5]])
    """
    wanted = share * counts[-1]
    reached = np.minimum((counts >= wanted).argmax(axis=0), len(bounds) - 1)
    below = np.where(reached > 0, np.take_along_axis(counts, np.maximum(reached - 1, 0)[None], axis=0)[0], 0.0)
    inside = np.take_along_axis(counts, reached[None], axis=0)[0] - below
    low, high = np.where(reached > 0, bounds[np.maximum(reached - 1, 0)], 0.0), bounds[reached]
    high = np.where(np.isfinite(high), high, low)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = low + (high - low) * (wanted - below) / inside
    return np.where(counts[-1] > 0, found, np.nan)


def _counts(node: Node) -> bool:
    """Say whether a node counts events: a rate, or a sum of rates."""
    return isinstance(node, Rate) or (isinstance(node, Gathered) and node.by == "sum" and isinstance(node.of, Rate))


def _operated(op: Operator, left: Floats, right: Floats) -> Floats:
    """Apply an operator; what is divided by zero is NaN."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if op == "+":
            return left + right
        if op == "-":
            return left - right
        if op == "*":
            return left * right
        quotient = left / right
    quotient[~np.isfinite(quotient)] = np.nan
    return quotient


def _taken(answer: Answer, at: Ints | None) -> Answer:
    """Return the rows `at` of an answer."""
    if at is None:
        return answer
    return Answer(answer.values[at], None, answer.width)


def _spread(steps: Ints | None, node: Node, at: Ints | None) -> Ints | None:
    """Return the widths of a joined node's rows as widths of one of its sides; rows that met nothing get one step."""
    if steps is None or at is None or isinstance(node, Constant):
        return None if isinstance(node, Constant) else steps
    spread = np.ones((len(node.rows), steps.shape[1]), dtype=np.int64)
    spread[at] = steps
    return spread


def _meet(left: Node, right: Node, how: Arithmetic) -> tuple[Ints, Ints]:
    """Return which rows of two nodes meet: each left row with at most one right row.

    Series meet by labels; a series whose labels nothing matches meets the only one of its entity.
    """
    if left.labels is None or right.labels is None:
        return matched(left.rows, right.rows)
    keys = [one.pool.reduced(one.who, how.on, how.ignoring) for one in (left.labels, right.labels)]
    found = matched(keys[0], keys[1])
    if how.on is not None or how.ignoring or len(found[0]) == len(left.rows):
        return found
    position = np.full(len(left.rows), -1, dtype=np.int64)
    for own, other in (matched(left.rows, right.rows), found):
        position[own] = other
    kept = np.flatnonzero(position >= 0)
    return kept, position[kept]


def _unless_all(at: Ints, node: Node) -> Ints | None:
    """Return rows of a node, None where they are all in order."""
    return None if len(at) == len(node.rows) and np.array_equal(at, np.arange(len(at))) else at


def matched(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Return the index of each left key that stands on the right exactly once, and where; -1 is no key.

    >>> matched(np.array([7, 5, 7, -1, 6]), np.array([6, 5, 7, 5, -1]))
    (array([0, 2, 4]), array([2, 2, 0]))
    """
    keys, first, counts = np.unique(right, return_index=True, return_counts=True)
    single = (counts == 1) & (keys >= 0)
    keys, first = keys[single], first[single]
    at = np.searchsorted(keys, left)
    own = np.flatnonzero(keys[np.minimum(at, len(keys) - 1)] == left) if len(keys) else np.zeros(0, dtype=np.int64)
    return own, first[at[own]]
