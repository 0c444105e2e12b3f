"""The whole loop with real servers: Prometheus scrapes a cluster that happens now, an alert fires, Alertmanager delivers
it to `rca serve`, and the root cause comes back and silences the symptom; all of it ends when the fault does.

Time is scaled down: scrapes and ticks every second or two, rules that hold after ten seconds, a window of forty.
"""

import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import servers
import yaml
from own_process import Own, awaited, running, scaled_rules, serve

from rca.plain import stamp

HERE = Path(__file__).parent
DEPLOY = HERE.parents[1] / "deploy"
AHEAD = 35.0
"""Seconds from now until the fault begins: by then every server is up."""
FAULT, DURATION = 480.0, 900.0
CAUSE = {"cause": "gpu_power_capped", "node": "node-02", "gpu": "1"}


class Loop(NamedTuple):
    """What runs: where Alertmanager is, our server, and when the fault begins."""

    alertmanager: str
    server: Own
    fault: float


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    """Run a cluster that happens now, a Prometheus that knows its past, an Alertmanager, and our server."""
    folder = tmp_path_factory.mktemp("loop")
    for name in ("prometheus", "promtool", "prometheus-alertmanager", "amtool"):
        servers.binary(name)
    rules = scaled_rules(folder / "rules", hold="8s")
    fault = float(int(time.time())) + AHEAD
    with ExitStack() as stack:
        cluster = stack.enter_context(running(simulated(folder, fault)))
        servers.backfill(folder / "history.om", folder / "prometheus" / "data")
        listen = servers.free_port()
        beside = stack.enter_context(servers.alertmanager(folder / "alertmanager", routed(folder, listen)))
        config = scraping(folder, cluster.url, beside)
        source = stack.enter_context(servers.prometheus(folder / "prometheus", config=config))
        settings = {
            "prometheus": {"url": source}, "alertmanagers": [beside], "rules": str(rules), "window": "40s",
            "baseline": "5m", "interval": "2s",
            "incidents": {"for": "0s", "keep_firing_for": "5s", "sweep": "20s"},
        }  # fmt: skip
        yield Loop(beside, stack.enter_context(running(serve(folder, settings, "--watch", port=listen))), fault)


def simulated(folder: Path, fault: float) -> Own:
    """Return the cluster, whose fault begins at a time, and which writes its past to a file first."""
    port = servers.free_port()
    history, end = str(folder / "history.om"), stamp(fault - FAULT + DURATION)
    arguments = ["simulate", str(HERE / "loop.yaml"), "--to", history, "--listen", f"127.0.0.1:{port}", "--at", end]
    return Own(folder, "cluster", port, arguments)


def routed(folder: Path, port: int) -> Path:
    """Write the shipped configuration of Alertmanager with our server's address, and little patience."""
    text = (DEPLOY / "alertmanager" / "alertmanager.yml").read_text().replace("127.0.0.1:9797", f"127.0.0.1:{port}")
    shorter = re.sub(r"(group_wait|group_interval): \w+", r"\1: 1s", text)
    path = folder / "alertmanager.yml"
    path.write_text(shorter)
    return path


def scraping(folder: Path, cluster: str, alertmanager: str) -> str:
    """Return a configuration of Prometheus with the shipped alert for a slow job, which waits less here."""
    text = (DEPLOY / "prometheus" / "training.rules.yml").read_text()
    for long, short in (("[1h] offset 15m", "[4m] offset 45s"), ("[2m]", "[15s]")):
        text = text.replace(long, short)
    text = re.sub(r"^( +for): .*$", r"\1: 10s", text, flags=re.MULTILINE)
    text = re.sub(r"^( +keep_firing_for): .*$", r"\1: 5s", text, flags=re.MULTILINE)
    (folder / "training.rules.yml").write_text(text)
    return yaml.safe_dump({
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "training.rules.yml")],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager.partition("//")[2]]}]}]},
        "scrape_configs": [{
            "job_name": "cluster", "honor_labels": True,
            "static_configs": [{"targets": [cluster.partition("//")[2]]}],
        }],
    })  # fmt: skip


def firing(loop: Loop, *query: str) -> list[dict[str, Any]]:
    """Return the alerts that amtool finds."""
    command = [servers.binary("amtool"), "alert", "query", f"--alertmanager.url={loop.alertmanager}", "-o", "json"]
    done = subprocess.run([*command, *query], capture_output=True, text=True, check=True, timeout=30)
    return list(json.loads(done.stdout))


def told(loop: Loop, path: str) -> Any:
    with urllib.request.urlopen(loop.server.url + path, timeout=30) as answer:
        return json.load(answer)


def looked_into(loop: Loop) -> list[str]:
    """Return the first cause of each delivery that was looked into, by the log."""
    said = [json.loads(line) for line in loop.server.said().splitlines() if '"alerts looked into"' in line]
    return [one["causes"][0] for one in said if one["causes"]]


def test_a_slow_job_is_explained_and_all_ends_with_the_fault(loop: Loop) -> None:
    assert time.time() < loop.fault, "the servers took too long to start"
    assert not firing(loop)
    cause = [f"{name}={value}" for name, value in CAUSE.items()]
    awaited(
        lambda: firing(loop, "TrainJobSlow"), loop.fault - time.time() + 45.0, "Prometheus says that the job is slow"
    )
    awaited(lambda: firing(loop, "role=root_cause", *cause), 45.0, f"the root cause is an alert {loop.server.said()}")
    [found] = firing(loop, "role=root_cause", *cause)
    [incident] = [one for one in told(loop, "/api/v1/incidents")["data"] if one["cause"] == CAUSE["cause"]]
    assert (incident["id"], incident["job"], incident["state"]) == (found["labels"]["root_cause_id"], "loop", "open")
    awaited(lambda: firing(loop, "--inhibited", "role=symptom"), 15.0, "the symptom is inhibited")
    same = f"root_cause_id={incident['id']}"
    assert not firing(loop, "--active", "role=symptom", same)
    [symptom] = firing(loop, "--inhibited", "role=symptom", same)
    assert symptom["labels"]["alertname"] == "RcaJobSlow"
    report = told(loop, f"/api/v1/reports/{incident['latest']}")
    assert report["causes"][0]["cause"] == CAUSE["cause"]
    awaited(lambda: CAUSE["cause"] in looked_into(loop), 15.0, "the alert itself was looked into")
    awaited(lambda: not firing(loop, "TrainJobSlow"), 90.0, "Prometheus says that the job is well")
    awaited(lambda: not firing(loop, *cause), 90.0, "the root cause is resolved")
    awaited(lambda: not firing(loop) and not firing(loop, "--inhibited"), 60.0, "nothing fires any more")
    assert {one["state"] for one in told(loop, "/api/v1/incidents")["data"]} == {"closed"}
    assert loop.server.stop() == 0
    log = [json.loads(line) for line in loop.server.said().splitlines()]
    assert not [line for line in log if line["level"] in ("error", "critical")]
