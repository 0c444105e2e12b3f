"""A real InfluxDB 1.6 from Debian's package, filled over its own write API, read over its query API."""

import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import importing
import numpy as np
import pytest
import servers
from read_once import load

from rca.config import Server
from rca.diagnose import diagnose
from rca.errors import SourceError
from rca.model import Window
from rca.sources import influx
from rca.sources.files import FilesSource
from rca.sources.influx_server import InfluxStore

FIELDS = {
    "temperature_gpu": ("DCGM_FI_DEV_GPU_TEMP", "i"),
    "power_draw": ("DCGM_FI_DEV_POWER_USAGE", ""),
    "clocks_current_sm": ("DCGM_FI_DEV_SM_CLOCK", "i"),
    "utilization_gpu": ("DCGM_FI_DEV_GPU_UTIL", "i"),
}
CONFIG = """reporting-disabled = true
bind-address = "127.0.0.1:{rpc}"
[meta]
dir = "{folder}/meta"
[data]
dir = "{folder}/data"
wal-dir = "{folder}/wal"
[http]
bind-address = "127.0.0.1:{port}"
log-enabled = false
"""


@contextmanager
def influxd(folder: Path) -> Iterator[str]:
    """Run a server, stopped by its own handle."""
    port = servers.free_port()
    config = folder / "influxdb.conf"
    config.write_text(CONFIG.format(folder=folder, port=port, rpc=servers.free_port()))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([servers.binary("influxd"), "-config", str(config)], stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            end = time.monotonic() + servers.READY_SECONDS
            while not answers(f"{url}/ping"):
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < end, "influxd does not answer"
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            process.wait(30)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status < 300
    except OSError:
        return False


def post(url: str, body: bytes) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=60) as answer:
        assert answer.status < 300


def lines(name: str) -> Iterator[str]:
    """Yield a scenario's GPUs as Telegraf writes them, whole milliseconds."""
    metrics = [importing.world(name).metrics[metric] for metric, _ in FIELDS.values()]
    for row, labels in enumerate(metrics[0].labels):
        assert all(one.labels[row]["UUID"] == labels["UUID"] for one in metrics)
        model = labels["modelName"].replace(" ", "\\ ")
        head = f"nvidia_smi,host={labels['Hostname']},index={labels['gpu']},name={model},uuid={labels['UUID']}"
        for at in np.flatnonzero(metrics[0].there[row]):
            pairs = zip(FIELDS.items(), (one.values[row, at] for one in metrics), strict=True)
            fields = (f"{name}={round(value) if suffix else value}{suffix}" for (name, (_, suffix)), value in pairs)
            yield f"{head} {','.join(fields)} {round(metrics[0].times[row, at] * 1000)}"


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    with influxd(tmp_path_factory.mktemp("influx")) as url:
        post(f"{url}/query", urllib.parse.urlencode({"q": 'CREATE DATABASE "tele graf"'}).encode())
        post(f"{url}/write?db=tele%20graf&precision=ms", "\n".join(lines("cooling_fault")).encode())
        yield url


def opened(url: str) -> InfluxStore:
    found = influx.read(importing.place(url, flag="--influx"), importing.ways(influx=Server(timeout="30s")))
    assert isinstance(found, InfluxStore)
    return found


def test_a_hot_gpu_is_found_in_what_telegraf_wrote(url):
    scene = importing.world("cooling_fault")
    store = opened(f"{url}?db=tele%20graf")
    assert abs(store.now() - time.time()) < 60.0
    temperature = scene.metrics["DCGM_FI_DEV_GPU_TEMP"]
    seen = temperature.times[temperature.there]
    assert store.extent() == (pytest.approx(seen.min(), abs=0.002), pytest.approx(seen.max(), abs=0.002))
    source = FilesSource([store])
    window = Window(scene.end - 900.0, scene.end, 3600.0)
    snapshot = source.snapshot(load(), window)
    report = diagnose(load(), snapshot)
    assert (report.causes[0].cause, report.causes[0].entity.labels) == (
        "gpu_thermal_throttling",
        {"node": "node-07", "gpu": "1"},
    )
    measured = snapshot.measurements["gpu_temperature"]
    assert np.isfinite(measured.window).mean() > 0.95
    assert measured.before is not None
    assert np.isfinite(measured.before).mean() > 0.95, (
        "more than ten thousand points come in several chunks, and all count"
    )


def test_a_database_that_is_not_there(url):
    with pytest.raises(SourceError, match="database not found: nope"):
        opened(f"{url}?db=nope").now()
