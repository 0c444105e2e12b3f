"""Diagnoses on demand: what was asked for, and no more of them at once than may be."""

from collections.abc import Sequence

import anyio
import anyio.to_thread

from rca.serve.gate import RefusalError
from rca.times import parse_time
from rca.webhook import Answer, Backend, Question

BUSY = 10
"""Seconds after which who was refused may come again."""


class OnDemand:
    """Asks the engine for people and programs."""

    def __init__(self, backend: Backend, most: int) -> None:
        self._backend, self._most = backend, most
        self._under_way = anyio.CapacityLimiter(most)

    def question(self, jobs: Sequence[str], at: str) -> Question:
        """Return what is asked about jobs (none: all) at a time (empty: now); raises UsageError where that is none."""
        time = parse_time("at", at, self._backend.now()) if at else None
        return Question(time, tuple(job for job in jobs if job))

    async def answer(self, question: Question, keep: bool) -> Answer:
        """Answer a question; raises RefusalError where as many are under way as may be, RcaError where it cannot."""
        borrower = object()
        try:
            self._under_way.acquire_on_behalf_of_nowait(borrower)
        except anyio.WouldBlock:
            raise RefusalError(503, f"{self._most} diagnoses are under way", BUSY) from None
        try:
            return await anyio.to_thread.run_sync(self._backend.asked, question, keep)
        finally:
            self._under_way.release_on_behalf_of(borrower)
