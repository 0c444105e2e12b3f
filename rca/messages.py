"""Messages about incidents for a plain webhook and for Slack: who gets them, when one is due, and what it says.

A receiver is told once when an incident opens, when it is over, and when what ails a job turns out to be something else.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from rca import notify
from rca.config import Keeping, check_address, secret
from rca.errors import Problem, ProblemsError
from rca.incidents import Incident
from rca.model import EntityRef, Record
from rca.plain import stamp

Event: TypeAlias = Literal["opened", "changed", "resolved"]
TIMES = ("since", "first", "last", "opened", "well", "closed")
"""Fields of an incident that hold a time."""
_LONGEST = 2900
"""Letters of a section: Slack takes 3,000."""
_WORDS: Mapping[Event, str] = {"opened": "Root cause", "changed": "Root cause changed", "resolved": "Resolved"}


class Receiver(NamedTuple):
    """Who is told, under a name that stays when the address changes; the address may be a secret."""

    name: Literal["webhook", "slack"]
    url: str


class Told(NamedTuple):
    """What a receiver has been told of an incident (empty: nothing), until when nobody else may tell it (unix seconds),
    and how often that was tried."""

    said: str = ""
    until: float = 0.0
    tries: int = 0


class Due(NamedTuple):
    """A message that is due: what it is about, and the incidents whose place it takes."""

    incident: Incident
    event: Event
    instead_of: tuple[Incident, ...] = ()

    @property
    def saying(self) -> str:
        """Return what the receiver knows when it has been told."""
        return f"{self.incident.state}:{self.incident.flaps}"

    @property
    def name(self) -> str:
        """Return what is the same whenever this message is sent again."""
        return hashlib.sha256(f"{self.incident.id}\n{self.saying}".encode()).hexdigest()[:16]


class Former(Record, frozen=True, kw_only=True):
    """An incident whose place another one takes."""

    id: str
    cause: str
    entity: EntityRef


class Message(Record, frozen=True, kw_only=True):
    """What a webhook gets: `rca.incident/v1`. Fields may be added, never renamed; `message` is the same in repetitions."""

    schema: str = "rca.incident/v1"
    message: str
    event: Event
    page: str
    instead_of: list[Former]
    incident: dict[str, object]


def receivers(keeping: Keeping) -> list[Receiver]:
    """Return who is to be told; raise ProblemsError where a file holds no address."""
    found = [Receiver("webhook", keeping.webhook)] if keeping.webhook else []
    if keeping.webhook_file:
        found.append(Receiver("webhook", _address(keeping.webhook_file, "the address of the webhook")))
    if keeping.slack_file:
        found.append(Receiver("slack", _address(keeping.slack_file, "the address of the Slack webhook")))
    return found


def _address(path: str, what: str) -> str:
    url = secret(path, what)
    try:
        check_address(url)
    except ValueError as error:
        raise ProblemsError((Problem(path, f"{what} is none, write https:// and all that follows"),)) from error
    return url


def due(incidents: Sequence[Incident], told: Mapping[str, Told], at: float) -> Iterator[Due]:
    """Yield what a receiver has to be told, the oldest incident first; what was over before anybody told of it is not."""
    for one in sorted(incidents, key=lambda one: (one.opened or 0.0, one.id)):
        known = told.get(one.id)
        if one.opened is None or (known is None and one.state == "closed"):
            continue
        former = _replaced(one, incidents, told) if one.state == "open" else ()
        message = Due(one, "resolved" if one.state == "closed" else "changed" if former else "opened", former)
        if known is None or (known.said != message.saying and known.until <= at):
            yield message


def _replaced(one: Incident, incidents: Sequence[Incident], told: Mapping[str, Told]) -> tuple[Incident, ...]:
    """Return the incidents of the same job that were told of, and that the reports which name this one name no more."""
    return tuple(
        other
        for other in incidents
        if other.job == one.job != ""
        and other.id != one.id
        and told.get(other.id, Told()).said.startswith("open:")
        and other.last < one.last
        and (other.opened or 0.0) <= (one.opened or 0.0)
    )


def incident(one: Incident) -> dict[str, object]:
    """Return an incident with its times as RFC 3339, as reports have them."""
    fields = msgspec.structs.asdict(one)
    return fields | {name: stamp(fields[name]) for name in TIMES if fields[name] is not None}


def body(message: Due, receiver: Receiver, pages: str) -> bytes:
    """Write a message as a receiver takes it; `pages` is the address of our pages, for links."""
    return msgspec.json.encode(slack(message, pages) if receiver.name == "slack" else plain(message, pages))


def plain(message: Due, pages: str) -> Message:
    """Write a message for a plain webhook."""
    return Message(
        message=message.name,
        event=message.event,
        page=_texts(message.incident, pages).get("page", ""),
        instead_of=[Former(id=one.id, cause=one.cause, entity=one.entity) for one in message.instead_of],
        incident=incident(message.incident),
    )


def slack(message: Due, pages: str) -> dict[str, object]:
    """Write a message for an incoming webhook of Slack: `text` is what a notification shows, `blocks` what a channel does.

    The format is that of https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks and of its blocks.
    """
    texts = _texts(message.incident, pages)
    title = " ".join(f"{_WORDS[message.event]}: {texts['summary']}".split())
    job = [f"Job {message.incident.job}"] if message.incident.job else []
    former = [f"Instead of: {one.cause} on {one.entity}" for one in message.instead_of]
    more = [texts["chain"]] if texts.get("chain") and message.event != "resolved" else []
    do = [texts["action"]] if message.event != "resolved" else []
    links = [_link(texts.get(name, ""), word) for name, word in (("page", "incident"), ("runbook_url", "runbook"))]
    lines = [*map(escaped, [*job, *former, texts["description"], *more, *do]), " | ".join(filter(None, links))]
    told = "\n".join(filter(None, [f"*{escaped(title)[: _LONGEST // 2]}*", *lines]))[:_LONGEST]
    section = {"type": "section", "text": {"type": "mrkdwn", "text": told, "verbatim": True}}
    return {"text": escaped(title)[:_LONGEST], "blocks": [section]}


def escaped(text: str) -> str:
    """Write text so that Slack reads no command in it.

    >>> escaped("<!channel> a & b")
    '&lt;!channel&gt; a &amp; b'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _link(url: str, word: str) -> str:
    return f"<{escaped(url).replace('|', '%7C')}|{word}>" if url.startswith(("http://", "https://")) else ""


def _texts(one: Incident, pages: str) -> dict[str, str]:
    """Return what is said of an incident in words."""
    return notify.alerts(one, one.last, 0.0, pages)[0].annotations
