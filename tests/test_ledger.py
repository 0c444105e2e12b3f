"""What the lines of a training log add up to."""

import math
import re
from datetime import UTC
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_lines import BLOCK, EACH, HEAD, LINES, OLD

from rca.ledger import Ledger, Options
from rca.ledger.families import FAMILIES, family_of
from rca.parsers import Reader, Record

Found = dict[str, float]


def told(text: str, options: Options | None = None, at: float = 1000.0) -> Found:
    """Return the values of a log, by name and labels without the job."""
    reader, ledger = Reader(None, UTC), Ledger(options)
    for number, record in enumerate(reader.take(text.encode()) + reader.flush()):
        ledger.add(record, at + number)
    return values(ledger)


def values(ledger: Ledger) -> Found:
    found: Found = {}
    for one in ledger.samples():
        labels = ",".join(f"{name}={value}" for name, value in one.labels.items() if name != "job_id")
        found[f"{one.name}{{{labels}}}"] = one.value
    return found


def line(step: int, more: str = "lm loss: 2.0 |", seconds: float = 0.5) -> str:
    head = f"iteration {step}/ 1000 | consumed samples: {step * 64} | elapsed time per iteration (ms): {seconds * 1e3:.1f} |"
    return f"{head} global batch size: 64 | {more}\n"


def test_a_line_of_the_newest_megatron() -> None:
    found = told("seq_length ..... 4096\nworld_size ..... 16\n" + HEAD + "\n", Options("j", gpus_per_server=8))
    tokens = 1024 * 4096
    expected = {
        "train_step{rank=15}": 100.0, "train_steps_total{rank=15}": 1.0, "train_target_steps{}": 500000.0,
        "train_progress_ratio{}": 0.0002, "train_eta_seconds{}": 499900 * 4.1234,
        "train_step_seconds{rank=15}": 4.1234, "train_step_duration_seconds_sum{rank=15}": 4.1234,
        "train_step_duration_seconds_count{rank=15}": 1.0, "train_loss{rank=15,loss=lm}": 2.125,
        "train_loss{rank=15,loss=load_balancing}": 0.01, "train_grad_norm{rank=15}": 0.312, "train_params_norm{rank=15}": 2731.402,
        "train_learning_rate{rank=15}": 1.5e-4, "train_loss_scale{rank=15}": 1.0, "train_skipped_steps_total{rank=15}": 1.0,
        "train_nonfinite_steps_total{rank=15,kind=nan}": 0.0, "train_nonfinite_steps_total{rank=15,kind=inf}": 0.0,
        "train_model_flops_per_second{rank=15}": 412.3e12, "train_gpu_power_watts{rank=15}": 610.5,
        "train_gpu_energy_per_step_joules{rank=15}": 2450.0, "train_samples_total{rank=15}": 1024.0, "train_tokens_total{rank=15}": tokens,
        "train_tokens_per_second{}": tokens / 4.1234, "train_tokens_per_gpu_per_second{}": tokens / 4.1234 / 16,
        "train_billion_tokens_per_server_per_day{}": tokens / 4.1234 / 16 * 8 * 86400 / 1e9,
        "train_last_step_timestamp_seconds{rank=15}": 1787412142.5, "train_state{rank=15,state=train}": 1.0,
        "train_state{rank=15,state=init}": 0.0, "train_restarts_total{rank=15,reason=unknown}": 0.0,
        "train_job_info{world_size=16,seq_len=4096}": 1.0,
    }  # fmt: skip
    assert {key: found.get(key) for key in expected} == pytest.approx(expected)


def test_steps_between_lines_count_and_their_mean_counts_for_each() -> None:
    found = told(line(10) + line(20, seconds=1.0))
    assert found["train_steps_total{rank=last}"] == 11.0
    assert found["train_step_duration_seconds_count{rank=last}"] == 11.0
    assert found["train_step_duration_seconds_sum{rank=last}"] == pytest.approx(0.5 + 10.0)
    assert found["train_samples_total{rank=last}"] == 64.0 + 640.0
    with_interval = told("log_interval ..... 10\n" + line(10) + line(20))
    assert with_interval["train_steps_total{rank=last}"] == 20.0


def test_what_is_printed_of_throughput_goes_before_what_is_worked_out() -> None:
    found = told(LINES["aiak"][0] + "\n", Options(world_size=8, sequence_length=10, gpus_per_server=8))
    assert found["train_tokens_per_gpu_per_second{}"] == 3456.5
    assert found["train_billion_tokens_per_server_per_day{}"] == 2.389
    assert found["train_step{rank=7}"] == 10.0


def test_a_loss_that_is_no_number_is_counted_and_absent() -> None:
    nan = "number of skipped iterations: 0 | number of nan iterations: 2 |"
    found = told(line(1) + line(5, nan))
    assert not any(key.startswith("train_loss{") for key in found)
    assert found["train_nonfinite_steps_total{rank=last,kind=nan}"] == 2.0
    assert found["train_steps_total{rank=last}"] == 5.0
    printed = told(line(1, "lm loss: nan | grad norm: inf |"))
    assert printed["train_nonfinite_steps_total{rank=last,kind=nan}"] == 1.0
    assert printed["train_nonfinite_steps_total{rank=last,kind=inf}"] == 1.0
    assert not any(key.startswith(("train_loss{", "train_grad_norm")) for key in printed)


def test_training_that_goes_on_from_a_checkpoint_is_a_restart() -> None:
    loaded = " successfully loaded checkpoint from /ckpt at iteration 20\n"
    again = told(line(10) + line(20) + line(30) + loaded + line(30))
    assert again["train_restarts_total{rank=last,reason=unknown}"] == 1.0
    assert again["train_steps_total{rank=last}"] == 1 + 20 + 10
    back = told(line(10) + line(20) + line(11) + line(12))
    assert back["train_restarts_total{rank=last,reason=unknown}"] == 1.0
    assert back["train_steps_total{rank=last}"] == 1 + 10 + 1 + 1
    assert back["train_samples_total{rank=last}"] == 64 * 13
    assert told(loaded + line(30))["train_restarts_total{rank=last,reason=unknown}"] == 0.0


def test_timers_of_all_ranks() -> None:
    found = told(line(1) + line(11) + EACH)
    assert found["train_phase_duration_seconds_sum{rank=1,phase=forward_compute}"] == pytest.approx(15.0)
    assert found["train_phase_duration_seconds_count{rank=1,phase=forward_compute}"] == 10.0
    assert found["train_steps_total{rank=1}"] == 10.0
    assert found["train_communication_ratio{}"] == pytest.approx(0.05 / 0.5)


def test_timers_without_a_rank() -> None:
    found = told(line(1, seconds=4.0) + BLOCK)
    assert found["train_phase_min_seconds{phase=forward_compute}"] == pytest.approx(1.25)
    assert found["train_phase_max_seconds{phase=forward_compute}"] == pytest.approx(1.5)
    assert found["train_checkpoint_duration_seconds_sum{rank=last,op=save,mode=async}"] == pytest.approx(1.0)
    one = told(line(1) + line(3) + LINES["one line of timers"][0] + "\n")
    assert one["train_phase_duration_seconds_sum{rank=last,phase=backward_compute}"] == pytest.approx(5.0)


def test_micro_batches_make_a_step_where_the_step_is_not_timed_itself() -> None:
    timers = LINES["deepspeed timers"][0] + "\n"
    step = LINES["deepspeed"][0] + "\n"
    found = told(step.replace("step=10", "step=9") + timers + timers + step)
    assert found["train_phase_duration_seconds_sum{rank=0,phase=backward_compute}"] == pytest.approx(0.04)
    whole = "[Rank 0] time (ms) | fwd: 21.00 | bwd_inner: 42.00 | step: 5.00\n"
    found = told(step.replace("step=10", "step=9") + timers + timers + whole + step)
    assert found["train_phase_duration_seconds_sum{rank=0,phase=backward_compute}"] == pytest.approx(0.042)


def test_two_frameworks_that_print_one_step_count_it_once() -> None:
    engine = "[2026-08-22 15:22:{:02d},000] [INFO] [logging.py:96:log_dist] [Rank 0] step={}, skipped=0, lr=[0.1], mom=[(0.9, 0.95)]\n"
    text = "".join(engine.format(step, step) + (line(step) if step else "") for step in range(5))
    found = told(text)
    assert found["train_steps_total{rank=last}"] == 4.0
    assert found["train_step_duration_seconds_count{rank=last}"] == 4.0
    assert found["train_step_duration_seconds_sum{rank=last}"] == pytest.approx(2.0)
    assert found["train_samples_total{rank=last}"] == 256.0
    alone = told("".join(engine.format(step, step) for step in range(5)))
    assert alone["train_step_duration_seconds_sum{rank=0}"] == pytest.approx(3.0)
    assert alone["train_step_seconds{rank=0}"] == 1.0


def test_steps_that_deepspeed_leaves_out_count_once() -> None:
    over, step = LINES["deepspeed overflow"][0] + "\n", LINES["deepspeed"][0] + "\n"
    assert told(over + over + step)["train_skipped_steps_total{rank=0}"] == 2.0
    later = step.replace("step=10, skipped=2", "step=20, skipped=5")
    assert told(over + over + step + over + later)["train_skipped_steps_total{rank=0}"] == 5.0


def test_checkpoints() -> None:
    def stamped(second: int, text: str) -> str:
        return f"[2026-08-22 15:{second // 60:02d}:{second % 60:02d}] {text}\n"

    saves = [
        stamped(60, "saving checkpoint at iteration 5 to /c"),
        stamped(90, "successfully saved checkpoint from iteration 5 to /c"),
    ]
    text = line(5) + "".join(saves)
    assert told(text)["train_state{rank=last,state=train}"] == 1.0
    assert told(line(5) + saves[0])["train_state{rank=last,state=save_checkpoint}"] == 1.0
    progress = "Saved checkpoint\tIteration: 5\tJob throughput: 1 TFLOP/s/GPU\n"
    found = told(text + progress + line(6) + stamped(660, "successfully saved checkpoint from iteration 9 to /c"))
    assert found["train_checkpoint_duration_seconds_sum{rank=last,op=save,mode=sync}"] == 30.0
    assert found["train_checkpoint_duration_seconds_count{rank=last,op=save,mode=sync}"] == 1.0
    assert found["train_last_checkpoint_step{rank=last}"] == 9.0
    assert found["train_checkpoint_interval_seconds{rank=last}"] == 570.0
    timer = "max time across ranks (ms):\n    save-checkpoint .......................: 29500.00\n"
    found = told(text + timer + line(6))
    assert found["train_checkpoint_duration_seconds_sum{rank=last,op=save,mode=sync}"] == 29.5
    assert found["train_checkpoint_duration_seconds_count{rank=last,op=save,mode=sync}"] == 1.0


def test_ranks_that_are_first_and_last_in_something_until_the_next_report() -> None:
    report = "| MnRtt/Rnk: 10.00ms/{0} | MxRtt/Rnk: 20.00ms/0 | MnClk/Rnk: 1410.00MHz/{0} | MnUtl/Rnk: 97%/{0} | MxDRtt/Rnk: 34.50ms/2\n"
    found = told(report.format(8) + LINES["bottom ranks"][0] + "\n" + report.format(9))
    assert {key: value for key, value in found.items() if "straggler" in key} == pytest.approx({
        "train_straggler_round_trip_seconds{rank=9,extreme=min}": 0.01, "train_straggler_round_trip_seconds{rank=0,extreme=max}": 0.02,
        "train_straggler_clock_hertz{rank=9,extreme=min}": 1.41e9, "train_straggler_utilisation_ratio{rank=9,extreme=min}": 0.97,
        "train_straggler_data_wait_seconds{rank=2,extreme=max}": 0.0345,
    })  # fmt: skip


def test_what_ranks_say_of_themselves() -> None:
    found = told(
        "\n".join(LINES[name][0] for name in ("memory", "rerun", "rerun, persistent", "unexpected result")) + "\n"
    )
    assert found["train_gpu_memory_peak_bytes{rank=22}"] == 16373.75 * 2**20
    assert found["train_rerun_mismatches_total{rank=5}"] == 2.0
    assert found["train_unexpected_results_total{rank=3}"] == 1.0


def test_structured_logs_of_ranks() -> None:
    step = '{{"rank": {}, "event": "TRAIN_STEP", "extra": {{"step": {}, "step_seconds": 0.5, "data_wait_seconds": 0.1, "tokens": 4096, "loss": {}}}}}\n'
    text = "".join(step.format(rank, number, "2.5") for number in (7, 8) for rank in (0, 1))
    text += '{"rank": 1, "event": "NONFINITE", "extra": {"loss": "nan"}}\n' + step.format(1, 9, "NaN")
    text += '{"rank": 0, "level": "ERROR", "event": "NCCL_TIMEOUT"}\n{"rank": 0, "event": "CUDA_OOM"}\n'
    text += '{"rank": 1, "event": "RANK_START", "extra": {"world_size": 2}}\n'
    found = told(text)
    expected = {
        "train_steps_total{rank=0}": 2.0, "train_steps_total{rank=1}": 3.0, "train_step_duration_seconds_sum{rank=1}": 1.5,
        "train_data_wait_seconds_total{rank=0}": 0.2, "train_tokens_total{rank=0}": 8192.0, "train_loss{rank=0,loss=lm}": 2.5,
        "train_nonfinite_steps_total{rank=1,kind=nan}": 1.0, "train_oom_total{rank=0}": 1.0,
        "train_log_events_total{rank=0,event=NCCL_TIMEOUT,level=ERROR}": 1.0,
        "train_restarts_total{rank=1,reason=unknown}": 1.0, "train_job_info{world_size=2}": 1.0,
    }  # fmt: skip
    assert {key: found.get(key) for key in expected} == pytest.approx(expected)
    assert "train_loss{rank=1,loss=lm}" not in found
    assert "train_eta_seconds{}" not in found


def test_the_rank_that_prints_is_what_is_known_of_it() -> None:
    assert "train_step{rank=last}" in told(OLD + "\n")
    assert "train_step{rank=3}" in told(OLD + "\n", Options(rank="3"))
    assert "train_step{rank=63}" in told(LINES["sizes"][0] + "\n" + OLD + "\n")
    assert "train_step{rank=0}" in told(LINES["trainer beside a bar"][0] + "\n")
    assert "train_step{rank=reporter}" in told(LINES["torchtitan"][0] + "\n")


def test_every_sample_has_a_family_and_counters_never_fall() -> None:
    reader, ledger, before = Reader(None, UTC), Ledger(), dict[str, float]()
    text = "".join(f"{text}\n" for text, *_ in LINES.values()) + BLOCK + EACH
    for record in reader.take((text * 2).encode()):
        ledger.add(record, 1000.0)
        for one in ledger.samples():
            assert math.isfinite(one.value)
            assert FAMILIES[one.family].type == one.type
            if one.type != "gauge":
                key = f"{one.name}{sorted(one.labels.items())}"
                assert one.value >= before.get(key, 0.0)
                before[key] = one.value
    assert family_of("train_job_info") == "train_job_info"


NUMBERS = st.floats() | st.integers(-3, 3).map(float) | st.text(max_size=3)
FIELDS = (
    "step",
    "steps",
    "step_seconds",
    "samples",
    "tokens",
    "skipped",
    "skipped_total",
    "nonfinite",
    "loss:lm",
    "grad_norm",
    "target_steps",
    "by",
    "seconds",
    "state",
    "outcome",
    "world_size",
    "sequence_length",
    "batch_samples",
    "log_interval",
    "tokens_per_gpu_second",
)
KINDS = (
    "step",
    "phase",
    "micro_phase",
    "phase_min",
    "phase_max",
    "once",
    "memory",
    "saving",
    "saved",
    "loading",
    "loaded",
    "validation",
    "state",
    "arguments",
    "extreme",
    "rerun",
    "overflow",
    "wait",
    "oom",
    "event",
    "started",
    "restart",
    "nonfinite",
    "skipped",
    "gauge",
    "save_failed",
    "no such kind",
)
RECORDS = st.builds(
    Record, st.sampled_from(KINDS), st.none() | st.floats(0, 2e9), st.none() | st.sampled_from(["0", "7"]),
    st.dictionaries(st.sampled_from(FIELDS), NUMBERS, max_size=6),
)  # fmt: skip


@given(st.lists(RECORDS, max_size=25))
@settings(max_examples=60, deadline=None)
def test_no_record_breaks_a_ledger(records: list[Record]) -> None:
    ledger = Ledger()
    for record in records:
        ledger.add(record, 0.0)
    samples = list(ledger.samples())
    assert all(math.isfinite(one.value) for one in samples)
    assert len({(one.name, *sorted(one.labels.items())) for one in samples}) == len(samples)


def test_the_page_about_training_logs_names_metrics_that_there_are() -> None:
    page = (Path(__file__).resolve().parent.parent / "docs" / "training-logs.md").read_text(encoding="utf-8")
    named = {name for name in re.findall(r"`(train_\w+[a-z])`", page) if name != "train_straggler"}
    assert named <= FAMILIES.keys()
    assert {"train_communication_ratio", "train_eta_seconds"} <= named
