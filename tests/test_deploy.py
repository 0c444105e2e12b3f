"""What lies in `deploy/` is sound: checked by the programs that read it where they are installed, and by its shape."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import servers
import yaml

from rca.cli import rca
from rca.config import from_file
from rca.metrics import Metrics
from rca.physics.world import simulate
from rca.physics.written import Cluster, Job, Scenario

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
RULES = sorted((DEPLOY / "prometheus").glob("*.rules.yml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
PORT = 9797
LEAST_EXPOSED = 2.0
"""Points of `systemd-analyze security`, of 10; below 2 is its best grade."""


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def ran(*command: str | Path, folder: Path = ROOT) -> str:
    done = subprocess.run(
        [servers.binary(str(command[0])), *map(str, command[1:])],
        capture_output=True, text=True, check=False, timeout=60, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def alerts(path: Path) -> list[dict[str, Any]]:
    return [rule for group in read(path)["groups"] for rule in group["rules"]]


def known_flags(arguments: list[str]) -> None:
    """Make sure that a command line of ours is one."""
    command = rca.commands[arguments[0]]
    flags = {flag for one in command.params if isinstance(one, click.Option) for flag in one.opts}
    given = {word.partition("=")[0] for word in arguments[1:] if word.startswith("--")}
    assert given <= flags, f"rca {arguments[0]} has no {sorted(given - flags)}"


# -- Prometheus and Alertmanager


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_alert_rules_are_valid_and_pass_their_own_tests(path: Path) -> None:
    assert "SUCCESS" in ran("promtool", "check", "rules", path)
    assert "SUCCESS" in ran("promtool", "test", "rules", path.name.replace(".rules.", ".test."), folder=path.parent)


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_every_alert_fires_in_one_test_and_is_silent_in_another(path: Path) -> None:
    tried = [
        (one["alertname"], bool(one.get("exp_alerts")))
        for test in read(path.with_name(path.name.replace(".rules.", ".test.")))["tests"]
        for one in test["alert_rule_test"]
    ]
    for rule in alerts(path):
        expected = {True} if rule["alert"] == "Watchdog" else {True, False}
        assert {fires for name, fires in tried if name == rule["alert"]} == expected, rule["alert"]
        assert re.fullmatch(r"([A-Z][a-z]+)+", rule["alert"])
        assert rule["labels"]["severity"] in {"critical", "warning", "info", "none"}
        assert set(rule["annotations"]) == {"summary", "description"}


def test_the_alerts_about_ourselves_ask_for_metrics_that_we_have() -> None:
    exported = {line.split()[2] for line in Metrics(0.0).text("")[0].decode().splitlines() if line.startswith("# TYPE")}
    named = set(re.findall(r"rca_\w+", (DEPLOY / "prometheus" / "watcher.rules.yml").read_text()))
    assert named <= exported


def test_the_alerts_about_training_ask_for_metrics_that_exist() -> None:
    small = Scenario(summary="", duration="2m", cluster=Cluster(nodes=1, gpus=2), job=Job(id="a", dp=2))
    named = {name for rule in alerts(DEPLOY / "prometheus" / "training.rules.yml")
             for name in re.findall(r"train_\w+", rule["expr"])}  # fmt: skip
    assert named <= simulate(small).metrics.keys()


@pytest.mark.parametrize("name", ["prometheus/prometheus.yml", "compose/prometheus.yml"])
def test_prometheus_is_configured_well(name: str, tmp_path: Path) -> None:
    config = (DEPLOY / name).read_text().replace("/etc/prometheus/rules/", "")
    for path in RULES:
        shutil.copy(path, tmp_path)
    (tmp_path / "prometheus.yml").write_text(config)
    assert f"{len(RULES)} rule files found" in ran("promtool", "check", "config", tmp_path / "prometheus.yml")
    jobs = [one["job_name"] for one in yaml.safe_load(config)["scrape_configs"]]
    assert "rca" in jobs


def test_alertmanager_is_configured_alike_in_both_places() -> None:
    shipped, beside = DEPLOY / "alertmanager" / "alertmanager.yml", DEPLOY / "compose" / "alertmanager.yml"
    ran("amtool", "check-config", beside)
    assert yaml.safe_load(shipped.read_text().replace("127.0.0.1:9797", "rca:9797")) == read(beside)
    [matchers] = [route["matchers"] for route in read(shipped)["route"]["routes"] if route["receiver"] == "rca"]
    pattern = re.fullmatch(r'alertname=~"(.*)"', matchers[1])
    assert pattern is not None
    training = [rule["alert"] for rule in alerts(DEPLOY / "prometheus" / "training.rules.yml")]
    assert all(re.fullmatch(pattern[1], name) for name in training)


# -- settings


@pytest.mark.parametrize("name", ["compose/rca.yaml", "kubernetes/base/rca.yaml"])
def test_settings_can_be_read(name: str) -> None:
    settings = from_file(DEPLOY / name)
    assert (settings.listen, settings.store) == (f"0.0.0.0:{PORT}", "sqlite:////var/lib/rca/rca.db")
    assert settings.prometheus.url
    assert settings.alertmanagers


# -- the image


def instructions(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile, lines joined, comments left out."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in joined.splitlines()]


def test_the_image_is_small_pinned_and_nobody_is_root_in_it() -> None:
    steps = instructions((DEPLOY / "Dockerfile").read_text())
    words = [word for word, _ in steps]
    said = dict(steps)  # of a word that comes twice, the last: that of the final stage
    assert words.count("FROM") == 2
    assert all(re.fullmatch(r"python:3\.\d+-slim-\w+( AS \w+)?", text) for word, text in steps if word == "FROM")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", said["USER"]), (
        "numbers: Kubernetes cannot tell from a name that it is not root"
    )
    assert words.index("USER") > max(index for index, word in enumerate(words) if word in {"RUN", "COPY"})
    assert yaml.safe_load(said["ENTRYPOINT"]) == ["rca"]
    command = yaml.safe_load(said["CMD"])
    known_flags(command)
    assert said["EXPOSE"] == str(PORT)
    assert f"0.0.0.0:{PORT}" in command
    assert f":{PORT}/-/healthy" in said["HEALTHCHECK"]
    assert "ADD" not in words
    assert said["VOLUME"] == said["WORKDIR"] == "/var/lib/rca"


def test_what_the_image_is_made_of_exists_and_reaches_the_builder() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [text for word, text in instructions((DEPLOY / "Dockerfile").read_text()) if word == "COPY"]
    sources = {name for text in copied if not text.startswith("--from") for name in text.split()[:-1]}
    assert sources == kept
    assert all((ROOT / name).exists() for name in kept)


# -- compose


def test_the_composed_services_fit_together() -> None:
    composed = read(DEPLOY / "compose" / "compose.yaml")
    services = composed["services"]
    assert set(services) == {"cluster", "history", "prometheus", "alertmanager", "rca"}
    for name, one in services.items():
        assert set(one.get("depends_on", {})) <= services.keys()
        assert "build" in one or re.search(r":v\d+\.\d+\.\d+$", one["image"]), f"{name}: which version"
        assert all(port.startswith("127.0.0.1:") for port in one.get("ports", ()))
        for volume in one.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DEPLOY / "compose" / source).exists() if source.startswith(".") else source in composed["volumes"]
        if "build" in one:
            assert (DEPLOY / "compose" / one["build"]["context"] / one["build"]["dockerfile"]).resolve().is_file()
            known_flags(one["command"])
            assert one["read_only"]
            assert one["cap_drop"] == ["ALL"]
    assert (ROOT / "scenarios" / Path(services["cluster"]["command"][1]).name).is_file()
    named = {target.split(":")[0] for target in re.findall(r"[\w-]+:\d{4}\b", "".join(
        (DEPLOY / "compose" / file).read_text() for file in ("prometheus.yml", "alertmanager.yml", "rca.yaml")))}  # fmt: skip
    assert {"cluster", "rca", "alertmanager", "prometheus"} == named - {"0"}


def test_the_page_on_watching_names_what_there_is() -> None:
    page = (ROOT / "docs" / "watching.md").read_text()
    assert all(f"`{name}`" in page for name in read(DEPLOY / "compose" / "compose.yaml")["services"])
    assert all(f"`{path.name.replace('@', '@2-5')}`" in page for path in UNITS)
    exported = re.findall(r"`(rca_\w+)", page)
    lines = Metrics(0.0).text("")[0].decode().splitlines()
    assert set(exported) <= {line.split()[2] for line in lines if line.startswith("# TYPE")}


# -- systemd


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_is_valid_and_hardened(path: Path, tmp_path: Path) -> None:
    name = path.name.replace("@", "@2-5")
    placed = tmp_path / name
    placed.write_text(re.sub(r"^(Exec\w+)=\S+", rf"\1={sys.executable}", path.read_text(), flags=re.MULTILINE))
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed here")
    ran("systemd-analyze", "verify", placed)
    told = ran("systemd-analyze", "security", "--offline=true", placed)
    exposed = re.search(r"Overall exposure level for \S+: ([\d.]+)", told)
    assert exposed is not None
    assert float(exposed[1]) < LEAST_EXPOSED


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_runs_a_command_of_ours_as_nobody_special(path: Path) -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(path)
    service = unit["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert program == "/opt/rca/bin/rca"
    known_flags(arguments)
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert (service["User"], service["NoNewPrivileges"], service["ProtectSystem"]) == ("rca", "true", "strict")
    assert service["WorkingDirectory"] == f"/var/lib/{service['StateDirectory']}"
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "2 3")


# -- Kubernetes


def manifests(folder: str) -> dict[str, dict[str, Any]]:
    """Return the objects that a kustomization names, by kind."""
    base = DEPLOY / "kubernetes" / folder
    named = [base / name for name in read(base / "kustomization.yaml")["resources"] if name.endswith(".yaml")]
    return {one["kind"]: one for one in map(read, named)}


def test_the_deployment_runs_as_nobody_and_writes_nowhere_else() -> None:
    objects = manifests("base")
    assert set(objects) == {"ServiceAccount", "Deployment", "Service", "PersistentVolumeClaim", "NetworkPolicy"}
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    image = instructions((DEPLOY / "Dockerfile").read_text())
    user = f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    assert dict(image)["USER"] == user
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert not pod["automountServiceAccountToken"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted == {"config": "/etc/rca", "data": "/var/lib/rca", "tmp": "/tmp"}
    assert {volume["name"] for volume in pod["volumes"]} == mounted.keys()
    assert objects["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}, "two processes would share one file"
    known_flags(container["args"])


def test_what_refers_to_what_exists() -> None:
    objects = manifests("base")
    pod = objects["Deployment"]["spec"]["template"]
    [container] = pod["spec"]["containers"]
    [port] = container["ports"]
    assert port == {"name": "http", "containerPort": PORT}
    probes = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert [(probe["path"], probe["port"]) for probe in probes.values()] == [
        ("/-/ready", "http"), ("/-/healthy", "http"), ("/-/ready", "http"),
    ]  # fmt: skip
    selector = objects["Deployment"]["spec"]["selector"]["matchLabels"]
    assert objects["Service"]["spec"]["selector"] == selector
    assert selector.items() <= pod["metadata"]["labels"].items()
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes["data"]["persistentVolumeClaim"]["claimName"] == objects["PersistentVolumeClaim"]["metadata"]["name"]
    kustomization = read(DEPLOY / "kubernetes" / "base" / "kustomization.yaml")
    [made] = kustomization["configMapGenerator"]
    assert volumes["config"]["configMap"]["name"] == made["name"]
    assert made["files"] == ["rca.yaml"]
    assert container["args"][-1] == f"{'/etc/rca'}/rca.yaml"
    assert pod["spec"]["serviceAccountName"] == objects["ServiceAccount"]["metadata"]["name"]


def test_the_operator_is_told_what_to_scrape_and_which_alerts() -> None:
    objects = manifests("prometheus-operator")
    assert set(objects) == {"ServiceMonitor", "PrometheusRule"}
    watched = objects["ServiceMonitor"]["spec"]
    service = manifests("base")["Service"]
    assert watched["selector"]["matchLabels"] == service["spec"]["selector"]
    assert watched["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert objects["PrometheusRule"]["spec"] == read(DEPLOY / "prometheus" / "watcher.rules.yml")


@pytest.mark.parametrize("folder", ["base", "prometheus-operator"])
def test_kustomize_builds_it(folder: str) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed; the manifests are checked by their shape all the same")
    built = list(yaml.safe_load_all(ran("kubectl", "kustomize", DEPLOY / "kubernetes" / folder)))
    assert {"Deployment", "Service", "ConfigMap"} <= {one["kind"] for one in built}
    assert all(one["metadata"]["namespace"] == "monitoring" for one in built)
    assert all(one["metadata"]["labels"]["app.kubernetes.io/name"] == "rca" for one in built)
