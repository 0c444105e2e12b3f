"""The process that serves: a socket, TLS, signals, and an end that loses nothing."""

import asyncio
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import structlog
import uvicorn
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from rca.config import Serving, Settings, secret
from rca.errors import Problem, ProblemsError, SourceError
from rca.serve.app import app
from rca.webhook import Backend

MOST_CONNECTIONS = 512
GRACE = 10
_LOOPBACK = ("127.", "localhost", "::1")
_log = structlog.get_logger(__name__)


class Impatient(H11Protocol):
    """HTTP/1.1 that hangs up on who does not finish the headers of a request; uvicorn waits for ever.

    Bodies are timed where they are read. What still arrives of a body after its answer counts as no request.
    """

    patience = 10.0
    """Seconds from the first byte of a request, or from the connection, to the end of its headers."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take what arrives."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        super().connection_lost(exc)
        if self._late is not None:
            self._late.cancel()

    def _watch(self) -> None:
        """Start the clock where no request is under way, and stop it where one is."""
        if self._idle() and self._late is None:
            self._late = self.loop.call_later(self.patience, self._hang_up)
        elif not self._idle() and self._late is not None:
            self._late.cancel()
            self._late = None

    def _hang_up(self) -> None:
        self._late = None
        if self._idle():
            self.transport.close()

    def _idle(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # there is none before the first request
        return cycle is None or cycle.response_complete


class Ending(uvicorn.Server):
    """Says so first when it ends: it waits for answers under way, and some of them would go on for ever."""

    def __init__(self, config: Config, ends: Callable[[], None]) -> None:
        super().__init__(config)
        self._ends = ends

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End."""
        self._ends()
        await super().shutdown(sockets)


def serve(backend: Backend, settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP reads rules and settings again.

    Raises ProblemsError where a file of the settings cannot be used, and SourceError where nobody can listen there.
    """
    serving = settings.serve
    check(serving)
    with listening(settings.listen) as ear:
        if not _guarded(serving) and not str(ear.getsockname()[0]).startswith(_LOOPBACK):
            _log.warning("everybody who reaches this address may ask", listen=settings.listen)
        with _signals(backend):
            _log.info("listening", address=settings.listen, tls=bool(serving.cert_file))
            server(backend, serving).run(sockets=[ear])


def server(backend: Backend, serving: Serving) -> uvicorn.Server:
    """Return the server of the application, ready to run on a socket."""
    served = app(backend, serving)
    return Ending(
        Config(
            served, http=Impatient, ws="none", log_config=None, access_log=False,
            server_header=False, proxy_headers=False, limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=GRACE, ssl_certfile=serving.cert_file or None,
            ssl_keyfile=serving.key_file or None,
        ),
        served.state.bulletin.close,
    )  # fmt: skip


def check(serving: Serving) -> None:
    """Raise ProblemsError where a secret or the certificate cannot be used: better now than at the first request."""
    if serving.token_file:
        secret(serving.token_file, "the token")
    if serving.password_file:
        secret(serving.password_file, "the password")
    if serving.cert_file:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(serving.cert_file, serving.key_file, password="")
        except OSError as error:  # ssl.SSLError is one
            said = (error.strerror or str(error)).lower()
            text = f"must hold a certificate, and {serving.key_file} its key, in PEM, {said}"
            raise ProblemsError((Problem(serving.cert_file, text),)) from error


@contextmanager
def listening(listen: str) -> Iterator[socket.socket]:
    """Open the socket of HOST:PORT; an IPv6 address stands in brackets."""
    host, _, port = listen.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        ear = socket.create_server((str(address[0]), int(port)), family=family, backlog=1024)
    except OSError as error:
        said = (os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)).lower()
        raise SourceError(f"listen: {listen}: {said}, choose another address or port") from error
    with ear:
        yield ear


def _guarded(serving: Serving) -> bool:
    return bool(serving.token_file or serving.username)


@contextmanager
def _signals(backend: Backend) -> Iterator[None]:
    """Reload at SIGHUP, and take SIGTERM as the wish to end: uvicorn raises it again when all is done."""
    before = {
        signal.SIGHUP: signal.signal(
            signal.SIGHUP, lambda *_: threading.Thread(target=backend.read_again, daemon=True).start()
        ),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: None),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
