"""The numbers behind findings: what was read, what was expected, and the query that anyone can re-run."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from rca import promql
from rca.detectors import (
    Above,
    AboveBaseline,
    AbovePeers,
    Below,
    BelowBaseline,
    BelowPeers,
    Missing,
    OneOf,
    Set,
    Unlike,
)
from rca.evaluate import Reading
from rca.graph import NO_ROWS, Graph, measured
from rca.library import Derived
from rca.model import Evidence, Quote
from rca.peers import Indices, sorted_medians
from rca.plain import lowered, quantity, stamp

_AGGREGATION = {
    "max": "max(", "min": "min(", "mean": "avg(", "sum": "sum(", "median": "quantile(0.5, ", "count": "count(",
}  # fmt: skip

_WANTED = {
    "stalled": "to move",
    "missing": "samples, as from its peers",
    "rising": "no growth",
    "not_falling": "no rise",
    "drifting": "no trend",
    "logged": "no such event",
}


_USUAL = {"above": "no", "below": "yes"}
"""What a yes or no is expected to read that was found above, or below, what lies between."""


class Numbers:
    """Reads the numbers of one judged snapshot; what many causes share is read and written once."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._look = graph.look
        self._rules = graph.look.library.rules
        self._readings: dict[tuple[str, int], list[Reading]] = {}
        self._queries: dict[tuple[str, bytes], str] = {}
        self._evidence: dict[tuple[str, int], list[Evidence]] = {}

    def readings(self, rule: str, row: int) -> list[Reading]:
        """Return what the true conditions of a finding read, its measure first."""
        if (rule, row) not in self._readings:
            self._readings[rule, row] = self._read(rule, row)
        return self._readings[rule, row]

    def _read(self, rule: str, row: int) -> list[Reading]:
        wanted = measured(self._rules[rule])
        found = list(self._look.readings(self._graph.judged[rule], row))
        unique = {(one.leaf.signal, one.leaf.__class__): one for one in reversed(found) if math.isfinite(one.value)}
        return sorted(unique.values(), key=lambda one: (one.leaf.signal != wanted, found.index(one)))

    def evidence(self, rule: str, row: int) -> list[Evidence]:
        """Return the numbers behind a finding, with the queries that show them."""
        if (rule, row) not in self._evidence:
            self._evidence[rule, row] = [self.shown(reading) for reading in self.readings(rule, row)]
        return self._evidence[rule, row]

    def shown(self, reading: Reading) -> Evidence:
        """Write a reading as evidence."""
        signal = self._look.library.signals[reading.leaf.signal]
        expected = self._expected(reading, signal.unit)
        value = self._value(reading, signal.unit)
        query = self._query(reading)
        return Evidence(
            signal=reading.leaf.signal,
            query=query,
            value=float(f"{reading.value:.6g}"),
            unit=signal.unit,
            expected=expected,
            text=f"{lowered(signal.summary)}: {value}, {'against' if reading.denied else 'expected'} {expected}",
            entity=self._look.snapshot.tables[reading.kind].entity(reading.row),
            peers=list(getattr(reading.leaf, "peers", None) or ()),
            reference=_reference(reading),
            quote=self._quote(query),
        )

    def _quote(self, query: str) -> Quote | None:
        """Return the first line of a log that the series of a query count, None where there is none."""
        quotes = self._look.snapshot.quotes
        plan = promql.plan(query) if quotes and query else None
        for one in () if plan is None else promql.samples(plan):
            found = [line for line in quotes if line.labels["__name__"] == one.name and one.fits(line.labels)]
            if found:
                line = min(found, key=lambda line: (line.time, line.file))
                return Quote(stamp(line.time), line.text, line.file, line.rank)
        return None

    def _value(self, reading: Reading, unit: str) -> str:
        if isinstance(reading.leaf, Set):
            bits = self._look.library.signals[reading.leaf.signal].bits
            named = [bit for position, bit in enumerate(bits) if int(reading.value) >> position & 1]
            return ", ".join(named) or "no bit"
        if isinstance(reading.leaf, Missing):
            return f"{quantity(reading.value, unit)}, then nothing"
        return self._text(reading.leaf.signal, reading.value) or quantity(reading.value, unit)

    def _text(self, signal: str, value: float) -> str:
        """Return the label's value that a number stands for, empty where it stands for none."""
        texts = self._look.snapshot.measurements[signal].texts
        return texts[int(value)] if 0 <= value < len(texts) else ""

    def _expected(self, reading: Reading, unit: str) -> str:
        leaf = reading.leaf
        if isinstance(leaf, AbovePeers | BelowPeers):
            return f"{quantity(reading.expected, unit)} (median of its peers: same {', '.join(leaf.peers)})"
        if isinstance(leaf, AboveBaseline | BelowBaseline):
            return f"{quantity(reading.expected, unit)} (before)"
        if isinstance(leaf, Unlike):
            usual = self._text(leaf.signal, reading.expected) or quantity(reading.expected, unit)
            return f"{usual} (as most of its peers: same {', '.join(leaf.peers)})"
        if isinstance(leaf, Set):
            return f"none of {', '.join(leaf.bits)}" + (" as on its peers" if leaf.peers else "")
        if isinstance(leaf, OneOf):
            return "no new code"
        tag = str(leaf.__struct_config__.tag)
        if tag in _WANTED:
            return _WANTED[tag]
        if unit == "bool" and tag in _USUAL:
            return _USUAL[tag]
        sense = {"above": "at most", "below": "at least"}.get(tag, "")
        return f"{sense} {quantity(reading.expected, unit)}".strip()

    def _query(self, reading: Reading) -> str:
        """Return the query behind a reading, of the members where they were gathered for it."""
        kind = self._look.library.signals[reading.leaf.signal].entity
        if kind == reading.kind:
            return self.query(reading.leaf.signal, np.array([reading.row]))
        align = self._look.joins.align(reading.kind, kind)
        if align is None or align.way != "finer":
            return self.query(reading.leaf.signal, NO_ROWS)
        members = np.flatnonzero(align.rows == reading.row)
        inner = self.query(reading.leaf.signal, members)
        return inner if len(members) < 2 else f"{_AGGREGATION[reading.leaf.reduce or 'max']}{inner})"

    def query(self, signal: str, rows: Indices) -> str:
        """Return the PromQL that shows a signal on these entities of its kind.

        A signal made of others is spelt out; of a maximum or minimum the one member that decides is shown. Of many
        entities at once the members are shown as they are: their series carry no label to gather them by.
        """
        key = (signal, rows.tobytes())
        if key not in self._queries:
            self._queries[key] = self._written(signal, rows)
        return self._queries[key]

    def _written(self, signal: str, rows: Indices) -> str:
        derived = self._look.library.signals[signal].derived
        if derived is None:
            measurement = self._look.snapshot.measurements[signal]
            return promql.with_labels(measurement.query, _common(measurement.origin, rows)) if measurement.query else ""
        if derived.of is not None:
            return self._gathered(signal, derived, rows)
        return self._combined(signal, derived, rows)

    def _gathered(self, signal: str, derived: Derived, rows: Indices) -> str:
        """Write an aggregation over the members of some entities."""
        assert derived.of is not None
        signals = self._look.library.signals
        align = self._look.joins.align(signals[signal].entity, signals[derived.of].entity)
        members = rows if align is None or align.way != "finer" else np.flatnonzero(np.isin(align.rows, rows))
        if (
            derived.by in ("max", "min")
            and len(rows) == 1 < len(members)
            and derived.of in self._look.snapshot.measurements
        ):
            levels = sorted_medians(self._look.snapshot.measurements[derived.of].window[members])
            if not np.isnan(levels).all():
                members = members[[int((np.nanargmax if derived.by == "max" else np.nanargmin)(levels))]]
        inner = self.query(derived.of, members)
        if len(rows) > 1 or not inner:
            return inner
        return f"{_AGGREGATION[derived.by or 'max']}{inner})"

    def _combined(self, signal: str, derived: Derived, rows: Indices) -> str:
        """Write arithmetic between signals of one kind, or of a coarser one."""
        kind = self._look.library.signals[signal].entity

        def part(name: str) -> str:
            align = self._look.joins.align(kind, self._look.library.signals[name].entity)
            there = rows if align is None or align.way != "coarser" else np.unique(align.rows[rows])
            return self.query(name, there[there >= 0])

        def scaled(name: str) -> str:
            own = self._look.library.signals[name].entity == kind
            return part(name) if own else f"scalar({part(name)})"  # its labels are others, or none

        first, *others = derived.product or derived.ratio or derived.sum
        terms = [part(first), *map(scaled, others)]
        joined = (" * " if derived.product else " / " if derived.ratio else " + ").join(f"({term})" for term in terms)
        known = self._look.snapshot.measurements
        joined = " + ".join([joined, *(f"({part(name)})" for name in derived.plus if name in known)])
        less = [part(name) for name in derived.difference if name in known]
        return " - ".join([joined, *(f"({term})" for term in less)])

    def sentence(self, rule: str, rows: Indices) -> str:
        """Say a finding in one line: what, and the largest number."""
        top = int(rows[0]) if len(rows) == 1 else int(self.typical(rule, rows))
        text = lowered(self._rules[rule].summary)
        readings = self.readings(rule, top)
        if not readings:
            return text
        reading = readings[0]
        unit = self._look.library.signals[reading.leaf.signal].unit
        return f"{text}: {self._value(reading, unit)}, expected {self._expected(reading, unit)}"

    def typical(self, rule: str, rows: Indices) -> int:
        """Return the row with the median size among many findings, so that one odd member tells no tale."""
        sizes = [(self._graph.dose(rule, int(row)), int(row)) for row in rows[:64]]
        known = sorted((dose.relative, row) for dose, row in sizes if dose is not None)
        return known[len(known) // 2][1] if known else int(rows[0])


def _reference(reading: Reading) -> float | None:
    """Return the number that a reading was compared with, None where it was not compared with a number."""
    compared = (Above, Below, AbovePeers, BelowPeers, AboveBaseline, BelowBaseline)
    known = isinstance(reading.leaf, compared) and math.isfinite(reading.expected)
    return float(f"{reading.expected:.6g}") if known else None


def _common(origin: Sequence[Mapping[str, str]], rows: Indices) -> dict[str, str]:
    """Return the labels that the sources of these rows share."""
    known = (origin[row] for row in rows.tolist() if row < len(origin) and origin[row])
    shared = dict(next(known, {}))
    for labels in known:
        if not shared.items() <= labels.items():
            shared = dict(shared.items() & labels.items())
        if not shared:
            break
    return dict(sorted(shared.items()))
