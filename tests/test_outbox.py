"""Receivers are told once, whatever is away, slow or restarted meanwhile."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from own_server import wait_until
from servers import Listener, Request, free_port, serving
from test_incidents import HEALTHY, ILL, PACE, START, at, ticks

from rca.archive import Archive
from rca.config import Keeping, Settings
from rca.messages import Told
from rca.metrics import Metrics
from rca.outbox import BACKOFF, KEPT, MOST_TRIES, Outbox


class Site:
    """An archive with its outbox, and a time that the test moves on."""

    def __init__(self, folder: Path, url: str, *, slack: str = "") -> None:
        (folder / "slack").write_text(slack or "none")
        self.now = START + 300.0
        self.archive = Archive(f"sqlite:///{folder / 'rca.db'}")
        self.metrics = Metrics(0.0)
        self.settings = Settings(incidents=Keeping(webhook=url, slack_file=str(folder / "slack") if slack else ""))
        self.outbox = Outbox(self.archive, self.metrics, lambda: self.settings, lambda: self.now)

    def feed(self, reports: list) -> None:
        for report, seconds in reports:
            self.archive.absorb(at(report, seconds), PACE)

    def count(self, name: str) -> int:
        lines = self.metrics.text("")[0].decode().splitlines()
        return round(
            sum(float(line.split()[-1]) for line in lines if line.startswith(f"rca_notifications_{name}_total "))
        )

    def close(self) -> None:
        self.outbox.stop()
        self.archive.close()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    sites: list[Site] = []

    def make(url: str, slack: str = "") -> Site:
        sites.append(Site(tmp_path, url, slack=slack))
        return sites[-1]

    yield make
    for site in sites:
        site.close()


def told(listener: Listener) -> list[str]:
    return [json.loads(body)["event"] for *_, body in listener.requests]


def well(request: Request) -> None:
    request.reply(200, b"ok", "text/plain")


def test_an_opening_and_an_end_are_told_once_to_each(made: Callable[..., Site]) -> None:
    with serving(well) as hook, serving(well) as slack:
        site = made(f"{hook.url}/hook?key=1", f"{slack.url}/services/T/B/x")
        site.feed(ticks(ILL, 0, 300))
        for _ in range(3):
            site.outbox.round()
        again = made(f"{hook.url}/hook?key=1", f"{slack.url}/services/T/B/x")  # as after a restart
        again.outbox.round()
        assert told(hook) == ["opened"]
        again.feed(ticks(HEALTHY, 330, 660))
        again.outbox.round()
        again.outbox.round()
        assert told(hook) == ["opened", "resolved"]
        assert {(command, path) for command, path, *_ in hook.requests} == {("POST", "/hook?key=1")}
        assert [json.loads(body)["text"].partition(":")[0] for *_, body in slack.requests] == ["Root cause", "Resolved"]
        assert (site.count("sent"), again.count("sent")) == (2, 2)


def test_who_is_away_is_told_later_and_less_and_less_often(made: Callable[..., Site]) -> None:
    status = 503
    with serving(lambda request: request.reply(status, b"full")) as hook:
        site = made(hook.url)
        site.feed(ticks(ILL, 0, 300))
        tried = []
        for _ in range(40):
            site.outbox.round()
            tried.append(len(hook.requests))
            site.now += BACKOFF[0]
        assert tried[:4] == [1, 2, 2, 3]
        assert tried[-1] == 6
        assert (site.count("sent"), site.count("failed"), site.count("dropped")) == (0, 6, 0)
        status, site.now = 204, site.now + BACKOFF[1]
        site.outbox.round()
        site.outbox.round()
        assert len(hook.requests) == 7
        assert site.count("sent") == 1
        assert {body for *_, body in hook.requests} == {hook.requests[0][3]}, "a repetition can be told"


def test_the_end_of_what_nobody_listened_to_is_told(made: Callable[..., Site]) -> None:
    site = made(f"http://127.0.0.1:{free_port()}")
    site.feed(ticks(ILL, 0, 300))
    site.outbox.round()
    site.feed(ticks(HEALTHY, 330, 660))
    with serving(well) as hook:
        site.settings = Settings(incidents=Keeping(webhook=hook.url))
        site.now += 600.0
        site.outbox.round()
        assert told(hook) == ["resolved"]
    site.now += KEPT
    site.outbox.round()


@pytest.mark.parametrize(("status", "again"), [(400, False), (404, False), (410, False), (302, False), (429, True)])
def test_what_is_refused_for_good_is_given_up(made: Callable[..., Site], status: int, again: bool) -> None:
    with serving(lambda request: request.reply(status, b"no_service", Retry_After="120")) as hook:
        site = made(hook.url)
        site.feed(ticks(ILL, 0, 300))
        site.outbox.round()
        site.now += 119.0
        site.outbox.round()
        assert len(hook.requests) == 1
        site.now += 2.0
        site.outbox.round()
        assert len(hook.requests) == 1 + again
        assert site.count("dropped") == int(not again)


def test_patience_ends(made: Callable[..., Site]) -> None:
    site = made(f"http://127.0.0.1:{free_port()}")
    site.feed(ticks(ILL, 0, 300))
    [incident] = site.archive.incidents()
    assert site.archive.tell("webhook", incident.id, None, Told("", 0.0, MOST_TRIES - 1))
    site.outbox.round()
    assert site.count("dropped") == 1
    assert site.archive.told("webhook")[incident.id].said == "open:0"


def test_two_processes_tell_once(made: Callable[..., Site]) -> None:
    held, free = threading.Event(), threading.Event()

    def slowly(request: Request) -> None:
        held.set()
        free.wait(10)
        well(request)

    with serving(slowly) as hook:
        one, other = made(hook.url), made(hook.url)
        one.feed(ticks(ILL, 0, 300))
        sending = threading.Thread(target=one.outbox.round)
        sending.start()
        assert held.wait(10)
        other.outbox.round()
        free.set()
        sending.join(10)
        other.outbox.round()
        assert told(hook) == ["opened"]


def test_no_address_is_in_a_log(made: Callable[..., Site]) -> None:
    with serving(lambda request: request.reply(500, f"cannot {request.path}".encode())) as hook:
        for number, url in enumerate((f"{hook.url}/secret", f"http://127.0.0.1:{free_port()}/secret")):
            site = made(url, f"{hook.url}/services/secret")
            site.now += 1e3 * number
            with structlog.testing.capture_logs() as logs:
                site.feed(ticks(ILL, 0, 300))
                site.outbox.round()
            assert logs
            assert "secret" not in str(logs)
            assert "127.0.0.1" not in str(logs)


def test_who_is_slow_holds_up_nobody(made: Callable[..., Site]) -> None:
    with serving(lambda request: request.wait(20.0)) as hook:
        site = made(hook.url)
        site.outbox.start()
        site.feed(ticks(ILL, 0, 300))
        start = time.monotonic()
        site.outbox.wake()
        assert time.monotonic() - start < 0.5
        wait_until(lambda: hook.requests)
        site.outbox.stop()
        assert time.monotonic() - start < 6.0


def test_an_error_ends_no_thread(made: Callable[..., Site], tmp_path: Path) -> None:
    with serving(well) as hook:
        site = made("", f"{hook.url}/slack")
        (tmp_path / "slack").unlink()
        site.feed(ticks(ILL, 0, 300))
        with structlog.testing.capture_logs() as logs:
            site.outbox.start()
            wait_until(lambda: logs)
        (tmp_path / "slack").write_text(f"{hook.url}/slack\n")
        site.outbox.wake()
        wait_until(lambda: site.count("sent") == 1)
