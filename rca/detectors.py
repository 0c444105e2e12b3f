"""One class a detector: its fields are the YAML settings, its one method scores a matrix.

Conditions are three-valued, as int8: -1 false, 0 unknown, 1 true. `all` is the minimum, `any` the maximum, `not` the
sign flipped. Unknown is what a missing sample gives, and never turns into either of the others.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Union

import msgspec
import numpy as np

from rca import rows
from rca.model import Duration, Floats, seconds
from rca.peers import MAD_TO_SIGMA, Cohort, Fit, Indices, at, commonest, fit, grouped_medians, sorted_medians, visible
from rca.rows import Past, States, carried, centred, clipped, latched, past, states

Number = float | str
Reduce = Literal["max", "min", "mean", "median", "count"]
MIN_BASELINE = 10
FEWEST_ALIKE = 3


@dataclass(frozen=True, eq=False)
class View:
    """One signal as a detector sees it, rows being the entities that it is judged on.

    `values` (n, T) and `before` (n, B) are masked to the phases that count; `others` holds further signals of the
    condition by name, on the same rows; `bits` the meaning of a bit mask; times are in seconds. `since` (n,) is how
    many columns of `before` belong to the incident, where that began before the window.
    """

    values: Floats
    before: Floats | None
    step: float
    interval: float
    cohort: Cohort | None = None
    others: Mapping[str, Floats] = field(default_factory=dict)
    bits: tuple[str, ...] = ()
    since: Indices | None = None
    fits: dict[str | None, tuple[Floats, Fit]] = field(default_factory=dict)

    def incident(self) -> tuple[Floats, Indices]:
        """Return the samples (n, L + T) since the incident or the window began, and the column (n, 1) where that is."""
        if self.since is None or self.before is None:
            return self.values, np.zeros((len(self.values), 1), dtype=np.int64)
        return rows.prolonged(self.values, self.before, self.since)

    @cached_property
    def past(self) -> Past:
        """What the entity itself read before the window."""
        assert self.before is not None
        return past(self.before)

    def among_peers(self, load: str | None) -> tuple[Floats, Fit]:
        """Return the values that count under this load, and the fit of their peers; each is worked out once."""
        if load not in self.fits:
            cohort, values = _cohort(self), self.values
            if load is not None and load in self.others:
                floor = 0.2 * at(grouped_medians(self.others[load], cohort.group), cohort.group)
                values = np.where(self.others[load] < floor, np.nan, values)
            self.fits[load] = values, fit(values, cohort)
        return self.fits[load]

    def number(self, value: Number) -> Floats | float:
        """Return a number, or the values of the signal that it names."""
        plain = number(value)
        return plain if plain is not None else self.others[str(value)]


@dataclass(frozen=True, eq=False)
class Score:
    """A detector's answer: `state` (n, T), and what the values should have been, `expected` (G, T') with the row of
    `expected` for each entity in `index` (n,); `expected` may have one column. `sense` is +1 where high is ill.
    """

    state: States
    expected: Floats
    index: Indices
    sense: int = 1


class Detector(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="is"):
    """A leaf condition on one signal.

    The signal belongs to the rule's kind of entity, to a coarser one (read through the relation), or to a finer one:
    then `reduce` gathers the members' values first, or `count` asks that `at_least` so many (`2`) or such a share
    (`10%`) of the visible members fulfil the condition.
    """

    signal: str
    reduce: Reduce | None = None
    at_least: Number = 1.0


class Above(Detector, frozen=True, kw_only=True, tag="above"):
    """Above a limit; with `clear`, until it falls below that again."""

    limit: Number
    clear: Number | None = None

    def score(self, view: View) -> Score:
        """Compare with the limit; a signal as limit is unknown where it has no sample."""
        return _limited(view, self.limit, self.clear, 1)


class Below(Detector, frozen=True, kw_only=True, tag="below"):
    """Below a limit; with `clear`, until it rises above that again."""

    limit: Number
    clear: Number | None = None

    def score(self, view: View) -> Score:
        """Compare with the limit; a signal as limit is unknown where it has no sample."""
        return _limited(view, self.limit, self.clear, -1)


class AbovePeers(Detector, frozen=True, kw_only=True, tag="above_peers"):
    """Above the median of peers (equal labels `peers`) by a robust z of `z` and by the practical margin `by`.

    Only samples where signal `load` reaches a fifth of its cohort's median count, when `load` is given.
    """

    by: Number
    peers: tuple[str, ...]
    z: float = 5.0
    load: str | None = None

    def score(self, view: View) -> Score:
        """Compare with the cohort's median."""
        return _against_peers(view, self, 1)


class BelowPeers(Detector, frozen=True, kw_only=True, tag="below_peers"):
    """Below the median of peers, else as `above_peers`."""

    by: Number
    peers: tuple[str, ...]
    z: float = 5.0
    load: str | None = None

    def score(self, view: View) -> Score:
        """Compare with the cohort's median."""
        return _against_peers(view, self, -1)


class AboveBaseline(Detector, frozen=True, kw_only=True, tag="above_baseline"):
    """Above the entity's own median before the window by `z` robust deviations and by the margin `by`.

    With `beyond`, by `z` deviations above what it showed for that share of the time before too: what comes and goes is
    no onset. What was so without a break until the window began does not count as shown before.
    """

    by: Number
    z: float = 4.0
    beyond: Number | None = None

    def score(self, view: View) -> Score:
        """Compare with the entity's own past; fewer than ten samples there say nothing."""
        return _against_baseline(view, self, 1)


class BelowBaseline(Detector, frozen=True, kw_only=True, tag="below_baseline"):
    """Below the entity's own median before the window, else as `above_baseline`."""

    by: Number
    z: float = 4.0
    beyond: Number | None = None

    def score(self, view: View) -> Score:
        """Compare with the entity's own past; fewer than ten samples there say nothing."""
        return _against_baseline(view, self, -1)


class Rising(Detector, frozen=True, kw_only=True, tag="rising"):
    """A counter that has grown by at least `by` since the window began, or the incident, resets apart."""

    by: Number = 1.0

    def score(self, view: View) -> Score:
        """Sum the growth since the first sample that counts."""
        width = view.values.shape[1]
        filled = carried(view.incident()[0])
        growth = np.diff(filled, axis=1, prepend=filled[:, :1])
        total = np.cumsum(np.where(growth > 0, growth, 0.0), axis=1)[:, -width:]
        wanted = view.number(self.by)
        return _constant(states(total >= wanted, ~np.isnan(filled[:, -width:])), 0.0)


class Set(Detector, frozen=True, kw_only=True, tag="set"):
    """A bit mask in which any of the named bits is set; the signal's `bits` name them from bit 0 up.

    With `peers`, only where fewer than half of them show it too.
    """

    bits: tuple[str, ...]
    peers: tuple[str, ...] = ()

    def score(self, view: View) -> Score:
        """Test the bits of whole numbers; what is no whole number is unknown."""
        mask = sum(1 << view.bits.index(bit) for bit in self.bits)
        known = ~np.isnan(view.values)
        is_set = np.asarray((np.where(known, view.values, 0.0).astype(np.int64) & mask) != 0)
        if self.peers:
            group = _cohort(view).group
            seen, shown = visible(view.values, group), visible(np.where(is_set, view.values, np.nan), group)
            is_set = is_set & (at(shown * 2, group) < at(seen, group))
        return _constant(states(is_set, known), 0.0)


class OneOf(Detector, frozen=True, kw_only=True, tag="one_of"):
    """A code of this list that is new in the window, or the incident: the value changed to it, or its series began.

    It holds from then on, as the codes that follow are often echoes.
    """

    codes: tuple[float, ...]

    def score(self, view: View) -> Score:
        """Ignore a code that stood there from the first sample on: a sticky gauge tells of the past."""
        values, start = view.incident()
        width, known = view.values.shape[1], ~np.isnan(values)
        listed = np.isin(values, np.asarray(self.codes))
        if not listed.any():
            return _constant(states(listed, known)[:, -width:], 0.0)
        filled = carried(values)
        began = known & ~np.concatenate([np.zeros((len(known), 1), bool), np.cumsum(known, axis=1)[:, :-1] > 0], axis=1)
        column = np.arange(known.shape[1])
        late = np.logical_and(began, column > start + max(2, 2 * view.interval / view.step))
        if view.before is not None:
            older = np.arange(view.before.shape[1]) < view.before.shape[1] - (known.shape[1] - width - start)
            late = late & ~(older & ~np.isnan(view.before)).any(axis=1, keepdims=True)
        changed = np.zeros(known.shape, dtype=bool)
        changed[:, 1:] = known[:, 1:] & ~np.isnan(filled[:, :-1]) & (values[:, 1:] != filled[:, :-1])
        new = np.maximum.accumulate((changed | late) & listed, axis=1)
        return _constant(states(new, known)[:, -width:], 0.0)


class Unlike(Detector, frozen=True, kw_only=True, tag="unlike"):
    """Another value than the one on which a share of `agree` of its peers, and three at least, agree."""

    peers: tuple[str, ...]
    agree: Number = "80%"

    def score(self, view: View) -> Score:
        """Compare with the most frequent value of the cohort; where peers are divided nobody is unlike them."""
        group = _cohort(view).group
        values = carried(view.values)
        usual, agreeing = commonest(values, group)
        others = at(visible(values, group), group) - 1
        known = ~np.isnan(view.values) & (others >= FEWEST_ALIKE)
        many = at(agreeing, group) >= np.maximum(FEWEST_ALIKE, (number(self.agree) or 0.0) * others)
        return Score(states((view.values != at(usual, group)) & many, known), usual, group)


class Stalled(Detector, frozen=True, kw_only=True, tag="stalled"):
    """A counter that has not moved for `least`, and for `factor` times its own usual time between moves.

    One that is above zero, so that it has moved once, stands as well where it was never seen to move for `unmoved`.
    """

    least: Duration = "5m"
    factor: float = 10.0
    unmoved: Duration = "45m"

    def score(self, view: View) -> Score:
        """Measure the time since the last move; one that was not seen to move for less than `unmoved` is unknown.

        Samples before the window count; a series that ended is no counter that stands.
        """
        width = view.values.shape[1]
        seen = view.values if view.before is None else np.concatenate([view.before, view.values], axis=1)
        stands, known = rows.standing(seen, view.step, self.factor, (seconds(self.least), seconds(self.unmoved)))
        return _constant(states(stands, known)[:, -width:], 0.0)


class NotFalling(Detector, frozen=True, kw_only=True, tag="not_falling"):
    """A smoothed series whose slope is above zero by `sigma` standard errors."""

    sigma: float = 3.0

    def score(self, view: View) -> Score:
        """Fit a line through all samples, those before the window too."""
        slope, error, _ = _fitted(view)
        return _constant(_wide(states(slope > self.sigma * error, ~np.isnan(error)), view), 0.0)


class Drifting(Detector, frozen=True, kw_only=True, tag="drifting"):
    """A slope of more than `by` of the mean per hour, by `sigma` standard errors."""

    by: Number
    sigma: float = 3.0

    def score(self, view: View) -> Score:
        """Fit a line through all samples, those before the window too."""
        slope, error, mean = _fitted(view)
        by = view.number(self.by)
        steep = np.abs(slope) * 3600.0 > np.abs(mean) * (by if isinstance(by, float) else by[:, 0])
        significant = np.abs(slope) > self.sigma * error
        return _constant(_wide(states(steep & significant, ~np.isnan(error)), view), 0.0)


class Missing(Detector, frozen=True, kw_only=True, tag="missing"):
    """A series that ended inside the window while those of its peers live on."""

    peers: tuple[str, ...]

    def score(self, view: View) -> Score:
        """Call a row missing once it has been silent for three intervals after three samples, while half of its
        peers speak; samples before the window count.
        """
        cohort = _cohort(view)
        width = view.values.shape[1]
        values = view.values if view.before is None else np.concatenate([view.before, view.values], axis=1)
        known = ~np.isnan(values)
        column = np.arange(known.shape[1])
        last = np.maximum.accumulate(np.where(known, column, -1), axis=1)
        silent = (column - last) * view.step > 3 * max(view.interval, view.step)
        if not silent.any():
            return _constant(states(silent, known)[:, -width:], 0.0)
        earlier = np.cumsum(known, axis=1) >= 3
        size = np.bincount(cohort.group[cohort.group >= 0], minlength=int(cohort.group.max(initial=-1)) + 1)
        share = np.asarray(visible(values, cohort.group) / np.maximum(size, 1)[:, None])
        alive = at(share, cohort.group) >= 0.5
        return _constant(states(silent, known | (silent & earlier & alive))[:, -width:], 0.0)


class Correlated(Detector, frozen=True, kw_only=True, tag="correlated"):
    """Deviations from peers that move together with those of signal `with`, by a correlation of at least `limit`.

    Steps from sample to sample are correlated, each row's clipped at three of its own robust deviations: a level, or one
    change of level, is no movement.
    """

    other: str = msgspec.field(name="with")
    limit: float
    peers: tuple[str, ...]

    def score(self, view: View) -> Score:
        """Correlate, row by row over time, the steps of what is left of both signals after the peers' median."""
        cohort = _cohort(view)
        left = [
            values - at(grouped_medians(values, cohort.group), cohort.group)
            for values in (view.values, view.others[self.other])
        ]
        one, two = (clipped(np.diff(residual, axis=1)) for residual in left)
        both = ~np.isnan(one) & ~np.isnan(two)
        one, two = centred(one, both), centred(two, both)
        power = np.sqrt((one**2).sum(axis=1) * (two**2).sum(axis=1))
        r = np.divide((one * two).sum(axis=1), power, out=np.zeros(len(one)), where=power > 0)
        level = np.abs(sorted_medians(view.values))
        moves = MAD_TO_SIGMA * sorted_medians(np.abs(left[0] - sorted_medians(left[0])[:, None])) > 0.01 * level
        state = states((r >= self.limit) & moves, both.sum(axis=1) >= MIN_BASELINE)
        return _constant(_wide(state, view), self.limit)


class Logged(Detector, frozen=True, kw_only=True, tag="logged"):
    """A counter of log lines that has grown since the window, or the incident, began, or that began in it above zero.

    It holds from then on.
    """

    def score(self, view: View) -> Score:
        """Look for growth; what stood there from the first sample on was logged before."""
        rises, known = rows.grown(view.incident()[0])
        return _constant(states(rises, known)[:, -view.values.shape[1] :], 0.0)


class All(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="is", tag="all"):
    """True when every part is."""

    of: tuple["Condition", ...]


class Any(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="is", tag="any"):
    """True when some part is."""

    of: tuple["Condition", ...]


class Not(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="is", tag="not"):
    """True when the part is false; unknown stays unknown."""

    of: "Condition"


class Unless(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="is", tag="unless"):
    """True except where the part is true: excludes what is known to be something else, and needs no data to hold."""

    of: "Condition"


Leaf = (
    Above | Below | AbovePeers | BelowPeers | AboveBaseline | BelowBaseline | Rising | Set | OneOf | Unlike
    | Stalled | NotFalling | Drifting | Missing | Correlated | Logged
)  # fmt: skip
Condition = Union[Leaf, All, Any, Not, Unless]  # noqa: UP007 - msgspec resolves the forward references by this name


def leaves(condition: Condition) -> Iterator[Leaf]:
    """Yield the leaf conditions of a condition, in the order of writing."""
    if isinstance(condition, All | Any):
        for part in condition.of:
            yield from leaves(part)
    elif isinstance(condition, Not | Unless):
        yield from leaves(condition.of)
    else:
        yield condition


def named(leaf: Leaf) -> frozenset[str]:
    """Return the signals that a leaf cannot be scored without: its own, and those that it compares with."""
    numbers: list[Number | None] = [getattr(leaf, field, None) for field in ("limit", "clear", "by")]
    names = {value for value in numbers if isinstance(value, str) and number(value) is None}
    return frozenset({leaf.signal, *names, *({leaf.other} if isinstance(leaf, Correlated) else ())})


def number(value: Number) -> float | None:
    """Read a number: 0.07 and `7%` alike; None for the name of a signal.

    >>> number("7%")
    0.07
    """
    if isinstance(value, int | float):
        return float(value)
    text = value.strip()
    try:
        return float(text[:-1]) / 100.0 if text.endswith("%") else float(text)
    except ValueError:
        return None


def _constant(state: States, expected: float) -> Score:
    return Score(state, np.array([[expected]]), np.zeros(len(state), dtype=np.int64))


def _wide(state: States, view: View) -> States:
    return np.repeat(state[:, None], view.values.shape[1], axis=1)


def _cohort(view: View) -> Cohort:
    if view.cohort is None:
        raise ValueError("a detector of peers needs a cohort")
    return view.cohort


def _limited(view: View, limit: Number, clear: Number | None, sense: int) -> Score:
    wanted = view.number(limit)
    known = ~np.isnan(view.values) & ~np.isnan(wanted)
    beyond, within = (np.greater, np.less) if sense > 0 else (np.less, np.greater)
    true = beyond(view.values, wanted)
    if clear is not None:
        true = latched(true, known & within(view.values, view.number(clear)))
    if isinstance(wanted, float):
        return Score(states(true, known), np.array([[wanted]]), np.zeros(len(true), dtype=np.int64), sense)
    return Score(states(true, known), wanted, np.arange(len(true)), sense)


def _against_peers(view: View, detector: AbovePeers | BelowPeers, sense: int) -> Score:
    cohort = _cohort(view)
    values, peers = view.among_peers(detector.load)
    by = view.number(detector.by)
    if isinstance(by, float):
        margin = np.maximum(by * np.abs(peers.centre), detector.z * peers.spread)  # significant, and enough to matter
        true = sense * (values - at(peers.centre, cohort.group)) > at(margin, cohort.group)
    else:
        centre = at(peers.centre, cohort.group)
        gap = sense * (values - centre)
        true = (gap > by * np.abs(centre)) & (gap > detector.z * at(peers.spread, cohort.group))
    known = ~np.isnan(values) & ~np.isnan(at(peers.spread, cohort.group))
    return Score(states(true, known), peers.centre, cohort.group, sense)


def _against_baseline(view: View, detector: AboveBaseline | BelowBaseline, sense: int) -> Score:
    size = len(view.values)
    index = np.arange(size)
    if view.before is None or view.before.shape[1] < MIN_BASELINE:
        return Score(np.zeros(view.values.shape, np.int8), np.full((size, 1), np.nan), index, sense)
    by = view.number(detector.by)
    usual, spread = rows.settled(view.before, view.past, by if isinstance(by, float) else np.nan, sense)
    spread = np.maximum(spread, 0.005 * np.abs(usual))
    gap = sense * (view.values - usual)
    margin = np.maximum(by * np.abs(usual), detector.z * spread)
    true = gap > margin
    if detector.beyond is not None:
        worst = rows.recurring(view.before, usual + sense * margin, number(detector.beyond) or 0.0, sense)
        true &= sense * (view.values - worst) > detector.z * spread
    known = ~np.isnan(view.values) & (view.past.size >= MIN_BASELINE)[:, None]
    return Score(states(true, known), usual, index, sense)


def _fitted(view: View) -> tuple[Floats, Floats, Floats]:
    """Fit a line through all samples of a view."""
    values = view.values if view.before is None else np.concatenate([view.before, view.values], axis=1)
    return rows.line(values, view.step, MIN_BASELINE)
