"""Who is told of an incident, when, and in which words."""

import json
from pathlib import Path

import msgspec
import pytest
from test_incidents import HEALTHY, ILL, START, live, ticks

from rca.config import Keeping, from_file
from rca.errors import ProblemsError
from rca.messages import Due, Receiver, Told, body, due, plain, receivers, slack

[OPEN] = live(ticks(ILL, 0, 300))
[CLOSED] = live(ticks(ILL, 0, 300) + ticks(HEALTHY, 330, 660))
[PENDING] = live(ticks(ILL, 0, 30))
STRANGE = msgspec.structs.replace(
    OPEN, id="strange", cause="unknown", first=OPEN.first - 100.0, opened=OPEN.opened - 100.0, last=OPEN.last - 30.0
)
PAGES = "http://rca.example"
HOSTILE = "<!channel> & <http://evil|click> *b* `c`"


def events(told: dict[str, Told], *incidents, at: float = START) -> list[tuple[str, str]]:
    return [(one.incident.id, one.event) for one in due(incidents, told, at)]


def test_each_opening_and_each_end_is_due_once() -> None:
    assert events({}, OPEN, PENDING) == [(OPEN.id, "opened")]
    assert events({OPEN.id: Told("open:0")}, OPEN) == []
    assert events({OPEN.id: Told("open:0")}, CLOSED) == [(CLOSED.id, "resolved")]
    assert events({OPEN.id: Told("closed:0")}, CLOSED) == []
    again = msgspec.structs.replace(OPEN, flaps=1)
    assert events({OPEN.id: Told("closed:0")}, again) == [(OPEN.id, "opened")]
    assert next(due([again], {}, START)).name != next(due([OPEN], {}, START)).name


def test_what_was_over_before_anybody_was_told_of_anything_is_not_due() -> None:
    assert events({}, CLOSED) == []
    assert events({CLOSED.id: Told("", 0.0, 3)}, CLOSED) == [(CLOSED.id, "resolved")]


def test_who_is_being_told_is_told_by_nobody_else() -> None:
    assert events({OPEN.id: Told("", START + 60.0, 1)}, OPEN, at=START) == []
    assert events({OPEN.id: Told("", START + 60.0, 1)}, OPEN, at=START + 60.0) == [(OPEN.id, "opened")]


def test_another_cause_of_the_same_trouble_is_a_change() -> None:
    told = {STRANGE.id: Told("open:0")}
    assert events(told, STRANGE, OPEN) == [(OPEN.id, "changed")]
    [message] = due([STRANGE, OPEN], told, START)
    assert message.instead_of == (STRANGE,)
    assert plain(message, "").instead_of[0].cause == "unknown"
    assert "Instead of: unknown on" in str(slack(message, ""))
    beside = msgspec.structs.replace(STRANGE, last=OPEN.last)
    assert events(told, beside, OPEN) == [(OPEN.id, "opened")], "both are named: it is one more"
    elsewhere = msgspec.structs.replace(STRANGE, job="other")
    assert events(told, elsewhere, OPEN) == [(OPEN.id, "opened")]
    assert events({OPEN.id: Told("open:0")}, STRANGE, OPEN) == [(STRANGE.id, "opened")]


def test_a_webhook_gets_the_incident_as_the_api_has_it() -> None:
    told = json.loads(body(Due(OPEN, "opened"), Receiver("webhook", ""), PAGES))
    assert set(told) == {"schema", "message", "event", "page", "instead_of", "incident"}
    assert (told["schema"], told["event"], told["instead_of"]) == ("rca.incident/v1", "opened", [])
    assert told["page"] == f"http://rca.example/incidents/{OPEN.id}"
    assert (told["incident"]["id"], told["incident"]["opened"]) == (OPEN.id, "2026-03-01T14:06:00Z")
    assert told["incident"]["closed"] is None
    assert len(told["message"]) == 16


def test_slack_gets_a_text_and_a_block() -> None:
    told = json.loads(body(Due(OPEN, "opened"), Receiver("slack", ""), PAGES))
    assert set(told) == {"text", "blocks"}
    [section] = told["blocks"]
    assert (section["type"], section["text"]["type"]) == ("section", "mrkdwn")
    text = section["text"]["text"]
    assert told["text"].startswith("Root cause: ")
    assert text.startswith(f"*{told['text']}*\nJob llama-70b\nprobability 94 %")
    assert f"<http://rca.example/incidents/{OPEN.id}|incident>" in text
    over = slack(Due(CLOSED, "resolved"), "")
    assert str(over["text"]).startswith("Resolved: ")
    assert "Move the job off the node" not in str(over)


def test_no_label_speaks_to_slack() -> None:
    hostile = msgspec.structs.replace(OPEN, job=HOSTILE, summary=HOSTILE, chain=[HOSTILE * 500])
    told = slack(Due(hostile, "opened"), PAGES)
    text = told["blocks"][0]["text"]["text"]
    assert len(text) <= 3000
    assert "<!channel>" not in str(told)
    assert "<http://evil" not in str(told)


def test_an_address_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "slack").write_text("https://hooks.slack.com/services/T/B/secret\n")
    (tmp_path / "rca.yaml").write_text("incidents: {webhook: 'http://hook.example/a?b=c', slack_file: slack}\n")
    keeping = from_file(tmp_path / "rca.yaml").incidents
    assert receivers(keeping) == [
        Receiver("webhook", "http://hook.example/a?b=c"),
        Receiver("slack", "https://hooks.slack.com/services/T/B/secret"),
    ]
    assert "hook.example" not in repr(keeping)
    assert receivers(Keeping()) == []
    (tmp_path / "slack").write_text("hooks.slack.com/services/T/B/secret\n")
    with pytest.raises(ProblemsError, match="the address of the Slack webhook is none") as caught:
        receivers(keeping)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("webhook: hook/secret", "the address of the webhook is none"),
        ("webhook: 'http://x:99999/secret'", "the address of the webhook is none"),
        ("{webhook: 'http://x', webhook_file: y}", "are both set"),
    ],
)
def test_an_address_that_is_none_is_said_without_it(tmp_path: Path, written: str, said: str) -> None:
    (tmp_path / "rca.yaml").write_text(f"incidents: {written if written[0] == '{' else '{' + written + '}'}\n")
    with pytest.raises(ProblemsError, match=said) as caught:
        from_file(tmp_path / "rca.yaml")
    assert "secret" not in str(caught.value)
