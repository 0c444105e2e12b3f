"""The server of one page: no client can hold it up, and it ends when it is told to."""

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rca.errors import SourceError, UsageError

MOST_CLIENTS = 64
PATIENCE = 10.0
LONGEST = 60.0
"""A client that has not got its page within so many seconds is cut off."""
Text = Callable[[str], tuple[bytes, str]]


class Server(ThreadingHTTPServer):
    """A thread for each client, of which there are never many, and none for long."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self, family: socket.AddressFamily, address: tuple[str, int], text: Text, ready: Callable[[], bool]
    ) -> None:
        self.address_family = family
        self.text, self.ready = text, ready
        self._free = threading.BoundedSemaphore(MOST_CLIENTS)
        super().__init__(address, Request)

    def server_bind(self) -> None:
        """Bind, and ask no name server who we are."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - so in the standard library
        """Serve a client, unless there are too many already."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - likewise
        """Serve a client, and cut it off when it takes too long."""
        late = threading.Timer(LONGEST, cut, (request,))
        late.daemon = True
        late.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            late.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - likewise
        """Say nothing of a client that went away; what we did wrong ends the thread with its traceback."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Request(BaseHTTPRequestHandler):
    """One request."""

    server: Server
    timeout = PATIENCE

    def do_GET(self) -> None:
        """Serve the page, and whoever asks whether we are there."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            body, kind = self.server.text(self.headers.get("Accept", ""))
            self._reply(HTTPStatus.OK, body, kind)
        elif path == "/-/healthy":
            self._reply(HTTPStatus.OK, b"healthy\n")
        elif path == "/-/ready":
            ready = self.server.ready()
            said = b"ready\n" if ready else b"reads what the logs hold already\n"
            self._reply(HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE, said)
        else:
            self._reply(HTTPStatus.NOT_FOUND, b"look at /metrics\n")

    do_HEAD = do_GET  # noqa: N815 - it is called so there

    def _reply(self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("X-Content-Type-Options", "nosniff"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """Tell nobody what serves."""
        return "rca"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - it is called so there
        """Say nothing: a scrape is no event."""


def cut(request: socket.socket) -> None:
    """End a connection, whatever it does."""
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended already


@contextmanager
def listening(listen: str, text: Text, ready: Callable[[], bool]) -> Iterator[tuple[str, int]]:
    """Serve `/metrics` at HOST:PORT while the block runs, and yield the address that it got.

    Raises UsageError for what is no address, SourceError where nobody can listen there.
    """
    host, colon, port = listen.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise UsageError(f"--listen: {listen!r} is not HOST:PORT, write for example 127.0.0.1:9690")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        server = Server(family, (str(address[0]), int(port)), text, ready)
    except OSError as error:
        said = (os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)).lower()
        raise SourceError(f"--listen: {listen}: {said}, choose another address or port") from error
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="rca-exporter", daemon=True
    )
    thread.start()
    try:
        yield str(server.server_address[0]), int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
