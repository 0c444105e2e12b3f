"""How far jobs are: what reports tell of it, what that costs to ask, and that nothing unknown is told as known."""

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import SCENARIOS
from read_once import load
from small_library import entities

from rca.diagnose import diagnose
from rca.glance import reduced
from rca.library import TOLD, Library, Signal
from rca.model import Measurement, Progress, Snapshot, Table, Window
from rca.progress import BUSY, LATEST, in_all, progress
from rca.render import json, text
from rca.sources import recording
from rca.sources.scenario import ScenarioSource

UNITS = {"job_loss": "loss", "job_step_seconds": "seconds"}
LIBRARY = Library(
    signals={
        **{name: Signal(summary=name, entity="job", layer="training", unit=UNITS.get(name, "count")) for name in TOLD},
        **{name: Signal(summary=name, entity="gpu", layer="resource", unit="ratio") for name in BUSY},
    },
    entities=entities(),
    rules={},
)
COLUMNS = 40
NUMBERS = st.one_of(st.just(math.nan), st.floats(0.0, 1e15), st.just(1e300))


def table(kind: str, key: tuple[str, ...], **columns: list[str]) -> Table:
    """Return a table."""
    return Table(kind, key, {name: np.array(values, dtype=object) for name, values in columns.items()})


def snapshot(jobs: list[str], told: dict[str, list[list[float]]], gpus: list[str] | None = None) -> Snapshot:
    """Return what was seen of jobs: rows of samples, the last at the end of the window; `gpus` names the job of each."""
    measured = {}
    for name, rows in told.items():
        values = np.full((len(rows), COLUMNS), np.nan)
        for row, samples in enumerate(rows):
            values[row, COLUMNS - len(samples) :] = samples
        measured[name] = Measurement(values)
    numbers = [str(number) for number in range(len(gpus or []))]
    tables = {
        "job": table("job", ("job",), job=jobs),
        "gpu": table("gpu", ("node", "gpu"), node=["n"] * len(numbers), gpu=numbers, job=gpus or []),
    }
    times = 1e9 + 15.0 * np.arange(COLUMNS)
    return Snapshot(times, times[:0], 15.0, tables, measured)


def one(told: dict[str, list[float]], gpus: list[str] | None = None) -> Progress:
    """Return what is told of a job."""
    busy = {name: [[value] for value in values] for name, values in told.items() if name in BUSY}
    [found] = progress(LIBRARY, snapshot(["a"], {name: [row] for name, row in told.items()} | busy, gpus))
    return found


def test_what_is_told_is_of_the_last_five_minutes() -> None:
    lately = round(LATEST / 15.0)
    told = one(
        {
            "job_step_number": [90.0] * 10 + [100.0, 101.0, math.nan],
            "job_target_steps": [1001.0],
            "job_step_seconds": [9.0] * 20 + [4.0] * lately,
            "job_loss": [3.0] * 20 + [2.0] * lately,
            "job_tokens_per_gpu": [1.0] * lately,
            "job_gpus": [7.0, 8.0, 8.0],
            "job_tokens": [808.0],
        }
    )
    assert told == Progress(
        job="a", at="2001-09-09T01:56:25Z", step=101, target_step=1001, tokens=808, tokens_per_gpu_second=1.0,
        step_seconds=4.0, loss=2.0, ranks=8, eta_seconds=3600.0,
    )  # fmt: skip
    old = {"job_loss": [[2.0] * 10 + [math.nan] * lately]}
    assert progress(LIBRARY, snapshot(["a"], old)) == [], "what was before that is not known any more"


def test_steps_of_the_process_count_where_the_number_of_the_step_is_not_told() -> None:
    assert one({"job_steps": [5.0]}).step == 5
    assert one({"job_steps": [5.0], "job_step_number": [105.0]}).step == 105


def test_what_is_done_is_not_to_be_done_again() -> None:
    told = {"job_steps": [5.0], "job_step_seconds": [2.0]}
    assert one({**told, "job_target_steps": [5.0]}).eta_seconds == 0.0
    assert one({**told, "job_target_steps": [4.0]}).eta_seconds == 0.0
    assert one(told).eta_seconds is None


def test_busy_is_told_by_the_best_signal_over_the_own_gpus() -> None:
    gpus = ["a", "a", "a", "b"]
    told = {"gpu_utilisation": [100.0, 98.0, 96.0, 0.0]}
    assert (one(told, gpus).busy, one(told, gpus).busy_signal) == (0.98, "gpu_utilisation")
    told["gpu_tensor_active"] = [0.5, 0.4, math.nan, 0.1]
    assert (one(told, gpus).busy, one(told, gpus).busy_signal) == (0.45, "gpu_tensor_active")


def test_a_signal_of_another_kind_is_not_read() -> None:
    odd = msgspec.structs.replace(LIBRARY.signals["job_loss"], entity="gpu")
    library = msgspec.structs.replace(LIBRARY, signals={**LIBRARY.signals, "job_loss": odd})
    assert progress(library, snapshot(["a"], {"job_loss": [[2.0]]})) == []
    assert progress(Library(signals={}, entities=entities(), rules={}), snapshot(["a"], {})) == []


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([*TOLD, *BUSY]), st.lists(NUMBERS, min_size=1, max_size=5)))
def test_nothing_unknown_is_told_as_a_number(told: dict[str, list[float]]) -> None:
    for found in progress(LIBRARY, snapshot(["a"], {name: [row] for name, row in told.items()}, ["a"])):
        numbers = [value for value in msgspec.structs.astuple(found) if isinstance(value, float)]
        assert all(map(math.isfinite, numbers))
        assert msgspec.json.decode(msgspec.json.encode(found), type=Progress) == found


@given(st.floats(1.0, 1e6), st.integers(1, 10**6), st.integers(0, 10**6), st.booleans())
def test_tokens_count_over_restarts_whoever_counts_them(per_step: float, done: int, before: int, whole: bool) -> None:
    number = float(done + before)
    counted = per_step * (number if whole else done)
    assert in_all(counted, float(done), number, per_step) == pytest.approx(per_step * number)


def test_signals_that_reports_tell_are_asked_for_and_not_by_a_glance() -> None:
    library = load()
    assert library.in_use().signals.keys() >= {*TOLD, "rank_tokens"}
    assert not {"job_tokens", "rank_tokens", "job_target_steps"} & reduced(library).signals.keys()
    alone = msgspec.structs.replace(library, rules={}).in_use()
    assert {signal.entity for signal in alone.signals.values()} == {"job", "rank"}


def test_a_report_tells_how_far_a_scenario_is_and_a_recording_tells_the_same(tmp_path: Path) -> None:
    library, source = load(), ScenarioSource(SCENARIOS / "cooling_fault.yaml")
    window = Window(source.latest() - 900.0, source.latest())
    seen = source.snapshot(library, window)
    report = diagnose(library, seen)
    [told] = report.progress
    assert (told.job, told.at, told.ranks) == ("llama-70b", report.window.end, 64)
    assert told.step is not None
    assert told.tokens == pytest.approx(told.step * 5520 * 4096, rel=1e-3)
    assert told.eta_seconds == pytest.approx((188_000 - told.step) * 6.84, rel=0.01)
    assert (told.busy_signal, told.busy) == ("gpu_tensor_active", pytest.approx(0.32, abs=0.05))
    said = text.render(report).splitlines()[3]
    assert said.startswith(f"llama-70b: step {told.step:,} of 188,000, about 13 d ")
    assert said.endswith(" tokens/GPU/s")
    recording.write(tmp_path / "seen.zip", seen, window)
    again = recording.RecordingSource(tmp_path / "seen.zip").snapshot(library, window)
    assert json.render(diagnose(library, again)) == json.render(report)
    assert diagnose(library, seen, ["nobody"]).progress == []
