"""Raw series from a real Prometheus, or anything that speaks its API (Mimir, Thanos, VictoriaMetrics).

Samples come from instant queries with a range selector (`up[15m]` at the window's end): they have real timestamps, so
a gap is a gap. A range query would fill it for five minutes.
"""

import contextlib
import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

import msgspec
import requests
from prometheus_api_client import PrometheusConnect

from rca import config
from rca.errors import SourceError
from rca.library import Library
from rca.model import Floats, Snapshot, Window, seconds
from rca.sources import http, matrix
from rca.sources.assemble import Deployment, assemble
from rca.sources.blocks import nothing
from rca.sources.labels import Pool
from rca.sources.parallel import Job, in_parallel
from rca.sources.series import Block, Matcher, Selector

T = TypeVar("T")
MAX_POINTS = 11_000
SHORTEST_MS = 1_000
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_YEARS = re.compile(r"(?:(\d+)y)?(\S*)")
_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$])")
_TOO_MUCH = re.compile(
    r"too many samples|maxSamplesPerQuery|err-mimir-max-(chunks|fetched|estimated|query-length)|samples limit"
)


def quoted(text: str) -> str:
    r"""Write a PromQL string.

    >>> print(quoted('say "a\\b"'))
    "say \"a\\b\""
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def written(selector: Selector) -> str:
    """Write the vector selector of a selector.

    >>> print(written(Selector(("A", "B"), (Matcher("phase", "!=", "x"),), 0.0, 60.0)))
    {__name__=~"A|B",phase!="x"}
    """
    matchers = selector.matchers
    if len(selector.names) == 1:
        matchers = (Matcher("__name__", "=", selector.names[0]), *matchers)
    elif selector.names:
        pattern = "|".join(_SPECIAL.sub(r"\\\1", name) for name in selector.names)
        matchers = (Matcher("__name__", "=~", pattern), *matchers)
    return "{" + ",".join(f"{_label(label)}{op}{quoted(value)}" for label, op, value in matchers) + "}"


def _label(name: str) -> str:
    return name if _LABEL.fullmatch(name) else quoted(name)


class _Instant(msgspec.Struct):
    """One series of an instant vector: its time and value."""

    value: tuple[float, float]


class _Kept(msgspec.Struct):
    """What a Prometheus says of its storage: `15d`, `512MB`, or `15d or 512MB`."""

    retention: str = msgspec.field(name="storageRetention", default="")


class _Runtime(msgspec.Struct):
    """The answer that holds the retention."""

    data: _Kept


class _Piece(NamedTuple):
    """The answer to one question, still text, and the times that it is wanted for."""

    body: bytes
    first: float
    last: float


class PrometheusStore:
    """A `Store` over the HTTP API of one server, for one diagnosis: its deadline starts when it is created. What it
    reads may share its label sets, in `pool`, with what others have read.

    Small answers are asked for through prometheus-api-client. Bodies go over the same session by hand, because the
    client drops the server's warnings, puts a POST's query into the URL and makes lists of Python floats.
    """

    def __init__(self, server: config.Server, pool: Pool | None = None) -> None:
        self._session, self.site = http.connect(server)
        self._workers = server.workers
        self._client = PrometheusConnect(self.site.url, session=self._session, auth=self.site.login)
        self._session.mount(self.site.url, http.Adapter(self.site, server.workers))  # the client has mounted its own
        self._session.hooks["response"].append(self._heed)
        self._lock = threading.Lock()
        self._pool = pool or Pool()
        self._notes: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def names(self, start: float, end: float) -> frozenset[str]:
        """Return the metric names that have samples in [start, end], and some more where blocks are wider."""
        params = {"start": f"{start:.3f}", "end": f"{end:.3f}"}
        found = self._alone("the metric names", partial(self._client.get_label_values, "__name__", params))
        return frozenset(self._shaped(found or [], list[str]))

    def now(self) -> float:
        """Return the server's clock, unix seconds."""
        answer = self._alone("its clock", partial(self._client.custom_query, "vector(time())"))
        [instant] = self._shaped(answer, tuple[_Instant])
        return instant.value[1]

    def fetch(self, selectors: Sequence[Selector]) -> Iterator[tuple[int, Block]]:
        """Yield (index of the selector, its block) as answers arrive.

        They are decoded here, in one thread: those that ask would only wait for each other in it, and the server for
        them.
        """
        jobs = [Job(written(selector), partial(self._raw, selector)) for selector in selectors]
        for index, pieces in in_parallel(jobs, self._workers, self.site):
            blocks = [matrix.clipped(self._decoded(piece.body), piece.first, piece.last) for piece in pieces]
            yield index, matrix.joined(blocks) if blocks else nothing()

    def evaluate(self, query: str, times: Floats) -> Block:
        """Evaluate PromQL at evenly spaced times; a long grid is asked for in pieces."""
        step = float(times[1] - times[0]) if len(times) > 1 else 1.0
        pieces = [times[at : at + MAX_POINTS] for at in range(0, len(times), MAX_POINTS)]
        jobs = [Job(http.shortened(query), partial(self._range, query, piece, step)) for piece in pieces]
        blocks = dict(in_parallel(jobs, self._workers, self.site))
        return matrix.joined([blocks[index] for index in range(len(pieces))]) if pieces else nothing()

    def warnings(self) -> tuple[str, ...]:
        """Return what the server has said about its answers so far, sorted."""
        with self._lock:
            return tuple(sorted(f"{self.site.url}: {http.shortened(note, 400)}" for note in self._notes))

    def extent(self, now: float | None = None) -> tuple[float, float] | None:
        """Return the times between which the server has samples, None where it has none before `now` or cannot tell.

        Found by halving intervals with the question for metric names, some fifty small requests, so ask only to
        explain an empty answer. The ends are exact to a second inside the server's open block, to a block's ends
        elsewhere. VictoriaMetrics cannot tell: it looks at no times when an interval is long.
        """
        now = self.now() if now is None else now
        if not self.names(0.0, now) or self.names(0.0, 1.0):
            return None
        oldest = _edge(lambda time: not self.names(0.0, time), now)
        return oldest, now - _edge(lambda age: not self.names(now - age, now), now)

    def retention(self) -> float | None:
        """Return for how many seconds the server keeps samples, None where it does not say (only Prometheus does)."""
        url = f"{self.site.url}/api/v1/status/runtimeinfo"
        try:
            body = self._alone("its retention", lambda: self._session.get(url, verify=self._session.verify).content)
            told = msgspec.json.decode(body if isinstance(body, bytes) else b"", type=_Runtime).data.retention
        except (SourceError, msgspec.DecodeError):
            return None
        return kept(told)

    def _raw(self, selector: Selector) -> "list[_Piece]":
        """Fetch one selector, in halves of its time where the server finds it too much at once."""
        first, last = math.ceil(selector.start * 1000 - 0.001), math.floor(selector.end * 1000 + 0.001)
        return self._pieces(written(selector), first, last) if last >= first else []

    def _pieces(self, vector: str, first: int, last: int) -> "list[_Piece]":
        """Return the answers for [first, last] in milliseconds, in order of time.

        The range is a millisecond wider than asked: Prometheus 3 leaves its start out, Prometheus 2 does not.
        """
        query = f"{vector}[{last - first + 1}ms]"
        try:
            body = self._asked("query", {"query": query, "time": f"{last / 1000:.3f}"})
            return [_Piece(body, first / 1000, last / 1000)]
        except SourceError as error:
            if not _TOO_MUCH.search(str(error)) or last - first < SHORTEST_MS:
                raise
        middle = (first + last) // 2
        return self._pieces(vector, first, middle) + self._pieces(vector, middle + 1, last)

    def _range(self, query: str, times: Floats, step: float) -> Block:
        """Evaluate at times of one piece, in halves where the server finds it too much at once."""
        form = {"query": query, "start": f"{times[0]:.3f}", "end": f"{times[-1]:.3f}", "step": f"{step:.3f}"}
        try:
            return self._decoded(self._asked("query_range", form))
        except SourceError as error:
            if not _TOO_MUCH.search(str(error)) or len(times) == 1:
                raise
        half = len(times) // 2
        return matrix.joined([self._range(query, times[:half], step), self._range(query, times[half:], step)])

    def _asked(self, endpoint: str, form: dict[str, str]) -> bytes:
        """Ask one question whose answer is a range vector, and return the body of the answer."""
        return self._session.post(
            f"{self.site.url}/api/v1/{endpoint}",
            data={**form, "timeout": f"{math.ceil(self.site.deadline.left() * 1000)}ms"},
            verify=self._session.verify,
        ).content

    def _decoded(self, body: bytes) -> Block:
        """Decode an answer, and keep what the server says beside it."""
        block, notes = matrix.decode(body, self.site.url, self._pool)
        self._note(notes)
        return block

    def _heed(self, response: requests.Response, *_args: object, **_options: object) -> None:
        """Look at the answers that the client library gets, as it drops what the server says besides the data."""
        if response.request.method == "GET":
            self._note(matrix.notes(response.content, self.site.url))

    def _note(self, notes: Sequence[str]) -> None:
        with self._lock:
            self._notes.update(notes)

    def _alone(self, what: str, call: Callable[[], object]) -> object:
        """Ask one small question, under the deadline as all."""
        [(_, answer)] = in_parallel([Job(what, call)], 1, self.site)
        return answer

    def _shaped(self, answer: object, shape: type[T]) -> T:
        try:
            return msgspec.convert(answer, shape, strict=False)
        except msgspec.ValidationError as error:
            raise SourceError(f"{self.site.url}: the answer has another shape than the API's ({error})") from error


class PrometheusSource:
    """An open store of a server as a source."""

    def __init__(self, store: PrometheusStore, deployment: Deployment | None = None) -> None:
        self.store = store
        self.deployment = deployment

    def latest(self) -> float:
        """Return the server's clock."""
        return self.store.now()

    def snapshot(self, library: Library, window: Window) -> Snapshot:
        """Read all that the library's rules ask for."""
        return assemble(self.store, library.in_use(), window, self.deployment)


def kept(told: str) -> float | None:
    """Read the time out of a retention as Prometheus writes it, in seconds; None where only a size is told.

    >>> kept("2w1d or 512MiB"), kept("10y"), kept("512MiB")
    (1296000.0, 315360000.0, None)
    """
    for word in told.split():
        years, rest = _YEARS.findall(word)[0]
        with contextlib.suppress(ValueError):
            return float(years or 0) * 365 * 86400.0 + seconds(rest or "0s")
    return None


def _edge(empty: Callable[[float], bool], full: float) -> float:
    """Return the smallest number up to `full` (to a second) from which on `empty` no longer holds.

    >>> _edge(lambda number: number < 5, 16.0)
    5.0
    """
    low, high = 0.0, full
    while high - low > 1.0:
        middle = (low + high) / 2
        low, high = (middle, high) if empty(middle) else (low, middle)
    return high
