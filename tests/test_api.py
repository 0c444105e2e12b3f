"""Every operation of the API does what its description says, whatever is sent."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from own_server import NOW, Engine, backend, report, running
from read_once import load
from test_serve import PACE

from rca.config import Serving
from rca.serve.openapi import document

EXAMPLES = 20
schema = schemathesis.openapi.from_dict(document()).exclude(path="/api/v1/events")  # which never ends


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("api")
    works = backend(folder, Engine(), load())
    works.archive.absorb(report(NOW), PACE)
    works.archive.progressed(report(NOW).progress)
    with running(works, Serving(max_rate=1_000_000)) as base:
        yield base


@schema.parametrize()
@settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_an_operation_does_what_is_said_of_it(case: schemathesis.Case, url: str) -> None:
    case.call_and_validate(base_url=url, timeout=30)
