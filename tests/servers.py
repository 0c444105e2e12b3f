"""Real servers for tests: Prometheus from Debian's package, and small ones that misbehave on purpose.

All listen on loopback at a port that the system chose, and are stopped by their own pid or handle.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

READY_SECONDS = 60.0


def binary(name: str) -> str:
    """Find a program; where it is missing, a test fails in CI and is skipped elsewhere."""
    path = shutil.which(name)
    if path is None and os.environ.get("CI"):
        pytest.fail(f"{name} is not installed, CI installs it from Debian's package")
    if path is None:
        pytest.skip(f"{name} is not installed, apt-get install {name}")
    return path


def free_port() -> int:
    """Return a loopback port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    """Say whether nobody listens on a loopback port just now."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def backfill(openmetrics: Path, data: Path) -> None:
    """Write an OpenMetrics file into blocks; a server reads them when it starts."""
    command = [binary("promtool"), "tsdb", "create-blocks-from", "openmetrics", str(openmetrics), str(data)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, f"promtool failed on {openmetrics}: {done.stderr or done.stdout}"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Debian's Chromium; it is content with the little shared memory that a container has."""
    program = binary("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@contextmanager
def prometheus(
    folder: Path, openmetrics: Path | None = None, flags: Sequence[str] = (), config: str = "", scheme: str = "http"
) -> Iterator[str]:
    """Run a Prometheus with its data in `folder` and yield its base URL; old samples stay, however old.

    With TLS or a login (`--web.config.file` among the flags) it counts as ready when it answers at all.
    """
    program = binary("prometheus")
    folder.mkdir(parents=True, exist_ok=True)
    if openmetrics is not None:
        backfill(openmetrics, folder / "data")
    (folder / "prometheus.yml").write_text(config or "global: {scrape_interval: 15s}\n")
    port = free_port()
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.time=10y",
        f"--web.listen-address=127.0.0.1:{port}",
        *flags,
    ]
    url = f"{scheme}://127.0.0.1:{port}"
    with (folder / "log").open("wb") as log, running(command, log.fileno()) as process:
        await_ready(process, url, port, folder / "log")
        yield url


@contextmanager
def victoria_metrics(folder: Path, samples: str) -> Iterator[str]:
    """Run a VictoriaMetrics that holds samples (text exposition with milliseconds) and yield its base URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [binary("victoria-metrics"), f"-storageDataPath={folder / 'data'}", f"-httpListenAddr=127.0.0.1:{port}"]
    with (folder / "log").open("wb") as log, running(command, log.fileno()) as process:
        await_ready(process, url, port, folder / "log")
        for path, body in (("/api/v1/import/prometheus", samples.encode()), ("/internal/force_flush", None)):
            with urllib.request.urlopen(url + path, data=body, timeout=10) as response:
                response.read()
        yield url


@contextmanager
def alertmanager(folder: Path, config: Path, port: int | None = None) -> Iterator[str]:
    """Run an Alertmanager with a configuration and yield its base URL."""
    folder.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        binary("prometheus-alertmanager"),
        f"--config.file={config}",
        f"--storage.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    with (folder / "log").open("wb") as log, running(command, log.fileno()) as process:
        await_ready(process, url, port, folder / "log")
        yield url


@contextmanager
def postgresql() -> Iterator[str]:
    """Run a PostgreSQL and yield the URL of its database; it refuses to run as root, so root lends it another user."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    programs = programs or [Path(binary("initdb")).parent]
    user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="rca-postgresql-") as name:
        folder = Path(name)
        if user:
            shutil.chown(folder, "postgres")
        made = [*user, str(programs[-1] / "initdb"), "-D", f"{name}/data", "-U", "rca", "-A", "trust", "--no-sync"]
        done = subprocess.run(made, capture_output=True, text=True, check=False, cwd="/", timeout=120)
        assert done.returncode == 0, done.stderr or done.stdout
        command = [
            *user, str(programs[-1] / "postgres"), "-D", f"{name}/data", "-k", name, "-p", str(port),
            "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off",
        ]  # fmt: skip
        with (folder / "log").open("wb") as log, running(command, log.fileno()) as process:
            await_ready(process, f"https://127.0.0.1:{port}", port, folder / "log")  # ready when it accepts connections
            yield f"postgresql+psycopg://rca@127.0.0.1:{port}/postgres"


@contextmanager
def running(command: Sequence[str], log: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the block ends; stop it by its own handle."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def await_ready(process: subprocess.Popen[bytes], url: str, port: int, log: Path) -> None:
    """Wait until a server says that it is ready, or fail with the end of its log."""
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        if answers(url, port):
            return
        time.sleep(0.05)
    pytest.fail(f"the server at {url} did not get ready: {log.read_text(errors='replace')[-2000:]}")


def answers(url: str, port: int) -> bool:
    """Say whether a server is ready; behind TLS, whether it accepts connections."""
    try:
        if url.startswith("https"):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return True
        with urllib.request.urlopen(f"{url}/-/ready", timeout=1) as response:
            return bool(response.status == 200)
    except urllib.error.HTTPError as error:
        refused = error.code == 401
        error.close()
        return refused
    except OSError:
        return False


class Listener(ThreadingHTTPServer):
    """A small server whose handlers never outlive it, and which counts what it was asked."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, answer: Callable[["Request"], None]) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.answer = answer
        self.closing = threading.Event()
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Keep quiet about clients that went away: the tests make them."""


class Request(BaseHTTPRequestHandler):
    """One request to a `Listener`; `reply` and friends are for the test's answer function."""

    protocol_version = "HTTP/1.1"
    server: Listener

    def do_POST(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def _serve(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.command, self.path, dict(self.headers), self.body))
        self.server.answer(self)

    def reply(self, status: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
        """Answer in full."""
        self.send_response(status)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **given}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def wait(self, seconds: float) -> None:
        """Wait, but not beyond the end of the test."""
        self.server.closing.wait(seconds)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the library's
        """Write nothing."""


@contextmanager
def serving(answer: Callable[[Request], None]) -> Iterator[Listener]:
    """Run a server that answers each request with a function."""
    listener = Listener(answer)
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield listener
    finally:
        listener.closing.set()
        listener.shutdown()
        listener.server_close()
        thread.join()
