"""What Prometheus is told to scrape is valid, finds what there is, and asks for every field that the rules want."""

import csv
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import servers
import yaml
from read_once import load

from rca.load import shipped, table
from rca.promql import metric_names

ROOT = Path(__file__).resolve().parent.parent
PROMETHEUS = ROOT / "deploy" / "prometheus"
COUNTERS = ROOT / "deploy" / "dcgm-exporter" / "counters.csv"
NAMES = ("scrape-static.yml", "scrape-kubernetes.yml")
META = "__meta_kubernetes_"
POD = {
    f"{META}pod_phase": "Running",
    f"{META}pod_node_name": "node-07",
    f"{META}namespace": "ml",
    f"{META}pod_name": "llama-worker-3",
}
TRAINING = {
    f"{META}pod_label_training_kubeflow_org_job_name": "llama-70b",
    f"{META}pod_label_training_kubeflow_org_replica_type": "worker",
    f"{META}pod_label_training_kubeflow_org_replica_index": "3",
}
PODS = (
    {"__address__": "10.0.0.7:9653", f"{META}pod_container_port_number": "9653", **POD, **TRAINING},
    {"__address__": "10.0.0.7:9690", f"{META}pod_container_port_number": "9690", **POD, **TRAINING},
    {"__address__": "10.0.0.7:22", f"{META}pod_container_port_number": "22", **POD, **TRAINING},
    {"__address__": "10.0.0.8:9653", f"{META}pod_container_port_number": "9653", **POD, f"{META}pod_phase": "Succeeded"},
    {"__address__": "10.0.0.9:9400", f"{META}pod_container_port_number": "9400", **POD, f"{META}pod_label_app": "nvidia-dcgm-exporter"},
    {"__address__": "10.0.0.7:9100", f"{META}pod_container_port_number": "9100", **POD,
     f"{META}pod_label_app_kubernetes_io_name": "prometheus-node-exporter"},
)  # fmt: skip


def config(name: str) -> Any:
    """Return a configuration; pods as Kubernetes would tell of them, which Debian's Prometheus cannot ask."""
    read = yaml.safe_load((PROMETHEUS / name).read_text(encoding="utf-8"))
    for job in read["scrape_configs"]:
        if job.pop("kubernetes_sd_configs", None) == [{"role": "pod"}]:
            job["static_configs"] = [
                {"targets": [pod["__address__"]], "labels": {key: value for key, value in pod.items() if key != "__address__"}}
                for pod in PODS
            ]  # fmt: skip
    return read


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run(
        [servers.binary("promtool"), *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_a_scrape_configuration_is_valid(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(yaml.safe_dump(config(name)))
    assert "SUCCESS" in promtool("check", "config", tmp_path / name)
    jobs = [job["job_name"] for job in config(name)["scrape_configs"]]
    assert jobs == ["train", "rca-exporter", "dcgm-exporter", "node-exporter"]


@pytest.mark.parametrize(
    ("job", "address"),
    [("train", "10.0.0.7:9653"), ("rca-exporter", "10.0.0.7:9690"), ("dcgm-exporter", "10.0.0.9:9400"), ("node-exporter", "10.0.0.7:9100")],
)  # fmt: skip
def test_pods_are_found_and_named_as_the_rules_expect(job: str, address: str, tmp_path: Path) -> None:
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config("scrape-kubernetes.yml")))
    found = json.loads(promtool("check", "service-discovery", "--timeout=200ms", tmp_path / "prometheus.yml", job))
    [labels] = [one["labels"] for one in found if one.get("labels")]
    assert (labels["__address__"], labels["node"]) == (address, "node-07")
    if job == "train":
        assert labels["training_kubeflow_org_job_name"] == "llama-70b"
        assert (labels["training_kubeflow_org_replica_index"], labels["pod"], labels["namespace"]) == (
            "3",
            "llama-worker-3",
            "ml",
        )
    aliases = yaml.safe_load((shipped() / "entities.yaml").read_text())["labels"]
    assert {"node"} <= labels.keys() & set(aliases["node"]["aliases"])
    assert "training_kubeflow_org_job_name" in aliases["job"]["aliases"]


def counters() -> dict[str, tuple[str, str]]:
    """Return type and help of each field; a mark before a field of ours counts as nothing."""
    lines = [re.sub(r"^# (?=DCGM_\w+,)", "", line) for line in COUNTERS.read_text().splitlines()]
    rows = list(csv.reader((line for line in lines if line and not line.startswith("#")), skipinitialspace=True))
    assert all(len(row) == 3 for row in rows)
    assert len({row[0] for row in rows}) == len(rows)
    return {name: (kind, said) for name, kind, said in rows}


def test_the_counters_hold_every_field_that_a_signal_reads() -> None:
    renamed = {row["old_name"]: row["new_name"] for _, row in table(shipped() / "tables" / "dcgm_aliases.csv")}
    same = {name: {name, renamed.get(name, name)} for name in [*renamed, *renamed.values()]}
    known = counters()
    for signal in load().signals.values():
        for name in {one for query in signal.queries for one in metric_names(query) if one.startswith("DCGM_")}:
            spellings = same.get(name, {name}) | {name}
            assert spellings & known.keys(), f"{signal.id}: {name} is not in the counters"


def test_no_field_of_the_counters_is_there_under_two_names() -> None:
    ids = {
        name: row["field_id"]
        for _, row in table(shipped() / "tables" / "dcgm_aliases.csv")
        for name in (row["old_name"], row["new_name"])
    }
    found = [ids[name] for name in counters() if name in ids]
    assert len(found) == len(set(found))


def test_types_of_the_counters_are_what_the_values_are() -> None:
    types = {row["name"]: row["type"] for _, row in table(shipped() / "tables" / "metric_types.csv")}
    for name, (kind, said) in counters().items():
        assert kind in {"gauge", "counter", "label"}
        assert kind == types.get(name, kind), f"{name} is a {types.get(name)}"
        assert said
