"""What a store holds and how it came there: the facts behind advice, read as a diagnosis would read them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rca import promql
from rca.library import Library
from rca.model import Floats, Snapshot, Window
from rca.promql import Aggregate, Arithmetic, Expression, Quantile, Samples
from rca.sources.assemble import Deployment, Seen, collect, nameless, shaped, twice
from rca.sources.expressions import Sampled
from rca.sources.grid import Ints
from rca.sources.series import Store

FEWEST = 8
"""Scrapes of a target from which its collection interval can be told."""


class Target(NamedTuple):
    """A scrape target: Prometheus' own labels `job` and `instance`, the seconds between its scrapes, and those between
    changes of anything that it says of machines (NaN where that cannot be told)."""

    job: str
    instance: str
    interval: float
    collected: float


class Ranged(NamedTuple):
    """A rate that a signal takes over a fixed time: its range, and the seconds between new values, the slower of
    scrapes and collection."""

    signal: str
    range: float
    interval: float


@dataclass(frozen=True, eq=False)
class Survey:
    """All that was found out about a store.

    `there` are the signals that have a query whose series all exist, `nameless` and `twice` sentences on series that
    name no entity and on entities that several targets speak of, `joins` what was odd about who is who.
    """

    library: Library
    window: Window
    snapshot: Snapshot
    there: frozenset[str]
    targets: Sequence[Target]
    ranges: Sequence[Ranged]
    nameless: Sequence[str]
    twice: Sequence[str]
    joins: Sequence[str]


def survey(store: Store, library: Library, window: Window, deployment: Deployment | None = None) -> Survey:
    """Read all that a diagnosis of this window would read, and look at how it was collected.

    Raises SourceError where the store fails, ProblemsError where a query is not PromQL.
    """
    library = library.in_use()
    seen = collect(store, library, window, deployment)
    desk, directory = seen.desk, seen.draft.directory
    targets = list(_targets(seen, window))
    return Survey(
        library=library,
        window=window,
        snapshot=shaped(store, window, seen),
        there=frozenset(name for name, asked in desk.asked.queries.items() if any(not one.missing for one in asked)),
        targets=targets,
        ranges=list(_ranges(seen, _slowest(targets))),
        nameless=nameless(desk.series, desk.readings.codes, directory),
        twice=twice(desk.series, desk.readings.codes, directory),
        joins=directory.warnings,
    )


class _Part(NamedTuple):
    """One answer: of each series its target and the usual time between its samples; of each sample inside the window
    its target, its time, and whether it differs from the one before (-1: that says nothing of collection)."""

    series: Ints
    intervals: Floats
    target: Ints
    times: Floats
    changed: Ints


def _targets(seen: Seen, window: Window) -> Iterator[Target]:
    """Yield every target with its intervals, sorted.

    A training job says something new once a step, however often it is asked, so only what is said of machines tells
    how often an exporter collects.
    """
    desk, kinds = seen.desk, seen.desk.library.entities.kinds
    codes: dict[tuple[str, str], int] = {}
    machines = {number for number, kind in desk.readings.codes if "job" not in kinds[kind].labels}
    answers = [(number, one) for number, one in sorted(desk.series.items()) if number < len(desk.asked.selectors)]
    parts = [_part(one, _codes(one, codes), window.start, judged=number in machines) for number, one in answers]
    if not parts:
        return
    whole = _Part(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    order = np.lexsort((whole.times, whole.target))
    target, times, changed = whole.target[order], whole.times[order], whole.changed[order]
    starts = np.flatnonzero((np.diff(target, prepend=-1) != 0) | (np.diff(times, prepend=0.0) != 0.0))
    told = np.maximum.reduceat(changed, starts) if len(starts) else changed
    known = np.flatnonzero(np.isfinite(whole.intervals))
    known = known[np.argsort(whole.series[known], kind="stable")]
    edges = np.arange(1, len(codes))
    spacings = np.split(whole.intervals[known], np.searchsorted(whole.series[known], edges))
    cuts = np.searchsorted(target[starts], edges)
    scrapes, news = np.split(times[starts], cuts), np.split(told, cuts)
    for (job, instance), code in sorted(codes.items()):
        interval = _even(float(np.median(spacings[code]))) if len(spacings[code]) else np.nan
        yield Target(job, instance, interval, _collected(interval, scrapes[code], news[code]))


def _collected(interval: float, times: Floats, told: Ints) -> float:
    """Return the usual seconds between scrapes that brought news, in halves of an interval.

    NaN where it cannot be told: too few scrapes, or series that carry timestamps of their own.
    """
    known = told[1:][told[1:] >= 0]
    news = int(known.sum())
    if len(known) < FEWEST or news < 2 or float(np.ptp(times)) < 0.7 * interval * (len(times) - 1):
        return np.nan
    return interval * round(2.0 * len(known) / news) / 2.0


def _even(interval: float) -> float:
    """Round an interval to whole seconds where it is within 2 % of one.

    >>> _even(14.999), _even(1.5)
    (15.0, 1.5)
    """
    return float(round(interval)) if abs(interval - round(interval)) <= 0.02 * interval else round(interval, 3)


def _codes(series: Sampled, codes: dict[tuple[str, str], int]) -> Ints:
    """Return the number of the target of each series; new targets are numbered on."""
    sets, index = np.unique(series.labels.who, return_inverse=True)
    labels = [series.labels.pool.sets[number] for number in sets.tolist()]
    keys = [(one.get("job", ""), one.get("instance", "")) for one in labels]
    return np.array([codes.setdefault(key, len(codes)) for key in keys], dtype=np.int64)[index]


def _part(series: Sampled, target: Ints, start: float, *, judged: bool) -> _Part:
    """Compare each sample from `start` on with the one before it in its series."""
    block = series.block
    owner = np.repeat(np.arange(len(block.labels)), np.diff(block.offsets))
    changed = np.zeros(len(owner), dtype=np.int64)
    changed[1:] = (block.values[1:] != block.values[:-1]) & (owner[1:] == owner[:-1])
    inside = block.times >= start
    news = changed[inside] if judged else np.full(int(inside.sum()), -1, dtype=np.int64)
    return _Part(target, series.timeline.intervals, target[owner[inside]], np.round(block.times[inside], 3), news)


def _slowest(targets: Sequence[Target]) -> dict[str, float]:
    """Return for each scrape job the usual seconds between changes of its targets, where that can be told."""
    found: dict[str, list[float]] = {}
    for one in targets:
        if np.isfinite(one.collected):
            found.setdefault(one.job, []).append(one.collected)
    return {job: float(np.median(values)) for job, values in found.items()}


def _ranges(seen: Seen, collected: Mapping[str, float]) -> Iterator[Ranged]:
    """Yield every rate over a fixed time whose series are there."""
    desk = seen.desk
    for name, asked in sorted(desk.asked.queries.items()):
        for query in asked:
            plan = promql.plan(query.text) if not query.missing else None
            for one in () if plan is None else dict.fromkeys(_fixed(plan)):
                series = desk.series.get(query.reads[one])
                if series is not None and series.timeline.interval is not None:
                    jobs = {
                        series.labels.pool.sets[who].get("job", "") for who in np.unique(series.labels.who).tolist()
                    }
                    slow = max((collected.get(job, 0.0) for job in jobs), default=0.0)
                    yield Ranged(name, one.range, max(_even(series.timeline.interval), slow))


def _fixed(plan: Expression) -> Iterator[Samples]:
    """Yield the rates of a plan that have no width but their own; a division by a count of events chooses one."""
    if isinstance(plan, Samples):
        yield from [plan] if plan.function != "value" else []
    elif isinstance(plan, Aggregate | Quantile):
        yield from _fixed(plan.of)
    elif isinstance(plan, Arithmetic):
        divisor = plan.right.of if isinstance(plan.right, Aggregate) else plan.right
        if not (plan.op == "/" and isinstance(divisor, Samples) and divisor.function != "value"):
            yield from _fixed(plan.left)
            yield from _fixed(plan.right)
