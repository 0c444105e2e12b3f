"""What the lines of a job's logs say, as series: which lines came, who waits for whom, and whether the job has failed.

| metric | what |
|---|---|
| `log_read` | 1 for every rank and host whose log is read, so that what it does not say is known not to be there |
| `log_lines_total` | lines that a template knows (`template`, `role`) or that name an event of the table (`event`) |
| `log_xid` | the last Xid that the kernel's log of a host tells of a GPU, 0 before the first |
| `log_failed` | 1 from a line by which a process ends until the job steps again, if it ever does |
| `log_failed_first` | of a rank that failed: 1 where nobody did so clearly earlier, else 0 |
| `log_steps_on` | 1 for every rank of a job that took a step lately |
| `log_last_event` | 1 for the event that the last line of a rank names, where the job has failed |
| `log_waited_for` | of whom a wait ends at: how many ranks wait for it, and why it is held to be the end |
"""

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from rca.dumps import Dumps
from rca.hook import events
from rca.loglines import Line, Logs, Wanted, spelt
from rca.loglines.heard import NO_DUMPS, WAITS, Heard, Known, accused, known
from rca.loglines.known import Templates
from rca.loglines.read import UNTIMED
from rca.model import Floats, LogLine
from rca.phrases import Matcher, Template
from rca.plain import natural
from rca.sources.kept import Series
from rca.sources.spans import STEP, Span
from rca.sources.survived import GOES_ON, Progress

ENDING = 120.0
"""Seconds in which the processes of a job end once the whole of it was told to."""
APART = 1.0
"""Seconds by which clocks of hosts may be apart: who failed so much earlier was first."""
LAST_WORDS = 10.0
"""Seconds before a rank's own last line of which a report tells,"""
WORDS = 5
"""and how many lines of them."""
_QUOTES = 4096
_TAIL = 1 << 13
"""Bytes at the end of a file of one rank in which its last lines are looked for."""
_PLAIN = "MESSAGE"
"""The event of what was said without naming one."""
_CALM, _GRAVE = ("DEBUG", "INFO", "WARN"), ("WARN", "ERROR")
_PLACE = frozenset({"job_id", "rank", "node"})
_TEXT = 400


@dataclass(frozen=True)
class Said:
    """What was read: the series, lines to quote, whether the job has failed and not come back, the node of each rank that
    tells it, the ranks of the job that left no line at all, and hosts on which none of them runs.
    """

    series: Sequence[Series]
    quotes: Sequence[LogLine]
    failed: bool
    nodes: Mapping[str, str] = field(default_factory=dict)
    wordless: Sequence[str] = ()
    strangers: frozenset[str] = frozenset()


class Event(NamedTuple):
    """A line that counts: what it is of, whether a process ends by it, or the `whole` job."""

    labels: Mapping[str, str]
    line: Line
    fatal: bool
    whole: bool = False


class Listener:
    """Names lines by templates as they are read, and keeps what it has heard."""

    def __init__(self, templates: Templates) -> None:
        self.templates = templates
        self.heard: list[Known] = []

    def marks(self, wanted: Wanted) -> Mapping[bytes, int]:
        """Return pieces of which every line holds one that is wanted for the name that a template gives it."""
        return self.templates.marks(wanted)

    def named(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Yield lines, in their order, those that a template knows with its event."""
        some = list(lines)
        found = list(known(some, self.templates.matcher))
        self.heard += found
        events_of = {one.line.source: one.template.event for one in found}
        for line in some:
            event = events_of.get(line.source)
            yield line if event is None or line.event else line._replace(event=event)


@dataclass
class _Reading:
    """What is gathered while lines are read."""

    known: list[Known] = field(default_factory=list)
    named: list[Line] = field(default_factory=list)
    nodes: dict[str, str] = field(default_factory=dict)
    hosts: set[str] = field(default_factory=set)
    calm: set[float] = field(default_factory=set)
    last: float = -np.inf

    def place(self, logs: Logs) -> None:
        """Note where ranks are, as the names of files and last lines tell, and when the last line came."""
        for log in logs.files:
            if log.owner.node and log.owner.rank is None:
                self.hosts.add(log.owner.node)
            elif log.owner.node and log.owner.rank is not None:
                self.nodes[log.owner.rank] = log.owner.node
        for rank, end in logs.last().items():
            if rank and end.line.node:
                self.nodes.setdefault(rank, end.line.node)
            if end.line.time is not None:
                self.last = max(self.last, end.line.time)

    def take(self, lines: Iterable[Line], serious: Container[str]) -> None:
        """Keep what is to be known of some lines."""
        for line in lines:
            if line.time is not None:
                self.last = max(self.last, line.time)
                if line.rank is not None and line.level in _CALM:
                    self.calm.add(line.time // STEP * STEP)
            if line.node and line.rank is not None:
                self.nodes.setdefault(line.rank, line.node)
            elif line.node:
                self.hosts.add(line.node)
            if line.event in serious and line.level in _GRAVE:
                self.named.append(line)


class Told(NamedTuple):
    """The lines of a job's logs, what knows them, the job (`default` where nobody names it), and dumps of its communicators."""

    lines: Logs
    templates: Templates
    job: str
    dumps: Dumps = NO_DUMPS


def read(told_by: Told, stretch: tuple[float, float], steps: Floats) -> Said:
    """Read the lines of a stretch of time, in which a job took steps at these times (none: nothing tells).

    Where steps are known, lines that neither a template knows nor the table of events calls serious are passed over.
    """
    logs, templates, job, _ = told_by
    reading, serious = _Reading(), _serious(templates.matcher)
    reading.place(logs)
    start, end = stretch
    wanted, listener = Wanted(start=start, end=end), Listener(templates)
    if len(steps):
        told = {one.event for one in templates.matcher.templates.values()} | {*serious, _PLAIN}
        wanted = replace(wanted, events=spelt(frozenset(told) - {""}))
    reading.take(replace(logs, names=listener).lines(wanted), serious)
    heard_all = [*listener.heard, *_untimed(logs, templates)]
    reading.known = [one for one in heard_all if one.line.time is not None and start <= one.line.time <= end]
    progress = Progress(steps if len(steps) else np.array(sorted(reading.calm)))
    ends = {rank: one.line.time or np.inf for rank, one in logs.last().items()}
    reading.known = [one for one in reading.known if len(steps) or _ends_there(one, ends)]
    strangers = _strangers(reading)
    reading.known = [one for one in reading.known if one.rank is not None or one.line.node not in strangers]
    sources = {one.line.source for one in reading.known}
    found = [_event(one, job, reading) for one in reading.known]
    by_event = _by_event(templates.matcher)
    for line in reading.named:
        if line.source in sources or line.time is None:
            continue
        if line.event in by_event:
            reading.known.append(Known(line, by_event[line.event], {}))
            found.append(_event(reading.known[-1], job, reading))
        else:
            labels = {"template": "", "role": "", "event": line.event, **_whose(line.rank, line.node, job)}
            found.append(Event(labels, line, serious[line.event] and line.level == "ERROR"))
    heard = Heard()
    for one in reading.known:
        if progress.stands(one) and not _caught(one):
            heard.take(one)
    return replace(_said(reading, (found, heard), (stretch, progress), told_by), strangers=strangers)


def _untimed(logs: Logs, templates: Templates) -> Iterator[Known]:
    """Yield the known lines of files that tell no time at all, as of when each was last written."""
    changed = {log.path: log.changed for log in logs.files if log.path in logs.notes.files.get(UNTIMED, ())}
    listener = Listener(templates)
    for _ in replace(logs, files=[log for log in logs.files if log.path in changed], names=listener).lines(Wanted()):
        pass
    for one in listener.heard:
        time = changed[one.line.source.file] if one.line.time is None else one.line.time
        yield one._replace(line=one.line._replace(time=time))


def _ends_there(one: Known, ends: Mapping[str, float]) -> bool:
    """Say whether the rank of a line wrote no more a minute later, as far as that is known."""
    return one.line.rank is None or (one.line.time or 0.0) >= ends.get(one.line.rank, -np.inf) - GOES_ON


def _strangers(reading: _Reading) -> frozenset[str]:
    """Return the hosts that lines are of and on which no rank runs, where it is known on which ranks do."""
    homes = {node.partition(".")[0].lower() for node in reading.nodes.values()}
    told = {one.line.node for one in reading.known if one.line.node and one.rank is None}
    return frozenset(node for node in told if homes and node.partition(".")[0].lower() not in homes)


def _serious(matcher: Matcher) -> dict[str, bool]:
    """Return the events of the table that are more than the normal course, and whether a process ends by them."""
    fatal = {one.event for one in matcher.templates.values() if one.fatal}
    return {one.name: one.name in fatal for one in events.table().values() if one.level != "INFO"}


def _by_event(matcher: Matcher) -> dict[str, Template]:
    """Return the template that an event of a structured log says the same as, where one alone says where a failure began."""
    roles: dict[str, list[Template]] = {}
    for one in matcher.templates.values():
        roles.setdefault(one.event, []).append(one)
    roots = {event: [one for one in some if one.role == "root"] for event, some in roles.items()}
    mixed = {event for event, some in roles.items() if any(one.role == "echo" for one in some)}
    return {event: some[0] for event, some in roots.items() if len(some) == 1 and event not in {*mixed, ""}}


def _caught(one: Known) -> bool:
    """Say whether what else ends a process was told as something that recovers: it was caught."""
    return one.template.fatal and one.template.role == "root" and one.line.level in _CALM


def _event(one: Known, job: str, reading: _Reading) -> Event:
    """Return a known line as what it counts as, with the most that is known of where it belongs."""
    groups, template = one.groups, one.template
    rank = one.rank if template.entity != "job" else None
    node = groups.get("node") or one.line.node or reading.nodes.get(rank or "")
    labels = {"template": template.id, "role": template.role, "event": template.event, **_whose(rank, node, job)}
    labels |= {name: groups[name] for name in ("pci", "nic") if name in groups and node}
    if "nic" in labels:
        labels["device"] = labels.pop("nic")
    return Event(labels, one.line, template.fatal and not _caught(one), template.entity == "job")


def _whose(rank: str | None, node: str | None, job: str) -> dict[str, str]:
    return {"job_id": job} | ({"rank": rank} if rank else {}) | ({"node": node} if node else {})


def _said(
    reading: _Reading, gathered: tuple[list[Event], Heard], course: tuple[tuple[float, float], Progress], told_by: Told
) -> Said:
    """Put what was gathered into series."""
    (found, heard), ((start, end), progress) = gathered, course
    logs, _, job, dumps = told_by
    ranks = sorted({*filter(None, logs.last()), *reading.nodes}, key=natural)
    fatal = _fatal(found)
    since = next((time for time in fatal if progress.after(time) == np.inf), None)
    waiting = min(heard.began, default=min(max(progress.last, start), end) if _waiting(dumps) else None)
    failed = since is not None or waiting is not None
    until = end if failed else min(reading.last, end)
    if until < start:
        return Said([], [], failed=False)
    span = Span(start, until)
    read_of = [_whose(rank, reading.nodes.get(rank), job) for rank in ranks]
    read_of += [_whose(None, host, job) for host in sorted(reading.hosts)]
    series = [span.constant({"__name__": "log_read", **labels}) for labels in read_of]
    if not failed and progress.last >= until - GOES_ON:
        series += [
            span.constant({"__name__": "log_steps_on", **_whose(rank, reading.nodes.get(rank), job)}) for rank in ranks
        ]
    series += _counted(found, span)
    series += _xids(reading.known, span)
    series.append(_failed(fatal, progress, span, job))
    series += _last_events(logs, span, job) if failed else []
    ordered: list[tuple[Series, Line]] = []
    if failed:
        failures = _failures(heard.failures(waiting if waiting is not None else since), reading, job)
        ordered = list(_ordered(failures, span))
        series += [one for one, _ in ordered]
    if waiting is not None:
        series += [span.since(labels, waiting, many) for labels, many in _waited(heard, reading, ranks, told_by)]
    quotes = [*_quotes(found), *(quoted(one.labels, line) for one, line in ordered)]
    waits = sorted((one for one in reading.known if WAITS & one.groups.keys() and progress.stands(one)), key=_when)
    for one in series if waits else ():
        if one.labels["__name__"] == "log_waited_for":
            own = (wait for wait in waits if one.labels["rank"] in wait.groups.get("waited_for", "").split(","))
            quotes.append(quoted(one.labels, next(own, waits[0]).line))
    quotes += [quoted(labels, one.line) for one in reading.known if (labels := _gpu(one))]
    numbered = bool(ranks) and all(map(str.isdecimal, ranks))
    wordless = [rank for rank in map(str, range(logs.world() or 0)) if numbered and rank not in logs.last()]
    return Said(series, quotes, failed, reading.nodes, wordless)


def _waiting(dumps: Dumps) -> bool:
    """Say whether dumps tell of anybody who waits."""
    return bool(dumps.words) or any(call.waits for call in dumps.calls)


def _waited(
    heard: Heard, reading: _Reading, ranks: Sequence[str], told_by: Told
) -> Iterator[tuple[dict[str, str], float]]:
    """Yield the labels of each rank that a wait ends at, and how many ranks wait for it."""
    world = told_by.lines.world()
    everybody = [str(rank) for rank in range(world)] if world is not None else ranks
    ends = told_by.lines.last()
    begin = min(heard.began, default=np.inf)
    for wait in accused(heard.waits(everybody, told_by.dumps), ends):
        for rank in wait.ranks:
            writes = rank in ends and (ends[rank].line.time or -np.inf) > begin + GOES_ON
            why = "busy" if writes and wait.why == "silent" else wait.why
            place = _whose(rank, reading.nodes.get(rank), told_by.job)
            yield {"__name__": "log_waited_for", "why": why, **place}, float(max(wait.waiting, 1))


def _when(one: Known) -> float:
    return one.line.time or 0.0


def _fatal(found: Sequence[Event]) -> list[float]:
    """Return when processes of a job ended, ascending.

    Where the whole job was told to end and nothing had failed, what it brings about on the ranks is no failure.
    """
    times = sorted((event.line.time or 0.0, event.labels["role"]) for event in found if event.fatal and not event.whole)
    own = [time for time, role in times if role != "echo"]
    ended = [event.line.time or 0.0 for event in found if event.fatal and event.whole]
    told = [end for end in ended if bisect_right(own, end + GOES_ON) == bisect_left(own, end - GOES_ON)]
    first, last = min(told, default=np.inf), max(told, default=-np.inf)
    return [time for time, role in times if role != "echo" or not first <= time <= last + ENDING]


def _counted(found: Sequence[Event], span: Span) -> Iterator[Series]:
    """Yield the counters of lines by what they are of and what they say."""
    times: dict[tuple[tuple[str, str], ...], list[float]] = {}
    for event in found:
        labels = {"__name__": "log_lines_total", **event.labels, "fatal": "yes" if event.fatal else "no"}
        times.setdefault(tuple(labels.items()), []).append(event.line.time or 0.0)
    for key, when in times.items():
        when.sort()
        yield span.steps(dict(key), when, [float(count + 1) for count in range(len(when))])


def _xids(found: Sequence[Known], span: Span) -> Iterator[Series]:
    """Yield the last Xid of each GPU that has had one."""
    by_gpu: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    for one in found:
        if labels := _gpu(one):
            by_gpu.setdefault(tuple(labels.items()), []).append((one.line.time or 0.0, float(one.groups["xid"])))
    for key, codes in by_gpu.items():
        codes.sort()
        yield span.steps(dict(key), [time for time, _ in codes], [code for _, code in codes])


def _gpu(one: Known) -> dict[str, str]:
    """Return the labels of the GPU of which a line tells an Xid, none where it tells none."""
    node = one.groups.get("node") or one.line.node
    if not node or not {"xid", "pci"} <= one.groups.keys():
        return {}
    return {"__name__": "log_xid", "node": node, "pci": one.groups["pci"]}


def _failed(fatal: Sequence[float], progress: Progress, span: Span, job: str) -> Series:
    """Return whether the job has failed and not stepped since."""
    changes: dict[float, float] = {span.start: 0.0}
    until = -np.inf
    for time in fatal:
        if time >= until and not progress.goes_on(time):
            until = progress.after(time)
            changes |= {time: 1.0} | ({until: 0.0} if np.isfinite(until) else {})
    return span.steps({"__name__": "log_failed", "job_id": job}, list(changes), list(changes.values()))


def _last_events(logs: Logs, span: Span, job: str) -> Iterator[Series]:
    """Yield what the last line of each rank is about, where it names an event, from when it was written."""
    for rank, end in logs.last().items():
        if rank and end.line.event and end.line.time is not None and end.line.time <= span.end:
            labels = {"__name__": "log_last_event", "event": end.line.event, **_whose(rank, end.line.node, job)}
            yield span.since(labels, max(end.line.time, span.start), 1.0)


class Failure(NamedTuple):
    """A rank that failed: the labels of its place, when, and the line that says so."""

    labels: Mapping[str, str]
    time: float
    line: Line


def _failures(found: Sequence[Known], reading: _Reading, job: str) -> list[Failure]:
    """Return the ranks that failed, the first in front: by lines of their own, or by one of their host that no rank of it
    has anything to add to.
    """
    own: dict[str, Failure] = {}
    hosts: dict[str, Failure] = {}
    for one in found:
        labels = {name: value for name, value in _event(one, job, reading).labels.items() if name in _PLACE}
        failure = Failure(labels, one.line.time or 0.0, one.line)
        if "rank" in labels:
            own.setdefault(labels["rank"], failure)
        elif "node" in labels and one.template.entity != "job":
            hosts.setdefault(labels["node"], failure)
    told = {reading.nodes.get(rank) for rank in own}
    for rank, node in reading.nodes.items():
        if node in hosts and node not in told:
            own[rank] = hosts[node]._replace(labels=_whose(rank, node, job))
    return sorted(own.values(), key=lambda one: (one.time, natural(one.labels["rank"])))


def _ordered(failures: Sequence[Failure], span: Span) -> Iterator[tuple[Series, Line]]:
    """Yield for each rank that failed whether it was the first, and the line that says so."""
    begin = min((one.time for one in failures), default=0.0)
    for one in failures:
        first = float(one.time <= begin + APART)
        yield span.since({"__name__": "log_failed_first", **one.labels}, one.time, first), one.line


def _quotes(found: Sequence[Event]) -> list[LogLine]:
    """Return the first line of each kind at each place."""
    first: dict[tuple[tuple[str, str], ...], Event] = {}
    for event in sorted(found, key=lambda one: one.line.time or 0.0):
        first.setdefault(tuple(event.labels.items()), event)
    return [
        quoted({"__name__": "log_lines_total", **event.labels, "fatal": "yes" if event.fatal else "no"}, event.line)
        for event in list(first.values())[:_QUOTES]
    ]


def quoted(labels: Mapping[str, str], line: Line) -> LogLine:
    """Return a line as reports quote it."""
    text = " ".join(line.message.split())
    return LogLine(
        labels=dict(labels), rank=line.rank or "", time=line.time or 0.0, level=line.level, event=line.event,
        text=text if len(text) <= _TEXT else f"{text[: _TEXT - 3]}...", file=line.source.file,
    )  # fmt: skip


def last_words(told_by: Told, end: float) -> list[LogLine]:
    """Return the last lines of each rank up to a time, those of its last seconds; of frames of a stack, where there is
    anything else, none.
    """
    logs, templates, job, _ = told_by
    ends = {rank: min(one.line.time, end) for rank, one in logs.last().items() if rank and one.line.time is not None}
    alone = [log for log in logs.files if not log.packed and ends.get(log.owner.rank or "", np.inf) < end]
    paths = {log.path for log in alone}
    others = replace(logs, files=[log for log in logs.files if log.path not in paths])
    lines = chain(
        (line for log in alone for line in logs.tail(log, _TAIL)), others.lines(Wanted(latest=ends, last=LAST_WORDS))
    )
    found: dict[str, list[Line]] = {}
    for line in templates.named(lines):
        rank = line.rank or ""
        if line.message and line.time is not None and ends.get(rank, -np.inf) - LAST_WORDS <= line.time <= end:
            found.setdefault(rank, []).append(line)
    words = []
    for rank in sorted(found, key=natural):
        ordered = sorted(found[rank], key=lambda line: line.time or 0.0)
        telling = [line for line in ordered if line.event or line.level]
        words += [quoted(_whose(rank, line.node, job), line) for line in (telling or ordered)[-WORDS:]]
    return words


def _whole(ranks: Sequence[str]) -> bool:
    """Say whether ranks are all of a node, as launchers number them.

    >>> _whole(["9", "8", "11", "10"]), _whole(["3"]), _whole(["4", "6"])
    (True, False, False)
    """
    if not all(map(str.isdecimal, ranks)):
        return False
    numbers = sorted(map(int, ranks))
    return (
        numbers == list(range(numbers[0], numbers[0] + len(ranks))) and numbers[0] % len(ranks) == 0 and len(ranks) > 1
    )


def places(said: Said, job: str) -> list[Series]:
    """Return info series that place ranks on nodes, and on the GPUs there: the i-th rank of a node is taken to use GPU i."""
    read_of = next((one for one in said.series if one.labels["__name__"] == "log_read"), None)
    if read_of is None:
        return []
    on: dict[str, list[str]] = {}
    for rank, node in said.nodes.items():
        on.setdefault(node, []).append(rank)
    found = []
    for node, ranks in sorted(on.items()):
        for rank in ranks:
            labels = {"__name__": "train_rank_info", "job_id": job, "rank": rank, "node": node}
            gpu = {"gpu": str(int(rank) % len(ranks))} if _whole(ranks) else {}
            found.append(Series({**labels, **gpu}, read_of.times, read_of.values))
    return found
