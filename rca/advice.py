"""What a server could do better for a diagnosis: rules that can never fire there, signals to enable, collection to change."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rca.detectors import All, Any, Condition, Not, Unless, named
from rca.diagnose import completed
from rca.evaluate import Look
from rca.library import Library, Role, Rule, seconds
from rca.model import LAYERS, Layer, Record
from rca.plain import counted
from rca.sources.survey import Ranged, Survey, Target

DAY = 86400.0
LONG_ENOUGH = 3 * DAY
"""Seconds of history that should be kept: a long weekend, and what chronic faults are told by."""
FASTEST = 2.0
"""Seconds between scrapes below which they load exporters and store and tell nothing more: profiling counters are
averages over about a second."""
SCRAPES = 4.0
"""A rate needs about so many scrapes: with two, one missed scrape leaves a gap."""
UNEVEN = 1.5
"""An exporter collects slower than it is scraped where so many scrapes pass from one change to the next."""


class Dead(Record, frozen=True):
    """A rule that can never fire, whatever happens, and the measured signals that it lacks."""

    rule: str
    layer: Layer
    role: Role
    missing: list[str]


class Lacking(Record, frozen=True):
    """A signal that is not measured: why, what would supply it, and which rules read it. `there` marks one whose series
    exist and are of no use."""

    signal: str
    why: str
    enable: str
    rules: list[str]
    there: bool = False


class Unjudged(Record, frozen=True):
    """Rules that could fire, and could be judged on no entity in this window, with the reason."""

    why: str
    rules: list[str]


class Advice(Record, frozen=True, kw_only=True):
    """All that there is to say about a server; `seen` counts what was seen of it, kind by kind."""

    server: str
    start: float
    end: float
    seen: dict[str, int]
    rules: int
    dead: list[Dead]
    lacking: list[Lacking]
    unjudged: list[Unjudged]
    collection: list[str]

    def fine(self) -> bool:
        """Say whether there is nothing to advise."""
        return not (self.dead or self.lacking or self.collection)


class Kept(NamedTuple):
    """How long a server keeps samples, in seconds (None: it does not say), and whether it has any that are older than
    `LONG_ENOUGH`."""

    told: float | None
    reaches: bool


def advise(survey: Survey, server: str, kept: Kept) -> Advice:
    """Judge what was found out about a server."""
    library = survey.library
    snapshot = completed(library, survey.snapshot)
    missing = _missing(library, snapshot.measurements.keys())
    there = snapshot.measurements.keys().__contains__
    dead = [rule for rule in library.rules.values() if not possible(rule.when, there)]
    alive = [rule for rule in library.rules.values() if rule not in dead]
    reads = {
        rule.id: sorted({part for name in _read(rule, library) for part in missing(name)}) for rule in _told(library)
    }
    absent = sorted({part for parts in reads.values() for part in parts})
    return Advice(
        server=server,
        start=survey.window.start,
        end=survey.window.end,
        seen={kind: len(table) for kind, table in snapshot.tables.items() if len(table)},
        rules=len(library.rules),
        dead=[Dead(rule.id, rule.layer, rule.role, reads[rule.id]) for rule in _told(library) if rule in dead],
        lacking=[
            Lacking(
                name,
                snapshot.absent.get(name, "has no usable sample"),
                library.signals[name].enable,
                [rule for rule, parts in reads.items() if name in parts],
                name in survey.there,
            )
            for name in absent
        ],
        unjudged=list(_unjudged(Look(library, snapshot), alive)),
        collection=list(_collection(survey, kept)),
    )


def possible(condition: Condition, there: Callable[[str], bool], *, wanted: bool = True) -> bool:
    """Say whether a condition can become true (or false, where that is `wanted`) with the signals that are there.

    >>> from rca.detectors import Above
    >>> heat, load = Above(signal="heat", limit=90), Above(signal="load", limit=0.9)
    >>> possible(Any((heat, load)), {"heat"}.__contains__), possible(All((heat, Not(load))), {"heat"}.__contains__)
    (True, False)
    """
    if isinstance(condition, All | Any):
        every = isinstance(condition, All) == wanted
        return (all if every else any)(possible(part, there, wanted=wanted) for part in condition.of)
    if isinstance(condition, Not):
        return possible(condition.of, there, wanted=not wanted)
    if isinstance(condition, Unless):
        return wanted or possible(condition.of, there)
    return all(map(there, named(condition)))


def _told(library: Library) -> list[Rule]:
    """Return the rules in the order in which they are told: layer by layer, roots first."""
    return sorted(library.rules.values(), key=lambda rule: (LAYERS.index(rule.layer), rule.role != "root", rule.id))


def _read(rule: Rule, library: Library) -> Iterator[str]:
    """Yield the signals that a rule's conditions read."""
    for leaf in library.conditions(rule):
        yield from named(leaf)
        load = getattr(leaf, "load", None)
        if load is not None:
            yield load


def _missing(library: Library, measured: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a function that says which measured signals a signal lacks, itself or those that it is derived from."""
    known = frozenset(measured)

    def missing(name: str) -> list[str]:
        signal = library.signals.get(name)
        if name in known or signal is None:
            return []
        return [name] if signal.derived is None else [part for one in signal.derived.inputs() for part in missing(one)]

    return missing


def _unjudged(look: Look, rules: Sequence[Rule]) -> Iterator[Unjudged]:
    """Yield the rules that are unknown on every entity, by reason."""
    found: dict[str, list[str]] = {}
    for rule in rules:
        count = look.size(rule.entity)
        if count == 0:
            found.setdefault(f"no {rule.entity} is known", []).append(rule.id)
        elif not look.judge(rule).state.any():
            why = f"unknown everywhere ({counted(count, rule.entity)}): few peers, a short past, or nothing trains"
            found.setdefault(why, []).append(rule.id)
    return (Unjudged(why, ids) for why, ids in sorted(found.items()))


def _collection(survey: Survey, kept: Kept) -> Iterator[str]:
    """Yield advice on how samples are collected, exporters first."""
    jobs: dict[str, list[Target]] = {}
    for target in survey.targets:
        jobs.setdefault(target.job, []).append(target)
    for job, targets in sorted(jobs.items()):
        yield from _intervals(job, targets)
    yield from _holds(survey)
    yield from _short_ranges(survey.ranges)
    yield from survey.nameless
    yield from survey.twice
    yield from _strangers(survey)
    yield from survey.joins
    yield from _retention(kept)


def _intervals(job: str, targets: Sequence[Target]) -> Iterator[str]:
    """Compare how often the targets of a scrape job are scraped and how often they have something new."""
    name = f"scrape job {job}" if job else "series without a scrape job"
    interval = _median(target.interval for target in targets)
    collected = _median(target.collected for target in targets)
    if interval < FASTEST:
        yield (
            f"{name}: scraped every {interval:g} s, which loads exporters and server and tells nothing more; "
            "10 to 15 s are right for GPUs, 15 to 30 s for hosts and ranks"
        )
    if collected > UNEVEN * interval:
        yield (
            f"{name}: scraped every {interval:g} s, but its values change only every {collected:.0f} s or so; let the "
            f"exporter collect as often as it is scraped (dcgm-exporter: --collect-interval {1000 * interval:.0f}), or "
            f"scrape every {collected:.0f} s"
        )


def _holds(survey: Survey) -> Iterator[str]:
    """Name the rules whose `for` is shorter than two samples of what they read."""
    found: dict[int, list[str]] = {}
    for rule in _told(survey.library):
        names = [name for leaf in survey.library.conditions(rule) for name in named(leaf)]
        measured = [survey.snapshot.measurements[name] for name in names if name in survey.snapshot.measurements]
        slowest = round(max((one.interval for one in measured), default=0.0))
        if 2.0 * slowest > seconds(rule.hold):
            found.setdefault(slowest, []).append(rule.id)
    for interval, rules in sorted(found.items()):
        yield (
            f"rules: {_listed(rules)} hold after less than two samples, which come every {interval:g} s; scrape every "
            "15 to 30 s, or give them a longer `for` under `overrides` in the settings"
        )


def _short_ranges(ranges: Sequence[Ranged]) -> Iterator[str]:
    """Name the rates whose range holds too few new values."""
    found: dict[tuple[float, float], list[str]] = {}
    for one in ranges:
        if one.range < (SCRAPES - 0.5) * one.interval:
            found.setdefault((one.range, round(one.interval)), []).append(one.signal)
    for (width, interval), signals in sorted(found.items()):
        yield (
            f"rates: {width:g} s hold {width / interval:.2g} new values of {_listed(list(dict.fromkeys(signals)))}, "
            f"which come every {interval:g} s, four are wanted; scrape and collect every {width / SCRAPES:g} s, or "
            f"write queries over {SCRAPES * interval:g} s under `signals` in the settings"
        )


def _strangers(survey: Survey) -> Iterator[str]:
    """Say where GPUs and hosts are told of under names that have nothing in common."""
    seen = {kind: _nodes(survey, kind) for kind in ("gpu", "node", "rank")}
    for one, other in (("gpu", "node"), ("rank", "gpu"), ("rank", "node")):
        left, right = seen[one], seen[other]
        if left and right and not left & right:
            yield (
                f"nodes: no node of a {one} ({min(left)}, ...) is one of a {other} ({min(right)}, ...); give their "
                "series one label for the node (dcgm-exporter: NODE_NAME from spec.nodeName), or name the label under "
                "`labels` in the settings"
            )


def _nodes(survey: Survey, kind: str) -> set[str]:
    """Return the nodes that have samples of a signal of this kind; of ranks, those that they are said to run on."""
    table = survey.snapshot.tables.get(kind)
    if table is None or "node" not in table.columns:
        return set()
    spoken = np.zeros(len(table), dtype=bool)
    for name, measured in survey.snapshot.measurements.items():
        if survey.library.signals[name].entity == kind and survey.library.signals[name].derived is None:
            spoken |= np.isfinite(measured.window).any(axis=1)
    return {str(node) for node in table.columns["node"][spoken] if node}


def _retention(kept: Kept) -> Iterator[str]:
    """Say where a server forgets too soon."""
    if kept.told is not None and kept.told < LONG_ENOUGH:
        yield (
            f"retention: {kept.told / 3600:g} h, less than {LONG_ENOUGH / 3600:g} h; start Prometheus with "
            "--storage.tsdb.retention.time=15d, so that the beginning of a slow fault is still there after a weekend"
        )
    elif kept.told is None and not kept.reaches:
        yield (
            f"retention: no sample is older than {LONG_ENOUGH / 3600:g} h, and the server does not say how long it keeps "
            "them; make it 15 days or so, unless it is new"
        )


def _median(values: Iterable[float]) -> float:
    """Return the median of what is known, NaN where nothing is."""
    known = [value for value in values if np.isfinite(value)]
    return float(np.median(known)) if known else float("nan")


def _listed(words: Sequence[str], most: int = 8) -> str:
    shown = list(words[:most]) + ([f"{len(words) - most} more"] if len(words) > most else [])
    return ", ".join(shown)


__all__ = ["Advice", "Dead", "Kept", "Lacking", "Unjudged", "advise", "possible"]
