"""Every scenario through the whole pipeline: the right cause first on the right entity, and silence on decoys."""

from functools import cache
from pathlib import Path

import pytest

from rca.diagnose import diagnose
from rca.library import Library
from rca.load import load
from rca.model import Cause, Report, Window
from rca.physics.written import Expect, ExpectedCause
from rca.sources.scenario import ScenarioSource, read

FILES = sorted((Path(__file__).parents[1] / "scenarios").glob("*.yaml"))


@cache
def library() -> Library:
    return load()


@cache
def report(path: Path) -> Report:
    source = ScenarioSource(path)
    end = source.latest()
    return diagnose(library(), source.snapshot(library(), Window(end - 900, end)))


def expected(path: Path) -> Expect:
    expect = read(path).expect
    assert expect is not None
    return expect


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_verdict_is_the_expected_one(path: Path) -> None:
    expect, found = expected(path), report(path)
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
    said = {one.rule for one in report(path).not_affected}
    assert set(expected(path).not_affected) <= said
