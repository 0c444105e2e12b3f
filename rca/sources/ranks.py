"""Which process runs where: ranks from info series and from their own, as of the end of the window."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from rca.plain import natural
from rca.relations import natural_places
from rca.sources.identity import Seen

Key = tuple[str, ...]
Row = dict[str, str]
DEFAULT = "default"
INDICES = ("tp", "pp", "dp", "cp")


class Info(NamedTuple):
    """One info series: what its labels say, and the first and last time that it said so."""

    seen: Seen
    first: float
    last: float


@dataclass
class Gpus:
    """The GPUs found so far, and where each UUID is."""

    rows: dict[Key, Row] = field(default_factory=dict)
    by_uuid: dict[str, Key] = field(default_factory=dict)

    def add(self, key: Key, uuid: str) -> None:
        """Add a GPU; of two places for one UUID the first in natural order counts."""
        row = self.rows.setdefault(key, {"node": key[0], "gpu": key[1]})
        if uuid:
            row["uuid"] = min(row.get("uuid", uuid), uuid)
            known = self.by_uuid.setdefault(uuid, key)
            if known != key:
                self.by_uuid[uuid] = min(known, key, key=in_order)

    def find(self, values: Mapping[str, str], node: str) -> Key | None:
        """Return the GPU that labels speak of: by UUID where that is known, else by node and index."""
        if values.get("uuid", "") in self.by_uuid:
            return self.by_uuid[values["uuid"]]
        return (node, values["gpu"]) if node and values.get("gpu") else None


class Ranks(NamedTuple):
    """Ranks by (job, rank) in natural order, each with its place in the job and on a GPU; when info series spoke of each, first and
    last; and what was odd about them."""

    rows: dict[Key, Row]
    spans: dict[Key, tuple[float, float]]
    warnings: tuple[str, ...]


def rank_key(values: Mapping[str, str]) -> Key | None:
    """Return (job, rank); a rank without a job belongs to the job `default`, no rank at all is nobody."""
    return (values.get("job") or DEFAULT, values["rank"]) if values.get("rank") else None


def find_ranks(infos: Sequence[Info], series: Iterable[Seen], nodes: Mapping[str, str], gpus: Gpus) -> Ranks:
    """Build the rank rows, and add the GPUs to `gpus` that only they speak of.

    `nodes` maps spellings of nodes that can be trusted to canonical ones. Of several info series of one rank the one
    with the latest sample counts.
    """
    grouped: dict[Key, list[Info]] = {}
    nameless = 0
    for info in infos:
        key = rank_key(info.seen.values)
        nameless += key is None
        if key is not None:
            grouped.setdefault(key, []).append(info)
    warnings = [f"ranks: {nameless} info series name no rank"] if nameless else []
    rows = {key: _row(key, _latest(grouped[key], nodes).seen, nodes, gpus) for key in ordered(grouped)}
    warnings += _restless(grouped, nodes, gpus)
    warnings += _fill_indices(rows)
    extra: dict[Key, Row] = {}
    others = [one for one in series if rank_key(one.values) not in rows]
    for seen in sorted(others, key=lambda one: sorted(one.values.items())):
        key = rank_key(seen.values)
        if key is not None:
            row = _row(key, seen, nodes, gpus)
            extra[key] = {name: extra.get(key, row)[name] or value for name, value in row.items()}
    told = {job for job, _ in rows}
    unplaced = {key: row for key, row in extra.items() if key[0] not in told}
    warnings += _fill_indices(unplaced)
    alone = ordered(key for key in extra if key[0] in told)
    if alone:
        warnings.append(f"ranks: {len(alone)} have series but no info series, for example {_named(alone[0])}")
    if extra:
        rows |= extra
        rows = {key: rows[key] for key in ordered(rows)}
    warnings += _homeless(rows)
    return Ranks(rows, {key: _span(found) for key, found in grouped.items()}, tuple(warnings))


def members(infos: Sequence[Info], start: float) -> list[Info]:
    """Leave the info series of the window, and of a rank that fell silent before it the last ones.

    It is a member of its job still where most of those that speak on began before it ended (later ones are of a new
    start, without it), and where nobody has taken its place.
    """
    present = [info for info in infos if info.last >= start]
    if len(present) == len(infos):
        return present
    alive = {rank_key(info.seen.values) for info in present}
    taken = {_spot(info) for info in present} - {None}
    began: dict[str, list[float]] = {}
    for info in present:
        began.setdefault(_job(info), []).append(info.first)
    middle = {job: sorted(firsts)[len(firsts) // 2] for job, firsts in began.items()}
    lost = [
        info
        for info in infos
        if info.last < start
        and middle.get(_job(info), math.inf) <= info.last
        and rank_key(info.seen.values) not in alive
        and _spot(info) not in taken
    ]
    return present + lost


def _job(info: Info) -> str:
    return info.seen.values.get("job") or DEFAULT


def _spot(info: Info) -> tuple[str, ...] | None:
    """Return the GPU that an info series names, None where it names none."""
    values = info.seen.values
    if values.get("uuid"):
        return (values["uuid"],)
    return (values["node"], values["gpu"]) if values.get("node") and values.get("gpu") else None


def in_order(key: Key) -> tuple[tuple[tuple[int, int, str], ...], ...]:
    """Return the sort key of a row: part by part in natural order."""
    return tuple(map(natural, key))


def ordered(keys: Iterable[Key]) -> list[Key]:
    """Sort keys of equally many parts as `in_order` does; few values in many keys are compared once each.

    >>> ordered([("n10", "1"), ("n9", "2"), ("n9", "1")])
    [('n9', '1'), ('n9', '2'), ('n10', '1')]
    """
    found = list(keys)
    if not found:
        return found
    order = np.lexsort([natural_places(part) for part in reversed([*zip(*found, strict=True)])])
    return [found[row] for row in order.tolist()]


def _named(key: Key) -> str:
    return f"rank {key[1]} of job {key[0]}"


def _node(seen: Seen, nodes: Mapping[str, str]) -> str:
    """Return the canonical node; an `instance` counts only where other series know it as a node.

    Behind `instance` of a training series may be a push gateway, or a pod.
    """
    spelling = seen.values.get("node", "")
    if seen.via.get("node") == "instance":
        return nodes.get(spelling, "")
    return nodes.get(spelling, spelling.lower())


def _latest(infos: Sequence[Info], nodes: Mapping[str, str]) -> Info:
    """Return the info with the latest sample, of equal ones the latest to begin, then the first in natural order."""
    if len(infos) == 1:
        return infos[0]
    newest = max((info.last, info.first) for info in infos)
    alike = [info for info in infos if (info.last, info.first) == newest]
    return min(alike, key=lambda info: in_order((_node(info.seen, nodes), *sorted(info.seen.values.values()))))


def _row(key: Key, seen: Seen, nodes: Mapping[str, str], gpus: Gpus) -> Row:
    """Describe one rank by what its labels say."""
    values = seen.values
    row = {name: values.get(name, "") for name in ("local_rank", *INDICES, "ep")}
    node = _node(seen, nodes)
    place = gpus.find(values, node)
    if place is not None:
        gpus.add(place, values.get("uuid", ""))
        node = place[0]
    return row | {"job": key[0], "rank": key[1], "node": node, "gpu": place[1] if place is not None else ""}


def _span(infos: Sequence[Info]) -> tuple[float, float]:
    """Return when info series spoke first and last."""
    if len(infos) == 1:
        return infos[0].first, infos[0].last
    return min(one.first for one in infos), max(one.last for one in infos)


def _restless(grouped: Mapping[Key, Sequence[Info]], nodes: Mapping[str, str], gpus: Gpus) -> list[str]:
    """Warn of ranks that are in two places: at once, or one after the other."""
    twice: list[tuple[Key, list[str]]] = []
    moved: list[tuple[Key, list[str]]] = []
    for key, infos in grouped.items():
        if len(infos) == 1:
            continue
        spans: dict[tuple[str, str], tuple[float, float]] = {}
        for info in infos:
            node = _node(info.seen, nodes)
            place = gpus.find(info.seen.values, node) or (node, "")
            first, last = spans.get((place[0], place[1]), (info.first, info.last))
            spans[place[0], place[1]] = (min(first, info.first), max(last, info.last))
        ordered = sorted(spans.items(), key=lambda item: (item[1], in_order(item[0])))
        pairs = list(pairwise(ordered))
        names = sorted(("/".join(filter(None, place)) for place in spans), key=natural)
        if any(after[1][0] <= before[1][1] for before, after in pairs):
            twice.append((key, names))
        elif len({place[0] for place in spans}) > 1:
            moved.append((key, names))
    warnings = []
    for what, found in (("run in two places at once", twice), ("moved inside the window", moved)):
        if found:
            key, names = min(found, key=lambda one: in_order(one[0]))
            example = f"{_named(key)} on {' and '.join(names)}"
            warnings.append(f"ranks: {len(found)} {what}, for example {example}; the latest place counts")
    return warnings


def _fill_indices(rows: Mapping[Key, Row]) -> list[str]:
    """Complete tp, pp, dp and cp job by job, in place.

    A job whose ranks tell none of tp, pp and dp is taken for pure data parallelism. In others a missing index is 0,
    as it is for an axis of size one.
    """
    jobs: dict[str, list[Row]] = {}
    for row in rows.values():
        jobs.setdefault(row["job"], []).append(row)
    assumed, clashing = [], []
    for job, members in sorted(jobs.items()):
        told = [row for row in members if row["tp"] or row["pp"] or row["dp"]]
        if not told:
            assumed.append(job)
        for row in told or members:
            for name in INDICES:
                if not row[name]:
                    row[name] = "0" if told or name != "dp" else row["rank"]
        places = [*map(itemgetter(*INDICES), [row for row in members if row["dp"]])]
        if len(set(places)) < len(places):
            clashing.append(job)
    warnings = []
    if assumed:
        warnings.append(
            f"ranks: no tp, pp or dp index in {_listed(assumed)}, pure data parallelism is assumed; "
            "labels tp_rank, pp_rank and dp_rank of train_rank_info tell the layout"
        )
    if clashing:
        warnings.append(f"ranks: several share the same tp, pp, dp and cp index in {_listed(clashing)}")
    return warnings


def _listed(jobs: Sequence[str]) -> str:
    """Name jobs, a few of them."""
    few = ", ".join(jobs[:3])
    return f"{'job' if len(jobs) == 1 else 'jobs'} {few}" + (f" and {len(jobs) - 3} more" if len(jobs) > 3 else "")


def _homeless(rows: Mapping[Key, Row]) -> list[str]:
    """Warn of ranks whose GPU is not known."""
    homeless = [key for key, row in rows.items() if not row["gpu"]]
    if not homeless:
        return []
    count = f"{len(homeless)} of {len(rows)} have no known GPU, for example {_named(homeless[0])}"
    return [f"ranks: {count}; labels node and gpu, or gpu_uuid, of train_rank_info tell it"]
