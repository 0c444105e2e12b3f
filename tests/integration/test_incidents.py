"""The two incidents, their sister and every decoy through a real Prometheus and the real command line.

One server holds all scenarios, six hours apart, so that each has its own past. The first comes there as the documents
say, through promtool; the others are sent, which is quicker.
"""

import json
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import remote_write
import servers
from click.testing import CliRunner

from rca import cli, openmetrics
from rca.plain import stamp
from rca.sources.scenario import read, stage

SCENARIOS = Path(__file__).parents[2] / "scenarios"
INCIDENTS = ("cooling_fault", "silent_data_skew", "data_skew")
DECOYS = ("hot_but_fine", "periodic_checkpoint", "warm_up", "exporter_gap", "idle_gpu", "power_cap_bit")
EPOCH = 1_780_005_000.0
"""When the first scenario ends: all of it lies in two hours that promtool writes as one block."""
APART = 6 * 3600.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, float]]]:
    """Run a Prometheus that holds every scenario; yield its URL and the end of each."""
    folder = tmp_path_factory.mktemp("incidents")
    (first, end), *others = [(name, EPOCH + number * APART) for number, name in enumerate(INCIDENTS + DECOYS)]
    written = folder / f"{first}.om"
    with written.open("w", encoding="utf-8") as file:
        file.writelines(openmetrics.lines(stage(SCENARIOS / f"{first}.yaml", end)))
    with servers.prometheus(folder, written, remote_write.FLAGS) as url:
        for name, later in others:
            remote_write.send(url, stage(SCENARIOS / f"{name}.yaml", later))
        yield url, {first: end, **dict(others)}


def diagnose(cluster: tuple[str, dict[str, float]], name: str, *more: str) -> tuple[int, str]:
    """Run the program, and return its exit status and what it prints."""
    url, ends = cluster
    command = [sys.executable, "-m", "rca.cli", "diagnose", "--prometheus", url, "--at", stamp(ends[name]), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def reported(cluster: tuple[str, dict[str, float]], name: str) -> tuple[int, str]:
    """Run the command here, once for each scenario, and return its exit status and the report as JSON."""
    url, ends = cluster
    return _reported(url, stamp(ends[name]))


@cache
def _reported(url: str, at: str) -> tuple[int, str]:
    with CliRunner().isolation() as (out, err, _):
        status = cli.run(cli.rca, ["diagnose", "--prometheus", url, "--at", at, "-o", "json"])
        assert "Traceback" not in err.getvalue().decode(), err.getvalue().decode()
        return status, out.getvalue().decode()


@pytest.mark.parametrize("name", INCIDENTS)
def test_an_incident_comes_out_right(cluster: tuple[str, dict[str, float]], name: str) -> None:
    expect = read(SCENARIOS / f"{name}.yaml").expect
    assert expect is not None
    status, printed = reported(cluster, name)
    report = json.loads(printed)
    assert (status, report["status"], report["symptom"]) == (10, "causes_found", expect.symptom)
    first, wanted = report["causes"][0], expect.causes[0]
    assert (first["cause"], first["entity"]["labels"]) == (wanted.cause, wanted.entity)
    assert first["probability"] >= 0.8
    layers = [link["layer"] for link in first["chain"][1:]]
    assert layers == sorted(layers, key=["physical", "resource", "communication", "training"].index)
    assert "loss_not_falling" in {one["rule"] for one in report["not_affected"]}
    assert not [cause for cause in report["causes"][1:] if cause["probability"] >= 0.5]


def test_rank_12_is_in_the_chain_of_the_slow_disk(cluster: tuple[str, dict[str, float]]) -> None:
    report = json.loads(reported(cluster, "silent_data_skew")[1])
    chain = [link["entity"]["labels"] for link in report["causes"][0]["chain"]]
    assert {"job": "llama-70b", "rank": "12"} in chain


@pytest.mark.parametrize("name", DECOYS)
def test_a_decoy_has_no_cause(cluster: tuple[str, dict[str, float]], name: str) -> None:
    status, printed = reported(cluster, name)
    report = json.loads(printed)
    assert (status, report["status"], report["causes"]) == (0, "healthy", [])


@pytest.mark.parametrize("name", INCIDENTS)
def test_every_query_of_the_evidence_can_be_run_again(cluster: tuple[str, dict[str, float]], name: str) -> None:
    """Ask the server itself: what it answers is what the report says."""
    url, ends = cluster
    report = json.loads(reported(cluster, name)[1])
    evidence = report["causes"][0]["evidence"]
    assert len(evidence) >= 5
    for one in evidence:
        found = [float(series["value"][1]) for series in ask(url, one["query"], ends[name] - 60)]
        assert found, one["query"]
        assert float(np.median(found)) == pytest.approx(one["value"], rel=0.15, abs=1e-3), one


def ask(url: str, query: str, time: float) -> list[dict[str, Any]]:
    form = urllib.parse.urlencode({"query": query, "time": time}).encode()
    with urllib.request.urlopen(f"{url}/api/v1/query", form, timeout=30) as answer:
        result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return result


def test_a_recording_replays_byte_for_byte(cluster: tuple[str, dict[str, float]], tmp_path: Path) -> None:
    url, ends = cluster
    saved = tmp_path / "incident.rca"
    at = stamp(ends["silent_data_skew"])
    command = [sys.executable, "-m", "rca.cli", "record", "--prometheus", url, "--at", at, "--to", str(saved)]
    assert subprocess.run(command, capture_output=True, check=False, timeout=120).returncode == 0
    command = [sys.executable, "-m", "rca.cli", "diagnose", "--recording", str(saved), "-o", "json"]
    replayed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (replayed.returncode, replayed.stdout) == reported(cluster, "silent_data_skew")


def test_text_names_the_gpu_in_its_first_line(cluster: tuple[str, dict[str, float]]) -> None:
    status, printed = diagnose(cluster, "cooling_fault")
    assert status == 10
    assert printed.splitlines()[0].startswith("gpu_thermal_throttling on gpu node=node-07 gpu=1")


def test_another_job_is_refused_with_the_jobs_that_exist(cluster: tuple[str, dict[str, float]]) -> None:
    status, printed = diagnose(cluster, "cooling_fault", "--job", "llama-7b")
    assert (status, printed) == (2, "")
