"""One raw line to a `Line`: a JSON object of our own schema or of another, or text behind whatever prefixes it has."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rca.hook import events
from rca.loglines.line import Line, Source, level_of
from rca.loglines.owners import Owner
from rca.loglines.stamps import HEAD, Stamps

MOST = 1 << 16
"""Letters of a message, and bytes of what stands beside it, that are kept; what was longer is said to be cut."""
TIMES = ("timestamp", "@timestamp", "ts", "time", "asctime", "datetime", "created")
RANKS = ("rank", "global_rank", "RANK", "rank_id", "process_index")
NODES = ("node", "hostname", "host", "node_name", "nodename")
_LEVELS = ("level", "severity", "levelname", "lvl", "loglevel", "log.level")
_EVENTS = ("event", "event_name")
_IDS = ("event_id", "eventId")
_MESSAGES = ("message", "msg", "text", "body", "log", "unmatched_line")
_ATTEMPTS = ("attempt", "restart_count")

_CRI = re.compile(rb"(\d{4}-\d\d-\d\dT\S+) (?:stdout|stderr) [FP](?: |$)")
_RANKED = re.compile(rb"\[(rank|[a-z_]+?)[ _-]?(\d{1,7})\]:? ?")
LABELLED = re.compile(rb" *(\d{1,7}): ")
HOSTED = re.compile(rb"([a-z][a-z0-9-]*\d[a-z0-9-]*): ", re.IGNORECASE)
_SYSLOG = re.compile(
    rb"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(?:Z|[+-]\d\d:?\d\d)) "
    rb"(?!(?:DEBUG|INFO|WARN|WARNING|ERROR) )([A-Za-z][A-Za-z0-9.-]{1,63}) (?:kernel|[\w./-]{1,48}\[\d{1,9}\]): "
)
"""What syslog puts in front of a line, with the host's name."""
_TOLD = re.compile(rb"\[[Rr]ank[ :=]?(\d{1,7})\]|\brank\"? ?[=:] ?\"?(\d{1,7})\b")
_LEVEL = re.compile(
    rb"\b(DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL|SEVERE)\b"
    rb"|\b(?:level|severity|lvl)[=:] ?\"?(\w+)|[\[<](debug|info|notice|warn(?:ing)?|error|err|crit(?:ical)?)[\]>]"
)
_GLOG = re.compile(rb"(?:^|\[|\s)([IWEFD])\d{4} \d\d:\d\d:\d\d")
_TROUBLE = re.compile(
    rb"(?:\S+: )?(?:Traceback \(most recent call last\)|(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt)\b(?::|$)"
    rb"|Segmentation fault|Fatal Python error|Bus error|terminate called)|.{0,200}NVRM: (?:Xid|GPU )"
)
_NAME = re.compile(rb"\b[A-Z][A-Z0-9]+_[A-Z0-9_]+\b")
_COLOUR = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")


class _Ours(msgspec.Struct, forbid_unknown_fields=True):
    """A line as `rca.hook.logs` writes it."""

    timestamp: str
    rank: int | str
    level: str
    event: str
    message: str
    event_id: str | None = None
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


_COMMON = frozenset(("INFO", "WARN", "ERROR"))
_OURS = msgspec.json.Decoder(_Ours)
_ANY = msgspec.json.Decoder()


@dataclass
class Habit:
    """What most lines of a file look like, so that an odd one is known for odd.

    `ranked`: every object has its `rank`. `labelled`: lines begin with a number that is a rank, as `srun --label` writes them; `hosted`: with the name of a host;
    `local`: with a rank counted inside a node (`[default7]:`), and `group` is put in front of it where there are several.
    """

    json: bool = False
    ranked: bool = False
    labelled: bool = False
    hosted: bool = False
    local: bool = False
    group: str = ""


@dataclass
class Parser:
    """Reads the lines of one file in their order; a line without a time has that of the last before it."""

    file: str
    owner: Owner
    habit: Habit
    stamps: Stamps
    time: float | None = None
    told: bool = False
    """Whether the line that was read last tells a time of its own."""
    flaws: dict[str, int] = field(default_factory=dict)

    def read(self, raw: bytes, offset: int, *, ended: bool = True) -> Line | None:
        """Read a line without its newline, None where it is blank; `ended` says whether there was a newline at all."""
        text = raw.strip(b"\0 \t\r\n")
        if not text:
            return None
        source, before, self.time = Source(self.file, offset), self.time, None
        found = self._ours(text, source) if text[:1] == b"{" and len(text) <= MOST else None
        if found is None:
            found = self._foreign(text, source, ended=ended)
        self.told = found.time is not None
        if not self.told and before is not None:
            found = found._replace(time=before)
        self.time = found.time
        if found.flaw:
            self._note(found.flaw)
        return found

    def _note(self, flaw: str) -> None:
        for one in flaw.split(", "):
            name = one.partition(":")[0]
            self.flaws[name] = self.flaws.get(name, 0) + 1

    def _ours(self, text: bytes, source: Source) -> Line | None:
        """Read a line of our own schema, None where it is something else."""
        try:
            one = _OURS.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        time, flaw = self.stamps.rfc3339(one.timestamp), ""
        if time is None:
            flaw = "no time"
        level = one.level if one.level in _COMMON else level_of(one.level)
        rank = str(one.rank) if type(one.rank) is int else _rank(one.rank) or self.owner.rank
        owner = self.owner
        return Line(
            time, rank, owner.node, level, one.event, one.event_id, one.message, one.extra, source, owner.attempt, flaw
        )

    def _foreign(self, text: bytes, source: Source, *, ended: bool) -> Line:
        """Read any other line: strip what launchers put in front of it, and take the rest as an object or as text."""
        owner, time = self.owner, None
        match = _CRI.match(text)
        if match is not None:
            time, text = self.stamps.find(match[1]), text[match.end() :]
        owner, text = self._prefixed(owner, text)
        flaw = ""
        if text[:1] == b"{":
            found = _decoded(text)
            if found is not None:
                return self._object(found, (owner, time), source, len(text))
            flaw = "not JSON" if ended else "torn"
        elif self.habit.json:
            flaw = "not JSON" if ended else "torn"
        return self._text(text, (owner, time), source, flaw)

    def _prefixed(self, owner: Owner, text: bytes) -> tuple[Owner, bytes]:
        """Return who wrote a line by its prefixes, and what is behind them."""
        if self.habit.hosted and (match := HOSTED.match(text)):
            owner, text = owner._replace(node=match[1].decode()), text[match.end() :]
        if match := _RANKED.match(text):
            local = match[1] != b"rank"
            if not local or self.habit.local:
                number = str(int(match[2]))
                rank = f"{self.habit.group}/{number}" if local and self.habit.group else number
                owner, text = owner._replace(rank=rank), text[match.end() :]
        elif self.habit.labelled and (match := LABELLED.match(text)):
            owner, text = owner._replace(rank=str(int(match[1]))), text[match.end() :]
        return owner, text

    def _object(self, found: dict[str, Any], told: tuple[Owner, float | None], source: Source, size: int) -> Line:
        """Read a JSON object; what has no place of its own is in `extra`."""
        owner, time = told
        found = _unwrapped(found)
        own = self._when(found)
        time = time if own is None else own
        flaw = "" if time is not None else "no time"
        level, rank, node = _level(found), _first(found, RANKS), _node(found)
        message, event = _message(found), _event_of(found)
        if not message and not _is_name(event):
            message, event = event, ""
        message, extra, cut = _cut(message, _extra(found)) if size > MOST else (message, _extra(found), "")
        attempt = _first(found, _ATTEMPTS)
        return Line(
            time,
            _rank(rank) or owner.rank,
            node or owner.node,
            level,
            event,
            _text_of(_first(found, _IDS)) or None,
            message,
            extra,
            source,
            attempt if isinstance(attempt, int) and not isinstance(attempt, bool) else owner.attempt,
            ", ".join(one for one in (flaw, cut) if one),
        )

    def _when(self, found: Mapping[str, Any]) -> float | None:
        for key in TIMES:
            if key in found:
                time = self.stamps.value(found[key])
                if time is not None:
                    return time
        return None

    def _text(self, text: bytes, told: tuple[Owner, float | None], source: Source, flaw: str) -> Line:
        """Read a line of text."""
        owner, time = told
        if b"\r" in text:
            text = [part for part in text.split(b"\r") if part.strip()][-1]
        if b"\x1b" in text[:MOST]:
            text = _COLOUR.sub(b"", text[:MOST]) + text[MOST:]
        head = text[:HEAD]
        time = self.stamps.find(head) if time is None else time
        rank, node = owner.rank, owner.node
        if node is None and (match := _SYSLOG.match(head)):
            node = match[1].decode()
        if rank is None and (match := _TOLD.search(head)):
            rank = str(int(match[1] or match[2]))
        size, shown = len(text), text[:MOST]
        said = shown.decode("utf-8", "replace")
        if "\ufffd" in said and b"\xef\xbf\xbd" not in shown and size == len(shown):
            flaw = ", ".join(one for one in (flaw, "invalid UTF-8") if one)
        if size > len(shown):
            flaw = ", ".join(one for one in (flaw, f"cut: {size} bytes") if one)
        event = _event(head)
        return Line(
            time,
            rank,
            node,
            _level_in(head),
            "" if event is None else event.name,
            None if event is None else event.id,
            said,
            {},
            source,
            owner.attempt,
            flaw,
        )


def _decoded(text: bytes) -> dict[str, Any] | None:
    """Return the object that a line is; NaN is no JSON but written, and what is no UTF-8 is replaced."""
    try:
        found = _ANY.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            found = json.loads(text.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return None
    return found if isinstance(found, dict) else None


def _unwrapped(found: dict[str, Any]) -> dict[str, Any]:
    """Return an object with what shippers put inside it laid open: Docker's `log`, Filebeat's fields under `rca`."""
    inner = found.get("log")
    if isinstance(inner, str) and inner.lstrip()[:1] == "{" and (wrapped := _decoded(inner.strip().encode())):
        return {**{key: value for key, value in found.items() if key != "log"}, **wrapped}
    own = found.get("rca")
    if isinstance(own, dict):
        return {**{key: value for key, value in found.items() if key not in _SHIPPED}, **own}
    return found


def _first(found: Mapping[str, Any], keys: tuple[str, ...]) -> object:
    """Return the value of the first key that is there and says something."""
    for key in keys:
        value = found.get(key)
        if value is not None and value != "":
            return value
    return None


def _rank(value: object) -> str | None:
    """Return a rank as text; 3, "3" and 3.0 are the same one."""
    if isinstance(value, float) and value == int(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    text = str(value).strip()
    return str(int(text)) if text.isdecimal() else text or None


def _node(found: Mapping[str, Any]) -> str | None:
    value = _first(found, NODES)
    if isinstance(value, Mapping):  # Elastic's host: {name: ...}
        value = value.get("name") or value.get("hostname")
    return _text_of(value) or None


def _event_of(found: Mapping[str, Any]) -> str:
    value = _first(found, _EVENTS)
    return _text_of(value.get("action") if isinstance(value, Mapping) else value)  # Elastic's event: {action: ...}


def _message(found: Mapping[str, Any]) -> str:
    value = _first(found, _MESSAGES)
    return "" if isinstance(value, Mapping) else _text_of(value)


def _level(found: Mapping[str, Any]) -> str:
    value = _first(found, _LEVELS)
    if value is None and isinstance(found.get("log"), Mapping):
        value = found["log"].get("level")
    return level_of(_text_of(value))


def _text_of(value: object) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def _is_name(event: str) -> bool:
    """Say whether an event is a name, and not a sentence as structlog calls it."""
    return bool(event) and " " not in event and len(event) < 64


_SHIPPED = frozenset(("rca", "agent", "ecs", "input"))
"""What Filebeat adds that says nothing of the line."""
_PLACED = frozenset((*TIMES, *RANKS, *NODES, *_LEVELS, *_EVENTS, *_IDS, *_MESSAGES, *_ATTEMPTS, "extra"))


def _extra(found: Mapping[str, Any]) -> dict[str, Any]:
    extra = found.get("extra")
    rest = {key: value for key, value in found.items() if key not in _PLACED}
    if isinstance(extra, Mapping):
        return {**rest, **extra}
    return rest if extra is None else {**rest, "extra": extra}


def _cut(message: str, extra: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
    """Cut what is too long to be kept, and say what it was."""
    cut = ""
    if len(message) > MOST:
        cut = f"cut: {len(message)} letters"
        message = message[:MOST]
    if extra and len(encoded := msgspec.json.encode(extra, enc_hook=str)) > MOST:
        cut = f"cut: {len(encoded)} bytes beside the message"
        extra = {"cut": len(encoded)}
    return message, extra, cut


def _level_in(head: bytes) -> str:
    """Return how grave a line of text calls itself, or is known to be."""
    if match := _GLOG.search(head):
        return level_of(match[1].decode())
    if _TROUBLE.match(head):
        return "ERROR"
    match = _LEVEL.search(head)
    word = next((one for one in match.groups() if one), b"") if match else b""
    return level_of(word.decode())


def _event(head: bytes) -> events.Event | None:
    """Return the event whose name a line of text holds."""
    for match in _NAME.finditer(head):
        if found := events.table().get(match[0].decode()):
            return found
    return None
