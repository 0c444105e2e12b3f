"""What pages say of incidents, rules and the server itself, in words and figures."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote

from rca.config import Settings, without_password
from rca.incidents import Incident, Note
from rca.library import Library
from rca.metrics import Health, Metrics
from rca.model import LAYERS
from rca.plain import counted, percent, quantity, stamp, visible
from rca.serve.shapes import judged
from rca.sightings import Sighting

Facts = list[tuple[str, str]]


class RuleRow(NamedTuple):
    """A rule as the page lists it: `fired` and `times` of its incidents here, `health` of the last look, `lacks` why."""

    id: str
    role: str
    summary: str
    fired: str
    times: int
    health: str
    lacks: str


def incident(one: Incident, verdict: str = "") -> Mapping[str, str]:
    """Return what a list shows of an incident."""
    return {
        "id": one.id,
        "state": one.state,
        "verdict": verdict,
        "cause": one.cause,
        "layer": one.layer,
        "place": visible(str(one.entity)),
        "job": visible(one.job) or "none",
        "job_path": path(one.job),
        "since": clock(one.since),
        "last": clock(one.last),
        "probability": percent(one.probability),
        "summary": visible(one.summary),
    }


def path(job: str) -> str:
    """Return where the page of a job is; nothing for a name that no path can hold.

    >>> path("a/b"), path("..")
    ('jobs/a%2Fb', '')
    """
    return f"jobs/{quote(job, safe='')}" if job.strip("./") else ""


def facts(one: Incident) -> Facts:
    """Return what is known of an incident's life, in words."""
    found = [
        ("Began", clock(one.since)),
        ("Opened", clock(one.opened) if one.opened is not None else "not yet"),
        ("Last seen", clock(one.last)),
        ("Closed", clock(one.closed) if one.closed is not None else "no"),
        ("Symptom", one.symptom.replace("_", " ")),
        ("Ranks held up", f"{one.ranks:,}"),
        ("GPU hours lost", f"{one.gpu_hours_lost:,.1f}"),
        ("Seen before", f"{counted(one.seen_before, 'time')} here in 28 days"),
    ]
    return found + ([("Came back", counted(one.flaps, "time"))] if one.flaps else [])


def sightings(found: Sequence[Sighting]) -> list[Mapping[str, str]]:
    """Return the reports that named an incident, the latest first."""
    return [
        {
            "at": clock(one.at),
            "report": one.report,
            "probability": percent(one.probability),
            "slowdown": "" if one.slowdown is None else f"{one.slowdown:.2f}x",
        }
        for one in reversed(found)
    ]


def notes(said: Sequence[Note]) -> list[Mapping[str, str]]:
    """Return what people say of an incident, the latest first."""
    return [
        {"at": clock(one.at), "who": visible(one.who), "verdict": one.verdict, "text": one.text}
        for one in reversed(said)
    ]


def rules(library: Library, fired: Mapping[str, tuple[float, int]], health: Health) -> dict[str, list[RuleRow]]:
    """Return the rules by layer, roots first."""
    found: dict[str, list[RuleRow]] = {layer: [] for layer in LAYERS}
    for rule in sorted(library.rules.values(), key=lambda rule: (rule.role != "root", rule.id)):
        how = judged(rule, health)
        last, times = fired.get(rule.id, (0.0, 0))
        row = RuleRow(
            rule.id, rule.role, rule.summary, clock(last) if times else "never", times,
            _HEALTH[str(how["health"])], str(how.get("last_error", "")),
        )  # fmt: skip
        found[rule.layer].append(row)
    return {layer: rows for layer, rows in found.items() if rows}


_HEALTH = {"ok": "judged", "err": "the look failed", "unknown": "not judged"}


def source(settings: Settings, health: Health, metrics: Metrics) -> Facts:
    """Return how the source is, as the last look saw it."""
    read = {one.name: one.value for metric in metrics.collect() for one in metric.samples if not one.labels}
    address = without_password(settings.prometheus.url)
    looked = health.at is not None
    found = [
        ("Source", visible(address) or "none"),
        ("Last look", clock(health.at) if health.at is not None else "none yet"),
        ("How it went", visible(health.error) or ("well" if looked else "there was none")),
    ]
    if looked:
        found += [
            ("It took", quantity(health.took, "seconds")),
            ("Newest sample", f"{quantity(read['rca_source_staleness_seconds'], 'seconds')} old"),
            ("Series of no known place", quantity(read["rca_unmapped_entities_ratio"], "ratio")),
            ("Rules without data", f"{read['rca_rules_without_data']:,.0f}"),
        ]
    failures = sum(
        one.value
        for metric in metrics.collect()
        for one in metric.samples
        if one.name == "rca_evaluation_failures_total"
    )
    return [*found, ("Looks since the start", f"{read['rca_evaluations_total']:,.0f}, {failures:,.0f} failed")]


def ourselves(settings: Settings, metrics: Metrics, queued: int) -> Facts:
    """Return how the server is, and whom it tells."""
    read = {one.name: one.value for metric in metrics.collect() for one in metric.samples if not one.labels}
    kept = settings.incidents
    others = [
        name for name, set_ in (("a webhook", kept.webhook or kept.webhook_file), ("Slack", kept.slack_file)) if set_
    ]
    sent, failed, dropped = (read[f"rca_notifications_{what}_total"] for what in ("sent", "failed", "dropped"))
    return [
        ("Alerts that wait", f"{queued:,}"),
        ("Alertmanagers", ", ".join(visible(without_password(url)) for url in settings.alertmanagers) or "none"),
        ("Others that are told", " and ".join(others) or "nobody"),
        ("Alerts sent out", f"{sent:,.0f}, {failed:,.0f} not taken, {dropped:,.0f} given up"),
        (
            "Rules and settings",
            "read well" if read["rca_config_last_reload_successful"] else "wrong, the old ones stay",
        ),
        ("Last read well", clock(read["rca_config_last_reload_success_timestamp_seconds"])),
        ("Looks every", settings.interval),
        ("Store", visible(without_password(settings.store))),
    ]


def clock(time: float) -> str:
    """Write a time for a list, in UTC.

    >>> clock(0.0)
    '1970-01-01 00:00:00'
    """
    return stamp(time)[:19].replace("T", " ")
