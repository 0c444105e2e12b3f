"""What a diagnosis was worth: outcomes of runs, and the figures that sum them up.

A run knows the truth (which cause on which entity, none on a healthy job) and what was said. An entity is written as
its labels in order of their names: `gpu=3 node=node-05`. `unknown` is an answer that blames nobody: it takes a place
in the ranking, and never counts as a false alarm or as a wrong cause.

The Brier score of a run is the sum of (p - y)^2 over all pairs of cause and entity that were said or are true: p is
the probability that was said (0 for a truth that was not), y is 1 for a truth and 0 for anything else. A run in which
the truth is said with 0.9 and another cause with 0.1 scores 0.02, silence about one fault 1, a healthy job 0.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from rca.model import Status

SURE = 0.5
UNKNOWN = "unknown"
NOBODY = "nothing"
ALARM_GPUS, ALARM_HOURS = 500, 24.0


class Truth(NamedTuple):
    """A cause and the entity that it acts on."""

    cause: str
    place: str


class Said(NamedTuple):
    """A listed cause with its probability."""

    cause: str
    place: str
    probability: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One diagnosis: what was true, what was said, and what rivals said of the same snapshot, best first.

    `expected` and `status` are the verdicts; `gpu_hours` is how much was looked at. `truth` is empty for a healthy job
    and for one whose trouble nobody can name.
    """

    scenario: str
    form: Literal["strong", "mild"]
    seed: int
    noise: str
    telemetry: str
    split: Literal["tuning", "scoring"]
    expected: Status
    status: Status
    truth: tuple[Truth, ...] = ()
    said: tuple[Said, ...] = ()
    rivals: dict[str, tuple[Truth, ...]] = {}
    gpu_hours: float = 0.0

    @property
    def id(self) -> str:
        """Return what names this run among all."""
        return f"{self.scenario}/{self.form}/seed {self.seed}/{self.noise}"

    @property
    def accused(self) -> tuple[Truth, ...]:
        """Return what was said with a probability that makes people act."""
        return tuple(Truth(one.cause, one.place) for one in self.said if one.cause != UNKNOWN and _sure(one))

    @property
    def wrong(self) -> bool:
        """Say whether anything was accused that is not ill."""
        return not set(self.accused) <= set(self.truth)

    @property
    def brier(self) -> float:
        """Return the sum of squares between what was said and what is.

        >>> truth, other = Truth("a", "gpu=1"), Said("b", "gpu=2", 0.1)
        >>> one = Outcome(
        ...     scenario="s",
        ...     form="mild",
        ...     seed=1,
        ...     noise="written",
        ...     telemetry="full",
        ...     split="scoring",
        ...     expected="causes_found",
        ...     status="causes_found",
        ...     truth=(truth,),
        ...     said=(Said(*truth, 0.9), other),
        ... )
        >>> round(one.brier, 12)
        0.02
        """
        said = {Truth(one.cause, one.place): one.probability for one in self.said if one.cause != UNKNOWN}
        pairs = [*said, *(truth for truth in self.truth if truth.cause != UNKNOWN and truth not in said)]
        return sum((said.get(pair, 0.0) - (pair in self.truth)) ** 2 for pair in pairs)

    def rank(self, truth: Truth) -> int | None:
        """Return the place of a truth in the list, 0 for the first, other truths left out; None where it is missing."""
        others = set(self.truth) - {truth}
        ranking = [pair for one in self.said if (pair := Truth(one.cause, one.place)) not in others]
        return ranking.index(truth) if truth in ranking else None

    def first(self, truth: Truth) -> Truth | None:
        """Return what was listed first, other truths left out."""
        others = set(self.truth) - {truth}
        return next((pair for one in self.said if (pair := Truth(one.cause, one.place)) not in others), None)


def _sure(said: Said) -> bool:
    return said.probability >= SURE


@dataclass(frozen=True)
class Row:
    """Shares over the cases of one fault id (or of all). `wrong` and `inconclusive` are shares of runs."""

    name: str
    cases: int
    top1: float
    top3: float
    entity: float
    sure: float
    wrong: float
    inconclusive: float
    brier: float
    confused: str


@dataclass(frozen=True)
class Decoy:
    """A healthy scenario: runs, false alarms (causes accused), and runs that were not called healthy."""

    name: str
    runs: int
    alarms: int
    unsettled: int
    confused: str


@dataclass(frozen=True)
class Summary:
    """The figures of one split under one telemetry; `alarms` a day and 500 GPUs, None where nothing healthy was run."""

    overall: Row
    rows: tuple[Row, ...]
    decoys: tuple[Decoy, ...]
    both: float | None
    doubles: int
    alarms: float | None
    brier: float
    rivals: dict[str, tuple[float, float, int]]
    confusions: tuple[tuple[str, int, str], ...]


class Case(NamedTuple):
    """One truth of one run; a run whose trouble nobody can name is a case of `unknown` anywhere."""

    outcome: Outcome
    truth: Truth

    @property
    def hit(self) -> tuple[bool, bool, bool, bool]:
        """Say whether the truth came first, among three, on the right entity, and with certainty.

        Whoever is told that all is well looks at no list.
        """
        outcome, truth = self
        if not truth.place:
            right = outcome.status == "inconclusive" and not outcome.accused
            return right, right, right, right
        if outcome.status == "healthy":
            return False, False, False, False
        rank, first = outcome.rank(truth), outcome.first(truth)
        at = first is not None and first.place == truth.place
        return rank == 0, rank is not None and rank < 3, at, truth in outcome.accused

    @property
    def said(self) -> str:
        """Return what stood in the place of the truth, and whether only the entity is another."""
        first = self.outcome.first(self.truth)
        if self.outcome.status == "healthy":
            return "healthy"
        if first is None:
            return NOBODY
        return f"{first.cause} elsewhere" if first.cause == self.truth.cause else first.cause


def cases(outcomes: Sequence[Outcome]) -> Iterator[Case]:
    """Yield the truths of all runs with a fault."""
    for outcome in outcomes:
        if outcome.expected != "healthy":
            for truth in outcome.truth or (Truth(UNKNOWN, ""),):
                yield Case(outcome, truth)


def summarise(outcomes: Sequence[Outcome]) -> Summary:
    """Sum up the outcomes of one split."""
    found = list(cases(outcomes))
    healthy = [outcome for outcome in outcomes if outcome.expected == "healthy"]
    double = [outcome for outcome in outcomes if len(outcome.truth) > 1]
    hours = sum(outcome.gpu_hours for outcome in healthy)
    alarms = sum(len(outcome.accused) for outcome in healthy)
    names = sorted({case.truth.cause for case in found})
    return Summary(
        overall=_row("all", found),
        rows=tuple(_row(name, [case for case in found if case.truth.cause == name]) for name in names),
        decoys=tuple(_decoy(name, healthy) for name in sorted({one.scenario for one in healthy})),
        both=_share([set(one.truth) <= set(one.accused) for one in double]) if double else None,
        doubles=len(double),
        alarms=alarms / hours * ALARM_HOURS * ALARM_GPUS if hours else None,
        brier=_share([outcome.brier for outcome in outcomes]),
        rivals=_rivals(found, healthy),
        confusions=_confusions(found, healthy),
    )


def _share(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _row(name: str, found: Sequence[Case]) -> Row:
    runs = list({case.outcome.id: case.outcome for case in found}.values())
    hits = [case.hit for case in found]
    top1, top3, entity, sure = (_share([hit[column] for hit in hits]) for column in range(4))
    others = Counter(case.said for case, hit in zip(found, hits, strict=True) if not hit[0])
    return Row(
        name=name,
        cases=len(found),
        top1=top1,
        top3=top3,
        entity=entity,
        sure=sure,
        wrong=_share([run.wrong for run in runs]),
        inconclusive=_share([run.status == "inconclusive" for run in runs]),
        brier=_share([run.brier for run in runs]),
        confused=_most(others),
    )


def _decoy(name: str, healthy: Sequence[Outcome]) -> Decoy:
    runs = [outcome for outcome in healthy if outcome.scenario == name]
    said = Counter(one.cause for outcome in runs for one in outcome.accused)
    unsettled = sum(outcome.status != "healthy" for outcome in runs)
    return Decoy(name, len(runs), sum(len(outcome.accused) for outcome in runs), unsettled, _most(said))


def _most(counter: Counter[str]) -> str:
    best = sorted(counter.items(), key=lambda item: (-item[1], item[0]))[:2]
    return ", ".join(f"{name} {count}" for name, count in best)


def _rivals(found: Sequence[Case], healthy: Sequence[Outcome]) -> dict[str, tuple[float, float, int]]:
    """Return for each rival the shares of right causes and of right entities among its first answers, and its alarms."""
    names = list(dict.fromkeys(name for case in found for name in case.outcome.rivals))
    figures = {}
    for name in names:
        firsts = [(next(iter(case.outcome.rivals.get(name, ())), None), case.truth) for case in found]
        right = _share([first == truth for first, truth in firsts])
        entity = _share([first is not None and first.place == truth.place for first, truth in firsts])
        figures[name] = (right, entity, sum(bool(outcome.rivals.get(name)) for outcome in healthy))
    return figures


def _confusions(found: Sequence[Case], healthy: Sequence[Outcome]) -> tuple[tuple[str, int, str], ...]:
    """Return the pairs truth -> said with their number and an example, the most frequent first."""
    seen: dict[str, list[str]] = {}
    for case in found:
        if not case.hit[0]:
            seen.setdefault(f"{case.truth.cause} -> {case.said}", []).append(case.outcome.id)
    for outcome in healthy:
        for one in outcome.accused:
            seen.setdefault(f"healthy ({outcome.scenario}) -> {one.cause}", []).append(outcome.id)
    pairs = [(pair, len(runs), min(runs)) for pair, runs in seen.items()]
    return tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))
