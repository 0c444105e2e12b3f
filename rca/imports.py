"""What the names of other systems are called here: one row of `tables/imports.csv` a name, and how to look one up."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Self, get_args

from rca.errors import suggestion

Takes = Literal["value", "per_step", "per_second", "axis"]
System = Literal["training", "mlflow", "wandb", "nvidia_smi", "influx"]


class Import(NamedTuple):
    """A row: names of a system that fit `name`, and the metric that they become."""

    system: System
    name: re.Pattern[str]
    metric: str
    takes: Takes
    labels: Mapping[str, str]
    factor: float
    axis: str

    @classmethod
    def read(cls, row: Mapping[str, str | None]) -> Self:
        """Read a row of the table; raises ValueError with what is wrong in it.

        >>> Import.read({"system": "training", "name": "lm loss", "metric": "train_loss", "labels": "loss=lm"}).labels
        {'loss': 'lm'}
        """
        system, takes = _one_of("system", row, get_args(System)), _one_of("takes", row, get_args(Takes), "value")
        name, metric = row.get("name") or "", row.get("metric") or ""
        if not name or not metric:
            raise ValueError("needs a name and a metric")
        try:
            pattern = re.compile(name)
        except re.error as error:
            raise ValueError(f"name {name!r} is not a regular expression, {error}") from error
        pairs = [pair.partition("=") for pair in (row.get("labels") or "").split(";") if pair]
        if not all(key and value for key, _, value in pairs):
            raise ValueError(f"labels {row.get('labels')!r} are not pairs, write for example phase=grads_sync;loss=lm")
        try:
            factor = float(row.get("factor") or 1)
        except ValueError as error:
            raise ValueError(f"factor {row.get('factor')!r} is not a number") from error
        labels = {key: value for key, _, value in pairs}
        return cls(system, pattern, metric, takes, labels, factor, row.get("axis") or "")  # type: ignore[arg-type]


class Found(NamedTuple):
    """What a name becomes: the row that fits it, the order of that row, and the labels of both."""

    row: Import
    order: int
    labels: Mapping[str, str]


def itself(metric: str) -> Found:
    """Return what a metric becomes that is called here as it is there."""
    return Found(Import("influx", re.compile(re.escape(metric)), metric, "value", {}, 1.0, ""), -1, {})


class Imports:
    """The table, to look names up in; `known` are metrics that need no other name, since signals read them."""

    def __init__(self, rows: Sequence[Import], known: Iterable[str] = ()) -> None:
        self.known = frozenset(known)
        self._rows = list(enumerate(rows))
        self._found: dict[tuple[str, str], Found | None] = {}

    def find(self, name: str, *systems: System) -> Found | None:
        """Return what a name of some systems becomes, None where nothing is read under it."""
        key = (name, "/".join(systems))
        if key not in self._found:
            self._found[key] = self._searched(name, systems)
        return self._found[key]

    def _searched(self, name: str, systems: Sequence[str]) -> Found | None:
        for order, row in self._rows:
            match = row.name.fullmatch(name) if row.system in systems else None
            if match is not None:
                return Found(
                    row, order, {**row.labels, **{key: text for key, text in match.groupdict().items() if text}}
                )
        return None


class Tally:
    """Counts the names of a source: those that are read, and those that are not."""

    def __init__(self, what: str = "names") -> None:
        self._what = what
        self._read: set[str] = set()
        self._left: set[str] = set()

    def note(self, name: str, *, read: bool) -> None:
        """Count a name."""
        (self._read if read else self._left).add(name)

    def said(self, place: str) -> tuple[str, ...]:
        """Say how many names are not read, with examples.

        >>> tally = Tally("tags")
        >>> for name in ("a", "b", "c"):
        ...     tally.note(name, read=name == "a")
        >>> tally.said("runs")
        ('runs: 2 of 3 tags are not read: b, c',)
        """
        left = sorted(self._left)
        if not left:
            return ()
        more = f" and {len(left) - 5} more" if len(left) > 5 else ""
        total = len(self._left | self._read)
        return (f"{place}: {len(left)} of {total} {self._what} are not read: {', '.join(left[:5])}{more}",)


def _one_of(key: str, row: Mapping[str, str | None], known: Sequence[str], default: str = "") -> str:
    value = row.get(key) or default
    if value not in known:
        raise ValueError(f"unknown {key} {value!r}{suggestion(value, known)}")
    return value
