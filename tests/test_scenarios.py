"""Every scenario through the whole pipeline: the right cause first on the right entity, and silence on decoys.

Together they make every rule hold and every edge of the causal graph lead from a cause to a finding, at least once.
What each run has seen is kept, so that this costs no further simulation; alone it runs all scenarios itself.
"""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from fired import Fired, edges, fired
from msgspec import structs

from rca.diagnose import diagnose
from rca.library import Library
from rca.load import load
from rca.model import Cause, Report, Snapshot, Window
from rca.physics.world import simulate
from rca.physics.written import Expect, ExpectedCause, Fault, Logs, Where
from rca.sources.assemble import assemble
from rca.sources.scenario import ScenarioSource, ScenarioStore, read
from rca.sources.scenario import seen as watched

FILES = sorted((Path(__file__).parents[1] / "scenarios").glob("*.yaml"))
STALLS = (
    "dataloader_stuck",
    "gpu_driver_hang",
    "nic_down",
    "nvlink_down",
    "nvswitch_down",
    "rank_stuck",
    "switch_down",
)
LOGS = Logs(every=10)
VOICED = {
    **dict.fromkeys(
        (
            "application_error", "dataloader_stuck", "disk_full_crash", "gpu_driver_hang", "gpu_lost", "gpu_memory_fault",
            "host_memory_kill", "host_oom_kill", "nic_down", "nvswitch_down", "rank_stuck", "shm_full", "switch_down",
        ),
        LOGS,
    ),
    "node_down": Logs(every=10, peers="silent"),
}  # fmt: skip
"""Stops whose logs are read too: where peers give up, the job has crashed, of the same cause."""
QUIET = ("healthy", "job_end", "periodic_checkpoint", "stale_xid")
"""Jobs that are well, and whose logs are read too."""
ABORT = Fault(at="72m", gone=True, on=Where(node="node-07"))
"""The watchdog of the communicators gives up on a healthy node, and its ranks are killed."""


@cache
def library() -> Library:
    return load()


class Seen(NamedTuple):
    """One diagnosis, and what held in it."""

    report: Report
    fired: Fired


def snapshot(path: Path) -> Snapshot:
    source = ScenarioSource(path)
    end = source.latest()
    return source.snapshot(library(), Window(end - 900, end))


def aborted(path: Path) -> Snapshot:
    """Read a scenario in which the ranks of one more node are killed in the end."""
    written = read(path)
    world = simulate(structs.replace(written, faults=(*written.faults, ABORT)))
    return assemble(ScenarioStore(world), library().in_use(), Window(world.end - 900, world.end))


def voiced(path: Path) -> Snapshot:
    """Read a scenario whose jobs write logs as well."""
    written = read(path)
    jobs = tuple(structs.replace(job, logs=VOICED.get(path.stem, LOGS)) for job in written.all_jobs())
    world = simulate(structs.replace(written, job=None, jobs=jobs))
    return watched(world, library(), Window(world.end - 900, world.end))


@cache
def seen(path: Path, how: Callable[[Path], Snapshot] = snapshot) -> Seen:
    """Diagnose a scenario, once in all tests of this file."""
    given = how(path)
    return Seen(diagnose(library(), given), fired(library(), given))


def everything() -> Iterator[Fired]:
    """Yield what held in each run of this file."""
    yield from (seen(path).fired for path in FILES)
    yield from (seen(path, aborted).fired for path in FILES if path.stem in STALLS)
    yield from (seen(path, voiced).fired for path in FILES if path.stem in {*VOICED, *QUIET})


def expected(path: Path) -> Expect:
    expect = read(path).expect
    assert expect is not None
    return expect


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_verdict_is_the_expected_one(path: Path) -> None:
    agree(expected(path), seen(path).report)


@pytest.mark.parametrize("path", [path for path in FILES if path.stem in STALLS], ids=lambda path: path.stem)
def test_ranks_that_the_watchdog_kills_change_nothing(path: Path) -> None:
    found = seen(path, aborted)
    agree(expected(path), found.report)
    assert "rank_gone" in found.fired.rules
    assert "rank_gone" not in {finding.finding for finding in found.report.unexplained}


@pytest.mark.parametrize("path", [path for path in FILES if path.stem in VOICED], ids=lambda path: path.stem)
def test_with_logs_beside_metrics_the_cause_is_the_same(path: Path) -> None:
    expect = structs.replace(expected(path), symptom="crashed", not_affected=())
    agree(expect, seen(path, voiced).report)


@pytest.mark.parametrize("path", [path for path in FILES if path.stem in QUIET], ids=lambda path: path.stem)
def test_logs_of_a_job_that_is_well_change_nothing(path: Path) -> None:
    found = seen(path, voiced).report
    agree(expected(path), found)
    assert "crashed_job" not in {finding.finding for finding in found.findings}


def agree(expect: Expect, found: Report) -> None:
    """Compare a report with what is expected of it."""
    summary = [(cause.cause, str(cause.entity), cause.probability) for cause in found.causes]
    assert (found.status, found.symptom) == (expect.status, expect.symptom), summary
    wanted = {(cause.cause, tuple(sorted(cause.entity.items()))) for cause in expect.causes}
    first = {(cause.cause, tuple(sorted(cause.entity.labels.items()))) for cause in found.causes[: len(wanted)]}
    assert first == wanted, summary
    sure = [cause for cause in found.causes if cause.probability >= 0.5 and cause.cause != "unknown"]
    assert len(sure) == len(wanted), summary
    for cause in expect.causes:
        check(cause, found.causes)


def check(expect: ExpectedCause, causes: list[Cause]) -> None:
    """Look at the probability and the chain of one expected cause."""
    cause = next(one for one in causes if one.cause == expect.cause)
    assert cause.probability >= expect.least
    through = [link.entity.labels for link in cause.chain] + [member.labels for member in cause.members]
    for labels in expect.through:
        assert any(labels.items() <= entity.items() or touches(labels, entity, cause) for entity in through), labels
    assert cause.evidence
    assert all(evidence.query for evidence in cause.evidence)
    assert cause.action.text
    assert cause.runbook


def touches(labels: dict[str, str], entity: dict[str, str], cause: Cause) -> bool:
    """Say whether a rank is in a chain by its queries: cells and jobs stand for the ranks that are late in them."""
    wanted = [f'{name}="{value}"' for name, value in labels.items()]
    return bool(entity) and any(all(part in evidence.query for part in wanted) for evidence in cause.evidence)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_is_not_affected_is_said(path: Path) -> None:
    said = {one.rule for one in seen(path).report.not_affected}
    assert set(expected(path).not_affected) <= said


def test_every_root_cause_is_named_in_a_scenario() -> None:
    roots = {rule.id for rule in library().rules.values() if rule.role == "root"}
    assert roots - {cause.cause for path in FILES for cause in expected(path).causes} == set()


def test_every_rule_holds_in_a_scenario_and_is_silent_in_another() -> None:
    rules = set(library().rules)
    assert {rule for rule in rules if not any(rule in one.rules for one in everything())} == set()
    assert {rule for rule in rules if not any(rule in one.silent_rules for one in everything())} == set()


def test_every_edge_leads_from_a_cause_to_a_finding_and_is_silent_in_another() -> None:
    never = edges(library()).difference(*(one.edges for one in everything()))
    assert never == set(), "delete what cannot be, or write down the incident in which it is"
    assert edges(library()).difference(*(one.silent_edges for one in everything())) == set()
