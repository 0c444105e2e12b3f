"""What Alertmanager delivers is understood, asked about once, and lost by nothing."""

import threading

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from own_server import NOW, Engine, alert, backend, delivery, replace, wait_until
from small_library import entities

from rca.archive import LEASE, Alert, Archive
from rca.errors import ProblemsError, SourceError, UsageError
from rca.plain import unix
from rca.webhook import MOST, PATIENCE, Delivery, Question, Worker, inquiries, parse


def read(*alerts: dict, **more: object) -> Delivery:
    return parse(msgspec.json.encode(delivery(*alerts, **more)), NOW)


def fires(number: int = 0, *, starts: float = NOW - 600.0, **labels: str) -> Alert:
    return Alert(fingerprint=f"{number:016x}", status="firing", labels=labels, annotations={}, starts=starts)


def test_all_that_alertmanager_documents_is_read():
    resolved = {**alert(1, job_name="llama-70b"), "status": "resolved", "endsAt": "2026-03-01T14:05:00.123456789+01:00"}
    first, second = read(alert(), resolved).alerts
    assert first.labels == {"alertname": "Slow"}
    assert first.annotations == {"summary": "slow"}
    assert (first.status, first.starts, first.ends) == ("firing", NOW - 600.0, None)
    assert (first.fingerprint, first.source) == (f"{0:016x}", "http://prometheus/graph")
    assert (second.status, round(second.ends)) == ("resolved", unix("2026-03-01T13:05:00Z"))
    assert first.key != second.key


def test_what_is_missing_takes_its_default_and_what_is_unknown_is_left_alone():
    told = b'{"alerts": [{}, {"labels": null, "annotations": null, "new": [1]}], "extra": {"a": {"b": 1}}}'
    bare, null = parse(told, NOW).alerts
    assert bare == null
    assert (bare.status, bare.labels, bare.starts, bare.ends) == ("firing", {}, NOW, None)
    labelled = parse(b'{"alerts": [{"labels": {"a": "1"}}]}', NOW).alerts[0]
    assert bare.fingerprint != labelled.fingerprint
    assert parse(b'{"alerts": []}', NOW) == ((), 0)


def test_what_we_sent_ourselves_is_ignored():
    ours = alert(1, role="root_cause", root_cause_id="abc")
    symptom = alert(2, role="symptom", root_cause_id="abc")
    told = read(ours, symptom, alert(3, role="symptom"))
    assert (len(told.alerts), told.ignored) == (1, 2)


def test_alerts_that_were_cut_off_are_noted():
    assert read(alert(), truncatedAlerts=3).alerts[0].truncated
    assert not read(alert()).alerts[0].truncated
    many = read(*[{"fingerprint": str(number)} for number in range(MOST + 1)]).alerts
    assert len(many) == MOST
    assert all(one.truncated for one in many)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the body is not JSON, input data was truncated"),
        (b"{", "the body is not JSON, "),
        (b'{"alerts": [{"labels": {"a": "\xff"}}]}', "the body is not JSON, invalid UTF-8"),
        (b"[" * 100_000, "the body: expected `object`, got `array`"),
        (b'{"a": ' + b"[" * 100_000, "the body is nested too deeply, send Alertmanager's JSON"),
        (b"[]", "the body: expected `object`, got `array`"),
        (b"{}", "the body: object missing required field `alerts`"),
        (b'{"alerts": {}}', "alerts: expected `array`, got `object`"),
        (b'{"alerts": [1]}', "alerts[0]: expected `object`, got `int`"),
        (b'{"alerts": [], "version": "5"}', "version: '5' is not known, send version 4"),
        (b'{"alerts": [], "version": 4}', "version: expected `str | null`, got `int`"),
        (b'{"alerts": [{"labels": []}]}', "alerts[0].labels: expected `object | null`, got `array`"),
        (b'{"alerts": [{"labels": {"a": 1}}]}', "alerts[0].labels[...]: expected `str`, got `int`"),
        (b'{"alerts": [{}, {"startsAt": "soon"}]}', "alerts[1].startsAt: invalid RFC3339 encoded datetime"),
        (b'{"alerts": [{"startsAt": "2026-03-01T14:05:00"}]}', "alerts[0].startsAt: "),
        (b'{"alerts": [{"status": "odd"}]}', "alerts[0].status: invalid enum value 'odd'"),
        (b'{"alerts": [' + b"{}," * 210_000 + b"{}]}", "the body has more than 200000 objects"),
    ],
    ids=range(17),
)
def test_what_is_no_delivery_is_said(body, said):
    with pytest.raises(ValueError) as caught:
        parse(body, NOW)
    assert str(caught.value).startswith(said)
    assert len(str(caught.value)) < 300


KEYS = st.sampled_from(
    ["alerts", "labels", "status", "startsAt", "endsAt", "fingerprint", "version", "truncatedAlerts", "annotations"]
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["0001-01-01T00:00:00Z", "4"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | KEYS, inner, max_size=4),
    max_leaves=12,
)
ALERTS = st.fixed_dictionaries(
    {},
    optional={
        "labels": st.dictionaries(st.sampled_from(["node", "gpu", "job_name", "instance", "device"]), st.text()) | JSON,
        "status": st.sampled_from(["firing", "resolved"]) | JSON,
        "startsAt": st.datetimes().map(lambda time: f"{time.isoformat()}+14:00") | JSON,
        "endsAt": st.sampled_from(["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.999999999-23:59"]) | JSON,
        "fingerprint": st.text() | JSON,
    },
)
BODIES = (
    st.binary()
    | JSON.map(msgspec.json.encode)
    | st.fixed_dictionaries({"alerts": st.lists(ALERTS, max_size=3)}, optional={"truncatedAlerts": JSON}).map(
        msgspec.json.encode
    )
)


@settings(max_examples=200, deadline=None)
@given(BODIES)
def test_any_body_is_understood_or_refused(body):
    try:
        told = parse(body, NOW)
    except ValueError:
        return
    firing = [one for one in told.alerts if one.status == "firing"]
    asked = inquiries(firing, entities(), NOW)
    assert sum(len(one.alerts) for one in asked) == len(firing)
    assert all(one.question.at <= NOW for one in asked)
    assert len({one.key for one in told.alerts}) <= len(told.alerts)


# -- questions


def asked(*alerts: Alert) -> list[Question]:
    return [one.question for one in inquiries(alerts, entities(), NOW)]


def test_a_storm_about_one_job_is_one_question():
    storm = [fires(number, job_name="llama-70b", node=f"node-{number}") for number in range(500)]
    assert asked(*storm) == [Question(NOW - 300.0, ("llama-70b",))]


def test_labels_are_read_as_the_sources_read_them():
    told = [
        fires(1, job="dcgm", Hostname="node-07", gpu="GPU3", modelName="H100"),
        fires(2, job="node", instance="node-08:9100", device="mlx5_0"),
        fires(3, training_job="moe", instance="node-09:9100", job="train"),
        fires(4, instance="node-07:9400", gpu="3"),
    ]
    places = ({"gpu": "3", "node": "node-07"}, {"node": "node-08"})
    [question] = asked(*told)
    assert question.jobs == ("moe",)
    assert sorted(map(sorted, map(dict.items, question.places))) == sorted(map(sorted, map(dict.items, places)))


@pytest.mark.parametrize(
    "vague",
    [
        fires(9, alertname="Slow"),
        fires(9, job="train", gpu="0"),
        msgspec.structs.replace(fires(9, job_name="a"), truncated=True),
    ],
    ids=["no label", "no node", "cut off"],
)
def test_who_names_nobody_asks_about_everybody(vague):
    assert asked(fires(1, job_name="a"), fires(2, node="n"), vague) == [Question(NOW - 300.0)]


def test_alerts_of_other_times_are_other_questions():
    times = [0.0, 100.0, 299.0, 301.0, 2000.0, 9999.0]
    told = [fires(number, starts=NOW - 3000.0 + at, job_name="a") for number, at in enumerate(times)]
    assert [question.at - NOW + 2700.0 for question in asked(*told)] == [299.0, 301.0, 2000.0, 2700.0]
    assert asked(fires(starts=NOW - 10.0, job_name="a")) == [Question(NOW, ("a",))]
    assert asked() == []


# -- the worker


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def works(tmp_path, engine):
    one = backend(tmp_path, engine)
    yield one
    one.archive.close()


@pytest.fixture
def worker(works):
    one = Worker(works)
    yield one
    one.stop()


def said(archive: Archive) -> list[tuple[str, str]]:
    with archive._reading() as connection:
        rows = connection.exec_driver_sql("select said, report from alerts order by number").fetchall()
    return [(str(text), str(report)) for text, report in rows]


def test_what_waits_is_looked_into_once(works, worker, engine):
    works.archive.accept([fires(number, job_name="a") for number in range(500)], NOW)
    assert worker.round()
    assert worker.round()
    assert engine.asked == [Question(NOW - 300.0, ("a",))]
    assert engine.announced == 1
    assert works.archive.queued() == 0
    [(text, report)] = set(said(works.archive))
    assert text == ""
    assert works.archive.report(report) is not None


def test_an_alert_opens_the_incident_at_once(works, worker):
    works.archive.accept([fires(job_name="a")], NOW)
    worker.round()
    [incident] = works.archive.incidents()
    assert (incident.state, incident.cause) == ("open", "gpu_thermal_throttling")


def test_what_is_over_is_looked_into_by_nobody(works, worker, engine):
    works.archive.accept([msgspec.structs.replace(fires(), status="resolved")], NOW)
    assert worker.round()
    assert engine.asked == []
    assert said(works.archive) == [("resolved", "")]


@pytest.mark.parametrize("error", [SourceError("no answer"), ProblemsError(())], ids=["source", "files"])
def test_a_source_that_is_away_is_asked_again(works, worker, engine, error):
    engine.errors = [error, error]
    works.archive.accept([fires(job_name="a")], NOW)
    assert [worker.round(), worker.round(), worker.round()] == [False, False, True]
    assert works.archive.queued() == 0
    assert len(works.archive.incidents()) == 1


def test_patience_ends(works, worker, engine):
    engine.errors = [SourceError("no answer")] * 3
    works.archive.accept([fires(job_name="a")], NOW)
    assert not worker.round()
    engine.clock += PATIENCE
    assert not worker.round()
    engine.clock += 1.0
    assert worker.round()
    assert said(works.archive) == [("no answer", "")]


def test_one_question_that_fails_holds_up_no_other(works, worker, engine):
    engine.errors = [SourceError("no answer")]
    works.archive.accept([fires(1, starts=NOW - 9000.0, job_name="a"), fires(2, job_name="b")], NOW)
    assert not worker.round()
    assert [question.jobs for question in engine.asked] == [("a",), ("b",)]
    assert [one.labels["job_name"] for one in works.archive.waiting()] == ["a"]


def test_an_error_that_nobody_foresaw_costs_its_question_alone(works, worker, engine):
    engine.errors = [ZeroDivisionError("secret numbers")]
    works.archive.accept([fires(1, starts=NOW - 9000.0, job_name="a"), fires(2, job_name="b")], NOW)
    assert worker.round()
    assert [text for text, _ in said(works.archive)] == ["internal error: ZeroDivisionError", ""]
    assert b'rca_evaluation_failures_total{reason="internal"} 1.0' in works.metrics.text("")[0]


def test_a_job_that_nobody_knows_may_be_a_label_of_something_else(works, worker, engine):
    engine.errors = [UsageError("no such job: 'backup'")]
    works.archive.accept([fires(job_name="backup")], NOW)
    assert worker.round()
    assert engine.asked == [Question(NOW - 300.0, ("backup",)), Question(NOW - 300.0)]
    engine.errors = [UsageError("too early"), UsageError("too early")]
    works.archive.accept([fires(1, starts=1.0, job_name="backup")], NOW)
    assert worker.round()
    assert said(works.archive)[1] == ("too early", "")


def test_an_announcement_that_fails_undoes_nothing(works, engine):
    def announce() -> None:
        raise SourceError("alertmanager is away")

    one = Worker(replace(works, announce=announce))
    works.archive.accept([fires(job_name="a")], NOW)
    assert one.round()
    assert said(works.archive)[0][0] == ""
    one.stop()


def test_two_servers_on_one_database_share_the_work(tmp_path):
    engines = Engine(errors=[SourceError("no answer")] * 2), Engine()
    both = [backend(tmp_path, engine, name=name) for engine, name in zip(engines, ("one", "other"), strict=True)]
    one, other = map(Worker, both)
    both[0].archive.accept([fires(number, job_name="a") for number in range(3)], NOW)
    assert not one.round()
    assert other.round()
    assert engines[1].asked == [], "what one has claimed is left to it"
    both[1].archive.accept([fires(9, job_name="b")], NOW)
    assert other.round()
    assert [question.jobs for question in engines[1].asked] == [("b",)]
    engines[1].clock += LEASE + 1.0
    assert other.round(), "one is dead, it seems"
    assert [question.jobs for question in engines[1].asked] == [("b",), ("a",)]
    engines[0].clock += LEASE + 2.0
    assert one.round()
    assert len(engines[0].asked) == 1
    for worker, works in zip((one, other), both, strict=True):
        worker.stop()
        works.archive.close()


def test_what_opened_an_incident_can_be_looked_at_again(tmp_path):
    works = backend(tmp_path, Engine(seen=b"what was seen"))
    worker = Worker(works)
    works.archive.accept([fires(1, job_name="llama-70b")], NOW)
    assert worker.round()
    [incident] = works.archive.incidents()
    assert works.archive.recording(incident.report) == b"what was seen"
    worker.stop()
    works.archive.close()


def test_what_was_taken_over_meanwhile_is_asked_about_by_one(tmp_path):
    class Slow(Engine):
        def ask(self, question: Question, keep: bool):
            self.clock += 2.0 * LEASE
            other.round()
            return super().ask(question, keep)

    slow, quick = Slow(), Engine(clock=NOW + LEASE + 1.0)
    mine, theirs = backend(tmp_path, slow, name="mine"), backend(tmp_path, quick, name="theirs")
    one, other = Worker(mine), Worker(theirs)
    mine.archive.accept([fires(1, starts=NOW - 9000.0, job_name="a"), fires(2, job_name="b")], NOW)
    assert one.round()
    assert [question.jobs for question in slow.asked] == [("a",)]
    assert [question.jobs for question in quick.asked] == [("a",), ("b",)]
    for worker, works in ((one, mine), (other, theirs)):
        worker.stop()
        works.archive.close()


def test_a_restart_takes_up_what_waits(tmp_path):
    first = Engine(errors=[SourceError("no answer")])
    before = backend(tmp_path, first)
    before.archive.accept([fires(job_name="a")], NOW)
    killed = Worker(before)
    assert not killed.round()
    killed.stop()
    before.archive.close()

    second = Engine()
    after = backend(tmp_path, second)
    worker = Worker(after)
    worker.start()
    wait_until(lambda: after.archive.queued() == 0)
    assert second.asked == [Question(NOW - 300.0, ("a",))]
    assert worker.alive()
    worker.stop()
    assert not worker.alive()
    after.archive.close()


def test_the_thread_wakes_for_what_is_new(works, worker, engine):
    worker.start()
    for number in range(3):
        works.archive.accept([fires(number, job_name="a")], NOW)
        worker.wake()
        wait_until(lambda number=number: len(engine.asked) == number + 1)
    assert threading.active_count() < 10


def test_an_archive_that_is_away_is_tried_again(works, worker, engine):
    works.archive.accept([fires(job_name="a")], NOW)
    with works.archive._writing() as connection:
        connection.exec_driver_sql("alter table alerts rename to away")
    assert not worker.round()
    with works.archive._writing() as connection:
        connection.exec_driver_sql("alter table away rename to alerts")
    assert worker.round()
    assert len(engine.asked) == 1
