"""The exporter from its settings to the signal that ends it."""

import contextlib
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path

import structlog

from rca import terminal
from rca.errors import SourceError, UsageError
from rca.exporter.gpus import Gpus, families
from rca.exporter.listen import listening
from rca.exporter.logs import Logs
from rca.exporter.names import Naming
from rca.exporter.page import Page, metric
from rca.follow import Follower
from rca.ledger import Options

LOOK = 1.0
"""Seconds from one look at the logs to the next."""
_LOOPBACK = ("127.", "::1")
_log = structlog.get_logger(__name__)
Clock = Callable[[], float]


@dataclass(frozen=True)
class Wanted:
    """What an exporter is to do: what it reads, and where that goes."""

    paths: tuple[str, ...]
    patterns: tuple[str, ...]
    since: float
    naming: Naming
    options: Options
    zone: tzinfo | None
    nvml: float | None
    """Seconds between two readings of the GPUs, None for none."""
    listen: str
    to: Path | None
    every: float
    once: bool


def export(wanted: Wanted) -> None:
    """Read once and write the page, or follow and serve it until told to stop.

    Raises UsageError for what cannot be meant, SourceError for what cannot be read, written or listened on.
    """
    if wanted.once:
        _once(wanted)
    else:
        terminal.log_to(sys.stderr)
        _on_and_on(wanted)


def _once(wanted: Wanted) -> None:
    now = time.time()  # noqa: TID251 - the present is asked for at the edge
    for path in wanted.paths:
        if path != "-" and not os.path.exists(path):  # noqa: PTH110 - a plain string
            raise SourceError(f"{path}: is not there")
    with _gpus(wanted, terminal.say) as gpus:
        follower = Follower(
            wanted.paths, lambda path, text: terminal.say(f"{path}: {text}"), wanted.patterns, wanted.since
        )
        logs = Logs(follower, wanted.naming, wanted.options, wanted.zone)
        logs.read(now)
        while follower.stream is not None and not follower.stream.ended:
            follower.wait(LOOK)
            logs.read(now)
        logs.finish(now)
        page = _page(logs if wanted.paths else None, gpus, process=False)
        if wanted.to is None:
            terminal.write(page.text()[0].decode(), encoding="utf-8")
        else:
            page.write(wanted.to)
    if wanted.paths:
        terminal.say(logs.summary())
    follower.close()
    if follower.unreadable:
        raise SourceError("some logs cannot be read, see above")


def _on_and_on(wanted: Wanted) -> None:
    with _gpus(wanted, _log.warning) as gpus, _signals() as (wake, asked):
        follower = Follower(
            wanted.paths, lambda path, text: _log.warning(text, file=path), wanted.patterns, wanted.since
        )
        logs = Logs(follower, wanted.naming, wanted.options, wanted.zone)
        shown = logs if wanted.paths else None
        page = _page(shown, gpus, process=True)
        with contextlib.ExitStack() as stack:
            if wanted.listen:
                host, port = stack.enter_context(listening(wanted.listen, page.text, lambda: logs.ready))
                _log.info("listening", address=f"{host}:{port}")
                if not host.startswith(_LOOPBACK):
                    _log.warning("everybody who reaches this address may read it", address=f"{host}:{port}")
            book = Book(wanted.to, wanted.every, _page(shown, gpus, process=False))
            while not asked.end and not follower.over:
                logs.read(time.time(), lambda: asked.end)  # noqa: TID251 - the present is asked for at the edge
                book.write(time.monotonic())  # noqa: TID251 - likewise
                if asked.summary:
                    asked.summary = False
                    terminal.say(logs.summary())
                if asked.refresh:
                    asked.refresh = False
                    follower.refresh()
                follower.wait(LOOK, wake)
            logs.finish(time.time())  # noqa: TID251 - likewise
            book.write(float("inf"))
        if wanted.paths:
            terminal.say(logs.summary())
        follower.close()


class Book:
    """The page as a file, written anew from time to time; a full disk is said once, and tried again."""

    def __init__(self, path: Path | None, every: float, page: Page) -> None:
        self._path, self._every, self._page = path, every, page
        self._due = float("-inf")
        self._failed = False

    def write(self, at: float) -> None:
        """Write the page if it is time; raises SourceError where that was not possible even once."""
        if self._path is None or at < self._due:
            return
        first = self._due == float("-inf")
        self._due = at + self._every
        try:
            self._page.write(self._path)
        except SourceError as error:
            if first:
                raise
            if not self._failed:
                _log.warning(f"{error}; it is tried again")
            self._failed = True
        else:
            self._failed = False


@dataclass
class Asked:
    """What signals have asked for."""

    end: bool = False
    summary: bool = False
    refresh: bool = False


@contextmanager
def _signals() -> Iterator[tuple[int, Asked]]:
    """Take signals as wishes, and yield what wakes who waits for them, and the wishes."""
    asked = Asked()
    ours, theirs = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def heard(number: int, _frame: object) -> None:
        asked.summary = asked.summary or number == signal.SIGUSR1
        asked.refresh = asked.refresh or number == signal.SIGHUP
        asked.end = asked.end or number in {signal.SIGTERM, signal.SIGINT}

    before = {
        number: signal.signal(number, heard)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
    }
    woken = signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    try:
        yield ours, asked
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(ours)
        os.close(theirs)


@contextmanager
def _gpus(wanted: Wanted, tell: Callable[[str], None]) -> Iterator[Gpus | None]:
    """Read the GPUs meanwhile, where that is wanted."""
    if wanted.nvml is None:
        if not wanted.paths:
            raise UsageError("nothing to export: name a log, a folder or -, or give --nvml")
        yield None
        return
    hostname = os.environ.get("NODE_NAME") or platform.node()
    gpus = Gpus(hostname, wanted.nvml, tell, time.monotonic)  # noqa: TID251 - the clock is handed in here
    gpus.start()
    try:
        yield gpus
    finally:
        gpus.close()


def _page(logs: Logs | None, gpus: Gpus | None, *, process: bool) -> Page:
    say = [logs.metrics] if logs is not None else []
    if gpus is not None:
        return Page(*say, lambda: map(metric, families(gpus)), process=process)
    return Page(*say, process=process)
