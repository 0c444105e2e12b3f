"""Exported expressions against a real Prometheus that holds a simulated cluster."""

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import remote_write
import servers
from read_once import load

from rca import openmetrics
from rca.export import grafana
from rca.export.expressions import Catalogue, Labels
from rca.export.prometheus import export, render
from rca.inputs import Inputs, look
from rca.library import Library
from rca.plain import stamp
from rca.sources.scenario import stage

SCENARIO = """
summary: A pipelined job on four nodes with every exporter there is
seed: 3
duration: 40m
cluster: {nodes: 4, model: H100, mounts: [{export: "filer-a:/data"}, {export: "filer-c:/ckpt"}]}
job:
  id: llama
  tp: 2
  pp: 2
  dp: 8
  step: 3s
  sync: 200ms
  samples: 256
  micro_batches: 8
  checkpoint: {first: 5m, every: 12m, lasts: 40s, to: mount}
expect: {status: healthy, symptom: none}
"""
NOT_SIMULATED = {
    # phases of Megatron that the made-up trainer does not print
    "forward backward", "params all gather", "layernorm grads sync", "embedding grads sync", "pp forward send",
    "pp backward send", "pp fwd send bwd recv", "pp bwd send fwd recv", "optimizer copy grad", "optimizer unscale",
    "optimizer count zeros", "optimizer step", "optimizer copy params", "optimizer clip grad", "save checkpoint", "eval",
    "load checkpoint",
}  # fmt: skip
"""Charts whose series the simulator does not export."""


@pytest.fixture(scope="module")
def library() -> Library:
    return load()


@pytest.fixture(scope="module")
def server(start_prometheus: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, float]:
    scenario = tmp_path_factory.mktemp("export") / "scenario.yaml"
    scenario.write_text(SCENARIO)
    world = stage(scenario, None)
    url = start_prometheus(flags=remote_write.FLAGS)
    remote_write.send(url, world)
    return url, world.end


def ask(server: tuple[str, float], path: str, **parameters: str) -> list[dict[str, object]]:
    body = urllib.parse.urlencode(parameters).encode()
    with urllib.request.urlopen(f"{server[0]}/api/v1/{path}", data=body, timeout=30) as response:
        found = json.loads(response.read())
    assert found["status"] == "success"
    data = found["data"]
    return data["result"] if isinstance(data, dict) else data


def series(server: tuple[str, float], query: str) -> list[dict[str, object]]:
    return ask(server, "query", query=query, time=str(server[1] - 30))


def test_every_chart_has_series(library: Library, server: tuple[str, float]) -> None:
    empty = set()
    asked = 0
    for dashboard in grafana.dashboards(library, Labels()):
        for panel in (panel for row in dashboard.rows.values() for panel in row):
            for _, written in panel.targets:
                asked, text = asked + 1, written
                for variable in dashboard.variables:
                    text = text.replace(f"${variable.name}", ".+")
                assert "$" not in text
                if not series(server, text):
                    empty.add(panel.title)
    assert asked > 90
    assert empty == NOT_SIMULATED


def test_every_variable_has_values(library: Library, server: tuple[str, float]) -> None:
    for dashboard in grafana.dashboards(library, Labels()):
        for variable in dashboard.variables:
            chosen = variable.series.replace("$node", ".+")
            found = ask(server, "series", **{"match[]": chosen, "start": str(server[1] - 600), "end": str(server[1])})
            assert {str(one[variable.label]) for one in found}, variable


def test_a_recorded_signal_reads_what_a_diagnosis_reads(library: Library, server: tuple[str, float]) -> None:
    """As many entities, and the same middle, for every signal that an exported rule reads."""
    given = Inputs(prometheus=server[0], baseline="20m", at=stamp(server[1] - 30))
    snapshot = look(given, {}, lambda _: None).snapshot
    catalogue = Catalogue(library, Labels())
    compared = set()
    for name in sorted({signal for one in export(library, Labels())[0] for signal in one.signals}):
        if name not in snapshot.measurements:
            continue
        window = snapshot.measurements[name].window
        known = np.isfinite(window).any(axis=1)
        values = [float(one["value"][1]) for one in series(server, catalogue.inline(name))]  # type: ignore[index]
        assert len(values) == known.sum(), name
        middles = np.nanmedian(window[known][:, np.isfinite(window).any(axis=0)], axis=0)
        low, high = middles.min(), middles.max()
        slack = 0.1 * abs(high) + 1e-9
        assert low - slack <= np.median(values) <= high + slack, name
        compared.add(name)
    assert len(compared) > 40


HEALTHY = """
summary: One node, a pipelined job
seed: 5
duration: 80m
cluster: {nodes: 1, model: H100, mounts: [{export: "filer-c:/ckpt"}]}
job:
  {id: llama, tp: 2, pp: 2, dp: 2, step: 3s, sync: 200ms, samples: 256, micro_batches: 8,
   checkpoint: {first: 5m, every: 20m, lasts: 40s, to: mount}}
expect: {status: healthy, symptom: none}
"""
FAULTY = (
    HEALTHY.replace("{status: healthy, symptom: none}", "{status: causes_found, symptom: slow_onset}")
    + """
faults:
  - {at: 70m, cooling: 5.1, on: {node: node-00, gpu: 1}}
"""
)


def replayed(scenario: Path, rules: str) -> tuple[list[dict[str, str]], int]:
    """Return a scenario's series that rules read, every half minute, as promtool's tests take them; and the minutes."""
    world = stage(scenario, None)
    grid = np.arange(world.epoch, world.end + 1, 30.0)
    found = []
    for metric in world.metrics.values():
        if metric.name not in rules:
            continue
        for row, labels in enumerate(metric.labels):
            there = metric.there[row]
            times, values = metric.times[row][there], metric.values[row][there]
            at = np.searchsorted(times, grid, side="right") - 1
            fresh = (at >= 0) & (grid - times[np.maximum(at, 0)] < 90)
            texts = [openmetrics.number(float(values[i])) if ok else "_" for i, ok in zip(at, fresh, strict=True)]
            found.append({"series": openmetrics.selector(labels), "values": " ".join(texts)})
    return found, int((world.end - world.epoch) // 60)


@pytest.mark.slow
@pytest.mark.parametrize(("text", "firing"), [(HEALTHY, set()), (FAULTY, {"gpu_thermal_throttling", "long_step"})])
def test_what_fires_on_a_whole_cluster(library: Library, tmp_path: Path, text: str, firing: set[str]) -> None:
    """Of a healthy job no alert that would wake anybody, of one with a hot GPU those that say so."""
    (tmp_path / "scenario.yaml").write_text(text)
    rules, _ = render(library, Labels())
    (tmp_path / "rca.rules.yml").write_text(rules)
    inputs, minutes = replayed(tmp_path / "scenario.yaml", rules)
    query = 'max by (cause) (max_over_time(ALERTS{alertstate="firing", cause!="", severity!="info"}[1h]))'
    samples = [{"labels": f'{{cause="{cause}"}}', "value": 1} for cause in sorted(firing)]
    asked = [{"expr": query, "eval_time": f"{minutes}m", "exp_samples": samples}]
    test = {"interval": "30s", "input_series": inputs, "promql_expr_test": asked}
    whole = {"rule_files": ["rca.rules.yml"], "evaluation_interval": "30s", "tests": [test]}
    (tmp_path / "rca.test.yml").write_text(json.dumps(whole))
    command = [servers.binary("promtool"), "test", "rules", str(tmp_path / "rca.test.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
