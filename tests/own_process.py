"""Our program as a real process beside real servers, and time scaled down so that hours pass in minutes."""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import servers

PROGRAM = [sys.executable, "-m", "rca.cli"]
RULES = Path(__file__).resolve().parents[1] / "rules"


def scaled_rules(folder: Path, hold: str = "10s", rate: str = "15s") -> Path:
    """Copy the shipped rules, each holding after `hold`, and rates of minutes taken over `rate`."""
    copied = Path(shutil.copytree(RULES, folder))
    for path in copied.rglob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        text = re.sub(r"^for: .*$", f"for: {hold}", text, flags=re.MULTILINE)
        path.write_text(re.sub(r"\[[125]m\]", f"[{rate}]", text), encoding="utf-8")
    return copied


class Own:
    """One of our long-lived commands; its log goes to `FOLDER/NAME.log`."""

    def __init__(self, folder: Path, name: str, port: int, arguments: list[str]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / f"{name}.log"
        self._port = port
        self._command = [*PROGRAM, *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, ready: bool = True) -> None:
        """Start it, and wait until it says that it is ready."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if ready:
            servers.await_ready(self._process, self.url, self._port, self.log)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """End it as a power cut does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int:
        """End it as an administrator does, and return its exit status."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            return self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def said(self) -> str:
        """Return its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")


@contextmanager
def running(own: Own) -> Iterator[Own]:
    """Run it until the block ends."""
    own.start()
    try:
        yield own
    finally:
        own.kill()


def serve(folder: Path, settings: Mapping[str, object], *flags: str, port: int | None = None) -> Own:
    """Return `rca serve` with settings, on a port of its own unless told which; `start` it."""
    port = port or servers.free_port()
    config = folder / "rca.yaml"
    store = {"store": f"sqlite:///{folder / 'rca.db'}", "listen": f"127.0.0.1:{port}"}
    config.write_bytes(msgspec.json.encode({**store, **settings}))  # JSON is YAML
    return Own(folder, "serve", port, ["serve", "--config", str(config), *flags])


def awaited(look: Callable[[], object], seconds: float, what: str) -> float:
    """Wait until something comes true, and return how many seconds that took."""
    start = time.monotonic()
    while not look():
        assert time.monotonic() - start < seconds, f"within {seconds:g} s: {what}"
        time.sleep(0.1)
    return time.monotonic() - start
