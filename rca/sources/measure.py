"""Signals out of raw series: queries are evaluated, gathered to one row an entity, and fill each other's holes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from rca import promql
from rca.library import Codes, Signal
from rca.model import Floats, Measurement
from rca.plain import natural
from rca.promql import Samples
from rca.sources.asking import Query, Questions
from rca.sources.expressions import Raw, Sampled, bind, settled
from rca.sources.grid import Grid, Ints, combine
from rca.sources.identity import Reader
from rca.sources.labels import LabelSets
from rca.sources.tables import Directory


@dataclass(frozen=True)
class Times:
    """The grid of the window, the longer one that ends with it and begins with the baseline, and as much of that as
    any samples lie on."""

    window: Grid
    whole: Grid
    seen: Grid

    def split(self, values: Floats) -> tuple[Floats, Floats | None]:
        """Return the window's part of a matrix, and the baseline's where the matrix is on more than the window."""
        inner = values.shape[1] - self.window.size
        if inner == 0:
            return values, None
        before = values[:, :inner]
        empty = self.whole.size - self.window.size - inner
        if empty:
            before = np.concatenate([np.full((len(values), empty), np.nan), before], axis=1)
        return values[:, inner:], before


@dataclass(frozen=True)
class Material:
    """All that was read: the series by number of the answer, why some are lacking,
    for each kind the reader of its labels and the reading of each series (`codes`, by block and kind), and the
    entities that came of it."""

    series: Mapping[int, Sampled]
    failed: Mapping[int, str]
    readers: Mapping[str, Reader]
    codes: Mapping[tuple[int, str], Ints]
    directory: Directory


class _Filled(NamedTuple):
    """One query's answer: a row an entity, on one of the grids, with the labels that pick each row."""

    values: Floats
    query: str
    interval: float
    width: float
    origins: Sequence[Mapping[str, str]]


@dataclass
class _Odd:
    """What was odd about a signal: samples outside its range, and labels that are no code of it; `texts` are the label
    values that it takes as they come, numbered in the order of their arrival."""

    invalid: int = 0
    example: float = 0.0
    unknown: set[str] = field(default_factory=set)
    texts: dict[str, int] = field(default_factory=dict)


class Bench:
    """Evaluates the signals of one snapshot; what several of them read is computed once, and dropped after the last."""

    def __init__(self, asked: Questions, material: Material, times: Times) -> None:
        self.asked = asked
        self.material = material
        self.times = times
        self._said: dict[str, list[str]] = {}
        self._raw: dict[tuple[int, int], Raw] = {}
        self._origin: dict[str, list[tuple[Ints, list[Mapping[str, str]]]]] = {}
        self._open = Counter(
            number for queries in asked.queries.values() for query in queries for number in set(query.reads.values())
        )

    def warnings(self) -> list[str]:
        """Return what was odd about the signals measured so far."""
        return [text for name in sorted(self._said) for text in self._said[name]]

    def measure(self, name: str, signal: Signal) -> Measurement | str:
        """Return a signal's measurement, or why there is none."""
        odd, said = _Odd(), self._said.setdefault(name, [])
        queries = self.asked.queries.get(name, ())
        found = []
        for query in queries:
            filled = self._filled(signal, query, odd)
            self._done(query)
            if filled is not None:
                found.append(filled)
        if odd.invalid and signal.valid is not None:
            low, high = signal.valid
            said.append(
                f"{name}: {odd.invalid} samples outside {low:g} to {high:g} dropped, for example {odd.example:g}"
            )
        if odd.unknown:
            said.append(f"{name}: unknown {', '.join(sorted(odd.unknown)[:3])}, series left out")
        if not found:
            return self._reason(signal, queries)
        return _ordered(self._merged(found), odd.texts) if odd.texts else self._merged(found)

    def _filled(self, signal: Signal, query: Query, odd: _Odd) -> _Filled | None:
        """Evaluate one query; None where it has no sample of any entity."""
        if query.missing or any(number not in self.material.series for number in query.reads.values()):
            return None
        reaches = all(self.asked.back[number] for number in query.reads.values())
        grid = self.times.seen if reaches else self.times.window
        size = len(self.material.directory.tables[signal.entity])

        def find(one: Samples) -> tuple[Raw, Ints]:
            number = query.reads[one]
            return self._on(number, grid), self._rows(number, signal.entity)

        node = bind(query.plan, find)
        if len(node.rows) == 0 or size == 0:
            return None
        answer = node.answer()
        values = _within(answer.values, signal.valid, odd)
        if signal.codes is not None:
            values = self._coded(values, node.labels, signal.codes, odd)
        how = "last" if signal.codes is not None else signal.combine
        order = settled(node.labels, node.rows) if how in ("sum", "mean", "last") else None
        if order is None:
            values = combine(values, node.rows, size, how)
        else:
            when = answer.stamps()[order] if answer.stamps is not None and how == "last" else None
            values = combine(values[order], node.rows[order], size, how, when)
        if not np.isfinite(values).any():
            return None
        interval = node.interval if np.isfinite(node.interval) else grid.step
        interval, width = round(interval, 3), round(answer.width, 1)
        return _Filled(values, self._spelled(query), interval, width, self._origins(signal, query))

    def _coded(self, values: Floats, labels: LabelSets | None, codes: Codes, odd: _Odd) -> Floats:
        """Turn series into numbers for the values of a label, whatever it is called there."""
        names = (codes.label, *(name for name, _ in self.asked.aliases.get(codes.label, ())))
        own = [""] * len(values) if labels is None else labels.first(names)
        return _counted(values, own, codes.values, odd) if codes.values else _numbered(values, own, odd)

    def _on(self, number: int, grid: Grid) -> Raw:
        """Return an answer on a grid."""
        key = (number, grid.size)
        if key not in self._raw:
            self._raw[key] = Raw(self.material.series[number], grid)
        return self._raw[key]

    def _done(self, query: Query) -> None:
        """Drop what no further query reads."""
        for number in set(query.reads.values()):
            self._open[number] -= 1
            if self._open[number] == 0:
                for key in [key for key in self._raw if key[0] == number]:
                    del self._raw[key]

    def _rows(self, number: int, kind: str) -> Ints:
        """Return the table row of each series of a block, -1 for none."""
        return self.material.directory.rows[kind][self.material.codes[number, kind]]

    def _origins(self, signal: Signal, query: Query) -> list[Mapping[str, str]]:
        """Return for each table row the raw labels that pick it out of the first series that the query reads.

        Of several spellings the first in order counts.
        """
        number = next(iter(query.reads.values()))
        codes = self.material.codes[number, signal.entity]
        for known, origins in self._origin.get(signal.entity, ()):
            if np.array_equal(known, codes):
                return origins
        origins = self._read_origins(signal.entity, codes)
        self._origin.setdefault(signal.entity, []).append((codes, origins))
        return origins

    def _read_origins(self, kind: str, codes: Ints) -> list[Mapping[str, str]]:
        """Return for each table row of a kind the raw labels that pick it out of series with these readings."""
        rows = self.material.directory.rows[kind][codes]
        pairs = np.unique(np.stack([rows, codes], axis=1)[rows >= 0], axis=0)
        origins: list[Mapping[str, str]] = [{}] * len(self.material.directory.tables[kind])
        seen = self.material.readers[kind].seen
        for row, code in pairs.tolist():
            origin = seen[code].origin
            if not origins[row] or sorted(origin.items()) < sorted(origins[row].items()):
                origins[row] = origin
        return origins

    def _spelled(self, query: Query) -> str:
        """Return a query in the spelling that the store has, where it has only one."""
        spelling: dict[str, tuple[str, float]] = {}
        for one, number in query.reads.items():
            names = set(self.material.series[number].labels.names)
            if one.name and len(names) == 1 and one.name not in names:
                name = names.pop()
                spelling[one.name] = (name, self.asked.factor(number, name))
        return promql.respell(query.text, spelling) if spelling else query.text

    def _merged(self, found: Sequence[_Filled]) -> Measurement:
        """Let each answer fill the rows that those before it left empty."""
        first = found[0]
        window, before = self.times.split(first.values)
        origins = list(first.origins)
        interval, width = first.interval, first.width
        for other in found[1:]:
            their_window, their_before = self.times.split(other.values)
            before = before if their_before is not None else None
            empty = ~np.isfinite(window).any(axis=1)
            if before is not None:
                empty &= ~np.isfinite(before).any(axis=1)
            take = np.flatnonzero(empty & np.isfinite(their_window).any(axis=1))
            if len(take) == 0:
                continue
            window = window.copy()
            window[take] = their_window[take]
            if before is not None and their_before is not None:
                before = before.copy()
                before[take] = their_before[take]
            for row in take.tolist():
                origins[row] = other.origins[row]
            interval, width = max(interval, other.interval), max(width, other.width)
        return Measurement(window, before, interval, width, first.query, origins)

    def _reason(self, signal: Signal, queries: Sequence[Query]) -> str:
        """Say why a signal has no measurement."""
        if not queries:
            return "has no query"
        numbers = {number for query in queries if not query.missing for number in query.reads.values()}
        if not numbers:
            missing = list(dict.fromkeys(name for query in queries for name in query.missing))
            return f"no series {', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''} on the server"
        failed = sorted(self.material.failed[number] for number in numbers & self.material.failed.keys())
        if failed:
            return failed[0]
        rows = [self._rows(number, signal.entity) for number in sorted(numbers & self.material.series.keys())]
        count = sum(len(one) for one in rows)
        if count == 0:
            return f"no series matches {queries[0].text}"
        if all((one < 0).all() for one in rows):
            return f"none of its {count} series names a {signal.entity}"
        if signal.codes is not None and not signal.codes.values:
            return f"none of its {count} series has a label {signal.codes.label}"
        return "its series have no usable sample in the window"


def _within(values: Floats, valid: tuple[float, float] | None, odd: _Odd) -> Floats:
    """Drop what lies outside a closed interval."""
    if valid is None:
        return values
    low, high = valid
    with np.errstate(invalid="ignore"):
        outside = (values < low) | (values > high)
    count = int(np.count_nonzero(outside))
    if count == 0:
        return values
    odd.invalid += count
    odd.example = float(values[outside].min())
    return np.where(outside, np.nan, values)


def _numbered(values: Floats, own: Sequence[str], odd: _Odd) -> Floats:
    """Turn series into the number of their label's value, whatever they read; those without it say nothing."""
    numbers = np.array([odd.texts.setdefault(text, len(odd.texts)) if text else np.nan for text in own])
    return np.where(np.isfinite(values), numbers[:, None], np.nan)


def _ordered(measured: Measurement, texts: Mapping[str, int]) -> Measurement:
    """Renumber texts in natural order, so that the order of arrival changes nothing."""
    ordered = sorted(texts, key=natural)
    place = np.empty(len(texts))
    place[[texts[text] for text in ordered]] = np.arange(len(texts))

    def renumbered(values: Floats) -> Floats:
        known = np.isfinite(values)
        return np.where(known, place[np.where(known, values, 0.0).astype(np.int64)], np.nan)

    before = None if measured.before is None else renumbered(measured.before)
    return replace(measured, window=renumbered(measured.window), before=before, texts=tuple(ordered))


def _counted(values: Floats, own: Sequence[str], codes: Sequence[str], odd: _Odd) -> Floats:
    """Turn series of a state set into the index of their label's value, where they are not 0."""
    index = {value: float(number) for number, value in enumerate(codes)}
    odd.unknown |= {value for value in own if value not in index}
    numbers = np.array([index.get(value, np.nan) for value in own])
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(values) & (values != 0.0), numbers[:, None], np.nan)
