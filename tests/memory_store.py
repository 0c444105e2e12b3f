"""A `Store` over series in memory: what a server would hold, without the server."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from rca.model import Floats
from rca.sources.kept import Kept, Series
from rca.sources.series import Block, Selector

Samples = Sequence[tuple[float, float]]
NO_SERVER = "there is no server behind it"
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
        self.kept = Kept([_kept(labels, samples) for labels, samples in held], "memory", said)
        self.evaluator = evaluator
        self.asked: list[Selector] = []

    def names(self, start: float, end: float) -> frozenset[str]:
        return self.kept.names(start, end)

    def fetch(self, selectors: Sequence[Selector]) -> Iterator[tuple[int, Block]]:
        self.asked = list(selectors)
        for index, selector in reversed(list(enumerate(selectors))):
            yield index, self._block(selector)

    def evaluate(self, query: str, times: Floats) -> Block:
        return self.kept.evaluate(query, times) if self.evaluator is None else self.evaluator(query, times)

    def warnings(self) -> tuple[str, ...]:
        return self.kept.warnings()

    def _block(self, selector: Selector) -> Block:
        [(_, block)] = self.kept.fetch([selector])
        return block


def _kept(labels: Mapping[str, str], samples: Samples) -> Series:
    times, values = np.array(samples, dtype=np.float64).reshape(-1, 2).T
    return Series(labels, times, values)
