"""Conditions as PromQL. Where only less can be said than a rule means, the alert fires less often, never more.

An expression holds the entities on which a condition is true, and those are missing on which it is false or unknown,
so `all`, `any` and `unless` become `and`, `or` and `unless`; a `not` becomes what is known and not true. What stands
behind `unless` must not be said narrower than it is meant (`wide`), everything else must not be said wider.
"""

from collections.abc import Callable
from dataclasses import dataclass

from rca.detectors import (
    Above,
    AboveBaseline,
    AbovePeers,
    All,
    Any,
    Below,
    BelowBaseline,
    BelowPeers,
    Condition,
    Detector,
    Leaf,
    Not,
    Number,
    OneOf,
    Rising,
    Set,
    Unless,
    number,
)
from rca.export.expressions import PAUSED, Catalogue, InexpressibleError, Vector, by, check_shared, gathered, indented
from rca.library import BUSY, Rule

WINDOW = "15m"
BASELINE = "1h"
FEWEST_BEFORE = 10
"""Samples before the window without which there is no baseline."""
FEWEST_PEERS = 5
LEAST_USED = 20
"""Percent of the time that a GPU is used at least where it is compared with its own past."""
_IQR_TO_SIGMA = 1.349
_MAD_TO_SIGMA = 1.4826
_FLOOR = 0.005
"""Spread is never taken below this share of the median."""
_WHY = {
    "stalled": "it asks for a multiple of the counter's own usual time between moves",
    "missing": "a series that has ended has no value, and that its peers live on is no PromQL",
    "not_falling": "PromQL has the slope of a line, not its standard error",
    "drifting": "PromQL has the slope of a line, not its standard error",
    "correlated": "PromQL has no correlation",
    "unlike": "it compares the texts of a label",
    "logged": "it reads events of a log",
}


@dataclass(frozen=True)
class Recording:
    """A recording rule."""

    name: str
    text: str


class Writer:
    """Writes the conditions of one rule, and keeps what they need recorded and what had to be left out."""

    def __init__(self, catalogue: Catalogue, rule: Rule) -> None:
        self._catalogue = catalogue
        self._rule = rule
        self._kinds = catalogue.library.entities.kinds
        self.used: dict[str, None] = {}
        self.recordings: dict[str, Recording] = {}
        self.left_out: list[str] = []

    def true(self, condition: Condition, *, wide: bool = False) -> Vector:
        """Return the entities on which a condition is true."""
        match condition:
            case All():
                return self._all(condition, wide=wide)
            case Any():
                return self._any(condition.of, self.true, wide=wide)
            case Not():
                return self.false(condition.of, wide=wide)
            case Unless():
                raise InexpressibleError(
                    "it holds where something is not known, and what there is to hold on is not said"
                )
            case _:
                return self._joined(self._leaf(condition, wide=wide))

    def false(self, condition: Condition, *, wide: bool = False) -> Vector:
        """Return the entities on which a condition is known to be false."""
        match condition:
            case All():
                return self._any(condition.of, self.false, wide=wide)
            case Any():
                return _and([self.false(part, wide=wide) for part in condition.of], [])
            case Not() | Unless():
                return self.true(condition.of, wide=wide)
            case Above() | Below() if condition.reduce != "count" and condition.clear is None:
                return self._joined(self._limited(condition, inverse=True))
            case _:
                true = self._leaf(condition, wide=not wide)
                return self._joined(_and([self._known(condition)], [true]))

    def _all(self, condition: All, *, wide: bool) -> Vector:
        positive = [self.true(part, wide=wide) for part in condition.of if not isinstance(part, Unless)]
        excluded = [self.true(part.of, wide=not wide) for part in condition.of if isinstance(part, Unless)]
        own = set(self._kinds[self._rule.entity].labels)
        positive.sort(key=lambda vector: set(vector.labels) != own)
        if not positive or set(positive[0].labels) != own:
            raise InexpressibleError(f"no condition of its is on the {self._rule.entity} itself")
        return _and(positive, excluded)

    def _any(self, parts: tuple[Condition, ...], write: Callable[..., Vector], *, wide: bool) -> Vector:
        """Join alternatives; one that cannot be said is left out where that makes the whole narrower."""
        found: list[Vector] = []
        refused: list[str] = []
        for part in parts:
            try:
                vector = self._own(write(part, wide=wide))
            except InexpressibleError as error:
                if wide:
                    raise
                refused.append(str(error))
            else:
                found.append(vector)
        if not found:
            raise InexpressibleError("; ".join(dict.fromkeys(refused)))
        self.left_out += refused
        return _or(found)

    def _own(self, vector: Vector) -> Vector:
        """Make sure that a vector is on the entities of the rule themselves."""
        if set(vector.labels) != set(self._kinds[self._rule.entity].labels):
            raise InexpressibleError(f"an alternative is on no {self._rule.entity}")
        return vector

    def _joined(self, vector: Vector) -> Vector:
        """Make sure that a vector can be joined with the entities of the rule."""
        if not set(vector.labels) <= set(self._kinds[self._rule.entity].labels):
            raise InexpressibleError(f"its series are not those of a {self._rule.entity}")
        return vector

    def _signal(self, name: str) -> Vector:
        found = self._catalogue.recorded(name)
        self.used[name] = None
        return found

    def _operand(self, leaf: Leaf) -> Vector:
        """Return what a leaf judges, always a recorded series."""
        signal = self._signal(leaf.signal)
        kind = self._kind(leaf)
        own, theirs = self._rule.entity, set(signal.labels)
        if set(self._kinds[own].labels) >= theirs:
            return signal
        if not self._catalogue.finer(kind, own):
            raise InexpressibleError(f"the series of a {kind} do not say its {own} ({leaf.signal})")
        if leaf.reduce == "count":
            return signal
        labels = {label: signal.labels[label] for label in self._kinds[own].labels}
        way = leaf.reduce or "max"
        text = f"{signal.text}:{way}_by_{own}"
        self._record(text, f"{gathered(way, labels)}{signal.text})")
        return Vector(text, labels)

    def _leaf(self, leaf: Leaf, *, wide: bool) -> Vector:
        vector = self._scored(leaf, wide=wide)
        own = self._kinds[self._rule.entity].labels
        if leaf.reduce != "count" or set(vector.labels) <= set(own):
            return vector
        labels = {label: vector.labels[label] for label in own}
        at_least, signal = leaf.at_least, self._signal(leaf.signal)
        inner = vector.text if "\n" not in vector.text else f"\n{indented(vector.text)}\n"
        count = f"count by {by(labels)} ({inner})"
        if isinstance(at_least, str) and at_least.strip().endswith("%"):
            return Vector(f"{count} / count by {by(labels)} ({signal.text}) >= {number(at_least):g}", labels)
        return Vector(f"{count} >= {number(at_least):g}", labels)

    def _known(self, leaf: Leaf) -> Vector:
        """Return the entities on which a leaf is known to be true or false."""
        vector = self._operand(leaf)
        own = self._kinds[self._rule.entity].labels
        if isinstance(leaf, AboveBaseline | BelowBaseline):
            vector = _and([vector, Vector(self._before(vector)[0], vector.labels)], [])
        if leaf.reduce == "count" and not set(vector.labels) <= set(own):
            labels = {label: vector.labels[label] for label in own}
            return Vector(f"count by {by(labels)} ({vector.text})", labels)
        return vector

    def _scored(self, leaf: Leaf, *, wide: bool) -> Vector:
        match leaf:
            case Above() | Below():
                if wide and leaf.clear is not None:
                    raise InexpressibleError("it holds on until another limit")
                return self._limited(leaf, inverse=False)
            case AboveBaseline() | BelowBaseline():
                return self._against_baseline(leaf, wide=wide)
            case AbovePeers() | BelowPeers() if not wide:
                return self._against_peers(leaf)
            case Rising():
                vector = self._operand(leaf)
                grown = f"{vector.text} - min_over_time({vector.text}[{WINDOW}])"
                return Vector(f"{grown} >= {self._number(leaf.by)}", vector.labels)
            case Set() if not leaf.peers:
                return self._set(leaf)
            case OneOf():
                return self._one_of(leaf, wide=wide)
            case _:
                tag = str(leaf.__struct_config__.tag)
                raise InexpressibleError(f"{leaf.signal} {tag}: {_WHY.get(tag, 'it is judged against peers')}")

    def _number(self, value: Number) -> str:
        plain = number(value)
        if plain is None:
            raise InexpressibleError(f"its margin is the signal {value}")
        return f"{plain:.12g}"

    def _limited(self, leaf: Above | Below, *, inverse: bool) -> Vector:
        vector = self._operand(leaf)
        plain = number(leaf.limit)
        if plain is not None:
            limit = f"{plain:.12g}"
        else:
            other = self._signal(str(leaf.limit))
            check_shared(vector, other, str(leaf.limit))
            if set(other.labels) != set(vector.labels):
                raise InexpressibleError(f"its limit {leaf.limit} is that of another entity")
            limit = other.text
        compare = {(False, False): "<", (True, False): ">", (False, True): ">=", (True, True): "<="}
        return Vector(f"{vector.text} {compare[isinstance(leaf, Above), inverse]} {limit}", vector.labels)

    def _before(self, vector: Vector) -> tuple[str, str]:
        """Return the names under which the median and the spread of a vector before the window are recorded.

        What a job did not do while it trained is no part of either.
        """
        name = vector.text
        if "job" in vector.labels and self._catalogue.paused():
            name = f"{vector.text}:training"
            self._record(name, f"{vector.text} unless on ({vector.labels['job']}) {PAUSED}")
        back = f"{name}[{BASELINE}] offset {WINDOW}"
        middle = f"quantile_over_time(0.5, {back}) and count_over_time({back}) >= {FEWEST_BEFORE}"
        spread = f"(quantile_over_time(0.75, {back}) - quantile_over_time(0.25, {back})) / {_IQR_TO_SIGMA}"
        self._record(f"{vector.text}:before", middle)
        self._record(f"{vector.text}:spread", spread)
        return f"{vector.text}:before", f"{vector.text}:spread"

    def _record(self, name: str, text: str) -> None:
        self.recordings[name] = Recording(name, text)

    def _against_baseline(self, leaf: AboveBaseline | BelowBaseline, *, wide: bool) -> Vector:
        if leaf.beyond is not None:
            raise InexpressibleError("it asks what came and went before")
        vector = self._operand(leaf)
        usual, spread = self._before(vector)
        margin = max(float(self._number(leaf.by)), _FLOOR * leaf.z)
        if isinstance(leaf, AboveBaseline):
            far, apart = f"> {1 + margin:.6g} * {usual}", f"{vector.text} - {usual}"
        else:
            far, apart = f"< {1 - margin:.6g} * {usual}", f"{usual} - {vector.text}"
        found = [
            Vector(f"{vector.text} {far}", vector.labels),
            Vector(f"{apart} > {leaf.z:g} * {spread}", vector.labels),
        ]
        if not wide and self._kind(leaf) == self._kind_of(BUSY):  # between two jobs a GPU is not what it was before
            used = self._signal(BUSY)
            check_shared(vector, used, BUSY)
            found.append(Vector(f"{used.text} >= {LEAST_USED}", used.labels))
        return _and(found, [])

    def _kind(self, leaf: Leaf) -> str:
        return self._kind_of(leaf.signal)

    def _kind_of(self, signal: str) -> str:
        signals = self._catalogue.library.signals
        return signals[signal].entity if signal in signals else ""

    def _against_peers(self, leaf: AbovePeers | BelowPeers) -> Vector:
        if leaf.load is not None:
            raise InexpressibleError(f"{leaf.signal} against its peers counts only where {leaf.load} is like theirs")
        vector = self._operand(leaf)
        kind = self._kind(leaf)
        if vector.text.count(":") > 1 or set(vector.labels) != set(self._kinds[kind].labels):
            raise InexpressibleError("its peers are gathered")
        wanted = self._cohort(leaf.peers)
        missing = [label for label in wanted if label not in vector.labels]
        placed, labels = vector.text, dict(vector.labels)
        if missing:
            where = self._catalogue.places(kind, missing)
            check_shared(vector, where, kind)
            extra = {label: where.labels[label] for label in missing}
            placed = f"{vector.text}:with_{'_'.join(missing)}"
            self._record(placed, f"{vector.text} * on {vector.by()} group_left {by(extra)} {where.text}")
            labels |= extra
        cohort = {label: labels[label] for label in wanted}
        median = f"{vector.text}:median_by_{'_'.join(cohort)}"
        spread = f"{vector.text}:spread_by_{'_'.join(cohort)}"
        same = f"on {by(cohort)} group_left ()"
        middle = f"quantile by {by(cohort)} (0.5, {placed})"
        self._record(median, f"{middle} and count by {by(cohort)} ({placed}) >= {FEWEST_PEERS}")
        self._record(spread, f"{_MAD_TO_SIGMA} * quantile by {by(cohort)} (0.5, abs({placed} - {same} {median}))")
        margin = max(float(self._number(leaf.by)), _FLOOR * leaf.z)
        if isinstance(leaf, AbovePeers):
            far, apart = f"> {same} ({1 + margin:.6g} * {median})", f"{placed} - {same} {median}"
        else:
            far, apart = f"< {same} ({1 - margin:.6g} * {median})", f"-1 * ({placed} - {same} {median})"
        text = indented(f"{placed} {far}\nand {apart} > {same} ({leaf.z:g} * {spread})")
        return Vector(f"max by {vector.by()} (\n{text}\n)", vector.labels)

    def _cohort(self, peers: tuple[str, ...]) -> list[str]:
        """Return the labels that peers share; a relation stands for its labels."""
        relations = self._catalogue.library.entities.relations
        found = [label for peer in peers for label in (relations[peer].labels if peer in relations else (peer,))]
        return list(dict.fromkeys(found))

    def _set(self, leaf: Set) -> Vector:
        vector = self._operand(leaf)
        bits = self._catalogue.library.signals[leaf.signal].bits
        tests = [f"floor({vector.text} / {1 << bits.index(bit)}) % 2 == 1" for bit in leaf.bits]
        return _or([Vector(test, vector.labels) for test in tests])

    def _one_of(self, leaf: OneOf, *, wide: bool) -> Vector:
        vector = self._operand(leaf)
        found = _or([Vector(f"{vector.text} == {code:g}", vector.labels) for code in leaf.codes])
        if wide:
            return found
        return _and([found, Vector(f"changes({vector.text}[{WINDOW}]) > 0", vector.labels)], [])


def _and(positive: list[Vector], excluded: list[Vector]) -> Vector:
    """Write what fulfils all of the first and none of the second."""
    first = positive[0]
    text = _inner(first, 1)
    for word, vectors in (("and", positive[1:]), ("unless", excluded)):
        for vector in vectors:
            check_shared(first, vector, vector.text)
            on = "" if set(vector.labels) == set(first.labels) else f" on {vector.by()}"
            text += f"\n{word}{on} {_inner(vector, 0)}"
    return Vector(text, first.labels, max(1, first.level) if positive[1:] or excluded else first.level)


def _or(vectors: list[Vector]) -> Vector:
    if len(vectors) == 1:
        return vectors[0]
    for vector in vectors[1:]:
        check_shared(vectors[0], vector, vector.text)
    return Vector("\nor ".join(_inner(vector, 1) for vector in vectors), vectors[0].labels, 2)


def _inner(vector: Vector, level: int) -> str:
    """Put a vector into brackets where it binds looser than its place allows."""
    if vector.level <= level:
        return vector.text
    return f"(\n{indented(vector.text)}\n)"


__all__ = ["Detector", "Recording", "Writer"]
