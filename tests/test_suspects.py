"""Where a hang or a crash began is told by lines of a thousand ranks, and echoes accuse nobody."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from rca.cli import rca as program
from rca.load import phrases
from rca.loglines import Ends, Line, Source
from rca.logs.suspects import Suspects, known, suspects
from rca.phrases import Matcher

RANKS = 1024
AT = 1_772_373_900.0
TIMEOUT = (
    "[rank{0}]:[E615 08:12:44.1 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600081 milliseconds before "
    "timing out."
)
IN_GROUP = (
    "[rank{0}]:[E909 09:55:46.9 ProcessGroupNCCL.cpp:1709] [PG {2} Rank {3}] Timeout at NCCL work: {1}, last enqueued NCCL work: "
    "{1}, last completed NCCL work: {4}."
)
MATCHER = Matcher(phrases())


def in_world(rank: int, number: int) -> str:
    return IN_GROUP.format(rank, number, "0 (default_pg)", rank, number - 1)


def line(rank: int, message: str, at: float = AT, level: str = "ERROR") -> Line:
    return Line(at, str(rank), f"node-{rank // 8:03d}", level, "", None, message, {}, Source(f"rank_{rank}.log", 0))


def steps(rank: int, at: float = AT - 700.0) -> Line:
    return line(rank, "step 41 done", at, "INFO")


def told(lines: list[Line], world: int = RANKS) -> Suspects:
    ends: dict[str, Ends] = {}
    for one in lines:
        if one.rank not in ends or (one.time or 0.0) >= (ends[one.rank].line.time or 0.0):
            ends[one.rank or ""] = Ends(one)
    return suspects(known(lines, MATCHER), ends, world)


def test_a_rank_stuck_in_its_loader_is_named_with_what_it_did_last():
    lines = [line(rank, TIMEOUT.format(rank, 42)) for rank in range(RANKS) if rank != 517]
    lines.append(line(517, "reading shard 1187 of /data", AT - 640.0, "INFO"))
    found = told(lines)
    assert [one.ranks for one in found.found] == [("517",)]
    assert found.found[0].last.message == "reading shard 1187 of /data"
    assert "1,023 ranks wait for it" in found.found[0].why
    assert (found.spoke, found.of, found.echoes) == (1024, 1024, 1023)


def test_out_of_memory_on_one_rank_comes_before_its_echoes():
    memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB"
    lines = [line(300, memory, AT - 602.0)]
    lines += [line(rank, TIMEOUT.format(rank, 42), AT) for rank in range(RANKS) if rank != 300]
    found = told(lines).found
    assert found[0].ranks == ("300",)
    assert "CUDA out of memory" in found[0].first.message
    assert "1,023 ranks wait for it" in found[0].why
    assert len(found) == 1


def test_a_node_that_left_no_word_is_waited_for_by_all():
    gone = range(64, 72)
    lines = [
        one for rank in range(RANKS) if rank not in gone for one in (steps(rank), line(rank, TIMEOUT.format(rank, 42)))
    ]
    found = told(lines)
    assert {rank for one in found.found for rank in one.ranks} == {str(rank) for rank in gone}
    assert found.spoke == 1016


def test_a_rank_that_is_an_operation_behind_is_absent():
    lines = [line(rank, in_world(rank, 42 if rank != 9 else 41)) for rank in range(RANKS)]
    [one] = told(lines).found
    assert (one.ranks, one.first) == (("9",), None)
    assert "it is still in a collective that they have left" in one.why


def test_where_most_logs_are_elsewhere_nobody_is_accused_of_silence():
    found = told([line(rank, TIMEOUT.format(rank, 42)) for rank in range(4)])
    assert found.found == []
    assert found.said == ("only 4 of 1,024 ranks say what they wait for, so the 1,020 others are not accused",)


def test_where_all_have_entered_the_network_is_looked_at():
    found = told([line(rank, in_world(rank, 42)) for rank in range(RANKS)])
    assert found.found == []
    assert "nobody is missing there, look at the network" in found.said[0]


def test_numbers_of_communicators_that_nobody_tells_are_not_compared():
    """Old versions count in each communicator and do not say in which: a lower number says nothing."""
    found = told([line(rank, TIMEOUT.format(rank, 42 if rank % 8 else 7_000)) for rank in range(RANKS)])
    assert found.found == []
    assert "do not tell in which communicator" in found.said[0]


def test_communicators_of_one_name_are_many():
    lines = []
    for rank in range(RANKS):
        number = 900 + rank // 8  # eight ranks each, every communicator counts for itself
        lines.append(
            line(
                rank,
                IN_GROUP.format(rank, number, f"{rank // 8 + 1} (TENSOR_MODEL_PARALLEL_GROUP)", rank % 8, number - 1),
            )
        )
    assert told(lines).found == []
    behind = 8 * 5 + 3
    lines[behind] = line(behind, IN_GROUP.format(behind, 904, "6 (TENSOR_MODEL_PARALLEL_GROUP)", 3, 903))
    [one] = told(lines).found
    assert one.ranks == (str(behind),)
    assert "7 ranks wait for it in TENSOR_MODEL_PARALLEL_GROUP 6" in one.why


def test_what_a_job_has_survived_is_not_why_it_stands():
    early = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB"
    lines = [line(40, early, AT - 3000.0)] + [
        line(rank, TIMEOUT.format(rank, 42)) for rank in range(RANKS) if rank != 517
    ]
    lines.append(steps(517))
    assert [one.ranks for one in told(lines).found] == [("517",)]


def test_what_fails_long_after_the_wait_began_did_not_bring_it_about():
    late = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB"
    lines = [line(rank, TIMEOUT.format(rank, 42)) for rank in range(RANKS) if rank != 517]
    lines += [steps(517), line(40, late, AT + 30.0)]
    assert [one.ranks for one in told(lines).found] == [("517",)]


def test_nothing_is_said_of_a_job_that_steps():
    found = told([steps(rank) for rank in range(RANKS)])
    assert (found.found, found.echoes) == ([], 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write the logs of four ranks, of which one is waited for."""
    stamps = "2025-06-12T14:0{0}:22.001Z"
    for rank, message in enumerate(
        ("rank=0 waiting on rank=1 for 1800s", "rank=1 waiting on rank=2 for 1800s", "", "")
    ):
        lines = [
            f'{{"timestamp":"{stamps.format(2)}","rank":{rank},"level":"INFO","event":"TRAIN_STEP","message":"step 7"}}'
        ]
        if message:
            lines.append(
                f'{{"timestamp":"{stamps.format(3)}","rank":{rank},"level":"ERROR","event":"NCCL_TIMEOUT","message":"{message}"}}'
            )
        (tmp_path / f"rank_{rank}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_the_command_leads_to_the_rank_that_the_others_wait_for(folder: Path) -> None:
    done = CliRunner().invoke(program, ["logs", str(folder), "--suspects", "-o", "text"])
    assert done.exit_code == 0
    first, last, *_ = done.stdout.splitlines()
    assert first == "1. rank 2: 2 ranks wait for it, and it says nothing of waiting itself"
    assert last == "   last line, 2025-06-12 14:02:22.001 UTC: step 7"
    page = CliRunner().invoke(program, ["logs", str(folder), "--suspects", "-o", "html"]).stdout
    assert "1. rank 2: 2 ranks wait for it" in page


def test_dumps_say_more(folder: Path) -> None:
    dump = folder / "dumps"
    dump.mkdir()
    config = '{"pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}, "entries": ['
    for rank, state in ((0, "started"), (1, "started"), (2, "started"), (3, "completed")):
        number = 6 if rank == 3 else 7
        (dump / f"nccl_trace_rank_{rank}").write_text(
            config
            + f'{{"pg_id": 0, "process_group": ["0", "x"], "collective_seq_id": {number}, "state": "{state}"}}]}}'
        )
    asked = ["logs", str(folder), "--suspects", "--dumps", str(dump), "-o", "text"]
    done = CliRunner().invoke(program, asked)
    assert done.stdout.splitlines()[0].startswith("1. rank 3: 3 ranks wait for it in default_pg 0")


def test_ranks_and_suspects_do_not_go_together(folder: Path) -> None:
    from rca.cli import run

    assert run(program, ["logs", str(folder), "--suspects", "--rank", "1"]) == 2
