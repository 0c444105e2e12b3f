"""Incidents as alerts, sent to every Alertmanager.

What is sent follows from the incidents alone: an open one is sent again and again with an end that lies ahead, a closed
one for a while with the end that it had. So nothing has to be remembered between two sendings: a restart notifies
nobody twice, and an Alertmanager that was away is told all when it is back.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec
import requests

from rca.config import without_password
from rca.incidents import Incident
from rca.model import Record, Symptom
from rca.plain import percent, stamp

ROLES = ("root_cause", "symptom")
RESEND = 60.0
"""Seconds between two sendings of an alert that has not changed, as in Prometheus."""
RESOLVED_FOR = 900.0
"""For so many seconds after its end an alert is still sent, as in Prometheus."""
BATCH = 256
_TIMEOUT = 10.0
_NAMES: Mapping[Symptom, str] = {
    "slow_onset": "RcaJobSlow",
    "slow_always": "RcaJobSlow",
    "stalled": "RcaJobStalled",
    "crashed": "RcaJobCrashed",
    "numeric": "RcaNumbersWrong",
}
_SAID: Mapping[Symptom, str] = {
    "slow_onset": "is slower than it was",
    "slow_always": "waits for its slowest part",
    "stalled": "takes no step any more",
    "crashed": "has crashed",
    "numeric": "computes numbers that are not right",
}
_SEVERE: Mapping[Symptom, str] = {"stalled": "critical", "crashed": "critical", "none": "info"}


class Alert(Record, frozen=True, kw_only=True, rename="camel"):
    """An alert as Alertmanager's API v2 takes it; its labels are its identity and hold no value that changes."""

    labels: dict[str, str]
    annotations: dict[str, str]
    starts_at: str
    ends_at: str
    generator_url: str = msgspec.field(name="generatorURL", default="")


class Sent(NamedTuple):
    """What became of a sending: how many alerts arrived, by peer, and what went wrong there, in words."""

    arrived: Mapping[str, int]
    failed: Mapping[str, str]


def due(incidents: Iterable[Incident], at: float) -> list[Incident]:
    """Return the incidents that Alertmanager has to hear of: those that opened, until a while after their end."""
    return [
        one for one in incidents if one.opened is not None and (one.closed is None or at - one.closed <= RESOLVED_FOR)
    ]


def alertname(cause: str) -> str:
    """Name the alert of a cause.

    >>> alertname("gpu_thermal_throttling")
    'RcaGpuThermalThrottling'
    """
    return "Rca" + "".join(word.capitalize() for word in cause.split("_"))


def alerts(incident: Incident, at: float, interval: float, pages: str = "") -> list[Alert]:
    """Write an incident as alerts: its root cause, and the symptom of its job, which the root cause inhibits.

    `interval` is the time between two sendings in seconds; an alert ends after four of them where no other follows.
    `pages` is the address of our pages, for links.
    """
    opened = incident.opened if incident.opened is not None else incident.first
    ends = (
        at + 4.0 * max(interval, RESEND) if incident.closed is None else max(incident.well or incident.closed, opened)
    )
    page = f"{pages.rstrip('/')}/incidents/{incident.id}" if pages else ""
    severity = _SEVERE.get(incident.symptom, "warning")
    cause = {
        "alertname": alertname(incident.cause),
        "role": "root_cause",
        "layer": incident.layer,
        "cause": incident.cause,
        **{label: value for label, value in incident.entity.labels.items() if value},
    }
    symptom = {"alertname": _NAMES.get(incident.symptom, ""), "role": "symptom", "layer": "training"}
    shared = {"severity": severity, "root_cause_id": incident.id, **({"job": incident.job} if incident.job else {})}
    times = {"starts_at": _stamp(opened), "ends_at": _stamp(ends), "generator_url": page}
    written = [Alert(labels={**cause, **shared}, annotations=_annotations(incident, page), **times)]
    if symptom["alertname"] and incident.job:
        summary = f"{incident.job} {_SAID[incident.symptom]}: {incident.cause} on {incident.entity}"
        told = {"summary": summary, **({"page": page} if page else {})}
        written.append(Alert(labels={**symptom, **shared}, annotations=told, **times))
    return written


def _annotations(incident: Incident, page: str) -> dict[str, str]:
    """Say in words what the labels must not hold."""
    cost = f"{incident.gpu_hours_lost:,.1f} GPU-hours lost since {stamp(incident.since)}"
    again = f", seen {incident.seen_before} times before within 28 days" if incident.seen_before else ""
    held = f"; {incident.ranks} ranks are held up" if incident.ranks else ""
    texts = {
        "summary": f"{incident.summary}: {incident.entity}",
        "description": f"probability {percent(incident.probability)}{held}; {cost}{again}",
        "chain": " -> ".join(incident.chain),
        "action": f"{incident.action.do}: {incident.action.text}",
        "runbook_url": incident.runbook,
        "page": page,
    }
    return {name: text for name, text in texts.items() if text}


def _stamp(time: float) -> str:
    """Write a time with its milliseconds.

    >>> _stamp(0.25)
    '1970-01-01T00:00:00.250Z'
    """
    whole, thousandths = divmod(round(time * 1000.0), 1000)
    return f"{stamp(whole)[:-1]}.{thousandths:03d}Z"


def send(alerts: Sequence[Alert], peers: Sequence[str]) -> Sent:
    """Send alerts to every peer, each on its own: one that is away holds up none of the others."""
    if not alerts or not peers:
        return Sent({}, {})
    bodies = [msgspec.json.encode(alerts[start : start + BATCH]) for start in range(0, len(alerts), BATCH)]
    with ThreadPoolExecutor(len(peers)) as pool:
        outcomes = dict(
            zip(map(without_password, peers), pool.map(lambda peer: _post(peer, bodies), peers), strict=True)
        )
    failed = {peer: said for peer, said in outcomes.items() if said}
    return Sent({peer: len(alerts) for peer in outcomes if peer not in failed}, failed)


def _post(peer: str, bodies: Sequence[bytes]) -> str:
    """Post bodies to one peer; return what went wrong, or nothing."""
    url = f"{peer.rstrip('/')}/api/v2/alerts"
    try:
        with requests.Session() as session:
            for body in bodies:
                headers = {"Content-Type": "application/json"}
                answer = session.post(url, data=body, headers=headers, timeout=_TIMEOUT, allow_redirects=False)
                if answer.status_code != 200:
                    return f"answers {answer.status_code}: {' '.join(answer.text.split())[:200]}"
    except requests.RequestException as error:
        return f"cannot be reached ({type(error).__name__}), is it running"
    return ""
