"""The server as a process: it looks in another one, tells a webhook, and leaves nothing behind when it ends."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import endurance
import requests
import servers
from own_process import Own, awaited, running, scaled_rules, serve


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that look."""
    found = [one for path in Path(f"/proc/{pid}/task").glob("*/children") for one in path.read_text().split()]
    return [one for one in map(int, found) if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def deliver(server: Own, fingerprint: str, starts: float) -> None:
    told = endurance.body(fingerprint, starts)
    assert requests.post(f"{server.url}/api/v1/alerts", data=told, timeout=10).status_code == 202


def test_what_looks_may_be_killed_and_ends_with_the_server_and_a_webhook_is_told_once(tmp_path: Path) -> None:
    servers.binary("prometheus")
    with (
        endurance.past(tmp_path) as (source, starts),
        servers.serving(lambda request: request.reply(200, b"ok")) as hook,
    ):
        (tmp_path / "hook").write_text(f"{hook.url}/secret\n")
        settings = {
            **endurance.SCALED, "prometheus": {"url": source}, "rules": str(scaled_rules(tmp_path / "rules")),
            "incidents": {"webhook_file": "hook"},
        }  # fmt: skip
        server = serve(tmp_path, settings)
        with running(server):
            [first] = children(server.pid)
            deliver(server, "a" * 16, starts)
            awaited(lambda: hook.requests, 60.0, "the webhook is told")
            os.kill(first, signal.SIGKILL)
            answer = requests.post(f"{server.url}/api/v1/diagnose", json={}, timeout=60)
            assert answer.status_code == 200
            [second] = children(server.pid)
            server.kill()
            awaited(lambda: not alive(second), 10.0, "what looks ends with the server")
        with running(server):
            [third] = children(server.pid)
            deliver(server, "b" * 16, starts)
            awaited(lambda: endurance.waiting(server.url) == 0, 60.0, "the second alert is looked into")
            asking = threading.Thread(target=_ask, args=(server.url,))
            asking.start()
            time.sleep(0.3)
            start = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - start < 12.0
            asking.join(20)
            awaited(lambda: not alive(third), 5.0, "what looks ends with the server")
        [told] = [json.loads(body) for *_, body in hook.requests]
        assert (told["event"], told["incident"]["cause"]) == ("opened", endurance.SURE[0])
        assert "secret" not in server.said()
        assert "Traceback" not in server.said()


def _ask(url: str) -> None:
    try:
        requests.post(f"{url}/api/v1/diagnose", json={}, timeout=60)
    except requests.RequestException:
        return
