"""The server answers what it should, refuses what it must, and gives nothing away."""

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import msgspec
import pytest
import requests
from own_server import NOW, Engine, Slow, alert, backend, delivery, get, post, refused, report, running, wait_until
from read_once import load
from test_incidents import HEALTHY, ILL, at

from rca.config import Serving
from rca.errors import ProblemsError, SourceError, UsageError
from rca.incidents import Pace
from rca.library import Library
from rca.metrics import Look
from rca.model import Report
from rca.serve import app, gate
from rca.serve.app import Inbox
from rca.serve.demand import OnDemand
from rca.serve.openapi import document
from rca.serve.pages import Pages
from rca.webhook import Question

PACE = Pace(0.0, 300.0)
HOSTILE = 'a"b\'c\n{x=~".*"} or vector(1) </script><script>alert(1)</script> \u202e\x00 ${jndi} %s {{.}} é'


@pytest.fixture(scope="module")
def library() -> Library:
    return load()


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def works(tmp_path, engine, library):
    return backend(tmp_path, engine, library)


@pytest.fixture
def url(works) -> Iterator[str]:
    with running(works) as base:
        yield base


# -- alerts in


def test_a_delivery_is_stored_then_answered_then_looked_into(url, works, engine):
    answer = post(url, delivery(alert(1, job_name="llama-70b"), alert(2, instance="node-07:9100")))
    assert answer.status_code == 202
    assert answer.json() == {"status": "success", "data": {"accepted": 2, "ignored": 0}}
    wait_until(lambda: works.archive.queued() == 0)
    assert engine.asked == [Question(NOW - 300.0, ("llama-70b",), ({"node": "node-07"},))]
    [incident] = get(url, "/api/v1/incidents").json()["data"]
    assert (incident["cause"], incident["state"]) == ("gpu_thermal_throttling", "open")
    wait_until(lambda: engine.announced == 1)


def test_the_same_delivery_twice_is_one(url, works, engine):
    for _ in range(3):
        answer = post(url, delivery(alert(1, job_name="a")))
    assert answer.json()["data"] == {"accepted": 1, "ignored": 0}
    wait_until(lambda: works.archive.queued() == 0)
    assert len(engine.asked) == 1


def test_five_hundred_alerts_of_one_job_are_one_diagnosis(url, works, engine):
    storm = [alert(number, job_name="a", node=f"node-{number}") for number in range(500)]
    assert post(url, delivery(*storm)).json()["data"]["accepted"] == 500
    wait_until(lambda: works.archive.queued() == 0)
    assert [question.jobs for question in engine.asked] == [("a",)]


def test_what_we_sent_comes_back_to_nobody(url, engine):
    answer = post(url, delivery(alert(1, role="root_cause", root_cause_id="1")))
    assert answer.json()["data"] == {"accepted": 0, "ignored": 1}
    assert engine.asked == []


def test_a_malformed_delivery_is_refused(url):
    assert refused(post(url, b"{")) == (400, "the body is not JSON, input data was truncated")
    assert refused(post(url, {"alerts": [{"startsAt": "soon"}]}))[0] == 400
    assert refused(post(url, b"", path="/api/v1/nowhere")) == (404, "not found")
    assert refused(requests.delete(f"{url}/api/v1/alerts", timeout=10)) == (405, "method not allowed")


def test_a_full_queue_asks_to_come_again(works, engine):
    engine.errors = [SourceError("away")] * 100
    with running(works, Serving(max_waiting=2)) as url:
        assert post(url, delivery(alert(1), alert(2))).status_code == 202
        answer = post(url, delivery(alert(3)))
        assert refused(answer) == (503, "2 alerts wait already, send it again later")
        assert int(answer.headers["Retry-After"]) > 0
        assert works.archive.queued() == 2


def test_an_archive_that_fails_asks_to_come_again(url, works):
    with works.archive._writing() as connection:
        connection.exec_driver_sql("drop table alerts")
    status, said = refused(post(url, delivery(alert(1))))
    assert (status, "no such table" in said) == (503, True)
    assert refused(get(url, "/-/ready"))[0] == 503
    assert get(url, "/-/healthy").status_code == 200
    assert get(url, "/metrics").status_code == 200


def test_deliveries_of_many_senders_are_all_stored(url, works):
    answered: list[int] = []

    def send(sender: int) -> None:
        with requests.Session() as session:
            for number in range(10):
                body = delivery(alert(sender * 1000 + number, job_name="a", node=f"node-{sender}"))
                answered.append(session.post(f"{url}/api/v1/alerts", json=body, timeout=30).status_code)

    senders = [threading.Thread(target=send, args=(number,)) for number in range(20)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(60)
    assert answered == [202] * 200
    with works.archive._reading() as connection:
        assert connection.exec_driver_sql("select count(*) from alerts").scalar_one() == 200


def test_what_comes_in_while_the_disk_is_busy_is_stored_together():
    stored: list[list[int]] = []
    first, later = threading.Event(), threading.Event()

    def store(alerts: list[int]) -> None:
        first.set()
        assert later.wait(10)
        stored.append(list(alerts))
        if 3 in alerts:
            raise SourceError("the disk is full")

    async def put() -> list[BaseException | None]:
        inbox = Inbox(store)
        tasks = [asyncio.create_task(inbox.put([0]))]
        await asyncio.to_thread(first.wait, 10)
        tasks += [asyncio.create_task(inbox.put([number])) for number in (1, 2, 3)]
        await asyncio.sleep(0)
        later.set()
        outcome = await asyncio.gather(*tasks, return_exceptions=True)
        await inbox.put([4])
        return outcome

    outcome = asyncio.run(put())
    assert stored == [[0], [1, 2, 3], [4]]
    assert [str(one) for one in outcome] == ["None", *["the disk is full"] * 3]


# -- incidents and reports out


@pytest.fixture
def kept(works) -> Report:
    """Let a report come in, and return it."""
    told = report(NOW)
    works.archive.absorb(told, PACE)
    return told


def test_incidents_are_listed_and_chosen(url, kept):
    [incident] = get(url, "/api/v1/incidents?cause=gpu_thermal_throttling&node=node-07&state=open").json()["data"]
    assert incident["last"] == "2026-03-01T14:05:00Z"
    assert incident["closed"] is None
    one = get(url, f"/api/v1/incidents/{incident['id']}").json()["data"]
    assert one == {**incident, "verdict": "", "notes": []}
    assert get(url, "/api/v1/incidents?job=other").json()["data"] == []
    assert refused(get(url, "/api/v1/incidents/nowhere")) == (404, "there is no such incident")
    assert refused(get(url, "/api/v1/incidents?state=odd"))[0] == 400
    for limit in ("0", "-1", "1001", "x", "1e3", "9" * 5000, "\u0661"):
        assert refused(get(url, f"/api/v1/incidents?limit={limit}"))[0] == 400
    body = get(url, f"/api/v1/reports/{incident['report']}").content
    assert msgspec.json.decode(body, type=Report) == kept
    assert refused(get(url, "/api/v1/reports/nowhere"))[0] == 404


@pytest.mark.usefixtures("kept")
def test_rules_and_alerts_have_the_shape_of_prometheus(url, library):
    groups = get(url, "/api/v1/rules").json()["data"]["groups"]
    assert [group["name"] for group in groups] == ["physical", "resource", "communication", "training"]
    rules = {rule["labels"]["cause"]: rule for group in groups for rule in group["rules"]}
    roots = {rule.id for rule in library.rules.values() if rule.role == "root"}
    assert set(rules) == roots | {"unknown"}
    rule = rules["gpu_thermal_throttling"]
    assert (rule["name"], rule["state"], rule["health"], rule["type"]) == (
        "RcaGpuThermalThrottling", "firing", "unknown", "alerting",
    )  # fmt: skip
    assert {one["lastEvaluation"] for one in [*groups, rule]} == {"0001-01-01T00:00:00Z"}
    assert set(rule) == {
        "name", "query", "duration", "keepFiringFor", "labels", "annotations", "alerts", "health", "lastError",
        "evaluationTime", "lastEvaluation", "state", "type",
    }  # fmt: skip
    assert set(groups[0]) == {"name", "file", "interval", "limit", "rules", "evaluationTime", "lastEvaluation"}
    [alert] = get(url, "/api/v1/alerts").json()["data"]["alerts"]
    assert rule["alerts"] == [alert]
    assert set(alert) == {"labels", "annotations", "state", "activeAt", "value"}
    assert (alert["state"], alert["labels"]["node"], alert["labels"]["role"]) == ("firing", "node-07", "root_cause")
    assert float(alert["value"]) == pytest.approx(0.94)
    assert alert["annotations"]["page"].startswith("http://rca.example/incidents/")


def test_rules_say_how_they_were_judged_last(url, works, engine):
    def rules() -> dict[str, dict]:
        groups = get(url, "/api/v1/rules").json()["data"]["groups"]
        told = {rule["labels"]["cause"]: rule for group in groups for rule in group["rules"]}
        assert {(one["lastEvaluation"], one["evaluationTime"]) for one in [*groups, *told.values()]} == {
            (groups[0]["lastEvaluation"], groups[0]["evaluationTime"])
        }
        return told

    works.metrics.saw(Look(3.0, 0.0, {"nic_down": ("nic_state", "nic_errors")}))
    works.metrics.evaluated(NOW - 60.0, 1.5, 0.0)
    told = rules()
    assert (told["nic_down"]["health"], told["nic_down"]["lastError"]) == ("unknown", "no data: nic_state, nic_errors")
    rule = told["gpu_thermal_throttling"]
    assert (rule["health"], rule["lastError"], rule["evaluationTime"]) == ("ok", "", 1.5)
    assert rule["lastEvaluation"] == "2026-03-01T14:04:00Z"
    engine.errors = [SourceError("prometheus: no answer")]
    post(url, {}, path="/api/v1/diagnose")
    rule = rules()["gpu_thermal_throttling"]
    assert (rule["health"], rule["lastError"]) == ("err", "prometheus: no answer")
    assert rule["lastEvaluation"] == "2026-03-01T14:05:00Z"
    post(url, {}, path="/api/v1/diagnose")
    assert rules()["gpu_thermal_throttling"]["health"] == "ok"


@pytest.mark.usefixtures("kept")
def test_rules_are_chosen_as_grafana_does(url):
    def names(query: str) -> list[str]:
        groups = get(url, f"/api/v1/rules?{query}").json()["data"]["groups"]
        return [rule["name"] for group in groups for rule in group["rules"]]

    assert names("rule_name[]=RcaGpuThermalThrottling&type=alert") == ["RcaGpuThermalThrottling"]
    assert names("rule_name[]=RcaNicDown&rule_name[]=RcaDataSkew") == ["RcaNicDown", "RcaDataSkew"]
    assert names("rule_group[]=communication&rule_name[]=RcaDataSkew") == []
    assert names("type=record") == []
    assert refused(get(url, "/api/v1/rules?type=odd")) == (400, "type: is alert or record")
    bare = get(url, "/api/v1/rules?exclude_alerts=true").json()["data"]["groups"]
    assert not [rule for group in bare for rule in group["rules"] if rule["alerts"]]


# -- on demand


def test_a_diagnosis_on_demand(url, works, engine):
    answer = post(url, {"job": "llama-70b", "at": "-10m"}, path="/api/v1/diagnose")
    assert msgspec.json.decode(answer.content, type=Report).schema == "rca.report/v1"
    assert engine.asked == [Question(NOW - 600.0, ("llama-70b",))]
    for body in (b"", b"{}", {"job": ""}, {"job": []}):
        assert post(url, body, path="/api/v1/diagnose").status_code == 200
    assert engine.asked[1:] == [Question()] * 4
    post(url, {"job": ["a", "b"], "at": "2026-03-01T14:00:00+01:00"}, path="/api/v1/diagnose")
    assert engine.asked[-1].jobs == ("a", "b")
    assert not works.archive.incidents()
    counted = get(url, "/metrics").text
    assert "rca_evaluations_total 6.0" in counted


def test_a_question_that_cannot_be_understood_is_refused(url, engine):
    odd = [
        b"{",
        b"[]",
        b"[" * 9999,
        b"\xff",
        {"job": 1},
        {"jobs": "a"},
        {"at": "soon"},
        {"at": "2026-03-01"},
        {"at": 1},
    ]
    for body in odd:
        assert refused(post(url, body, path="/api/v1/diagnose"))[0] == 400
    assert engine.asked == []


def test_what_goes_wrong_on_demand_is_said(url, engine):
    engine.errors = [UsageError("no such job: 'x'"), SourceError("prometheus: no answer"), ProblemsError(())]
    assert refused(post(url, {"job": "x"}, path="/api/v1/diagnose")) == (400, "no such job: 'x'")
    assert refused(post(url, {}, path="/api/v1/diagnose")) == (503, "prometheus: no answer")
    assert refused(post(url, {}, path="/api/v1/diagnose"))[0] == 503
    assert 'rca_evaluation_failures_total{reason="source"} 1.0' in get(url, "/metrics").text
    big = b'{"job": "' + b"x" * 100_000 + b'"}'
    assert refused(post(url, big, path="/api/v1/diagnose"))[0] == 413


def test_an_error_that_nobody_foresaw_says_nothing(url, engine):
    engine.errors = [ZeroDivisionError("secret numbers")]
    assert refused(post(url, {}, path="/api/v1/diagnose")) == (500, "internal error, see the log of the server")


def test_diagnoses_on_demand_are_few_at_once(tmp_path, library):
    slow = Slow()
    with running(backend(tmp_path, slow, library), Serving(max_diagnoses=1)) as url:
        first = threading.Thread(target=post, args=(url, {}), kwargs={"path": "/api/v1/diagnose"})
        first.start()
        assert slow.entered.acquire(timeout=10)
        answer = post(url, {}, path="/api/v1/diagnose")
        assert refused(answer) == (503, "1 diagnoses are under way")
        assert post(url, delivery()).status_code == 202
        slow.gone.set()
        first.join(10)
        assert post(url, {}, path="/api/v1/diagnose").status_code == 200


# -- its own health


def test_metrics_in_both_formats(url):
    plain = get(url, "/metrics")
    assert plain.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "_created" not in plain.text
    for name in (
        "rca_evaluations_total", "rca_evaluation_failures_total", "rca_evaluation_duration_seconds",
        "rca_evaluation_lag_seconds", "rca_ticks_missed_total", "rca_source_staleness_seconds",
        "rca_unmapped_entities_ratio", "rca_rules_without_data", "rca_notifications_sent_total",
        "rca_notifications_failed_total", "rca_notifications_dropped_total", "rca_webhook_queue_length",
        "rca_build_info", "rca_config_last_reload_successful", "rca_config_last_reload_success_timestamp_seconds",
    ):  # fmt: skip
        assert f"# TYPE {name} " in plain.text
    modern = get(url, "/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"})
    assert modern.text.endswith("# EOF\n")


def test_open_incidents_are_series_and_closed_ones_are_none(url, works):
    [one] = works.archive.absorb(ILL, Pace(0.0, 0.0))
    told = get(url, "/metrics").text
    [series] = [line for line in told.splitlines() if line.startswith("rca_incident_open{")]
    assert f'root_cause_id="{one.id}"' in series
    assert f'cause="{one.cause}",layer="{one.layer}",place="{one.entity}"' in series
    assert series.endswith(" 1.0")
    works.archive.absorb(at(HEALTHY, 60.0), Pace(0.0, 0.0))
    assert "rca_incident_open{" not in get(url, "/metrics").text


def test_rules_are_read_again(url, engine, works):
    for method in (requests.post, requests.put):
        assert method(f"{url}/-/reload", timeout=10).status_code == 200
    engine.problem = "rules/a.yaml:3: unknown key 'limt'"
    assert refused(requests.post(f"{url}/-/reload", timeout=10)) == (500, engine.problem)
    assert "rca_config_last_reload_successful 0.0" in get(url, "/metrics").text
    assert requests.get(f"{url}/-/reload", timeout=10).status_code == 405


def test_the_description_is_that_of_the_routes(works):
    told = document()
    pages = {route.path for route in Pages(works, Serving(), OnDemand(works, 1)).routes()}
    every = app(works, Serving()).routes
    routes = {one.path_format: one.methods - {"HEAD"} for one in every if one.path not in pages}
    assert {path: {method.upper() for method in methods} for path, methods in told["paths"].items()} == routes
    for schema in told["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    known = {f"#/components/schemas/{name}" for name in told["components"]["schemas"]}
    assert set(re.findall(r'"(#/[^"]*)"', json.dumps(told))) <= known
    operations = [operation for path in told["paths"].values() for operation in path.values()]
    assert {status for operation in operations for status in operation["responses"]} - {"200", "202"} <= {
        str(status) for status in gate.KINDS
    }
    works.archive.close()


def test_every_path_is_told():
    page = (Path(__file__).parent.parent / "docs" / "serve.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`(/[^`]*)`", page.partition("## Paths")[2].partition("## Settings")[0]))
    assert told == set(document()["paths"])


@pytest.mark.usefixtures("kept")
def test_answers_are_as_described(url):
    told = document()
    assert get(url, "/api/v1/openapi.json").json() == json.loads(json.dumps(told))
    for path in ("/api/v1/alerts", "/api/v1/incidents", "/api/v1/rules"):
        described = told["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        schema = {**described, "components": told["components"]}
        jsonschema.Draft202012Validator(schema).validate(get(url, path).json())
    answer = post(url, {}, path="/api/v1/diagnose")
    schema = {**told["components"]["schemas"]["Report"], "components": told["components"]}
    jsonschema.Draft202012Validator(schema).validate(answer.json())


# -- hostile input


def test_hostile_labels_are_kept_as_they_are(url, works, engine):
    body = delivery(alert(1, job_name=HOSTILE, **{HOSTILE: HOSTILE}))
    assert post(url, body).status_code == 202
    wait_until(lambda: works.archive.queued() == 0)
    assert engine.asked[0].jobs == (HOSTILE,)
    assert get(url, "/api/v1/incidents", params={"job": HOSTILE, "node": "' or 1=1 --"}).json()["data"] == []
    answer = get(url, "/api/v1/alerts")
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
