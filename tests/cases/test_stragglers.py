"""Three real jobs that straggled, whose causes are known: no hardware where there was none, no victim above the cause."""

from functools import cache
from pathlib import Path

import pytest
from cases.traces import read, watched
from read_once import load

from rca.diagnose import diagnose
from rca.model import Report, Window
from rca.sources.assemble import assemble

LONGEST = 1800.0
REPEATS = {"AR": 1, "ST": 12, "SE": 1}
"""The steps of ST take a minute together, too short a time to judge anything."""
HARDWARE = {"physical", "resource"}


@cache
def report(cases: Path, name: str) -> Report:
    store, end = watched(read(cases / "straggler" / f"trace-{name}.parquet", name, REPEATS[name]))
    earliest, _ = store.kept.extent() or (end, end)
    library = load()
    return diagnose(library, assemble(store, library.in_use(), Window(max(earliest, end - LONGEST), end, 0.0)))


def test_one_slow_worker_is_the_cell_of_rank_0(cases):
    found = report(cases, "AR")
    assert found.symptom == "slow_always"
    first = found.causes[0]
    assert (first.cause, first.entity.labels) in [
        (cause, {"job": "AR", "dp": "0", "pp": "0"}) for cause in ("unknown", "gpu_degraded")
    ], "without GPU telemetry nobody can say what ails the worker, only which it is"
    assert [cause.cause for cause in found.causes if cause.entity != first.entity and cause.probability >= 0.1] == []


def test_a_long_last_stage_is_no_hardware(cases):
    found = report(cases, "ST")
    assert (found.status, found.symptom) == ("causes_found", "slow_always")
    assert (found.causes[0].cause, found.causes[0].entity.labels) == ("pipeline_imbalance", {"job": "ST", "pp": "3"})
    assert found.causes[0].probability >= 0.8


def test_sequence_lengths_come_before_the_long_last_stage(cases):
    found = report(cases, "SE")
    assert (found.status, found.symptom) == ("causes_found", "slow_always")
    assert (found.causes[0].cause, found.causes[0].entity.labels) == ("sequence_imbalance", {"job": "SE"})
    assert [cause.cause for cause in found.causes[1:2]] in ([], ["pipeline_imbalance"])


@pytest.mark.parametrize("name", REPEATS)
def test_no_victim_is_accused(cases, name):
    found = report(cases, name)
    assert [cause.cause for cause in found.causes if cause.layer in HARDWARE and cause.cause != "gpu_degraded"] == []
    waiting = {link.entity.labels.get("rank") for link in found.findings if link.finding == "waiting_rank"}
    accused = {cause.entity.labels.get("rank") for cause in found.causes}
    assert not (waiting & accused) - {None}
