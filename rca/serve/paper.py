"""Pages as answers: a template filled, under a policy that lets a browser fetch nothing from anybody else."""

from functools import partial

from jinja2 import Template
from starlette.requests import Request
from starlette.responses import Response

from rca.plain import visible
from rca.render import html
from rca.serve.gate import RefusalError

POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {"Content-Security-Policy": POLICY, "Referrer-Policy": "same-origin", "Cache-Control": "no-store"}
_PROGRAMS = ("/api/", "/-/", "/metrics", "/openapi")

sheet = partial(Response, media_type="text/html", headers=_HEADERS)


def template(name: str) -> Template:
    """Return the template of a page."""
    return html.environment().get_template(name)


def refusal(request: Request, refused: RefusalError) -> Response:
    """Return why a request is not served: to people as a page, to programs in Prometheus' envelope."""
    answer = refused.response()
    path = str(request.scope["path"])
    if path.startswith(_PROGRAMS) or "text/html" not in request.headers.get("accept", ""):
        return answer
    root = "../" * (request.scope.get("raw_path", path.encode()).count(b"/") - 1)
    shown = sheet(
        template("refused.html").render(root=root, status=refused.status, text=visible(refused.text)), refused.status
    )
    for name in ("Retry-After", "WWW-Authenticate"):
        if name in answer.headers:
            shown.headers[name] = answer.headers[name]
    return shown
