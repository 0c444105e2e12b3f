"""The command line: flags in, one result on stdout, one exit status out. Heavy modules are imported by the commands."""

import gc
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from rca import __version__, render, terminal
from rca.errors import ProblemsError, RcaError

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
_INPUTS = (
    click.option("--prometheus", metavar="URL", help="Read a Prometheus server, or one that speaks its API."),
    click.option("--scenario", type=_FILE, metavar="FILE", help="Read a made-up cluster; stands alone."),
    click.option("--recording", type=_FILE, metavar="FILE", help="Read what `rca record` saved; stands alone."),
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
    """Leave garbage where it is: to look for it among millions of labels again and again takes longer than a look."""
    gc.disable()
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

            given = {field.name: values.pop(field.name) for field in fields(Inputs)}
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
    help=f"Format of the report: {', '.join(render.formats())}  [text]",
)
@_DEBUG
def diagnose(given: "Inputs", output: str) -> NoReturn:
    """Look at one window of time and say what is wrong, why, and what to do.

    \b
      rca diagnose --prometheus http://prometheus:9090
      rca diagnose --prometheus http://prometheus:9090 --job llama-70b --at -2h -o json
      rca diagnose --scenario scenarios/cooling_fault.yaml
    """
    from rca import commands  # noqa: PLC0415 - heavy

    with terminal.progress() as step:
        report = commands.diagnose(given, step)
    terminal.write(commands.rendered(report, output), encoding=None if output == "text" else "utf-8")
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


@rca.command(short_help="Write a made-up cluster as OpenMetrics.")
@click.argument("scenario", type=_FILE, metavar="FILE")
@click.option("--to", default="-", metavar="FILE", help="Where to write it; - is stdout  [-]")
@click.option("--at", metavar="TIME", help="When it ends: now, -2h or RFC 3339  [as it says itself]")
@_DEBUG
def simulate(scenario: Path, to: str, at: str | None) -> None:
    """Write a made-up cluster as OpenMetrics, for `promtool tsdb create-blocks-from openmetrics`."""
    from rca import commands  # noqa: PLC0415 - heavy

    now = float(int(time.time()))  # noqa: TID251 - what `now` means is asked at the edge, and nowhere else
    end = commands.parse_time("--at", at, now) if at else None
    with terminal.progress() as step:
        written = commands.simulate(scenario, to, end, step)
    terminal.say(written)


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
    """Run the command that the arguments of the process name."""
    sys.excepthook = crash
    sys.exit(run(rca, sys.argv[1:]))


if __name__ == "__main__":
    main()
