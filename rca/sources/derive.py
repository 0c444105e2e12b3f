"""Derived signals: measurements computed from others, element by element or from a finer kind; no I/O."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rca.library import Derived, Entities, Signal
from rca.model import Floats, Measurement, Table
from rca.relations import Joins, reduced
from rca.sources.grid import Ints

_BRIDGES = ("gpu", "rank", "mount")


class Result(NamedTuple):
    """Measurements by signal, and why the other derived signals have none."""

    measurements: dict[str, Measurement]
    absent: dict[str, str]


def derive(
    signals: Mapping[str, Signal],
    entities: Entities,
    tables: Mapping[str, Table],
    measured: Mapping[str, Measurement],
    absent: Mapping[str, str],
) -> Result:
    """Compute every derived signal whose inputs are there; returns those of `measured` and `absent` too.

    A sum needs all its terms, a missing subtrahend counts as nothing. Reductions leave NaN out, as far as `reduced` says.
    """
    work = Work(signals, Members(entities, tables))
    work.result.measurements.update(measured)
    work.result.absent.update(absent)
    return work.finish()


class Members:
    """Which rows of a finer kind belong to which row of a coarser one."""

    def __init__(self, entities: Entities, tables: Mapping[str, Table]) -> None:
        self.entities = entities
        self.tables = tables
        self.joins = Joins(entities, tables)

    def pairs(self, fine: str, coarse: str) -> tuple[Ints, Ints] | None:
        """Return rows of `fine` and the rows of `coarse` that they belong to, None where nothing joins the kinds."""
        direct = self._direct(fine, coarse)
        if direct is not None:
            return direct
        for bridge in _BRIDGES:
            if bridge in (fine, coarse) or bridge not in self.tables:
                continue
            near, far = self._direct(bridge, fine), self._direct(bridge, coarse)
            if near is not None and far is not None:
                left = np.full(len(self.tables[bridge]), -1, dtype=np.int64)
                right = left.copy()
                left[near[0]], right[far[0]] = near[1], far[1]
                both = np.unique(np.stack([left, right], axis=1)[(left >= 0) & (right >= 0)], axis=0)
                return both[:, 0], both[:, 1]
        return None

    def _direct(self, fine: str, coarse: str) -> tuple[Ints, Ints] | None:
        """Join two kinds by the labels of their own tables."""
        if fine not in self.tables or coarse not in self.tables:
            return None
        if "group" in self.entities.kinds[coarse].labels:
            return self._communicators(self.tables[fine], self.tables[coarse])
        way = self.joins.align(coarse, fine)
        if way is None:
            return None
        own = np.flatnonzero(way.rows >= 0)
        return (own, way.rows[own]) if way.way == "finer" else (way.rows[own], own)

    def _communicators(self, fine: Table, groups: Table) -> tuple[Ints, Ints] | None:
        """Join ranks, or what else knows its indices, to their communicators."""
        found: list[tuple[int, int]] = []
        for name, relation in self.entities.relations.items():
            if not relation.communicator or not set(relation.labels) <= set(fine.columns):
                continue
            named = groups.columns["group"] == name
            keys = {key: row for row, key in enumerate(_keys(groups, relation.labels)) if named[row]}
            own = enumerate(_keys(fine, relation.labels))
            found += [(row, keys[key]) for row, key in own if key and key in keys]
        pairs = np.array(found, dtype=np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]


class Work:
    """The signals measured and computed so far."""

    def __init__(self, signals: Mapping[str, Signal], members: Members) -> None:
        self.signals = signals
        self.members = members
        self.result = Result({}, {})
        self._open = {name: signal.derived.inputs() for name, signal in sorted(signals.items()) if signal.derived}

    def take(self, name: str, found: Measurement | str) -> None:
        """Take what was measured, or why nothing was, and compute what needs nothing else."""
        if isinstance(found, str):
            self.result.absent[name] = found
        else:
            self.result.measurements[name] = found
        while ready := [one for one, inputs in self._open.items() if all(map(self._settled, inputs))]:
            for one in ready:
                self.resolve(one, ())
                del self._open[one]

    def finish(self) -> Result:
        """Compute the others, and return all."""
        for name in sorted(self.signals):
            self.resolve(name, ())
        return self.result

    def _settled(self, name: str) -> bool:
        return name in self.result.measurements or name in self.result.absent or name not in self.signals

    def resolve(self, name: str, waiting: tuple[str, ...]) -> Measurement | None:
        """Return the measurement of a signal, computed first where it is derived; None where there is none."""
        signal = self.signals.get(name)
        if name in self.result.measurements or name in self.result.absent or signal is None:
            return self.result.measurements.get(name)
        if signal.derived is None:
            return None
        if name in waiting:
            self.result.absent[name] = "is derived from itself"
            return None
        found = self._computed(signal, signal.derived, (*waiting, name))
        if isinstance(found, str):
            self.result.absent[name] = found
            return None
        self.result.measurements[name] = found
        return found

    def _computed(self, signal: Signal, how: Derived, waiting: tuple[str, ...]) -> Measurement | str:
        """Compute one derived signal, or say why it cannot be."""
        for name in how.inputs():
            optional = name in (*how.plus, *how.difference)
            if self.resolve(name, waiting) is None and not optional:
                reason = self.result.absent.get(name, "which is not known")
                return reason if reason.startswith("needs ") else f"needs {name}: {reason}"
        if how.of is not None:
            return self._reduced(signal, how.of, how.by or "max")
        parts = {name: self._aligned(signal.entity, name) for name in how.inputs() if name in self.result.measurements}
        apart = [name for name, part in parts.items() if part is None]
        if apart:
            return f"needs {apart[0]}, which no label joins to a {signal.entity}"
        return _combined(how, {name: part for name, part in parts.items() if part is not None})

    def _reduced(self, signal: Signal, of: str, by: str) -> Measurement | str:
        """Gather a finer signal."""
        fine = self.signals[of].entity
        pairs = self.members.pairs(fine, signal.entity)
        if pairs is None or len(pairs[0]) == 0:
            return f"needs a {signal.entity} for each {fine}, and none is known"
        rows, groups = pairs
        size = len(self.members.tables[signal.entity])
        inner = self.result.measurements[of]
        return _mapped(replace(inner, origin=(), query=""), lambda values: reduced(values[rows], groups, size, by))

    def _aligned(self, entity: str, name: str) -> Measurement | None:
        """Return an input on the rows of an entity: its own, or read from a coarser kind."""
        kind = self.signals[name].entity
        measurement = self.result.measurements[name]
        if kind == entity:
            return measurement
        way = self.members.joins.align(entity, kind)
        if way is None or way.way != "coarser":
            return None
        index = way.rows
        read = _mapped(measurement, lambda values: np.where(index[:, None] >= 0, values[index], np.nan))
        return replace(read, origin=(), query="")


def _mapped(measurement: Measurement, change: Callable[[Floats], Floats]) -> Measurement:
    """Apply a function to both matrices of a measurement."""
    before = None if measurement.before is None else change(measurement.before)
    return replace(measurement, window=change(measurement.window), before=before)


def _combined(how: Derived, parts: Mapping[str, Measurement]) -> Measurement:
    """Combine inputs on the same rows."""
    inputs = list(parts.values())
    window = _operated(how, {name: part.window for name, part in parts.items()})
    before = None
    if all(part.before is not None for part in inputs):
        before = _operated(how, {name: part.before for name, part in parts.items() if part.before is not None})
    return Measurement(
        window=window,
        before=before,
        interval=max(part.interval for part in inputs),
        smoothing=max(part.smoothing for part in inputs),
    )


def _operated(how: Derived, values: Mapping[str, Floats]) -> Floats:
    """Apply the arithmetic of a derived signal.

    >>> one, two = np.array([[3.0]]), np.array([[np.nan]])
    >>> _operated(Derived(sum=("a",), difference=("b",)), {"a": one, "b": two})
    array([[3.]])
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if how.product or how.ratio:
            first, *others = [values[name] for name in how.product or how.ratio]
            result = first.copy()
            for other in others:
                result = result * other if how.product else result / other
        else:
            result = np.sum([values[name] for name in how.sum], axis=0)
            for name in how.plus:
                result = result + np.nan_to_num(values.get(name, 0.0))
            for name in how.difference:
                result = result - np.nan_to_num(values.get(name, 0.0))
    result[~np.isfinite(result)] = np.nan
    return result


def _keys(table: Table, labels: Sequence[str]) -> Iterator[tuple[str, ...] | None]:
    """Yield the values of labels row by row, None where one is not known."""
    for values in zip(*(table.columns[label] for label in labels), strict=True):
        yield values if all(values) else None
