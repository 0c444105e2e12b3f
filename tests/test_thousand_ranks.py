"""Incidents of 1,024 ranks by metrics and logs together: the right rank, GPU or node first in each."""

from pathlib import Path

import pytest

from rca.diagnose import diagnose
from rca.load import load
from rca.model import Window
from rca.sources.scenario import ScenarioSource, read

FILES = sorted((Path(__file__).parents[1] / "scenarios" / "logs").glob("*.yaml"))
LIBRARY = load()


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_where_it_began_is_named_first(path: Path) -> None:
    source = ScenarioSource(path)
    end = source.latest()
    found = diagnose(LIBRARY, source.snapshot(LIBRARY, Window(end - 900.0, end)))
    expect = read(path).expect
    assert expect is not None
    assert (found.status, found.symptom) == (expect.status, expect.symptom)
    sure = [(one.cause, one.entity.labels) for one in found.causes if one.probability >= 0.5]
    assert sure == [(one.cause, one.entity) for one in expect.causes]
    assert len(found.last_words) == (1024 if expect.causes else 0)


def test_there_are_six() -> None:
    assert len(FILES) == 6
