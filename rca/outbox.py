"""Tells a webhook and Slack of incidents, in a thread of its own: who takes long to listen holds up nothing.

What a receiver has been told is in the archive, so a restart tells nothing twice, and of several processes that share
an archive one tells it. A message whose process dies between the answer and the note of it is sent again, under the same id.
"""

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import requests
import structlog

from rca.archive import Archive
from rca.config import Settings
from rca.errors import RcaError
from rca.messages import Due, Receiver, Told, body, due, receivers
from rca.metrics import Metrics

KEPT = 6 * 3600.0
"""For so many seconds after its end an incident is told of, where the receiver does not listen."""
BACKOFF = (5.0, 300.0)
"""Seconds before the first message is tried again, doubled each time, and the longest pause."""
MOST_TRIES = 80
"""After so many tries, some six hours, a message is given up."""
_TIMEOUT = 5.0
_LEASE = 60.0
_EVERY = 5.0
_STOPS_WITHIN = 2.0
_WORD = re.compile(r"[a-z_]{1,40}")
_log = structlog.get_logger(__name__)


class Outcome(NamedTuple):
    """What came of a message: what went wrong, in words that give no address away (empty: nothing did), whether to try
    again, and after how many seconds at least."""

    wrong: str = ""
    again: bool = False
    pause: float = 0.0


class Outbox:
    """Sends what is due."""

    def __init__(
        self, archive: Archive, metrics: Metrics, settings: Callable[[], Settings], clock: Callable[[], float]
    ) -> None:
        self._archive, self._metrics, self._settings, self._clock = archive, metrics, settings, clock
        self._pool = ThreadPoolExecutor(1, "rca-outbox")
        self._thread = threading.Thread(target=self._run, name="rca-outbox", daemon=True)
        self._stopping, self._woken = threading.Event(), threading.Event()

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def wake(self) -> None:
        """Say that there may be something new."""
        self._woken.set()

    def stop(self) -> None:
        """Send nothing more; what is not sent is sent after a restart."""
        self._stopping.set()
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join(_STOPS_WITHIN)
        self._pool.shutdown(wait=False)

    def _run(self) -> None:
        while not self._stopping.is_set():
            error = self._pool.submit(self.round).exception()
            if error is not None and not self._stopping.is_set():
                _log.error("messages cannot be sent", error=str(error), exc_info=_unforeseen(error))
            self._woken.wait(_EVERY)
            self._woken.clear()

    def round(self) -> None:
        """Send what is due now; raises RcaError where the archive fails, or a file holds no address."""
        keeping = self._settings().incidents
        found = receivers(keeping)
        if not found:
            return
        at = self._clock()
        incidents = self._archive.alive(at - KEPT)
        for receiver in found:
            told = self._archive.told(receiver.name)
            for message in due(incidents, told, at):
                if self._stopping.is_set():
                    return
                self._send(receiver, message, told.get(message.incident.id), keeping.url)

    def _send(self, receiver: Receiver, message: Due, before: Told | None, pages: str) -> None:
        """Send a message, unless another process does, and note what came of it."""
        name, one, known = receiver.name, message.incident.id, before or Told()
        ours = known._replace(until=self._clock() + _LEASE, tries=known.tries + 1)
        if not self._archive.tell(name, one, before, ours):
            return
        outcome = post(receiver.url, body(message, receiver, pages))
        if not outcome.wrong:
            self._metrics.notified(sent=1)
            self._archive.tell(name, one, ours, Told(message.saying))
            _log.info("message sent", receiver=name, incident=one, what=message.event)
            return
        given_up = not outcome.again or ours.tries >= MOST_TRIES
        self._metrics.notified(failed=1, dropped=int(given_up))
        pause = max(min(BACKOFF[0] * 2.0 ** (ours.tries - 1), BACKOFF[1]), outcome.pause)
        after = Told(message.saying) if given_up else ours._replace(until=self._clock() + pause)
        self._archive.tell(name, one, ours, after)
        said = "message given up" if given_up else "message not sent, it is tried again"
        _log.warning(said, receiver=name, incident=one, what=message.event, error=outcome.wrong)


def post(url: str, told: bytes) -> Outcome:
    """Post a body; what is answered is not repeated in a log but for single words, as an address may stand in it."""
    headers = {"Content-Type": "application/json"}
    try:
        with requests.post(
            url, data=told, headers=headers, timeout=_TIMEOUT, allow_redirects=False, stream=True
        ) as answer:
            status, later = answer.status_code, answer.headers.get("Retry-After", "")
            if 200 <= status < 300:
                return Outcome()
            text = answer.raw.read(200).decode(errors="replace").strip()
    except (requests.RequestException, OSError) as error:
        return Outcome(f"cannot be reached ({type(error).__name__})", again=True)
    word = f": {text}" if _WORD.fullmatch(text) else ""
    pause = float(later) if later.isascii() and later.isdigit() and len(later) < 6 else 0.0
    return Outcome(f"answers {status}{word}", status >= 500 or status in {408, 425, 429}, pause)


def _unforeseen(error: BaseException) -> BaseException | None:
    return None if isinstance(error, RcaError) else error
