"""What a page shows beside its words: the series behind the numbers, and where in a job something stands out."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rca.library import Library
from rca.model import Cause, EntityRef, Evidence, Floats, Measurement, Report, Snapshot
from rca.peers import MAD_TO_SIGMA, Indices, sorted_medians
from rca.plain import natural, quantity
from rca.relations import Joins, gather

TOLD = 3
"""So many causes have their evidence drawn, and so many jobs their maps."""
LATEST = 300.0
"""A map shows the median over so many seconds before the end of the window."""
MOST = 512
"""A band is drawn from about so many peers, evenly chosen, where there are more."""
BAND = (10.0, 90.0)
"""Percentiles of the peers between which most of them lie."""
FLOOR = 0.02
"""Peers are taken to differ by at least this share of their median, so that noise does not colour a map."""
NO_SERIES = frozenset({"bits", "code"})
"""Units whose numbers are names, and no heights of a line."""
OF_A_JOB = (
    "job_step_seconds", "job_throughput", "job_tokens_per_gpu", "job_communication_share", "job_loss",
)  # fmt: skip
OF_A_GPU = ("gpu_sm_clock", "gpu_temperature")
OF_A_RANK = ("rank_work_seconds", "rank_collective_wait_seconds")
OF_A_CELL = "cell_work_seconds"


class Band(NamedTuple):
    """What peers read at each time, shape (T,): the percentiles of `BAND` and the median; `peers` is how many they are."""

    low: Floats
    middle: Floats
    high: Floats
    peers: int


class Chart(NamedTuple):
    """A series over the baseline and the window: `times` (T,) in unix seconds, `values` (T,) in `unit`, NaN = no sample.

    `whose` names the entity, `text` says in words what is to be seen, `reference` is the number that it was compared with.
    """

    signal: str
    whose: str
    text: str
    unit: str
    query: str
    times: Floats
    values: Floats
    band: Band | None = None
    reference: float | None = None


class Square(NamedTuple):
    """One place of a map: its column and row, its name, what it reads, and how far off the usual that is, -3 to 3."""

    column: int
    row: int
    name: str
    reads: str
    level: int


class Map(NamedTuple):
    """A signal over the places of a job: `columns` and `rows` name what the axes count, `ticks` each column."""

    job: str
    signal: str
    summary: str
    columns: str
    rows: str
    ticks: tuple[str, ...]
    lanes: tuple[str, ...]
    squares: tuple[Square, ...]
    usual: str


@dataclass(frozen=True, eq=False)
class Picture:
    """All that is drawn: charts for each of the first causes, then for each of the first jobs, and maps of these."""

    causes: tuple[tuple[Chart, ...], ...] = ()
    jobs: tuple[tuple[str, tuple[Chart, ...]], ...] = ()
    maps: tuple[Map, ...] = ()


def draw(library: Library, snapshot: Snapshot, report: Report) -> Picture:
    """Choose what a report's page shows of the snapshot that it was made from."""
    sketch = _Sketch(library, snapshot)
    ill = [one.job for one in report.symptoms if one.symptom != "none"]
    told = {one.signal for cause in report.causes[:TOLD] for one in cause.evidence}
    jobs = list(dict.fromkeys([*ill, *report.jobs]))[:TOLD]
    return Picture(
        causes=tuple(sketch.evidence(cause) for cause in report.causes[:TOLD]),
        jobs=tuple((job, sketch.progress(job, told)) for job in jobs),
        maps=tuple(one for job in jobs for one in sketch.maps(job)),
    )


def follow(library: Library, snapshot: Snapshot, job: str) -> Picture:
    """Choose what the page of a job shows of a snapshot, whatever the report was about."""
    sketch = _Sketch(library, snapshot)
    return Picture(jobs=((job, sketch.progress(job, ())),), maps=tuple(sketch.maps(job)))


class _Sketch:
    """Reads one snapshot for its picture."""

    def __init__(self, library: Library, snapshot: Snapshot) -> None:
        self._signals = library.signals
        self._snapshot = snapshot
        self._joins = Joins(library.entities, snapshot.tables)

    def evidence(self, cause: Cause) -> tuple[Chart, ...]:
        """Return a chart for each number that speaks for a cause, where its series is there."""
        charts = {(one.signal, str(one.entity)): one for one in reversed(cause.evidence)}
        drawn = [self._chart(one) for one in reversed(charts.values())]
        return tuple(chart for chart in drawn if chart is not None)

    def _chart(self, shown: Evidence) -> Chart | None:
        measurement = self._snapshot.measurements.get(shown.signal)
        rows = None if shown.entity is None else self._rows(self._signals[shown.signal].entity, shown.entity)
        if measurement is None or rows is None or not len(rows) or measurement.texts or shown.unit in NO_SERIES:
            return None
        whole = self._whole(measurement)
        values = sorted_medians(whole[rows].T)
        if not np.isfinite(values).any():
            return None
        band = self._band(shown, whole, rows)
        return Chart(
            shown.signal, str(shown.entity), shown.text, shown.unit, shown.query, self._times(measurement), values,
            band, shown.reference,
        )  # fmt: skip

    def _times(self, measurement: Measurement) -> Floats:
        ahead = self._snapshot.before_times if measurement.before is not None else self._snapshot.times[:0]
        return np.concatenate([ahead, self._snapshot.times])

    @staticmethod
    def _whole(measurement: Measurement) -> Floats:
        """Return the samples of the baseline, where there are any, and of the window, shape (n, T)."""
        parts = (measurement.window,) if measurement.before is None else (measurement.before, measurement.window)
        return np.concatenate(parts, axis=1)

    def _rows(self, kind: str, entity: EntityRef) -> Indices:
        """Return the rows of a kind that are an entity, or members of it."""
        table = self._snapshot.tables[kind]
        fits = np.ones(len(table), dtype=bool)
        for label, value in entity.labels.items():
            fits &= table.columns[label] == value if label in table.columns else False
        return np.flatnonzero(fits)

    def _band(self, shown: Evidence, whole: Floats, rows: Indices) -> Band | None:
        """Return what the others read that an entity was, or might have been, compared with."""
        kind = self._signals[shown.signal].entity
        group = self._joins.groups(kind, shown.peers or ["job"])
        others = np.flatnonzero((group == group[rows[0]]) & (group >= 0))
        others = others[~np.isin(others, rows)]
        if len(others) < 2:
            return None
        seen = whole[others[:: max(len(others) // MOST, 1)]]
        blank = ~np.isfinite(seen).any(axis=0)
        low, middle, high = np.nanpercentile(np.where(blank, 0.0, seen), (BAND[0], 50.0, BAND[1]), axis=0)
        low, middle, high = (np.where(blank, np.nan, line) for line in (low, middle, high))
        return Band(low, middle, high, len(others))

    def progress(self, job: str, told: Container[str]) -> tuple[Chart, ...]:
        """Return charts of how a job gets on, without what was `told` before."""
        charts = []
        for name in (one for one in OF_A_JOB if one not in told):
            measurement = self._snapshot.measurements.get(name)
            rows = self._rows("job", EntityRef("job", {"job": job})) if "job" in self._snapshot.tables else np.array([])
            if measurement is None or len(rows) != 1:
                continue
            values = self._whole(measurement)[rows[0]]
            if np.isfinite(values).sum() > 1:
                signal = self._signals[name]
                charts.append(
                    Chart(
                        name,
                        f"job {job}",
                        signal.summary,
                        signal.unit,
                        measurement.query,
                        self._times(measurement),
                        values,
                    )
                )
        return tuple(charts)

    def maps(self, job: str) -> list[Map]:
        """Return maps of a job: its GPUs by node, and its cells by stage and replica."""
        found = [self._map(job, name, ("node", "gpu")) for name in (*OF_A_RANK, *OF_A_GPU)]
        found.append(self._map(job, OF_A_CELL, ("dp", "pp")))
        return [one for one in found if one is not None]

    def _map(self, job: str, name: str, axes: tuple[str, str]) -> Map | None:
        measurement, signal = self._snapshot.measurements.get(name), self._signals.get(name)
        table = None if signal is None else self._snapshot.tables.get(signal.entity)
        if measurement is None or signal is None or table is None or not {"job", *axes} <= set(table.columns):
            return None
        across, along = (table.columns[axis] for axis in axes)
        rows = np.flatnonzero((table.columns["job"] == job) & (across != "") & (along != ""))
        if not len(rows):
            return None
        steps = max(round(LATEST / self._snapshot.step), 1)
        values = sorted_medians(measurement.window[rows][:, -steps:])
        group = self._joins.groups(signal.entity, ["job", "stage"] if "pp" in table.columns else ["job"])[rows]
        usual, level = _levels(values, group)
        ticks, lanes = (sorted(set(part[rows].tolist()), key=natural) for part in (across, along))
        column, lane = ({value: at for at, value in enumerate(values_of)} for values_of in (ticks, lanes))
        squares = tuple(
            Square(column[x], lane[y], _place(axes, x, y), quantity(float(value), signal.unit), int(how))
            for x, y, value, how in zip(across[rows], along[rows], values, level, strict=True)
        )
        middle = float(sorted_medians(usual[None, :])[0])
        return Map(
            job,
            name,
            signal.summary,
            axes[0],
            axes[1],
            tuple(ticks),
            tuple(lanes),
            squares,
            quantity(middle, signal.unit),
        )


def _place(axes: tuple[str, str], x: str, y: str) -> str:
    """Name a place of a map; a node's name says that it is one."""
    return f"{x} {axes[1]} {y}" if axes[0] == "node" else f"{axes[0]} {x} {axes[1]} {y}"


def _levels(values: Floats, group: Indices) -> tuple[Floats, Sequence[int]]:
    """Return what peers read, shape (n,), and how far each value is off that: -3 (far below) to 3, 0 where unknown.

    One level is three standard deviations, two are six, three are twelve.

    >>> _levels(np.array([1.0, 1.01, 0.99, 1.0, 2.0]), np.zeros(5, dtype=np.int64))[1]
    [0, 0, 0, 0, 3]
    """
    count = int(group.max(initial=-1)) + 1
    usual = np.full(len(values), np.nan)
    spread = np.full(len(values), np.nan)
    inside = group >= 0
    if count:
        centre = gather(values[:, None], group, count, "median")[:, 0]
        usual[inside] = centre[group[inside]]
        off = np.abs(values - usual)
        width = gather(off[:, None], group, count, "median")[:, 0] * MAD_TO_SIGMA
        spread[inside] = np.maximum(width[group[inside]], FLOOR * np.abs(usual[inside]))
    with np.errstate(divide="ignore", invalid="ignore"):
        far = (values - usual) / spread
    size = np.searchsorted([3.0, 6.0, 12.0], np.abs(np.nan_to_num(far)), side="right")
    return usual, [int(one) for one in np.sign(np.nan_to_num(far)) * size]
