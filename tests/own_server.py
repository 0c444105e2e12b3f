"""Our own server for tests: on loopback, over an archive in a file and an engine that is a plain function."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import requests
from small_library import entities
from test_incidents import ILL

from rca.archive import Archive
from rca.config import Keeping, Serving, Settings
from rca.library import Library
from rca.metrics import Metrics
from rca.model import Report, ReportWindow
from rca.plain import stamp
from rca.serve import gate
from rca.serve.server import Impatient, server
from rca.webhook import Answer, Backend, Question

NOW = 1_772_373_900.0
READY_SECONDS = 10.0


def report(at: float) -> Report:
    """Return a report of one sure cause, as of a time."""
    return msgspec.structs.replace(ILL, window=ReportWindow(stamp(at - 900.0), stamp(at), 15.0))


@dataclass
class Engine:
    """An engine that notes what it is asked, and answers with a report, or with the errors it was given first."""

    errors: list[Exception] = field(default_factory=list)
    asked: list[Question] = field(default_factory=list)
    announced: int = 0
    problem: str | None = None
    clock: float = NOW
    seen: bytes = b""

    def ask(self, question: Question, keep: bool) -> Answer:
        self.asked.append(question)
        if self.errors:
            raise self.errors.pop(0)
        return Answer(report(self.clock if question.at is None else question.at), self.seen if keep else b"")

    def announce(self) -> None:
        self.announced += 1

    def reload(self) -> str | None:
        return self.problem

    def now(self) -> float:
        return self.clock


@dataclass
class Slow(Engine):
    """An engine that says when it is asked, and answers when it is let go."""

    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    gone: threading.Event = field(default_factory=threading.Event)

    def ask(self, question: Question, keep: bool) -> Answer:
        self.entered.release()
        assert self.gone.wait(READY_SECONDS)
        return super().ask(question, keep)


def backend(folder: Path, engine: Engine, library: Library | None = None, name: str = "rca") -> Backend:
    """Return a backend whose archive lies in a folder."""
    known = library or Library(signals={}, entities=entities(), rules={})
    settings = Settings(incidents=Keeping(url="http://rca.example"))
    return Backend(
        Archive(f"sqlite:///{folder / 'rca.db'}"), engine.ask, engine.announce, engine.reload, lambda: known,
        lambda: settings, Metrics(NOW), engine.now, name=name,
    )  # fmt: skip


@contextmanager
def running(stands_on: Backend, serving: Serving | None = None, protocol: type[Impatient] = Impatient) -> Iterator[str]:
    """Run the server and yield its base URL."""
    own = server(stands_on, serving or Serving())
    own.config.http = protocol
    with socket.create_server(("127.0.0.1", 0)) as ear:
        thread = threading.Thread(target=own.run, kwargs={"sockets": [ear]})
        thread.start()
        wait_until(lambda: own.started)
        try:
            yield f"{'https' if own.config.is_ssl else 'http'}://127.0.0.1:{ear.getsockname()[1]}"
        finally:
            own.should_exit = True
            thread.join(READY_SECONDS)
            stands_on.archive.close()


def wait_until(condition, seconds: float = READY_SECONDS) -> None:
    """Wait for something that happens in another thread."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def delivery(*alerts: dict, **more: object) -> dict:
    """Return the body of a delivery as Alertmanager 0.28 sends it."""
    return {
        "version": "4", "groupKey": '{}:{alertname="Slow"}', "truncatedAlerts": 0, "status": "firing",
        "receiver": "rca", "groupLabels": {"alertname": "Slow"}, "commonLabels": {"alertname": "Slow"},
        "commonAnnotations": {}, "externalURL": "http://alertmanager:9093", "notification_reason": "new",
        "alerts": list(alerts), **more,
    }  # fmt: skip


def alert(number: int = 0, *, at: float = NOW - 600.0, **labels: str) -> dict:
    """Return one alert of a delivery."""
    return {
        "status": "firing", "labels": {"alertname": "Slow", **labels}, "annotations": {"summary": "slow"},
        "startsAt": stamp(at), "endsAt": "0001-01-01T00:00:00Z", "generatorURL": "http://prometheus/graph",
        "fingerprint": f"{number:016x}",
    }  # fmt: skip


def post(url: str, body: object, path: str = "/api/v1/alerts", **more: object) -> requests.Response:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return requests.post(url + path, data=data, headers={"Content-Type": "application/json"}, timeout=10, **more)


def get(url: str, path: str, **more: object) -> requests.Response:
    return requests.get(url + path, timeout=10, **more)


def refused(answer: requests.Response) -> tuple[int, str]:
    """Return the status of a refusal, and what it says; its body must be Prometheus' envelope."""
    told = answer.json()
    assert set(told) == {"status", "errorType", "error"}
    assert (told["status"], told["errorType"]) == ("error", gate.KINDS[answer.status_code])
    assert "Traceback" not in answer.text
    return answer.status_code, told["error"]


__all__ = [
 "NOW", "Engine", "Slow", "alert", "backend", "delivery", "get", "post", "refused", "replace", "report", "running", "wait_until",
]  # fmt: skip
