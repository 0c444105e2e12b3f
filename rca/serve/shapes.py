"""Incidents as others read them: our own JSON, and the shapes of Prometheus' `/api/v1/rules` and `/api/v1/alerts`.

So Grafana and karma show our incidents as they show Prometheus' alerts. The shapes are those of its `web/api/v1/api.go`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from rca import notify
from rca.detectors import All, Any, Condition, Leaf, Not, Unless
from rca.incidents import Incident, Note, Verdict
from rca.library import Library, Rule
from rca.metrics import Health
from rca.model import LAYERS, Progress, Record, seconds
from rca.plain import stamp, unix

NEVER = "0001-01-01T00:00:00Z"
_UNKNOWN = "unknown"
_STATES: Mapping[str, Literal["pending", "firing"]] = {"pending": "pending", "open": "firing"}


class Asked(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `POST /api/v1/diagnose` takes: the jobs (none: all), and the end of the window (`now`, `-2h`, RFC 3339)."""

    job: str | list[str] = []
    at: str = ""


class Received(Record, frozen=True, kw_only=True):
    """What became of a delivery: how many alerts are kept, and how many are not as we sent them ourselves."""

    accepted: int
    ignored: int


class Remark(Record, frozen=True, kw_only=True):
    """What somebody said of an incident: when (RFC 3339), who, whether the cause is right, and in words."""

    at: str
    who: str
    verdict: Verdict
    text: str


class Judged(Record, frozen=True, kw_only=True):
    """What people say of an incident: the last word on its cause, and all that was said."""

    verdict: Verdict
    notes: list[Remark]


class Job(Record, frozen=True, kw_only=True):
    """A job: whether it is ill (so many incidents are open), and how far it was when it was last looked at.

    One that is silent was not seen lately.
    """

    job: str
    state: Literal["ill", "running", "done", "silent"]
    incidents: int
    progress: Progress | None = None


class Active(Record, frozen=True, kw_only=True, rename="camel"):
    """An alert, as Prometheus lists it: `value` is a number in writing, here the probability."""

    labels: dict[str, str]
    annotations: dict[str, str]
    state: Literal["pending", "firing"]
    active_at: str
    value: str


class Alerting(Record, frozen=True, kw_only=True, rename="camel"):
    """An alerting rule, as Prometheus lists it; durations are in seconds."""

    name: str
    query: str
    duration: float
    labels: dict[str, str]
    annotations: dict[str, str]
    alerts: list[Active]
    state: Literal["inactive", "pending", "firing"]
    keep_firing_for: float = 0.0
    health: Literal["ok", "err", "unknown"] = "unknown"
    last_error: str = ""
    evaluation_time: float = 0.0
    last_evaluation: str = NEVER
    type: str = "alerting"


class Group(Record, frozen=True, kw_only=True, rename="camel"):
    """A group of rules, as Prometheus lists it: here those of a layer."""

    name: str
    file: str
    interval: float
    rules: list[Alerting]
    limit: int = 0
    evaluation_time: float = 0.0
    last_evaluation: str = NEVER


class Chosen(NamedTuple):
    """Which rules to list, as Grafana asks for them; nothing chosen is all. `bare` leaves out their alerts."""

    names: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    bare: bool = False


def verdict(notes: Sequence[Note]) -> Verdict:
    """Return the last word on the cause."""
    nothing: Verdict = ""
    return next((one.verdict for one in reversed(notes) if one.verdict), nothing)


def said(notes: Sequence[Note]) -> dict[str, object]:
    """Return what people say of an incident, as fields of its JSON."""
    remarks = [Remark(at=stamp(one.at), who=one.who, verdict=one.verdict, text=one.text) for one in notes]
    return msgspec.structs.asdict(Judged(verdict=verdict(notes), notes=remarks))


def jobs(told: Sequence[Progress], incidents: Iterable[Incident], heard: float) -> list[Job]:
    """Return jobs by how far they were last and what is open: the ill ones first, then those that were seen last.

    One that was not seen since `heard`, in unix seconds, is silent.
    """
    wrong = Counter(one.job for one in incidents if one.state == "open")
    last = {one.job: one for one in told}
    every = [_job(name, wrong[name], last.get(name), heard) for name in sorted({*last, *wrong} - {""})]
    return sorted(every, key=lambda one: (not one.incidents, -unix(one.progress.at) if one.progress else 0.0))


def _job(name: str, wrong: int, told: Progress | None, heard: float) -> Job:
    state: Literal["ill", "running", "done", "silent"] = "running"
    if wrong:
        state = "ill"
    elif told is not None and told.target_step is not None and (told.step or 0) >= told.target_step:
        state = "done"
    elif told is None or unix(told.at) < heard:
        state = "silent"
    return Job(job=name, state=state, incidents=wrong, progress=told)


def active(incidents: Iterable[Incident], pages: str) -> list[Active]:
    """Return the incidents that are not over as alerts, with the labels that Alertmanager is sent."""
    return [_active(one, pages) for one in incidents if one.state in _STATES]


def _active(one: Incident, pages: str) -> Active:
    sent = notify.alerts(one, one.last, 0.0, pages)[0]
    return Active(
        labels=sent.labels,
        annotations=sent.annotations,
        state=_STATES[one.state],
        active_at=stamp(one.first),
        value=f"{one.probability:e}",
    )


def groups(library: Library, incidents: Sequence[Incident], interval: float, pages: str, health: Health) -> list[Group]:
    """Return what may be a root cause as alerting rules, each with its incidents.

    `interval` is the time between two looks in seconds. A job that is ill for reasons that no rule knows is an incident
    of the rule `unknown`. All rules are judged together, so the time of a look, and how long it took, are those of each.
    """
    roots = [rule for rule in library.rules.values() if rule.role == "root"]
    strange = Rule(
        id=_UNKNOWN,
        layer="training",
        summary="The job is ill and no cause is sure",
        entity="job",
        role="root",
        when=Any(of=()),
        hold="0s",
    )
    last = NEVER if health.at is None else stamp(health.at)
    shown = [
        (
            rule,
            msgspec.structs.replace(_alerting(rule, incidents, pages), **judged(rule, health), last_evaluation=last),
        )
        for rule in [*roots, strange]
    ]
    return [
        Group(
            name=layer, file=f"rules/{layer}", interval=interval, evaluation_time=health.took, last_evaluation=last,
            rules=[one for rule, one in shown if rule.layer == layer],
        )
        for layer in LAYERS
    ]  # fmt: skip


def chosen(every: Sequence[Group], wanted: Chosen) -> list[Group]:
    """Return the groups and rules that are asked for, without groups that have none of them."""
    found = []
    for group in every:
        rules = [one for one in group.rules if not wanted.names or one.name in wanted.names]
        if rules and (not wanted.groups or group.name in wanted.groups):
            rules = [msgspec.structs.replace(one, alerts=[]) for one in rules] if wanted.bare else rules
            found.append(msgspec.structs.replace(group, rules=rules))
    return found


def judged(rule: Rule, health: Health) -> dict[str, object]:
    """Say how a rule is: in error with every other where the last look failed, unknown where it could not be judged."""
    took: dict[str, object] = {"evaluation_time": health.took}
    if health.error:
        return took | {"health": "err", "last_error": health.error}
    missing = health.blind.get(rule.id)
    if missing is not None:
        return took | {"health": "unknown", "last_error": f"no data: {', '.join(missing)}"}
    return took | {"health": "unknown" if health.at is None else "ok"}


def _alerting(rule: Rule, incidents: Iterable[Incident], pages: str) -> Alerting:
    alerts = active([one for one in incidents if one.cause == rule.id], pages)
    states = {one.state for one in alerts}
    texts = {"summary": rule.summary, "action": rule.action.text if rule.action else "", "runbook_url": rule.runbook}
    return Alerting(
        name=notify.alertname(rule.id),
        query=expression(rule.when) or rule.id,
        duration=seconds(rule.hold),
        labels={"cause": rule.id, "layer": rule.layer},
        annotations={name: text for name, text in texts.items() if text},
        alerts=alerts,
        state="firing" if "firing" in states else "pending" if states else "inactive",
    )


def expression(condition: Condition) -> str:
    """Write a condition in one line for people, where Prometheus has PromQL: a rule of ours asks more than one query.

    >>> from rca.detectors import Above, BelowPeers
    >>> hot = Above(signal="gpu_temperature", limit=90)
    >>> expression(All(of=(hot, Not(of=BelowPeers(signal="gpu_sm_clock", by="4%", peers=("job",))))))
    'gpu_temperature above 90 and not gpu_sm_clock below_peers 4%'
    """
    if isinstance(condition, All | Any):
        word = " and " if isinstance(condition, All) else " or "
        return word.join(map(_part, condition.of))
    if isinstance(condition, Not | Unless):
        return f"not {_part(condition.of)}"
    return _leaf(condition)


def _part(condition: Condition) -> str:
    text = expression(condition)
    return f"({text})" if isinstance(condition, All | Any) else text


def _leaf(leaf: Leaf) -> str:
    limits = [getattr(leaf, name, None) for name in ("limit", "by")]
    told = [f"{value:g}" if isinstance(value, float) else str(value) for value in limits if value is not None]
    return " ".join([leaf.signal, str(leaf.__struct_config__.tag), *told])
