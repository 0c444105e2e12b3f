"""What a simulated job logs follows from what happens to it: who is silent, who waits where, and who dies of what."""

import os
import re
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from rca.cli import rca as program
from rca.cli import run
from rca.load import phrases
from rca.loglines import PATTERNS, Logs, Naming, Notes, Wanted, find
from rca.logs.suspects import Suspect, known, suspects
from rca.phrases import Matcher
from rca.physics.run import happen
from rca.physics.voices import Page, files
from rca.physics.written import Cluster, Data, Fault, Job, Mount, Pause, Saving, Scenario, Where
from rca.physics.written import Logs as Written
from rca.sources.scenario import read

EPOCH = 1767571200.0
STOP, TIMEOUT = 60.0, 120.0
MATCHER = Matcher(phrases())
LARGE = sorted((Path(__file__).parents[1] / "scenarios" / "logs").glob("*.yaml"))
CAUGHT = re.compile(
    r"\[Rank (\d+)\] Watchdog caught .*SeqNum=(\d+), OpType=(\w+), NumelIn=\d+, NumelOut=\d+, Timeout\(ms\)=(\d+)\) ran for (\d+)"
)
STATUS = re.compile(
    r"\[PG ID (\d+) PG GUID (\d+)\((\w+)\) Rank (\d+)\]  failure .* id: (\d+) PG status: .*: (\d+), .*: (\d+)"
)


def job(**more: object) -> Job:
    """Return 32 ranks on 8 nodes, a tensor group each: replicas 0 to 3 of the first stage, and of the last."""
    logs = Written(**{"timeout": "2m", **more.pop("logs", {})})
    return Job(**{"id": "llama", "tp": 4, "dp": 4, "pp": 2, "step": "4s", "logs": logs, **more})


def scenario(*faults: Fault, of: Job | None = None, duration: str = "4m") -> Scenario:
    cluster = Cluster(nodes=8, gpus=4, mounts=(Mount(export="filer-a:/data"),))
    return Scenario(summary="a", duration=duration, cluster=cluster, job=of or job(), faults=faults)


def pages(*faults: Fault, of: Job | None = None, duration: str = "4m") -> dict[str, Page]:
    return {page.path: page for page in files(happen(scenario(*faults, of=of, duration=duration)), EPOCH)}


def fault(**more: object) -> Fault:
    return Fault(**{"at": "1m", **more})


def texts(made: dict[str, Page], ending: str) -> dict[int, str]:
    """Return what stands in the files of ranks."""
    own = {path: page.data.decode() for path, page in made.items() if path.endswith(ending)}
    return {int(re.search(r"rank_(\d+)", path)[1]): text for path, text in own.items()}


def caught(made: dict[str, Page]) -> dict[int, tuple[str, ...]]:
    return {rank: match.groups() for rank, text in texts(made, ".err").items() if (match := CAUGHT.search(text))}


def status(made: dict[str, Page]) -> dict[int, tuple[str, ...]]:
    return {rank: match.groups() for rank, text in texts(made, ".err").items() if (match := STATUS.search(text))}


def written(made: Iterable[Page], folder: Path) -> Logs:
    for page in made:
        path = folder / page.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(page.data)
        os.utime(path, (page.changed, page.changed))
    notes = Notes()
    return Logs(find([str(folder)], Naming(), PATTERNS, notes), UTC, notes)


def accused(made: dict[str, Page], folder: Path) -> list[Suspect]:
    logs = written(made.values(), folder)
    wanted = Wanted(start=EPOCH)
    return list(suspects(known(logs.lines(wanted), MATCHER), logs.last(), logs.world()).found)


@pytest.fixture(scope="module")
def stuck() -> dict[str, Page]:
    """Return the logs of a job, of whose ranks one does not come."""
    return pages(fault(stuck=True, on=Where(rank=4)))


# ------------------------------------------------------------------------------------------------ what can be read
def test_every_rank_has_its_files_and_every_line_tells_rank_node_and_time(stuck: dict[str, Page], tmp_path: Path):
    assert {f"node-{rank // 4:02d}/rank_{rank}.{kind}" for rank in range(32) for kind in ("jsonl", "err")} | {
        "launcher.log"
    } == set(stuck)
    logs = written(stuck.values(), tmp_path)
    lines = list(logs.lines(Wanted()))
    assert logs.world() == 32
    of_ranks = [line for line in lines if "/rank_" in line.source.file]
    assert all(line.rank is not None and line.node == f"node-{int(line.rank) // 4:02d}" for line in of_ranks)
    assert all(line.time is not None and not line.flaw for line in lines)
    starts = [line for line in lines if line.event == "RANK_START"]
    assert [line.extra["world_size"] for line in starts] == [32] * 32
    assert starts[5].extra["node"] == starts[5].node


def test_steps_are_told_as_the_hook_tells_them(stuck: dict[str, Page], tmp_path: Path):
    lines = written([stuck["node-02/rank_9.jsonl"]], tmp_path).lines(Wanted())
    steps = [line for line in lines if line.event == "TRAIN_STEP"]
    assert {line.event_id for line in steps} == {"EVT_1001"}
    apart = [later.extra["step"] - sooner.extra["step"] for sooner, later in pairwise(steps)]
    assert set(apart) == {1.0}
    assert 12 <= len(steps) <= 15
    assert all(line.extra["step_seconds"] == pytest.approx(4.0, rel=0.05) for line in steps)


def test_a_setting_says_which_steps_have_a_line():
    made = pages(of=job(logs={"every": 10}))
    steps = re.findall(r'"step":(\d+)\.0', texts(made, ".jsonl")[3])
    assert len(steps) > 5
    assert all(int(step) % 10 == 0 for step in steps)


# ---------------------------------------------------------------------------------------------- who waits, and where
def test_who_does_not_come_says_nothing_more_and_all_others_give_up_after_the_timeout(stuck: dict[str, Page]):
    told = caught(stuck)
    assert set(told) == set(range(32)) - {4}
    errors, lines = texts(stuck, ".err"), texts(stuck, ".jsonl")
    assert "Watchdog" not in errors[4]
    for rank, (_, _, _, timeout, ran) in told.items():
        assert timeout == "120000"
        assert 120_000 <= int(ran) <= 120_100
        clock = re.search(r"T00:(\d\d):(\d\d\.\d+)Z stderr F \[rank\d+\]:\[E105 00:\1:\2", errors[rank])
        assert 0.0 <= float(clock[1]) * 60 + float(clock[2]) - STOP - TIMEOUT < 4.5
    for text in lines.values():
        assert "T00:00:5" in text
        assert "T00:01:" not in text


def test_each_waits_in_the_communicator_that_it_has_come_to(stuck: dict[str, Page]):
    told = status(stuck)
    names = defaultdict(set)
    for rank, (_, _, name, _, _, _, _) in told.items():
        names[name].add(rank)
    assert names["TENSOR_MODEL_PARALLEL_GROUP"] == {5, 6, 7}
    assert names["PIPELINE_MODEL_PARALLEL_GROUP"] == {20, 21, 22, 23}
    assert names["DATA_PARALLEL_GROUP"] == set(range(32)) - {4, 5, 6, 7, 20, 21, 22, 23}


def test_numbers_agree_inside_a_communicator(stuck: dict[str, Page]):
    told = status(stuck)
    numbers = defaultdict(set)
    for rank, (_, guid, name, place, sequence, enqueued, completed) in told.items():
        assert (caught(stuck)[rank][0], caught(stuck)[rank][1]) == (place, sequence)
        assert int(completed) == int(sequence) - 1
        assert int(enqueued) >= int(sequence)
        assert name != "DATA_PARALLEL_GROUP" or int(place) == rank // 4 % 4
        numbers[guid].add(sequence)
    assert all(len(one) == 1 for one in numbers.values())


def test_peers_of_a_rank_without_a_batch_wait_for_the_broadcast(stuck: dict[str, Page]):
    assert caught(stuck)[7][2] == "BROADCAST"
    assert caught(pages(fault(frozen=True, on=Where(rank=4))))[7][2] == "ALLREDUCE"


def test_a_job_of_replicas_alone_sums_among_all():
    made = pages(fault(stuck=True, on=Where(rank=3)), of=job(tp=1, pp=1, dp=16))
    told = status(made)
    assert {(own, guid, name) for own, guid, name, *_ in told.values()} == {("0", "0", "default_pg")}
    assert all(int(place) == rank for rank, (_, _, _, place, *_) in told.items())


def test_a_stop_that_is_over_sooner_leaves_a_gap_alone():
    made = pages(fault(until="2m", stuck=True, on=Where(rank=6)))
    assert not caught(made)
    assert "T00:03:" in texts(made, ".jsonl")[6]
    assert made["launcher.log"].data == b""


# ----------------------------------------------------------------------------------------------------- who dies of what
def test_connections_of_a_dead_process_close_one_after_the_other():
    made = pages(fault(out_of_memory=True, on=Where(rank=6)))
    errors = texts(made, ".err")
    assert not caught(made)
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 2 has" in errors[6]
    closed = {rank for rank, text in errors.items() if "Connection closed by remote peer" in text}
    assert closed == set(range(32)) - {4, 5, 6, 7}
    assert "closed by remote peer node-01<" in errors[8]
    when = {rank: float(re.search(r"T00:01:(\d\d\.\d+)Z .*NCCL WARN", errors[rank])[1]) for rank in closed}
    assert when[8] < when[12] < 10.0
    assert when[22] < when[30] < 10.0
    launcher = made["launcher.log"].data.decode()
    assert launcher.count("closing signal SIGTERM") >= 3
    assert "rank      : 6 (local_rank: 2)\n" in launcher
    assert "exitcode  : 1 (pid:" in launcher
    assert launcher.count("Root Cause (first observed failure):") == 8


def test_a_node_without_power_closes_nothing():
    silent = pages(fault(down=True, on=Where(node="node-01")), of=job(logs={"peers": "silent"}), duration="7m")
    assert set(caught(silent)) == set(range(32)) - {4, 5, 6, 7}
    assert "srun: error: Node failure on node-01" in silent["launcher.log"].data.decode()
    ports = texts(pages(fault(down=True, on=Where(node="node-01"))), ".err")
    assert {rank for rank, text in ports.items() if "status=12" in text} == {0, 1, 2, 3, 8, 9, 10, 11, 20, 21, 22, 23}
    assert "T00:01:3" in ports[8]


def test_the_launcher_ends_the_whole_job_where_it_is_told_to():
    made = pages(
        fault(down=True, on=Where(node="node-01")), of=job(logs={"peers": "killed", "timeout": "10m"}), duration="7m"
    )
    assert not caught(made)
    assert "CANCELLED AT 2026-01-05T00:06:0" in made["launcher.log"].data.decode()
    assert "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***" in made["launcher.log"].data.decode()


def test_a_lost_gpu_is_told_by_the_kernel_and_by_its_process():
    made = pages(fault(lost=True, on=Where(node="node-03", gpu=1)))
    kernel = made["node-03/kern.log"].data.decode()
    assert re.search(r"00:01:00\.000000\+00:00 node-03 kernel: NVRM: Xid \(PCI:0000:[0-9a-f]{2}:00\): 79, pid=", kernel)
    assert "CUDA error: unspecified launch failure" in texts(made, ".err")[13]


def test_a_host_without_memory_has_its_kernel_kill_the_rank():
    made = pages(fault(at="30s", memory_taken=0.985, on=Where(node="node-01")), fault(gone=True, on=Where(rank=5)))
    kernel = made["node-01/kern.log"].data.decode()
    killed = re.search(r"Out of memory: Killed process (\d+) \(python3\)", kernel)
    launcher = made["launcher.log"].data.decode()
    assert f"Signal 9 (SIGKILL) received by PID {killed[1]}\n" in launcher


def test_a_mount_that_answers_nothing_blocks_its_readers():
    of = job(data=Data(source="mount"), logs={"timeout": "5m"})
    made = pages(fault(mount_frozen=True, on=Where(export="filer-a:/data")), of=of, duration="7m")
    kernel = made["node-01/kern.log"].data.decode()
    assert "nfs: server filer-a not responding, still trying" in kernel
    assert re.search(r"INFO: task python3:\d+ blocked for more than 120 seconds\.", kernel)
    assert set(caught(made)) == set(range(32)) - set(range(0, 32, 4))


def test_a_long_checkpoint_times_out_nowhere(tmp_path: Path):
    made = pages(of=job(checkpoint=Saving(first="1m", every="2h", lasts="150s")))
    lines = list(written(made.values(), tmp_path).lines(Wanted()))
    saved = [line for line in lines if line.event == "CHECKPOINT_SAVE"]
    assert len(saved) == 32
    assert saved[0].extra["seconds"] == pytest.approx(150.0, abs=5.0)
    assert not caught(made)
    assert max(line.time for line in lines) > EPOCH + 230.0


def test_a_long_wait_for_input_is_a_warning():
    late = pages(fault(disk_bandwidth=3e5, on=Where(node="node-01")))
    told = texts(late, ".jsonl")
    warned = {rank for rank, text in told.items() if '"event":"DATA_LOAD_TIME","event_id":"EVT_1003"' in text}
    assert warned == {4}


def test_a_good_end_is_told(tmp_path: Path):
    made = pages(of=job(ends="2m", evaluation=Pause(first="1m", every="10m", lasts="30s")))
    lines = list(written(made.values(), tmp_path).lines(Wanted()))
    ends = [line for line in lines if line.event == "RANK_END"]
    assert len(ends) == 32
    assert max(line.time for line in lines) == ends[-1].time


# ----------------------------------------------------------------------------------------------------- other versions
def test_older_versions_tell_no_communicator_and_wait_longer():
    of = job(logs={"torch": "2.1", "format": "plain", "timeout": None})
    made = pages(fault(stuck=True, on=Where(rank=6)), of=of, duration="32m")
    assert {timeout for _, _, _, timeout, _ in caught(made).values()} == {"1800000"}
    text = texts(made, ".err")[9]
    assert text.startswith("[E ProcessGroupNCCL.cpp:474] [Rank 2] Watchdog caught")
    assert "terminate called after throwing an instance of 'std::runtime_error'" in text
    newer = texts(pages(fault(stuck=True, on=Where(rank=6)), of=job(logs={"torch": "2.4"})), ".err")[9]
    assert re.search(r"\[PG 2 \(DATA_PARALLEL_GROUP\) Rank 2\] Timeout at NCCL work: (\d+), last enqueued", newer)


# ------------------------------------------------------------------------------------------------- who would be named
@pytest.mark.parametrize(
    ("what", "rank", "shape"),
    [
        ("stuck", 6, {}),
        ("mismatched", 11, {}),
        ("out_of_memory", 30, {}),
        ("stuck", 7, {"pp": 1, "dp": 8}),
        ("mismatched", 12, {"tp": 1, "dp": 32, "pp": 1}),
    ],
)
def test_suspects_begin_with_the_rank_that_is_at_fault(what: str, rank: int, shape: dict[str, int], tmp_path: Path):
    made = pages(fault(**{what: True}, on=Where(rank=rank)), of=job(**shape))
    assert accused(made, tmp_path)[0].ranks == (str(rank),)


def test_suspects_begin_with_the_gpu_that_is_lost_and_end_with_the_node_that_is_dead(tmp_path: Path):
    lost = accused(pages(fault(lost=True, on=Where(node="node-03", gpu=1))), tmp_path / "lost")
    assert "node-03" in lost[0].place
    assert ("13",) in [one.ranks for one in lost]
    of = job(logs={"peers": "silent"})
    dead = accused(pages(fault(down=True, on=Where(node="node-01")), of=of), tmp_path / "dead")
    assert {rank for one in dead for rank in one.ranks} == {"4", "5", "6", "7"}


# ------------------------------------------------------------------------------------------------------------- 1,024 ranks
@pytest.mark.parametrize("path", LARGE, ids=lambda path: path.stem)
def test_large_incidents_can_be(path: Path):
    large = read(path)
    assert large.job.tp * large.job.pp * large.job.dp == 1024
    assert large.expect is not None


def test_1023_ranks_give_up_on_one():
    made = {page.path: page for page in files(happen(read(LARGE[-1])), EPOCH)}
    assert LARGE[-1].stem == "logs_stuck_loader"
    assert set(caught(made)) == set(range(1024)) - {136}
    assert 5e6 < sum(len(page.data) for page in made.values()) < 60e6


# ------------------------------------------------------------------------------------------------------------ the command
SMALL = """summary: one rank sleeps
duration: 13m
cluster: {nodes: 2, gpus: 2}
jobs: [{id: a, tp: 2, step: 5s}, {id: b, dp: 2, step: 5s, first: 1}]
faults: [{at: 2m, stuck: true, on: {job: b, rank: 1}}]
"""


def test_the_command_writes_into_a_new_folder_only(tmp_path: Path):
    (tmp_path / "small.yaml").write_text(SMALL)
    asked = ["simulate", str(tmp_path / "small.yaml"), "--logs", str(tmp_path / "logs"), "--at", "2026-03-01T12:00:00Z"]
    done = CliRunner().invoke(program, [*asked, "--to", str(tmp_path / "series")])
    assert done.exit_code == 0
    assert done.stdout == ""
    assert f"{tmp_path}/logs: 2026-03-01T11:47:00Z to 2026-03-01T12:00:00Z, 10 log files, " in done.stderr
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["a", "b"]
    last = (tmp_path / "logs/b/node-01/rank_0.err").stat().st_mtime
    assert last == pytest.approx(1772366340.0 + 0.0, abs=10.0)
    assert (tmp_path / "series").read_text().endswith("# EOF\n")
    assert run(program, asked) == 2
    assert run(program, [*asked[:2], "--logs", str(tmp_path / "more"), "--listen", "127.0.0.1:0"]) == 2
    assert not (tmp_path / "more").exists()
