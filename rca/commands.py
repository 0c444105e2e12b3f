"""What the commands do between their flags and their output: one pipeline, and what else they write."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path

import msgspec

from rca import load, terminal
from rca.advice import LONG_ENOUGH, Kept, advise
from rca.config import check_url, settle
from rca.diagnose import diagnose as judge
from rca.errors import Problem, SourceError, UsageError
from rca.inputs import Inputs, Sight, changes, deployment, flags, folders, look
from rca.library import Library
from rca.model import Report, Window, seconds
from rca.plain import counted, stamp
from rca.render import text
from rca.render._advice import render as advised
from rca.schema import schema as rule_schema
from rca.sources import recording
from rca.sources.prometheus import PrometheusStore
from rca.sources.survey import survey
from rca.times import parse_time

Step = Callable[[str], None]
LONG_BLOCK = 2 * 3600.0
"""Seconds of samples in a block of a Prometheus that has compacted nothing yet."""


def diagnose(given: Inputs, step: Step) -> tuple[Report, Sight]:
    """Look, and judge what was seen."""
    sight = look(given, os.environ, step)
    step("weighing causes")
    return judge(sight.library, sight.snapshot, given.job), sight


def rendered(report: Report, sight: Sight, output: str) -> str:
    """Write a report in the format asked for; a page shows some of what was seen."""
    if output == "html":
        from rca.picture import draw  # noqa: PLC0415 - only pages are drawn
        from rca.render import html  # noqa: PLC0415 - likewise

        return html.render(report, draw(sight.library, sight.snapshot, report), sight.server)
    if output == "text":
        screen = terminal.screen(sys.stdout, os.environ)
        return text.render(report, width=screen.width, colour=screen.colour, ascii_only=screen.ascii_only)
    written: str = import_module(f"rca.render.{output}").render(report)
    return written


def record(given: Inputs, to: Path, step: Step) -> str:
    """Save what a diagnosis would see, and say what was saved."""
    sight = look(given, os.environ, step)
    step(f"writing {to}")
    recording.write(to, sight.snapshot, sight.window)
    snapshot, window = sight.snapshot, sight.window
    jobs = len(snapshot.tables["job"]) if "job" in snapshot.tables else 0
    return (
        f"{to}: {stamp(window.start)} to {stamp(window.end)} and {window.baseline:g} s before it, "
        f"{counted(jobs, 'job')}, {counted(len(snapshot.measurements), 'signal')}, "
        f"{counted(to.stat().st_size, 'byte')}"
    )


def simulate(scenario: Path, to: str | None, logs: Path | None, end: float | None, step: Step) -> str:
    """Write a scenario as OpenMetrics, to a file or to stdout, or as log files into a folder, and say what was written."""
    from rca import openmetrics  # noqa: PLC0415 - the simulator is heavy
    from rca.physics.voices import files  # noqa: PLC0415 - likewise
    from rca.sources.scenario import stage, write  # noqa: PLC0415 - likewise

    if logs is not None:
        _make_empty("--logs", logs)
    step(f"simulating {scenario}")
    world = stage(scenario, end)
    said, span = [], f"{stamp(world.epoch)} to {stamp(world.end)}"
    if logs is not None:
        step(f"writing {logs}")
        count, size = write(logs, files(world.trace, world.epoch))
        said.append(f"{logs}: {span}, {counted(count, 'log file')}, {counted(size, 'byte')}")
    if to is not None:
        step(f"writing {to}")
        save(to, openmetrics.lines(world))
        series = sum(len(metric.labels) for metric in world.metrics.values())
        said.append(f"{'stdout' if to == '-' else to}: {span}, {counted(series, 'series')}")
    return "\n".join(said)


def _make_empty(flag: str, folder: Path) -> None:
    """Make a folder, or refuse one that holds anything: old logs among new ones would be read as one incident."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{flag}: {folder} is not empty, name a new folder")
    except OSError as error:
        raise SourceError(f"{folder}: cannot be made, {(error.strerror or str(error)).lower()}") from error


def check(given: Inputs) -> tuple[Sequence[Problem], str]:
    """Return every problem of the rules, and the sentence that sums up."""
    settings = settle(given.config, os.environ, flags(given))
    loaded = load.check(*folders(settings), changes(settings, given.config))
    if loaded.problems or loaded.library is None:
        return loaded.problems, counted(len(loaded.problems), "problem")
    rules, signals = loaded.library.rules, loaded.library.signals
    templates = counted(len(loaded.phrases), "log template")
    return (), f"{counted(len(rules), 'rule')}, {counted(len(signals), 'signal')} and {templates}, no problem"


def check_against(url: str, given: Inputs, step: Step) -> tuple[str, bool]:
    """Return in words what a server could do better, and whether there is anything."""
    try:
        check_url(url)
    except ValueError as error:
        raise UsageError(f"--against: {error}") from error
    settings = settle(given.config, os.environ, {**flags(given), "prometheus.url": url})
    library = load.load(*folders(settings), changes(settings, given.config))
    with PrometheusStore(settings.prometheus) as store:
        step(f"reading {store.site.url}")
        end = store.now()
        window = Window(end - seconds(settings.window), end, seconds(settings.baseline))
        seen = survey(store, library, window, deployment(settings))
        step("looking for what is missing")
        told = store.retention()
        old = end - LONG_ENOUGH
        kept = Kept(told, told is not None or bool(store.names(old - LONG_BLOCK, old)))
        advice = advise(seen, store.site.url, kept)
    screen = terminal.screen(sys.stdout, os.environ)
    shown = advised(advice, width=screen.width, colour=screen.colour, ascii_only=screen.ascii_only)
    return shown, advice.fine()


def schema(to: str) -> None:
    """Write the JSON Schema of a rule file, to a file or to stdout."""
    save(to, [msgspec.json.format(msgspec.json.encode(rule_schema()), indent=2).decode() + "\n"])


def export_prometheus(given: Inputs, named: Sequence[str], to: str) -> str:
    """Write what Prometheus can evaluate of the rules, and say how much that is."""
    from rca.export import expressions, prometheus  # noqa: PLC0415 - only exports need them

    library = _library(given)
    written, said = prometheus.render(library, expressions.read_labels(named, library.entities.labels))
    save(to, [written])
    return said


def export_alertmanager(url: str | None, to: str) -> None:
    """Write the configuration of Alertmanager for an rca at a URL."""
    from rca.export import alertmanager  # noqa: PLC0415 - only exports need it

    try:
        check_url(url or alertmanager.ADDRESS)
    except ValueError as error:
        raise UsageError(f"--url: {error}") from error
    save(to, [alertmanager.render(url or alertmanager.ADDRESS)])


def export_grafana(given: Inputs, named: Sequence[str], to: Path) -> str:
    """Write dashboards and their provider into a folder, and say which."""
    from rca.export import expressions, grafana  # noqa: PLC0415 - only exports need them

    library = _library(given)
    files = grafana.files(library, expressions.read_labels(named, library.entities.labels), to)
    try:
        to.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SourceError(f"{to}: cannot be made, {(error.strerror or str(error)).lower()}") from error
    for name, written in files.items():
        save(str(to / name), [written])
    return f"{to}: {', '.join(files)}"


def _library(given: Inputs) -> Library:
    settings = settle(given.config, os.environ, flags(given))
    return load.load(*folders(settings), changes(settings, given.config))


def save(to: str, pieces: Iterable[str]) -> None:
    """Write text to a file, or to stdout where it is `-`."""
    if to == "-":
        terminal.write_all(pieces, encoding="utf-8")
        return
    try:
        with Path(to).open("w", encoding="utf-8", newline="\n") as stream:
            stream.writelines(pieces)
    except OSError as error:
        raise SourceError(f"{to}: cannot be written, {(error.strerror or str(error)).lower()}") from error


__all__ = [
    "check",
    "check_against",
    "diagnose",
    "export_alertmanager",
    "export_grafana",
    "export_prometheus",
    "parse_time",
    "record",
    "rendered",
    "save",
    "schema",
    "simulate",
]
