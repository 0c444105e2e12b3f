"""Where nodes stand: racks, leaf switches and rails, as written in a topology file or told by the fabric."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rca import reader
from rca.library import Written
from rca.plain import natural


class Place(Written, frozen=True, kw_only=True):
    """Where one node stands. A plain `leaf` holds for all of its ports."""

    rack: str = ""
    leaf: str | dict[str, str] = ""


class Layout(Written, frozen=True, kw_only=True):
    """The file: `nodes: {node-00: {rack: r0, leaf: {mlx5_0: su0-leaf0}}}`, and `rails: {mlx5_0: 0}`, which says
    which local GPU a port serves."""

    nodes: dict[str, Place] = {}
    rails: dict[str, int] = {}

    def __post_init__(self) -> None:
        below = [device for device, gpu in self.rails.items() if gpu < 0]
        if below:
            raise ValueError(f"'rails' gives {below[0]} a GPU below 0, write the index on the node, from 0 up")


@dataclass(frozen=True)
class Topology:
    """What is known of where nodes stand, under the names that the metrics use.

    `leaves` maps a node to its leaf, or to its leaf by device. `place` is the file, empty where there is none.
    """

    racks: Mapping[str, str] = field(default_factory=dict)
    leaves: Mapping[str, str | Mapping[str, str]] = field(default_factory=dict)
    rails: Mapping[str, str] = field(default_factory=dict)
    place: str = ""

    def nodes(self) -> frozenset[str]:
        """Return the nodes that it speaks of."""
        return frozenset((*self.racks, *self.leaves))

    def rack(self, node: str) -> str:
        """Return the rack of a node, empty where unknown."""
        return self.racks.get(node, "")

    def leaf(self, node: str, device: str) -> str:
        """Return the leaf switch of a port, empty where unknown."""
        found = self.leaves.get(node, "")
        return found if isinstance(found, str) else found.get(device, "")

    def renamed(self, canonical: Mapping[str, str]) -> "Topology":
        """Return it under canonical node names."""
        return Topology(
            {canonical.get(node, node): rack for node, rack in self.racks.items()},
            {canonical.get(node, node): leaf for node, leaf in self.leaves.items()},
            self.rails,
            self.place,
        )

    def objections(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """Say how badly it fits the nodes that the metrics show."""
        ours, theirs = sorted(set(nodes), key=natural), self.nodes()
        missing = [node for node in ours if node not in theirs]
        if not self.place or not ours or not missing:
            return ()
        if len(missing) == len(ours):
            other = min(theirs, key=natural) if theirs else "none"
            return (f"{self.place}: the topology speaks of other nodes ({other}) than the metrics ({ours[0]})",)
        return (f"{self.place}: the topology lacks {len(missing)} of {len(ours)} nodes, for example {missing[0]}",)


def load(path: Path) -> Topology:
    """Read a topology file; raise ProblemsError with all that is wrong in it."""
    return _built(reader.read_file(path, Layout), str(path))


def parse(text: str, place: str) -> Topology:
    """Read the text of a topology file.

    >>> parse("nodes: {n0: {rack: r0, leaf: {mlx5_0: l0}}, n1: {leaf: l1}}", "t.yaml").leaf("n1", "mlx5_3")
    'l1'
    """
    return _built(reader.read(text, place, Layout), place)


def _built(layout: Layout, place: str) -> Topology:
    """Turn the file's shape into ours."""
    return Topology(
        {node: where.rack for node, where in layout.nodes.items()},
        {node: where.leaf for node, where in layout.nodes.items()},
        {device: str(gpu) for device, gpu in layout.rails.items()},
        place,
    )


def uplinks(series: Iterable[Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Read `infiniband_switch_uplink_info`: for each host the switch behind each of its ports.

    >>> uplinks([{"switch": "leaf0", "uplink": "node-00 HCA-1", "uplink_type": "CA"}])
    {'node-00': {'HCA-1': 'leaf0'}}
    """
    found: dict[str, dict[str, str]] = {}
    for labels in sorted(series, key=lambda one: sorted(one.items())):
        host, _, port = labels.get("uplink", "").strip().partition(" ")
        if labels.get("uplink_type") == "CA" and host and port and labels.get("switch"):
            found.setdefault(host, {})[port.strip()] = labels["switch"]
    return found


def port_name(device: str, devices: Iterable[str]) -> tuple[str, str]:
    """Return the names under which a fabric may know a port: its device, or `HCA-k` for the k-th of the node.

    >>> port_name("mlx5_1", ["mlx5_0", "mlx5_1"])
    ('mlx5_1', 'HCA-2')
    """
    ordered = sorted(devices, key=natural)
    return device, f"HCA-{ordered.index(device) + 1}" if device in ordered else ""
