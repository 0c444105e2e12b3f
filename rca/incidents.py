"""The life of an incident: one cause of one job's trouble, from the first report that names it until it is over.

A pure function of reports and their times; where incidents are kept is another matter.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from rca.diagnose import SURE
from rca.model import Action, Cause, EntityRef, Impact, JobSymptom, Layer, Record, Report, Symptom
from rca.plain import percent, unix

State: TypeAlias = Literal["pending", "open", "closed"]
Verdict: TypeAlias = Literal["", "confirmed", "rejected"]
Key: TypeAlias = tuple[str, str, str]
GONE = 3600.0
"""A job that no report has known for so many seconds, while reports came in, has ended; so has its incident."""
_LONGEST_GAP = 900.0
_MOST_DOUBLINGS = 4
REOPENS_WITHIN = 3.0 * 16
"""Longest time in which an incident can come back, in units of `Pace.keep`."""
_REOPENS = 3.0
_UNKNOWN = "unknown"


class Pace(NamedTuple):
    """How patient incidents are, in seconds: `hold` before one opens, `keep` before one closes."""

    hold: float = 60.0
    keep: float = 300.0


class Incident(Record, frozen=True, kw_only=True):
    """One cause of one job's trouble over time; times are unix seconds.

    `since` is when the trouble began, `first` and `last` when reports first and last named it, `well` since when they
    say that it is over, `closed` when that had lasted long enough to believe it. `flaps` counts how often it came back,
    `seen_before` the earlier incidents of this cause in this place. `report` is the one that opened it, `latest` the
    last that named it.
    """

    id: str
    job: str
    cause: str
    entity: EntityRef
    layer: Layer
    symptom: Symptom
    state: State
    since: float
    first: float
    last: float
    opened: float | None = None
    well: float | None = None
    closed: float | None = None
    flaps: int = 0
    seen_before: int = 0
    probability: float
    slowdown: float | None = None
    ranks: int = 0
    gpu_hours_lost: float = 0.0
    summary: str
    chain: list[str]
    action: Action
    runbook: str
    report: str = ""
    latest: str = ""

    @property
    def key(self) -> Key:
        """Return what makes two sightings the same trouble: job, cause and entity."""
        return self.job, self.cause, str(self.entity)


class Note(Record, frozen=True, kw_only=True):
    """What somebody said of an incident, at a time in unix seconds: of its cause (or nothing), and in words.

    `who` is empty where nobody had to log in.
    """

    at: float
    who: str = ""
    verdict: Verdict = ""
    text: str = ""


class Sighting(NamedTuple):
    """A cause that a report is sure of, for one of the jobs that it holds up."""

    cause: Cause
    symptom: JobSymptom

    @property
    def key(self) -> Key:
        """Return the key of the incident that this belongs to."""
        return self.symptom.job, self.cause.cause, str(self.cause.entity)


def sightings(report: Report) -> Iterator[Sighting]:
    """Yield what a report is sure of, job by job; a job that is ill for reasons unknown is a sighting too.

    A cause that holds up no job is yielded once, for the job "".
    """
    ailing = {one.job: one for one in report.symptoms}
    for cause in _sure(report):
        for job in cause.jobs or [""]:
            well = JobSymptom(job, "none")
            yield Sighting(cause, well if cause.standing else ailing.get(job, well))
    for one in report.symptoms:
        if _puzzling(one.job, report):
            yield Sighting(_unknown(one, report), one)


def _sure(report: Report) -> list[Cause]:
    return [cause for cause in report.causes if cause.probability >= SURE and cause.cause != _UNKNOWN]


def _puzzling(job: str, report: Report) -> bool:
    """Say whether a job is ill, and no cause of it is sure."""
    ill = any(one.job == job and one.symptom != "none" for one in report.symptoms)
    return ill and not any(job in cause.jobs for cause in _sure(report) if not cause.standing)


def _unknown(symptom: JobSymptom, report: Report) -> Cause:
    """Return the cause of a job that is ill for a reason that no rule knows."""
    guesses = [cause for cause in report.causes if symptom.job in cause.jobs and cause.cause != _UNKNOWN]
    best = [f"{one.cause} on {one.entity} has {percent(one.probability)}" for one in guesses[:1]]
    return Cause(
        cause=_UNKNOWN,
        layer="training",
        entity=EntityRef("job", {"job": symptom.job}),
        jobs=[symptom.job],
        probability=max(1.0 - sum(one.probability for one in guesses), 0.0),
        since=symptom.since or report.window.end,
        summary="; ".join(["The job is ill and no cause is sure", *best]),
        chain=[],
        evidence=[],
        explains=0,
        impact=Impact(max((one.impact.ranks for one in guesses), default=0), symptom.slowdown),
        action=Action("investigate", "Look at what the report could not check, and at what it rejected."),
        runbook="",
    )


def advance(known: Sequence[Incident], report: Report, pace: Pace) -> list[Incident]:
    """Return the incidents that a report changes or brings about, as they are after it.

    `known` are those that are not over, and those that closed lately: what comes back within three times `pace.keep`
    is the same incident. Each return doubles the patience before it closes again, sixteen times at most. A job whose
    open incident is merely less sure than it was is not ill of something unknown besides.
    """
    at = unix(report.window.end)
    before = {incident.key: incident for incident in sorted(known, key=lambda one: one.last)}
    seen = {sighting.key: sighting for sighting in sightings(report)}
    held = {
        one.job for key, one in before.items() if key not in seen and one.state == "open" and not _over(one, report)
    }
    seen = {key: one for key, one in seen.items() if one.cause.cause != _UNKNOWN or one.symptom.job not in held}
    after = [_ill(before.get(key), sighting, at, pace) for key, sighting in sorted(seen.items())]
    for key, incident in sorted(before.items()):
        if key in seen or incident.state == "closed" or at <= incident.last:
            continue
        after.append(_unseen(incident, report, at, pace))
    return [incident for incident in after if incident != before.get(incident.key)]


def _ill(known: Incident | None, sighting: Sighting, at: float, pace: Pace) -> Incident:
    """Return an incident after a report that names it."""
    cause, symptom = sighting
    if known is not None and at <= known.last:
        return known
    if known is not None and _apart(known, at, pace):
        known = None
    gap = max(at - unix(cause.since), 0.0) if known is None else min(at - known.last, _LONGEST_GAP)
    known = known or _new(sighting, at)
    waiting = known.state == "pending" and at - known.first < pace.hold
    surer = cause.probability >= known.probability
    return msgspec.structs.replace(
        known,
        state="pending" if waiting else "open",
        opened=known.opened if waiting or known.opened is not None else at,
        last=at,
        well=None,
        closed=None,
        flaps=known.flaps + (known.closed is not None),
        symptom=symptom.symptom,
        probability=max(known.probability, cause.probability),
        slowdown=symptom.slowdown or known.slowdown,
        ranks=max(known.ranks, cause.impact.ranks),
        gpu_hours_lost=known.gpu_hours_lost + _lost(sighting) * gap / 3600.0,
        **({"summary": cause.summary, "chain": [link.text for link in cause.chain]} if surer else {}),
    )


def _apart(known: Incident, at: float, pace: Pace) -> bool:
    """Say whether what is seen now is another incident than one that is over: it is long ago, or it never opened."""
    return known.closed is not None and (known.opened is None or at - known.closed > _REOPENS * _patience(known, pace))


def _lost(sighting: Sighting) -> float:
    """Return how many GPUs' worth of work is lost while this lasts: all of them in a stall.

    A job that is 1.25 times as slow as it was loses a fifth of its ranks.
    """
    symptom, ranks = sighting.symptom, sighting.cause.impact.ranks
    if symptom.symptom in ("stalled", "crashed"):
        return float(ranks)
    return ranks * (1.0 - 1.0 / max(symptom.slowdown or 1.0, 1.0))


def _new(sighting: Sighting, at: float) -> Incident:
    cause, symptom = sighting
    text = "\n".join((*sighting.key, f"{at:.3f}"))
    return Incident(
        id=hashlib.sha256(text.encode()).hexdigest()[:16],
        job=symptom.job,
        cause=cause.cause,
        entity=cause.entity,
        layer=cause.layer,
        symptom=symptom.symptom,
        state="pending",
        since=min(unix(cause.since), at),
        first=at,
        last=at,
        probability=cause.probability,
        summary=cause.summary,
        chain=[link.text for link in cause.chain],
        action=cause.action,
        runbook=cause.runbook,
    )


def _unseen(incident: Incident, report: Report, at: float, pace: Pace) -> Incident:
    """Return an incident after a report that does not name it: nearer to its end, if the report could see that."""
    if incident.job and incident.job not in report.jobs:
        over = bool(report.jobs) and at - incident.last >= GONE
        return msgspec.structs.replace(incident, state="closed", well=incident.last, closed=at) if over else incident
    if not _over(incident, report):
        return incident
    well = incident.well if incident.well is not None else at
    over = incident.state == "pending" or at - well >= _patience(incident, pace)
    return msgspec.structs.replace(incident, well=well, **({"state": "closed", "closed": at} if over else {}))


def _over(incident: Incident, report: Report) -> bool:
    """Say whether a report that does not name an incident says that it is over.

    A healthy job has no trouble; one that is surely ill of something else has not this one, unless it is still
    suspected. A report that came to no conclusion about the job says nothing.
    """
    if incident.job and (incident.job not in report.jobs or _puzzling(incident.job, report)):
        return False
    suspected = any(cause.cause == incident.cause and cause.entity == incident.entity for cause in report.causes)
    return report.status == "healthy" or (report.status == "causes_found" and not suspected)


def _patience(incident: Incident, pace: Pace) -> float:
    return pace.keep * float(2 ** min(incident.flaps, _MOST_DOUBLINGS))
