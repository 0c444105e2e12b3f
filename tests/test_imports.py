"""The table that says what the names of other systems are called here."""

import importing
import pytest
from read_once import load

from rca.errors import ProblemsError
from rca.imports import Imports
from rca.load import check, imports, shipped
from rca.promql import metric_names

KNOWN = {name for signal in load().signals.values() for query in signal.queries for name in metric_names(query)}
ALSO_BUILT = {"train_step"}
"""An axis, which becomes this and `train_steps_total`."""


@pytest.mark.parametrize("row", imports([shipped()]), ids=lambda row: f"{row.system}:{row.name.pattern}")
def test_every_name_becomes_a_metric_that_the_rules_read(row):
    made = {row.metric}
    if row.takes == "per_step" and not row.metric.endswith("_total"):
        made = {f"{row.metric}_sum", f"{row.metric}_count"}
    assert made <= KNOWN | ALSO_BUILT, f"{row.metric} is read by no signal"
    if row.metric.endswith("_total"):
        assert row.takes in {"value", "per_step", "per_second"}


@pytest.mark.parametrize(
    ("system", "name", "metric", "labels"),
    [
        ("training", "lm loss", "train_loss", {"loss": "lm"}),
        ("training", "train/loss", "train_loss", {"loss": "lm"}),
        ("training", "grads-reduce-scatter-time", "train_phase_max_seconds", {"phase": "grads_sync"}),
        ("training", "train_step_timing in s", "train_step_duration_seconds", {}),
        ("mlflow", "system/node-3/gpu_12_power_usage_watts", "DCGM_FI_DEV_POWER_USAGE", {"gpu": "12", "node": "node-3"}),
        ("mlflow", "system/gpu_0_utilization_percentage", "DCGM_FI_DEV_GPU_UTIL", {"gpu": "0"}),
        ("wandb", "system.gpu.7.temp", "DCGM_FI_DEV_GPU_TEMP", {"gpu": "7"}),
        ("wandb", "gpu.7.powerWatts", "DCGM_FI_DEV_POWER_USAGE", {"gpu": "7"}),
        ("influx", "cpu.usage_idle", "node_cpu_seconds_total", {"mode": "idle"}),
    ],
)  # fmt: skip
def test_names_and_their_labels(system, name, metric, labels):
    found = importing.table().find(name, system)
    assert found is not None
    assert (found.row.metric, dict(found.labels)) == (metric, labels)


@pytest.mark.parametrize(
    "name", ["lm loss vs samples", "lm loss validation", "eval/loss", "gpu.process.0.temp", "xlm loss"]
)
def test_what_only_looks_alike_is_not_read(name):
    assert importing.table().find(name, "training", "wandb") is None


BAD = """system,name,metric,takes,labels,factor,axis,note
training,(,train_loss,,,,,
tensorbord,x,y,,,,,
training,x,y,sometimes,,,,
training,x,y,,phase,,,
training,x,y,,,much,,
training,x,,,,,,
"""


def test_every_wrong_row_is_told_with_its_line(tmp_path):
    (tmp_path / "tables").mkdir()
    path = tmp_path / "tables" / "imports.csv"
    path.write_text(BAD)
    with pytest.raises(ProblemsError) as caught:
        imports([shipped(), tmp_path])
    texts = [str(problem) for problem in caught.value.problems]
    assert [text.split(": ")[0] for text in texts] == [f"{path}:{line}" for line in range(2, 8)]
    assert "is not a regular expression" in texts[0]
    assert "unknown system 'tensorbord', known are" in texts[1]
    assert "unknown takes 'sometimes'" in texts[2]
    assert "labels 'phase' are not pairs" in texts[3]
    assert "factor 'much' is not a number" in texts[4]
    assert "needs a name and a metric" in texts[5]
    assert [str(problem) for problem in check(extra=[tmp_path]).problems] == texts


def test_a_row_of_ones_own_comes_first(tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "imports.csv").write_text(
        "system,name,metric,factor\ntraining,my_step_ms,training_step_duration_seconds,0.001\ntraining,grad_norm,train_loss,1\n"
    )
    own = Imports(imports([shipped(), tmp_path]))
    assert own.find("my_step_ms", "training").row.factor == 0.001
    assert own.find("grad_norm", "training").row.metric == "train_loss"
    assert own.find("lm loss", "training").row.metric == "train_loss"
