"""Who may ask, how often, and how much at once: what every request passes before anything is done for it."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rca.config import Serving, secret
from rca.errors import ProblemsError

OPEN = frozenset({"/-/healthy", "/-/ready"})
"""Paths that ask for no login: who watches the process has none."""
WEBHOOK = "/api/v1/alerts"
BODY_SECONDS = 30.0
"""A body that has not arrived within so many seconds is given up."""
MOST_CLIENTS = 1024
KINDS = {
    400: "bad_data",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    413: "too_large",
    422: "execution",
    429: "too_many_requests",
    500: "internal",
    503: "unavailable",
}
"""The `errorType` of each status that we answer with."""


class RefusalError(Exception):
    """A request that is not served: the status, why, and when to come again (seconds, 0: never)."""

    def __init__(self, status: int, text: str, again: int = 0) -> None:
        self.status, self.text, self.again = status, text, again
        super().__init__(text)

    def response(self) -> Response:
        """Return the refusal in Prometheus' envelope."""
        headers = {"Retry-After": str(self.again)} if self.again else {}
        if self.status == 401:
            headers["WWW-Authenticate"] = 'Basic realm="rca", charset="UTF-8"'
        body = {"status": "error", "errorType": KINDS.get(self.status, "internal"), "error": self.text}
        return Response(msgspec.json.encode(body), self.status, headers, "application/json")


@dataclass
class Bucket:
    """Lets `rate` requests a second through, and as many at once after a pause.

    >>> bucket = Bucket(2, 0.0)
    >>> [bucket.take(at) for at in (0.0, 0.0, 0.0, 0.5, 0.5)]
    [True, True, False, True, False]
    """

    rate: float
    at: float
    left: float = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.rate

    def take(self, at: float) -> bool:
        """Say whether one more may pass at a time."""
        self.left = min(self.left + (at - self.at) * self.rate, self.rate)
        self.at = at
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


class Gate:
    """Stands before the application: refuses who asks too often, from another site, or without a valid login."""

    def __init__(self, app: ASGIApp, serving: Serving, clock: Callable[[], float] = anyio.current_time) -> None:
        self._app, self._serving, self._clock = app, serving, clock
        self._buckets: dict[str, Bucket] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sender(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-content-type-options", b"nosniff")]
            await send(message)

        try:
            self._check(Request(scope))
        except RefusalError as refusal:
            await refusal.response()(scope, receive, sender)
        else:
            await self._app(scope, receive, sender)

    def _check(self, request: Request) -> None:
        path, reads = request.scope["path"], request.method in {"GET", "HEAD"}
        if path in OPEN and reads:
            return
        if not self._bucket(request).take(self._clock()):
            # Alertmanager repeats a delivery after 503, and never after 429.
            status = 503 if path == WEBHOOK and not reads else 429
            raise RefusalError(status, f"more than {self._serving.max_rate} requests a second, slow down", 1)
        origin = request.headers.get("origin")
        if origin is not None and not reads and origin.partition("://")[2] != request.headers.get("host", ""):
            raise RefusalError(403, "the request comes from a page of another site")
        try:
            known = knows(request.headers.get("authorization", ""), self._serving)
        except ProblemsError:
            raise RefusalError(503, "credentials cannot be checked, see the log of the server", 30) from None
        if not known:
            raise RefusalError(401, "log in with the bearer token, or with user and password")

    def _bucket(self, request: Request) -> Bucket:
        """Return the bucket of an address; the address that was seen last of all gives way to a new one."""
        address = request.client.host if request.client else ""
        bucket = self._buckets.pop(address, None) or Bucket(self._serving.max_rate, self._clock())
        self._buckets[address] = bucket
        if len(self._buckets) > MOST_CLIENTS:
            del self._buckets[next(iter(self._buckets))]
        return bucket


def knows(header: str, serving: Serving) -> bool:
    """Say whether an Authorization header holds a login of ours; with none set, everybody may come in.

    The files are read each time, so that a secret can be changed while the server runs; raises ProblemsError where one
    cannot be.
    """
    if not (serving.token_file or serving.username):
        return True
    scheme, _, told = header.partition(" ")
    if scheme.lower() == "bearer" and serving.token_file:
        return _same(told.strip().encode(), secret(serving.token_file, "the token").encode())
    if scheme.lower() == "basic" and serving.username:
        login = _login(told)
        return login is not None and _same(
            login, f"{serving.username}:{secret(serving.password_file, 'the password')}".encode()
        )
    return False


def user(header: str, serving: Serving) -> str:
    """Return who has logged in by a valid Authorization header; empty where that was by a token, or nobody has to."""
    scheme, _, told = header.partition(" ")
    login = _login(told) if scheme.lower() == "basic" and serving.username else None
    return "" if login is None else login.decode(errors="replace").partition(":")[0]


def _login(told: str) -> bytes | None:
    try:
        return base64.b64decode(told.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None


def _same(told: bytes, known: bytes) -> bool:
    """Compare in a time that tells nothing, of the length neither."""
    return hmac.compare_digest(hashlib.sha256(told).digest(), hashlib.sha256(known).digest())


async def body(request: Request, limit: int, within: float = BODY_SECONDS) -> bytes:
    """Read the body of a request, of which no more than `limit` bytes are ever held, within so many seconds."""
    refusal = RefusalError(413, f"the body is larger than {limit} bytes, send less at once")
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > limit:
        raise refusal
    read = bytearray()
    try:
        with anyio.fail_after(within):
            async for chunk in request.stream():
                if len(read) + len(chunk) > limit:
                    raise refusal
                read += chunk
    except TimeoutError:
        raise RefusalError(408, f"the body did not arrive within {within:g} s") from None
    except ClientDisconnect:
        raise RefusalError(400, "the body broke off") from None
    return bytes(read)
