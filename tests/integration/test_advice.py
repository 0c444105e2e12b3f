"""`rca check --against` and a real Prometheus: what it lacks, and how its samples came there."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import remote_write
import servers
import yaml

from rca.config import Server
from rca.sources.prometheus import PrometheusStore
from rca.sources.scenario import stage

ROOT = Path(__file__).parents[2]
WATCHED = {
    "summary": "A healthy job, watched badly",
    "seed": 3,
    "duration": "80m",
    "cluster": {"nodes": 4, "model": "H100"},
    "job": {"id": "llama-7b", "dp": 32, "step": "2s", "sync": "200ms", "samples": 512},
    "telemetry": {
        "slow": ["node-00", "node-01", "node-02", "node-03"],
        "absent": ["DCGM_FI_DEV_PCIE_.*", "node_pressure_.*"],
    },
    "expect": {"status": "healthy", "symptom": "none"},
}


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, start_prometheus: Callable[..., str]) -> str:
    """Run a Prometheus that holds the last 80 minutes of a cluster whose GPU exporters are slow and poor."""
    folder = tmp_path_factory.mktemp("advice")
    (folder / "watched.yaml").write_text(yaml.safe_dump(WATCHED))
    url = start_prometheus(flags=remote_write.FLAGS)
    remote_write.send(url, stage(folder / "watched.yaml", float(int(time.time()))))
    return url


def check(url: str, *more: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "rca.cli", "check", "--against", url, *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def test_a_server_that_is_watched_badly_hears_what_to_change(watched):
    status, text = check(watched)
    assert status == 3
    words = " ".join(text.split())
    assert text.startswith(f"{watched}: ")
    assert "1 job, 32 ranks, 4 nodes, 32 gpus" in words
    assert "- pcie_degraded (physical, root): without " in words
    assert "\n  dcgm-exporter counters file\n" in text
    assert "\n    DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH, gauge, PCIe max link width.\n" in text
    assert "scraped every 15 s, but its values change only every 30 s" in words
    assert "--collect-interval 15000" in words
    assert "rates: 60 s hold 2 new values of" in words
    assert "retention" not in words


def test_a_server_without_samples_lacks_everything(start_prometheus):
    status, text = check(start_prometheus())
    assert status == 3
    assert ": 0 of " in text.splitlines()[0]
    assert "nothing was seen" in text


def test_a_prometheus_says_how_long_it_keeps_samples(watched):
    with PrometheusStore(Server(url=watched)) as store:
        assert store.retention() == 10 * 365 * 86400.0


def test_a_server_that_does_not_say_is_no_error(tmp_path):
    with servers.victoria_metrics(tmp_path, "") as url, PrometheusStore(Server(url=url)) as store:
        assert store.retention() is None
