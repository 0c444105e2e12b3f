"""The streams of a command: the result on stdout, all else on stderr, colours and progress for terminals only."""

import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

import click

from rca.errors import SourceError
from rca.plain import visible

PIPE_CLOSED = 141
_SIGNS = "│├└─°µ"
_PIPE_WIDTH = 100
_WIDEST = 140


@dataclass(frozen=True)
class Screen:
    """What a stream can show: its width in columns, whether it has colours, and whether it is bound to ASCII."""

    width: int
    colour: bool
    ascii_only: bool


def screen(stream: TextIO, environment: Mapping[str, str]) -> Screen:
    """Tell what a stream can show; no colours in a pipe, under NO_COLOR or on a dumb terminal."""
    terminal = stream.isatty()
    columns = shutil.get_terminal_size((_PIPE_WIDTH, 24)).columns if terminal else _PIPE_WIDTH
    plain = bool(environment.get("NO_COLOR")) or environment.get("TERM") == "dumb"
    return Screen(min(columns, _WIDEST), terminal and not plain, not _encodable(_SIGNS, stream.encoding))


def _encodable(text: str, encoding: str | None) -> bool:
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def write(*pieces: str, encoding: str | None = None) -> None:
    """Write a result to stdout, in the encoding of the stream or in the one given."""
    write_all(pieces, encoding=encoding)


def write_all(pieces: Iterable[str], *, encoding: str | None = None) -> None:
    """Write a result to stdout piece by piece; a closed pipe ends the command quietly."""
    encoding = encoding or sys.stdout.encoding or "utf-8"
    stream = sys.stdout.buffer
    try:
        for piece in pieces:
            stream.write(piece.encode(encoding, "backslashreplace"))
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(PIPE_CLOSED) from None
    except OSError as error:
        raise SourceError(f"stdout: cannot be written, {(error.strerror or str(error)).lower()}") from error


def say(text: str) -> None:
    """Write a message to stderr; nothing in it can steer the terminal."""
    click.echo("\n".join(visible(line) for line in text.split("\n")), err=True)


@contextmanager
def progress(quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being done; yields the function that names the present step."""
    if quiet or not sys.stderr.isatty():
        yield lambda _step: None
        return
    from rich.console import Console  # noqa: PLC0415 - takes longer to import than the rest, and only terminals need it
    from rich.markup import escape  # noqa: PLC0415

    with Console(stderr=True).status("starting") as status:
        yield lambda step: status.update(escape(visible(step)))


def log_to(stream: TextIO) -> None:
    """Write the log of a long-lived process: lines for people on a terminal, JSON lines in a pipe."""
    import structlog  # noqa: PLC0415 - only servers have a log

    logging.getLogger("apscheduler").setLevel(logging.CRITICAL)  # what it says in words of its own, we say in ours
    people = stream.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp"),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer() if people else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger("info"),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
