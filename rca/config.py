"""A deployment's settings, one typed struct: the file `rca.yaml`, then the environment, then flags, the last wins.

Secrets are never settings, only the files that hold them are. Paths in the file are relative to its folder, paths in
the environment and in flags to the working directory.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, cast
from urllib.parse import urlsplit

import msgspec

from rca import reader
from rca.errors import Problem, ProblemsError, UsageError, suggestion
from rca.library import Override, Written
from rca.model import Duration
from rca.plain import lowered

Workers = Annotated[int, msgspec.Meta(ge=1, le=64)]
SERVERS = ("prometheus", "mlflow", "influx", "elasticsearch", "loki")
"""The settings that say how to reach a server."""
Given = Mapping[str, str | tuple[str, ...]]
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PATH = re.compile(r" - at `\$[^`]*`$")
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Server(Written, frozen=True, kw_only=True):
    """How to reach a Prometheus server: its base URL, and at most one way to log in.

    `timeout` covers all requests of one diagnosis together. `workers` is how many of them are under way at once.
    """

    url: str = ""
    bearer_token_file: str = ""
    username: str = ""
    password_file: str = ""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    timeout: Duration = "60s"
    workers: Workers = 4

    def __post_init__(self) -> None:
        if self.url:
            check_url(self.url)
        if self.bearer_token_file and (self.username or self.password_file):
            raise ValueError("'bearer_token_file' and 'username' are both set, log in with one of them")
        if bool(self.username) != bool(self.password_file):
            raise ValueError("'username' and 'password_file' belong together, write both or neither")
        if self.key_file and not self.cert_file:
            raise ValueError("'key_file' needs 'cert_file', write the client certificate too")
        for name, value in self.headers.items():
            if not _HEADER_NAME.fullmatch(name) or value != value.strip() or not value.isprintable():
                raise ValueError(f"header {name!r} is not valid HTTP, write a name and one line of text")

    def __repr__(self) -> str:
        return f"Server(url={without_password(self.url)!r}, headers={sorted(self.headers)})"


class Keeping(Written, frozen=True, kw_only=True):
    """How patient incidents are, and how long reports are kept.

    A cause that reports are sure of opens an incident after `for`, as rules have waited before; the incident closes
    when reports have denied it for `keep_firing_for`. `url` is where people find the pages, for links. `webhook` is an
    address that is told of incidents; it, and that of a webhook of Slack, may stand in a file, as who knows it may write.
    """

    hold: Duration = msgspec.field(name="for", default="1m")
    keep_firing_for: Duration = "5m"
    retention: Duration = "72h"
    sweep: Duration = "5m"
    url: str = ""
    webhook: str = ""
    webhook_file: str = ""
    slack_file: str = ""

    def __post_init__(self) -> None:
        if self.url:
            check_url(self.url)
        if self.webhook:
            check_address(self.webhook)
        if self.webhook and self.webhook_file:
            raise ValueError("'webhook' and 'webhook_file' are both set, write one of them")

    def __repr__(self) -> str:
        return f"Keeping(hold={self.hold!r}, keep_firing_for={self.keep_firing_for!r}, retention={self.retention!r})"


class Serving(Written, frozen=True, kw_only=True):
    """Who may ask our own server, and how much.

    With a token or a user set, all but the health checks asks for one of them. `cert_file` and `key_file` turn on TLS.
    `max_body` is in bytes, `max_waiting` in alerts that nobody has looked into yet, `max_diagnoses` are those on demand
    at once, `max_rate` counts requests a second of one address.
    """

    token_file: str = ""
    username: str = ""
    password_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    max_body: Annotated[int, msgspec.Meta(ge=1024, le=1 << 30)] = 10 << 20
    max_waiting: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] = 10_000
    max_diagnoses: Annotated[int, msgspec.Meta(ge=1, le=32)] = 2
    max_rate: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 500

    def __post_init__(self) -> None:
        if bool(self.username) != bool(self.password_file):
            raise ValueError("'username' and 'password_file' belong together, write both or neither")
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("'cert_file' and 'key_file' belong together, write both or neither")
        if ":" in self.username:
            raise ValueError("'username' holds a colon, which basic authentication cannot send, write another")


class Settings(Written, frozen=True, kw_only=True):
    """Everything that a deployment may set; every key is optional.

    `labels` are tried before the aliases of `entities.yaml`, `signals` before the shipped queries. `disable` lists
    ids of rules, `overrides` change numbers of rules where entity labels match.
    """

    prometheus: Server = Server()
    mlflow: Server = Server()
    influx: Server = Server()
    elasticsearch: Server = Server()
    loki: Server = Server()
    topology: str = ""
    rules: str = ""
    rules_extra: tuple[str, ...] = ()
    labels: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    signals: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    disable: tuple[str, ...] = ()
    overrides: tuple[Override, ...] = ()
    window: Duration = "15m"
    baseline: Duration = "1h"
    interval: Duration = "30s"
    alertmanagers: tuple[str, ...] = ()
    listen: str = "127.0.0.1:9797"
    store: str = "sqlite:///rca.db"
    serve: Serving = Serving()
    incidents: Keeping = Keeping()

    def __post_init__(self) -> None:
        for url in self.alertmanagers:
            check_url(url)
        check_listen(self.listen)
        for label, aliases in self.labels.items():
            wrong = [alias for alias in aliases if not _LABEL.fullmatch(alias)]
            if wrong:
                raise ValueError(f"'{wrong[0]}' in labels of '{label}' is not a label name, write for example my_node")


def check_url(url: str) -> None:
    """Raise ValueError for what cannot be the base URL of a server.

    >>> check_url("localhost:9090")
    Traceback (most recent call last):
    ValueError: 'localhost:9090' has no http:// or https://, write http://localhost:9090
    """
    shown = without_password(url)
    parts = urlsplit(url)
    if "://" not in url:
        raise ValueError(f"{shown!r} has no http:// or https://, write http://{shown}")
    if parts.scheme not in {"http", "https"}:
        raise ValueError(f"{shown!r} begins with {parts.scheme}://, write http:// or https://")
    try:
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{shown!r} has no valid port, write a number up to 65535") from error
    if not parts.hostname or port == 0 or any(letter.isspace() for letter in url):
        raise ValueError(f"{shown!r} names no host, write for example http://prometheus:9090")
    if "?" in url or "#" in url:
        base = shown.partition("?")[0].partition("#")[0].removesuffix("/graph")
        raise ValueError(f"{shown!r} has a query, write the base URL alone, {base}")
    if "/api/v1" in parts.path:
        raise ValueError(f"{shown!r} names an endpoint, write the base URL alone, {shown.partition('/api/v1')[0]}")


def check_address(url: str) -> None:
    """Raise ValueError for what cannot be posted to; the message does not repeat it, as it may be a secret.

    >>> check_address("hooks.example/secret")
    Traceback (most recent call last):
    ValueError: the address of the webhook is none, write https:// and all that follows
    """
    try:
        parts = urlsplit(url)
        well = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        well = False
    if not well or any(letter.isspace() for letter in url):
        raise ValueError("the address of the webhook is none, write https:// and all that follows")


def without_password(url: str) -> str:
    """Return a URL without the user and password in it.

    >>> without_password("https://me:secret@host:9090/prometheus")
    'https://host:9090/prometheus'
    """
    return re.sub(r"(?<=://)[^/?#]*@|^[^/?#:]*:[^/?#]*@", "", url)


def check_listen(listen: str) -> None:
    """Raise ValueError for what is not HOST:PORT.

    >>> check_listen("9797")
    Traceback (most recent call last):
    ValueError: '9797' is not HOST:PORT, write for example 127.0.0.1:9797
    """
    host, colon, port = listen.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError(f"{listen!r} is not HOST:PORT, write for example 127.0.0.1:9797")


def settle(path: Path | None, environ: Mapping[str, str], flags: Given) -> Settings:
    """Read a deployment's settings: the file at `path`, then `RCA_*` of the environment, then flags.

    The keys of `flags` are dotted (`prometheus.url`). A list replaces the list before it. Raises ProblemsError for the
    file and UsageError for a variable or flag.
    """
    settings = from_file(path) if path is not None else Settings()
    variables = {variable(key): key for key in keys()}
    from_environ = [
        (variables[name], text, name) for name, text in sorted(environ.items()) if name in variables and text
    ]
    from_flags = [(key, value, flag(key)) for key, value in flags.items()]
    return replaced(settings, from_environ + from_flags)


def from_file(path: Path) -> Settings:
    """Read `rca.yaml`; its paths come out relative to its folder."""
    reading = reader.decode_file(path, str(path), Settings)
    if reading.value is None:
        raise ProblemsError(reading.problems)
    folder, settings = path.parent, reading.value
    servers = {
        key: msgspec.structs.replace(server, **{name: str(folder / text) for name, text in _paths(server)})
        for key, server in ((key, getattr(settings, key)) for key in SERVERS)
    }
    own = {name: str(folder / text) for name, text in _paths(settings.serve)}
    told = {name: str(folder / text) for name, text in _paths(settings.incidents)}
    rules = {name: str(folder / text) for name, text in _paths(settings)}
    return msgspec.structs.replace(
        settings,
        **servers,
        serve=msgspec.structs.replace(settings.serve, **own),
        incidents=msgspec.structs.replace(settings.incidents, **told),
        rules_extra=tuple(str(folder / text) for text in settings.rules_extra),
        **rules,
    )


def _paths(struct: Server | Serving | Keeping | Settings) -> Iterator[tuple[str, str]]:
    """Yield the fields of a struct that hold a path, where one is set."""
    for name in (*(name for name in struct.__struct_fields__ if name.endswith("_file")), "topology", "rules"):
        if getattr(struct, name, ""):
            yield name, getattr(struct, name)


def keys() -> tuple[str, ...]:
    """Return the dotted keys that the environment and flags may set: all but tables, which belong into the file."""
    inner = [f"{server}.{name}" for server in SERVERS for name in Server.__struct_fields__]
    inner += [f"serve.{name}" for name in Serving.__struct_fields__]
    outer = [
        name
        for name in Settings.__struct_fields__
        if name not in {*SERVERS, "labels", "signals", "overrides", "incidents", "serve"}
    ]
    return (*inner, *outer)


def variable(key: str) -> str:
    """Name the environment variable of a key.

    >>> variable("prometheus.bearer_token_file")
    'RCA_PROMETHEUS_BEARER_TOKEN_FILE'
    """
    return "RCA_" + key.replace(".", "_").upper()


def flag(key: str) -> str:
    """Name the flag of a key.

    >>> flag("prometheus.url"), flag("prometheus.ca_file"), flag("window")
    ('--prometheus', '--prometheus-ca-file', '--window')
    """
    return "--" + key.removesuffix(".url").replace(".", "-").replace("_", "-")


def replaced(settings: Settings, given: Sequence[tuple[str, str | tuple[str, ...], str]]) -> Settings:
    """Set keys in turn, each given as (key, value, the place that says so).

    Lists and headers are written with commas where they come as one text. Raises UsageError with the place after which
    the settings no longer fit together.

    >>> replaced(Settings(), [("disable", "python_gc, nic_degraded", "RCA_DISABLE")]).disable
    ('python_gc', 'nic_degraded')
    >>> replaced(Settings(), [("prometheus.workers", "none", "RCA_PROMETHEUS_WORKERS")])
    Traceback (most recent call last):
    rca.errors.UsageError: RCA_PROMETHEUS_WORKERS: expected `int`, got `str`
    """
    tree = cast("dict[str, dict[str, object]]", msgspec.to_builtins(settings))
    wrong: UsageError | None = None
    for key, value, place in given:
        if key not in keys():
            raise UsageError(f"{place}: {key!r} is no setting{suggestion(key, keys())}")
        outer, _, name = key.rpartition(".")
        where = tree[outer] if outer else cast("dict[str, object]", tree)
        where[name] = _split(value, where[name], place)
        try:
            settings, wrong = msgspec.convert(tree, Settings, strict=False), None
        except msgspec.ValidationError as error:
            wrong = wrong or UsageError(f"{place}: {_said(error, value)}")
    if wrong is not None:
        raise wrong
    return settings


def _split(value: str | tuple[str, ...], before: object, place: str) -> object:
    """Bring a text into the shape that the setting had before."""
    if isinstance(before, dict):
        parts = value.split(",") if isinstance(value, str) else value
        pairs = [part.partition("=") for part in parts if part.strip()]
        if any(not equals for _, equals, _ in pairs):
            raise UsageError(f"{place}: a header is written name=value, for example X-Scope-OrgID=team")
        return {name.strip(): text.strip() for name, _, text in pairs}
    if isinstance(before, list | tuple) and isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _said(error: msgspec.ValidationError, value: object) -> str:
    text = _PATH.sub("", str(error))
    if "matching regex" in text:  # of all settings, only durations have a pattern
        return f"{value!r} is not a duration, write for example 15m"
    return lowered(text)


def secret(path: str, what: str) -> str:
    """Read a secret from its file, without the line end that editors add.

    Raises ProblemsError where the file cannot be read, is empty or holds more than one line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ProblemsError((Problem(path, f"{what} cannot be read, {reason}"),)) from error
    except UnicodeDecodeError as error:
        raise ProblemsError((Problem(path, f"{what} is not text, write it as UTF-8"),)) from error
    if not text or not text.isprintable():
        raise ProblemsError((Problem(path, f"{what} must be one line of text, found {len(text.splitlines())}"),))
    return text
