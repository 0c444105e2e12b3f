"""From raw series to a `Snapshot`: the core of every metric source.

What a store holds is asked for once a selector, over all the time that it is needed. Then the grid is chosen by the
spacing of real samples, labels become entities, queries are evaluated series by series and gathered to one row an
entity, and derived signals are computed.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from rca.errors import SourceError
from rca.library import Entities, Library
from rca.model import Measurement, Snapshot, Window
from rca.plain import natural
from rca.sources.asking import HOSTS, UPLINKS, Answered, Questions, Sampling, answers, questions
from rca.sources.derive import derive
from rca.sources.expressions import Sampled
from rca.sources.grid import EDGE, Grid, Ints, clean, common_step
from rca.sources.identity import Reader, rewritten
from rca.sources.measure import Bench, Material, Placed, Times
from rca.sources.ranks import Info
from rca.sources.series import Block, Store
from rca.sources.tables import Directory, World, build
from rca.sources.topology import Topology, uplinks

RDMA, RDMA_STATE, RDMA_ACTIVE = "node_infiniband_", "node_infiniband_state_id", 4.0
_EXPORTED_ONCE = ("gpu", "node", "nic", "rank")


@dataclass(frozen=True)
class Deployment:
    """What a deployment says of itself: its topology, and the grid step in seconds where it is not to follow the samples."""

    topology: Topology = field(default_factory=Topology)
    step: float | None = None


def assemble(store: Store, library: Library, window: Window, deployment: Deployment | None = None) -> Snapshot:
    """Read all that the library's signals ask for.

    Raises SourceError where the store fails, ProblemsError where a query is not PromQL.
    """
    deployment = deployment or Deployment()
    names = store.names(window.start - window.baseline, window.end)
    asked = questions(library, names, window, library.aliases)
    sampling, readings = Sampling(), Readings(library, asked)
    answered: dict[int, Answered] = {}
    series: dict[int, Sampled] = {}
    for number, one in answers(store, asked, window.end):  # the store works on, so what can be done now is for free
        answered[number], series[number] = one, sampling.add(one.block)
        readings.add(number, series[number])
    times = choose_times(asked, series, window, deployment.step)
    served, failed, warnings = _served(store, asked, times)
    for number, block in served.items():
        series[number] = sampling.add(block)
        readings.add(number, series[number])
    codes = readings.codes
    placed = Placed(asked, series, times)
    with ThreadPoolExecutor(1) as aside:  # numpy leaves the interpreter to the tables
        ready = aside.submit(placed.prepare)
        directory = build(library.entities, _world(library.entities, asked, series, readings, deployment.topology))
        ready.result()
    bench = Bench(asked, Material(series, failed, readings.readers, codes, directory), placed)
    measured: dict[str, Measurement] = {}
    absent: dict[str, str] = {}
    for name, signal in sorted(library.signals.items()):
        if signal.derived is None:
            found = bench.measure(name, signal)
            if isinstance(found, Measurement):
                measured[name] = found
            else:
                absent[name] = found
    derived = derive(library.signals, library.entities, directory.tables, measured, absent)
    warnings = [
        *_short(times, window),
        *directory.warnings,
        *_nameless(series, codes, directory),
        *_twice(series, codes, directory),
        *_clocks(asked, answered),
        *bench.warnings,
        *warnings,
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


def choose_times(asked: Questions, series: Mapping[int, Sampled], window: Window, step: float | None) -> Times:
    """Choose the grid: the given step, or the usual spacing of the fastest samples that are common."""
    if step is None:
        infos = set(asked.infos.values())
        found = [(one.timeline.interval, len(one.labels)) for number, one in series.items() if number not in infos]
        step = common_step([(seconds, count) for seconds, count in found if seconds is not None])
    size = max(int((window.end - window.start) / step + 1e-6) + 1, 1)
    inner = Grid(window.end, step, size)
    ahead = max(int(window.baseline / step + 1e-6), 0)
    whole = Grid(window.end, step, size + ahead)
    if any(asked.back[len(asked.selectors) :]):
        return Times(inner, whole, whole)
    back = [one.timeline.times for number, one in series.items() if asked.back[number]]
    earliest = min((float(times.min()) for times in back if len(times)), default=window.end)
    used = -int(np.ceil((earliest - inner.start) / step - 1.0 + EDGE))
    return Times(inner, whole, Grid(window.end, step, size + min(max(used, 0), ahead)))


def _served(store: Store, asked: Questions, times: Times) -> tuple[dict[int, Block], dict[int, str], list[str]]:
    """Have the server evaluate what has no plan: blocks, or why there are none, and what to say about it."""
    blocks: dict[int, Block] = {}
    failed: dict[int, str] = {}
    warnings: list[str] = []
    for number, text in enumerate(asked.served, len(asked.selectors)):
        grid = times.whole if asked.back[number] else times.window
        try:
            blocks[number], _, _ = clean(store.evaluate(text, grid.times()), grid.end)
        except SourceError as error:
            failed[number] = str(error)
            warnings.append(f"query {text}: {error}")
            continue
        warnings.append(f"query {text}: the server evaluates it, gaps under 5 minutes are invisible there")
    return blocks, failed, warnings


class Readings:
    """Reads the labels of series as each kind that they are asked for, and info series as such."""

    def __init__(self, library: Library, asked: Questions) -> None:
        self.infos: dict[str, list[Info]] = {}
        self._entities = library.entities
        self._informing = {asked.infos[name]: name for name in library.entities.rank_info if name in asked.infos}
        self.readers = {kind: Reader(library.entities, kind) for kind in library.entities.kinds}
        self.codes: dict[tuple[int, str], Ints] = {}
        self._kinds: dict[int, set[str]] = {}
        for name, queries in asked.queries.items():
            for number in {number for query in queries for number in query.reads.values()}:
                self._kinds.setdefault(number, set()).add(library.signals[name].entity)

    def add(self, number: int, series: Sampled) -> None:
        """Read the labels of one answer."""
        for kind in sorted(self._kinds.get(number, ())):
            self.codes[number, kind] = self.readers[kind].read_sets(series.labels)
        if number in self._informing:
            self.infos[self._informing[number]] = _infos(self._entities, series)


def _world(
    entities: Entities,
    asked: Questions,
    series: Mapping[int, Sampled],
    readings: Readings,
    topology: Topology,
) -> World:
    """Collect what tables are built from."""
    infos = {name: series[number].block for name, number in asked.infos.items() if number in series}
    nowhere = Block([], np.zeros(1, dtype=np.int64), np.zeros(0), np.zeros(0))
    return World(
        seen={kind: reader.seen for kind, reader in readings.readers.items()},
        infos=[one for name in entities.rank_info for one in readings.infos.get(name, ())],
        hosts=_hosts(entities, infos.get(HOSTS, nowhere)),
        uplinks=uplinks(infos.get(UPLINKS, nowhere).labels),
        active=_active(series, readings.codes),
        topology=topology,
    )


def _infos(entities: Entities, series: Sampled) -> list[Info]:
    """Read info series, those that say the same as one."""
    reader = Reader(entities, "rank", ("ep", "uuid"))
    codes, block = reader.read_sets(series.labels), series.block
    filled = np.flatnonzero(np.diff(block.offsets))
    first, last = np.full(len(reader.seen), np.inf), np.full(len(reader.seen), -np.inf)
    np.minimum.at(first, codes[filled], block.times[block.offsets[filled]])
    np.maximum.at(last, codes[filled], block.times[block.offsets[filled + 1] - 1])
    spans = zip(reader.seen, first.tolist(), last.tolist(), strict=True)
    return [Info(seen, begin, end) for seen, begin, end in spans if begin <= end]


def _hosts(entities: Entities, block: Block) -> dict[str, str]:
    """Return the host name that each instance of `node_uname_info` gave last."""
    last = [float(block.times[end - 1]) if end else 0.0 for end in block.offsets[1:].tolist()]
    found: dict[str, str] = {}
    told = zip(block.labels, last, strict=True)
    for labels, _ in sorted(told, key=lambda one: (one[1], natural(one[0].get("nodename", "")))):
        instance, name = labels.get("instance", ""), labels.get("nodename", "")
        if instance and name:
            found[rewritten(instance, entities.labels["node"])] = name
    return found


def _active(found: Mapping[int, Sampled], codes: Mapping[tuple[int, str], Ints]) -> frozenset[int]:
    """Return the readings of RDMA ports that were active at some time, or of all where no state is known."""
    ports: set[int] = set()
    active: set[int] = set()
    known = False
    for (number, kind), own in codes.items():
        if kind != "nic":
            continue
        block, names = found[number].block, found[number].labels.names
        ports |= {code for code, name in zip(own.tolist(), names, strict=True) if name.startswith(RDMA)}
        if RDMA_STATE in names:
            known = True
            series = np.repeat(np.arange(len(names)), np.diff(block.offsets))
            up = np.unique(series[block.values == RDMA_ACTIVE]).tolist()
            active |= {int(own[row]) for row in up if names[row] == RDMA_STATE}
    return frozenset(active if known else ports)


def _short(times: Times, window: Window) -> list[str]:
    """Warn of a window that holds too few steps to judge anything by."""
    if window.end - window.start >= 3.0 * times.window.step:
        return []
    seconds = window.end - window.start
    return [f"window: {seconds:g} s is less than three steps of {times.window.step:g} s, ask for a longer one"]


def _nameless(series: Mapping[int, Sampled], codes: Mapping[tuple[int, str], Ints], directory: Directory) -> list[str]:
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


def _twice(series: Mapping[int, Sampled], codes: Mapping[tuple[int, str], Ints], directory: Directory) -> list[str]:
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
