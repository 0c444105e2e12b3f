"""What a real Alertmanager delivers, as our own server takes it."""

import time
from pathlib import Path

import requests
import yaml
from own_server import Engine, backend, running, wait_until
from servers import alertmanager

from rca.config import Serving
from rca.plain import stamp

HOSTILE = 'a"b\'c {x=~".*"} <script>é'


def configured(folder: Path, url: str) -> Path:
    """Write the configuration of an Alertmanager that delivers to us."""
    webhook = {
        "url": f"{url}/api/v1/alerts", "max_alerts": 2, "send_resolved": True,
        "http_config": {"authorization": {"credentials_file": str(folder / "token")}},
    }  # fmt: skip
    route = {"receiver": "rca", "group_by": ["alertname"], "group_wait": "200ms", "group_interval": "500ms"}
    config = folder / "alertmanager.yml"
    config.write_text(yaml.safe_dump({"route": route, "receivers": [{"name": "rca", "webhook_configs": [webhook]}]}))
    return config


def fire(url: str, *labels: dict[str, str], ends: float) -> None:
    """Send alerts that began a minute ago to Alertmanager, as Prometheus does."""
    now = time.time()
    told = [{"labels": one, "startsAt": stamp(now - now % 60 - 60), "endsAt": stamp(ends)} for one in labels]
    assert requests.post(f"{url}/api/v2/alerts", json=told, timeout=10).status_code == 200


def test_alerts_arrive_are_looked_into_and_are_resolved(tmp_path: Path) -> None:
    engine = Engine(clock=time.time())
    (tmp_path / "token").write_text("secret")
    works = backend(tmp_path, engine)
    with (
        running(works, Serving(token_file=str(tmp_path / "token"))) as url,
        alertmanager(tmp_path / "server", configured(tmp_path, url)) as server,
    ):
        slow = {"alertname": "Slow", "job_name": "llama-70b", "odd": HOSTILE}
        fire(server, slow, ends=time.time() + 600.0)
        wait_until(lambda: len(engine.asked) == 1)
        assert engine.asked[0].jobs == ("llama-70b",)
        fire(server, *[{"alertname": "Down", "instance": f"node-{n}:9100"} for n in range(5)], ends=time.time() + 600.0)
        wait_until(lambda: len(engine.asked) > 1)
        assert engine.asked[1][1:] == ((), ()), "where some are cut off, all jobs are looked at"
        fire(server, slow, ends=time.time() - 1.0)
        wait_until(lambda: ("resolved", "done") in told(works.archive))
        assert len([one for one in works.archive.incidents() if one.state == "open"]) == 1


def told(archive) -> set[tuple[str, str]]:
    with archive._reading() as connection:
        rows = connection.exec_driver_sql("select said, state from alerts").fetchall()
    return {(str(said), str(state)) for said, state in rows}
