"""Diagnose a snapshot: one pure function, the same bytes for the same input."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from rca.evaluate import Look
from rca.freshness import STALE, remarks, silence
from rca.graph import Graph
from rca.infer import infer
from rca.last_words import last_words
from rca.library import Library, seconds
from rca.model import History, Measurement, Report, ReportWindow, Snapshot, Status, Symptom, Table
from rca.peers import Indices
from rca.plain import stamp
from rca.progress import progress
from rca.relations import natural_places
from rca.report import Writer

SURE = 0.5
MOST = 50
"""So many causes that lost are listed with their reasons; how many more there are is said."""
_SLOW = ("slow_onset", "slow_always")
_ORDER: tuple[Symptom, ...] = ("crashed", "stalled", "numeric", "slow_onset", "slow_always", "none")


def diagnose(library: Library, snapshot: Snapshot, jobs: Sequence[str] = (), history: History | None = None) -> Report:
    """Rank what started the trouble of some jobs, or of all that the snapshot knows.

    `history` says what was ill before: it is likelier to be ill again. `jobs` that the snapshot does not know are
    ignored; the caller tells the user.
    """
    ordered = canonical(library, snapshot)
    look = Look(library, completed(library, ordered))
    table = ordered.tables.get("job")
    names = [] if table is None else [str(name) for name in table.columns["job"]]
    rows = [row for row, name in enumerate(names) if not jobs or name in jobs]
    graph = Graph(look, rows if jobs else None)
    verdict = infer(graph, rows, history)
    writer = Writer(graph, verdict)
    causes = writer.causes()
    symptoms = writer.symptoms(rows)
    worst: Symptom = min((one.symptom for one in symptoms), key=_ORDER.index, default="none")
    likely = [cause for cause in causes if cause.probability >= SURE and cause.cause != "unknown"]
    sure = any(worst == "none" or not cause.standing for cause in likely)
    unseen = _unseen(graph, rows)
    blind = silence(snapshot) > STALE or not _judged(look, rows) or bool(unseen)
    status: Status = "causes_found" if sure else "inconclusive" if worst != "none" or blind else "healthy"
    times, rejected = ordered.times, writer.rejected()
    limits = [f"job {names[row]}: no series tells whether it is slow, so it is not called healthy" for row in unseen]
    limits += [f"rejected: {len(rejected) - MOST} more causes that lost are left out"] if len(rejected) > MOST else []
    return Report(
        status=status,
        symptom=worst,
        symptoms=symptoms,
        window=ReportWindow(stamp(float(times[0])), stamp(float(times[-1])), ordered.step),
        jobs=[names[row] for row in rows],
        causes=causes,
        findings=writer.findings(),
        unexplained=writer.unexplained(),
        not_affected=writer.not_affected(rows),
        rejected=rejected[:MOST],
        not_checked=writer.not_checked(),
        warnings=list(dict.fromkeys([*snapshot.warnings, *remarks(library, ordered), *limits])),
        rules=library.digest,
        progress=[one for one in progress(library, ordered) if one.job in {names[row] for row in rows}],
        last_words=last_words(snapshot, [names[row] for row in rows]),
    )


def _judged(look: Look, jobs: Sequence[int]) -> bool:
    """Say whether the window is long enough for a symptom of each class to hold; true where there is no job."""
    length = float(np.ptp(look.snapshot.times)) + look.snapshot.step
    shortest: dict[Symptom, float] = {}
    for rule in look.library.rules.values():
        if rule.symptom:
            shortest[rule.symptom] = min(seconds(rule.hold), shortest.get(rule.symptom, np.inf))
    return not jobs or max(shortest.values(), default=0.0) <= length


def _unseen(graph: Graph, jobs: Sequence[int]) -> list[int]:
    """Return the jobs (rows) of which no symptom of slowness could be judged, though they may be training."""
    slow = [
        one
        for one in graph.judged.values()
        if one.rule.entity == "job" and one.rule.symptom in _SLOW and not one.rule.instead_of
    ]
    return [job for job in jobs if slow and not any(one.state[job] for one in slow) and not graph.look.told(job)]


def completed(library: Library, snapshot: Snapshot) -> Snapshot:
    """Fill what no query filled with the constants that a signal knows for some models."""
    known = dict(snapshot.measurements)
    for name, signal in library.signals.items():
        table = snapshot.tables.get(signal.entity)
        if signal.fallback is None or table is None or signal.fallback.label not in table.columns:
            continue
        labels, row_of = np.unique(table.columns[signal.fallback.label].astype(str), return_inverse=True)
        constants = np.array([signal.fallback.of(str(label)) for label in labels])[row_of].reshape(-1, 1)
        blank = np.full((len(table), len(snapshot.times)), np.nan)
        measured = known.get(name, Measurement(blank))
        empty = np.isnan(measured.window).all(axis=1, keepdims=True)
        if (empty & ~np.isnan(constants)).any():
            known[name] = dataclasses.replace(measured, window=np.where(empty, constants, measured.window))
    return dataclasses.replace(snapshot, measurements=known)


def canonical(library: Library, snapshot: Snapshot) -> Snapshot:
    """Put the rows of every table into natural order, so that the order of arrival changes nothing."""
    orders = {kind: order for kind, table in snapshot.tables.items() if (order := _order(table)) is not None}
    if not orders:
        return snapshot
    tables = {kind: _table(table, orders[kind]) if kind in orders else table for kind, table in snapshot.tables.items()}
    kinds = {name: library.signals[name].entity for name in snapshot.measurements}
    measurements = {
        name: _measurement(one, orders[kinds[name]]) if kinds[name] in orders else one
        for name, one in snapshot.measurements.items()
    }
    return dataclasses.replace(snapshot, tables=tables, measurements=measurements)


def _table(table: Table, order: Indices) -> Table:
    return Table(table.kind, table.key, {name: column[order] for name, column in table.columns.items()}, sorted=True)


def _measurement(one: Measurement, order: Indices) -> Measurement:
    before = None if one.before is None else one.before[order]
    origin = [one.origin[row] for row in order] if len(one.origin) else one.origin
    return dataclasses.replace(one, window=one.window[order], before=before, origin=origin)


def _order(table: Table) -> Indices | None:
    """Return the order that sorts a table, None where it is sorted."""
    if table.sorted:
        return None
    order = np.lexsort([natural_places(table.columns[label].tolist()) for label in reversed(table.key)])
    return None if np.array_equal(order, np.arange(len(order))) else order
