"""Who a series speaks of: canonical labels out of whatever an exporter calls them, and one name for each node."""

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from rca.library import Entities, Label
from rca.sources.grid import Ints
from rca.sources.labels import LabelSets


class Seen(NamedTuple):
    """What labels say of an entity: values by canonical label, the raw labels that they came from (`via`), and those
    raw labels with their values that name the entity (`origin`)."""

    values: Mapping[str, str]
    via: Mapping[str, str]
    origin: Mapping[str, str]


_PLAIN = re.compile(r"(?:[^\\]|\\1(?![0-9]))*")
"""A replacement that refers to no group but the first."""


@dataclass(frozen=True)
class _Shape:
    """Series with the same label names: which of the labels to read, and what was read from them before."""

    sources: Mapping[str, str]
    pick: Callable[[Mapping[str, str]], object]
    codes: dict[object, int]


class Reader:
    """Reads the labels of one kind of entity; distinct readings are numbered in `seen`.

    Millions of label sets share few spellings: the labels to look at are chosen once per set of label names, and a
    set of values is resolved once.
    """

    def __init__(self, entities: Entities, kind: str, also: Sequence[str] = ()) -> None:
        described = entities.kinds[kind]
        self.key = described.labels
        wanted = dict.fromkeys((*self.key, *described.columns, *also, *(("uuid",) if "gpu" in self.key else ())))
        self.labels = {name: entities.labels[name] for name in wanted if name in entities.labels}
        self.seen: list[Seen] = []
        self._known: Ints = np.zeros(0, dtype=np.int64)
        self._texts: dict[str, dict[str, str]] = {name: {} for name, label in self.labels.items() if label.rewrite}
        self._shapes: dict[tuple[str, ...], _Shape] = {}
        self._alike: dict[tuple[tuple[str, str], ...], dict[object, int]] = {}

    def read_sets(self, labels: LabelSets) -> Ints:
        """Return what `read` does, for sets of one pool: each set is read once, however many series have it."""
        sets = labels.pool.sets
        self._known = np.concatenate([self._known, np.full(len(sets) - len(self._known), -1, dtype=np.int64)])
        _, first = np.unique(labels.who, return_index=True)
        fresh = labels.who[np.sort(first)]
        fresh = fresh[self._known[fresh] < 0]
        self._known[fresh] = self.read([sets[number] for number in fresh.tolist()])
        return self._known[labels.who]

    def read(self, series: Sequence[Mapping[str, str]]) -> Ints:
        """Return for each label set the number of its reading, shape (n,)."""
        codes = [0] * len(series)
        for index, labels in enumerate(series):
            names = tuple(labels)
            shape = self._shapes.get(names)
            if shape is None:
                shape = self._shapes[names] = self._shaped(names)
            values = shape.pick(labels)
            code = shape.codes.get(values)
            if code is None and not all(labels.values()):
                code = int(self.read([{name: value for name, value in labels.items() if value}])[0])
            elif code is None:
                code = shape.codes[values] = self._resolve(labels, shape.sources)
            codes[index] = code
        return np.array(codes, dtype=np.int64)

    def _sources(self, names: Iterable[str]) -> dict[str, str]:
        """Return for each canonical label the raw label to read; what names the entity is read for nothing else."""
        present = frozenset(names)
        found: dict[str, str] = {}
        for label, described in self.labels.items():
            taken = {found[key] for key in self.key if key in found} if label not in self.key else frozenset()
            for alias in described.aliases:
                if alias in present and alias not in taken:
                    found[label] = alias
                    break
        return found

    def _shaped(self, names: tuple[str, ...]) -> _Shape:
        """Choose what to read of series with these label names."""
        sources = self._sources(names)
        raw = sorted(set(sources.values()))
        pick: Callable[[Mapping[str, str]], object] = itemgetter(*raw) if raw else lambda _: ()
        return _Shape(sources, pick, self._alike.setdefault(tuple(sources.items()), {}))

    def _resolve(self, labels: Mapping[str, str], via: Mapping[str, str]) -> int:
        """Read one label set through these raw labels."""
        values = {
            label: self._rewritten(label, labels[alias]) if label in self._texts else labels[alias]
            for label, alias in via.items()
        }
        naming = [label for label in self.key if label in via]
        if len(naming) < len(self.key) and "uuid" in via:
            naming.append("uuid")
        self.seen.append(Seen(values, via, {via[label]: labels[via[label]] for label in naming}))
        return len(self.seen) - 1

    def _rewritten(self, label: str, value: str) -> str:
        """Rewrite a value; values repeat."""
        known = self._texts[label]
        text = known.get(value)
        if text is None:
            text = known[value] = rewritten(value, self.labels[label])
        return text


def rewritten(value: str, label: Label) -> str:
    """Apply the first rewrite that matches the whole value.

    >>> rewritten("node-07:9100", Label(aliases=(), rewrite=(("([^:]+):[0-9]+", r"\\1"),)))
    'node-07'
    """
    for pattern, replacement in label.rewrite:
        found = _compiled(pattern).fullmatch(value)
        if found is not None:
            whole = _PLAIN.fullmatch(replacement)
            return replacement.replace(r"\1", found[1] or "") if whole else found.expand(replacement)
    return value


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> "re.Pattern[str]":
    return re.compile(pattern)


class Names(NamedTuple):
    """One name for each spelling of a node, and what was odd about the spellings."""

    canonical: Mapping[str, str]
    warnings: tuple[str, ...]


def unify(spellings: Iterable[str], hosts: Mapping[str, str]) -> Names:
    """Give nodes one name each, whatever their exporters call them.

    Case does not count. An address is replaced by the host name that `hosts` (from `node_uname_info`) has for it. A
    domain is dropped where exactly one full name has that first part and another source uses the first part alone.

    >>> unify(["node-07", "NODE-07.dc1", "10.0.0.8", "node-09.dc1"], {"10.0.0.8": "node-08"}).canonical
    {'10.0.0.8': 'node-08', 'NODE-07.dc1': 'node-07', 'node-07': 'node-07', 'node-09.dc1': 'node-09.dc1'}
    """
    every = sorted(set(spellings))
    names = {one: (hosts.get(one, one) if is_address(one) else one).lower() for one in every}
    known = set(names.values())
    full: dict[str, set[str]] = {}
    for name in known:
        if "." in name and not is_address(name):
            full.setdefault(name.partition(".")[0], set()).add(name)
    short = {next(iter(longer)): first for first, longer in full.items() if first in known and len(longer) == 1}
    warnings = [
        f"nodes: {first} may be {' or '.join(sorted(longer))}, they are kept apart"
        for first, longer in sorted(full.items())
        if first in known and len(longer) > 1
    ]
    return Names({one: short.get(name, name) for one, name in names.items()}, tuple(warnings))


def is_address(name: str) -> bool:
    """Say whether a node's name is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
