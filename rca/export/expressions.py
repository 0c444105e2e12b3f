"""Signals as PromQL whose series carry the labels of their entity and no others, whatever an exporter adds.

A label has another name in each exporter's series, and only where two exporters share one can their series be joined.
So each vector knows its labels, and what would need a join that the series do not allow is refused with the reason.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rca.errors import UsageError, suggestion
from rca.library import PHASES, Derived, Library, Signal
from rca.model import seconds
from rca.promql import Match, metric_names, respell, selector, with_matches

PREFIX = "rca:"
"""Recorded signals are called after the signal, behind this."""
PAUSED = "rca:job_paused"
"""The recorded series of jobs that do not train."""
TRAINING = "train"
EXPORTERS: Mapping[str, str] = {"DCGM_": "dcgm", "node_": "node", "up": "node", "train_": "training"}
"""The exporter of a metric, by the beginning of its name. Metrics of others have labels that nobody can foresee."""
LABELS: Mapping[str, Mapping[str, str]] = {
    "dcgm": {"node": "Hostname", "gpu": "gpu", "model": "modelName"},
    "node": {"node": "instance", "device": "device", "storage": "export"},
    "training": {"job": "job_id", "rank": "rank", "tp": "tp_rank", "pp": "pp_rank", "dp": "dp_rank", "cp": "cp_rank"},
}
"""The labels of each exporter's series as they come out of it: exporter, our label, its name."""
PLACES: Mapping[str, tuple[str, str]] = {
    "gpu": ("dcgm", "DCGM_FI_DEV_GPU_TEMP"),
    "rank": ("training", "train_rank_info"),
}
"""The series that say where an entity of a kind stands: its exporter and metric."""
SHORTEST = {"dcgm": 120.0, "node": 120.0, "training": 300.0}
"""Seconds that a rate reaches back at least: several scrapes, and of training ten steps of half a minute."""
_FIRST = {"dcgm": "node", "node": "node", "training": "job"}
_COMBINE = {"max": "max", "min": "min", "sum": "sum", "mean": "avg", "last": "max"}
_OPERATORS = {"product": "*", "ratio": "/", "sum": "+"}
_SHARE = re.compile(r"/ (?![0-9])")
_RANGE = re.compile(r"\[((?:\d+[smhdwy])+)\]")


_LABEL = re.compile(r"(?:(?:dcgm|node|training)\.)?[a-z_]+=[A-Za-z_][A-Za-z0-9_]*")


class InexpressibleError(Exception):
    """Something that PromQL cannot say honestly; the text says why."""


@dataclass(frozen=True)
class Labels:
    """How the labels are called: `given` maps `node` (in all series) or `dcgm.node` (in one exporter's) to a name."""

    given: Mapping[str, str] = field(default_factory=dict)

    def name(self, exporter: str, label: str) -> str:
        """Return the name of a label in an exporter's series.

        >>> Labels().name("dcgm", "node"), Labels({"node": "host"}).name("node", "node")
        ('Hostname', 'host')
        """
        found = self.given.get(f"{exporter}.{label}") or self.given.get(label) or LABELS[exporter].get(label)
        if found is None:
            raise InexpressibleError(f"the series of {_CALLED[exporter]} do not say the {label}")
        return found

    def all(self, exporter: str, labels: Sequence[str]) -> dict[str, str]:
        """Return the names of several labels."""
        return {label: self.name(exporter, label) for label in labels}


_CALLED = {"dcgm": "dcgm-exporter", "node": "node_exporter", "training": "the training exporter"}


@dataclass(frozen=True)
class Vector:
    """An expression with the labels that its series carry, ours to theirs.

    `level` is how loosely it binds: 0 a comparison or tighter, 1 joined by `and` or `unless`, 2 by `or`.
    """

    text: str
    labels: Mapping[str, str]
    level: int = 0

    def by(self) -> str:
        """Write its labels as PromQL does."""
        return by(self.labels)


def read_labels(given: Iterable[str], known: Collection[str]) -> Labels:
    """Read `node=host` and `dcgm.node=Hostname`; raise UsageError for what is none, or is no label that is `known`."""
    found: dict[str, str] = {}
    for text in given:
        if not _LABEL.fullmatch(text):
            raise UsageError(f"--label: {text!r} names no label, write for example node=host or dcgm.node=hostname")
        label, _, theirs = text.partition("=")
        ours = label.rpartition(".")[2]
        if ours not in known:
            raise UsageError(f"--label: {ours!r} is no label of an entity{suggestion(ours, known)}")
        found[label] = theirs
    return Labels(found)


def by(labels: Mapping[str, str]) -> str:
    """Write labels as PromQL does.

    >>> by({"node": "Hostname", "gpu": "gpu"})
    '(Hostname, gpu)'
    """
    return f"({', '.join(labels.values())})"


def exporter_of(query: str) -> str | None:
    """Return the exporter whose series a query reads, None where that is not known or not one.

    >>> exporter_of("rate(DCGM_FI_DEV_THERMAL_VIOLATION[1m]) / 1e9"), exporter_of("nvidia_smi_power_draw_watts")
    ('dcgm', None)
    """
    found = {
        next((exporter for start, exporter in EXPORTERS.items() if name == start or name.startswith(start)), None)
        for name in metric_names(query)
    }
    return found.pop() if len(found) == 1 else None


class Catalogue:
    """Writes signals: each as a name that a recording rule defines, or in full."""

    def __init__(self, library: Library, labels: Labels, matches: Mapping[str, Sequence[Match]] | None = None) -> None:
        """Take labels as they are called, and `matches` that narrow the series of an exporter."""
        self.library = library
        self.names = labels
        self._matches = matches or {}

    def recorded(self, signal: str) -> Vector:
        """Return the name under which a signal is recorded."""
        return Vector(PREFIX + signal, self.labels(signal))

    def labels(self, signal: str) -> dict[str, str]:
        """Return the labels of a signal, or refuse it."""
        return dict(self._write(signal, self._whole).labels)

    def definition(self, signal: str) -> str:
        """Return the expression of a signal's recording rule, which reads those of other signals."""
        return self._write(signal, self.recorded).text

    def inline(self, signal: str) -> str:
        """Return the expression of a signal in full."""
        return self._whole(signal).text

    def needs(self, signal: str) -> tuple[str, ...]:
        """Return the signals that the definition of one reads, which can be written."""
        derived = self.library.signals[signal].derived
        return tuple(name for name in derived.inputs() if self.expressible(name)) if derived else ()

    def expressible(self, signal: str) -> bool:
        """Say whether a signal can be written at all."""
        try:
            self._whole(signal)
        except InexpressibleError:
            return False
        return True

    def paused(self, phases: Sequence[str] = (TRAINING,)) -> str:
        """Write which jobs do something else than these or have just done, empty where nothing tells."""
        state = self.library.signals.get(PHASES)
        if state is None or state.codes is None:
            return ""
        job = self.names.name("training", "job")
        others = f'{state.queries[0]}{{{state.codes.label}!~"{"|".join(phases)}"}}'
        return f"max by ({job}) (max_over_time({others}[5m])) == 1"

    def places(self, kind: str, labels: Sequence[str]) -> Vector:
        """Return ones that carry labels of where entities stand beside those of the entities themselves."""
        if kind not in PLACES:
            raise InexpressibleError(f"no series of a {kind} says its {' and '.join(labels)}")
        exporter, metric = PLACES[kind]
        known = self.names.all(exporter, (*self.library.entities.kinds[kind].labels, *labels))
        narrowed = self._narrowed(metric, exporter)
        return Vector(f"(max by {by(known)} ({narrowed}) * 0 + 1)", known)

    def finer(self, kind: str, other: str) -> bool:
        """Say whether every entity of `kind` lies in one of `other`, by its own labels."""
        kinds = self.library.entities.kinds
        return set(kinds[other].labels) < set(kinds[kind].labels)

    def _whole(self, signal: str) -> Vector:
        return self._write(signal, self._whole)

    def _write(self, name: str, refer: Callable[[str], Vector]) -> Vector:
        signal = self.library.signals[name]
        if signal.codes is not None:
            raise InexpressibleError(f"{name} is a text in a label")
        if signal.derived is None:
            return self._read(name, signal)
        return self._gather(signal, refer) if signal.derived.of else self._combine(signal, signal.derived, refer)

    def _read(self, name: str, signal: Signal) -> Vector:
        """Write the queries of one exporter, best first, each in both spellings of its metrics."""
        known = [(query, exporter) for query in signal.queries if (exporter := exporter_of(query))]
        if not known:
            raise InexpressibleError(f"the labels of the series of {name} are not known")
        exporter = known[0][1]
        labels = self.names.all(exporter, self.library.entities.kinds[signal.entity].labels)
        queries = [spelt for query, one in known if one == exporter for spelt in self._spellings(query)]
        gathered = [
            f"{_COMBINE[signal.combine]} by {by(labels)} ({_bounded(self._narrowed(query, exporter), signal)})"
            for query in queries
        ]
        gathered += self._constants(signal, exporter, labels)
        text = " or ".join(gathered)
        return Vector(text if len(gathered) == 1 else f"({text})", labels)

    def _spellings(self, query: str) -> list[str]:
        """Return a query, and the same with the newer names of DCGM's metrics."""
        newer = {name: others[0] for name in metric_names(query) if (others := self.library.aliases.get(name))}
        return [query, *([respell(query, newer)] if newer else [])]

    def _narrowed(self, query: str, exporter: str) -> str:
        wide = _RANGE.sub(lambda found: f"[{_longer(found[1], SHORTEST[exporter])}]", query)
        matches = list(self._matches.get(exporter, ()))
        first = self.names.name(exporter, _FIRST[exporter])
        if first != "instance" and first not in {match.label for match in matches}:
            matches.append(Match(first, "!=", ""))  # series without it would be taken for those of one entity
        return with_matches(wide, matches) if matches else wide

    def _constants(self, signal: Signal, exporter: str, labels: Mapping[str, str]) -> list[str]:
        """Write the constants of a signal, for what carries the label that they go by."""
        if signal.fallback is None or signal.entity not in PLACES or PLACES[signal.entity][0] != exporter:
            return []
        label, metric = self.names.name(exporter, signal.fallback.label), PLACES[signal.entity][1]
        return [
            f"max by {by(labels)} ({self._narrowed(metric + selector([Match(label, '=~', text)]), exporter)} * 0 + {value:g})"
            for text, value in signal.fallback.values.items()
        ]

    def _gather(self, signal: Signal, refer: Callable[[str], Vector]) -> Vector:
        derived = signal.derived
        assert derived is not None
        assert derived.of is not None
        inner, member = refer(derived.of), self.library.signals[derived.of].entity
        if not self.finer(member, signal.entity):
            raise InexpressibleError(f"the series of a {member} do not say its {signal.entity}")
        labels = {label: inner.labels[label] for label in self.library.entities.kinds[signal.entity].labels}
        return Vector(f"{gathered(derived.by or 'max', labels)}{inner.text})", labels)

    def _combine(self, signal: Signal, derived: Derived, refer: Callable[[str], Vector]) -> Vector:
        way = next(way for way in _OPERATORS if getattr(derived, way))
        names = getattr(derived, way)
        first = refer(names[0])
        if set(first.labels) != set(self.library.entities.kinds[signal.entity].labels):
            raise InexpressibleError(f"the series of a {signal.entity} are not those of {names[0]}")
        text = first.text
        for name in names[1:]:
            text += f" {_OPERATORS[way]} {self._operand(first, refer(name), name)}"
        for sign, others in (("+", derived.plus), ("-", derived.difference)):
            for name in others:
                if not self.expressible(name):
                    raise InexpressibleError(f"{name} cannot be read beside {names[0]}")
                term = self._operand(first, refer(name), name)
                if term.startswith("on "):
                    raise InexpressibleError(f"{name} may be missing, and is no series of a {signal.entity}")
                text += f" {sign} ({term} or {first.text} * 0)"
        return Vector(f"({text})", first.labels)

    def _operand(self, first: Vector, other: Vector, name: str) -> str:
        """Write what stands behind an operator, joined on the labels that both have."""
        check_shared(first, other, name)
        if set(other.labels) == set(first.labels):
            return other.text
        if not set(other.labels) < set(first.labels):
            raise InexpressibleError(f"{name} has no series for each {' and '.join(first.labels)}")
        return f"on {other.by()} group_left () {other.text}"


def check_shared(one: Vector, other: Vector, name: str) -> None:
    """Refuse to join vectors that call the same label by different names."""
    for label in set(one.labels) & set(other.labels):
        if one.labels[label] != other.labels[label]:
            raise InexpressibleError(
                f"{name} calls the {label} {other.labels[label]} and not {one.labels[label]}: give both one name, "
                f"--label {label}=NAME"
            )


def gathered(way: str, labels: Mapping[str, str]) -> str:
    """Write the beginning of an aggregation.

    >>> gathered("median", {"job": "job_id"})
    'quantile by (job_id) (0.5, '
    """
    word = {"mean": "avg", "median": "quantile"}.get(way, way)
    return f"{word} by {by(labels)} ({'0.5, ' if way == 'median' else ''}"


def indented(text: str) -> str:
    """Move lines to the right."""
    return "\n".join(f"  {line}" for line in text.splitlines())


def _bounded(query: str, signal: Signal) -> str:
    """Drop sentinels and what is no number; a rate is neither, unless divided by one that may be nought."""
    low, high = signal.valid or (-float("inf"), float("inf"))
    if ("rate(" in query or "increase(" in query) and not _SHARE.search(query):
        return query
    bounds = f" >= {low:.12g}" if low != -float("inf") else " >= -Inf"
    bounds += f" <= {high:.12g}" if high != float("inf") else ""
    return f"({query}){bounds}" if " " in query else query + bounds


def _longer(text: str, least: float) -> str:
    return f"{int(least // 60)}m" if seconds(text) < least else text


__all__ = [
    "PAUSED",
    "PREFIX",
    "TRAINING",
    "Catalogue",
    "InexpressibleError",
    "Labels",
    "Vector",
    "by",
    "check_shared",
    "exporter_of",
    "gathered",
    "indented",
    "read_labels",
]
