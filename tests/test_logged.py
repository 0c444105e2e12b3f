"""What lines of logs say in a diagnosis: who failed first, who is waited for, and what a job has survived."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from made_logs import START, hang, line, stamp

from rca.cli import rca as program
from rca.imports import Imports
from rca.load import phrases
from rca.sources.foreign import Place, Ways
from rca.sources.logs import Spoken, read
from rca.sources.series import Block, Selector
from rca.sources.spans import carried
from rca.sources.survived import Progress

WORLD = 16
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 5 has a total capacity of 79.15 GiB"
CLOSED = (
    "[rank{0}]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:219, remote "
    "process exited or there was a network error, NCCL version 2.19.3"
)
Lines = Mapping[int, Sequence[tuple[float, str]]]


def said(time: float, text: str) -> str:
    """Write a line of stderr as a collector of containers keeps it."""
    return f"{stamp(time)} stderr F {text}\n"


def job(folder: Path, failures: Lines, *, steps: int = 100, last: Mapping[int, int] | None = None) -> Path:
    """Write the logs of ranks on two nodes that step every four seconds, the failures of some, and steps up to `last`."""
    for rank in range(WORLD):
        node = folder / f"node-{rank // 8}"
        node.mkdir(parents=True, exist_ok=True)
        count = (last or {}).get(rank, steps)
        lines = [line(START, rank, "rank starts", event="RANK_START", world_size=WORLD)]
        lines += [line(START + 4.0 * step, rank, f"step={step} loss=2.3", step=step) for step in range(1, count + 1)]
        (node / f"rank_{rank}.jsonl").write_text("".join(lines), encoding="utf-8")
        errors = "".join(said(time, text) for time, text in failures.get(rank, ()))
        (node / f"rank_{rank}.err").write_text(errors, encoding="utf-8")
    return folder


def diagnosed(*flags: object) -> dict:
    result = CliRunner().invoke(program, ["diagnose", *map(str, flags), "-o", "json"])
    assert result.exit_code in {0, 10, 11}, result.output
    return json.loads(result.stdout)


def first(report: dict) -> tuple[str, dict[str, str]]:
    cause = report["causes"][0]
    assert cause["probability"] >= 0.8
    return cause["cause"], cause["entity"]["labels"]


def likely(report: dict) -> list[str]:
    return [one["cause"] for one in report["causes"] if one["probability"] >= 0.5]


END = START + 400.0


def crash(rank: int, text: str, at: float = END + 1.0, echo: float = END + 9.0) -> dict[int, list[tuple[float, str]]]:
    """Return what all ranks write when one of them fails."""
    return {one: [(at, text)] if one == rank else [(echo, CLOSED.format(one))] for one in range(WORLD)}


def test_the_rank_that_its_peers_wait_for_is_named_with_what_it_did_last(tmp_path: Path) -> None:
    report = diagnosed("--logs", hang(tmp_path / "logs"))
    assert first(report) == ("dataloader_stuck", {"job": "default", "rank": "2"})
    waited = next(one for one in report["causes"][0]["evidence"] if one["signal"] == "rank_waited_for")
    assert (waited["value"], waited["quote"]["text"]) == (7.0, "rank=0 waiting on rank=2 for 1800s")
    words = report["last_words"][0]
    assert (words["rank"], words["lines"][-1]["text"]) == ("2", "waits for the loader")
    assert words["silent_seconds"] == pytest.approx(1799, abs=1)
    assert len(report["last_words"]) == 8


def test_a_rank_without_any_line_is_evidence_and_the_report_says_how_many_were_seen(tmp_path: Path) -> None:
    said_of = "rank={} waiting on rank=5 for 1800s"
    folder = job(tmp_path, {rank: [(END + 1800.0, said_of.format(rank))] for rank in range(WORLD)})
    for path in folder.glob("node-0/rank_5.*"):
        path.unlink()
    report = diagnosed("--logs", folder)
    assert first(report) == ("unknown", {"job": "default", "rank": "5"})  # it may sleep, or be dead: no line tells
    assert report["status"] == "inconclusive"
    text = CliRunner().invoke(program, ["diagnose", "--logs", str(folder)]).stdout
    assert text.splitlines()[0].endswith("look at rank job=default rank=5")
    assert any(one.endswith("15 of 16 ranks left lines, rank 5 left none") for one in report["warnings"])


def test_a_rank_that_writes_on_while_others_wait_for_it_is_stuck(tmp_path: Path) -> None:
    waits = "rank={} waiting on rank=5 for 1800s"
    failures = {rank: [(END + 1800.0, waits.format(rank))] for rank in range(WORLD) if rank != 5}
    failures[5] = [(END + 60.0 * minute, f"slow read of shard {minute}, still trying") for minute in range(1, 30)]
    assert first(diagnosed("--logs", job(tmp_path, failures))) == ("rank_stuck", {"job": "default", "rank": "5"})


def test_the_first_failure_is_told_from_its_echoes(tmp_path: Path) -> None:
    report = diagnosed("--logs", job(tmp_path, crash(11, OOM)))
    assert report["symptom"] == "crashed"
    assert first(report) == ("application_error", {"job": "default", "rank": "11"})
    evidence = report["causes"][0]["evidence"][0]
    assert evidence["quote"]["text"].endswith(OOM)
    assert evidence["quote"]["rank"] == "11"
    assert likely(report) == ["application_error"]
    assert report["symptoms"][0]["slowdown"] is None


def test_who_fails_later_of_its_own_is_no_second_cause(tmp_path: Path) -> None:
    failures = crash(11, OOM)
    failures[3] = [(END + 20.0, "[rank3]: ValueError: no batch came")]
    report = diagnosed("--logs", job(tmp_path, failures))
    assert first(report) == ("application_error", {"job": "default", "rank": "11"})
    assert likely(report) == ["application_error"]


def test_what_a_job_survives_is_no_crash(tmp_path: Path) -> None:
    report = diagnosed("--logs", job(tmp_path, {11: [(START + 150.0, OOM)]}))
    assert (report["symptom"], report["causes"], report["last_words"]) == ("none", [], [])


@pytest.mark.parametrize(
    "text", ["slurmstepd: error: *** STEP 7.0 ON node-0 CANCELLED AT 2026-03-01T14:06:41 DUE TO TIME LIMIT ***"]
)
def test_who_is_told_to_end_has_not_crashed(text: str, tmp_path: Path) -> None:
    folder = job(tmp_path, {rank: [(END + 9.0, CLOSED.format(rank))] for rank in range(WORLD)})
    (folder / "launcher.log").write_text(said(END + 1.0, text), encoding="utf-8")
    report = diagnosed("--logs", folder)
    assert (report["symptom"], report["causes"]) == ("none", [])


TRACE = "[rank11]: ValueError: bad batch"
SLURM = (
    said(END + 2.5, "srun: error: node-1: task 11: Exited with exit code 1"),
    said(END + 3.0, "slurmstepd: error: *** STEP 7.0 ON node-0 CANCELLED AT 2026-03-01T14:06:43 ***"),
)


def test_a_scheduler_that_ends_a_job_for_its_failed_task_hides_nothing(tmp_path: Path) -> None:
    folder = job(tmp_path, crash(11, TRACE, echo=END + 4.0))
    (folder / "slurm-7.out").write_text("".join(SLURM), encoding="utf-8")
    assert first(diagnosed("--logs", folder)) == ("application_error", {"job": "default", "rank": "11"})


def test_what_is_told_as_a_warning_or_caught_takes_no_blame(tmp_path: Path) -> None:
    failures = crash(11, OOM)
    failures[3] = [(END - 50.0, "[rank3]: requests.exceptions.ConnectionError: upload failed")]
    report = diagnosed("--logs", job(tmp_path, failures))
    assert first(report) == ("application_error", {"job": "default", "rank": "11"})
    assert likely(report) == ["application_error"]


def test_what_is_told_as_a_warning_was_caught(tmp_path: Path) -> None:
    folder = job(tmp_path, crash(11, OOM))
    with (folder / "node-0" / "rank_3.jsonl").open("a", encoding="utf-8") as file:
        file.write(line(END - 30.0, 3, OOM, event="CUDA_OOM", level="WARN"))
    report = diagnosed("--logs", folder)
    assert first(report) == ("application_error", {"job": "default", "rank": "11"})
    assert likely(report) == ["application_error"]


def test_an_event_says_what_its_template_says(tmp_path: Path) -> None:
    folder = job(tmp_path, {rank: [(END + 9.0, CLOSED.format(rank))] for rank in range(WORLD) if rank != 11})
    with (folder / "node-1" / "rank_11.jsonl").open("a", encoding="utf-8") as file:
        file.write(line(END + 1.0, 11, "the model does not fit", event="CUDA_OOM", level="ERROR"))
    assert first(diagnosed("--logs", folder)) == ("application_error", {"job": "default", "rank": "11"})


@pytest.mark.parametrize(
    ("text", "cause", "entity"),
    [
        ("CUDA error: uncorrectable ECC error encountered", "gpu_memory_fault", {"node": "node-1", "gpu": "3"}),
        ("CUDA error: unspecified launch failure", "unknown", {"job": "default", "rank": "11"}),
    ],
)
def test_what_cuda_says_of_a_gpu_is_not_the_program(
    text: str, cause: str, entity: dict[str, str], tmp_path: Path
) -> None:
    report = diagnosed("--logs", job(tmp_path, crash(11, f"[rank11]: RuntimeError: {text}")))
    assert first(report) == (cause, entity)
    assert (report["status"] == "inconclusive") is (cause == "unknown")


def test_a_fatal_line_of_a_switch_names_its_node(tmp_path: Path) -> None:
    folder = job(tmp_path, crash(11, "[rank11]: RuntimeError: CUDA error: unspecified launch failure", END + 3.0))
    kernel = f"{stamp(END + 1.0)} node-1 kernel: nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n"
    (folder / "node-1" / "kern.log").write_text(kernel, encoding="utf-8")
    assert first(diagnosed("--logs", folder)) == ("nvswitch_fault", {"node": "node-1"})


def test_logs_without_a_line_are_said(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("", encoding="utf-8")
    result = CliRunner().invoke(program, ["diagnose", "--logs", str(tmp_path)])
    assert str(result.exception) == f"{tmp_path}: its logs hold no line"


def test_a_traceback_without_a_time_is_of_the_last_change_of_its_file(tmp_path: Path) -> None:
    folder = job(tmp_path, crash(11, OOM))
    bare = folder / "node-1" / "rank_11.err"
    bare.write_text(f"[rank11]: {OOM}\n", encoding="utf-8")
    os.utime(bare, (END + 1.0, END + 1.0))
    report = diagnosed("--logs", folder)
    assert first(report) == ("application_error", {"job": "default", "rank": "11"})
    assert any("taken to be of the file's last change" in one for one in report["warnings"])


def test_a_person_who_ends_a_job_has_not_crashed_it(tmp_path: Path) -> None:
    ended = "Received SIGTERM"
    worker = "RuntimeError: DataLoader worker (pid 249) is killed by signal: Terminated. "
    report = diagnosed("--logs", job(tmp_path, {rank: [(END + 1, ended), (END + 2, worker)] for rank in range(WORLD)}))
    assert (report["symptom"], report["causes"]) == ("none", [])


def test_ranks_whose_logs_are_elsewhere_are_not_accused(tmp_path: Path) -> None:
    waits = "[rank{0}]: RuntimeError: [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600081 milliseconds before timing out."
    folder = job(tmp_path, {rank: [(END + 600.0, waits.format(rank))] for rank in range(WORLD)})
    shutil.rmtree(folder / "node-1")
    assert [one["cause"] for one in diagnosed("--logs", folder)["causes"]] in ([], ["unknown"])


def test_a_clock_of_another_age_hides_nothing(tmp_path: Path) -> None:
    folder = job(tmp_path, crash(11, OOM))
    with (folder / "node-0" / "rank_2.jsonl").open("a", encoding="utf-8") as file:
        file.write(line(START + 1.6e9, 2, "step=101 loss=2.3", step=101))
    assert first(diagnosed("--logs", folder)) == ("application_error", {"job": "default", "rank": "11"})


def test_hosts_of_others_are_left_out_and_named(tmp_path: Path) -> None:
    folder = job(tmp_path, crash(11, OOM))
    kernel = f"{stamp(END + 1.0)} node-77 kernel: NVRM: Xid (PCI:0000:5C:00): 79, GPU has fallen off the bus.\n"
    (folder / "kern.log").write_text(kernel, encoding="utf-8")
    report = diagnosed("--logs", folder)
    assert likely(report) == ["application_error"]
    assert any("node-77" in one for one in report["warnings"])


def test_the_kernel_of_a_host_names_the_gpu_that_is_lost(tmp_path: Path) -> None:
    lost = "[rank11]: RuntimeError: CUDA error: unknown error"
    folder = job(tmp_path, crash(11, lost, END + 3.0))
    kernel = f"{stamp(END + 1.0)} node-1 kernel: NVRM: Xid (PCI:0000:5C:00): 79, GPU has fallen off the bus.\n"
    (folder / "node-1" / "kern.log").write_text(kernel, encoding="utf-8")
    report = diagnosed("--logs", folder)
    assert first(report) == ("gpu_lost", {"node": "node-1", "gpu": "0000:5c:00.0"})
    assert "fallen off the bus" in report["causes"][0]["evidence"][0]["quote"]["text"]


def test_a_node_that_the_scheduler_lost_is_named(tmp_path: Path) -> None:
    silent = {rank: [(END + 9.0, CLOSED.format(rank))] for rank in range(8)}
    folder = job(tmp_path, silent)
    (folder / "launcher.log").write_text(said(END + 5.0, "srun: error: Node failure on node-1"), encoding="utf-8")
    assert first(diagnosed("--logs", folder)) == ("node_down", {"node": "node-1"})


def test_dumps_tell_who_has_not_come_where_logs_tell_nothing(tmp_path: Path) -> None:
    folder, dumps = job(tmp_path / "logs", {}), tmp_path / "dumps"
    dumps.mkdir()
    launched = [{"collective_seq_id": 101, "process_group": ["0", "default_pg"], "profiling_name": "nccl:all_reduce",
                 "state": "started", "is_p2p": False}]  # fmt: skip
    for rank in range(WORLD):
        if rank != 5:
            group = {"name": "0", "desc": "default_pg", "ranks": str(list(range(WORLD)))}
            text = json.dumps({"version": "2.5", "pg_config": {"0": group}, "entries": launched})
            (dumps / f"nccl_trace_rank_{rank}").write_text(text, encoding="utf-8")
    report = diagnosed("--logs", folder, "--dumps", dumps)
    assert first(report) == ("unknown", {"job": "default", "rank": "5"})
    alone = CliRunner().invoke(program, ["diagnose", "--dumps", str(dumps), "--scenario", "scenarios/healthy.yaml"])
    assert "--dumps: dumps tell who waits" in str(alone.exception)


def test_clocks_that_are_off_are_set_right_before_failures_are_ordered(tmp_path: Path) -> None:
    folder = job(tmp_path, {})
    for node in range(2, 5):  # three nodes more, of which the last is half a minute behind
        for rank in range(8 * node, 8 * node + 8):
            late = -30.0 if node == 4 else 0.0
            (folder / f"node-{node}").mkdir(exist_ok=True)
            lines = [line(START + 4.0 * step + late, rank, f"step={step}", step=step) for step in range(1, 101)]
            (folder / f"node-{node}" / f"rank_{rank}.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "node-0" / "rank_3.err").write_text(said(END + 1.0, OOM), encoding="utf-8")
    (folder / "node-4" / "rank_33.err").write_text(said(END + 9.0 - 30.0, OOM), encoding="utf-8")
    report = diagnosed("--logs", folder)
    assert likely(report) == ["application_error"]
    assert report["causes"][0]["entity"]["labels"]["rank"] == "3"
    assert any("the clock of node-4 is 30.0 s behind" in one for one in report["warnings"])


def test_a_recording_of_logs_gives_the_same_bytes(tmp_path: Path) -> None:
    folder, to = job(tmp_path / "logs", crash(11, OOM)), tmp_path / "saved.rca"
    saved = CliRunner().invoke(program, ["record", "--logs", str(folder), "--to", str(to)])
    assert saved.exit_code == 0, saved.output
    replayed, direct = (
        CliRunner().invoke(program, ["diagnose", *flags, "-o", "json"]).stdout
        for flags in (["--recording", str(to)], ["--logs", str(folder)])
    )
    assert replayed == direct


def test_people_read_what_ranks_wrote_last(tmp_path: Path) -> None:
    folder = job(tmp_path, crash(11, OOM))
    text = CliRunner().invoke(program, ["diagnose", "--logs", str(folder)]).stdout
    assert "What ranks wrote last" in text
    assert "rank 11 on node-1: silent since 14:06:41" in text
    assert "15 more ranks" in text
    html = CliRunner().invoke(program, ["diagnose", "--logs", str(folder), "-o", "html"]).stdout
    assert "What ranks wrote last" in html
    assert "CUDA out of memory" in html


def spoken(path: Path) -> Spoken:
    return read(Place("--logs", str(path), "llama"), Ways(Imports(()), UTC, templates=phrases()))


def values(store: Spoken, name: str, start: float, end: float) -> dict[str, list[float]]:
    store.names(start, end)
    (_, block), = store.fetch([Selector((name,), (), start, end)])  # fmt: skip
    return {
        labels.get("rank", ""): block.values[block.offsets[row] : block.offsets[row + 1]].tolist()
        for row, labels in enumerate(block.labels)
    }


def test_a_failure_stands_until_the_job_steps_again(tmp_path: Path) -> None:
    folder = job(tmp_path, {11: [(END + 1.0, OOM)]})
    for path in folder.rglob("*.jsonl"):  # it is started again after five minutes
        rank = int(path.stem.removeprefix("rank_"))
        more = [line(END + 300.0 + 4.0 * step, rank, f"step={step} loss=2.3", step=step) for step in range(90, 130)]
        path.write_text(path.read_text() + "".join(more), encoding="utf-8")
    store = spoken(folder)
    failed = values(store, "log_failed", START, END + 800.0)[""]
    assert failed[0] == failed[-1] == 0.0
    assert 18 <= failed.count(1.0) <= 48
    assert "log_failed_first" not in store.names(START, END + 800.0)
    assert "log_steps_on" in store.names(START, END + 800.0)


def test_of_those_that_failed_it_is_told_who_was_first(tmp_path: Path) -> None:
    failures = crash(11, OOM)
    failures[3] = [(END + 20.0, "[rank3]: ValueError: no batch came")]
    failures[4] = [(END + 1.5, OOM)]  # clocks are not better than this
    first = values(spoken(job(tmp_path, failures)), "log_failed_first", START, END + 60.0)
    assert {rank: set(found) for rank, found in first.items()} == {"11": {1.0}, "4": {1.0}, "3": {0.0}}


def test_steps_of_a_failed_job_stand_and_ranks_have_a_place(tmp_path: Path) -> None:
    store = spoken(job(tmp_path, crash(11, OOM)))
    assert store.extent() == (START + 4.0, END + 9.0 + 150.0)
    steps = values(store, "train_steps_total", START, END + 159.0)
    assert steps["0"][-6:] == [100.0] * 6
    later = values(store, "train_steps_total", START, END + 900.0)
    assert later == steps  # a series that lived on would be of a job that steps and tells no loss
    assert values(store, "log_failed", START, END + 900.0)[""][-40:] == [1.0] * 40
    (_, block), = store.fetch([Selector(("train_rank_info",), (), START, END)])  # fmt: skip
    placed = {labels["rank"]: (labels["node"], labels["gpu"], labels["job_id"]) for labels in block.labels}
    assert placed["11"] == ("node-1", "3", "llama")


def test_series_are_carried_on_from_their_last_sample() -> None:
    block = Block([{"a": "1"}, {"a": "2"}], np.array([0, 2, 3]), np.array([0.0, 10.0, 50.0]), np.array([1.0, 2.0, 3.0]))
    longer = carried(block, 50.0)
    assert longer.times.tolist() == [0.0, 10.0, 25.0, 40.0, 50.0, 50.0]
    assert longer.values.tolist() == [1.0, 2.0, 2.0, 2.0, 2.0, 3.0]


def test_progress_without_steps_is_no_progress() -> None:
    assert Progress(np.zeros(0)).last == -np.inf
    assert Progress(np.array([5.0])).after(0.0) == np.inf
