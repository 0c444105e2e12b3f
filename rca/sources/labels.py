"""Label sets of series. What all but the metric name say is kept once, however many metrics say it.

A hundred metrics of one exporter carry the same labels. Each distinct set is decoded once, gets a number, and from then
on series are compared, read and joined by that number.
"""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import msgspec
import numpy as np
from numpy.typing import NDArray

NAME = "__name__"
_NAME = b'"__name__":"'
KEPT = 4
"""So many answers are kept, to know the next one by that names the same sets."""
_SET = msgspec.json.Decoder(dict[str, str])
_SETS = msgspec.json.Decoder(list[dict[str, str]])


class Pool:
    """Label sets without `__name__`, numbered from 0 in the order of their arrival; threads may add to it at once."""

    def __init__(self) -> None:
        self.sets: list[dict[str, str]] = []
        self._numbers: dict[bytes, int] = {}
        self._sorted: set[tuple[str, ...]] = set()
        self._reduced: dict[tuple[str, ...], _Reduced] = {}
        self._runs: list[tuple[list[bytes], NDArray[np.int64]]] = []  # an exporter's metrics name all the same sets
        self._lock = threading.Lock()

    def read(self, texts: Sequence[bytes | msgspec.Raw]) -> "LabelSets":
        """Read label sets that are written as JSON; raises msgspec.DecodeError where one is none."""
        names, sets = _split(texts)
        known = next((who for run, who in self._runs if run == sets), None)
        if known is None:
            known = self._read(sets)
            self._runs = [(sets, known), *self._runs[: KEPT - 1]]
        return LabelSets(names, known, self)

    def _read(self, sets: Sequence[bytes]) -> NDArray[np.int64]:
        """Return the numbers of sets."""
        who = list(map(self._numbers.get, sets))
        if None in who:
            self._add([text for text, number in zip(sets, who, strict=True) if number is None])
            who = list(map(self._numbers.get, sets))
        return np.array(who, dtype=np.int64)

    def adopt(self, labels: Sequence[Mapping[str, str]]) -> "LabelSets":
        """Return label sets as sets of this pool."""
        if isinstance(labels, LabelSets) and labels.pool is self:
            return labels
        return self.read([msgspec.json.encode(dict(sorted(one.items()))) for one in labels])

    def _add(self, texts: Sequence[bytes]) -> None:
        """Give numbers to sets that are seen under these spellings for the first time."""
        found = _SETS.decode(b"[" + b",".join(texts) + b"]")
        with self._lock:
            for text, labels in zip(texts, found, strict=True):
                names = tuple(labels)
                own = labels if names in self._sorted else dict(sorted(labels.items()))
                self._sorted.add(tuple(own))
                number = self._numbers.setdefault(msgspec.json.encode(own), len(self.sets))
                if number == len(self.sets):
                    self.sets.append(own)
                self._numbers[text] = number

    def reduced(self, who: NDArray[np.int64], only: Sequence[str] | None, without: Sequence[str]) -> NDArray[np.int64]:
        """Return for each set a number of what it says under `only` these labels, or under all `without` some.

        Equal numbers mean equal labels, across calls with the same `only` and `without`.

        >>> pool = Pool()
        >>> sets = pool.adopt([{"a": "1", "b": "1"}, {"a": "1", "b": "2"}, {"a": "2"}])
        >>> pool.reduced(sets.who, None, ["b"]), pool.reduced(sets.who, ["b"], [])
        (array([0, 0, 1]), array([0, 1, 2]))
        """
        if only is None and not without:
            return who
        key = ("without", *without) if only is None else ("only", *only)
        return self._reduced.setdefault(key, _Reduced(only, frozenset(without))).numbers(who, self.sets)


class _Reduced:
    """Numbers of label sets of which only some labels count."""

    def __init__(self, only: Sequence[str] | None, without: frozenset[str]) -> None:
        self._only = only
        self._without = without
        self._keys: dict[tuple[object, ...], int] = {}
        self._known: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def numbers(self, who: NDArray[np.int64], sets: Sequence[Mapping[str, str]]) -> NDArray[np.int64]:
        """Return the numbers of sets, worked out where they are new."""
        fresh = np.full(len(sets) - len(self._known), -1, dtype=np.int64)
        known = self._known = np.concatenate([self._known, fresh])
        for number in np.unique(who[known[who] < 0]).tolist():
            known[number] = self._keys.setdefault(self._key(sets[number]), len(self._keys))
        return known[who]

    def _key(self, labels: Mapping[str, str]) -> tuple[object, ...]:
        if self._only is not None:
            return tuple(labels.get(name, "") for name in self._only)
        rest = dict(labels)
        for name in self._without:
            rest.pop(name, None)
        return tuple(rest.items())  # sets are sorted by label


@dataclass(frozen=True, eq=False)
class LabelSets(Sequence[dict[str, str]]):
    """The labels of some series: the metric name of each (empty: it has none), and its set in a pool, shape (n,)."""

    names: Sequence[str]
    who: NDArray[np.int64]
    pool: Pool

    def __len__(self) -> int:
        return len(self.who)

    @overload
    def __getitem__(self, index: int) -> dict[str, str]: ...
    @overload
    def __getitem__(self, index: slice) -> "LabelSets": ...
    def __getitem__(self, index: int | slice) -> "dict[str, str] | LabelSets":
        if isinstance(index, slice):
            return self.take(np.arange(len(self.who))[index])
        name, labels = self.names[index], self.pool.sets[self.who[index]]
        return {NAME: name, **labels} if name else dict(labels)

    def take(self, rows: NDArray[np.int64]) -> "LabelSets":
        """Return the labels of some of the series."""
        return LabelSets([self.names[row] for row in rows.tolist()], self.who[rows], self.pool)

    def first(self, names: Sequence[str]) -> list[str]:
        """Return for each of the series the first of these labels that it has, empty where it has none."""
        sets = self.pool.sets
        return [
            next((sets[number][name] for name in names if sets[number].get(name)), "") for number in self.who.tolist()
        ]

    def each(self, read: Callable[[Sequence[Mapping[str, str]]], NDArray[np.int64]]) -> NDArray[np.int64]:
        """Apply what reads a number out of each label set without its name, once for each distinct set."""
        sets, index = np.unique(self.who, return_inverse=True)
        return read([self.pool.sets[number] for number in sets.tolist()])[index]


def metric_names(labels: Sequence[Mapping[str, str]]) -> Sequence[str]:
    """Return the metric name of each label set, empty where it has none."""
    return labels.names if isinstance(labels, LabelSets) else [one.get(NAME, "") for one in labels]


def taken(labels: Sequence[dict[str, str]], rows: NDArray[np.int64]) -> Sequence[dict[str, str]]:
    """Return the labels of some series."""
    return labels.take(rows) if isinstance(labels, LabelSets) else [labels[row] for row in rows.tolist()]


def _split(texts: Sequence[bytes | msgspec.Raw]) -> tuple[list[str], list[bytes]]:
    """Return the names out of label sets that are written as JSON, and the sets without them.

    Mostly all sets are of one metric; then all are parted at once.
    """
    name = _parted(bytes(texts[0]))[0] if texts else b""
    if name:
        pair = b'"__name__":"' + name + b'",'
        joined = b"\n".join(texts)
        without = joined.replace(pair, b"")
        sets = without.split(b"\n")
        if len(joined) - len(without) == len(pair) * len(texts) == len(pair) * len(sets):
            return [name.decode()] * len(sets), sets
    names, parted = [], []
    for text in texts:
        name, rest = _parted(bytes(text))
        names.append(sys.intern(name.decode()))
        parted.append(rest)
    return names, parted


def _parted(text: bytes) -> tuple[bytes, bytes]:
    r"""Return the name out of a label set that is written as JSON, and the set without it.

    >>> _parted(b'{"__name__":"up","job":"a"}'), _parted(b'{"A":"1","__name__":"up"}'), _parted(b'{"a":"\\"__name__"}')
    ((b'up', b'{"job":"a"}'), (b'up', b'{"A":"1"}'), (b'', b'{"a":"\\"__name__"}'))
    """
    before, found, after = text.partition(_NAME)
    name, _, rest = after.partition(b'"')
    if b"\\" in name or (not found and b"__name__" in text):
        labels = _SET.decode(text)
        return labels.pop(NAME, "").encode(), msgspec.json.encode(labels)
    if not found:
        return b"", text
    return name, before[:-1] + rest if before.endswith(b",") else before + rest.removeprefix(b",")
