"""Blocks of files looked through for ranks: one after the other, and beyond some hundred megabytes by several processes."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

from rca.loglines.files import LogFile
from rca.loglines.line import Line

WORTH = 512 << 20
"""Bytes that one process looks through before others are started to help it."""
_MOST = 8
"""Processes, where there are as many processors."""


class Piece(NamedTuple):
    """What is to be looked through: the block of a file that ends at an offset, for ranks (none: all) but those `seen`."""

    log: LogFile
    end: int
    size: int
    ranks: frozenset[str]
    seen: frozenset[str]


class Seen(NamedTuple):
    """What a block holds: where it begins, its first time, and the last line in it of each rank."""

    begin: int
    time: float | None
    lines: Sequence[tuple[str, Line]]


Scan = Callable[[Piece], Seen]


class Scanners:
    """Looks through pieces; `scan` does it here, `remote` can be handed to another process. `close` ends those."""

    def __init__(self, scan: Scan, remote: Scan, worth: int = WORTH) -> None:
        self._scan, self._remote, self._left = scan, remote, worth
        self._pool: ProcessPoolExecutor | None = None
        self._count = min(len(os.sched_getaffinity(0)), _MOST)

    @property
    def width(self) -> int:
        """Return how many pieces are to come at once."""
        return 2 * self._count if self._pool is not None else 1

    def scan(self, pieces: Sequence[Piece]) -> list[Seen]:
        """Look through some pieces, in their order."""
        self._left -= sum(piece.size for piece in pieces)
        if self._left < 0 and self._pool is None and self._count > 1:
            self._pool = ProcessPoolExecutor(self._count, mp_context=get_context("spawn"))
        if self._pool is not None and len(pieces) > 1:
            try:
                return list(self._pool.map(self._remote, pieces))
            except BrokenExecutor:  # no process can be started here: all is done by this one
                self.close()
                self._count = 1
        return [self._scan(piece) for piece in pieces]

    def close(self) -> None:
        """End the other processes."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
