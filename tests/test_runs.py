"""Runs of a job: where one ends, whether it learns, and how it compares."""

import math
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from courses import BATCH, course
from hypothesis import given
from hypothesis import strategies as st

from rca import runs
from rca.model import Progress
from rca.render import html

MAYBE = st.none() | st.integers(0, 10**13)
NUMBERS = st.none() | st.floats(0.0, 1e9)
ROWS = st.lists(
    st.builds(
        Progress, job=st.just("a"), at=st.just("2026-03-01T14:05:00Z"), step=MAYBE, tokens=MAYBE, loss=NUMBERS,
        tokens_per_gpu_second=NUMBERS, busy=NUMBERS, busy_signal=st.sampled_from(["", "gpu_tensor_active"]),
    ),
    min_size=1, max_size=40,
)  # fmt: skip


def learns(losses: list[float]) -> str:
    """Say whether a run with these losses learns."""
    rows = course("a", 0.0, len(losses))
    return runs.learning(
        runs.Run(tuple(msgspec.structs.replace(row, loss=loss) for row, loss in zip(rows, losses, strict=True)))
    )


@given(ROWS)
def test_runs_are_all_rows_and_in_none_the_step_falls(rows: list[Progress]) -> None:
    found = runs.parted(rows)
    assert [row for run in found for row in run.rows] == rows
    for run in found:
        steps = [row.step for row in run.rows if row.step is not None]
        assert steps == sorted(steps)
    for before, after in pairwise(found):
        reached = max(row.step for row in before.rows if row.step is not None)
        assert after.rows[0].step is not None
        assert after.rows[0].step < reached


@given(ROWS)
def test_whatever_is_known_something_true_to_form_is_said(rows: list[Progress]) -> None:
    found = runs.parted(rows)
    for said in (runs.learning(found[-1]), runs.activity(found[-1]), runs.comparison(found)):
        assert said == "" or said.endswith(".")
        assert "nan" not in said
    names = [str(number) for number in range(len(found))]
    for drawn in html.runs(runs.plots(found, names)):
        assert "nan" not in drawn.svg


def test_a_loss_falls_rises_or_it_cannot_be_told() -> None:
    noise = 0.01 * np.random.default_rng(1).standard_normal(96)
    ramp = np.linspace(0.0, 0.2, 96)
    assert learns((3.0 - ramp + noise).tolist()).startswith("The loss falls: 2.")
    assert learns((3.0 + ramp + noise).tolist()).startswith("The loss rises: 3.")
    assert learns((3.0 + noise).tolist()).startswith("It cannot be told whether the loss still falls: ")
    slowly = learns((3.0 - 0.1 * ramp + noise).tolist())
    assert slowly.startswith("The loss falls: "), "a longer stretch tells what a short one cannot"
    assert learns([3.0] * 11) == "It cannot be told yet whether the loss falls: it is known at 11 times, 12 are needed."


def test_healthy_noise_is_seldom_taken_for_a_change() -> None:
    noise = np.random.default_rng(2).standard_normal((300, 96))
    told = [learns((3.0 + 0.01 * row).tolist()).startswith("The loss ") for row in noise]
    assert np.mean(told) < 0.05


def test_a_job_that_stands_does_not_learn() -> None:
    rows = [msgspec.structs.replace(row, step=5, tokens=5) for row in course("a", 0.0, 20)]
    assert runs.learning(runs.Run(tuple(rows))).endswith("no step was done.")


def test_runs_are_compared_at_the_last_place_that_both_have_reached() -> None:
    earlier, present = course("a", 0.0, 60, rate=3550.0, worse=0.05), course("a", 1e5, 40)
    assert [len(run.rows) for run in runs.parted([*earlier, *present])] == [60, 40]
    said = runs.comparison(runs.parted([*earlier, *present]))
    place = present[-1].step or 0
    assert said.startswith(f"At {place * BATCH / 1e9:.1f} B tokens: loss 2.")
    assert said.endswith("; throughput 4 % lower.")
    assert runs.comparison(runs.parted(present)) == ""


def test_where_a_run_went_on_beyond_the_one_before_that_is_said() -> None:
    earlier, present = runs.Run(tuple(course("a", 0.0, 5))), runs.Run(tuple(course("a", 1e5, 5, first=9000)))
    assert (
        runs.comparison([earlier, present]) == "The run before ended at 1.37 B tokens, this one began at 38.0 B tokens."
    )


def test_steps_stand_in_where_tokens_are_not_known() -> None:
    blind = [msgspec.structs.replace(row, tokens=None) for row in course("a", 0.0, 20)]
    found = runs.parted([*blind, *course("a", 1e5, 30)])
    assert runs.axis(found) == "step"
    assert runs.axis(found[1:]) == "tokens"
    assert runs.comparison(found).startswith("At step 1,304: ")
    loss, rate = runs.plots(found, ["1 before", "present"])
    assert (loss.title, rate.title) == ("Loss over steps", "Tokens per GPU and second over steps")
    assert [one.name for one in loss.curves] == ["present", "1 before"]
    assert "the present run, last 2.3" in loss.about


def test_a_chart_names_its_runs_and_is_cut_where_a_loss_begins() -> None:
    rows = [*course("a", 0.0, 100), *course("a", 1e5, 80)]
    rows[100] = msgspec.structs.replace(rows[100], loss=99.0)
    loss = html.runs(runs.plots(runs.parted(rows), ["<1 before>", "present"]))[0]
    assert "<title>&lt;1 before&gt;</title>" in loss.svg
    assert loss.svg.count("<polyline") == 2
    ticks = [part.partition("<")[0] for part in loss.svg.split('text-anchor="end">')[1:]]
    assert max(map(float, ticks)) < 4.0


def test_the_activity_of_gpus_is_told_against_what_is_usual() -> None:
    rows = course("a", 0.0, 9)
    rows[-1] = msgspec.structs.replace(rows[-1], busy=0.2)
    said = runs.activity(runs.Run(tuple(rows)))
    assert said == "The tensor pipes work 20 % of the time, median of the GPUs; 42 % is usual in this run."
    blind = [msgspec.structs.replace(row, busy=None) for row in rows]
    assert runs.activity(runs.Run(tuple(blind))) == "It is not known whether the GPUs are busy."


@pytest.mark.parametrize("name", ["loss", "tokens", "step"])
def test_numbers_that_are_not_known_are_no_numbers(name) -> None:
    run = runs.Run((Progress(job="a", at=""),))
    assert math.isnan(run.last(name))
    assert runs.plots([run], ["present"]) == []
