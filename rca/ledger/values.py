"""The values of a job's series as they stand, by name, rank and labels."""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rca.ledger.families import FAMILIES, Type, family_of

REPORTER = "\0"
"""Stands for the rank that prints for all, until it is known which one that is."""
JOB = ""
"""Stands for no rank: what is true of the whole job."""
Extra = tuple[tuple[str, str], ...]


class Key(NamedTuple):
    """What tells a series from others: its name, the rank that it speaks of, and further labels."""

    name: str
    rank: str
    extra: Extra = ()


class Sample(NamedTuple):
    """One value to expose: `name` as it is exposed, `family` as HELP and TYPE name it."""

    name: str
    type: Type
    help: str
    labels: Mapping[str, str]
    value: float

    @property
    def family(self) -> str:
        """Return the name of the family."""
        return family_of(self.name)


class Values:
    """The latest value of each series; `touched` are those that were set or counted since it was emptied last."""

    def __init__(self) -> None:
        self.values: dict[Key, float] = {}
        self.touched: dict[Key, None] = {}
        self._keys: dict[tuple[str, str, Extra], Key] = {}

    def _key(self, name: str, rank: str, extra: Extra) -> Key:
        """Return the key of a series; it is made once, as thousands of lines speak of the same few."""
        parts = (name, rank, extra)
        key = self._keys.get(parts)
        if key is None:
            key = self._keys[parts] = Key(name, rank, extra)
        return key

    def set(self, name: str, rank: str, value: float, extra: Extra = ()) -> None:
        """Set a gauge; one that is no number is absent."""
        key = self._key(name, rank, extra)
        if math.isfinite(value):
            self.values[key] = value
            self.touched[key] = None
        else:
            self.drop(key)

    def add(self, name: str, rank: str, amount: float, extra: Extra = ()) -> None:
        """Add to a counter, which begins at 0; what is no number or less than nothing is not added."""
        key = self._key(name, rank, extra)
        self.values[key] = self.values.get(key, 0.0) + (amount if 0.0 < amount < math.inf else 0.0)
        self.touched[key] = None

    def observe(self, name: str, rank: str, seconds: float, count: float = 1.0, extra: Extra = ()) -> None:
        """Add `count` observations of a mean of `seconds` to a summary."""
        if count > 0.0 and 0.0 <= seconds < math.inf:
            self.add(f"{name}_sum", rank, seconds * count, extra)
            self.add(f"{name}_count", rank, count, extra)

    def again(self, keys: Mapping[Key, None]) -> None:
        """Note that series stay as they are."""
        self.touched.update(keys)

    def drop(self, key: Key) -> None:
        """Let a series end."""
        self.values.pop(key, None)
        self.touched.pop(key, None)

    def drop_all(self, prefix: str, rank: str | None = None) -> None:
        """Let all series of names that begin so end, of one rank or of all."""
        for key in [one for one in self.values if one.name.startswith(prefix) and rank in (None, one.rank)]:
            self.drop(key)

    def samples(self, job: str, reporter: str) -> Iterator[Sample]:
        """Yield all values, in the order of their names and labels."""
        for key in sorted(self.values, key=lambda key: (family_of(key.name), key)):
            family = FAMILIES[family_of(key.name)]
            yield Sample(key.name, family.type, family.help, labels_of(key, job, reporter), self.values[key])


def labels_of(key: Key, job: str, reporter: str) -> dict[str, str]:
    """Return the labels of a series.

    >>> labels_of(Key("train_loss", REPORTER, (("loss", "lm"),)), "j", "last")
    {'job_id': 'j', 'rank': 'last', 'loss': 'lm'}
    """
    rank = reporter if key.rank == REPORTER else key.rank
    return {"job_id": job, **({"rank": rank} if rank else {}), **dict(key.extra)}
