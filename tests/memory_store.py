"""A `Store` over series in memory: what a server would hold, without the server."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from rca.errors import SourceError
from rca.model import Floats
from rca.sources.series import Block, Matcher, Selector

Samples = Sequence[tuple[float, float]]
NO_SERVER = "memory: cannot evaluate PromQL, there is no server"
END = 1_700_000_400.0


def series(name: str, labels: Mapping[str, str], samples: Samples) -> tuple[dict[str, str], Samples]:
    """Return one series."""
    return {"__name__": name, **labels}, samples


def ticks(value: float | Sequence[float], *, step: float = 15.0, seconds: float = 900.0, end: float = END) -> Samples:
    """Return samples every `step` seconds over the last `seconds`, the last at `end`."""
    times = end - step * np.arange(int(seconds / step), -1, -1)
    values = np.broadcast_to(np.asarray(value, dtype=float), times.shape)
    return list(zip(times.tolist(), values.tolist(), strict=True))


def counter(rate: float, *, step: float = 15.0, seconds: float = 1800.0, end: float = END) -> Samples:
    """Return samples of a counter that grows evenly."""
    return [(time, rate * (time - END + 1e6)) for time, _ in ticks(0.0, step=step, seconds=seconds, end=end)]


def without(samples: Samples, *gone: float) -> Samples:
    """Return samples without those at these seconds before the end."""
    return [(time, value) for time, value in samples if END - time not in gone]


class MemoryStore:
    """Series held in memory; `evaluator` stands for the server's PromQL engine, `said` for its warnings."""

    def __init__(
        self,
        held: Sequence[tuple[Mapping[str, str], Samples]],
        evaluator: Callable[[str, Floats], Block] | None = None,
        said: Sequence[str] = (),
    ) -> None:
        self.labels = [dict(labels) for labels, _ in held]
        self.samples = [np.array(samples, dtype=np.float64).reshape(-1, 2) for _, samples in held]
        self.evaluator = evaluator
        self.said = tuple(said)
        self.asked: list[Selector] = []
        self._by_name: dict[str, list[int]] = {}
        for row, labels in enumerate(self.labels):
            self._by_name.setdefault(labels["__name__"], []).append(row)

    def names(self, start: float, end: float) -> frozenset[str]:
        return frozenset(
            labels["__name__"]
            for labels, samples in zip(self.labels, self.samples, strict=True)
            if ((samples[:, 0] >= start) & (samples[:, 0] <= end)).any()
        )

    def fetch(self, selectors: Sequence[Selector]) -> Iterator[tuple[int, Block]]:
        self.asked = list(selectors)
        for index, selector in reversed(list(enumerate(selectors))):
            yield index, self._block(selector)

    def evaluate(self, query: str, times: Floats) -> Block:
        if self.evaluator is None:
            raise SourceError(NO_SERVER)
        return self.evaluator(query, times)

    def warnings(self) -> tuple[str, ...]:
        return self.said

    def _block(self, selector: Selector) -> Block:
        rows = [row for name in selector.names for row in self._by_name.get(name, [])]
        labels: list[dict[str, str]] = []
        parts = []
        for row in rows:
            if all(fulfils(self.labels[row], matcher) for matcher in selector.matchers):
                samples = self.samples[row]
                inside = (samples[:, 0] >= selector.start) & (samples[:, 0] <= selector.end)
                if inside.any():
                    labels.append(dict(self.labels[row]))
                    parts.append(samples[inside])
        offsets = np.concatenate(([0], np.cumsum([len(part) for part in parts]))).astype(np.int64)
        flat = np.concatenate([*parts, np.zeros((0, 2))])
        return Block(labels, offsets, flat[:, 0].copy(), flat[:, 1].copy())


def fulfils(labels: Mapping[str, str], matcher: Matcher) -> bool:
    """Say whether labels fulfil a matcher as Prometheus has it."""
    value = labels.get(matcher.label, "")
    hit = value == matcher.value if matcher.op in ("=", "!=") else re.fullmatch(matcher.value, value) is not None
    return hit == (matcher.op in ("=", "=~"))
