"""Events for pages that stay open: that incidents are others than before, told to all from one look at the archive."""

from collections.abc import AsyncIterator, Callable

import anyio
import anyio.to_thread
import msgspec
import structlog

from rca.errors import SourceError

EVERY = 2.0
"""Seconds between two looks at the archive, which others write to as well; where nobody listens there is none."""
BEAT = 15.0
"""After so many seconds of silence something is sent, so that nobody between takes the line for dead."""
MOST = 64
"""So many may listen at once."""
_BEGIN = "retry: 3000\n\n"
_ALIVE = ": still here\n\n"
_log = structlog.get_logger(__name__)


class Bulletin:
    """Tells listeners which version of the incidents is the newest; `look` returns that, and may block."""

    def __init__(self, look: Callable[[], str], every: float = EVERY, beat: float = BEAT) -> None:
        self._look, self._every, self._beat = look, every, beat
        self._version, self._listeners, self._closed = "", 0, False
        self._news = anyio.Event()

    @property
    def full(self) -> bool:
        """Say whether as many listen as may."""
        return self._listeners >= MOST

    def close(self) -> None:
        """End all that is sent; who calls this is in the event loop."""
        self._closed = True
        self._wake()

    async def run(self) -> None:
        """Look for news until cancelled."""
        while True:
            if self._listeners:
                await self._ask()
            await anyio.sleep(self._every)

    async def listen(self) -> AsyncIterator[str]:
        """Yield events as they are sent: the version as soon as it is known, and then each new one."""
        self._listeners += 1
        try:
            yield _BEGIN
            known = ""
            while not self._closed:
                news = self._news
                if self._version != known:
                    known = self._version
                    yield _event(known)
                    continue
                with anyio.move_on_after(self._beat) as waiting:
                    await news.wait()
                if waiting.cancelled_caught:
                    yield _ALIVE
        finally:
            self._listeners -= 1
            if not self._listeners:
                self._version = ""  # it grows old where nobody looks

    async def _ask(self) -> None:
        try:
            version = await anyio.to_thread.run_sync(self._look)
        except SourceError as error:
            _log.warning("the archive cannot be read", error=str(error))
            return
        if version != self._version and self._listeners:
            self._version = version
            self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()


def _event(version: str) -> str:
    """Write an event as in https://html.spec.whatwg.org/multipage/server-sent-events.html.

    >>> _event("5f0c")
    'event: incidents\\ndata: {"version":"5f0c"}\\n\\n'
    """
    return f"event: incidents\ndata: {msgspec.json.encode({'version': version}).decode()}\n\n"
