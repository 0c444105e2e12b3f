"""The tables of a snapshot: every entity that some series, info series or layout speaks of, and where it stands."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from rca.library import Entities
from rca.model import Table
from rca.plain import natural
from rca.sources.grid import Ints
from rca.sources.identity import Seen, is_address, unify
from rca.sources.ranks import DEFAULT, INDICES, Gpus, Info, Key, Ranks, Row, find_ranks, in_order, ordered
from rca.sources.topology import Topology, port_name

COMMUNICATORS = ("tp", "cp", "dp", "pp")
_PLACE = ("job", "rank", "local_rank", *INDICES)


@dataclass(frozen=True)
class World:
    """What was read of a deployment: distinct readings of labels by kind, and what joins them.

    `hosts` maps addresses to host names, `uplinks` hosts to the switch behind each port, `active` holds the readings
    of kind nic that are RDMA ports in use.
    """

    seen: Mapping[str, Sequence[Seen]]
    infos: Sequence[Info] = ()
    hosts: Mapping[str, str] = field(default_factory=dict)
    uplinks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    active: frozenset[int] = frozenset()
    topology: Topology = field(default_factory=Topology)


@dataclass(frozen=True)
class Directory:
    """The tables, and for each kind the row of each reading (-1: it names no entity); `names` has the name of each
    spelling of a node.
    """

    tables: Mapping[str, Table]
    rows: Mapping[str, Ints]
    warnings: tuple[str, ...]
    names: Mapping[str, str] = field(default_factory=dict)


def build(entities: Entities, world: World) -> Directory:
    """Build every table of the library's kinds, rows in natural order of their keys."""
    return _Builder(entities, world).built()


class _Builder:
    """Collects rows by kind; each step uses what those before it found."""

    def __init__(self, entities: Entities, world: World) -> None:
        self.entities = entities
        self.world = world
        spellings = [one.values["node"] for kind in world.seen for one in world.seen[kind] if "node" in one.values]
        spellings += [info.seen.values["node"] for info in world.infos if "node" in info.seen.values]
        names = unify([*spellings, *world.topology.nodes(), *world.uplinks], world.hosts)
        self.names = dict(names.canonical)
        self.warnings = list(names.warnings)
        self.rename_by_uuid()
        self.topology = world.topology.renamed(self.names)
        self.uplinks = {self.names[host]: ports for host, ports in world.uplinks.items()}
        self.found: dict[str, dict[Key, Row]] = {kind: {} for kind in entities.kinds}
        self.keys: dict[str, list[Key | None]] = {kind: [] for kind in world.seen}
        self.gpus = Gpus(self.found.get("gpu", {}))
        self.addressed: dict[Key, Key] = {}
        self.racks: dict[str, str] = {}

    def built(self) -> Directory:
        """Run all steps."""
        self.read_gpus()
        for kind in sorted(self.world.seen.keys() - {"gpu", "rank"}):
            self.read(kind)
        ranks = self.read_ranks()
        self.place_gpus(ranks)
        self.add_nodes()
        self.place_nics()
        self.add_job_parts()
        self.add_shared()
        keys = {kind: ordered(found) for kind, found in self.found.items()}
        tables = {kind: self.table(kind, keys[kind]) for kind in keys}
        self.warnings += self.topology.objections(row["node"] for row in self.found.get("node", {}).values())
        rows = {kind: self.rows(kind, keys[kind]) for kind in self.keys}
        return Directory(tables, rows, tuple(self.warnings), self.names)

    def rename_by_uuid(self) -> None:
        """Call the nodes of a GPU exporter by the names that ranks and hosts use, where their UUIDs tell which.

        An exporter in a pod may give the pod's name as its host name.
        """
        hosts = {self.node(one) for kind in ("node", "nic", "mount") for one in self.world.seen.get(kind, ())}
        infos = [info.seen for info in self.world.infos if "uuid" in info.seen.values]
        said = {one.values["uuid"]: self.node(one) for one in infos}
        wanted: dict[str, set[str]] = {}
        for one in self.world.seen.get("gpu", ()):
            node, told = self.node(one), said.get(one.values.get("uuid", ""), "")
            if node and told in hosts and node not in hosts:
                wanted.setdefault(node, set()).add(told)
        clear = {node: next(iter(told)) for node, told in wanted.items() if len(told) == 1}
        if clear:
            example = min(clear, key=natural)
            self.warnings.append(
                f"nodes: {len(clear)} have another name at the GPU exporter, by the UUIDs of their GPUs, "
                f"for example {example} is {clear[example]}"
            )
        self.names.update({spelling: clear[name] for spelling, name in self.names.items() if name in clear})

    def node(self, seen: Seen) -> str:
        """Return the canonical node of a reading."""
        return self.names.get(seen.values.get("node", ""), "")

    def read_gpus(self) -> None:
        """Add the GPUs of GPU series; one without an index is found by its UUID or PCI address, or called by it."""
        readings = self.world.seen.get("gpu", ())
        keys: list[Key | None] = [None] * len(readings)
        told = self.told_by_ranks()
        for known in (True, False):
            for index, seen in enumerate(readings):
                node, gpu, uuid = self.node(seen), seen.values.get("gpu", ""), seen.values.get("uuid", "")
                address = seen.values.get("pci", "").lower()
                if bool(node and gpu) is not known:
                    continue
                key = (node, gpu) if known else self.gpus.by_uuid.get(uuid, told.get(uuid))
                if key is None and node and (uuid or address):
                    key = self.addressed.get((node, address), (node, uuid or address))
                if key is not None:
                    if key[0] == node and address:
                        self.addressed.setdefault((node, address), key)
                    self.gpus.add(key, uuid)
                    self.describe("gpu", key, seen, ("model", "job", "rack"))
                keys[index] = key
        self.keys["gpu"] = keys
        places: dict[str, set[Key]] = {}
        for key, seen in zip(keys, readings, strict=True):
            if key is not None and seen.values.get("uuid"):
                places.setdefault(seen.values["uuid"], set()).add(key)
        twice = sorted(min(found) for found in places.values() if len(found) > 1)
        if twice:
            example = " and ".join("/".join(key) for key in sorted(places[self.found["gpu"][twice[0]]["uuid"]]))
            self.warnings.append(f"gpus: {len(twice)} UUIDs are seen in two places, for example {example}")

    def told_by_ranks(self) -> dict[str, Key]:
        """Return the place of each GPU whose UUID and index an info series gives."""
        told: dict[str, Key] = {}
        for info in self.world.infos:
            values, node = info.seen.values, self.node(info.seen)
            if node and values.get("gpu") and values.get("uuid") and info.seen.via["node"] != "instance":
                place = (node, values["gpu"])
                known = told.setdefault(values["uuid"], place)
                if known != place:
                    told[values["uuid"]] = min(known, place, key=in_order)
        return told

    def read(self, kind: str) -> None:
        """Add the entities of other series, as their labels name them."""
        labels = self.entities.kinds[kind].labels
        for seen in self.world.seen[kind]:
            values = dict(seen.values)
            if "node" in values:
                values["node"] = self.node(seen)
            if "job" in labels:
                values["job"] = values.get("job") or DEFAULT
            key = tuple(values.get(label, "") for label in labels)
            complete = all(key)
            self.keys[kind].append(key if complete else None)
            if complete:
                self.found[kind].setdefault(key, dict(zip(labels, key, strict=True)))
                self.describe(kind, key, seen, ("rack", "leaf"))

    def describe(self, kind: str, key: Key, seen: Seen, names: Sequence[str]) -> None:
        """Keep what labels say beside the key; of several values the first in natural order."""
        row = self.found[kind][key]
        for name in names:
            value = seen.values.get(name, "")
            if value:
                known = row.setdefault(name, value)
                row[name] = known if known == value else min(known, value, key=natural)
        if row.get("rack") and row.get("node"):
            self.racks[row["node"]] = min(self.racks.get(row["node"]) or row["rack"], row["rack"], key=natural)

    def read_ranks(self) -> Ranks:
        """Add the ranks, of info series and of their own."""
        readings = self.world.seen.get("rank", ())
        physical = [
            one.values["node"]
            for kind in ("gpu", "nic", "node", "mount")
            for one in self.world.seen.get(kind, ())
            if "node" in one.values
        ]
        others = [one for one in (*readings, *(info.seen for info in self.world.infos)) if "node" in one.values]
        trusted = {self.names[name] for name in physical} | self.topology.nodes()
        trusted |= {self.names[one.values["node"]] for one in others if one.via["node"] != "instance"}
        nodes = {spelling: name for spelling, name in self.names.items() if name in trusted}
        ranks = find_ranks(self.world.infos, readings, nodes, self.gpus)
        self.warnings += ranks.warnings
        self.found["rank"] = ranks.rows
        if "rank" in self.keys:
            self.keys["rank"] = [
                (one.values.get("job") or DEFAULT, one.values["rank"]) if one.values.get("rank") else None
                for one in readings
            ]
        return ranks

    def place_gpus(self, ranks: Ranks) -> None:
        """Tell GPUs the rank that ran on them last; what runs nothing has no job, unless no job is known at all."""
        never = (-np.inf, -np.inf)
        crowded: set[Key] = set()
        since: dict[Key, float] = {}
        for key in sorted(ranks.rows, key=lambda key: -ranks.spans.get(key, never)[1]):
            rank = ranks.rows[key]
            place = (rank["node"], rank["gpu"])
            row = self.found["gpu"].get(place)
            if row is None:
                continue
            first, last = ranks.spans.get(key, never)
            if place in since:
                crowded |= {place} if last >= since[place] else set()
                continue
            since[place] = first
            row.update({name: rank.get(name, "") for name in _PLACE})
        if crowded:
            where: Key = min(crowded, key=in_order)
            example = "/".join(where)
            self.warnings.append(f"gpus: {len(crowded)} run several ranks, for example {example}; the first counts")
        self.place_default(ranks)

    def place_default(self, ranks: Ranks) -> None:
        """Put all GPUs into the job `default` where nothing tells of any other."""
        rows = self.found["gpu"].values()
        if not rows or any(row.get("job") for row in rows):
            return
        if {job for job, _ in ranks.rows} <= {DEFAULT}:
            for row in rows:
                row["job"] = DEFAULT
            self.warnings.append("jobs: no series tells which job a GPU runs, all GPUs are taken for one")
        else:
            self.warnings.append("jobs: no rank tells its GPU, so no GPU belongs to a job")

    def add_nodes(self) -> None:
        """Add every node that something runs on, with its rack, and its job where all its ranks are of one."""
        jobs: dict[str, set[str]] = {}
        for kind in ("node", "gpu", "nic", "mount", "rank"):
            for row in self.found.get(kind, {}).values():
                if row.get("node"):
                    jobs.setdefault(row["node"], set())
        for row in self.found.get("rank", {}).values():
            jobs.setdefault(row["node"], set()).add(row["job"])
        for row in self.found.get("gpu", {}).values():
            if row.get("job") and not jobs[row["node"]]:
                jobs[row["node"]].add(row["job"])
        for node in sorted(jobs.keys() - {""}):
            row = self.found["node"].setdefault((node,), {"node": node})
            row["rack"] = self.topology.rack(node) or self.racks.get(node, "")
            row["job"] = next(iter(jobs[node])) if len(jobs[node]) == 1 else ""
        addresses = sorted((node for node in jobs if is_address(node)), key=natural)
        if 0 < len(addresses) < len(jobs.keys() - {""}):
            self.warnings.append(
                f"nodes: {len(addresses)} are known by address only, for example {addresses[0]}; no node_uname_info "
                "tells their names, so they may be other nodes under a second name"
            )
        for kind in ("gpu", "nic", "mount", "rank"):
            for row in self.found.get(kind, {}).values():
                home = self.found["node"].get((row.get("node", ""),), {})
                row["rack"] = home.get("rack", "")
                if kind in ("nic", "mount") or (kind == "gpu" and self.unplaced(row)):
                    row["job"] = home.get("job", "")

    def unplaced(self, gpu: Row) -> bool:
        """Say whether of a GPU only the PCI address is known, so that no rank can tell that it runs there."""
        return not gpu.get("job") and (gpu["node"], gpu["gpu"]) in self.addressed

    def place_nics(self) -> None:
        """Tell ports their leaf and the GPU that they serve, and GPUs their rail."""
        ports: dict[str, list[Row]] = {}
        for row in self.found.get("nic", {}).values():
            ports.setdefault(row["node"], []).append(row)
        active = {self.keys["nic"][index] for index in self.world.active}
        gpus: dict[str, list[str]] = {}
        for node, gpu in self.found.get("gpu", {}):
            gpus.setdefault(node, []).append(gpu)
        assumed = 0
        for node, rows in ports.items():
            rdma = sorted((row["device"] for row in rows if (node, row["device"]) in active), key=natural)
            guess = dict(zip(rdma, sorted(gpus.get(node, ()), key=natural), strict=False))
            guess = guess if len(rdma) == len(gpus.get(node, ())) and not self.topology.rails else {}
            assumed += bool(guess)
            for row in rows:
                device = row["device"]
                names = port_name(device, rdma or [one["device"] for one in rows])
                uplinks = self.uplinks.get(node, {})
                told = next((uplinks[name] for name in names if name in uplinks), "")
                row["leaf"] = self.topology.leaf(node, device) or row.get("leaf") or told
                row["rail"] = device
                self.serve(row, self.topology.rails.get(device) or guess.get(device, ""))
        if assumed:
            self.warnings.append(
                f"nics: on {assumed} nodes the i-th active RDMA port is assumed to serve the i-th GPU; "
                "rails in the topology file tell it"
            )

    def serve(self, port: Row, gpu: str) -> None:
        """Tie a port to the GPU that it serves."""
        row = self.found.get("gpu", {}).get((port["node"], gpu))
        if row is None:
            return
        port["gpu"] = gpu
        row["rail"] = port["device"]
        if row.get("rank"):
            port.update({name: row.get(name, "") for name in ("job", "rank", *INDICES)})
            self.found["rank"][row["job"], row["rank"]]["rail"] = port["device"]

    def add_job_parts(self) -> None:
        """Add jobs, and the cells, stages, replicas and communicators of their ranks."""
        ranks = list(self.found.get("rank", {}).values())
        for kind, labels in (("stage", ("job", "pp")), ("replica", ("job", "dp")), ("cell", ("job", "dp", "pp"))):
            for key in dict.fromkeys(map(itemgetter(*labels), ranks)):
                self.put(kind, key)
        where: dict[Key, set[str]] = {}
        for *cell, node in dict.fromkeys(map(itemgetter("job", "dp", "pp", "node"), ranks)):
            where.setdefault(tuple(cell), set()).add(node)
        for key, row in self.found.get("cell", {}).items():
            row["node"] = next(iter(where[key])) if len(where[key]) == 1 else ""
            racks = {self.found["node"].get((node,), {}).get("rack", "") for node in where[key]}
            row["rack"] = next(iter(racks)) if len(racks) == 1 else ""
        self.add_communicators(ranks)
        for kind in ("rank", "gpu", "node"):
            for job in dict.fromkeys(row.get("job", "") for row in self.found.get(kind, {}).values()):
                self.put("job", (job,))
        if (DEFAULT,) in self.found.get("job", {}):
            self.warnings.append(f"jobs: some series name no job, they form the job {DEFAULT}; a label job_id tells it")

    def add_communicators(self, ranks: Sequence[Row]) -> None:
        """Add the communicators of ranks: those that are alike in all indices but one."""
        deep = {row["job"] for row in ranks if row["cp"] not in ("", "0")}
        for name in COMMUNICATORS:
            others = [index for index in INDICES if index != name]
            members = Counter(map(itemgetter("job", *others), [row for row in ranks if row[name]]))
            for (job, *fixed), size in members.items():
                if size > 1 and all(fixed):
                    place = {**dict.fromkeys(INDICES, ""), **dict(zip(others, fixed, strict=True))}
                    shown = INDICES if job in deep else INDICES[:-1]
                    index = "-".join(f"{one}{place[one]}" for one in shown if place[one])
                    self.put("group", (job, name, index), place)

    def add_shared(self) -> None:
        """Add racks, switches and storage, each with its job where all that it holds is of one."""
        shared = (("rack", "node", "rack"), ("switch", "nic", "leaf"), ("storage", "mount", "storage"))
        for kind, source, label in shared:
            for name in dict.fromkeys(row.get(label, "") for row in self.found.get(source, {}).values()):
                self.put(kind, (name,))
            jobs: dict[str, set[str]] = {}
            for row in self.found.get(source, {}).values():
                jobs.setdefault(row.get(label, ""), set()).update({row["job"]} if row.get("job") else ())
            for (name,), row in self.found.get(kind, {}).items():
                row["job"] = next(iter(jobs[name])) if len(jobs.get(name, ())) == 1 else ""

    def put(self, kind: str, key: Key, more: Mapping[str, str] | None = None) -> None:
        """Add a row of a kind that the library knows, if all of its key is known."""
        if kind in self.found and all(key):
            row = self.found[kind].setdefault(key, dict(zip(self.entities.kinds[kind].labels, key, strict=True)))
            row.update(more or {})

    def table(self, kind: str, keys: Sequence[Key]) -> Table:
        """Return the finished table of a kind."""
        described = self.entities.kinds[kind]
        rows = [self.found[kind][key] for key in keys]
        names = dict.fromkeys((*described.labels, *described.columns))
        columns = {name: _column([row.get(name, "") for row in rows]) for name in names}
        return Table(kind, described.labels, columns, sorted=True)

    def rows(self, kind: str, keys: Sequence[Key]) -> Ints:
        """Return the row of each reading of a kind."""
        position: dict[Key | None, int] = {key: row for row, key in enumerate(keys)}
        return np.array([position.get(key, -1) for key in self.keys[kind]], dtype=np.int64)


def _column(values: Sequence[str]) -> "np.ndarray[tuple[int], np.dtype[np.object_]]":
    """Return values as an object array."""
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column
