"""How the metrics of a rank leave its process: over HTTP, or through a file that node_exporter reads.

Each runs in a thread of its own that ends with the process, and whatever goes wrong in it stays there.
"""

import logging
import os
import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from rca.hook.series import CONTENT_TYPE

Text = Callable[[], str]
LOG = logging.getLogger("rca.hook")
AGAIN = 10.0
"""Seconds after which a port that was taken is tried again: what held it may have been the rank before a restart."""
_AT_ONCE = 8
_PATIENCE = 5.0


class HttpOutlet:
    """Serves the metrics at an address, from the moment that it is free: a few scrapes at once, and none for long."""

    def __init__(self, address: tuple[str, int], text: Text, again: float = AGAIN) -> None:
        self._wanted, self._text, self._again = address, text, again
        self._ended = threading.Event()
        self._room = threading.BoundedSemaphore(_AT_ONCE)
        self._socket = self._bind(told=False)
        threading.Thread(target=self._run, daemon=True, name="rca-hook").start()

    @property
    def address(self) -> tuple[str, int] | None:
        """Where it listens, None while the port is taken, or once it is over."""
        if self._socket is None or self._socket.fileno() < 0:
            return None
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    def _bind(self, *, told: bool) -> socket.socket | None:
        host, port = self._wanted
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, port), family=family, backlog=16)
        except (OSError, OverflowError, UnicodeError) as error:
            if not told:
                reason = (getattr(error, "strerror", None) or str(error)).lower()
                text = "%s:%d: cannot be listened on, %s; trying again, no metrics until then"
                LOG.warning(text, host, port, reason, extra={"event": "METRICS_UNSERVED"})
            return None

    def _run(self) -> None:
        while self._socket is None and not self._ended.wait(self._again):
            self._socket = self._bind(told=True)
        while self._socket is not None and not self._ended.is_set():
            try:
                client, _ = self._socket.accept()
            except OSError:  # it is over, or there are too many open files
                self._ended.wait(0.1)
                continue
            self._take(client)

    def _take(self, client: socket.socket) -> None:
        """Answer in a thread of its own, or not at all where too many are being answered."""
        if self._room.acquire(blocking=False):
            try:
                threading.Thread(target=self._answer, args=(client,), daemon=True, name="rca-scrape").start()
            except RuntimeError:  # no more threads
                self._room.release()
            else:
                return
        client.close()

    def _answer(self, client: socket.socket) -> None:
        try:
            with client, client.makefile("rb") as lines:
                client.settimeout(_PATIENCE)
                client.sendall(answer(lines, self._text))
                client.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # whoever asked has gone, or says nothing
        finally:
            self._room.release()

    def close(self) -> None:
        """Stop serving; the port is free at once."""
        self._ended.set()
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # or a thread that waits in it would keep it open
            self._socket.close()

    def forsake(self) -> None:
        """Let go of the socket in a forked child: it is the parent's."""
        if self._socket is not None:
            self._socket.close()


def answer(lines: BinaryIO, text: Text) -> bytes:
    """Read the head of a request, and return the answer in HTTP/1.0."""
    words = lines.readline(4096).decode("latin-1").split()
    for _ in range(100):
        if lines.readline(8192) in {b"", b"\n", b"\r\n"}:
            break
    method, path = (words[0], words[1].partition("?")[0]) if len(words) > 1 else ("", "")
    if method not in {"GET", "HEAD"}:
        status, kind, page = "405 Method Not Allowed", "text/plain", "only GET\n"
    elif path in {"/", "/metrics"}:
        status, kind, page = "200 OK", CONTENT_TYPE, text()
    else:
        status, kind, page = "404 Not Found", "text/plain", "metrics are at /metrics\n"
    body = page.encode("utf-8", errors="replace")
    head = f"HTTP/1.0 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode("ascii") + (b"" if method == "HEAD" else body)


class TextfileOutlet:
    """Writes the metrics to a file every so often, whole or not at all."""

    def __init__(self, folder: str, name: str, text: Text, interval: float) -> None:
        safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)
        self.path = Path(folder) / f"rca_{safe}.prom"
        self._part = Path(folder) / f".rca_{safe}.{os.getpid()}"
        self._text, self._interval = text, max(0.05, interval)
        self.address: None = None  # it has a path instead
        self._ended = threading.Event()
        self._told = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="rca-hook-textfile")
        self._thread.start()

    def _run(self) -> None:
        self.write()
        while not self._ended.wait(self._interval):
            self.write()

    def write(self) -> None:
        """Write the file anew; what cannot be written is said once, and tried again."""
        try:
            self._part.write_text(self._text(), encoding="utf-8", errors="replace", newline="\n")
            self._part.replace(self.path)
        except OSError as error:
            if not self._told:
                reason = (error.strerror or str(error)).lower()
                LOG.warning("%s: cannot be written, %s", self.path, reason, extra={"event": "METRICS_UNSERVED"})
            self._told = True

    def close(self) -> None:
        """Take the file away: node_exporter would go on serving it."""
        self._ended.set()
        self._thread.join(1.0)
        for path in (self._part, self.path):
            try:
                path.unlink(missing_ok=True)
            except OSError:
                continue

    def forsake(self) -> None:
        """Leave the file to the parent; its thread has not come along."""
