"""What GPUs count and report of themselves, and how it misleads: sticky codes, lifetime totals, sliding windows, echoes."""

import numpy as np
import pytest
from read_once import load
from synthetic import Job

from rca.evaluate import Look
from rca.library import Library
from rca.model import Floats

LATE = 260  # column of the whole matrix, twenty after the window began
ILL = 11


@pytest.fixture(scope="module")
def library() -> Library:
    return load()


def level(job: Job, value: float = 0.0) -> Floats:
    return np.full(job.signals["gpu_temperature"].shape, value)


def healthy() -> Job:
    """Return a job whose GPUs export everything and report nothing."""
    job = Job(tp=8, dp=8)
    for name in ("gpu_seen", "gpu_xid", "gpu_ecc_uncorrected", "gpu_ecc_corrected", "gpu_rows_uncorrectable"):
        job.signals[name] = level(job)
    for name in ("gpu_rows_correctable", "gpu_row_remap_failed", "gpu_nvlink_recoveries", "gpu_nvlink_crc_per_minute"):
        job.signals[name] = level(job)
    job.signals["gpu_fabric_health"] = level(job, 1.0)
    job.signals["gpu_fabric_manager"] = level(job, 3.0)
    job.signals["gpu_nvlink_state"] = level(job, 1.0)
    job.signals["gpu_memory_used"] = level(job, 76e3)
    job.signals["gpu_memory_free"] = level(job, 4e3)
    job.signals["rank_memory_reserved"] = level(job, 73e3)
    job.signals["rank_alloc_retries_per_minute"] = level(job)
    job.signals["rank_steps"] = np.broadcast_to(np.arange(level(job).shape[1]) * 6.0, level(job).shape).copy()
    return job


def found(library: Library, job: Job, rule: str) -> list[int]:
    """Return the rows on which a rule holds."""
    return np.flatnonzero(Look(library, job.snapshot(library)).judge(library.rules[rule]).state == 1).tolist()


def after(job: Job, signal: str, value: float, row: int = ILL) -> None:
    job.signals[signal][row, LATE:] = value


@pytest.mark.parametrize(
    "rule",
    ["gpu_memory_fault", "gpu_row_remap_degraded", "nvlink_fault", "nvswitch_fault", "application_error",
     "foreign_process", "memory_thrash"],
)  # fmt: skip
def test_nothing_is_found_where_nothing_is_reported(library: Library, rule: str) -> None:
    assert found(library, healthy(), rule) == []


@pytest.mark.parametrize("code", [48, 64, 94, 95, 140, 171, 172])
def test_a_new_xid_of_memory_is_a_fault(library: Library, code: float) -> None:
    job = healthy()
    after(job, "gpu_xid", code)
    assert found(library, job, "gpu_memory_fault") == [ILL]


@pytest.mark.parametrize("code", [48, 74, 79, 95])
def test_a_sticky_xid_tells_of_last_week(library: Library, code: float) -> None:
    job = healthy()
    job.signals["gpu_xid"][ILL] = code
    job.signals["gpu_xid"][ILL, LATE : LATE + 8] = np.nan  # a gap is no news either
    assert found(library, job, "gpu_memory_fault") == []
    assert found(library, job, "nvlink_fault") == []


def test_a_series_that_begins_with_its_first_code_is_news(library: Library) -> None:
    job = healthy()
    job.signals["gpu_xid"][ILL] = np.nan
    after(job, "gpu_xid", 95)
    assert found(library, job, "gpu_memory_fault") == [ILL]


@pytest.mark.parametrize("code", [13, 31, 43, 45, 63, 137, 145, 154])
def test_echoes_and_recorded_remaps_are_no_fault_of_memory(library: Library, code: float) -> None:
    job = healthy()
    after(job, "gpu_xid", code)
    for rule in ("gpu_memory_fault", "nvlink_fault", "nvswitch_fault", "application_error"):
        assert found(library, job, rule) == []


def test_a_sliding_count_that_begins_late_and_ends_stays_a_finding(library: Library) -> None:
    job = healthy()
    job.signals["gpu_memory_xids"] = level(job, np.nan)
    job.signals["gpu_memory_xids"][ILL, LATE : LATE + 20] = 1.0  # five minutes, then the window has slid on
    assert found(library, job, "gpu_memory_fault") == [ILL]
    job.signals["gpu_memory_xids"][ILL] = 0.0
    assert found(library, job, "gpu_memory_fault") == []


def test_an_echo_over_a_row_that_was_remapped_is_a_fault_of_memory(library: Library) -> None:
    job = healthy()
    after(job, "gpu_xid", 43)
    after(job, "gpu_rows_uncorrectable", 1)
    assert found(library, job, "gpu_memory_fault") == [ILL]
    assert found(library, job, "application_error") == []
    assert found(library, job, "gpu_row_remap_degraded") == []


@pytest.mark.parametrize("signal", ["gpu_ecc_uncorrected", "gpu_row_remap_failed"])
def test_counts_of_a_lifetime_matter_when_they_rise(library: Library, signal: str) -> None:
    job = healthy()
    job.signals[signal][ILL] = 7.0
    assert found(library, job, "gpu_memory_fault") == []
    after(job, signal, 8.0)
    assert found(library, job, "gpu_memory_fault") == [ILL]


def test_counters_that_fall_to_nothing_are_no_growth(library: Library) -> None:
    job = healthy()
    for signal in ("gpu_ecc_uncorrected", "gpu_rows_correctable", "gpu_row_remap_failed"):
        job.signals[signal][ILL] = 12.0
        after(job, signal, 0.0)
    assert found(library, job, "gpu_memory_fault") == []
    assert found(library, job, "gpu_row_remap_degraded") == []


def test_a_remapped_row_is_news_and_its_history_is_not(library: Library) -> None:
    job = healthy()
    job.signals["gpu_rows_correctable"][ILL] = 40.0
    assert found(library, job, "gpu_row_remap_degraded") == []
    after(job, "gpu_rows_correctable", 41.0)
    assert found(library, job, "gpu_row_remap_degraded") == [ILL]


def test_many_remapped_rows_count_where_the_cell_was_late_all_along(library: Library) -> None:
    job = healthy()
    job.signals["gpu_rows_correctable"][ILL] = 11.0
    for phase in ("rank_forward_seconds", "rank_backward_seconds"):
        job.signals[phase][8:16] *= 1.2
    assert found(library, job, "gpu_row_remap_degraded") == [ILL]
    for phase in ("rank_forward_seconds", "rank_backward_seconds"):
        job.signals[phase][8:16, :LATE] /= 1.2  # with an onset the level says nothing
    assert found(library, job, "gpu_row_remap_degraded") == []


def test_a_code_of_the_program_counts_on_a_rank_that_failed(library: Library) -> None:
    job = healthy()
    after(job, "gpu_xid", 31)
    assert found(library, job, "application_error") == []
    after(job, "rank_steps", np.nan)
    assert found(library, job, "application_error") == [ILL]


@pytest.mark.parametrize("code", [48, 79, 74, 119, 154])
def test_a_code_of_the_program_is_an_echo_beside_another_gpus_fault(library: Library, code: float) -> None:
    job = healthy()
    after(job, "gpu_xid", 43)
    after(job, "rank_steps", np.nan)
    after(job, "gpu_xid", code, row=40)
    assert found(library, job, "application_error") == []


def test_memory_given_back_is_a_rank_that_failed(library: Library) -> None:
    job = healthy()
    after(job, "gpu_xid", 13)
    after(job, "gpu_memory_used", 500.0)
    assert found(library, job, "application_error") == [ILL]


def test_one_gpu_is_a_link_and_two_are_the_switch(library: Library) -> None:
    job = healthy()
    after(job, "gpu_nvlink_recoveries", 4.0)
    assert found(library, job, "nvlink_fault") == [ILL]
    assert found(library, job, "nvswitch_fault") == []
    after(job, "gpu_nvlink_recoveries", 4.0, row=ILL + 1)
    assert found(library, job, "nvswitch_fault") == [ILL // 8]


def test_two_gpus_of_two_nodes_are_no_switch(library: Library) -> None:
    job = healthy()
    after(job, "gpu_nvlink_recoveries", 4.0)
    after(job, "gpu_nvlink_recoveries", 4.0, row=ILL + 8)
    assert found(library, job, "nvswitch_fault") == []


def test_a_link_that_was_never_up_has_not_gone_down(library: Library) -> None:
    job = healthy()
    job.signals["gpu_nvlink_state"][ILL] = 0.0
    assert found(library, job, "nvlink_fault") == []
    job.signals["gpu_nvlink_state"][ILL + 1, LATE:] = 0.0
    assert found(library, job, "nvlink_fault") == [ILL + 1]


def test_a_fabric_manager_that_never_started_is_none_that_fell(library: Library) -> None:
    job = healthy()
    job.signals["gpu_fabric_manager"][8:16] = 1.0
    assert found(library, job, "nvswitch_fault") == []
    job.signals["gpu_fabric_manager"][16:24, LATE:] = 4.0
    assert found(library, job, "nvswitch_fault") == [2]


def test_a_fatal_sxid_is_news_although_its_series_begins_with_it(library: Library) -> None:
    job = healthy()
    nodes = len(job.columns_of["node"]["node"])
    job.signals["node_nvswitch_fatal"] = np.full((nodes, level(job).shape[1]), np.nan)
    job.signals["node_nvswitch_fatal"][5, LATE:] = 20034.0
    assert found(library, job, "nvswitch_fault") == [5]
    job.signals["node_nvswitch_fatal"][5] = 20034.0
    assert found(library, job, "nvswitch_fault") == []


def test_a_stranger_is_memory_that_the_allocator_does_not_hold(library: Library) -> None:
    job = healthy()
    after(job, "gpu_memory_used", 79e3)
    assert found(library, job, "foreign_process") == [ILL]
    after(job, "rank_memory_reserved", 76e3)
    assert found(library, job, "foreign_process") == []


def test_memory_of_longer_samples_is_no_stranger(library: Library) -> None:
    job = healthy()
    after(job, "gpu_memory_used", 79e3)
    job.signals["rank_batch_tokens"][ILL] *= 1.2
    assert found(library, job, "foreign_process") == []


def test_a_full_memory_thrashes_only_where_the_allocator_tries_again(library: Library) -> None:
    job = healthy()
    after(job, "gpu_memory_free", 100.0)
    assert found(library, job, "memory_thrash") == []
    after(job, "rank_alloc_retries_per_minute", 6.0)
    assert found(library, job, "memory_thrash") == [ILL]
    after(job, "gpu_memory_free", 40e3)
    assert found(library, job, "memory_thrash") == []
