"""What all importers share: how they are told to read, and how a place is written on the command line."""

import gzip
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from rca.config import Server, without_password
from rca.dumps import Dumps
from rca.errors import SourceError, UsageError
from rca.imports import Imports
from rca.phrases import Template

IMPORTERS = {
    "logs": "--logs",
    "tensorboard": "--tensorboard",
    "mlflow": "--mlflow",
    "wandb": "--wandb",
    "nvidia_smi": "--nvidia-smi",
    "influx": "--influx",
}
"""The modules that read other systems, and their flags."""
LONGEST = 16 << 20
"""Bytes of a line; a longer one is none, and would not fit into memory for long."""


@dataclass(frozen=True)
class Ways:
    """How importers read: the table of names, the zone of times without one (None: that of this machine), how to log in
    to servers, the lines of logs that are known, and dumps of communicators."""

    imports: Imports
    zone: tzinfo | None = None
    mlflow: Server = field(default_factory=Server)
    influx: Server = field(default_factory=Server)
    templates: tuple[Template, ...] = ()
    dumps: Dumps = field(default_factory=Dumps)


class Place(NamedTuple):
    """A place on the command line, `[NAME=]PATH`: `name` is that of the job or the node, empty where it is not told."""

    flag: str
    path: str
    name: str = ""

    @property
    def shown(self) -> str:
        """Return the place for messages, without credentials."""
        return without_password(self.path).partition("?")[0].rstrip("/") or self.path

    def file(self) -> Path:
        """Return the place as a path that exists."""
        path = Path(self.path)
        if not path.exists():
            raise UsageError(f"{self.flag}: {self.shown}: no such file or folder")
        return path


def place(flag: str, text: str) -> Place:
    """Read `[NAME=]PATH`; what exists under the whole text is a path.

    >>> place("--nvidia-smi", "node-07=gpu.csv")
    Place(flag='--nvidia-smi', path='gpu.csv', name='node-07')
    >>> place("--mlflow", "http://m:5000?x=y").name
    ''
    """
    name, equals, path = text.partition("=")
    if not equals or not name or not path or any(letter in name for letter in "/\\:?#") or Path(text).exists():
        return Place(flag, text)
    return Place(flag, path, name)


def parse_zone(flag: str, text: str) -> tzinfo:
    """Read a time zone: a name of the tz database, or an offset.

    >>> parse_zone("--zone", "+05:30").utcoffset(None)
    datetime.timedelta(seconds=19800)
    """
    if text[:1] in "+-":
        try:
            return datetime.strptime(text, "%z").tzinfo or timezone(timedelta(0))
        except ValueError:
            pass
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UsageError(
            f"{flag}: no such time zone: {text!r}, write for example UTC, Asia/Shanghai or +08:00"
        ) from error


def zone_name(zone: tzinfo | None, time: float) -> str:
    """Name the zone that times without one were read in."""
    if zone is not None:
        return str(zone)
    local = datetime.fromtimestamp(time).astimezone()
    return f"{local.tzname()}, that of this machine"


def open_bytes(path: Path) -> io.BufferedReader:
    """Open a file to read, through gzip where its name says so; raises SourceError where it cannot be opened."""
    try:
        return io.BufferedReader(gzip.open(path)) if path.suffix == ".gz" else path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path | str, error: Exception) -> SourceError:
    """Return the error for a file that cannot be read."""
    reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return SourceError(f"{path}: cannot be read, {reason.lower() or type(error).__name__}")


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file with their numbers, line ends included; memory stays flat."""
    with open_bytes(path) as stream:
        number = 0
        try:
            while line := stream.readline(LONGEST):
                number += 1
                if len(line) == LONGEST:
                    raise SourceError(f"{path}:{number}: a line of more than {LONGEST >> 20} MiB, is this a text file")
                yield number, line
        except (OSError, EOFError) as error:
            raise unreadable(path, error) from error


def files(path: Path, suffixes: Iterable[str]) -> list[Path]:
    """Return a file, or the files of a folder that end so, hidden ones aside, in natural order of their paths."""
    if path.is_file():
        return [path]
    ends = tuple(suffixes)
    return sorted(
        one for one in path.rglob("*")
        if one.is_file() and one.name.endswith(ends) and not any(part[:1] == "." for part in one.relative_to(path).parts)
    )  # fmt: skip
