"""The server: alerts in, incidents and reports out, over HTTP.

`app` is the ASGI application over a `Backend`, `serve` runs it until it is told to stop.
"""

from rca.serve.app import app
from rca.serve.server import serve

__all__ = ["app", "serve"]
