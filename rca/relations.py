"""How the rows of a snapshot's tables meet: peers, coarser and finer kinds, and the members of a hub."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rca.library import Entities
from rca.model import Floats, Table
from rca.peers import Indices, folded, grouped_medians
from rca.plain import natural

ENOUGH = 8
"""Members that make a mean, of however many."""


class Alignment(NamedTuple):
    """How rows of one kind read another: `coarser` maps each row to a row of the other kind, `finer` maps each row
    of the other kind to one of ours; -1 where unknown.
    """

    way: Literal["coarser", "finer"]
    rows: Indices


class Values:
    """The values of labels as numbers: equal in all tables, in the order of the values, worked out once a label."""

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self._tables = tables
        self._numbers: dict[str, tuple[int, dict[str, Indices]]] = {}

    def codes(self, kinds: Sequence[str], labels: Sequence[str], *, blank: bool = False) -> list[Indices]:
        """Give equal labels equal numbers over several tables; -1 where one is not known, unless `blank` is a value."""
        count = sum(len(self._tables[kind]) for kind in kinds)
        codes, known, size = np.zeros(count, dtype=np.int64), np.ones(count, dtype=bool), 1
        for label in labels:
            vocabulary, numbers = self._of(label)
            own = np.concatenate([numbers[kind] for kind in kinds])
            known &= own > 0
            if size * vocabulary >= 1 << 62:
                codes = np.unique(codes, return_inverse=True)[1]
                size = count
            codes = codes * vocabulary + own
            size *= vocabulary
        codes = np.unique(codes, return_inverse=True)[1]
        coded = np.where(known | blank, codes, -1).astype(np.int64)
        return np.split(coded, np.cumsum([len(self._tables[kind]) for kind in kinds])[:-1])

    def positions(self, kind: str, targets: str) -> Indices:
        """Return for each row of `kind` the row of `targets` whose key it carries; -1 where there is none."""
        codes, target_codes = self.codes([kind, targets], self._tables[targets].key)
        position = np.full(int(max(codes.max(initial=-1), target_codes.max(initial=-1))) + 1, -1, dtype=np.int64)
        position[target_codes[target_codes >= 0]] = np.flatnonzero(target_codes >= 0)
        return np.where(codes >= 0, position[np.maximum(codes, 0)] if len(position) else -1, -1)

    def _of(self, label: str) -> tuple[int, dict[str, Indices]]:
        """Return how many numbers a label has, and those of each table that carries it; 0 stands for what is not known."""
        if label not in self._numbers:
            columns = {kind: one.columns[label].tolist() for kind, one in self._tables.items() if label in one.columns}
            values = sorted({""}.union(*columns.values()))
            number = {value: index for index, value in enumerate(values)}
            numbers = {
                kind: np.fromiter(map(number.__getitem__, column), np.int64, len(column))
                for kind, column in columns.items()
            }
            self._numbers[label] = (len(values), numbers)
        return self._numbers[label]


class Joins:
    """Answers on a snapshot's tables, each computed once."""

    def __init__(self, entities: Entities, tables: Mapping[str, Table]) -> None:
        self._relations = entities.relations
        self._tables = tables
        self._values = Values(tables)
        self._alignments: dict[tuple[str, str], Alignment | None] = {}
        self._groups: dict[tuple[str, tuple[str, ...]], Indices] = {}
        self._hubs: dict[tuple[str, str, str], tuple[Indices, list[Indices]]] = {}

    def labels(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the labels that a list of labels and relations stands for, each once."""
        found: dict[str, None] = {}
        for name in names:
            for label in self._relations[name].labels if name in self._relations else (name,):
                found[label] = None
        return tuple(found)

    def groups(self, kind: str, names: Sequence[str]) -> Indices:
        """Return the group (n,) of each row by equal labels; -1 for what is in no job where the job is asked for.

        A label that the kind does not have is left out (a node has no model), one that is not known is a value of its
        own: GPUs of unknown model are compared with each other.
        """
        labels = self.labels(names)
        key = (kind, labels)
        if key not in self._groups:
            columns = self._tables[kind].columns
            group = self._values.codes([kind], [label for label in labels if label in columns], blank=True)[0]
            outside = "job" in labels and "job" in columns
            self._groups[key] = np.where(columns["job"] == "", -1, group) if outside else group
        return self._groups[key]

    def align(self, kind: str, other: str) -> Alignment | None:
        """Return how `kind` reads `other`, None where no labels join them."""
        if (kind, other) not in self._alignments:
            self._alignments[kind, other] = self._aligned(kind, other)
        return self._alignments[kind, other]

    def _aligned(self, kind: str, other: str) -> Alignment | None:
        ours, theirs = self._tables.get(kind), self._tables.get(other)
        if ours is None or theirs is None:
            return None
        if kind == other:
            return Alignment("coarser", np.arange(len(ours)))
        if set(theirs.key) <= set(ours.columns):
            return Alignment("coarser", self._values.positions(kind, other))
        if set(ours.key) <= set(theirs.columns):
            return Alignment("finer", self._values.positions(other, kind))
        return None

    def members(self, kind: str, via: str, other: str, row: int) -> Indices | None:
        """Return the rows of `other` that share relation `via` with a row of `kind`; None where that is not known."""
        key = (kind, via, other)
        if key not in self._hubs:
            self._hubs[key] = self._hub(kind, via, other)
        group, members = self._hubs[key]
        return members[group[row]] if group[row] >= 0 else None

    def _hub(self, kind: str, via: str, other: str) -> tuple[Indices, list[Indices]]:
        """Return the hub of each row of `kind`, and the rows of `other` in each hub."""
        relation = self._relations[via]
        ours, theirs = self._tables.get(kind), self._tables.get(other)
        nowhere: tuple[Indices, list[Indices]] = (np.full(0 if ours is None else len(ours), -1, dtype=np.int64), [])
        if ours is None or theirs is None:
            return nowhere
        missing = [label for label in relation.labels if label not in theirs.columns]
        if not missing and set(relation.labels) <= set(ours.columns):
            group, hub = self._values.codes([kind, other], relation.labels)
            if other == "group" and relation.communicator:
                hub = np.where(theirs.columns["group"] == via, hub, -1)
            return group, _listed(group, hub)
        joint = self._tables.get(relation.through or "")
        if joint is None:
            return nowhere
        return self._through(ours, joint, theirs, relation.labels)

    def _through(
        self, ours: Table, joint: Table, theirs: Table, labels: Sequence[str]
    ) -> tuple[Indices, list[Indices]]:
        """Go from our rows to a joining table by `labels`, and on by the other labels of its key, or by where it stands."""
        on = [label for label in joint.key if label not in labels]
        if not set(on) <= set(theirs.columns) and set(theirs.key) <= set(joint.columns):
            on = list(theirs.key)
        if not set(labels) <= set(ours.columns) or not set(on) <= set(theirs.columns):
            return np.full(len(ours), -1, dtype=np.int64), []
        group, middle = self._values.codes([ours.kind, joint.kind], labels)
        there, final = self._values.codes([joint.kind, theirs.kind], on)
        hubs = [np.flatnonzero(np.isin(final, there[middle == hub])) for hub in range(int(group.max(initial=-1)) + 1)]
        return group, hubs


def natural_places(values: Sequence[str]) -> Indices:
    """Return the place of each value among all of them in natural order.

    >>> natural_places(["node-10", "node-9", "node-10"])
    array([1, 0, 1])
    """
    place = {value: number for number, value in enumerate(sorted(set(values), key=natural))}
    return np.fromiter(map(place.__getitem__, values), np.int64, len(values))


def gather(values: Floats, index: Indices, count: int, by: str) -> Floats:
    """Reduce rows (n, T) to their groups (count, T), NaN ignored; `by` is max, min, mean, median or sum."""
    if by == "median":
        medians = grouped_medians(values, index)
        return np.concatenate([medians, np.full((count - len(medians), values.shape[1]), np.nan)])
    gathered = np.full((count, values.shape[1]), np.nan)
    order = np.argsort(index, kind="stable")[int((index < 0).sum()) :]
    found, starts = np.unique(index[order], return_index=True)
    if not len(found):
        return gathered
    rows = values[order]
    if by in ("max", "min"):
        gathered[found] = folded(rows, starts, np.fmax if by == "max" else np.fmin)
        return gathered
    known = ~np.isnan(rows)
    count_known = folded(known.astype(np.float64), starts, np.add)
    total = folded(np.where(known, rows, 0.0), starts, np.add)
    mean = np.divide(total, count_known, out=np.full_like(total, np.nan), where=count_known > 0)
    gathered[found] = mean if by == "mean" else mean * count_known
    return gathered


def tally(flags: NDArray[np.bool_], index: Indices, count: int) -> NDArray[np.int64]:
    """Count the true rows (n, T) of each group, shape (count, T).

    >>> tally(np.array([[True], [True], [False]]), np.array([0, 0, 1]), 2).tolist()
    [[2], [0]]
    """
    tallies = np.zeros((count, flags.shape[1]), dtype=np.int64)
    if flags.all():
        return tallies + np.bincount(index[index >= 0], minlength=count)[:, None]
    some = flags.any(axis=1)  # few rows, mostly
    flags, index = flags[some], index[some]
    order = np.argsort(index, kind="stable")[int((index < 0).sum()) :]
    found, starts = np.unique(index[order], return_index=True)
    if len(found):
        tallies[found] = folded(flags[order].astype(np.int32), starts, np.add)
    return tallies


def total(values: Floats, index: Indices, count: int) -> Floats:
    """Sum the members (n, T) of each group (count, T), of which none falls silent.

    One that has samples at other times counts as the mean of those seen: a lost series makes no total fall.

    >>> total(np.array([[5.0, 5.0], [5.0, np.nan]]), np.array([0, 0]), 1)
    array([[10., 10.]])
    """
    ever = np.isfinite(values).any(axis=1) & (index >= 0)
    members = np.bincount(index[ever], minlength=count).astype(float)[:, None]
    return np.where(members > 0, gather(values, index, count, "mean") * members, np.nan)


def reduced(values: Floats, index: Indices, count: int, by: str) -> Floats:
    """Return what groups read (count, T) by their members (n, T): as `gather` does, a sum as `total` does.

    A mean is known where half of the members are seen, or `ENOUGH`: that of one out of four is that one, with all that makes
    it unlike the others. A median is known by any: one rank tells how long the steps of its job take.

    >>> values, together = np.array([[3.0, 3.0], [5.0, np.nan], [7.0, np.nan]]), np.array([0, 0, 0])
    >>> reduced(values, together, 1, "mean"), reduced(values, together, 1, "median")
    (array([[ 5., nan]]), array([[5., 3.]]))
    """
    if by == "sum":
        return total(values, index, count)
    gathered = gather(values, index, count, by)
    if by == "mean":
        least = np.minimum(np.bincount(index[index >= 0], minlength=count) / 2, ENOUGH)
        gathered[tally(~np.isnan(values), index, count) < least[:, None]] = np.nan
    return gathered


def _listed(group: Indices, hub: Indices) -> list[Indices]:
    """List the positions in `hub` of each code that `group` uses."""
    count = int(max(group.max(initial=-1), hub.max(initial=-1))) + 1
    order = np.argsort(hub, kind="stable")[int((hub < 0).sum()) :]
    bounds = np.searchsorted(hub[order], np.arange(count + 1))
    return [order[bounds[code] : bounds[code + 1]] for code in range(count)]
