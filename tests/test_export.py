"""What is exported says what the rules say: checked by the programs that read it."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import servers
import yaml
from click.testing import CliRunner
from exported import CHANGE, series
from read_once import load

from docs import paste
from rca import cli
from rca import load as every_time
from rca.errors import UsageError
from rca.export import alertmanager, grafana
from rca.export.expressions import Catalogue, Labels, read_labels
from rca.export.prometheus import export, name, render
from rca.library import Library, seconds
from rca.promql import parse

ROOT = Path(__file__).parents[1]
ONE_NODE = Labels({"node": "node"})


@pytest.fixture(scope="module")
def library() -> Library:
    return load()


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run(
        [servers.binary("promtool"), *map(str, arguments)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("labels", [Labels(), ONE_NODE, Labels({"node": "node", "job": "job_id"})])
def test_promtool_finds_no_fault(library: Library, labels: Labels, tmp_path: Path) -> None:
    text, said = render(library, labels)
    (tmp_path / "rca.rules.yml").write_text(text)
    promtool("check", "rules", "--lint=all", "--lint-fatal", tmp_path / "rca.rules.yml")
    assert library.digest in text
    assert "cannot be expressed" in said


def test_every_rule_is_an_alert_or_has_its_reason(library: Library) -> None:
    done, refused = export(library, Labels())
    assert {one.rule.id for one in done} | {one.rule.id for one in refused} == set(library.rules)
    assert len({one.alert["alert"] for one in done}) == len(done)
    assert len(done) > 30
    text, _ = render(library, Labels())
    end = text[text.index("# Narrower than the rule") :]
    for one in refused:
        assert one.why
        assert f"#   {one.rule.id}: " in end
    for whole in done:
        assert bool(whole.left_out) == (f"#   {whole.rule.id}: " in end)


def test_names_match_the_route_to_rca(library: Library) -> None:
    route = yaml.safe_load(alertmanager.render())["route"]["routes"][0]["matchers"][1]
    pattern = re.compile(route.removeprefix("alertname=~").strip('"'))
    done, _ = export(library, Labels())
    assert all(pattern.fullmatch(str(one.alert["alert"])) for one in done)


def without(text: str, causes: set[str]) -> str:
    """Return a rules file without the alerts of some rules and what nothing else needs recorded."""
    groups = yaml.safe_load(text)["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if rule.get("labels", {}).get("cause") not in causes]
    read = " ".join(rule["expr"] for rule in alerts if "alert" in rule and "cause" in rule["labels"])
    for group in groups:
        group["rules"] = [
            rule for rule in group["rules"]
            if (rule in alerts if "alert" in rule else not causes or rule["record"] in read)
        ]  # fmt: skip
    return yaml.safe_dump({"groups": [group for group in groups if group["rules"]]}, sort_keys=False)


@pytest.mark.slow
@pytest.mark.parametrize("labels", [Labels(), ONE_NODE], ids=["as exported", "one name of the node"])
def test_each_alert_fires_on_what_fulfils_its_rule_and_on_nothing_else(
    library: Library, labels: Labels, tmp_path: Path
) -> None:
    """One run of promtool holds an ill and a well entity of every rule, and one whose job does something else."""
    catalogue = Catalogue(library, labels)
    inputs: list[dict[str, str]] = []
    asked: list[dict[str, object]] = []
    seen = {one.rule.id for one in export(library, Labels())[0]} if labels.given else set()
    for one in export(library, labels)[0]:
        rule = one.rule
        if rule.id in seen:
            continue  # its alert differs in nothing but names
        theirs = catalogue.recorded(one.signals[0]).labels | {}
        label = theirs[library.entities.kinds[rule.entity].labels[0]]
        end = CHANGE + seconds(rule.hold) / 60 + 2
        shown = {"ill": 1, "well": 0}
        if "rca:job_paused" in str(one.alert["expr"]):
            shown["busy"] = 0
            inputs.append(
                {"series": f'train_state{{job_id="{rule.id}-busy", state="eval"}}', "values": f"1x{CHANGE + 20}"}
            )
        for state, alerts in shown.items():
            who = f"{rule.id}-{state}"
            inputs += series(catalogue, rule, who, ill=state != "well")
            query = f'count(ALERTS{{cause="{rule.id}", alertstate="firing", {label}="{who}"}}) or vector(0)'
            asked.append({"expr": query, "eval_time": f"{end:g}m", "exp_samples": [{"labels": "{}", "value": alerts}]})
        before = f'count(ALERTS{{cause="{rule.id}", alertstate="firing"}}) or vector(0)'
        steady = "baseline" in str(rule.when) or "Rising" in str(rule.when)
        if steady and "Any" not in str(rule.when):
            asked.append({"expr": before, "eval_time": f"{CHANGE - 2}m", "exp_samples": [{"labels": "{}", "value": 0}]})
    test = {"interval": "1m", "input_series": inputs, "promql_expr_test": asked}
    whole = {"rule_files": ["rca.rules.yml"], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "rca.test.yml").write_text(yaml.safe_dump(whole))
    assert len(asked) > (2 if labels.given else 80)
    (tmp_path / "rca.rules.yml").write_text(without(render(library, labels)[0], seen))
    promtool("test", "rules", tmp_path / "rca.test.yml")


CLASSIC = {
    "GpuHot": ('DCGM_FI_DEV_GPU_TEMP{Hostname="n", gpu="0"}', "70x20 86x20", 24, 27),
    "GpusIdle": ('DCGM_FI_DEV_GPU_UTIL{Hostname="n", gpu="0"}', "90x20 20x20", 28, 32),
    "TrainLossJumped": ('train_loss{job_id="j", rank="0", loss="lm"}', "2x20 21x20", 20, 23),
    "TrainNoSamples": ('train_samples_total{job_id="j", rank="0"}', "0+8x20 160x20", 28, 32),
}


def test_the_classic_alerts_fire_when_they_should(library: Library, tmp_path: Path) -> None:
    text, _ = render(library, Labels())
    (tmp_path / "rca.rules.yml").write_text(text)
    inputs = [{"series": series, "values": values} for series, values, _, _ in CLASSIC.values()]
    inputs += [
        {"series": f'DCGM_FI_DEV_FB_{kind}{{Hostname="n", gpu="0"}}', "values": values}
        for kind, values in (("USED", "70000x20 79000x20"), ("FREE", "10000x20 1000x20"))
    ]
    asked = [
        {
            "expr": f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)',
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": "{}", "value": value}],
        }
        for alert, (_, _, silent, firing) in {**CLASSIC, "GpuMemoryNearlyFull": ("", "", 21, 24)}.items()
        for minute, value in ((silent, 0), (firing, 1))
    ]
    test = {"interval": "1m", "input_series": inputs, "promql_expr_test": asked}
    whole = {"rule_files": ["rca.rules.yml"], "evaluation_interval": "30s", "tests": [test]}
    (tmp_path / "classic.test.yml").write_text(yaml.safe_dump(whole))
    promtool("test", "rules", tmp_path / "classic.test.yml")


def test_series_without_the_name_of_their_node_are_taken_for_nobody(library: Library) -> None:
    text = Catalogue(library, Labels()).definition("gpu_temperature")
    assert 'DCGM_FI_DEV_GPU_TEMP{Hostname!=""}' in text


@pytest.mark.parametrize("wrong", ["node", "node=", "other.node=x", 'node=a"b'])
def test_a_label_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="names no label"):
        read_labels([wrong], ["node"])


def test_a_label_that_no_entity_has_is_refused() -> None:
    with pytest.raises(UsageError, match="--label: 'nod' is no label of an entity, did you mean 'node'"):
        read_labels(["dcgm.nod=x"], ["node", "gpu"])


def test_labels_of_one_exporter_come_before_those_of_all() -> None:
    labels = read_labels(["node=host", "dcgm.node=hostname"], ["node"])
    assert (labels.name("dcgm", "node"), labels.name("node", "node")) == ("hostname", "host")


def test_alertmanager_gets_what_deploy_ships(tmp_path: Path) -> None:
    shown = CliRunner().invoke(cli.rca, ["export", "alertmanager"])
    assert shown.stdout == (ROOT / "deploy" / "alertmanager" / "alertmanager.yml").read_text(encoding="utf-8")
    moved = CliRunner().invoke(cli.rca, ["export", "alertmanager", "--url", "http://rca:9797/"])
    assert "url: http://rca:9797/api/v1/alerts" in moved.stdout
    (tmp_path / "alertmanager.yml").write_text(moved.stdout)
    done = subprocess.run([servers.binary("amtool"), "check-config", tmp_path / "alertmanager.yml"], check=False)
    assert done.returncode == 0


def test_the_dashboards_are_whole(library: Library, tmp_path: Path) -> None:
    files = grafana.files(library, Labels(), tmp_path)
    provider = yaml.safe_load(files.pop("rca.yaml"))
    assert provider["apiVersion"] == 1
    assert provider["providers"][0]["options"]["path"] == str(tmp_path)
    pages = {name: json.loads(text) for name, text in files.items()}
    assert sorted(pages) == ["rca-gpu.json", "rca-job.json", "rca-node.json", "rca-overview.json"]
    for file, page in pages.items():
        assert f"{page['uid']}.json" == file
        assert page["schemaVersion"] == grafana.SCHEMA_VERSION
        assert page["templating"]["list"][0]["type"] == "datasource"
        ids = [panel["id"] for panel in page["panels"]]
        assert ids == list(range(1, len(ids) + 1))
        charts = [panel for panel in page["panels"] if panel["type"] != "row"]
        assert len(charts) > 8
        for panel in charts:
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24
            assert panel["fieldConfig"]["defaults"]["unit"] in {unit for unit, _ in grafana.UNITS.values()} | {"none"}
            assert [parse(target["expr"]) for target in panel["targets"]]
        assert not {tuple(sorted(panel["gridPos"].items())) for panel in charts if panel["gridPos"]["h"] != 8}


def test_every_signal_of_a_dashboard_can_be_asked_for(library: Library) -> None:
    catalogue = Catalogue(library, Labels())
    assert [name for name in (*grafana.GPU, *grafana.NODE) if not catalogue.expressible(name)] == []


def test_the_command_writes_files_and_says_what(tmp_path: Path) -> None:
    to = tmp_path / "rules.yml"
    shown = CliRunner().invoke(cli.rca, ["export", "prometheus", "-O", str(to)])
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "cannot be expressed" in shown.stderr
    assert to.read_text(encoding="utf-8").startswith("# Written by rca ")
    shown = CliRunner().invoke(cli.rca, ["export", "grafana", "--to", str(tmp_path / "new" / "folder")])
    assert len(list((tmp_path / "new" / "folder").iterdir())) == 5
    assert cli.run(cli.rca, ["export", "prometheus", "--label", "nonsense"]) == 2
    assert cli.run(cli.rca, ["export", "alertmanager", "--url", "nonsense"]) == 2


def test_an_override_for_all_changes_the_alert(library: Library, tmp_path: Path) -> None:
    config = tmp_path / "rca.yaml"
    config.write_text("overrides: [{rule: shm_full, set: {for: 7m, node_shm_free_share.limit: 0.05}}]\n")
    shown = CliRunner().invoke(cli.rca, ["export", "prometheus", "--config", str(config)])
    [alert] = [
        rule for group in yaml.safe_load(shown.stdout)["groups"] for rule in group["rules"]
        if rule.get("alert") == name(library.rules["shm_full"])
    ]  # fmt: skip
    assert (alert["expr"], alert["for"]) == ("rca:node_shm_free_share < 0.05", "7m")


PEERS = """
summary: A GPU is far hotter than those of its model on the same node
entity: gpu
role: symptom
when: {signal: gpu_temperature, is: above_peers, by: 10%, peers: [node, model]}
phases: [any]
"""


def test_peers_are_those_whose_labels_the_series_carry(tmp_path: Path) -> None:
    """From raw series: seven of eight GPUs are alike; of the other model there are too few to say anything."""
    rule = tmp_path / "rules" / "physical" / "hot_among_peers.yaml"
    rule.parent.mkdir(parents=True)
    rule.write_text(PEERS)
    text, _ = render(every_time.load(None, [tmp_path / "rules"]), Labels())
    (tmp_path / "rca.rules.yml").write_text(text)
    inputs = [
        {
            "series": f'DCGM_FI_DEV_GPU_TEMP{{Hostname="{node}", gpu="{gpu}", modelName="{model}"}}',
            "values": f"{90 if gpu == 3 else 70 + gpu / 4:g}x10",
        }
        for node, model, count in (("a", "H100", 8), ("b", "A100", 4)) for gpu in range(count)
    ]  # fmt: skip
    shown = {"labels": '{Hostname="a", gpu="3"}', "value": 1}
    query = 'max by (Hostname, gpu) (ALERTS{cause="hot_among_peers", alertstate="firing"})'
    asked = [{"expr": query, "eval_time": "8m", "exp_samples": [shown]}]
    test = {"interval": "1m", "input_series": inputs, "promql_expr_test": asked}
    whole = {"rule_files": ["rca.rules.yml"], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "rca.test.yml").write_text(yaml.safe_dump(whole))
    promtool("test", "rules", tmp_path / "rca.test.yml")


def test_the_page_shows_what_the_command_prints() -> None:
    page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    assert paste.pasted(page) == page, "run make docs"


def test_the_alert_of_the_page_is_the_one_that_is_written(library: Library) -> None:
    page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    [shown] = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])
    [alert] = [one.alert for one in export(library, Labels())[0] if one.rule.id == "slow_local_disk"]
    assert {key: alert[key] for key in shown} == shown


def test_every_command_of_the_group_is_documented() -> None:
    shown = set(paste.commands((ROOT / "docs" / "cli.md").read_text(encoding="utf-8")))
    assert {f"rca export {name} --help" for name in cli.export.commands} <= shown
