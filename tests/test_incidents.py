"""The life of an incident: opened after a while, kept through gaps, closed with patience, never twice."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_report import cooling_fault

from rca.incidents import GONE, Incident, Pace, advance
from rca.model import JobSymptom, Report, ReportWindow
from rca.plain import stamp

PACE = Pace(hold=60.0, keep=300.0)
START = 1_772_373_900.0
ILL = cooling_fault()
JOB = ILL.jobs[0]
HEALTHY = msgspec.structs.replace(ILL, status="healthy", symptom="none", symptoms=[JobSymptom(JOB, "none")], causes=[])
UNSURE = msgspec.structs.replace(
    ILL, status="inconclusive", causes=[msgspec.structs.replace(ILL.causes[0], probability=0.4)]
)
BLIND = msgspec.structs.replace(HEALTHY, status="inconclusive", jobs=[], symptoms=[])


def at(report: Report, seconds: float) -> Report:
    """Return a report as of so many seconds after the start."""
    end = START + seconds
    return msgspec.structs.replace(report, window=ReportWindow(stamp(end - 900.0), stamp(end), 15.0))


def live(reports: Sequence[tuple[Report, float]], pace: Pace = PACE) -> list[Incident]:
    """Let reports come in, and return all incidents after the last."""
    known: dict[str, Incident] = {}
    for report, seconds in reports:
        known |= {one.id: one for one in advance(list(known.values()), at(report, seconds), pace)}
    return sorted(known.values(), key=lambda one: one.first)


def ticks(report: Report, first: float, last: float) -> list[tuple[Report, float]]:
    """Return a report every thirty seconds."""
    return [(report, first + 30.0 * number) for number in range(int((last - first) / 30.0) + 1)]


def test_it_opens_when_it_has_lasted() -> None:
    [pending] = live(ticks(ILL, 0, 30))
    [opened] = live(ticks(ILL, 0, 60))
    assert (pending.state, pending.opened) == ("pending", None)
    assert (opened.state, opened.opened, opened.first) == ("open", START + 60.0, START)
    assert opened.id == pending.id


def test_one_that_passes_at_once_never_opens() -> None:
    [passed] = live([(ILL, 0), (HEALTHY, 30), (HEALTHY, 60)])
    assert (passed.state, passed.opened) == ("closed", None)


def test_it_closes_with_patience_and_as_of_the_first_healthy_report() -> None:
    ill = ticks(ILL, 0, 300)
    [still] = live(ill + ticks(HEALTHY, 330, 600))
    [closed] = live(ill + ticks(HEALTHY, 330, 630))
    assert still.state == "open"
    assert (closed.state, closed.well, closed.closed) == ("closed", START + 330.0, START + 630.0)


@pytest.mark.parametrize("silent", [BLIND, UNSURE], ids=["no data", "less sure"])
def test_what_says_nothing_ends_nothing(silent: Report) -> None:
    incidents = live(ticks(ILL, 0, 300) + ticks(silent, 330, GONE - 60.0))
    assert [(one.cause, one.state) for one in incidents] == [("gpu_thermal_throttling", "open")]


def test_a_short_gap_is_bridged() -> None:
    [one] = live(ticks(ILL, 0, 300) + ticks(HEALTHY, 330, 500) + ticks(ILL, 530, 600))
    assert (one.state, one.flaps, one.well) == ("open", 0, None)


def test_what_comes_back_soon_is_the_same_and_closes_later() -> None:
    first = ticks(ILL, 0, 300) + ticks(HEALTHY, 330, 660) + [(ILL, 900.0)]
    [back] = live(first)
    [still] = live(first + ticks(HEALTHY, 930, 1500))
    [closed] = live(first + ticks(HEALTHY, 930, 1530))
    assert (back.state, back.flaps, back.closed) == ("open", 1, None)
    assert still.state == "open"
    assert (closed.state, closed.well, closed.closed) == ("closed", START + 930.0, START + 1530.0)


def test_what_comes_back_late_is_another() -> None:
    again = ticks(ILL, 0, 300) + ticks(HEALTHY, 330, 660) + ticks(ILL, 1560, 1620)
    assert [one.state for one in live(again)] == ["closed", "open"]


def test_what_never_opened_begins_anew() -> None:
    first, second = live([(ILL, 0), (HEALTHY, 30), *ticks(ILL, 60, 90)])
    assert (first.opened, second.state, second.flaps) == (None, "pending", 0)


def test_a_job_without_a_sure_cause_is_an_incident_of_unknown_cause() -> None:
    [one] = live(ticks(UNSURE, 0, 60))
    assert (one.cause, one.job, one.state) == ("unknown", JOB, "open")
    assert "gpu_thermal_throttling on gpu node=node-07 gpu=1 has 40 %" in one.summary


def test_a_cause_that_is_found_later_takes_over() -> None:
    unknown, named = live(ticks(UNSURE, 0, 90) + ticks(ILL, 120, 600))
    assert (unknown.cause, unknown.state) == ("unknown", "closed")
    assert (named.cause, named.state) == ("gpu_thermal_throttling", "open")


def test_another_cause_of_the_same_job_ends_the_first() -> None:
    cause = msgspec.structs.replace(ILL.causes[0], cause="slow_local_disk")
    other = msgspec.structs.replace(ILL, causes=[cause])
    first, second = live(ticks(ILL, 0, 120) + ticks(other, 150, 600))
    assert (first.state, second.state) == ("closed", "open")


def test_a_job_that_has_gone_takes_its_incidents_along() -> None:
    others = msgspec.structs.replace(HEALTHY, jobs=["another"], symptoms=[])
    [one] = live(ticks(ILL, 0, 300) + ticks(others, 330, 300 + GONE))
    assert (one.state, one.well) == ("closed", START + 300.0)


def test_the_work_lost_is_counted_in_hours_of_gpus() -> None:
    slowdown = ILL.symptoms[0].slowdown
    assert slowdown is not None
    [one] = live(ticks(ILL, 0, 3600))
    lost = ILL.causes[0].impact.ranks * (1.0 - 1.0 / slowdown)
    hours = (one.last - one.since) / 3600.0
    assert one.gpu_hours_lost == pytest.approx(lost * hours, rel=1e-9)


def test_a_report_of_the_past_changes_nothing() -> None:
    known = live(ticks(ILL, 0, 300))
    assert not advance(known, at(HEALTHY, 120), PACE)
    assert not advance(known, at(ILL, 120), PACE)


REPORTS = st.lists(st.sampled_from([ILL, HEALTHY, UNSURE, BLIND]), max_size=60)


@settings(deadline=None)
@given(REPORTS)
def test_of_one_trouble_there_is_never_more_than_one_incident_alive(reports: list[Report]) -> None:
    known = live([(report, 30.0 * number) for number, report in enumerate(reports)])
    alive = [one.key for one in known if one.state != "closed"]
    assert len(alive) == len(set(alive))


@settings(deadline=None)
@given(REPORTS, st.integers(0, 59))
def test_reports_that_come_twice_change_nothing(reports: list[Report], where: int) -> None:
    once = [(report, 30.0 * number) for number, report in enumerate(reports)]
    twice = [*once[: where + 1], *once[where : where + 1], *once[where + 1 :]]
    assert live(twice) == live(once)
