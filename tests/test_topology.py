"""The topology file: what it says, and what is wrong with it."""

from pathlib import Path

import pytest

from rca.errors import ProblemsError
from rca.sources import topology
from rca.sources.topology import Topology, parse, port_name, uplinks

FILE = """
nodes:
  node-00: {rack: r0, leaf: leaf0}
  node-01: {rack: r0, leaf: {mlx5_0: su0-leaf0, mlx5_1: su0-leaf1}}
  node-02: {}
rails: {mlx5_0: 0, mlx5_3: 1}
"""


def test_racks_leaves_and_rails() -> None:
    found = parse(FILE, "t.yaml")
    assert [found.rack(node) for node in ("node-00", "node-02", "gone")] == ["r0", "", ""]
    assert found.leaf("node-00", "mlx5_7") == "leaf0"
    assert found.leaf("node-01", "mlx5_1") == "su0-leaf1"
    assert found.leaf("node-01", "mlx5_7") == ""
    assert found.rails == {"mlx5_0": "0", "mlx5_3": "1"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes: {n0: {rak: r0}}", "t.yaml:1: unknown key 'rak', did you mean 'rack'"),
        ("nodes:\n  n0: {leaf: [a]}", "t.yaml:2"),
        ("rails: {mlx5_0: one}", "t.yaml:1: 'mlx5_0' must be a whole number, found 'one'"),
        ("rails: {mlx5_0: -1}", "t.yaml:1: 'rails' gives mlx5_0 a GPU below 0"),
        ("node: {}", "t.yaml:1: unknown key 'node', did you mean 'nodes'"),
        ("", "t.yaml:1: the file is empty"),
    ],
)
def test_problems_have_a_line(text: str, said: str) -> None:
    with pytest.raises(ProblemsError) as caught:
        parse(text, "t.yaml")
    assert str(caught.value).startswith(said)


def test_every_problem_at_once() -> None:
    with pytest.raises(ProblemsError) as caught:
        parse("nodes:\n  n0: {rak: r0}\n  n1: {laef: l}\n", "t.yaml")
    assert [problem.place for problem in caught.value.problems] == ["t.yaml:2", "t.yaml:3"]


def test_load_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(FILE)
    assert topology.load(file).place == str(file)
    with pytest.raises(ProblemsError, match=r"gone\.yaml"):
        topology.load(tmp_path / "gone.yaml")


def test_renamed_speaks_of_the_names_that_metrics_use() -> None:
    found = parse(FILE, "t.yaml").renamed({"node-00": "node-00.dc1"})
    assert found.rack("node-00.dc1") == "r0"
    assert found.leaf("node-00.dc1", "mlx5_0") == "leaf0"
    assert found.rack("node-00") == ""


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (["node-00", "node-01"], ()),
        ([], ()),
        (["node-00", "node-05"], ("t.yaml: the topology lacks 1 of 2 nodes, for example node-05",)),
        (["other"], ("t.yaml: the topology speaks of other nodes (node-00) than the metrics (other)",)),
    ],
)
def test_objections(nodes: list[str], said: tuple[str, ...]) -> None:
    assert parse(FILE, "t.yaml").objections(nodes) == said


def test_no_topology_objects_to_nothing() -> None:
    assert Topology().objections(["node-00"]) == ()
    assert Topology().leaf("node-00", "mlx5_0") == ""


def test_uplinks_are_of_hosts_only() -> None:
    series = [
        {"switch": "leaf0", "port": "1", "uplink": "n0 HCA-1", "uplink_type": "CA"},
        {"switch": "leaf1", "port": "1", "uplink": "n0 mlx5_1", "uplink_type": "CA"},
        {"switch": "leaf0", "port": "40", "uplink": "spine0", "uplink_type": "SW"},
        {"switch": "leaf0", "port": "41", "uplink": "", "uplink_type": "CA"},
    ]
    assert uplinks(series) == {"n0": {"HCA-1": "leaf0", "mlx5_1": "leaf1"}}


def test_port_names_count_in_natural_order() -> None:
    devices = ["mlx5_10", "mlx5_2", "mlx5_0"]
    assert [port_name(device, devices)[1] for device in devices] == ["HCA-3", "HCA-2", "HCA-1"]
    assert port_name("eth0", devices) == ("eth0", "")
