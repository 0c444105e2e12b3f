"""Fixtures of the tests that need real servers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import servers

Start = Callable[..., str]


@pytest.fixture(scope="session")
def start_prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Give `start(openmetrics text or file, flags=...)`, which runs a Prometheus until the session ends: its URL."""
    with ExitStack() as stack:

        def start(openmetrics: str | Path | None = None, flags: Sequence[str] = (), scheme: str = "http") -> str:
            folder = tmp_path_factory.mktemp("prometheus")
            if isinstance(openmetrics, str):
                written = folder / "samples.om"
                written.write_text(openmetrics)
                openmetrics = written
            return stack.enter_context(servers.prometheus(folder, openmetrics, flags, scheme=scheme))

        yield start
