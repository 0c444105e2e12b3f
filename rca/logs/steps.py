"""Training steps that the ends of logs tell: whether a job went on, and how far the clocks of nodes are apart."""

import re
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from rca.hook.events import PLAIN
from rca.loglines import Line, LogFile, Logs
from rca.logs.shapes import shape

SAMPLED = 16
"""Files that are looked at for how a job went on."""
TAIL, LARGEST, ENOUGH = 1 << 12, 1 << 18, 8
"""Bytes at the end of a file in which steps are looked for, how many if those hold few, and how many steps are enough."""
LEAST, NODES, KEYS = 0.5, 3, 5
"""A clock is wrong where it is so many seconds off, among so many nodes at the least, at so many steps;"""
STEADY, TIMES = 0.25, 4.0
"""and where it is off by the same at all of them, apart from so many seconds, and by so many times that."""
CLOCKED = 1_024
"""Files that are looked at for clocks, one of each node where the names of files tell nodes."""
_STEP = re.compile(r"(?<![A-Za-z])(?:step|iteration|iter)(?:s?\"?[ \t]*[=:#]|[ \t])[ \t]*(\d{1,10})\b", re.IGNORECASE)
_DONE = "TRAIN_STEP"
_CALM = frozenset({"", "DEBUG", "INFO"})


class Step(NamedTuple):
    """A step that a rank tells: in which kind of line, its number, and when, in unix seconds."""

    rank: str | None
    node: str | None
    attempt: int
    what: str
    number: int
    time: float


class Course(NamedTuple):
    """How a job went on: its last step was at `until`, in the start of number `attempt`, and a step takes `pace` seconds."""

    until: float
    pace: float
    attempt: int

    def since(self, time: float) -> float:
        """Return how many steps there were since a time, about.

        >>> Course(100.0, 4.0, 0).since(20.0)
        20.0
        """
        return max(self.until - time, 0.0) / self.pace


def step(line: Line) -> Step | None:
    """Return the step that a line tells, None where it tells none.

    >>> from rca.loglines import Source
    >>> step(Line(5.0, "3", None, "INFO", "", None, "iteration 70/ 500 | loss 2.3", {}, Source("f", 0)))[2:]
    (0, 'iteration # | loss #', 70, 5.0)
    """
    if line.time is None or line.level not in _CALM:
        return None
    if line.event == _DONE:
        number = line.extra.get("step")
        if isinstance(number, int) and not isinstance(number, bool):
            return Step(line.rank, line.node, line.attempt, line.event, number, line.time)
    elif line.event not in {"", PLAIN}:
        return None
    match = _STEP.search(line.message, 0, 240)
    if match is None:
        return None
    return Step(line.rank, line.node, line.attempt, line.event or shape(line.message), int(match[1]), line.time)


def tail(logs: Logs, log: LogFile, most: int = LARGEST) -> list[Step]:
    """Return steps at the end of a file, `ENOUGH` different ones where so many bytes hold as many; of a packed one, none.

    Four times as many bytes are read where they hold none.
    """
    size, found = (TAIL if log.owner.rank is not None else 4 * TAIL), list[Step]()
    while not log.packed:
        found = [one for line in logs.tail(log, size) if (one := step(line)) is not None]
        if size >= min(most if found else 4 * most, log.size) or len({one.number for one in found}) >= ENOUGH:
            break
        size *= 4
    return found


def spread(files: Sequence[LogFile], most: int) -> Sequence[LogFile]:
    """Return so many files at the most, from everywhere among them."""
    return files if len(files) <= most else [files[len(files) * at // most] for at in range(most)]


def course(steps: Iterable[Step]) -> Course | None:
    """Return how a job went on, by the steps of the rank that tells the latest; None where fewer than two are told.

    >>> course(Step("0", None, 0, "TRAIN_STEP", number, 4.0 * number) for number in (20, 21, 25))
    Course(until=100.0, pace=4.0, attempt=0)
    """
    told: dict[tuple[str | None, int, str], list[Step]] = {}
    for one in steps:
        told.setdefault((one.rank, one.attempt, one.what), []).append(one)
    courses = [made for some in told.values() if (made := _course(some)) is not None]
    return max(courses, default=None)


def _course(steps: Sequence[Step]) -> Course | None:
    """Return the course of one kind of line of one rank; its steps go up, and are not the same."""
    first, last = min(steps, key=lambda one: one.time), max(steps, key=lambda one: one.time)
    if last.number <= first.number or last.time <= first.time:
        return None
    return Course(last.time, (last.time - first.time) / (last.number - first.number), last.attempt)


def clocks(steps: Iterable[Step]) -> dict[str, float]:
    """Return how far the clocks of nodes are ahead of most others, of those that are clearly off.

    A collective ends a step, so all ranks leave it at the same time: by how much later a node tells that of the same steps is
    by how much its clock is ahead. Where nodes are apart by other times at other steps, they are not in step, and nothing
    is said of any clock.

    >>> told = [
    ...     Step(str(node), f"n{node}", 0, "s", number, 4.0 * number + (30.0 if node == 2 else 0.01 * node))
    ...     for node in range(4)
    ...     for number in range(6)
    ... ]
    >>> {node: round(ahead, 2) for node, ahead in clocks(told).items()}
    {'n2': 29.98}
    """
    seen: dict[tuple[int, str, int], dict[str, list[float]]] = {}
    for one in steps:
        if one.node is not None:
            seen.setdefault((one.attempt, one.what, one.number), {}).setdefault(one.node, []).append(one.time)
    apart: dict[str, list[float]] = {}
    for nodes in seen.values():
        if len(nodes) >= NODES:
            times = {node: median(own) for node, own in nodes.items()}
            usual = median(times.values())
            for node, time in times.items():
                apart.setdefault(node, []).append(time - usual)
    return _off({node: own for node, own in apart.items() if len(own) >= KEYS})


def _off(apart: dict[str, list[float]]) -> dict[str, float]:
    """Return by how much nodes are off that are so steadily, where most others agree."""
    usual = {node: median(own) for node, own in apart.items()}
    swing = {node: _swing(own) for node, own in apart.items()}
    agreed = [node for node, ahead in usual.items() if abs(ahead) <= LEAST and swing[node] <= STEADY]
    if len(apart) < NODES or 2 * len(agreed) <= len(apart):
        return {}
    return {
        node: ahead
        for node, ahead in usual.items()
        if abs(ahead) > LEAST and swing[node] <= STEADY and abs(ahead) > TIMES * swing[node]
    }


def _swing(values: Sequence[float]) -> float:
    """Return how far values lie apart, without a tenth of them at either end.

    >>> _swing([0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.5, 9.0])
    0.5
    """
    ordered = sorted(values)
    cut = len(ordered) // 10
    return ordered[-1 - cut] - ordered[cut]


def nodes_apart(logs: Logs) -> dict[str, float]:
    """Return how far the clocks of nodes are ahead of most others, by the ends of files."""
    named = {log.owner.node: log for log in logs.files if log.owner.node is not None and not log.packed}
    files: Sequence[LogFile] = list(named.values())
    if not named and any(line.node is not None for log in logs.files[:1] for line in logs.tail(log, 1 << 12)):
        files = [log for log in logs.files if not log.packed]
    if len(files) in range(1, NODES) and named:
        return {}
    return clocks(_ends(logs, spread(files, CLOCKED)))


def _ends(logs: Logs, files: Sequence[LogFile]) -> Iterator[Step]:
    most = LARGEST if len(files) < SAMPLED else 1 << 14
    for log in files:
        yield from tail(logs, log, most)
