"""What we send, as a real Alertmanager takes it: found with amtool, the symptom inhibited, resolved in the end."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import yaml
from servers import alertmanager, binary
from test_incidents import ILL, live, ticks

from rca.notify import alerts, send

SHIPPED = Path(__file__).parents[2] / "deploy" / "alertmanager" / "alertmanager.yml"


def awaited(look: Callable[[], bool], seconds: float = 15.0) -> bool:
    """Say whether something comes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if look():
            return True
        time.sleep(0.1)
    return False


def asked(url: str, *flags: str) -> list[dict[str, object]]:
    """Ask amtool for alerts."""
    command = [binary("amtool"), "alert", "query", f"--alertmanager.url={url}", "-o", "json", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    return list(json.loads(done.stdout))


def test_the_shipped_configuration_is_sound() -> None:
    done = subprocess.run([binary("amtool"), "check-config", str(SHIPPED)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_root_cause_inhibits_its_symptom_and_both_are_resolved(tmp_path: Path) -> None:
    shipped = yaml.safe_load(SHIPPED.read_text())
    shipped["receivers"] = [{"name": one["name"]} for one in shipped["receivers"]]
    config = tmp_path / "alertmanager.yml"
    config.write_text(yaml.safe_dump(shipped))
    now = time.time()
    [incident] = live(ticks(ILL, 0, 300))
    shift = now - incident.last
    times = ("since", "first", "last", "opened")
    incident = msgspec.structs.replace(incident, **{name: getattr(incident, name) + shift for name in times})
    with alertmanager(tmp_path / "server", config) as url:
        assert send(alerts(incident, now, 30.0), [url]).arrived == {url: 2}
        assert awaited(lambda: len(asked(url, "--inhibited", "role=symptom")) == 1)
        [cause] = asked(url, "role=root_cause")
        assert cause["labels"]["root_cause_id"] == incident.id  # type: ignore[index]
        assert not asked(url, "role=symptom", "--active")
        over = msgspec.structs.replace(incident, state="closed", well=now - 1.0, closed=now)
        assert send(alerts(over, now, 30.0), [url]).arrived == {url: 2}
        assert awaited(lambda: not asked(url) and not asked(url, "--inhibited"))
