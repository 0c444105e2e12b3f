"""Diagnoses with an exporter absent end as an expert would end them: named from what is left, or inconclusive."""

from functools import cache
from pathlib import Path

import pytest

from benchmarks.plays import WINDOW, Telemetry, library, watched
from rca.diagnose import SURE, diagnose
from rca.model import Report, Window
from rca.physics.world import World, simulate
from rca.sources.assemble import assemble
from rca.sources.scenario import ScenarioStore, read
from rca.sources.series import Store

SCENARIOS = Path(__file__).parents[1] / "scenarios"

NAMED = [
    ("small_cohort", "dcgm-extra", "gpu_thermal_throttling", "node-04/2"),
    ("no_before", "train", "gpu_thermal_throttling", "node-03/0"),
    ("nic_flapping", "train", "nic_flapping", "node-03/mlx5_6"),
    ("slow_local_disk", "train", "slow_local_disk", "node-04"),
    ("rack_cooling", "train", "rack_cooling", "rack-2"),
    ("node_down", "train", "node_down", "node-04"),
    ("gpu_lost", "node", "gpu_lost", "node-03/5"),
]

UNTOLD = [
    ("gpu_degraded", "train", "slow_onset"),
    ("node_down", "node", "stalled"),
    ("gpu_power_capped", "dcgm-extra", "slow_onset"),
]

QUIET = ["busy_boost", "data_skew_pp", "links_settle"]


@cache
def world(scenario: str) -> World:
    return simulate(read(SCENARIOS / f"{scenario}.yaml"))


def seen(scenario: str, *absent: Telemetry) -> Report:
    """Diagnose a scenario as a cluster without some exporters shows it."""
    played = world(scenario)
    store: Store = ScenarioStore(played)
    for telemetry in absent:
        store = watched(store, telemetry)
    return diagnose(library(), assemble(store, library().in_use(), Window(played.end - WINDOW, played.end)))


def sure(report: Report) -> dict[str, str]:
    causes = [one for one in report.causes if one.probability >= SURE and one.cause != "unknown"]
    return {one.cause: "/".join(one.entity.labels.values()) for one in causes}


@pytest.mark.parametrize(("scenario", "absent", "cause", "entity"), NAMED, ids=str)
def test_what_shows_in_what_is_left_is_named(scenario: str, absent: Telemetry, cause: str, entity: str) -> None:
    assert sure(seen(scenario, absent)) == {cause: entity}


@pytest.mark.parametrize(("scenario", "absent", "symptom"), UNTOLD, ids=str)
def test_what_cannot_be_told_any_more_is_inconclusive(scenario: str, absent: Telemetry, symptom: str) -> None:
    report = seen(scenario, absent)
    assert (report.status, report.symptom, sure(report)) == ("inconclusive", symptom, {})


@pytest.mark.parametrize("scenario", QUIET)
def test_what_no_gpu_shows_is_neither_an_illness_nor_called_healthy(scenario: str) -> None:
    report = seen(scenario, "train")
    assert (report.symptom, sure(report)) == ("none", {})
    assert report.status == "inconclusive"


def test_heat_shows_in_a_default_install_that_sees_nothing_of_the_job() -> None:
    assert sure(seen("small_cohort", "train", "dcgm-extra")) == {"gpu_thermal_throttling": "node-04/2"}


def test_gpus_that_dim_together_put_their_job_into_a_class_only_where_nobody_counts_steps() -> None:
    blind, full = seen("gpu_degraded", "train"), seen("gpu_degraded")
    assert "dimmed_job" in {one.finding for one in blind.findings}
    assert "dimmed_job" not in {one.finding for one in full.findings}
    assert blind.symptoms[0].slowdown == pytest.approx(full.symptoms[0].slowdown, rel=0.05)


def test_the_gpu_that_sleeps_while_all_others_spin_is_pointed_at() -> None:
    report = seen("rank_stuck", "train")
    assert [(one.cause, one.entity.labels) for one in report.causes] == [("unknown", {"node": "node-01", "gpu": "4"})]
