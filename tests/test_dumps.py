"""Dumps of communicators are read as they are written, and refused where they are something else."""

import json
import pickle
from pathlib import Path

import pytest

from rca.dumps import Dumps, read
from rca.errors import SourceError
from rca.waits import End, Word, trace

WORLD = 4


def entry(number: int, state: str, name: str = "nccl:all_reduce", **more: object) -> dict[str, object]:
    return {
        "record_id": number, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": number,
        "p2p_seq_id": 0, "op_id": number, "profiling_name": name, "time_created_ns": 1_772_373_900_000_000_000,
        "input_sizes": [[3, 4]], "output_sizes": [[3, 4]], "state": state, "is_p2p": False, "retired": state == "completed",
        "frames": [{"name": "step", "filename": "train.py", "line": 7}], "timeout_ms": 600_000, **more,
    }  # fmt: skip


def dump(entered: int, completed: int, *more: dict[str, object]) -> dict[str, object]:
    """Return what a rank's Flight Recorder tells; numbers are texts, as its JSON has them."""
    entries = [entry(number, "completed") for number in range(max(completed - 3, 1), completed + 1)]
    entries += [entry(number, "started") for number in range(completed + 1, entered + 1)]
    return {
        "version": "2.5", "nccl_version": "2.26.6",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(WORLD)))}},
        "pg_status": {"0": {"last_enqueued_collective": str(entered), "last_started_collective": "-1",
                            "last_completed_collective": str(completed)}},
        "entries": [*entries, *more],
    }  # fmt: skip


def written(folder: Path, dumps: dict[str, object]) -> list[Path]:
    paths = [folder / f"nccl_trace_rank_{rank}" for rank in dumps]
    for path, body in zip(paths, dumps.values(), strict=True):
        path.write_text(json.dumps(body))
    return paths


def traced(found: Dumps) -> tuple[End, ...]:
    return trace(found.calls, found.words, found.members).ends


def test_the_rank_that_left_no_dump_is_where_the_wait_ends(tmp_path: Path) -> None:
    found = read(written(tmp_path, {rank: dump(18, 17) for rank in "013"}))
    assert found.members == {"default_pg 0": ("0", "1", "2", "3")}
    assert traced(found) == (End(("2",), 3, "silent", ("default_pg 0",)),)


def test_the_rank_that_has_enqueued_less_is_absent(tmp_path: Path) -> None:
    ranks = {rank: dump(18, 17) for rank in "013"} | {"2": dump(17, 17)}
    assert traced(read(written(tmp_path, ranks))) == (End(("2",), 3, "absent", ("default_pg 0",)),)


def test_another_operation_of_the_same_number_is_a_mismatch(tmp_path: Path) -> None:
    ranks = {rank: dump(18, 17) for rank in "0123"}
    ranks["1"]["entries"][-1]["profiling_name"] = "nccl:broadcast"
    [end] = traced(read(written(tmp_path, ranks)))
    assert (end.ranks, end.why) == (("1",), "mismatched")


def test_a_receive_waits_for_its_sender(tmp_path: Path) -> None:
    under_way = entry(17, "started", "nccl:recv 3<-1", is_p2p=True, p2p_seq_id=5)
    found = read(written(tmp_path, {"3": dump(17, 17, under_way)}))
    assert found.words == (Word("3", "1"),)
    assert traced(found)[0].ranks == ("1",)


def test_groups_count_their_ranks_from_zero(tmp_path: Path) -> None:
    config = {"5": {"name": "5", "desc": "PIPELINE", "ranks": "[8, 24]"}}
    body = {
        "pg_config": config,
        "entries": [entry(1, "scheduled", "nccl:send 0->1", is_p2p=True, process_group=["5", "x"])],
    }
    found = read(written(tmp_path, {"8": body}))
    assert found.words == (Word("8", "24"),)


def test_pickles_are_read_where_that_is_allowed_and_run_nothing(tmp_path: Path) -> None:
    plain = tmp_path / "nccl_trace_rank_1"
    plain.write_bytes(pickle.dumps(dump(18, 17)))
    with pytest.raises(SourceError, match=r"is a pickle, .* allow it with --pickles"):
        read([plain])
    assert read([plain], pickles=True).calls[0].entered == 18
    evil = tmp_path / "nccl_trace_rank_2"
    evil.write_bytes(pickle.dumps(Path("/etc/passwd")))
    with pytest.raises(SourceError, match=r"it wants pathlib\.\w+, and a dump holds plain values alone"):
        read([evil], pickles=True)


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("rank_0", b"", "is no dump as JSON"),
        ("rank_0", b'{"entries": []}', "is no dump of Flight Recorder or RAS, .* `pg_config`"),
        ("rank_0", b'{"pg_config": {}, "entries": [{"state": 7}]}', r"entries\[0\]\.state"),
        ("dump", b'{"pg_config": {}}', "the name tells no rank"),
        ("rank_0", b"\x80\x04", "is no dump as a pickle"),
        ("rank_0", b"\x80\x04K\x01.", "it holds int"),
    ],
)
def test_what_is_no_dump_is_said(tmp_path: Path, name: str, body: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(body)
    with pytest.raises(SourceError, match=message):
        read([path], pickles=True)


def test_a_dump_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read, no such file"):
        read([tmp_path / "rank_0"])


def launched(rank: int, device: int, **counts: int) -> dict[str, object]:
    told = {"Broadcast": 0, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": 0}
    return {
        "rank": rank, "host": f"10.0.0.{device // 8}", "pid": 1000 + device, "cuda_dev": device % 8, "nvml_dev": device % 8,
        "status": {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False},
        "collective_counts": {**told, **counts},
    }  # fmt: skip


def ras(*communicators: tuple[list[dict[str, object]], list[dict[str, object]]]) -> dict[str, object]:
    told = [
        {
            "hash": hex(number), "secondary_hash": "0x1:0x2", "size": len(ranks) + len(missing), "ranks_count": len(ranks),
            "missing_ranks_count": len(missing), "ranks": ranks, "missing_ranks": missing,
        }
        for number, (ranks, missing) in enumerate(communicators, 1)
    ]  # fmt: skip
    return {
        "nccl_version": "2.28.7",
        "communicators_count": len(told),
        "communicators": told,
        "ras": {"timeouts_count": 0},
    }


def test_ras_names_who_has_launched_less_by_its_rank_in_the_whole_job(tmp_path: Path) -> None:
    world = [launched(rank, rank, AllReduce=10) for rank in range(16)]
    pair = [launched(0, 5, AllGather=31), launched(1, 13, AllGather=30)]
    path = tmp_path / "ras.json"
    path.write_text(json.dumps(ras((world, []), (pair, []))))
    assert traced(read([path])) == (End(("13",), 1, "absent", ("communicator 0x2",)),)


def test_ras_names_who_does_not_answer(tmp_path: Path) -> None:
    gone = launched(3, 3)
    gone["status"] = {"unresponsive": True, "considered_dead": False}
    del gone["collective_counts"]
    path = tmp_path / "ras.json"
    path.write_text(json.dumps(ras(([launched(rank, rank, AllReduce=10) for rank in range(3)], [gone]))))
    assert traced(read([path])) == (End(("3",), 3, "silent", ("communicator 0x1",)),)


def test_ras_of_a_job_that_runs_accuses_nobody(tmp_path: Path) -> None:
    path = tmp_path / "ras.json"
    path.write_text(json.dumps(ras(([launched(rank, rank, AllReduce=10) for rank in range(4)], []))))
    assert traced(read([path])) == ()
