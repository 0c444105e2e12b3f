"""Structured logs: one JSON object a line, written by a thread of its own that the loop never waits for.

    from rca.hook import events, logs

    logs.attach("/var/log/train")
    logging.getLogger("train").warning("grad_norm=45.6", extra={"event": events.GRAD_NORM, "data": {"grad_norm": 45.6}})

Every line has `timestamp`, `rank`, `level`, `event`, `event_id`, `message` and `extra`. Lines that the disk does not take
in time are dropped and counted; a last line says how many.
"""

import atexit
import json
import logging
import math
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rca.hook.events import PLAIN, Event, find
from rca.hook.identity import Identity

ROOM = 10_000
"""Lines that may wait."""
RESERVE = 0.9
"""Share of the room beyond which only warnings and errors are let in."""
PATIENCE = 2.0
"""Seconds that the end of the process waits for the last lines."""
_LONGEST = 16_384
_LEVELS = {"WARNING": "WARN", "CRITICAL": "ERROR", "FATAL": "ERROR"}
_OWN = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "event", "data"))


class Line(NamedTuple):
    """What of a record is needed to write it."""

    time: float
    level: str
    event: str
    message: str
    extra: Mapping[str, Any]


class JsonLines(logging.Handler):
    """Hands records to a thread that writes them as JSON lines to a file, or to standard output (`-`).

    A file that was renamed or removed is opened anew, so it may be rotated by anyone. A forked child has a thread and a
    queue of its own, made when it first logs.
    """

    def __init__(self, path: str | Path, rank: int = 0, room: int = ROOM, patience: float = PATIENCE) -> None:
        super().__init__()
        self._sink = Sink(path)
        self._rank, self._room, self._patience = rank, room, patience
        self._begin()
        own = weakref.ref(self)

        def ended() -> None:
            handler = own()
            if handler is not None:
                handler.close()

        def forked() -> None:
            handler = own()
            if handler is not None:
                handler.forked()

        self._ended = ended
        atexit.register(ended)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=forked)

    def _begin(self) -> None:
        self._queue: queue.SimpleQueue[Line | threading.Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._refused = self._unwritten = 0
        self._closed = False

    @property
    def path(self) -> str:
        """Where the lines go."""
        return self._sink.path

    @property
    def dropped(self) -> int:
        """How many lines there was no room for, or could not be written."""
        return self._refused + self._unwritten

    def forked(self) -> None:
        """Begin anew in a forked child: what waited is the parent's to write."""
        self._sink.forsake()
        self._begin()

    def emit(self, record: logging.LogRecord) -> None:
        """Put a record into the queue, or count it as dropped."""
        full = self._room if record.levelno >= logging.WARNING else self._room * RESERVE
        if self._closed or self._queue.qsize() >= full:
            self._refused += 1
            return
        told = None
        with suppress(Exception):  # of any kind: what is logged is other people's, and training goes on
            told = line(record)
        if told is None:
            self._refused += 1
            return
        self._queue.put(told)
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        """Start the thread of this process; the lock of the handler is held."""
        thread = threading.Thread(target=self._write, daemon=True, name="rca-logs")
        try:
            thread.start()
        except RuntimeError:
            return  # the interpreter is ending, or there are too many threads: what waits is counted in the end
        self._thread = thread
        _end_with_worker(self.close)

    def _write(self) -> None:
        """Write what comes, in as few calls as it comes in, until None does."""
        said, ends = 0, False
        while not ends:
            batch = [self._queue.get()]
            while len(batch) < 1000:
                try:
                    batch.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            ends = None in batch
            texts = [text(one, self._rank) for one in batch if isinstance(one, Line)]
            notice = self.dropped > said and self._queue.empty()
            told = self.dropped
            if notice:
                now = time.time()  # noqa: TID251 - a log tells the time
                line = Line(now, "WARN", "LOGS_DROPPED", f"dropped={told}", {"dropped": told})
                texts.append(text(line, self._rank))
            lost = self._sink.write(texts)
            self._unwritten += lost - (notice and lost > 0)
            said = told if notice and not lost else said
            for one in batch:
                if isinstance(one, threading.Event):
                    one.set()

    def flush(self) -> None:
        """Wait until what was logged so far is written, for as long as there is patience."""
        if self._thread is not None and not self._closed:
            written = threading.Event()
            self._queue.put(written)
            written.wait(self._patience)

    def close(self) -> None:
        """Write what waits, for as long as there is patience; say what was left."""
        if not self._closed:
            self._closed = True
            atexit.unregister(self._ended)
            thread = self._thread
            if thread is not None:
                self._queue.put(None)
                thread.join(self._patience)
            left = self._queue.qsize()
            if left:
                sys.stderr.write(f"rca.hook.logs: {left} lines were not written within {self._patience:g} s\n")
        super().close()


class Sink:
    """Where lines go: every one whole, in a file that is looked for again when it is no longer there."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._file = -1
        self._broken = False

    def write(self, texts: list[str]) -> int:
        """Append lines; return how many could not be written."""
        if not texts:
            return 0
        head = "\n" if self._broken else ""
        data, done = (head + "".join(texts)).encode("utf-8", errors="replace"), 0
        try:
            self._open()
            while done < len(data):
                done += os.write(self._file, data[done:])
        except OSError:
            self._broken = not data[:done].endswith(b"\n") if done else self._broken
            return data.count(b"\n", max(done, len(head)))
        self._broken = False
        return 0

    def _open(self) -> None:
        """Open the file, anew where the path leads elsewhere by now."""
        if self.path == "-":
            self._file = 1
            return
        if self._file >= 0 and self._is_there():
            return
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def _is_there(self) -> bool:
        """Say whether the path still leads to the open file."""
        try:
            there, own = Path(self.path).stat(), os.fstat(self._file)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino)

    def forsake(self) -> None:
        """Let go of the parent's file in a forked child; it opens its own."""
        if self._file > 2:
            os.close(self._file)
        self._file = -1


def line(record: logging.LogRecord) -> Line:
    """Take from a record what its line needs, at once: what it refers to may change.

    `extra={"event": ..., "data": {...}}` names the event and its fields; other fields of `extra` come along.
    """
    message = f"{_said(record.msg)} {_said(record.args)}"
    with suppress(Exception):  # arguments that do not fit, or do not know what they are
        message = record.getMessage()
    held = vars(record)
    extra = {name: value for name, value in held.items() if name not in _OWN}
    data = held.get("data")
    extra |= dict(data) if isinstance(data, Mapping) else {}
    if record.exc_info and record.exc_info[0] is not None:
        extra["exception"] = logging.Formatter().formatException(record.exc_info)[-_LONGEST:]
    level = _LEVELS.get(record.levelname, record.levelname)
    return Line(record.created, level, _said(held.get("event") or PLAIN), message[:_LONGEST], extra)


def text(one: Line, rank: int) -> str:
    """Write one line.

    >>> print(text(Line(1749736981.5, "WARN", "GRAD_NORM", "grad_norm=45.6", {"grad_norm": 45.6}), 3), end="")
    {"timestamp":"2025-06-12T14:03:01.500Z","rank":3,"level":"WARN","event":"GRAD_NORM","event_id":"EVT_1002","message":"grad_norm=45.6","extra":{"grad_norm":45.6}}
    """
    known = find(one.event)
    extra: Any = {"unwritable": "what stands beside the message"}
    with suppress(Exception):  # of any kind: values are other people's, and may change under our hands
        extra = _plain(one.extra)
    fields = {
        "timestamp": _stamp(one.time), "rank": rank, "level": one.level,
        "event": known.name if known is not None else one.event, "event_id": known.id if known is not None else None,
        "message": one.message, "extra": extra,
    }  # fmt: skip
    try:
        return _dumped(fields)
    except (TypeError, ValueError, RecursionError) as error:
        return _dumped({**fields, "extra": {"unwritable": str(error)[:200]}})


def _dumped(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def _stamp(seconds: float) -> str:
    """Write a time as RFC 3339, in UTC with milliseconds."""
    whole, rest = divmod(math.floor(seconds * 1000 + 0.5), 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{rest:03d}Z"


def _plain(value: object, depth: int = 0) -> Any:  # noqa: ANN401 - what JSON can hold
    """Return a value as JSON can hold it: numbers that are none, and strange objects, as text."""
    if value is None or isinstance(value, bool | int | str):
        return value[:_LONGEST] if isinstance(value, str) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping) and depth < 8:
        return {_said(name): _plain(one, depth + 1) for name, one in list(value.items())[:1000]}
    if isinstance(value, list | tuple | set | frozenset) and depth < 8 and not isinstance(value, Event):
        return [_plain(one, depth + 1) for one in list(value)[:1000]]
    return _said(value)


def _said(value: object) -> str:
    """Return what an object says of itself; one that cannot is named by its type."""
    said = f"<{type(value).__name__}>"
    with suppress(Exception):  # of any kind, it is another's
        said = str(value)[:_LONGEST]
    return said


def _end_with_worker(close: Callable[[], None]) -> None:
    """Write the last lines of a process of `multiprocessing` too: it ends without what atexit would do."""
    util = sys.modules.get("multiprocessing.util")
    process = sys.modules.get("multiprocessing.process")
    if util is not None and process is not None and process.parent_process() is not None:
        util.Finalize(None, close, exitpriority=10)


def attach(folder: str | Path, rank: int | None = None, logger: logging.Logger | None = None) -> JsonLines:
    """Write what a logger (all of them) is told to `FOLDER/rank-N.jsonl`, or to standard output (`-`).

    Without `rank` it is read from the environment. Attaching the same place again changes nothing.
    """
    own = Identity.read(os.environ).rank if rank is None else rank
    path = str(folder) if str(folder) == "-" else str(Path(folder) / f"rank-{own}.jsonl")
    target = logger if logger is not None else logging.getLogger()
    for handler in target.handlers:
        if isinstance(handler, JsonLines) and handler.path == path:
            return handler
    handler = JsonLines(path, own)
    target.addHandler(handler)
    return handler


def tell(logger: logging.Logger, event: Event, message: str, data: Mapping[str, Any] | None = None) -> None:
    """Log an event at the level that the table gives it."""
    level = {"WARN": logging.WARNING, "ERROR": logging.ERROR}.get(event.level, logging.INFO)
    logger.log(level, "%s", message, extra={"event": event, "data": data or {}}, stacklevel=2)


def for_structlog(_: object, __: str, event_dict: MutableMapping[str, Any]) -> dict[str, Any]:
    """Hand an entry of structlog to standard logging: the last of its processors, with `structlog.stdlib.LoggerFactory`.

    Structlog's own `event` is the message; where it is the name of an event, it is that as well.

    >>> for_structlog(None, "info", {"event": "TRAIN_STEP", "step": 3})
    {'msg': 'step=3', 'extra': {'event': 'TRAIN_STEP', 'data': {'step': 3}}}
    """
    rest = dict(event_dict)
    said, exc_info, stack = str(rest.pop("event", "")), rest.pop("exc_info", None), rest.pop("stack_info", None)
    name = str(rest.pop("event_name", "") or (said if find(said) is not None else ""))
    shown = " ".join(f"{key}={value}" for key, value in rest.items()) if said == name else said
    call: dict[str, Any] = {"msg": shown, "extra": {"event": name or PLAIN, "data": rest}}
    return call | {key: value for key, value in (("exc_info", exc_info), ("stack_info", stack)) if value}
