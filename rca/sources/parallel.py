"""Many questions to one server at once, at the pace of whoever takes the answers."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from rca.errors import SourceError
from rca.sources.http import Site

T = TypeVar("T")
WAITING = 4
"""Results a worker that wait for the caller at most, so that they do not pile up."""


class Job(NamedTuple, Generic[T]):
    """A piece of work: what it asks for, in words, and the call that does it."""

    what: str
    call: Callable[[], T]


def in_parallel(jobs: Sequence[Job[T]], workers: int, site: Site) -> Iterator[tuple[int, T]]:
    """Yield (index of the job, its result) as they come; raise the first SourceError, or one at the deadline.

    The threads are daemons: one that hangs in a resolver or a handshake holds up neither the caller nor the exit.
    """
    done: queue.SimpleQueue[tuple[int, T | SourceError | None]] = queue.SimpleQueue()
    pace = _Pace(len(jobs), workers)

    def work() -> None:
        while (index := pace.claim()) is not None:
            outcome: T | SourceError | None = None
            try:
                outcome = jobs[index].call()
            except SourceError as error:
                outcome = error
            finally:
                pace.answered()
                done.put((index, outcome))

    for _ in range(min(workers, len(jobs))):
        threading.Thread(target=work, daemon=True).start()
    open_jobs = set(range(len(jobs)))
    try:
        while open_jobs:
            index, outcome = _next(done, site, [jobs[i].what for i in sorted(open_jobs)])
            pace.taken()
            open_jobs.remove(index)
            if isinstance(outcome, SourceError):
                raise outcome
            if outcome is None:
                raise RuntimeError(f"no result from {jobs[index].what}, the worker's traceback is above")
            yield index, outcome
    finally:
        pace.stop()


class _Pace:
    """Says when the next of some jobs may begin.

    While results wait for the caller, who is late, one job at a time goes on: a server on the same machine would take the
    processor from the caller. Half of the jobs begin, the others follow when the first result is in: a server that shares
    its time between all would give all of them late.
    """

    def __init__(self, jobs: int, workers: int) -> None:
        self._left = iter(range(jobs))
        self._workers = workers
        self._limit = (workers + 1) // 2
        self._busy = self._waiting = 0
        self._stopped = False
        self._changed = threading.Condition()

    def claim(self) -> int | None:
        """Wait until a job may begin, and return it; None where none is left."""
        with self._changed:
            self._changed.wait_for(self._may_begin)
            index = None if self._stopped else next(self._left, None)
            self._busy += index is not None
            return index

    def _may_begin(self) -> bool:
        if self._waiting and not self._stopped:
            return not self._busy and self._waiting < WAITING * self._workers
        return self._stopped or self._busy < self._limit

    def answered(self) -> None:
        """Note that a job has its result."""
        with self._changed:
            self._busy -= 1
            self._waiting += 1
            self._limit = self._workers
            self._changed.notify_all()

    def taken(self) -> None:
        """Note that the caller has taken a result."""
        with self._changed:
            self._waiting -= 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Begin nothing more, and let nobody wait."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


def _next(done: "queue.SimpleQueue[tuple[int, T]]", site: Site, open_jobs: list[str]) -> tuple[int, T]:
    try:
        return done.get(timeout=site.deadline.left() + 0.2)
    except queue.Empty:
        more = f" and {len(open_jobs) - 1} more" if len(open_jobs) > 1 else ""
        raise site.late(open_jobs[0] + more) from None
