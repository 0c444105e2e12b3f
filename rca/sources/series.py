"""Raw series, as every metric source hands them over: real names, real labels, real timestamps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rca.model import Floats

MatchOp = Literal["=", "!=", "=~", "!~"]


class Matcher(NamedTuple):
    """One label matcher of a selector; regular expressions are anchored at both ends, as Prometheus has them."""

    label: str
    op: MatchOp
    value: str


class Selector(NamedTuple):
    """The raw samples of some series: any of these metric names, all of these matchers, times in [start, end]."""

    names: tuple[str, ...]
    matchers: tuple[Matcher, ...]
    start: float
    end: float


@dataclass(frozen=True, eq=False)
class Block:
    """The series that a selector found.

    Series i has the labels `labels[i]` (`__name__` included) and the samples `offsets[i]:offsets[i + 1]` of `times`
    (unix seconds, ascending within a series) and `values`; `offsets` has shape (n + 1,).
    """

    labels: Sequence[dict[str, str]]
    offsets: NDArray[np.int64]
    times: Floats
    values: Floats


class Store(Protocol):
    """Where raw series come from: a server, a simulated cluster, files."""

    def names(self, start: float, end: float) -> frozenset[str]:
        """Return the metric names that have samples in [start, end]; a superset is allowed."""
        ...

    def fetch(self, selectors: Sequence[Selector]) -> Iterator[tuple[int, Block]]:
        """Yield (index of the selector, its block) in any order, each once."""
        ...

    def evaluate(self, query: str, times: Floats) -> Block:
        """Evaluate PromQL on the server at evenly spaced times; raise SourceError where there is no server."""
        ...

    def warnings(self) -> tuple[str, ...]:
        """Return what the store has to say about the answers so far: server warnings, partial results."""
        ...
