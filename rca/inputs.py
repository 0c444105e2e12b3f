"""What the flags name: the settings, the rules, the source, and the window of time to look at."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rca.config import Settings, settle
from rca.errors import SourceError, UsageError, suggestion
from rca.imports import Imports
from rca.library import Library, Source
from rca.load import Changes, imports, load, phrases, shipped
from rca.model import Snapshot, Window
from rca.plain import stamp
from rca.promql import metric_names
from rca.sources import topology
from rca.sources.assemble import Deployment
from rca.sources.foreign import IMPORTERS, Ways, parse_zone, place
from rca.sources.kept import Kept
from rca.sources.prometheus import PrometheusSource, PrometheusStore
from rca.sources.recording import RecordingSource
from rca.times import parse_duration, parse_time

Extent = Callable[[], tuple[float, float] | None]
FEWEST_STEPS = 3
LONGEST = 2 * 86400.0
"""Window and baseline together, in seconds; more would not fit into memory on a large cluster."""
SKEW = 60.0
"""How far ahead of the source's present the end of a window may lie, in seconds."""


@dataclass(frozen=True)
class Inputs:
    """What a command looks at, as given on the command line or in the environment; `more` are further settings."""

    prometheus: str | None = None
    scenario: Path | None = None
    recording: Path | None = None
    logs: tuple[str, ...] = ()
    tensorboard: tuple[str, ...] = ()
    mlflow: tuple[str, ...] = ()
    wandb: tuple[str, ...] = ()
    nvidia_smi: tuple[str, ...] = ()
    influx: tuple[str, ...] = ()
    dumps: tuple[str, ...] = ()
    pickles: bool = False
    zone: str | None = None
    job: tuple[str, ...] = ()
    at: str | None = None
    window: str | None = None
    baseline: str | None = None
    topology: Path | None = None
    rules: Path | None = None
    rules_extra: tuple[Path, ...] = ()
    config: Path | None = None
    more: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Sight:
    """What was looked at; `server` is the address of the Prometheus that was asked, if one was."""

    library: Library
    window: Window
    snapshot: Snapshot
    server: str = ""


@dataclass(frozen=True, eq=False)
class Opened:
    """A source that is open: where it is, and between which times it has samples (asked for only when in need);
    `server` is the address of the Prometheus in it, if there is one."""

    source: Source
    where: str
    extent: Extent
    server: str = ""


def look(given: Inputs, environment: Mapping[str, str], step: Callable[[str], None]) -> Sight:
    """Read the rules and the source that the flags name, and make sure that there is something to judge."""
    settings = settle(given.config, environment, flags(given))
    step("reading the rules")
    library = load(*folders(settings), changes(settings, given.config))
    step("opening the source")
    with opened(given, settings, library, step) as source:
        step(f"reading {source.where}")
        window = choose_window(given, settings, source)
        snapshot = source.source.snapshot(library, window)
        _check_seen(snapshot, window, source)
    _check_steps(snapshot, window)
    _check_jobs(given.job, snapshot)
    return Sight(library, window, snapshot, source.server)


def flags(given: Inputs) -> dict[str, str | tuple[str, ...]]:
    """Return the flags that are settings, where they are given."""
    named: dict[str, str | tuple[str, ...]] = {
        "prometheus.url": given.prometheus or "",
        "topology": str(given.topology or ""),
        "rules": str(given.rules or ""),
        "rules_extra": tuple(map(str, given.rules_extra)),
        "window": given.window or "",
        "baseline": given.baseline or "",
        **given.more,
    }
    return {key: value for key, value in named.items() if value}


def folders(settings: Settings) -> tuple[Path | None, Sequence[Path]]:
    """Return the folder of rules (None: the shipped ones) and those of extra rules."""
    return Path(settings.rules) if settings.rules else None, [Path(folder) for folder in settings.rules_extra]


def changes(settings: Settings, config: Path | None) -> Changes:
    """Return what the settings change in the rules."""
    return Changes(
        settings.overrides, settings.signals, settings.labels, settings.disable, str(config or "the environment")
    )


@contextmanager
def opened(given: Inputs, settings: Settings, library: Library, step: Callable[[str], None]) -> Iterator[Opened]:
    """Open what is named: a flag beats the environment and the settings, a scenario or recording stands alone.

    Files are read at once, and joined with what a server has where `--prometheus` names one too.
    """
    alone = [f"--{flag}" for flag in ("scenario", "recording") if getattr(given, flag)]
    named = [*alone, *(flag for name, flag in IMPORTERS.items() if getattr(given, name))]
    named += ["--prometheus"] if given.prometheus else []
    if given.dumps and not given.logs:
        raise UsageError("--dumps: dumps tell who waits, and logs of the same job when; name these too: --logs DIR")
    if given.dumps and len(given.logs) > 1:
        raise UsageError("--dumps: they are of one job, name its logs alone: --logs DIR")
    if alone and len(named) > 1:
        raise UsageError(f"{' and '.join(named)}: {alone[0]} stands alone, leave out the others")
    if given.recording is not None:
        if given.topology is not None:
            raise UsageError("--topology: a recording holds what was known when it was made, leave it out")
        recording = RecordingSource(given.recording)
        yield Opened(recording, str(given.recording), lambda: None)
    elif given.scenario is not None:
        from rca.sources.scenario import ScenarioSource  # noqa: PLC0415 - the simulator is heavy

        scenario = ScenarioSource(given.scenario, Deployment(_topology(given.topology)))
        yield Opened(scenario, str(given.scenario), lambda: (scenario.world.epoch, scenario.world.end))
    elif named and named != ["--prometheus"]:
        with _imported(given, settings, library, step) as found:
            yield found
    elif settings.prometheus.url:
        with PrometheusStore(settings.prometheus) as store:
            where = store.site.url
            source = PrometheusSource(store, deployment(settings))
            yield Opened(source, where, store.extent, where)
    else:
        raise UsageError(
            "no source: give --prometheus URL, --scenario FILE, --recording FILE, or files of other systems: "
            f"{', '.join(IMPORTERS.values())}"
        )


@contextmanager
def _imported(given: Inputs, settings: Settings, library: Library, step: Callable[[str], None]) -> Iterator[Opened]:
    """Read the files that are named, and open the server that stands beside them on the command line."""
    from rca import dumps  # noqa: PLC0415 - all that reads files is heavy, and most look at a server
    from rca.sources import files  # noqa: PLC0415 - likewise

    main, extra = folders(settings)
    known = {name for signal in library.signals.values() for query in signal.queries for name in metric_names(query)}
    zone = parse_zone("--zone", given.zone) if given.zone else None
    table = imports([main or shipped(), *extra])
    templates = phrases(main, extra) if given.logs else ()
    told = dumps.read(dumps.files(given.dumps), pickles=given.pickles)
    ways = Ways(Imports(table, known), zone, settings.mlflow, settings.influx, templates, told)
    stores: list[Kept | files.Live] = []
    for importer, flag in IMPORTERS.items():
        for text in getattr(given, importer):
            where = place(flag, text)
            step(f"reading {where.shown}")
            stores.append(files.read(importer, where, ways))
    with ExitStack() as stack:
        server = ""
        if given.prometheus:
            store = stack.enter_context(PrometheusStore(settings.prometheus))
            stores, server = [*stores, store], store.site.url
        source = files.FilesSource(stores, deployment(settings))
        source.of_job(given.job[0] if len(given.job) == 1 else "")
        source.assume_ranks()
        yield Opened(source, source.where, source.extent, server)


def deployment(settings: Settings) -> Deployment:
    """Return what the settings say of the deployment."""
    return Deployment(_topology(Path(settings.topology) if settings.topology else None))


def _topology(path: Path | None) -> topology.Topology:
    return topology.Topology() if path is None else topology.load(path)


def choose_window(given: Inputs, settings: Settings, opened: Opened) -> Window:
    """Return the window that the flags ask for; that of a recording where they ask for none."""
    if isinstance(opened.source, RecordingSource) and not (given.at or given.window or given.baseline):
        return opened.source.window
    width = parse_duration("--window", settings.window)
    baseline = parse_duration("--baseline", settings.baseline)
    if width == 0:
        raise UsageError("--window: a window of 0 s holds nothing, write for example 15m")
    if width + baseline > LONGEST:
        raise UsageError(
            f"--window: {settings.window} and --baseline {settings.baseline} are more than {LONGEST / 86400:g} days of samples"
            " together, write less"
        )
    latest = opened.source.latest()
    end = parse_time("--at", given.at, latest) if given.at else latest
    if end > latest + SKEW:
        raise UsageError(f"--at: {stamp(end)} is in the future, the present of {opened.where} is {stamp(latest)}")
    if end - width - baseline < 0:
        raise UsageError(f"--window: {settings.window} and {settings.baseline} before {stamp(end)} is before 1970")
    return Window(end - width, end, baseline)


def _check_seen(snapshot: Snapshot, window: Window, opened: Opened) -> None:
    """Object to a window without a single sample of any signal, and say when there are some."""
    if any(np.isfinite(measurement.window).any() for measurement in snapshot.measurements.values()):
        return
    asked = f"{opened.where}: no samples between {stamp(window.start)} and {stamp(window.end)}"
    extent = opened.extent()
    if extent is None:
        raise SourceError(f"{asked}, and none at any time; is something scraped there")
    first, last = extent
    if window.end < first or window.start > last:
        raise UsageError(f"{asked}, there are some from {stamp(first)} to {stamp(last)}, write --at {stamp(last)}")
    raise SourceError(f"{asked} of any metric that the rules read; rca reads DCGM, node_exporter and train_* metrics")


def _check_steps(snapshot: Snapshot, window: Window) -> None:
    """Object to a window that holds too few samples to judge anything by."""
    least = FEWEST_STEPS * snapshot.step
    if window.end - window.start < least:
        raise UsageError(
            f"--window: {window.end - window.start:g} s are less than {FEWEST_STEPS} samples, which come every "
            f"{snapshot.step:g} s, write {least:g}s or more"
        )


def _check_jobs(jobs: Sequence[str], snapshot: Snapshot) -> None:
    """Object to a job that the source does not know."""
    table = snapshot.tables.get("job")
    known = [] if table is None else [str(name) for name in table.columns["job"]]
    for job in jobs:
        if job not in known:
            found = suggestion(job, known) or f", {len(known)} are known" if known else ", no job at all was found"
            raise UsageError(f"--job: no such job: {job!r}{found}")
