"""HTTP as the sources speak it: one deadline over all requests, credentials, retries, and failures put into words.

The session is a `requests.Session` with one adapter. Whatever goes out through it, from here or from inside a client
library, either comes back as a complete answer with status 200 or raises one SourceError that names the server
(without credentials), what is wrong and what would be right.
"""

import base64
import contextlib
import html
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec
import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from urllib3.util.retry import Retry

from rca import __version__, config
from rca.errors import Problem, ProblemsError, SourceError, UsageError
from rca.library import seconds

CONNECT_SECONDS = 10.0
RETRY_STATUSES = (429, 502, 503, 504)
MAX_BODY = 2 << 30
_CHUNK = 1 << 20
_CERTIFICATE = "set cert_file and key_file if the server wants a client certificate"
_REASON = re.compile(r"\[[A-Z0-9: _]+\] ?|\(_ssl\.c:\d+\)")


@dataclass(frozen=True)
class Deadline:
    """The moment by which everything must have been answered."""

    seconds: float
    end: float

    @classmethod
    def after(cls, duration: float) -> Self:
        """Return the deadline that is so many seconds away."""
        return cls(duration, cls.clock() + duration)

    def left(self) -> float:
        """Return the seconds that are left, at least a millisecond: a socket takes 0 as "never"."""
        return max(self.end - self.clock(), 0.001)

    def passed(self) -> bool:
        """Say whether the moment is over."""
        return self.clock() >= self.end

    @staticmethod
    def clock() -> float:
        """Return the seconds of a clock that never jumps."""
        return time.monotonic()  # noqa: TID251 - a deadline is about real time


class Login(AuthBase):
    """The credentials of a session, and the words that name them in messages.

    Set even when there are none: without it `requests` would look for some in `~/.netrc`.
    """

    def __init__(self, header: str, words: str) -> None:
        self._header = header
        self.words = words

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Put the credentials into a request."""
        if self._header:
            request.headers["Authorization"] = self._header
        return request


class BoundedRetry(Retry):
    """Retries that know the deadline: no wait and no further attempt goes beyond it."""

    deadline: Deadline

    @classmethod
    def until(cls, deadline: Deadline) -> Self:
        """Return the policy of all requests: reading changes nothing, so a POST is repeated as a GET is."""
        policy = cls(
            total=3, connect=1, read=1, status=3, other=0, allowed_methods=None, status_forcelist=RETRY_STATUSES,
            raise_on_status=False, backoff_factor=0.3,
        )  # fmt: skip
        policy.deadline = deadline
        return policy

    def new(self, **kw: object) -> Self:
        """Return a changed copy, as urllib3 asks for one at each attempt."""
        fresh = super().new(**kw)
        fresh.deadline = self.deadline
        return fresh

    def is_exhausted(self) -> bool:
        """Say whether another attempt is out of the question."""
        return super().is_exhausted() or self.deadline.passed()

    def sleep(self, response: urllib3.BaseHTTPResponse | None = None) -> None:
        """Wait as the server asks or as the backoff says, at most until the deadline."""
        asked = self.get_retry_after(response) if response is not None else None
        time.sleep(min(asked or self.get_backoff_time(), self.deadline.left()))


class Body:
    """The body of an answer, read under the deadline however slowly it drips."""

    def __init__(self, raw: urllib3.HTTPResponse, deadline: Deadline) -> None:
        self._raw = raw
        self._deadline = deadline

    def stream(self, _size: int, decode_content: bool = True) -> Iterator[bytes]:
        """Yield what has arrived, as requests asks for it."""
        size = 0
        packed = decode_content and "Content-Encoding" in self._raw.headers  # else urllib3 copies all of it for nothing
        while chunk := self._raw.read1(_CHUNK, decode_content=packed):
            size += len(chunk)
            if self._deadline.passed():
                raise requests.ReadTimeout("the body did not end in time")
            if size > MAX_BODY:
                raise requests.exceptions.ContentDecodingError(f"the body is larger than {MAX_BODY >> 30} GiB")
            yield chunk

    def close(self) -> None:
        """Give up the connection."""
        self._raw.close()

    def release_conn(self) -> None:
        """Return the connection to its pool."""
        self._raw.release_conn()


class Adapter(HTTPAdapter):
    """Sends each request within the deadline, reads its whole answer, and raises SourceError unless it is good."""

    def __init__(self, site: "Site", workers: int) -> None:
        self._site = site
        super().__init__(pool_connections=2, pool_maxsize=workers, max_retries=BoundedRetry.until(site.deadline))

    def send(  # noqa: PLR0913, PLR0917 - the signature is that of requests
        self,
        request: requests.PreparedRequest,
        stream: bool = False,  # noqa: ARG002 - the whole answer is read here
        timeout: float | tuple[float, float] | tuple[float, None] | None = None,  # noqa: ARG002 - the deadline rules
        verify: bool | str = True,
        cert: bytes | str | tuple[bytes | str, bytes | str] | None = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """Send a request and return its answer, complete and good."""
        left = self._site.deadline.left()
        try:
            response = super().send(request, True, (min(left, CONNECT_SECONDS), left), verify, cert, proxies)
            response.raw = Body(response.raw, self._site.deadline)
            with contextlib.closing(response):  # gives a connection whose answer is complete back to its pool
                _ = response.content
        except requests.RequestException as error:
            raise self._site.failure(request, error) from error
        self._site.check(response)
        return response


class Api(NamedTuple):
    """What kind of server is spoken to: its name, the setting that says how to reach it, and what its base URL may lack."""

    name: str
    setting: str
    hint: str


PROMETHEUS = Api(
    "a Prometheus",
    "prometheus",
    "set the base URL with its path (Mimir: /prometheus, VictoriaMetrics cluster: /select/0/prometheus)",
)


@dataclass(frozen=True)
class Site:
    """A server that is spoken to: its base URL without credentials, how we log in, and until when we wait."""

    url: str
    login: Login
    deadline: Deadline
    api: Api = PROMETHEUS

    def late(self, what: str) -> SourceError:
        """Return the error for an answer that did not come in time."""
        return SourceError(
            f"{self.url}: no complete answer within {self.deadline.seconds:g} s while asking for {what},"
            " ask for a shorter window, relieve the server or raise the timeout"
        )

    def failure(self, request: requests.PreparedRequest, error: requests.RequestException) -> SourceError:
        """Put into words why there is no answer."""
        if self.deadline.passed() or isinstance(error, requests.ReadTimeout):
            return self.late(asked(request))
        if isinstance(error, requests.exceptions.SSLError):
            return SourceError(f"{self.url}: {_tls(_root(error))}")
        if isinstance(error, requests.exceptions.ProxyError):
            return SourceError(f"{self.url}: the proxy did not answer, check HTTP_PROXY, HTTPS_PROXY and NO_PROXY")
        if isinstance(error, requests.ConnectTimeout):
            wait = min(self.deadline.seconds, CONNECT_SECONDS)
            return SourceError(f"{self.url}: no connection within {wait:g} s, check host, port and firewall")
        root = _root(error)
        if isinstance(error, requests.exceptions.ChunkedEncodingError | requests.exceptions.ContentDecodingError):
            plain = isinstance(root, ConnectionResetError) and self.url.startswith("http:")
            hint = ", with https:// if the server speaks TLS" if plain else ""
            return SourceError(f"{self.url}: the answer broke off or is damaged ({root}), try again{hint}")
        if isinstance(root, ConnectionRefusedError):
            return SourceError(f"{self.url}: connection refused, is the server running and the port right")
        if "resolve" in str(error):
            return SourceError(f"{self.url}: the name {urlsplit(self.url).hostname} does not resolve, check the host")
        hint = _CERTIFICATE if self.url.startswith("https") else "is this an HTTP server, does it want https://"
        return SourceError(f"{self.url}: the connection failed ({shortened(str(root))}), {hint}")

    def check(self, response: requests.Response) -> None:
        """Raise SourceError unless an answer looks like one of the API: status 200 and JSON."""
        status, body = response.status_code, response.content
        if 300 <= status < 400:
            target = config.without_password(response.headers.get("Location", "nowhere")).partition("?")[0]
            raise SourceError(f"{self.url}: redirects to {target}, set the final address (a login page does this too)")
        if status in {401, 403}:
            raise SourceError(f"{self.url}: {status} {_reason(response)}, {self.login.words}")
        if _is_html(response):
            raise SourceError(
                f"{self.url}: answers {status} with a web page{_title(body)} where JSON of the API belongs,"
                " is this the base URL, is a proxy or login page in between"
            )
        if status == 404:
            raise SourceError(
                f"{self.url}: 404 {_reason(response)} for {urlsplit(response.url).path}{_because(body)}, {self.api.hint}"
            )
        if status != 200:
            raise SourceError(f"{self.url}: {status} {_reason(response)}: {said(body)} (asked for {_asked(response)})")
        if not body:
            raise SourceError(f"{self.url}: the answer is empty where JSON belongs, is this {self.api.name} server")


def connect(server: config.Server, api: Api = PROMETHEUS, scheme: str = "Bearer") -> tuple[requests.Session, Site]:
    """Open a session to a server; its deadline starts now. `scheme` is what stands before a token.

    Raises UsageError where no URL is given and ProblemsError where a file of the settings cannot be used.
    """
    if not server.url:
        raise UsageError(f"{api.setting}.url: no server is named, write for example http://prometheus:9090")
    parts = urlsplit(server.url)
    url = config.without_password(server.url).rstrip("/")
    login = _login(server, parts.username, parts.password, scheme)
    site = Site(url, login, Deadline.after(seconds(server.timeout)), api)
    session = requests.Session()
    session.headers.update({"Accept-Encoding": "identity", "User-Agent": f"rca/{__version__}", **server.headers})
    session.auth = site.login
    _check_files(server)
    session.verify = server.ca_file or True
    if server.cert_file:
        session.cert = (server.cert_file, server.key_file) if server.key_file else server.cert_file
    return session, site


def _login(server: config.Server, user: str | None, password: str | None, scheme: str) -> Login:
    if server.bearer_token_file:
        token = config.secret(server.bearer_token_file, "the bearer token")
        return Login(f"{scheme} {token}", f"the bearer token of {server.bearer_token_file} was not accepted, renew it")
    if server.username:
        secret = config.secret(server.password_file, "the password")
        words = f"user {server.username} with the password of {server.password_file} was not accepted, check both"
        return Login(_basic(server.username, secret), words)
    if user:
        words = f"user {unquote(user)} with the password in the URL was not accepted, check both"
        return Login(_basic(unquote(user), unquote(password or "")), words)
    if any(name.lower() == "authorization" for name in server.headers):
        return Login("", "the header Authorization was not accepted, renew it")
    return Login("", "no credentials were sent, set bearer_token_file, or username and password_file")


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _check_files(server: config.Server) -> None:
    """Raise ProblemsError where TLS files cannot be loaded: requests would tell only at the first request, obscurely."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    checks: tuple[tuple[str, str, Callable[[], None]], ...] = (
        (server.ca_file, "CA certificates", lambda: context.load_verify_locations(server.ca_file)),
        (server.cert_file, "a client certificate and its key in PEM",
         lambda: context.load_cert_chain(server.cert_file, server.key_file or None, password="")),
    )  # fmt: skip
    for path, what, load in checks:
        try:
            if path:
                load()
        except ssl.SSLError as error:
            raise ProblemsError((Problem(path, f"must hold {what}, {_words(error)}"),)) from error
        except OSError as error:
            raise ProblemsError(
                (Problem(path, f"cannot be read, {(error.strerror or str(error)).lower()}"),)
            ) from error


def asked(request: requests.PreparedRequest) -> str:
    """Name what a request asks for: its query, else its path.

    >>> asked(requests.Request("POST", "http://h/api/v1/query", data={"query": "up[5m]"}).prepare())
    'up[5m]'
    """
    body = request.body.decode(errors="replace") if isinstance(request.body, bytes) else request.body
    form = parse_qs(body) if isinstance(body, str) else {}
    query = form.get("query", form.get("q"))
    return shortened(query[0]) if query else urlsplit(request.url or "").path


def _asked(response: requests.Response) -> str:
    return asked(response.request)


class _Refusal(msgspec.Struct):
    """The part of an API answer that says what went wrong, whichever of the two an API calls it."""

    error: str = ""
    message: str = ""


def said(body: bytes) -> str:
    """Return what a server says in an answer that is no success, in one line.

    >>> said(b'{"status": "error", "errorType": "bad_data", "error": "no such function"}')
    'no such function'
    """
    try:
        refusal = msgspec.json.decode(body, type=_Refusal)
        text = refusal.error or refusal.message
    except msgspec.DecodeError:
        text = body[:1000].decode(errors="replace")
    return shortened(text) or "no reason given"


def _because(body: bytes) -> str:
    """Return the reason that a JSON answer gives, in front of which a colon belongs; nothing for all else."""
    return f": {said(body)}" if body[:1] == b"{" and said(body) != "no reason given" else ""


def shortened(text: str, width: int = 200) -> str:
    r"""Bring a text of unknown origin into one printable line.

    >>> shortened("a\n  b\x1b[31m")
    'a b?[31m'
    """
    line = " ".join("".join(letter if letter.isprintable() or letter.isspace() else "?" for letter in text).split())
    return line if len(line) <= width else f"{line[: width - 3]}..."


def _reason(response: requests.Response) -> str:
    return shortened(str(response.reason or ""), 60).lower() or "without a reason"


def _is_html(response: requests.Response) -> bool:
    start = response.content[:200].lstrip().lower()
    return "text/html" in response.headers.get("Content-Type", "") or start.startswith((b"<!doctype html", b"<html"))


def _title(body: bytes) -> str:
    found = re.search(r"<title[^>]*>([^<]*)</title", body[:20000].decode(errors="replace"), re.IGNORECASE)
    title = shortened(html.unescape(found.group(1)), 60) if found else ""
    return f" ({title})" if title else ""


def _root(error: BaseException) -> BaseException:
    """Return the innermost reason of an error that libraries have wrapped."""
    for _ in range(12):
        inner = getattr(error, "reason", None) or next((a for a in error.args if isinstance(a, BaseException)), None)
        inner = inner if isinstance(inner, BaseException) else error.__cause__ or error.__context__
        if inner is None:
            break
        error = inner
    return error


def _words(error: BaseException) -> str:
    return _REASON.sub("", str(error)).strip().rstrip(".").lower() or type(error).__name__


def _tls(root: BaseException) -> str:
    """Say what a TLS failure means."""
    text = _words(root)
    if "certificate verify failed" in text:
        return f"the server's certificate is not trusted ({text}), set ca_file to the CA that signed it"
    if "wrong version number" in text or "record layer failure" in text:
        return f"the server does not speak TLS ({text}), write http://"
    return f"the TLS handshake failed ({text}), {_CERTIFICATE}"
