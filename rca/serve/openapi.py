"""The description of the API, OpenAPI 3.1, as data."""

from functools import lru_cache
from typing import cast

import msgspec

from rca import __version__
from rca.incidents import Incident
from rca.messages import TIMES
from rca.model import Report
from rca.serve import shapes
from rca.serve.gate import KINDS, OPEN
from rca.webhook import Body

Json = dict[str, object]
_TEXT: Json = {"type": "string"}
_TIME: Json = {"type": "string", "format": "date-time"}
_MOMENTS: list[Json] = [
    {"enum": ["", "now"]},
    {"pattern": r"^-(?=[0-9])([0-9]{1,4}h)?([0-9]{1,4}m)?([0-9]{1,4}s)?$"},
    {"format": "date-time", "pattern": "^(19[89]|[2-8])"},
]
_WORDS = {
    400: "What was sent cannot be understood.",
    401: "Log in.",
    403: "The request comes from a page of another site.",
    404: "There is no such thing.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    429: "Too many requests.",
    500: "The rules are wrong; the old ones stay.",
    503: "Come again later, what we stand on does not answer or is full.",
}


def _answer(text: str, schema: Json, kind: str = "application/json") -> Json:
    return {"description": text, "content": {kind: {"schema": schema}}}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _data(schema: Json) -> Json:
    """Wrap a schema into the envelope of a success."""
    properties = {"status": {"const": "success"}, "data": schema}
    return {"type": "object", "required": ["status", "data"], "properties": properties}


def _body(name: str) -> Json:
    return {"required": name == "Body", "content": {"application/json": {"schema": _ref(name)}}}


def _list(name: str) -> Json:
    return {"type": "array", "items": _ref(name)}


def _both(*names: str) -> Json:
    return {"allOf": [_ref(name) for name in names]}


def _query(name: str, text: str, schema: Json = _TEXT) -> Json:
    return {"name": name, "in": "query", "description": text, "required": False, "schema": schema}


def _operation(text: str, answers: dict[int, Json], errors: tuple[int, ...], **more: object) -> Json:
    responses = {str(status): answer for status, answer in answers.items()}
    responses |= {str(status): _answer(_WORDS[status], _ref("Error")) for status in errors}
    return {"summary": text, "responses": responses, **more}


_ID = {"name": "id", "in": "path", "required": True, "schema": _TEXT}
_JOB = {**_ID, "name": "job"}
_LOGIN = (401, 429)
_PLAIN = "text/plain"
_REPEATED: Json = {"type": "array", "items": _TEXT}


def _told() -> dict[str, dict[str, Json]]:
    """Describe what is told to us."""
    return {
        "/api/v1/alerts": {
            "get": _operation(
                "List the alerts of incidents that are not over, as Prometheus does.",
                {200: _answer("The alerts.", _data({"properties": {"alerts": _list("Active")}}))}, (*_LOGIN, 503),
            ),
            "post": _operation(
                "Take a delivery of Alertmanager, version 4.",
                {202: _answer("It is stored.", _data(_ref("Received")))}, (400, 401, 403, 408, 413, 503),
                requestBody=_body("Body"),
            ),
        },
        "/api/v1/diagnose": {
            "post": _operation(
                "Diagnose on demand; nothing is kept of it.",
                {200: _answer("The report.", _ref("Report"))}, (400, 401, 403, 408, 413, 429, 503),
                requestBody=_body("Asked"),
            )
        },
    }  # fmt: skip


def _found() -> dict[str, dict[str, Json]]:
    """Describe what we have found."""
    incidents = [
        *(_query(name, f"Only those of this {name}.") for name in ("job", "cause", "layer", "node")),
        _query("state", "Only those in this state.", {"enum": ["", "open", "closed"]}),
        _query("limit", "How many at most.", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}),
    ]
    rules = [
        _query("type", "Rules that record are none of ours.", {"enum": ["alert", "record"]}),
        _query("rule_name[]", "Only rules of these names.", _REPEATED),
        _query("rule_group[]", "Only groups of these names.", _REPEATED),
        _query("exclude_alerts", "Leave out the alerts of rules."),
    ]
    return {
        "/api/v1/incidents": {
            "get": _operation(
                "List incidents, those that were seen last first.",
                {200: _answer("The incidents.", _data(_list("Incident")))}, (400, *_LOGIN, 503), parameters=incidents,
            )
        },
        "/api/v1/incidents/{id}": {
            "get": _operation(
                "Return one incident.",
                {200: _answer("The incident.", _data(_both("Incident", "Judged")))}, (*_LOGIN, 404, 503), parameters=[_ID],
            )
        },
        "/api/v1/reports/{id}": {
            "get": _operation(
                "Return a report that was kept.",
                {200: _answer("The report.", _ref("Report"))}, (*_LOGIN, 404, 503), parameters=[_ID],
            )
        },
        "/api/v1/recordings/{id}": {
            "get": _operation(
                "Return what a report was made of, for rca diagnose --recording.",
                {200: _answer("The recording.", {}, "application/zip")}, (*_LOGIN, 404, 503), parameters=[_ID],
            )
        },
        "/api/v1/events": {
            "get": _operation(
                "Tell, for as long as somebody listens, which version of the incidents is the newest.",
                {200: _answer("Events `incidents`, each with a `version`.", _TEXT, "text/event-stream")}, (*_LOGIN, 503),
            )
        },
        "/api/v1/rules": {
            "get": _operation(
                "List what may be a root cause as Prometheus lists its rules.",
                {200: _answer("The rules.", _data({"properties": {"groups": _list("Group")}}))}, (400, *_LOGIN, 503),
                parameters=rules,
            )
        },
    }  # fmt: skip


def _jobs() -> dict[str, dict[str, Json]]:
    """Describe what we know of jobs."""
    return {
        "/api/v1/jobs": {
            "get": _operation(
                "List jobs, with how far each was last: the ill ones first, then those that were seen last.",
                {200: _answer("The jobs.", _data(_list("Job")))}, (*_LOGIN, 503),
            )
        },
        "/api/v1/jobs/{job}/progress": {
            "get": _operation(
                "Return how far a job was over time, the oldest first; of very many rows, evenly chosen ones.",
                {200: _answer("How far it was.", _data(_list("Progress")))}, (*_LOGIN, 404, 503), parameters=[_JOB],
            )
        },
    }  # fmt: skip


def _ourselves() -> dict[str, dict[str, Json]]:
    """Describe what we say of ourselves."""
    reload = _operation(
        "Read rules and settings again.", {200: _answer("Done.", _TEXT, _PLAIN)}, (401, 403, 429, 500, 503)
    )
    return {
        "/api/v1/openapi.json": {"get": _operation("Describe all this.", {200: _answer("This.", {})}, _LOGIN)},
        "/metrics": {"get": _operation("Our own metrics.", {200: _answer("Metrics.", _TEXT, _PLAIN)}, _LOGIN)},
        "/-/healthy": {"get": _operation("Whether the process runs.", {200: _answer("It does.", _TEXT, _PLAIN)}, ())},
        "/-/ready": {
            "get": _operation(
                "Whether alerts can be stored and are looked into.",
                {200: _answer("They can.", _TEXT, _PLAIN)}, (503,),
            )
        },
        "/-/reload": {"post": reload, "put": reload},
    }  # fmt: skip


def _schemas() -> dict[str, Json]:
    ours = (shapes.Job, shapes.Active, shapes.Group, shapes.Received, shapes.Asked, shapes.Judged)
    types = (Report, Incident, *ours, Body)
    _, found = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    properties = cast("Json", found["Incident"]["properties"])
    for name in TIMES:
        optional = "default" in cast("Json", properties[name])
        properties[name] = {"anyOf": [_TIME, {"type": "null"}]} if optional else _TIME
    cast("Json", found["Body"]["properties"])["version"] = {"enum": ["4", None]}
    cast("Json", found["Asked"]["properties"])["at"] = {"type": "string", "anyOf": _MOMENTS}
    error = {"status": {"const": "error"}, "errorType": {"enum": sorted(KINDS.values())}, "error": _TEXT}
    return {**found, "Error": {"type": "object", "required": sorted(error), "properties": error}}


@lru_cache(maxsize=1)
def document() -> Json:
    """Return the OpenAPI document: every path with what it takes and what it answers."""
    paths = {**_told(), **_found(), **_jobs(), **_ourselves()}
    for path in OPEN:
        paths[path]["get"]["security"] = []
    return {
        "openapi": "3.1.0",
        "info": {"title": "rca", "version": __version__, "description": "Root causes of ill training jobs."},
        "security": [{"bearer": []}, {"basic": []}, {}],
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic"},
            },
        },
    }
