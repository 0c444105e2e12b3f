"""InfluxDB: a server, or files in its line protocol, as Telegraf and `influx_inspect export` write them.

Names are `<measurement>.<field>` in the table of imports. What already carries a name that the rules read, as it does
where Telegraf scrapes exporters of Prometheus, is taken as it is.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from rca.errors import SourceError
from rca.imports import Found, Imports, Tally, itself
from rca.plain import counted
from rca.sources.files import Live
from rca.sources.foreign import Place, Ways, files, lines
from rca.sources.kept import Kept, Series
from rca.sources.runs import Heap, Points

SERVERS = ("http://", "https://")
_TAGS = {
    "nvidia_smi": {"index": "gpu", "uuid": "UUID", "name": "modelName", "host": "Hostname"},
    "disk": {"path": "mountpoint"},
    "diskio": {"name": "device"},
    "net": {"interface": "device"},
}
"""What Telegraf's tags are called by the exporters that the rules know, by measurement; `host` is `node` elsewhere."""
_DROPPED = {"compute_mode", "pstate", "arch", "mode"}
"""Tags that come and go, and would break a series; the mode of a mounted disk is one of them."""
_PLAIN_FIELDS = {"gauge", "counter", "value"}
_TOKENS = re.compile(r'(?:\\.|[^\\ "]|"(?:\\.|[^\\"])*")+')
_PAIRS = re.compile(r'((?:\\.|[^\\,="])+)=("(?:\\.|[^\\"])*"|(?:\\.|[^\\,])*)(?:,|$)')
_UNESCAPED = re.compile(r"\\([,= \\])")
_WORDS = {
    "t": 1.0,
    "T": 1.0,
    "true": 1.0,
    "True": 1.0,
    "TRUE": 1.0,
    "f": 0.0,
    "F": 0.0,
    "false": 0.0,
    "False": 0.0,
    "FALSE": 0.0,
}


def read(place: Place, ways: Ways) -> Kept | Live:
    """Read a file in line protocol or every one of a folder, or open a server."""
    if place.path.startswith(SERVERS):
        from rca.sources.influx_server import opened  # noqa: PLC0415 - only servers need it

        return opened(place, ways)
    path = place.file()
    found = files(path, (".lp", ".line", ".txt", ".influx", ".gz"))
    if not found:
        raise SourceError(f"{place.shown}: no files in line protocol (.lp, .line, .txt, .gz) in it")
    taken = Taken(ways.imports, place.name)
    said = [text for one in found for text in _read_file(one, taken)]
    return Kept(taken.series(), place.shown, [*said, *taken.tally.said(place.shown)])


class Taken:
    """Points by measurement, tags and field, and what they become; `node` is meant where no tag names the host."""

    def __init__(self, imports: Imports, node: str = "") -> None:
        self.tally = Tally("fields")
        self._imports = imports
        self._node = node
        self._heap = Heap()
        self._known: dict[str, Found | str | None] = {}

    def find(self, measurement: str, field: str) -> Found | str | None:
        """Return what a field becomes: by the table, or a metric whose name it carries itself; None: it is not read."""
        name = f"{measurement}.{field}"
        if name not in self._known:
            metric = field if field in self._imports.known else measurement if field in _PLAIN_FIELDS else ""
            itself = metric if metric in self._imports.known else None
            self._known[name] = self._imports.find(name, "influx") or itself
            self.tally.note(name, read=self._known[name] is not None)
        return self._known[name]

    def points(self, measurement: str, tags: Mapping[str, str], field: str) -> Points | None:
        """Return where the points of a field go, None where it is not read."""
        found = self.find(measurement, field)
        if isinstance(found, str):
            return self._heap.points(itself(found), _scraped(tags))
        if found is None:
            return None
        named = {"host": "node", **_TAGS.get(measurement, {})}
        labels = {named.get(key, key): text for key, text in tags.items() if key not in _DROPPED}
        host = {named["host"]: self._node} if self._node else {}
        return self._heap.points(found, {**host, **labels, **found.labels})

    def series(self) -> list[Series]:
        """Return the series of all points."""
        return list(self._heap.series())


def _scraped(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of what Telegraf has scraped; its own host is not that of the exporter."""
    labels = {key: text for key, text in tags.items() if key not in {"url", "host"}}
    return (
        labels if "instance" in labels or not tags.get("url") else {**labels, "instance": urlsplit(tags["url"]).netloc}
    )


def _read_file(path: Path, taken: Taken) -> Iterator[str]:
    """Read a file, and yield what was odd; raises SourceError where no line of it can be read."""
    heads: dict[str, tuple[str, dict[str, str], dict[str, Points | None]] | None] = {}
    bad: list[int] = []
    good = timeless = 0
    for number, raw in lines(path):
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8", "replace")
        if not text.endswith("\n"):
            yield f"{path}:{number}: the last line is torn, left out"
            break
        text = text.strip()
        if not text or text[0] == "#" or text.startswith(("CREATE DATABASE", "CREATE RETENTION POLICY")):
            continue
        parts = text.split(" ") if "\\" not in text and '"' not in text else _TOKENS.findall(text)
        head = heads.get(parts[0], ...) if len(parts) in {2, 3} else None
        if head is ...:
            head = heads[parts[0]] = _head(parts[0])
        time = _time(parts[2]) if len(parts) == 3 else math.nan
        if head is None or time is None:
            bad.append(number)
        elif math.isnan(time):
            timeless += 1
        elif _take(head, parts[1], time, taken):
            good += 1
        else:
            bad.append(number)
    if not good:
        at = f":{bad[0]}" if bad else ""
        raise SourceError(f"{path}{at}: no line `measurement,tag=x field=1 time`, is this InfluxDB's line protocol")
    if bad:
        yield f"{path}: {counted(len(bad), 'line')} left out, for example line {bad[0]}: not in line protocol"
    if timeless:
        yield f"{path}: {counted(timeless, 'line')} without a time, left out"


def _head(text: str) -> tuple[str, dict[str, str], dict[str, Points | None]] | None:
    """Read the measurement and the tags of a line.

    >>> _head(r"cpu\\ load,host=node\\,1,cpu=cpu0")
    ('cpu load', {'host': 'node,1', 'cpu': 'cpu0'}, {})
    """
    first, *rest = re.split(r"(?<!\\),", text)
    tags: dict[str, str] = {}
    for part in rest:
        key, *value = re.split(r"(?<!\\)=", part, maxsplit=1)
        if not key or not value or not value[0]:
            return None
        tags[_UNESCAPED.sub(r"\1", key)] = _UNESCAPED.sub(r"\1", value[0])
    return (_UNESCAPED.sub(r"\1", first), tags, {}) if first else None


def _take(head: tuple[str, dict[str, str], dict[str, Points | None]], text: str, time: float, taken: Taken) -> bool:
    """Take the fields of a line; say whether they are fields at all."""
    measurement, tags, known = head
    if "\\" in text or '"' in text:
        pairs: Sequence[tuple[str, str]] = [(_UNESCAPED.sub(r"\1", key), value) for key, value in _PAIRS.findall(text)]
        whole = sum(len(key) + len(value) + 2 for key, value in _PAIRS.findall(text)) - 1 == len(text)
    else:
        pairs = [(key, value) for key, _, value in (pair.partition("=") for pair in text.split(","))]
        whole = all(value for _, value in pairs)
    if not pairs or not whole:
        return False
    numbers = [(key, _number(value)) for key, value in pairs if value[0] != '"']
    if any(value is None for _, value in numbers):
        return False
    for key, value in numbers:
        if key not in known:
            known[key] = taken.points(measurement, tags, key)
        points = known[key]
        if points is not None and value is not None:
            points.add(time, value)
    return True


def _number(text: str) -> float | None:
    """Return the number of a field's value, None where it is none.

    >>> _number("12i"), _number("1e3"), _number("true"), _number("x")
    (12.0, 1000.0, 1.0, None)
    """
    try:
        return float(text[:-1]) if text[-1] in "iu" else float(text)
    except ValueError:
        return _WORDS.get(text)


def _time(text: str) -> float | None:
    """Return unix seconds of a time in seconds, milliseconds, microseconds or nanoseconds, told apart by their size.

    >>> _time("1767571200000000000"), _time("1767571200000"), _time("1767571200")
    (1767571200.0, 1767571200.0, 1767571200.0)
    """
    try:
        number = int(text)
    except ValueError:
        return None
    size = abs(number)
    return number / (1.0 if size < 1e11 else 1e3 if size < 1e14 else 1e6 if size < 1e17 else 1e9)
