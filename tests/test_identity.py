"""Who series speak of: labels, node names, and the tables that join ranks, GPUs, ports and hosts."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_store import END, MemoryStore, counter, series, ticks
from small_library import entities, library, read, signal

from rca.model import Snapshot
from rca.plain import natural
from rca.sources.assemble import Deployment
from rca.sources.identity import Reader, unify
from rca.sources.topology import Topology, parse

UP = ticks(1.0)
GPU, RANK, NODE, NIC, LOSS = "temp", "steps", "load", "node_infiniband_state_id", "loss"
GIVEN = library(
    gpu=signal("gpu", GPU),
    rank=signal("rank", RANK),
    node=signal("node", NODE),
    nic=signal("nic", NIC),
    job=signal("job", LOSS),
    mount=signal("mount", "nfs"),
)


def values(kind: str, **labels: str) -> Mapping[str, str]:
    reader = Reader(entities(), kind)
    reader.read([labels])
    return reader.seen[0].values


def info(rank: int, **labels: str) -> tuple[dict[str, str], object]:
    """Return the info series of a rank: two GPUs a node, tensor parallelism over them."""
    usual = {
        "job_id": "j",
        "rank": str(rank),
        "local_rank": str(rank % 2),
        "node": f"n{rank // 2}",
        "gpu": str(rank % 2),
        "gpu_uuid": f"GPU-{rank}",
        "tp_rank": str(rank % 2),
        "pp_rank": str(rank // 2 % 2),
        "dp_rank": str(rank // 4),
    }
    return series("train_rank_info", {name: value for name, value in (usual | labels).items() if value}, UP)


def gpu(node: str, index: str, **labels: str) -> tuple[dict[str, str], object]:
    return series(GPU, {"Hostname": node, "gpu": index, **labels}, UP)


def snap(*held: object, topology: Topology | None = None) -> Snapshot:
    return read(MemoryStore(held), GIVEN, deployment=Deployment(topology=topology or Topology()))


def rows(snapshot: Snapshot, kind: str, *columns: str) -> list[str]:
    table = snapshot.tables[kind]
    return ["/".join(row) for row in zip(*(table.columns[name] for name in columns or table.key), strict=True)]


# labels


@pytest.mark.parametrize(
    ("labels", "node"),
    [
        ({"instance": "n0:9100"}, "n0"),
        ({"instance": "[fe80::1]:9100"}, "fe80::1"),
        ({"instance": "n0"}, "n0"),
        ({"Hostname": "a", "instance": "b:1"}, "a"),
        ({"node": "c", "Hostname": "a"}, "c"),
        ({"kubernetes_node": "d", "instance": "10.0.0.1:9400"}, "d"),
        ({"node": "", "Hostname": "a"}, "a"),
    ],
)
def test_node_by_the_most_trusted_label(labels: dict[str, str], node: str) -> None:
    assert values("node", **labels)["node"] == node


@pytest.mark.parametrize(
    ("labels", "index"),
    [
        ({"gpu": "3"}, "3"),
        ({"gpu": "GPU3"}, "3"),
        ({"device": "nvidia3"}, "3"),
        ({"gpu": "3", "device": "nvidia4"}, "3"),
    ],
)
def test_gpu_index(labels: dict[str, str], index: str) -> None:
    assert values("gpu", **labels)["gpu"] == index


def test_uuid_and_model() -> None:
    found = values("gpu", gpu="0", uuid="aabbccdd-1", model_name="H100")
    assert (found["uuid"], found["model"]) == ("GPU-aabbccdd-1", "H100")


def test_the_scrape_job_is_no_training_job() -> None:
    assert "job" not in values("rank", job="prometheus-job", rank="0")
    assert values("rank", job="x", job_id="j", rank="0")["job"] == "j"


def test_what_names_a_port_names_no_gpu() -> None:
    assert values("nic", instance="n0:1", device="mlx5_0") == {"node": "n0", "device": "mlx5_0"}


def test_readings_are_shared_and_origins_are_as_spelled() -> None:
    reader = Reader(entities(), "gpu")
    codes = reader.read(
        [
            {"__name__": name, "Hostname": "N0", "gpu": index, "pod": pod}
            for name, index, pod in [("a", "0", "x"), ("b", "0", "y"), ("b", "1", "x")]
        ]
    )
    assert codes.tolist() == [0, 0, 1]
    assert reader.seen[1].origin == {"Hostname": "N0", "gpu": "1"}


def test_empty_labels_do_not_hide_others() -> None:
    reader = Reader(entities(), "node")
    series_of = [{"node": "", "Hostname": name} for name in ("a", "b")] + [{"node": "c", "Hostname": "d"}]
    assert [reader.seen[code].values["node"] for code in reader.read(series_of)] == ["a", "b", "c"]


@given(st.lists(st.text(max_size=6)))
def test_natural_order_is_total(texts: list[str]) -> None:
    backwards = texts[::-1]
    assert sorted(texts, key=natural) == sorted(backwards, key=natural)


@pytest.mark.parametrize(
    ("spellings", "hosts", "names"),
    [
        (["node-07", "node-07.dc1"], {}, {"node-07"}),
        (["Node-07", "node-07"], {}, {"node-07"}),
        (["node-07.dc1", "node-08.dc1"], {}, {"node-07.dc1", "node-08.dc1"}),
        (["node-07", "node-07.dc1", "node-07.dc2"], {}, {"node-07", "node-07.dc1", "node-07.dc2"}),
        (["10.0.0.8", "node-08"], {"10.0.0.8": "node-08"}, {"node-08"}),
        (["10.0.0.8", "node-08"], {"10.0.0.8": "node-08.dc1"}, {"node-08"}),
        (["10.0.0.8", "10"], {}, {"10.0.0.8", "10"}),
        (["box", "node-08"], {"box": "node-08"}, {"box", "node-08"}),
    ],
)
def test_unify(spellings: list[str], hosts: dict[str, str], names: set[str]) -> None:
    assert set(unify(spellings, hosts).canonical.values()) == names


# joins


def test_the_tables_of_a_job() -> None:
    held = [
        gpu(f"n{node}", str(index), UUID=f"GPU-{2 * node + index}", modelName="H100")
        for node in range(4)
        for index in range(2)
    ]
    snapshot = snap(*held, *(info(rank) for rank in range(8)))
    assert (
        rows(snapshot, "gpu", "node", "gpu", "model", "job", "rank", "tp", "pp", "dp", "cp")[5]
        == "n2/1/H100/j/5/1/0/1/0"
    )
    assert rows(snapshot, "rank", "job", "rank", "node", "gpu", "local_rank") == [
        f"j/{rank}/n{rank // 2}/{rank % 2}/{rank % 2}" for rank in range(8)
    ]
    assert rows(snapshot, "cell", "job", "dp", "pp", "node") == ["j/0/0/n0", "j/0/1/n1", "j/1/0/n2", "j/1/1/n3"]
    assert rows(snapshot, "stage") == ["j/0", "j/1"]
    assert rows(snapshot, "replica") == ["j/0", "j/1"]
    assert rows(snapshot, "job") == ["j"]
    assert rows(snapshot, "node", "node", "job") == ["n0/j", "n1/j", "n2/j", "n3/j"]
    groups = rows(snapshot, "group", "group", "index", "tp", "pp", "dp", "cp")
    assert groups == [
        "dp/tp0-pp0/0/0//0",
        "dp/tp0-pp1/0/1//0",
        "dp/tp1-pp0/1/0//0",
        "dp/tp1-pp1/1/1//0",
        "pp/tp0-dp0/0//0/0",
        "pp/tp0-dp1/0//1/0",
        "pp/tp1-dp0/1//0/0",
        "pp/tp1-dp1/1//1/0",
        "tp/pp0-dp0//0/0/0",
        "tp/pp0-dp1//0/1/0",
        "tp/pp1-dp0//1/0/0",
        "tp/pp1-dp1//1/1/0",
    ]
    assert snapshot.warnings == ()


def test_context_parallelism_shows_in_the_names_of_groups() -> None:
    held = [info(rank, tp_rank="0", pp_rank="0", dp_rank=str(rank // 2), cp_rank=str(rank % 2)) for rank in range(4)]
    assert rows(snap(*held), "group") == [
        "j/cp/tp0-pp0-dp0",
        "j/cp/tp0-pp0-dp1",
        "j/dp/tp0-pp0-cp0",
        "j/dp/tp0-pp0-cp1",
    ]


def test_ranks_find_their_gpu_by_uuid_before_index() -> None:
    held = [
        gpu("n0", "0", UUID="GPU-b"),
        gpu("n0", "1", UUID="GPU-a"),
        info(0, gpu="0", gpu_uuid="GPU-a", node="pod-17"),
    ]
    assert rows(snap(*held), "gpu", "node", "gpu", "rank") == ["n0/0/", "n0/1/0"]
    assert rows(snap(*held), "rank", "rank", "node", "gpu") == ["0/n0/1"]


def test_gpus_that_only_ranks_speak_of() -> None:
    assert rows(snap(info(0)), "gpu", "node", "gpu", "uuid", "rank") == ["n0/0/GPU-0/0"]


def test_a_gpu_without_an_index_is_found_by_uuid_or_called_by_it() -> None:
    held = [series(GPU, {"instance": "n0:9835", "uuid": name}, UP) for name in ("aabbccdd-1", "aabbccdd-2")]
    snapshot = snap(*held, info(0, gpu_uuid="GPU-aabbccdd-1"))
    assert rows(snapshot, "gpu", "node", "gpu", "rank") == ["n0/0/0", "n0/GPU-aabbccdd-2/"]
    assert snapshot.measurements["gpu"].origin[0] == {"instance": "n0:9835", "uuid": "aabbccdd-1"}
    both = snap(*held, gpu("n0", "7", UUID="GPU-aabbccdd-1"))
    assert rows(both, "gpu") == ["n0/7", "n0/GPU-aabbccdd-2"]


def test_without_indices_pure_data_parallelism_is_assumed_and_said() -> None:
    snapshot = snap(*(info(rank, tp_rank="", pp_rank="", dp_rank="") for rank in range(3)))
    assert rows(snapshot, "rank", "tp", "pp", "dp", "cp") == ["0/0/0/0", "0/0/1/0", "0/0/2/0"]
    assert rows(snapshot, "group") == ["j/dp/tp0-pp0"]
    assert any("pure data parallelism is assumed" in text and "job j" in text for text in snapshot.warnings)


def test_indices_that_clash_are_said() -> None:
    snapshot = snap(*(info(rank, tp_rank="", dp_rank="0", pp_rank="0") for rank in range(2)))
    assert any("several share the same tp, pp, dp and cp index in job j" in text for text in snapshot.warnings)


def test_ranks_seen_on_series_only() -> None:
    lone = series(RANK, {"job_id": "j", "rank": "9"}, counter(1.0))
    snapshot = snap(info(0), lone)
    assert rows(snapshot, "rank", "rank", "dp") == ["0/0", "9/"]
    assert any("1 have series but no info series, for example rank 9 of job j" in text for text in snapshot.warnings)
    assert any("1 of 2 have no known GPU, for example rank 9 of job j" in text for text in snapshot.warnings)
    alone = snap(lone)
    assert rows(alone, "rank", "rank", "tp", "dp") == ["9/0/9"]


def test_a_rank_that_moved_counts_where_it_was_last() -> None:
    labels, _ = info(0)
    held = [(labels, UP[:20]), (labels | {"node": "n7", "gpu_uuid": "GPU-x"}, UP[20:])]
    snapshot = snap(*held)
    assert rows(snapshot, "rank", "rank", "node") == ["0/n7"]
    assert [text for text in snapshot.warnings if "moved" in text] == [
        "ranks: 1 moved inside the window, for example rank 0 of job j on n0/0 and n7/0; the latest place counts"
    ]


def test_one_rank_in_two_places_at_once() -> None:
    snapshot = snap(info(0), info(0, node="n7", gpu_uuid="GPU-x"))
    assert len(rows(snapshot, "rank")) == 1
    assert any(
        "1 run in two places at once, for example rank 0 of job j on n0/0 and n7/0" in text
        for text in snapshot.warnings
    )


def test_a_gpu_belongs_to_the_job_that_ran_on_it_last() -> None:
    old, new = info(0, job_id="old"), info(0, job_id="new")
    snapshot = snap((old[0], UP[:20]), (new[0], UP[30:]))
    assert rows(snapshot, "gpu", "node", "gpu", "job") == ["n0/0/new"]
    assert rows(snapshot, "node", "node", "job") == ["n0/"]
    assert not any("several ranks" in text for text in snapshot.warnings)
    assert any("1 run several ranks, for example n0/0" in text for text in snap(old, new).warnings)


def test_no_job_at_all_is_the_job_default_and_said() -> None:
    snapshot = snap(gpu("n0", "0"), series(RANK, {"rank": "0"}, counter(1.0)))
    assert rows(snapshot, "rank") == ["default/0"]
    assert rows(snapshot, "gpu", "node", "gpu", "job") == ["n0/0/default"]
    assert rows(snapshot, "job") == ["default"]
    assert len([text for text in snapshot.warnings if text.startswith("jobs: ")]) == 2


def test_a_gpu_of_no_job_is_idle_where_others_have_one() -> None:
    snapshot = snap(gpu("n0", "0"), gpu("n5", "0"), info(0))
    assert rows(snapshot, "gpu", "node", "job") == ["n0/j", "n5/"]
    assert rows(snapshot, "node", "node", "job") == ["n0/j", "n5/"]


def test_a_job_by_a_label_of_the_gpu() -> None:
    assert rows(snap(gpu("n0", "0", hpc_job="77")), "gpu", "node", "job", "rank") == ["n0/77/"]


# nodes


def test_host_names_and_full_names_meet() -> None:
    snapshot = snap(
        gpu("node-07", "0"),
        series(NODE, {"instance": "node-07.dc1:9100"}, UP),
        series(NODE, {"instance": "10.0.0.8:9100"}, UP),
        gpu("node-08", "0"),
        series("node_uname_info", {"instance": "10.0.0.8:9100", "nodename": "NODE-08"}, UP),
    )
    assert rows(snapshot, "node") == ["node-07", "node-08"]
    assert snapshot.measurements["node"].origin == [{"instance": "node-07.dc1:9100"}, {"instance": "10.0.0.8:9100"}]
    assert not any(text.startswith("nodes") for text in snapshot.warnings)


def test_addresses_that_nobody_names_are_said() -> None:
    snapshot = snap(gpu("node-07", "0"), series(NODE, {"instance": "10.0.0.8:9100"}, UP))
    assert rows(snapshot, "node") == ["10.0.0.8", "node-07"]
    assert any("1 are known by address only, for example 10.0.0.8" in text for text in snapshot.warnings)


def test_names_that_could_be_two_nodes_are_said() -> None:
    held = [gpu("n1", "0"), *(series(NODE, {"instance": f"n1.{domain}:1"}, UP) for domain in ("a", "b"))]
    assert "nodes: n1 may be n1.a or n1.b, they are kept apart" in snap(*held).warnings


def test_an_instance_of_a_training_series_is_a_node_only_where_others_know_it() -> None:
    held = [
        gpu("n0", "0"),
        series(RANK, {"rank": "0", "job_id": "j", "instance": "n0:9500"}, UP),
        series(RANK, {"rank": "1", "job_id": "j", "instance": "pushgateway:9091"}, UP),
    ]
    snapshot = snap(*held)
    assert rows(snapshot, "rank", "rank", "node") == ["0/n0", "1/"]
    assert rows(snapshot, "node") == ["n0"]


def test_series_that_name_nobody_are_counted() -> None:
    snapshot = snap(gpu("n0", "0"), series(GPU, {"color": "red"}, UP), series(GPU, {"color": "blue"}, UP))
    assert '2 series name no gpu, for example temp{color="blue"}' in snapshot.warnings


# ports, racks, mounts


def ports(node: str, *devices: str, state: float = 4.0) -> list[object]:
    return [
        series(NIC, {"instance": f"{node}:9100", "device": device, "port": "1"}, ticks(state)) for device in devices
    ]


def test_the_ith_active_port_is_assumed_to_serve_the_ith_gpu() -> None:
    held = [
        *ports("n0", "mlx5_10", "mlx5_2"),
        *ports("n0", "mlx5_0", state=1.0),
        gpu("n0", "0"),
        gpu("n0", "1"),
        info(0),
        info(1),
    ]
    snapshot = snap(*held)
    assert rows(snapshot, "nic", "device", "gpu", "rank", "job", "rail") == [
        "mlx5_0///j/mlx5_0",
        "mlx5_2/0/0/j/mlx5_2",
        "mlx5_10/1/1/j/mlx5_10",
    ]
    assert rows(snapshot, "gpu", "gpu", "rail") == ["0/mlx5_2", "1/mlx5_10"]
    assert rows(snapshot, "rank", "rank", "rail") == ["0/mlx5_2", "1/mlx5_10"]
    assert len([text for text in snapshot.warnings if "assumed" in text]) == 1


def test_a_port_that_goes_down_in_the_window_was_active() -> None:
    down = (ports("n0", "mlx5_0")[0][0], [(time, 4.0 if time < END - 60 else 1.0) for time, _ in UP])
    snapshot = snap(down, *ports("n0", "mlx5_1"), gpu("n0", "0"), gpu("n0", "1"))
    assert rows(snapshot, "nic", "device", "gpu") == ["mlx5_0/0", "mlx5_1/1"]


def test_no_guess_where_the_numbers_differ() -> None:
    snapshot = snap(*ports("n0", "mlx5_0", "mlx5_1", "mlx5_2"), gpu("n0", "0"), gpu("n0", "1"))
    assert rows(snapshot, "nic", "device", "gpu") == ["mlx5_0/", "mlx5_1/", "mlx5_2/"]
    assert not any("assumed" in text for text in snapshot.warnings)


def test_rails_and_leaves_of_the_topology_file() -> None:
    topology = parse(
        """
nodes:
  N0: {rack: r0, leaf: {mlx5_0: a, mlx5_1: b}}
  n1: {rack: r1, leaf: c}
rails: {mlx5_0: 1, mlx5_1: 0}
""",
        "t.yaml",
    )
    held = [
        *ports("n0", "mlx5_0", "mlx5_1"),
        *ports("n1", "mlx5_0"),
        gpu("n0", "0"),
        gpu("n0", "1"),
        gpu("n1", "0"),
        series("nfs", {"instance": "n1:9100", "export": "srv:/data"}, UP),
        info(0),
        info(1),
    ]
    snapshot = snap(*held, topology=topology)
    assert rows(snapshot, "nic", "node", "device", "leaf", "rack", "gpu") == [
        "n0/mlx5_0/a/r0/1",
        "n0/mlx5_1/b/r0/0",
        "n1/mlx5_0/c/r1/",
    ]
    assert rows(snapshot, "switch") == ["a", "b", "c"]
    assert rows(snapshot, "rack") == ["r0", "r1"]
    assert rows(snapshot, "gpu", "node", "gpu", "rack", "rail") == ["n0/0/r0/mlx5_1", "n0/1/r0/mlx5_0", "n1/0/r1/"]
    assert rows(snapshot, "mount", "node", "storage", "rack") == ["n1/srv:/data/r1"]
    assert rows(snapshot, "storage") == ["srv:/data"]
    assert not any("assumed" in text or "topology" in text for text in snapshot.warnings)


def test_the_fabric_tells_leaves_where_no_file_does() -> None:
    told = [
        series(
            "infiniband_switch_uplink_info", {"switch": f"leaf{n}", "uplink": f"n0 HCA-{n}", "uplink_type": "CA"}, UP
        )
        for n in (1, 2)
    ]
    snapshot = snap(*ports("n0", "mlx5_0", "mlx5_1"), *told, gpu("n0", "0"))
    assert rows(snapshot, "nic", "device", "leaf") == ["mlx5_0/leaf1", "mlx5_1/leaf2"]


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ("x0: {rack: r}, x1: {rack: r}", "t.yaml: the topology speaks of other nodes (x0) than the metrics (n0)"),
        ("n0: {rack: r}", "t.yaml: the topology lacks 2 of 3 nodes, for example n1"),
    ],
)
def test_a_topology_that_does_not_fit(nodes: str, said: str) -> None:
    snapshot = snap(*(gpu(f"n{n}", "0") for n in range(3)), topology=parse(f"nodes: {{{nodes}}}", "t.yaml"))
    assert said in snapshot.warnings


def test_rows_are_in_natural_order() -> None:
    assert rows(snap(*(gpu(f"n{n}", "0") for n in (10, 9, 1))), "node") == ["n1", "n9", "n10"]


def test_direct_series_of_a_job_add_it() -> None:
    snapshot = snap(series(LOSS, {"job_id": "k"}, UP), series(LOSS, {"instance": "x"}, UP))
    assert rows(snapshot, "job") == ["default", "k"]
    assert np.isfinite(snapshot.measurements["job"].window).all()


def test_a_gpu_exporter_that_goes_by_the_name_of_its_pod() -> None:
    held = [gpu("dcgm-x7", str(index), UUID=f"GPU-{index}") for index in range(2)]
    host = series(NODE, {"instance": "n0:9100"}, UP)
    snapshot = snap(*held, info(0), info(1), host)
    assert rows(snapshot, "gpu", "node", "gpu", "rank") == ["n0/0/0", "n0/1/1"]
    assert rows(snapshot, "node") == ["n0"]
    assert snapshot.measurements["gpu"].origin[0] == {"Hostname": "dcgm-x7", "gpu": "0"}
    assert any("for example dcgm-x7 is n0" in text for text in snapshot.warnings)
    apart = snap(*held, info(0), info(1, node="n1"), host, series(NODE, {"instance": "n1:9100"}, UP))
    assert "dcgm-x7" in rows(apart, "node")
