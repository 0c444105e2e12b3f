"""What labels tell while answers come in: who is who, and what tables are built from."""

from collections.abc import Mapping

import numpy as np

from rca.library import Entities, Library
from rca.plain import natural
from rca.sources.asking import HOSTS, UPLINKS, Questions
from rca.sources.blocks import nothing
from rca.sources.expressions import Sampled
from rca.sources.grid import Ints
from rca.sources.identity import Reader, rewritten
from rca.sources.ranks import Info
from rca.sources.series import Block
from rca.sources.tables import World
from rca.sources.topology import Topology, uplinks

RDMA, RDMA_STATE, RDMA_ACTIVE = "node_infiniband_", "node_infiniband_state_id", 4.0


class Readings:
    """Reads the labels of series as each kind that they are asked for, and info series as such.

    `leading` are the answers that tell most of who there is: info series, one for each kind with and without its past,
    and the states of ports.
    """

    def __init__(self, library: Library, asked: Questions) -> None:
        self.readers = {kind: Reader(library.entities, kind) for kind in library.entities.kinds}
        self.codes: dict[tuple[int, str], Ints] = {}
        self._entities = library.entities
        self._asked = asked
        self._kinds: dict[int, set[str]] = {}
        self._infos: dict[int, list[Info]] = {}
        first: dict[tuple[str, bool], int] = {}
        for name, queries in asked.queries.items():
            for number in sorted({number for query in queries for number in query.reads.values()}):
                self._kinds.setdefault(number, set()).add(library.signals[name].entity)
                if number < len(asked.selectors):
                    first.setdefault((library.signals[name].entity, asked.back[number]), number)
        states = [number for number, base in enumerate(asked.bases) if base == RDMA_STATE]
        self.leading = frozenset([*asked.infos.values(), *first.values(), *states])

    def add(self, number: int, series: Sampled) -> None:
        """Read the labels of one answer."""
        for kind in sorted(self._kinds.get(number, ())):
            self.codes[number, kind] = self.readers[kind].read_sets(series.labels)
        if number in (self._asked.infos.get(name) for name in self._entities.rank_info):
            self._infos[number] = _infos(self._entities, series)

    def sizes(self) -> dict[str, int]:
        """Return how many readings of each kind there are so far; they only grow."""
        return {kind: len(reader.seen) for kind, reader in self.readers.items()}

    def world(self, series: Mapping[int, Sampled], topology: Topology) -> World:
        """Collect what tables are built from; its readings grow with later answers."""
        infos = {name: series[number].block for name, number in self._asked.infos.items() if number in series}
        ranks = [self._asked.infos[name] for name in self._entities.rank_info if name in self._asked.infos]
        return World(
            seen={kind: reader.seen for kind, reader in self.readers.items()},
            infos=[one for number in ranks for one in self._infos.get(number, ())],
            hosts=_hosts(self._entities, infos.get(HOSTS, nothing())),
            uplinks=uplinks(infos.get(UPLINKS, nothing()).labels),
            active=_active(series, self.codes),
            topology=topology,
        )


def _infos(entities: Entities, series: Sampled) -> list[Info]:
    """Read info series, those that say the same as one."""
    reader = Reader(entities, "rank", ("ep", "uuid"))
    codes, block = reader.read_sets(series.labels), series.block
    filled = np.flatnonzero(np.diff(block.offsets))
    first, last = np.full(len(reader.seen), np.inf), np.full(len(reader.seen), -np.inf)
    np.minimum.at(first, codes[filled], block.times[block.offsets[filled]])
    np.maximum.at(last, codes[filled], block.times[block.offsets[filled + 1] - 1])
    spans = zip(reader.seen, first.tolist(), last.tolist(), strict=True)
    return [Info(seen, begin, end) for seen, begin, end in spans if begin <= end]


def _hosts(entities: Entities, block: Block) -> dict[str, str]:
    """Return the host name that each instance of `node_uname_info` gave last."""
    last = [float(block.times[end - 1]) if end else 0.0 for end in block.offsets[1:].tolist()]
    found: dict[str, str] = {}
    told = zip(block.labels, last, strict=True)
    for labels, _ in sorted(told, key=lambda one: (one[1], natural(one[0].get("nodename", "")))):
        instance, name = labels.get("instance", ""), labels.get("nodename", "")
        if instance and name:
            found[rewritten(instance, entities.labels["node"])] = name
    return found


def _active(found: Mapping[int, Sampled], codes: Mapping[tuple[int, str], Ints]) -> frozenset[int]:
    """Return the readings of RDMA ports that were active at some time, or of all where no state is known."""
    ports: set[int] = set()
    active: set[int] = set()
    known = False
    for (number, kind), own in codes.items():
        if kind != "nic":
            continue
        block, names = found[number].block, found[number].labels.names
        ports |= {code for code, name in zip(own.tolist(), names, strict=True) if name.startswith(RDMA)}
        if RDMA_STATE in names:
            known = True
            series = np.repeat(np.arange(len(names)), np.diff(block.offsets))
            up = np.unique(series[block.values == RDMA_ACTIVE]).tolist()
            active |= {int(own[row]) for row in up if names[row] == RDMA_STATE}
    return frozenset(active if known else ports)
