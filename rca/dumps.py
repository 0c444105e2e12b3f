"""What ranks say of their communicators when they stand still: PyTorch's Flight Recorder dumps, and NCCL's RAS as JSON.

Flight Recorder: one file a rank, its number at the end of the name, as JSON, or as a pickle where that is allowed. Groups
are told by name in `pg_config`, by number in `pg_status`, by both in the entries. RAS: one answer for all
(`ncclras` after `SET FORMAT json`, NCCL 2.28.7 and newer), which tells how many collectives each rank has launched.
"""

import io
import json
import pickle
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from rca.errors import SourceError
from rca.waits import Call, Word

MOST = 256 << 20
"""Bytes of a dump that is read; Flight Recorder keeps some thousand entries, which are a few MiB."""
_RANK = re.compile(r"(\d+)(?:\.(?:json|pkl|pickle|pt))?$")
_PEER = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")
T = TypeVar("T")


class Dumps(NamedTuple):
    """What all dumps of a job say, to be traced."""

    calls: tuple[Call, ...] = ()
    words: tuple[Word, ...] = ()
    members: Mapping[str, tuple[str, ...]] = {}


class _Group(msgspec.Struct):
    name: str = ""
    desc: str = ""
    ranks: str | list[int] = "[]"


class _Status(msgspec.Struct):
    last_enqueued_collective: int = -1
    last_completed_collective: int = -1


class _Entry(msgspec.Struct):
    pg_id: int = -1
    process_group: list[str] = []
    collective_seq_id: int = -1
    profiling_name: str = ""
    state: str = "completed"
    input_sizes: object = None
    is_p2p: bool = False


class _Flight(msgspec.Struct):
    pg_config: dict[str, _Group]
    entries: list[_Entry] = []
    pg_status: dict[str, _Status] = {}


class _Condition(msgspec.Struct):
    unresponsive: bool = False
    considered_dead: bool = False


class _Launched(msgspec.Struct):
    rank: int
    host: str = ""
    pid: int = 0
    nvml_dev: int = 0
    collective_counts: dict[str, int] = {}
    status: _Condition = msgspec.field(default_factory=_Condition)

    @property
    def device(self) -> tuple[str, int, int]:
        """Return what makes two members of different communicators the same rank."""
        return self.host, self.pid, self.nvml_dev


class _Communicator(msgspec.Struct):
    hash: str
    size: int
    ranks: list[_Launched] = []
    missing_ranks: list[_Launched] = []


class _Ras(msgspec.Struct):
    communicators: list[_Communicator]


class _Plain(pickle.Unpickler):
    """Reads dicts, lists, texts and numbers, and refuses everything that would have to be imported."""

    def find_class(self, module: str, name: str) -> object:
        """Refuse."""
        raise pickle.UnpicklingError(f"it wants {module}.{name}, and a dump holds plain values alone")


def files(places: Iterable[str]) -> list[Path]:
    """Return the files that are named, and those of the folders that are; raises SourceError where there is none."""
    found: list[Path] = []
    for path in map(Path, places):
        inside = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
        if not inside:
            raise SourceError(f"{path}: no dump is in there")
        found += inside
    return found


def read(paths: Iterable[Path], *, pickles: bool = False) -> Dumps:
    """Read the dumps of a job; raises SourceError where one cannot be read, or is none.

    Pickles are read only where that is allowed, and no more than plain values of them.
    """
    flights: dict[str, _Flight] = {}
    found = Dumps()
    for path in paths:
        whole = _decoded(path, pickles)
        if "communicators" in whole:
            found = _joined(found, _ras(_converted(path, whole, _Ras)))
            continue
        number = _RANK.search(path.name)
        if number is None:
            raise SourceError(f"{path}: the name tells no rank, call it for example nccl_trace_rank_12")
        flights[str(int(number[1]))] = _converted(path, whole, _Flight)
    return _joined(found, flight(flights)) if flights else found


def flight(flights: Mapping[str, _Flight]) -> Dumps:
    """Return what the Flight Recorders of some ranks say."""
    calls: list[Call] = []
    words: list[Word] = []
    members: dict[str, tuple[str, ...]] = {}
    for rank, one in flights.items():
        ranks = {name: _ranks(group.ranks) for name, group in one.pg_config.items()}
        keys = {name: f"{group.desc or name} {name}".strip() for name, group in one.pg_config.items()}
        entries: defaultdict[str, list[_Entry]] = defaultdict(list)
        for entry in one.entries:
            entries[entry.process_group[0] if entry.process_group else str(entry.pg_id)].append(entry)
        for name, own in entries.items():
            group, inside = keys.get(name, name), ranks.get(name, ())
            members[group] = inside or members.get(group, ())
            words += [word for entry in own if (word := _word(rank, entry, inside)) is not None]
            calls += _call(rank, group, own, one.pg_status.get(str(own[-1].pg_id)))
    return Dumps(tuple(calls), tuple(dict.fromkeys(words)), members)


def _call(rank: str, group: str, entries: Sequence[_Entry], status: _Status | None) -> list[Call]:
    """Return where a rank is in a communicator, nothing where it has never been in a collective of it."""
    own = [entry for entry in entries if not entry.is_p2p]
    known = status or _Status()
    entered = max([entry.collective_seq_id for entry in own] + [known.last_enqueued_collective])
    finished = [entry.collective_seq_id for entry in own if entry.state == "completed"]
    oldest = min((entry.collective_seq_id for entry in own if entry.state != "completed"), default=0)
    completed = max([*finished, known.last_completed_collective, oldest - 1])  # older ones have left the recorder
    if entered < 0:
        return []
    under_way = next((entry for entry in own if entry.collective_seq_id == completed + 1), None)
    operation = "" if under_way is None else f"{under_way.profiling_name} {json.dumps(under_way.input_sizes)}"
    return [Call(rank, group, entered, completed, operation)]


def _word(rank: str, entry: _Entry, inside: Sequence[str]) -> Word | None:
    """Return whom a rank waits for in a transfer that is not over; ranks are counted inside the group."""
    told = _PEER.search(entry.profiling_name) if entry.is_p2p and entry.state != "completed" else None
    if told is None or int(told[3]) >= len(inside):
        return None
    return Word(rank, inside[int(told[3])])


def _ranks(told: str | list[int]) -> tuple[str, ...]:
    """Return the ranks of a group, which are written as a list in a text.

    >>> _ranks("[0, 8]")
    ('0', '8')
    """
    numbers = re.findall(r"\d+", told) if isinstance(told, str) else told
    return tuple(str(int(number)) for number in numbers)


def _ras(told: _Ras) -> Dumps:
    """Return what RAS says: who has launched more than another waits, and who does not answer is waited for."""
    largest = max(told.communicators, key=lambda one: one.size, default=None)
    if largest is None:
        return Dumps()
    names = {one.device: str(one.rank) for one in (*largest.ranks, *largest.missing_ranks)}
    calls: list[Call] = []
    members: dict[str, tuple[str, ...]] = {}
    for communicator in told.communicators:
        group = f"communicator {communicator.hash}"
        everybody = [*communicator.ranks, *communicator.missing_ranks]
        unnamed = f"of {group}"
        named = {one.rank: names.get(one.device, f"{one.rank} {unnamed}") for one in everybody}
        members[group] = tuple(named.values())
        counts = {named[one.rank]: sum(one.collective_counts.values()) for one in communicator.ranks}
        least = min(counts.values(), default=0) - (1 if communicator.missing_ranks else 0)
        calls += [Call(rank, group, count, least) for rank, count in counts.items()]
    return Dumps(tuple(calls), (), members)


def _joined(one: Dumps, other: Dumps) -> Dumps:
    return Dumps(one.calls + other.calls, one.words + other.words, {**one.members, **other.members})


def _decoded(path: Path, pickles: bool) -> dict[str, object]:
    """Read a file as one value with names."""
    try:
        if path.stat().st_size > MOST:
            raise SourceError(f"{path}: is larger than {MOST >> 20} MiB, which no dump is")
        body = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: cannot be read, {(error.strerror or str(error)).lower()}") from error
    if body[:1] == b"\x80":
        return _unpickled(path, body, pickles)
    try:
        return msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise SourceError(f"{path}: is no dump as JSON, {error}") from error


def _unpickled(path: Path, body: bytes, pickles: bool) -> dict[str, object]:
    if not pickles:
        raise SourceError(
            f"{path}: is a pickle, which may run what it likes; allow it with --pickles where you trust it"
        )
    try:
        whole = _Plain(io.BytesIO(body)).load()
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, AttributeError, TypeError) as error:
        raise SourceError(f"{path}: is no dump as a pickle, {error}") from error
    if not isinstance(whole, dict):
        raise SourceError(f"{path}: is no dump, it holds {type(whole).__name__}")
    return {str(key): value for key, value in whole.items()}


def _converted(path: Path, whole: Mapping[str, object], kind: type[T]) -> T:
    try:
        return msgspec.convert(whole, kind, strict=False)
    except msgspec.ValidationError as error:
        raise SourceError(f"{path}: is no dump of Flight Recorder or RAS, {error}") from error
