"""Ranks that speak through `rca.hook`, a real Prometheus that scrapes them, and a diagnosis that names the slow one.

Time is scaled down: steps of a tenth of a second, scrapes every second, rules that hold after three.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import servers
import yaml
from own_process import PROGRAM, awaited, scaled_rules

ROOT = Path(__file__).resolve().parents[2]
HEALTHY = 20.0
"""Seconds until a rank becomes slow."""
NAMED_WITHIN = 60.0


class Ill(NamedTuple):
    """A job with a slow rank: how many ranks, which is slow, and how."""

    world: int
    rank: int
    flags: tuple[str, ...]


JOBS = {
    "loader": Ill(2, 1, ("--slow-loader", "0.06")),
    "work": Ill(2, 1, ("--slow-work", "0.06")),
    "skew": Ill(8, 5, ("--slow-work", "0.06", "--tokens", "1.6")),
}


class Cluster(NamedTuple):
    """Where Prometheus is, the rules, and when the ranks become slow."""

    url: str
    rules: Path
    fault: float


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run the jobs, and a Prometheus that scrapes every rank."""
    folder = tmp_path_factory.mktemp("hook")
    rules = scaled_rules(folder / "rules", hold="3s", rate="4s")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    fault = time.monotonic() + HEALTHY
    targets: list[str] = []
    with ExitStack() as stack, (folder / "log").open("wb") as log:
        for name, job in JOBS.items():
            first = free_ports(job.world)
            told = [name, str(job.world), str(first), "--ill", str(job.rank), "--after", str(HEALTHY), *job.flags]
            command = [sys.executable, str(ROOT / "tests" / "hook_job.py"), *told]
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            targets += [f"127.0.0.1:{first + rank}" for rank in range(job.world)]
        config = yaml.safe_dump({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [{"job_name": "training", "static_configs": [{"targets": targets}]}],
        })  # fmt: skip
        yield Cluster(stack.enter_context(servers.prometheus(folder / "prometheus", config=config)), rules, fault)


def free_ports(count: int) -> int:
    """Return the first of so many ports in a row that nobody listens on just now."""
    for _ in range(100):
        first = servers.free_port()
        if first + count < 65000 and all(servers.is_free(first + more) for more in range(1, count)):
            return first
    pytest.fail("no ports in a row are free")


def diagnosed(cluster: Cluster, job: str) -> dict[str, Any]:
    """Return the report on a job, as of now."""
    asked = ["diagnose", "--prometheus", cluster.url, "--rules", str(cluster.rules), "--job", job, "-o", "json"]
    command = [*PROGRAM, *asked, "--window", "12s", "--baseline", "20s"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode in {0, 10, 11}, done.stderr
    return dict(json.loads(done.stdout))


def first_cause(cluster: Cluster, job: str, wanted: dict[str, Any]) -> None:
    """Wait until the first cause of a job is the wanted one."""
    seen: list[Any] = []

    def named() -> bool:
        causes = diagnosed(cluster, job)["causes"]
        seen.append(causes[:1])
        return bool(causes) and wanted.items() <= {**causes[0], "found": causes[0]["chain"][0]["finding"]}.items()

    time.sleep(max(0.0, cluster.fault + 8.0 - time.monotonic()))
    try:
        awaited(named, NAMED_WITHIN, f"{job}: {wanted}")
    except AssertionError as error:
        raise AssertionError(f"{error}; seen: {json.dumps(seen[-1])[:2000]}") from error


def test_a_slow_loader_is_named_at_its_rank(cluster: Cluster) -> None:
    entity = {"kind": "rank", "labels": {"job": "loader", "rank": "1"}}
    first_cause(cluster, "loader", {"found": "starved_rank", "entity": entity})


def test_busy_work_is_named_at_its_rank(cluster: Cluster) -> None:
    """The cell of a rank is the rank, where it has no tensor group; without a GPU's metrics its cause is not known."""
    entity = {"kind": "cell", "labels": {"dp": "1", "job": "work", "pp": "0"}}
    first_cause(cluster, "work", {"found": "slow_cell", "entity": entity})


def test_more_tokens_are_named_as_skew_at_their_rank(cluster: Cluster) -> None:
    entity = {"kind": "rank", "labels": {"job": "skew", "rank": "5"}}
    first_cause(cluster, "skew", {"cause": "data_skew", "entity": entity})
