"""Looking in a process of its own, so that whoever answers requests never waits for a diagnosis.

Python runs one thread at a time: a diagnosis beside a server takes the processor from it for tenths of a second. The
child has the rules that it was sent, and what it read before, which may be lost at any time; what lasts stays here.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Literal, NamedTuple, TypeAlias, TypeVar, cast

import structlog

from rca import terminal
from rca.errors import RcaError, SourceError
from rca.metrics import Look
from rca.model import History, Report
from rca.watch import Eyes, Past, Rules, Seen, Shard
from rca.webhook import Answer, Question

T = TypeVar("T")
Said: TypeAlias = tuple[Literal["history", "saw", "done", "failed"], object]
NICE = 5
"""How far the child stands back where processors are short: an answer is waited for by somebody, a look by nobody."""
_SPAWN = multiprocessing.get_context("spawn")
_ENDS_WITHIN = 5.0
_log = structlog.get_logger(__name__)


class Asked(NamedTuple):
    """One thing that the child is asked for: a method of its `Eyes`, and what it takes."""

    method: Literal["start", "tick", "poured", "ask"]
    given: tuple[object, ...] = ()


class Apart:
    """A `Sight` in a process of its own, which is started when it is needed, and again when it has ended.

    What is asked of a child that ends meanwhile is asked once more of the next; then it is a SourceError.
    """

    def __init__(self, rules: Rules, archive: Past, metrics: Seen, shard: Shard | None = None) -> None:
        self.rules = rules
        self._archive, self._metrics = archive, metrics
        self._shard = shard or Shard()
        self._turn = threading.Lock()
        self._process: SpawnProcess | None = None
        self._line: Connection | None = None
        self._sent: Rules | None = None
        self._closed = False

    def start(self) -> None:
        """Start the child, and wait until it has read its own program: that takes seconds of a processor."""
        self._asked(Asked("start"))

    def close(self) -> None:
        """End the child, whatever it does; who waits for it gets a SourceError."""
        self._closed = True
        if self._process is not None:
            self._process.kill()
            self._process.join(_ENDS_WITHIN)

    @property
    def pid(self) -> int | None:
        """Return the number of the child's process, None where there is none."""
        return self._process.pid if self._process is not None else None

    def owns(self, job: str) -> bool:
        """Say whether a job is ours."""
        return self._shard.owns(job)

    def tick(self, wary: bool) -> Report | None:
        """Look at what is scheduled."""
        return cast("Report | None", self._asked(Asked("tick", (wary,))))

    def poured(self) -> bytes:
        """Return what the last tick saw."""
        return cast("bytes", self._asked(Asked("poured")))

    def ask(self, question: Question, keep: bool) -> Answer:
        """Answer a question."""
        return cast("Answer", self._asked(Asked("ask", (question, keep))))

    def _asked(self, asked: Asked) -> object:
        with self._turn:
            said, told = self._answered(asked)
        if said == "failed":
            raise cast("BaseException", told)
        return told

    def _answered(self, asked: Asked) -> Said:
        """Return what comes of asking, the second time where the child ends at the first."""
        try:
            return self._answer(asked)
        except (EOFError, OSError):
            if not self._closed:
                _log.warning("the process that looks has ended, it is asked again", status=self._status())
        self._gone()
        try:
            return self._answer(asked)
        except (EOFError, OSError) as error:
            status = self._status()
            self._gone()
            raise SourceError(
                f"the process that looks at the source has ended twice ({status}), is there enough memory"
            ) from error

    def _answer(self, asked: Asked) -> Said:
        """Ask the child, answer what it asks meanwhile, and return what comes of it."""
        line = self._started()
        if self._sent is not self.rules:
            rules = self.rules
            line.send(rules)
            self._sent = rules
        line.send(asked)
        while True:
            said, told = cast("Said", line.recv())
            if said == "history":
                line.send(_outcome(partial(self._archive.history, cast("float", told))))
            elif said == "saw":
                self._metrics.saw(cast("Look", told))
            else:
                return said, told

    def _started(self) -> Connection:
        """Return the line to the child, which is started where there is none."""
        if self._closed:
            raise SourceError("the process that looks at the source is told to end")
        if self._line is None:
            ours, theirs = _SPAWN.Pipe()
            process = _SPAWN.Process(target=live, args=(theirs, self._shard), name="rca-eyes", daemon=True)
            process.start()
            theirs.close()
            self._process, self._line, self._sent = process, ours, None
            self._end_where_closed(process)
        return self._line

    def _end_where_closed(self, process: SpawnProcess) -> None:
        """End a child that was started while `close` was called."""
        if self._closed:
            process.kill()

    def _status(self) -> str:
        """Say how the child has ended."""
        if self._process is None:
            return "it was not there"
        self._process.join(_ENDS_WITHIN)
        code = self._process.exitcode
        return signal.Signals(-code).name if code is not None and code < 0 else f"status {code}"

    def _gone(self) -> None:
        """Forget a child that has ended."""
        if self._line is not None:
            self._line.close()
        if self._process is not None:
            self._process.kill()
        self._process = self._line = None


class Parent:
    """Past and present as the child sees them: both are at the other end of the line."""

    def __init__(self, line: Connection) -> None:
        self._line = line

    def history(self, at: float) -> History:
        """Ask for what has been before."""
        self._line.send(("history", at))
        said, told = cast("Said", self._line.recv())
        if said == "failed":
            raise cast("BaseException", told)
        return cast("History", told)

    def saw(self, look: Look) -> None:
        """Tell how well the source could be seen."""
        self._line.send(("saw", look))


def live(line: Connection, shard: Shard) -> None:
    """Look as asked until the line breaks, or the process that asks is no more."""
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to both; they are the parent's to heed
        signal.signal(number, signal.SIG_IGN)
    terminal.log_to(sys.stderr)
    with contextlib.suppress(OSError):  # a unit of systemd may forbid it
        os.nice(NICE)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    parent, eyes = Parent(line), None
    while True:
        try:
            asked: Rules | Asked = line.recv()
            if isinstance(asked, Asked):
                assert eyes is not None
                line.send(_outcome(partial(getattr(eyes, asked.method), *asked.given)))
            elif eyes is None:
                eyes = Eyes(asked, parent, parent, shard)
            else:
                eyes.rules = asked
        except (EOFError, OSError):
            return


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _outcome(call: Callable[[], T]) -> Said:
    """Call, and return what came of it, errors too: those that nobody foresaw with where they came from.

    A pool of one thread gives an error back as a value, whatever it is.
    """
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(call)
        error = done.exception()
    if error is None:
        return "done", done.result()
    if not isinstance(error, RcaError):
        error.add_note("".join(traceback.format_exception(error)))
    return "failed", error


__all__ = ["Apart"]
