"""The command line: flags in, one result on stdout, one exit status out. Heavy modules are imported by the commands."""

import ctypes
import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from rca import __version__, render, terminal
from rca.errors import ProblemsError, RcaError, UsageError
from rca.exporter.flags import exporter
from rca.logs.flags import logs

if TYPE_CHECKING:
    from rca.inputs import Inputs

EXIT = {"healthy": 0, "causes_found": 10, "inconclusive": 11}
INTERRUPTED = 130
PROBLEMS = 3
MOST_PROBLEMS = 50
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_NOTES = """Environment: RCA_CONFIG, RCA_JOB, RCA_OUTPUT, RCA_DEBUG, and RCA_ with the name of a setting (RCA_PROMETHEUS_URL).

\b
Exit status: 0 nothing wrong, 10 causes found, 11 inconclusive,
2 wrong usage, 3 bad rules or files, 4 a source failed."""
_HEAP = ((-8, 1), (-3, 32 << 20), (-1, 1 << 30))
"""M_ARENA_MAX, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h: one heap, and all but the largest blocks stay in it."""
R = TypeVar("R")


def _show_tracebacks(context: click.Context, option: click.Parameter, debug: bool) -> None:
    if debug:
        sys.excepthook = sys.__excepthook__


_DEBUG = click.option(
    "--debug",
    envvar="RCA_DEBUG",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_tracebacks,
    help="Show the traceback of an internal error.",
)
_RULES = (
    click.option("--rules", type=_FOLDER, metavar="DIR", help="Use these rules instead of the shipped ones."),
    click.option(
        "--rules-extra", type=_FOLDER, metavar="DIR", multiple=True, help="Add the rules of a folder; repeatable."
    ),
    click.option(
        "--config",
        envvar="RCA_CONFIG",
        type=_FILE,
        metavar="FILE",
        help="Settings of this deployment, such as rca.yaml.",
    ),
)
_IMPORTS = (
    click.option("--logs", multiple=True, metavar="PATH", help="Read logs of ranks, hosts and launchers; repeatable."),
    click.option("--tensorboard", multiple=True, metavar="DIR", help="Read TensorBoard event files; repeatable."),
    click.option(
        "--mlflow", multiple=True, metavar="URI", help="Read an MLflow server, folder or database; repeatable."
    ),
    click.option("--wandb", multiple=True, metavar="PATH", help="Read offline runs or exports of W&B; repeatable."),
    click.option("--nvidia-smi", multiple=True, metavar="CSV", help="Read what nvidia-smi has logged; repeatable."),
    click.option("--influx", multiple=True, metavar="URL", help="Read InfluxDB, or line protocol files; repeatable."),
    click.option("--dumps", multiple=True, metavar="PATH", help="Flight Recorder or RAS, beside --logs; repeatable."),
    click.option("--pickles", is_flag=True, help="Read dumps that are pickles: plain values alone."),
    click.option("--zone", metavar="ZONE", help="Zone of times that tell none  [this machine's]"),
)
_INPUTS = (
    click.option("--prometheus", metavar="URL", help="Read a Prometheus server, or one that speaks its API."),
    click.option("--scenario", type=_FILE, metavar="FILE", help="Read a made-up cluster; stands alone."),
    click.option("--recording", type=_FILE, metavar="FILE", help="Read what `rca record` saved; stands alone."),
    *_IMPORTS,
    click.option(
        "--job",
        envvar="RCA_JOB",
        multiple=True,
        metavar="JOB",
        help="Look at this training job only; repeatable  [all]",
    ),
    click.option("--at", metavar="TIME", help="End of the window: now, -2h or RFC 3339  [last sample]"),
    click.option("--window", metavar="DURATION", help="How far the window reaches back  [15m]"),
    click.option("--baseline", metavar="DURATION", help="How much before the window counts as usual  [1h]"),
    click.option("--topology", type=_FILE, metavar="FILE", help="Which rack and switches each node hangs on (YAML)."),
    *_RULES,
)


@contextmanager
def _untidy() -> Iterator[None]:
    """Leave garbage where it is: to look for it among millions of labels again and again takes longer than a look.

    Memory that is given back is kept too, for the next answer: it is dear to get page by page from the system.
    """
    gc.disable()
    with suppress(AttributeError):  # only the C library of GNU has it, and threads that share one heap
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in _HEAP:
            mallopt(parameter, value)
    try:
        yield
    finally:
        gc.freeze()  # what a look has made goes with the process
        gc.enable()


def _looks(function: Callable[..., R]) -> Callable[..., R]:
    """Give a command the options of `Inputs`, handed over as one value in front of its own options."""

    @wraps(function)
    def call(**values: Any) -> R:  # noqa: ANN401 - click hands over whatever the options hold
        with _untidy():
            from rca.inputs import Inputs  # noqa: PLC0415 - heavy

            given = {field.name: values.pop(field.name) for field in fields(Inputs) if field.name in values}
            return function(Inputs(**given), **values)

    for option in reversed(_INPUTS):
        call = option(call)
    return call


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="rca", message="%(prog)s %(version)s")
@_DEBUG
def rca() -> None:
    """Find the root cause of a slow, stalled or failing training job, with the evidence for it."""


@rca.command(epilog=_NOTES, short_help="Say what is wrong, why, and what to do.")
@_looks
@click.option(
    "-o",
    "--output",
    envvar="RCA_OUTPUT",
    type=click.Choice(render.formats()),
    default="text",
    metavar="FORMAT",
    help=f"Format: {', '.join(render.formats())}  [text]",
)
@_DEBUG
def diagnose(given: "Inputs", output: str) -> NoReturn:
    """Look at one window of time and say what is wrong, why, and what to do.

    \b
      rca diagnose --prometheus http://prometheus:9090
      rca diagnose --prometheus http://prometheus:9090 --job llama-70b --at -2h -o json
      rca diagnose --nvidia-smi gpus/ --tensorboard runs/llama
      rca diagnose --scenario scenarios/cooling_fault.yaml
    """
    from rca import commands  # noqa: PLC0415 - heavy

    with terminal.progress() as step:
        report, sight = commands.diagnose(given, step)
    terminal.write(commands.rendered(report, sight, output), encoding=None if output == "text" else "utf-8")
    raise click.exceptions.Exit(EXIT[report.status])


@rca.command(short_help="Save what a diagnosis would see.")
@_looks
@click.option(
    "-O",
    "--to",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="Where to save it.  [required]",
)
@_DEBUG
def record(given: "Inputs", to: Path) -> None:
    """Save what a diagnosis would see, to diagnose it again elsewhere with --recording."""
    from rca import commands  # noqa: PLC0415 - heavy

    with terminal.progress() as step:
        saved = commands.record(given, to, step)
    terminal.say(saved)


@rca.command(short_help="Write a made-up cluster as OpenMetrics, or its logs.")
@click.argument("scenario", type=_FILE, metavar="FILE")
@click.option("--to", metavar="FILE", help="Where to write it; - is stdout  [-, without --logs]")
@click.option(
    "--logs",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write what it logs, into a new folder.",
)
@click.option("--at", metavar="TIME", help="When it ends: now, -2h or RFC 3339  [as it says itself]")
@click.option("--listen", metavar="HOST:PORT", help="Let it happen now, at /metrics there.")
@_DEBUG
def simulate(scenario: Path, to: str | None, logs: Path | None, at: str | None, listen: str | None) -> None:
    """Write a made-up cluster as OpenMetrics, for `promtool tsdb create-blocks-from openmetrics`, or as log files.

    With --listen it happens now, for a Prometheus that scrapes it (with honor_labels): its first fault begins in a
    minute, unless --at says when the scenario ends, and when it is over it begins again. --to then takes what lies in
    the past already.

    \b
      rca simulate scenarios/cooling_fault.yaml --to series.om
      rca simulate scenarios/logs/logs_lost_gpu.yaml --logs incident
    """
    from rca import commands  # noqa: PLC0415 - heavy

    now = float(int(time.time()))  # noqa: TID251 - what `now` means is asked at the edge, and nowhere else
    end = commands.parse_time("--at", at, now) if at else None
    if listen is not None:
        from rca import service  # noqa: PLC0415 - heavy

        if logs is not None:
            raise UsageError("--listen and --logs: logs are written at once, leave out --listen")
        service.simulate(scenario, to, end, listen)
        return
    with terminal.progress() as step:
        written = commands.simulate(scenario, to or (None if logs else "-"), logs, end, step)
    terminal.say(written)


def _shard(_context: click.Context, _option: click.Parameter, text: str) -> tuple[int, int]:
    """Read which part of the jobs is ours, as 2/5."""
    number, slash, of = text.partition("/")
    if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise click.BadParameter(f"{text!r} is no part of the jobs, write for example 2/5")
    return int(number), int(of)


_SERVICE = (
    click.option("--prometheus", metavar="URL", help="Watch this server, or one that speaks its API."),
    click.option("--interval", metavar="DURATION", help="How often to look  [30s]"),
    click.option("--window", metavar="DURATION", help="How far a look reaches back  [15m]"),
    click.option("--baseline", metavar="DURATION", help="How much before the window counts as usual  [1h]"),
    click.option("--topology", type=_FILE, metavar="FILE", help="Which rack and switches each node hangs on (YAML)."),
    click.option(
        "--alertmanager", "alertmanagers", metavar="URL", multiple=True, help="Send alerts there; repeatable."
    ),
    click.option("--store", metavar="URL", help="Where incidents are kept  [sqlite:///rca.db]"),
    click.option(
        "--shard", callback=_shard, default="1/1", metavar="N/OF", help="Which part of the jobs is ours  [1/1]"
    ),
    *_RULES,
)


def _serves(function: Callable[..., R]) -> Callable[..., R]:
    """Give a long-lived command its options: `Inputs`, which hold what else is a setting, and the shard."""

    @wraps(function)
    def call(**values: Any) -> R:  # noqa: ANN401 - click hands over whatever the options hold
        from rca.inputs import Inputs  # noqa: PLC0415 - heavy

        known = {field.name for field in fields(Inputs)}
        more = {name: values.pop(name) for name in ("interval", "alertmanagers", "store", "listen") if name in values}
        given = {name: values.pop(name) for name in list(values) if name in known}
        return function(Inputs(**given, more={name: value for name, value in more.items() if value}), **values)

    for option in reversed(_SERVICE):
        call = option(call)
    return call


@rca.command(short_help="Look on a schedule, keep incidents, send alerts.")
@_serves
@click.option("--once", is_flag=True, help="Look once and end, for cron.")
@_DEBUG
def watch(given: "Inputs", shard: tuple[int, int], once: bool) -> None:
    """Look at all jobs on a schedule, keep incidents, and send alerts that carry the root cause.

    A look in health costs little; where something is wrong, and every few minutes, all is read. SIGHUP reads settings
    and rules again, SIGTERM ends it; incidents go on where they were when it starts again.

    \b
      rca watch --prometheus http://prometheus:9090 --alertmanager http://alertmanager:9093
    """
    from rca import service  # noqa: PLC0415 - heavy

    service.watch(given, shard, once=once)


@rca.command(short_help="Answer Alertmanager and people over HTTP.")
@_serves
@click.option("--listen", metavar="HOST:PORT", help="Where to listen  [127.0.0.1:9797]")
@click.option("--watch", "scheduled", is_flag=True, help="Also look on a schedule, as `rca watch` does.")
@_DEBUG
def serve(given: "Inputs", shard: tuple[int, int], scheduled: bool) -> None:
    """Take Alertmanager's alerts, look into them, keep incidents, and send alerts that carry the root cause.

    Without --watch it looks at nothing of its own accord, and follows what alerts have brought about to its end.

    \b
      rca serve --watch --prometheus http://prometheus:9090 --alertmanager http://alertmanager:9093
    """
    from rca import service  # noqa: PLC0415 - heavy

    service.serve(given, shard, follow=not scheduled)


@rca.command(short_help="Check rules and the graph they form.")
@_RULES[0]
@_RULES[1]
@_RULES[2]
@click.option("--against", metavar="URL", help="Also say what a Prometheus server lacks for these rules.")
@click.option("--schema", metavar="FILE", help="Write the JSON Schema of a rule file; - is stdout.")
@_DEBUG
def check(
    rules: Path | None, rules_extra: tuple[Path, ...], config: Path | None, against: str | None, schema: str | None
) -> NoReturn:
    """Check rules and the graph that they form; print every problem, exit with 3 if there is one.

    With --against, also say which rules can never fire on a server, what to enable there, and what to change in how
    samples are collected; exit with 3 if there is anything to change. How to log in stands in the file of --config,
    under prometheus.

    \b
      rca check --against http://prometheus:9090
    """
    from rca import commands  # noqa: PLC0415 - heavy
    from rca.inputs import Inputs  # noqa: PLC0415 - heavy

    if schema is not None:
        commands.schema(schema)
        raise click.exceptions.Exit(0)
    given = Inputs(rules=rules, rules_extra=rules_extra, config=config)
    problems, summary = commands.check(given)
    terminal.write("".join(f"{problem}\n" for problem in problems))
    terminal.say(summary)
    fine = not problems
    if against is not None and fine:
        with _untidy(), terminal.progress() as step:
            advice, fine = commands.check_against(against, given, step)
        terminal.write(advice)
    raise click.exceptions.Exit(0 if fine else PROBLEMS)


@rca.group(short_help="Write rules and dashboards for other systems.")
@_DEBUG
def export() -> None:
    """Write rules for Prometheus, routes for Alertmanager and dashboards for Grafana.

    \b
      rca export prometheus -O rca.rules.yml
      rca export alertmanager --url http://rca:9797
      rca export grafana --to /etc/grafana/provisioning/dashboards
    """


_LABEL = click.option(
    "--label",
    "labels",
    metavar="NAME=LABEL",
    multiple=True,
    help="A label's name, node=host or dcgm.node=host; repeatable.",
)
_TO_FILE = click.option("-O", "--to", metavar="FILE", default="-", help="Where to write it; - is stdout  [-]")


@export.command(short_help="Rules that Prometheus can evaluate itself.")
@_RULES[0]
@_RULES[1]
@_RULES[2]
@_LABEL
@_TO_FILE
@_DEBUG
def prometheus(
    rules: Path | None, rules_extra: tuple[Path, ...], config: Path | None, labels: tuple[str, ...], to: str
) -> None:
    """Write alerting and recording rules for all that PromQL can say of our rules, and list what it cannot.

    An alert is at most as wide as its rule. It tells a finding; which of several is the cause only `rca diagnose` says.
    """
    from rca import commands  # noqa: PLC0415 - heavy
    from rca.inputs import Inputs  # noqa: PLC0415 - heavy

    given = Inputs(rules=rules, rules_extra=rules_extra, config=config)
    terminal.say(commands.export_prometheus(given, labels, to))


@export.command(short_help="Routes and inhibition for Alertmanager.")
@click.option("--url", metavar="URL", help="Where rca serves  [http://127.0.0.1:9797]")
@_TO_FILE
@_DEBUG
def alertmanager(url: str | None, to: str) -> None:
    """Write the configuration that sends alerts to rca and silences the symptoms of a root cause that it found."""
    from rca import commands  # noqa: PLC0415 - heavy

    commands.export_alertmanager(url, to)


@export.command(short_help="Dashboards for Grafana.")
@_RULES[0]
@_RULES[1]
@_RULES[2]
@_LABEL
@click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Folder for the dashboards and their provider.",
)
@_DEBUG
def grafana(
    rules: Path | None, rules_extra: tuple[Path, ...], config: Path | None, labels: tuple[str, ...], to: Path
) -> None:
    """Write dashboards as JSON, made from the signals, and the provider file that makes Grafana load them."""
    from rca import commands  # noqa: PLC0415 - heavy
    from rca.inputs import Inputs  # noqa: PLC0415 - heavy

    given = Inputs(rules=rules, rules_extra=rules_extra, config=config)
    terminal.say(commands.export_grafana(given, labels, to))


rca.add_command(_DEBUG(exporter))
rca.add_command(_DEBUG(logs))


def run(command: click.Command, arguments: Sequence[str]) -> int:
    """Run a command and return its exit status; every foreseen error is one message on stderr."""
    try:
        outcome = command.main(args=list(arguments), prog_name="rca", standalone_mode=False)
    except click.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except ProblemsError as error:
        left = len(error.problems) - MOST_PROBLEMS
        terminal.say("\n".join(map(str, error.problems[:MOST_PROBLEMS])))
        if left > 0:
            terminal.say(f"and {left:,} more problems")
        return error.exit_status
    except RcaError as error:
        terminal.say(f"Error: {error}")
        return error.exit_status
    return outcome if isinstance(outcome, int) else 0


def crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Write one line for an error that nobody foresaw; an interrupt needs none."""
    if issubclass(kind, KeyboardInterrupt):
        return
    place = traceback.extract_tb(trace)[-1:]
    where = f" at {Path(place[0].filename).name}:{place[0].lineno}" if place else ""
    said = " ".join(f"{kind.__name__}: {error}".split())
    terminal.say(f"internal error{where}: {said}; run it with --debug for the traceback, and please report it")


def main() -> NoReturn:
    """Run the command that the arguments of the process name.

    Then the process ends at once, where no thread has work left: to take what a look has read apart, label by label, takes
    longer than to load the rules. What cannot be written is told as Python tells it.
    """
    sys.excepthook = crash
    status = run(rca, sys.argv[1:])
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        if all(thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
            os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    main()
