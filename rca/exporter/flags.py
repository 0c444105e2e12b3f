"""The command line of `rca exporter`; what does the work is imported when it runs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from rca.follow import PATTERNS
from rca.times import parse_duration

LISTEN = "127.0.0.1:9690"


@dataclass(frozen=True)
class Flags:
    """What the command line says; each field is an option."""

    paths: tuple[str, ...]
    match: tuple[str, ...]
    since: str
    job: str | None
    names: str | None
    zone: str | None
    first_rank: int
    world_size: int | None
    sequence_length: int | None
    gpus_per_server: int | None
    nvml: bool
    nvml_interval: str
    listen: str | None
    to: Path | None
    every: str
    once: bool


def _counting(_context: click.Context, option: click.Parameter, number: int | None) -> int | None:
    """Take a number of things, of which there is at least one; ranks are counted from 0."""
    least = 0 if option.name == "first_rank" else 1
    if number is not None and number < least:
        raise click.BadParameter(f"{number} cannot be, write {least} or more")
    return number


_OPTIONS = (
    click.argument("paths", nargs=-1, metavar="[FILE|DIR|-]..."),
    click.option("--match", multiple=True, metavar="GLOB", help="Logs of a folder; repeatable  [*.log, *.out ...]"),
    click.option("--since", metavar="DURATION", default="1d", help="Leave out older files of a folder  [1d]"),
    click.option("--job", envvar="RCA_JOB", metavar="JOB", help="The job, where no path tells it  [default]"),
    click.option("--names", metavar="REGEX", help="Groups job and rank in paths  [rank_7.log ...]"),
    click.option("--zone", metavar="ZONE", help="Zone of times that name none  [this machine's]"),
    click.option("--first-rank", type=int, default=0, callback=_counting, metavar="N", help="Rank of torchrun's process 0 here  [0]"),
    click.option("--world-size", type=int, callback=_counting, metavar="N", help="Ranks, where the log does not tell."),
    click.option("--sequence-length", type=int, callback=_counting, metavar="N", help="Tokens of a sample, likewise."),
    click.option("--gpus-per-server", type=int, callback=_counting, metavar="N", help="For tokens per server and day."),
    click.option("--nvml", is_flag=True, help="Read the GPUs of this node too."),
    click.option("--nvml-interval", metavar="DURATION", default="10s", help="How often, at most every 2s  [10s]"),
    click.option("--listen", metavar="HOST:PORT", help=f"Where to serve /metrics  [{LISTEN}]"),
    click.option("-O", "--to", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write the page there, for node_exporter."),
    click.option("--every", metavar="DURATION", default="15s", help="How often to write it  [15s]"),
    click.option("--once", is_flag=True, help="Read what is there, print the page and end."),
)  # fmt: skip


def _flags(function: Callable[[Flags], None]) -> Callable[..., None]:
    """Give a command the options of `Flags`, handed over as one value."""

    @wraps(function)
    def call(**values: Any) -> None:  # noqa: ANN401 - click hands over whatever the options hold
        function(Flags(**values))

    for option in reversed(_OPTIONS):
        call = option(call)
    return call


@click.command(
    short_help="Serve training logs and GPUs as metrics.",
    context_settings={"auto_envvar_prefix": "RCA_EXPORTER"},
)
@_flags
def exporter(flags: Flags) -> None:
    """Follow training logs, and serve what they say as metrics for Prometheus.

    Logs of Megatron-LM and its forks, DeepSpeed, NeMo, torchtitan, Hugging Face Trainer, Lightning, and JSON lines; in
    files, folders or standard input, through rotation and truncation. SIGUSR1 makes it say what it did not understand.
    Each option may stand in the environment: RCA_EXPORTER_LISTEN, RCA_EXPORTER_WORLD_SIZE.

    \b
      rca exporter train.log --job llama-70b
      rca exporter /scratch/logs --names '(?P<job>[^/]+)/rank-(?P<rank>[0-9]+)'
      torchrun train.py 2>&1 | tee train.log | rca exporter -
      rca exporter --nvml
    """
    from rca.exporter.names import Naming, pattern_of  # noqa: PLC0415 - heavy
    from rca.exporter.run import Wanted, export  # noqa: PLC0415 - likewise
    from rca.ledger import Options  # noqa: PLC0415 - likewise

    pattern = pattern_of("--names", flags.names) if flags.names is not None else None
    zone = None
    if flags.zone is not None:
        from rca.sources.foreign import parse_zone  # noqa: PLC0415 - heavier still

        zone = parse_zone("--zone", flags.zone)
    export(
        Wanted(
            paths=flags.paths,
            patterns=flags.match or PATTERNS,
            since=parse_duration("--since", flags.since),
            naming=Naming(flags.job or "default", pattern, flags.first_rank),
            options=Options(flags.job or "default", flags.world_size, flags.sequence_length, flags.gpus_per_server),
            zone=zone,
            nvml=parse_duration("--nvml-interval", flags.nvml_interval) if flags.nvml else None,
            listen=flags.listen or ("" if flags.to is not None else LISTEN),
            to=flags.to,
            every=parse_duration("--every", flags.every),
            once=flags.once,
        )
    )
