"""From raw series to a `Snapshot`: the core of every metric source.

What a store holds is asked for once a selector, over all the time that it is needed. Then the grid is chosen by the
spacing of real samples, labels become entities, queries are evaluated series by series and gathered to one row an
entity, and derived signals are computed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rca.errors import SourceError
from rca.library import Library
from rca.model import Snapshot, Window
from rca.plain import natural
from rca.sources.asking import Answered, Questions, answers, questions
from rca.sources.draft import Desk, Draft
from rca.sources.expressions import Sampled
from rca.sources.grid import Ints, clean
from rca.sources.measure import Times
from rca.sources.series import Block, Store
from rca.sources.tables import Directory
from rca.sources.topology import Topology

_EXPORTED_ONCE = ("gpu", "node", "nic", "rank")


@dataclass(frozen=True)
class Deployment:
    """What a deployment says of itself: its topology, and the grid step in seconds where it is not to follow the samples."""

    topology: Topology = field(default_factory=Topology)
    step: float | None = None


class Seen(NamedTuple):
    """All answers of a store, what was worked out of them, and what is to be said about queries that it evaluated."""

    desk: Desk
    draft: Draft
    said: Sequence[str]


def assemble(store: Store, library: Library, window: Window, deployment: Deployment | None = None) -> Snapshot:
    """Read all that the library's signals ask for.

    Raises SourceError where the store fails, ProblemsError where a query is not PromQL.
    """
    return shaped(store, window, collect(store, library, window, deployment))


def collect(store: Store, library: Library, window: Window, deployment: Deployment | None = None) -> Seen:
    """Ask a store for everything, and work out who is who and what was measured."""
    deployment = deployment or Deployment()
    names = store.names(window.start - window.baseline, window.end)
    asked = questions(library, names, window, library.aliases)
    desk = Desk(library, asked, window, deployment.topology, deployment.step)
    for number, one in answers(store, asked, window.end, desk.readings.leading):
        desk.add(number, one)
    said = _serve(store, desk)
    return Seen(desk, desk.finished(), said)


def shaped(store: Store, window: Window, seen: Seen) -> Snapshot:
    """Make a snapshot of what was collected."""
    desk, draft, said = seen
    times, directory = draft.times, draft.directory
    derived = draft.derived.finish()
    warnings = [
        *_short(times, window),
        *directory.warnings,
        *nameless(desk.series, desk.readings.codes, directory),
        *twice(desk.series, desk.readings.codes, directory),
        *_clocks(desk.asked, desk.answered),
        *draft.bench.warnings(),
        *said,
        *store.warnings(),
    ]
    ahead = times.whole.times()
    return Snapshot(
        times=times.window.times(),
        before_times=ahead[: times.whole.size - times.window.size],
        step=times.window.step,
        tables=directory.tables,
        measurements={name: derived.measurements[name] for name in sorted(derived.measurements)},
        absent={name: derived.absent[name] for name in sorted(derived.absent)},
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _serve(store: Store, desk: Desk) -> list[str]:
    """Have the server evaluate what has no plan, and return what to say about it."""
    if not desk.asked.served:
        return []
    warnings: list[str] = []
    times = desk.times()
    for number, text in enumerate(desk.asked.served, len(desk.asked.selectors)):
        grid = times.whole if desk.asked.back[number] else times.window
        try:
            block, _, _ = clean(store.evaluate(text, grid.times()), grid.end)
        except SourceError as error:
            desk.failed[number] = str(error)
            warnings.append(f"query {text}: {error}")
            continue
        desk.add_block(number, block)
        warnings.append(f"query {text}: the server evaluates it, gaps under 5 minutes are invisible there")
    return warnings


def _short(times: Times, window: Window) -> list[str]:
    """Warn of a window that holds too few steps to judge anything by."""
    if window.end - window.start >= 3.0 * times.window.step:
        return []
    seconds = window.end - window.start
    return [f"window: {seconds:g} s is less than three steps of {times.window.step:g} s, ask for a longer one"]


def nameless(series: Mapping[int, Sampled], codes: Mapping[tuple[int, str], Ints], directory: Directory) -> list[str]:
    """Count the series that name no entity, kind by kind, with an example."""
    counts: dict[str, int] = {}
    examples: dict[str, str] = {}
    for (number, kind), own in codes.items():
        lost = np.flatnonzero(directory.rows[kind][own] < 0).tolist()
        if lost:
            counts[kind] = counts.get(kind, 0) + len(lost)
            example = min(_written(series[number].labels[row]) for row in lost)
            examples[kind] = min(example, examples.get(kind, example))
    return [f"{count} series name no {kind}, for example {examples[kind]}" for kind, count in sorted(counts.items())]


def unmapped(seen: Seen) -> float:
    """Return the share of series that name no entity of the kind that they are read for."""
    lost = total = 0
    for (_, kind), own in seen.desk.readings.codes.items():
        lost += int((seen.draft.directory.rows[kind][own] < 0).sum())
        total += len(own)
    return lost / total if total else 0.0


def twice(series: Mapping[int, Sampled], codes: Mapping[tuple[int, str], Ints], directory: Directory) -> list[str]:
    """Count the entities whose series come from two targets at the same time, kind by kind, with an example."""
    found: dict[str, dict[int, set[str]]] = {}
    for (number, kind), own in sorted(codes.items()):
        rows = directory.rows[kind][own]
        if kind not in _EXPORTED_ONCE or len(np.unique(rows)) == len(rows):
            continue
        for row, targets in _overlapping(series[number].block, rows).items():
            found.setdefault(kind, {}).setdefault(row, set()).update(targets)
    warnings = []
    for kind, entities in sorted(found.items()):
        row = min(entities)
        name = "/".join(directory.tables[kind].columns[label][row] for label in directory.tables[kind].key)
        both = " and ".join(sorted(entities[row], key=natural)[:2])
        warnings.append(f"two exporters for one {kind}: {len(entities)} have them, for example {name} at {both}")
    return warnings


def _overlapping(block: Block, rows: Ints) -> dict[int, set[str]]:
    """Return the rows that two targets spoke of at the same time, with those targets."""
    targets = [(labels.get("instance", ""), labels.get("__name__", "")) for labels in block.labels]
    if len({(row, target[0]) for row, target in zip(rows.tolist(), targets, strict=True)}) == len(np.unique(rows)):
        return {}
    spans: dict[int, dict[tuple[str, str], tuple[float, float]]] = {}
    for series, row in enumerate(rows.tolist()):
        begin, end = int(block.offsets[series]), int(block.offsets[series + 1])
        if row >= 0 and end > begin and targets[series][0]:
            first, last = spans.setdefault(row, {}).get(targets[series], (np.inf, -np.inf))
            spans[row][targets[series]] = (min(first, block.times[begin]), max(last, block.times[end - 1]))
    found: dict[int, set[str]] = {}
    for row, by_target in spans.items():
        ordered = sorted(by_target.items(), key=lambda one: one[1])
        for (one, span), (other, next_span) in pairwise(ordered):
            if one[0] != other[0] and one[1] == other[1] and next_span[0] < span[1]:
                found.setdefault(row, set()).update((one[0], other[0]))
    return found


def _clocks(asked: Questions, answered: Mapping[int, Answered]) -> list[str]:
    """Say which metrics hold sentinels, and which series have timestamps that cannot be."""
    warnings = []
    jumping = {asked.bases[number]: one.jumping for number, one in answered.items() if one.jumping}
    for number, one in sorted(answered.items()):
        if one.blanks:
            name = asked.bases[number] or asked.selectors[number].names[0]
            warnings.append(f"{name}: {one.blanks} samples are infinite or mean 'not available', dropped")
    if jumping:
        warnings.append(
            f"clocks: {sum(jumping.values())} series have timestamps after the window or that jump back by more than "
            f"a minute, for example of {min(jumping)}"
        )
    return warnings


def _written(labels: Mapping[str, str]) -> str:
    """Write a series for people."""
    inner = ", ".join(f'{name}="{value}"' for name, value in sorted(labels.items()) if name != "__name__")
    return f"{labels.get('__name__', '')}{{{inner}}}"
