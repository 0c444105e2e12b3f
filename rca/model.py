"""What flows: a source yields a `Snapshot`, the diagnosis turns it into a `Report`.

Arrays in a snapshot are never modified. NaN means "no sample"; the empty string in a table means "not known".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from rca.plain import seconds as seconds  # noqa: PLC0414 - most know it from here

Floats: TypeAlias = NDArray[np.float64]
Layer: TypeAlias = Literal["physical", "resource", "communication", "training"]
Status: TypeAlias = Literal["causes_found", "healthy", "inconclusive"]
Symptom: TypeAlias = Literal["slow_onset", "slow_always", "stalled", "crashed", "numeric", "none"]

Duration = Annotated[
    str,
    msgspec.Meta(
        title="a duration",
        pattern="^(?=.)([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$",
        examples=["2m"],
    ),
]
History: TypeAlias = Mapping[tuple[str, str], int]
"""How often a place had a cause within the last month, by cause and entity as text."""
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]

LAYERS: tuple[Layer, ...] = ("physical", "resource", "communication", "training")


class Window(NamedTuple):
    """The time that a diagnosis looks at, in unix seconds: `[start, end]`, and `baseline` seconds before it."""

    start: float
    end: float
    baseline: float = 3600.0


@dataclass(frozen=True, eq=False)
class Table:
    """All entities of one kind, a row each.

    `key` names the columns that identify a row (`("node", "gpu")`); further columns say where the entity stands
    (`job`, `rank`, `tp`, `pp`, `dp`, `cp`, `rack`, `model` ...), as of the window. Every column is an object array
    of `str`, shape (n,). `sorted` says that the rows are known to stand in the natural order of their keys.
    """

    kind: str
    key: tuple[str, ...]
    columns: Mapping[str, NDArray[np.object_]]
    sorted: bool = False

    def __len__(self) -> int:
        return len(self.columns[self.key[0]])

    def entity(self, row: int) -> "EntityRef":
        """Name a row."""
        return EntityRef(self.kind, {label: str(self.columns[label][row]) for label in self.key})


@dataclass(frozen=True, eq=False)
class Measurement:
    """One signal on the rows of its kind's table.

    `window` has shape (n, T) on `Snapshot.times`; `before` has shape (n, B) on `Snapshot.before_times`, or is None
    where nothing was fetched. `interval` is the time between real samples and `smoothing` the width of the rate or
    averaging window, both in seconds. `texts` are the label values that the numbers stand for, where they do. `query` is the PromQL that anyone can re-run (without entity matchers);
    `origin[i]` holds the labels, as the source spells them, that pick row i out of it (empty sequence: not known).
    """

    window: Floats
    before: Floats | None = None
    interval: float = 15.0
    smoothing: float = 0.0
    query: str = ""
    origin: Sequence[Mapping[str, str]] = ()
    texts: tuple[str, ...] = ()


class LogLine(NamedTuple):
    """A line of a log that a report quotes: the labels of the series that it stands behind, who wrote it (empty: not told),
    when (unix seconds), and the file in which it stands.
    """

    labels: dict[str, str]
    rank: str
    time: float
    level: str
    event: str
    text: str
    file: str


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What one diagnosis looks at.

    `times` (T,) is the evenly spaced grid of the window, `before_times` (B,) that of the baseline, both in unix
    seconds, ascending, `step` seconds apart. `absent` says for a signal of the library why it has no measurement.
    `warnings` are sentences for the reader: server warnings, unmapped series, suspicious clocks. `quotes` are lines that
    stand behind the series of logs, `words` the last ones of each rank of a job that has failed.
    """

    times: Floats
    before_times: Floats
    step: float
    tables: Mapping[str, Table]
    measurements: Mapping[str, Measurement]
    absent: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    quotes: tuple[LogLine, ...] = ()
    words: tuple[LogLine, ...] = ()


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Anything that a report is made of: immutable, and encoded field by field in the order of definition."""


class EntityRef(Record, frozen=True):
    """An entity in a report: its kind and identifying labels."""

    kind: str
    labels: dict[str, str]

    def __str__(self) -> str:
        return " ".join([self.kind, *(f"{name}={value}" for name, value in self.labels.items())])


class Quote(Record, frozen=True):
    """A line of a log: when it was written, what it says, the file in which it stands, and the rank that wrote it."""

    time: str
    text: str
    file: str
    rank: str = ""


class Evidence(Record, frozen=True):
    """One measured number: what it is, what it should be, and the query that shows it.

    `entity` is what it was read on, `peers` the labels that it has in common with those that it was compared with, and
    `reference` the number in `expected`, where there is one. `quote` is the line of a log that it counts.
    """

    signal: str
    query: str
    value: float
    unit: str
    expected: str
    text: str
    entity: EntityRef | None = None
    peers: list[str] = []
    reference: float | None = None
    quote: Quote | None = None


class Link(Record, frozen=True):
    """One step of a chain: a finding (or a group of alike ones) on the way from the cause to the symptom.

    `members` counts the entities of kind `kind` that show it, `of` those that could be seen; of many alike, `entity`
    is their job. `origin` is the finding that brings it about, empty for the cause.
    """

    finding: str
    layer: Layer
    entity: EntityRef
    since: str
    text: str
    members: int = 1
    of: int = 1
    kind: str = ""
    origin: str = ""


class Action(Record, frozen=True):
    """What to do about a cause."""

    do: str
    text: str


class Impact(Record, frozen=True):
    """How many ranks a cause holds up, and how much slower the job is (1.33 = a third longer per step)."""

    ranks: int
    slowdown: float | None = None


class Cause(Record, frozen=True):
    """A candidate with its probability, the chain to the symptom and the numbers that speak for it.

    One that is `standing` is a fault that is there, and explains no job's trouble.
    """

    cause: str
    layer: Layer
    entity: EntityRef
    jobs: list[str]
    probability: float
    since: str
    summary: str
    chain: list[Link]
    evidence: list[Evidence]
    explains: int
    impact: Impact
    action: Action
    runbook: str
    members: list[EntityRef] = []
    standing: bool = False


class FindingRef(Record, frozen=True):
    """A rule that holds on an entity since a time."""

    finding: str
    layer: Layer
    role: Literal["root", "symptom"]
    entity: EntityRef
    since: str
    text: str
    members: int = 1


class Rejected(Record, frozen=True):
    """A candidate that lost, and why."""

    cause: str
    entity: EntityRef
    why: str
    layer: Layer = "physical"


class NotChecked(Record, frozen=True):
    """A rule that could not be judged: which signals are missing, and how to enable them.

    With an `entity` it is one that this diagnosis suspects, or the job of `members` such; without, the rule could be
    judged nowhere.
    """

    rule: str
    missing: list[str]
    enable: str
    entity: EntityRef | None = None
    members: int = 0


class NotAffected(Record, frozen=True):
    """A symptom that could be seen and is absent: the loss still falls."""

    rule: str
    entity: EntityRef
    text: str


class JobSymptom(Record, frozen=True):
    """What ails one job."""

    job: str
    symptom: Symptom
    since: str | None = None
    slowdown: float | None = None


class Progress(Record, frozen=True, kw_only=True):
    """How far a job is, and how fast, as of the end of the window; what is not known is None.

    `step`, `target_step` and `tokens` (seen since the first step) are the last that were told, the others medians over
    the last five minutes. `busy` is the median activity of the job's GPUs, 0 to 1, read from the signal `busy_signal`.
    `eta_seconds` is how long the steps that are left take at this pace.
    """

    job: str
    at: str
    step: int | None = None
    target_step: int | None = None
    tokens: int | None = None
    tokens_per_gpu_second: float | None = None
    step_seconds: float | None = None
    loss: float | None = None
    ranks: int | None = None
    busy: float | None = None
    busy_signal: str = ""
    eta_seconds: float | None = None


class LastWords(Record, frozen=True, kw_only=True):
    """What a rank of a job that has failed wrote last: when, how many seconds before the last rank fell silent, and the
    lines of its last ten seconds, five at most.
    """

    job: str
    rank: str
    node: str
    at: str
    silent_seconds: float
    lines: list[Quote]


class ReportWindow(Record, frozen=True):
    """The window of a report, RFC 3339."""

    start: str
    end: str
    step_seconds: float


class Report(Record, frozen=True, kw_only=True):
    """The answer: `rca.report/v1`. Fields may be added, never renamed."""

    schema: str = "rca.report/v1"
    status: Status
    symptom: Symptom
    symptoms: list[JobSymptom]
    window: ReportWindow
    jobs: list[str]
    causes: list[Cause]
    findings: list[FindingRef]
    unexplained: list[FindingRef]
    not_affected: list[NotAffected]
    rejected: list[Rejected]
    not_checked: list[NotChecked]
    warnings: list[str]
    rules: str
    progress: list[Progress] = []
    last_words: list[LastWords] = []
