"""The same fault, looked at minutes and hours after it began."""

from pathlib import Path

import pytest

from benchmarks.plays import WINDOW, ending, library
from rca.diagnose import diagnose
from rca.model import Report, Window
from rca.physics.world import simulate
from rca.sources.assemble import assemble
from rca.sources.scenario import ScenarioStore, read

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"


def looked_at(name: str, minutes: float) -> Report:
    """Diagnose the end of a scenario that ends so many minutes after its last fault began."""
    world = simulate(ending(read(SCENARIOS / f"{name}.yaml"), minutes))
    return diagnose(
        library(), assemble(ScenarioStore(world), library().in_use(), Window(world.end - WINDOW, world.end))
    )


@pytest.mark.parametrize(
    ("name", "minutes", "symptom", "cause"),
    [
        ("gpu_lost", 3, "stalled", "gpu_lost"),
        ("rank_stuck", 3, "stalled", "rank_stuck"),
        ("gpu_power_capped", 3, "slow_onset", "gpu_power_capped"),
        ("gpu_lost", 40, "stalled", "gpu_lost"),  # its rank is known from before the window alone
        ("gpu_memory_fault", 40, "stalled", "gpu_memory_fault"),  # so is what its counters did
        ("loss_divergence", 40, "numeric", "loss_divergence"),  # two fifths of the past are ill
        ("gpu_driver_hang", 120, "stalled", "gpu_driver_hang"),  # nothing was ever seen to move
        ("gpu_power_capped", 120, "slow_always", "gpu_power_capped"),  # only peers are healthy
    ],
)
def test_a_fault_is_found_whenever_one_looks(name, minutes, symptom, cause):
    report = looked_at(name, minutes)
    assert (report.status, report.symptom) == ("causes_found", symptom)
    assert [one.cause for one in report.causes if one.probability >= 0.5] == [cause]


def test_a_job_that_has_stood_for_longer_than_one_sees_is_not_healthy():
    report = looked_at("gpu_lost", 120)
    assert (report.status, report.symptom) == ("inconclusive", "stalled")
    assert not [one for one in report.causes if one.probability >= 0.5 and one.cause != "unknown"]
