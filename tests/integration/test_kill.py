"""The server is killed again and again while alerts come in: what was acknowledged is looked into, and once."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from own_server import alert, delivery
from servers import free_port

from rca.archive import Archive

KILLS = int(os.environ.get("RCA_KILLS", "5"))
TESTS = Path(__file__).resolve().parents[1]
SCRIPT = textwrap.dedent("""
    import sys
    import time
    from pathlib import Path
    from own_server import Engine, backend
    from rca.config import Settings
    from rca.serve import serve

    class Slow(Engine):
        def ask(self, question, keep):
            time.sleep(0.05)
            self.clock = time.time()
            return super().ask(question, keep)

        def now(self):
            return time.time()

    serve(backend(Path(sys.argv[1]), Slow()), Settings(listen=sys.argv[2]))
""")


class Senders:
    """Alertmanagers: each sends what is new until it is told that it arrived, and notes that."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/api/v1/alerts"
        self._over = threading.Event()
        self.arrived: set[str] = set()
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(4)]

    def _send(self, sender: int) -> None:
        number = 0
        while not self._over.is_set():
            told = [alert(sender << 32 | number << 8 | part, job_name="llama-70b") for part in range(3)]
            try:
                answer = requests.post(self._url, json=delivery(*told), timeout=10)
            except requests.RequestException:
                time.sleep(0.05)
                continue
            if answer.status_code == 202:
                self.arrived |= {one["fingerprint"] for one in told}
                number += 1

    @contextmanager
    def sending(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        yield
        self._over.set()
        for thread in self._threads:
            thread.join(30)


@contextmanager
def child(folder: Path, listen: str) -> Iterator[subprocess.Popen]:
    """Run the server until it is ready, and kill it in the end, if it still lives."""
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder), listen], env=environment)
    try:
        end = time.monotonic() + 60.0
        while not ready(f"http://{listen}/-/ready"):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def ready(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).status_code == 200
    except requests.RequestException:
        return False


@pytest.mark.slow
def test_what_was_acknowledged_is_looked_into_once(tmp_path: Path) -> None:
    chance, listen = random.Random(7), f"127.0.0.1:{free_port()}"
    senders = Senders(f"http://{listen}")
    with senders.sending():
        for _ in range(KILLS):
            with child(tmp_path, listen) as process:
                time.sleep(chance.uniform(0.0, 1.5))
                process.send_signal(signal.SIGKILL)
    archive = Archive(f"sqlite:///{tmp_path / 'rca.db'}")
    with child(tmp_path, listen) as process:
        end = time.monotonic() + 60.0
        while archive.queued():
            assert time.monotonic() < end
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    with archive._reading() as connection:
        rows = connection.exec_driver_sql("select body, state, report, said from alerts").fetchall()
        reports = {row[0] for row in connection.exec_driver_sql("select id from reports")}
    fingerprints = Counter(str(body).split('"fingerprint":"')[1][:16] for body, *_ in rows)
    assert len(senders.arrived) > 10
    assert senders.arrived <= set(fingerprints)
    assert set(fingerprints.values()) == {1}
    assert all((state, said) == ("done", "") and report in reports for _, state, report, said in rows)
    assert [(one.cause, one.state) for one in archive.incidents()] == [("gpu_thermal_throttling", "open")]
    archive.close()
