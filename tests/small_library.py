"""A library for tests of sources: the shipped entities, and just the signals that a test names."""

from functools import cache

from rca import load, reader
from rca.library import Entities, Library, Rule, Signal


@cache
def entities() -> Entities:
    return reader.read_file(load.shipped() / "entities.yaml", Entities)


def signal(entity: str, *queries: str, **more: object) -> Signal:
    fields = {"summary": "s", "entity": entity, "layer": "physical", "unit": "u", "queries": queries, **more}
    return Signal(**fields)  # type: ignore[arg-type]


def library(rules: dict[str, Rule] | None = None, **signals: Signal) -> Library:
    return Library(signals=signals, entities=entities(), rules=rules or {})
