"""Series held in memory as a store: what files hold once they are read; and several stores as one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rca.errors import SourceError
from rca.model import Floats
from rca.sources import matrix
from rca.sources.blocks import appended, matching, nothing
from rca.sources.grid import intervals
from rca.sources.ranks import DEFAULT
from rca.sources.series import Block, Selector, Store


class Series(NamedTuple):
    """One series: its labels with `__name__`, and its samples, times in unix seconds; both arrays of shape (n,)."""

    labels: Mapping[str, str]
    times: Floats
    values: Floats


class Kept:
    """A `Store` over series in memory, read from `place`; `said` is what there was to say about them.

    Series of equal labels are one series. The samples of each should ascend in time.
    """

    def __init__(self, series: Sequence[Series], place: str, said: Sequence[str] = ()) -> None:
        self.place = place
        self.said = tuple(said)
        by_name: dict[str, list[Series]] = {}
        for one in series:
            if len(one.times):
                by_name.setdefault(one.labels["__name__"], []).append(one)
        self.blocks = {name: _block(by_name[name]) for name in sorted(by_name)}

    def extent(self) -> tuple[float, float] | None:
        """Return the times of the first and the last sample, None where there is none."""
        return extent(self.blocks.values())

    def interval(self) -> float | None:
        """Return the usual seconds between samples of the metric that has them farthest apart, None where none has two."""
        spacings = [intervals(block.offsets, block.times) for block in self.blocks.values()]
        known = [float(np.nanmedian(one)) for one in spacings if np.isfinite(one).any()]
        return max(known, default=None)

    def told(self, label: str) -> frozenset[str]:
        """Return the values of a label."""
        return frozenset(one[label] for block in self.blocks.values() for one in block.labels if label in one)

    def of_job(self, job: str) -> "Kept":
        """Return the same with GPUs that name no job, and all that is of the job `default`, named to be of this one."""
        made = Kept((), self.place, self.said)
        for name, block in self.blocks.items():
            labels = [{**one, "job_id": job} if nobodys(one) else one for one in block.labels]
            made.blocks[name] = Block(labels, block.offsets, block.times, block.values)
        return made

    def series(self, name: str) -> Iterator[Series]:
        """Yield the series of a metric."""
        block = self.blocks.get(name, nothing())
        for row, labels in enumerate(block.labels):
            part = slice(int(block.offsets[row]), int(block.offsets[row + 1]))
            yield Series(labels, block.times[part], block.values[part])

    def nobodys(self) -> bool:
        """Say whether any series is of nobody's job that may be somebody's."""
        return any(nobodys(one) for block in self.blocks.values() for one in block.labels)

    def names(self, start: float, end: float) -> frozenset[str]:
        """Return the metric names that have samples in [start, end]."""
        inside = {name: (block.times >= start) & (block.times <= end) for name, block in self.blocks.items()}
        return frozenset(name for name, mask in inside.items() if mask.any())

    def fetch(self, selectors: Sequence[Selector]) -> Iterator[tuple[int, Block]]:
        """Yield the blocks of selectors in their order."""
        for index, selector in enumerate(selectors):
            blocks = [self.blocks[name] for name in selector.names if name in self.blocks]
            yield index, appended([_cut(block, selector) for block in blocks])

    def evaluate(self, query: str, times: Floats) -> Block:  # noqa: ARG002 - the protocol of a store
        """Refuse: there is no server that could evaluate PromQL."""
        raise SourceError(f"{self.place}: cannot evaluate {query!r}, there is no server behind it")

    def warnings(self) -> tuple[str, ...]:
        """Return what was said when the series were read."""
        return self.said


class Several:
    """One `Store` over several: names are united, blocks joined, warnings too.

    A store that takes its time, such as a server, stands last: its blocks go on as they arrive. It is also the one
    whose words count where no store can evaluate a query.
    """

    def __init__(self, stores: Sequence[Store], said: Sequence[str] = ()) -> None:
        self.stores = tuple(stores)
        self.said = tuple(said)

    def names(self, start: float, end: float) -> frozenset[str]:
        """Return the metric names of all stores."""
        return frozenset[str]().union(*(store.names(start, end) for store in self.stores))

    def fetch(self, selectors: Sequence[Selector]) -> Iterator[tuple[int, Block]]:
        """Yield the blocks of selectors as the last store yields its own."""
        found: dict[int, list[Block]] = {}
        for store in self.stores[:-1]:
            for index, block in store.fetch(selectors):
                found.setdefault(index, []).append(block)
        for index, block in self.stores[-1].fetch(selectors):
            filled = [one for one in (*found.pop(index, ()), block) if len(one.labels)]
            yield index, matrix.joined(filled) if filled else nothing()

    def evaluate(self, query: str, times: Floats) -> Block:
        """Let the one that has a server evaluate PromQL; raise SourceError where none can."""
        for store in self.stores[:-1]:
            try:
                return store.evaluate(query, times)
            except SourceError:
                continue
        return self.stores[-1].evaluate(query, times)

    def warnings(self) -> tuple[str, ...]:
        """Return what all stores have to say, and what was known before."""
        return tuple(dict.fromkeys((*self.said, *(said for store in self.stores for said in store.warnings()))))


def nobodys(labels: Mapping[str, str]) -> bool:
    """Say whether a series is of a GPU or a job that nobody has named.

    >>> nobodys({"gpu": "0"}), nobodys({"job_id": "default"}), nobodys({"job_id": "llama", "gpu": "0"})
    (True, True, False)
    """
    return labels.get("job_id", DEFAULT) == DEFAULT and ("gpu" in labels or "job_id" in labels)


def extent(blocks: Iterable[Block]) -> tuple[float, float] | None:
    """Return the times of the first and the last sample of some blocks, None where there is none."""
    ends = [(float(block.times.min()), float(block.times.max())) for block in blocks]
    return (min(first for first, _ in ends), max(last for _, last in ends)) if ends else None


def _block(series: Sequence[Series]) -> Block:
    """Put series of one metric into a block; equal labels are one series."""
    offsets = np.concatenate(([0], np.cumsum([len(one.times) for one in series]))).astype(np.int64)
    block = Block(
        [dict(one.labels) for one in series],
        offsets,
        np.concatenate([one.times for one in series]).astype(np.float64),
        np.concatenate([one.values for one in series]).astype(np.float64),
    )
    distinct = {tuple(sorted(labels.items())) for labels in block.labels}
    return block if len(distinct) == len(series) else matrix.joined([block, nothing()])


def _cut(block: Block, selector: Selector) -> Block:
    """Return the series of a block that a selector matches, within its times."""
    rows = np.zeros(len(block.labels), dtype=bool)
    rows[matching(block.labels, selector.matchers)] = True
    inside = (block.times >= selector.start) & (block.times <= selector.end)
    return matrix.kept(block, inside & np.repeat(rows, np.diff(block.offsets)))
