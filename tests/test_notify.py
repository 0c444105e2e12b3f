"""Alerts follow from incidents alone: what they say, when they end, and how long they are sent."""

import json

import msgspec
import pytest
from servers import free_port, serving
from test_incidents import HEALTHY, ILL, START, live, ticks

from rca.notify import BATCH, RESOLVED_FOR, Alert, alerts, due, send

[OPEN] = live(ticks(ILL, 0, 300))
[CLOSED] = live(ticks(ILL, 0, 300) + ticks(HEALTHY, 330, 660))
[PENDING] = live(ticks(ILL, 0, 30))
NOW = START + 300.0


def test_the_root_cause_and_its_symptom_share_an_id_and_no_label_holds_a_value_that_changes() -> None:
    cause, symptom = alerts(OPEN, NOW, 30.0, "http://rca.example/")
    assert cause.labels == {
        "alertname": "RcaGpuThermalThrottling",
        "role": "root_cause",
        "severity": "warning",
        "layer": "physical",
        "cause": "gpu_thermal_throttling",
        "job": "llama-70b",
        "node": "node-07",
        "gpu": "1",
        "root_cause_id": OPEN.id,
    }
    assert symptom.labels == {
        "alertname": "RcaJobSlow",
        "role": "symptom",
        "severity": "warning",
        "layer": "training",
        "job": "llama-70b",
        "root_cause_id": OPEN.id,
    }
    assert cause.generator_url == f"http://rca.example/incidents/{OPEN.id}"
    assert cause.annotations["action"].startswith("drain: Move the job off the node")
    assert "64 ranks are held up" in cause.annotations["description"]
    later = live(ticks(ILL, 0, 900))[0]
    assert [one.labels for one in alerts(later, START + 900.0, 30.0)] == [cause.labels, symptom.labels]


def test_an_open_incident_ends_ahead_and_a_closed_one_when_it_was_over() -> None:
    assert {one.ends_at for one in alerts(OPEN, NOW, 30.0)} == {"2026-03-01T14:14:00.000Z"}
    assert {one.starts_at for one in alerts(OPEN, NOW, 30.0)} == {"2026-03-01T14:06:00.000Z"}
    assert {one.ends_at for one in alerts(CLOSED, NOW, 30.0)} == {"2026-03-01T14:10:30.000Z"}
    assert {one.ends_at for one in alerts(OPEN, NOW, 600.0)} == {"2026-03-01T14:50:00.000Z"}


def test_what_is_due_is_what_opened_until_a_while_after_its_end() -> None:
    assert CLOSED.closed is not None
    assert due([OPEN, CLOSED, PENDING], CLOSED.closed + RESOLVED_FOR) == [OPEN, CLOSED]
    assert due([OPEN, CLOSED, PENDING], CLOSED.closed + RESOLVED_FOR + 1.0) == [OPEN]


@pytest.mark.parametrize("count", [1, BATCH, 2 * BATCH + 1])
def test_every_peer_gets_every_alert_and_one_that_is_away_holds_up_none(count: int) -> None:
    many = [
        Alert(labels={"alertname": str(number)}, annotations={}, starts_at="x", ends_at="y") for number in range(count)
    ]
    with (
        serving(lambda request: request.reply(200, b"")) as well,
        serving(lambda request: request.reply(503, b"full\n")) as ill,
    ):
        away = f"http://user:secret@127.0.0.1:{free_port()}"
        sent = send(many, [well.url + "/", ill.url, away])
        bodies = [json.loads(body) for _, path, _, body in well.requests if path == "/api/v2/alerts"]
    assert sent.arrived == {well.url + "/": count}
    assert [one["labels"]["alertname"] for body in bodies for one in body] == [str(number) for number in range(count)]
    assert max(map(len, bodies)) <= BATCH
    assert sent.failed[ill.url] == "answers 503: full"
    assert "secret" not in str(sent)
    assert len(sent.failed) == 2


def test_nothing_is_sent_where_there_is_nothing_to_send() -> None:
    assert send([], ["http://127.0.0.1:1"]) == ({}, {})
    assert send(alerts(OPEN, NOW, 30.0), []) == ({}, {})


def test_a_fault_that_holds_up_no_job_is_told_without_a_symptom() -> None:
    alone = msgspec.structs.replace(OPEN, job="", symptom="none")
    [only] = alerts(alone, NOW, 30.0)
    assert "job" not in only.labels
    assert only.labels["severity"] == "info"
