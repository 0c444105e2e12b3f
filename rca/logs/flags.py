"""The command line of `rca logs`; what does the work is imported when it runs."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rca import terminal
from rca.logs.asked import LISTED, SHOWN, Places, Question

if TYPE_CHECKING:
    from rca.logs.answers import Told

_FORMATS = ("text", "json", "html")
_FILE = click.Path(exists=True, dir_okay=False)
_CONFIG = click.Path(exists=True, dir_okay=False, path_type=Path)


def _counting(_context: click.Context, option: click.Parameter, number: int | None) -> int | None:
    """Take a number of things; there is at least one rank in a world."""
    least = 1 if option.name == "world_size" else 0
    if number is not None and number < least:
        raise click.BadParameter(f"{number} cannot be, write {least} or more")
    return number


# fmt: off
_OPTIONS = (
    click.argument("paths", nargs=-1, required=True, metavar="FILE|DIR|URL..."),
    click.option("--rank", multiple=True, metavar="RANKS", help="Only these ranks: 2, 0-7, 1,5; repeatable."),
    click.option("--event", multiple=True, metavar="NAME", help="Only this event, by name or id; repeatable."),
    click.option("--level", metavar="LEVEL", help="At least as grave: debug, info, warn, error."),
    click.option("--grep", metavar="TEXT", help="Only lines that hold a text."),
    click.option("--last", metavar="DURATION", help="Before each rank's own last line, or --at."),
    click.option("--at", metavar="TIME", help="Until then: RFC 3339, or -2h from the end."),
    click.option("--count", "kind", flag_value="count", help="Lines by event, rank and time."),
    click.option("--first-error", "kind", flag_value="first-error", help="The first error of each rank."),
    click.option("--silent", "kind", flag_value="silent", help="Ranks that fell silent or never spoke."),
    click.option("--suspects", "kind", flag_value="suspects", help="Where a hang or a crash began, and why."),
    click.option("--levels", "kind", flag_value="levels", help="Levels that mislead: floods, endless warnings."),
    click.option("--dumps", multiple=True, metavar="PATH", help="Of Flight Recorder or RAS, for --suspects; repeatable."),
    click.option("--pickles", is_flag=True, help="Read dumps that are pickles: plain values alone."),
    click.option("--every", metavar="DURATION", help="Steps of time of --count  [by the span]"),
    click.option("--world-size", type=int, callback=_counting, metavar="N", help="Ranks, where logs do not tell."),
    click.option("--limit", type=int, callback=_counting, metavar="N", help=f"The last N lines, 0: all  [{SHOWN}, html {LISTED}, json 0]"),
    click.option("--match", multiple=True, metavar="GLOB", help="Logs of a folder; repeatable  [*.jsonl ...]"),
    click.option("--names", metavar="REGEX", help="Groups rank, node, attempt in paths."),
    click.option("--first-rank", type=int, default=0, callback=_counting, metavar="N", help="Rank of torchrun's process 0  [0]"),
    click.option("--zone", metavar="ZONE", help="Zone of times that name none  [this machine's]"),
    click.option("--offsets", type=_FILE, metavar="FILE", help="Seconds that clocks are ahead  [by shared steps]"),
    click.option("--query", metavar="QUERY", help="Loki: the streams; Elasticsearch: a query."),
    click.option("--window", default="1h", metavar="DURATION", help="How far back a server is asked  [1h]"),
    click.option("--config", envvar="RCA_CONFIG", type=_CONFIG, metavar="FILE", help="Settings of this deployment, such as rca.yaml."),
    click.option("-o", "--output", type=click.Choice(_FORMATS), metavar="FORMAT",
                 help=f"Format: {', '.join(_FORMATS)}  [terminal: text, else json]"),
)
# fmt: on


def _asks(function: Callable[[Question, Places, str], None]) -> Callable[..., None]:
    """Give a command its options, handed over as what is asked, where, and the format of the answer."""

    @wraps(function)
    def call(output: str | None, **values: Any) -> None:  # noqa: ANN401 - click hands over whatever the options hold
        output = output or ("text" if sys.stdout.isatty() else "json")
        if values["limit"] is None:
            values["limit"] = {"text": SHOWN, "html": LISTED}.get(output, 0)
        question = Question(**{one.name: values.pop(one.name) for one in fields(Question)})
        function(question, Places(**values), output)

    for option in reversed(_OPTIONS):
        call = option(call)
    return call


@click.command(short_help="Say what each rank was doing.")
@_asks
def logs(question: Question, places: Places, output: str) -> None:
    """Say what each rank was doing: who is silent, what went wrong first, the last seconds before it stopped.

    Reads files and folders of JSON lines or text, of any number of ranks; or one server, es+http://host:9200/index
    (Elasticsearch, OpenSearch) or loki+http://host:3100.

    \b
      rca logs /var/log/train
      rca logs /var/log/train --rank 2 --last 10s
      rca logs /var/log/train --suspects
      rca logs /var/log/train --event NCCL_TIMEOUT
      rca logs /var/log/train --last 10s -o html > logs.html
      rca logs loki+http://loki:3100 --query '{job="train"}' --silent
    """
    from rca.logs.run import Around, answered  # noqa: PLC0415 - heavy

    now = time.time()  # noqa: TID251 - what `now` means is asked at the edge, and nowhere else
    with ExitStack() as stack:
        with terminal.progress() as step:
            looked = answered(question, places, Around(os.environ, now, step), draw=output == "html")
            told = stack.enter_context(looked)
        for note in told.notes:
            terminal.say(note)
        terminal.write_all(_rendered(told, output), encoding=None if output == "text" else "utf-8")


def _rendered(told: "Told", output: str) -> Iterator[str]:
    """Yield an answer in the format asked for."""
    if output == "json":
        from rca.logs import jsonl  # noqa: PLC0415 - each format brings along what it is written with

        yield from jsonl.render(told)
    elif output == "html":
        from rca.logs import page  # noqa: PLC0415 - likewise

        yield page.render(told)
    else:
        from rca.logs import text  # noqa: PLC0415 - likewise

        yield text.render(told, terminal.screen(sys.stdout, os.environ))
