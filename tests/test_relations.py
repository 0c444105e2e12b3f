"""How rows meet: coarser and finer kinds, hubs of communicators, joins through a third table."""

import numpy as np
import pytest
from read_once import load

from rca.model import Table
from rca.peers import Indices
from rca.relations import Joins, gather


def table(kind: str, key: tuple[str, ...], **columns: list[str]) -> Table:
    return Table(kind, key, {name: np.array(values, dtype=object) for name, values in columns.items()})


@pytest.fixture(scope="module")
def joins() -> Joins:
    """Two nodes of two GPUs, tp 2 and dp 2, one GPU outside the job, an export mounted on one node."""
    gpu = table(
        "gpu", ("node", "gpu"),
        node=["a", "a", "b", "b", "c"], gpu=["0", "1", "0", "1", "0"], job=["j", "j", "j", "j", ""],
        rank=["0", "1", "2", "3", ""], tp=["0", "1", "0", "1", ""], dp=["0", "0", "1", "1", ""],
        pp=["0", "0", "0", "0", ""], cp=["0", "0", "0", "0", ""], model=["H100"] * 5,
    )  # fmt: skip
    rank = table(
        "rank", ("job", "rank"),
        job=["j"] * 4, rank=["0", "1", "2", "3"], node=["a", "a", "b", "b"], gpu=["0", "1", "0", "1"],
        tp=["0", "1", "0", "1"], dp=["0", "0", "1", "1"], pp=["0"] * 4, cp=["0"] * 4,
    )  # fmt: skip
    group = table(
        "group", ("job", "group", "index"),
        job=["j"] * 4, group=["dp", "dp", "tp", "tp"], index=["tp0", "tp1", "dp0", "dp1"],
        tp=["0", "1", "", ""], dp=["", "", "0", "1"], pp=["0"] * 4, cp=["0"] * 4,
    )  # fmt: skip
    tables = [
        gpu, rank, group,
        table("node", ("node",), node=["a", "b", "c"], job=["j", "j", ""]),
        table("cell", ("job", "dp", "pp"), job=["j", "j"], dp=["0", "1"], pp=["0", "0"], node=["a", "b"]),
        table("job", ("job",), job=["j"]),
        table("storage", ("storage",), storage=["filer:/data", "filer:/other"]),
        table("mount", ("node", "storage"), node=["b", "c"], storage=["filer:/data", "filer:/other"], job=["j", ""]),
    ]  # fmt: skip
    return Joins(load().entities, {one.kind: one for one in tables})


def listed(rows: Indices | None) -> list[int] | None:
    return None if rows is None else rows.tolist()


def test_a_rank_reads_its_node_and_a_cell_its_gpus(joins: Joins) -> None:
    coarser = joins.align("rank", "node")
    assert coarser is not None
    assert (coarser.way, coarser.rows.tolist()) == ("coarser", [0, 0, 1, 1])
    finer = joins.align("cell", "gpu")
    assert finer is not None
    assert (finer.way, finer.rows.tolist()) == ("finer", [0, 0, 1, 1, -1])
    assert joins.align("node", "group") is None


def test_peers_leave_out_what_is_in_no_job(joins: Joins) -> None:
    assert joins.groups("gpu", ("job", "stage"))[4] == -1
    assert len(set(joins.groups("gpu", ("job", "stage"))[:4])) == 1
    assert joins.groups("gpu", ("model",))[4] == joins.groups("gpu", ("model",))[0]
    assert joins.groups("node", ("job", "model")).tolist() == joins.groups("node", ("job",)).tolist()


def test_a_name_in_peers_stands_for_its_labels(joins: Joins) -> None:
    assert joins.labels(("job", "stage")) == ("job", "pp")
    assert joins.labels(("cell", "model")) == ("job", "dp", "pp", "model")


def test_hubs(joins: Joins) -> None:
    assert listed(joins.members("gpu", "cell", "cell", 2)) == [1]
    assert listed(joins.members("gpu", "job", "rank", 0)) == [0, 1, 2, 3]
    assert listed(joins.members("node", "node", "rank", 1)) == [2, 3]
    assert joins.members("gpu", "cell", "cell", 4) is None, "a GPU outside any job has no cell"


def test_a_communicator_is_joined_by_its_own_kind(joins: Joins) -> None:
    assert listed(joins.members("gpu", "dp", "group", 1)) == [1], "equal on every other index"
    assert listed(joins.members("gpu", "tp", "group", 2)) == [3]


def test_storage_reaches_ranks_through_mounts(joins: Joins) -> None:
    assert listed(joins.members("storage", "storage", "rank", 0)) == [2, 3]
    assert listed(joins.members("storage", "storage", "rank", 1)) == []


def test_storage_reaches_jobs_by_where_its_mounts_stand(joins: Joins) -> None:
    assert listed(joins.members("storage", "storage", "job", 0)) == [0]
    assert listed(joins.members("storage", "storage", "job", 1)) == []


@pytest.mark.parametrize(
    ("by", "expected"),
    [("max", [2.0, 5.0]), ("min", [1.0, 5.0]), ("mean", [1.5, 5.0]), ("median", [1.5, 5.0]), ("sum", [3.0, 5.0])],
)
def test_gather_ignores_gaps(by: str, expected: list[float]) -> None:
    values = np.array([[1.0], [2.0], [5.0], [np.nan], [7.0]])
    found = gather(values, np.array([0, 0, 1, 1, -1]), 3, by)
    assert found[:2, 0].tolist() == expected
    assert np.isnan(found[2, 0])
