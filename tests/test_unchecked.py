"""What could not be checked: rules that lack a signal anywhere, and suspects of a diagnosis that lack one alone."""

from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from read_once import load
from synthetic import Job

from rca.diagnose import diagnose
from rca.library import Library
from rca.model import EntityRef, NotChecked, Report, Window
from rca.physics.world import simulate
from rca.render import text
from rca.sources.assemble import assemble
from rca.sources.scenario import ScenarioStore, read

SCENARIOS = Path(__file__).parents[1] / "scenarios"


@pytest.fixture(scope="module")
def library() -> Library:
    return load()


def without(library: Library, scenario: str, *absent: str) -> Report:
    """Diagnose a scenario in which nobody exports some metrics."""
    written = read(SCENARIOS / f"{scenario}.yaml")
    world = simulate(structs.replace(written, telemetry=structs.replace(written.telemetry, absent=absent)))
    return diagnose(library, assemble(ScenarioStore(world), library.in_use(), Window(world.end - 900, world.end)))


def entry(report: Report, rule: str) -> NotChecked:
    return next(one for one in report.not_checked if one.rule == rule)


def test_a_suspect_that_lacks_a_signal_is_named_with_the_line_that_enables_it(library: Library) -> None:
    """Without its phase nobody can tell a rank that sleeps from one that saves; all others are seen to spin."""
    report = without(library, "rank_stuck", "train_state")
    assert report.status == "inconclusive"
    found = entry(report, "rank_stuck")
    assert found.missing == ["rank_training", "rank_waited_for"]
    assert found.entity == EntityRef("rank", {"job": "llama-70b", "rank": "12"})
    assert "train_state" in found.enable
    assert "rank_stuck on rank" in " ".join(text.render(report).split())


def test_what_is_known_on_the_suspect_is_no_excuse(library: Library) -> None:
    """Only the late cell's node is named, and only the rule whose signal is missing there."""
    report = without(library, "cpu_contention", "node_pressure_.*")
    found = [one for one in report.not_checked if one.entity is not None]
    assert [(one.rule, one.missing) for one in found] == [("cpu_contention", ["node_cpu_pressure"])]
    assert found[0].entity == EntityRef("node", {"node": "node-02"})


def test_a_sure_cause_leaves_nobody_else_to_suspect(library: Library) -> None:
    report = without(library, "cooling_fault", "node_pressure_.*")
    assert report.causes[0].probability >= 0.9
    assert [one for one in report.not_checked if one.entity is not None] == []


def test_an_exporter_that_is_silent_on_the_suspect_alone_is_said(library: Library) -> None:
    job = Job()
    slow = slice(job.past + 20, None)
    job.signals["rank_forward_seconds"][8:16, slow] *= 1.4
    job.signals["node_cpu_pressure"][1, job.past :] = np.nan
    report = diagnose(library, job.snapshot(library))
    found = entry(report, "cpu_contention")
    assert found.entity == EntityRef("node", {"node": "node-01"})
    assert "node_cpu_pressure" in found.missing


def test_what_only_excludes_is_not_missed(library: Library) -> None:
    """A stalled job's rule asks for writes only to hold its tongue; the missing phase is why it is unknown."""
    report = without(library, "rank_stuck", "train_state", "node_disk_written_bytes_total")
    assert entry(report, "rank_stuck").missing == ["rank_training", "rank_waited_for"]
