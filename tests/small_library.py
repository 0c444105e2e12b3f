"""A library for tests of sources: the shipped entities, and just the signals that a test names; and how to read it."""

from functools import cache

from memory_store import END, MemoryStore

from rca import load, reader
from rca.library import Entities, Library, Rule, Signal
from rca.model import Measurement, Snapshot, Window
from rca.sources.assemble import Deployment, assemble

NODE = {"instance": "n0:9100"}


@cache
def entities() -> Entities:
    return reader.read_file(load.shipped() / "entities.yaml", Entities)


def signal(entity: str, *queries: str, **more: object) -> Signal:
    fields = {"summary": "s", "entity": entity, "layer": "physical", "unit": "u", "queries": queries, **more}
    return Signal(**fields)


def library(rules: dict[str, Rule] | None = None, **signals: Signal) -> Library:
    return Library(signals=signals, entities=entities(), rules=rules or {})


def read(
    store: MemoryStore,
    given: Library,
    *,
    seconds: float = 900.0,
    baseline: float = 3600.0,
    deployment: Deployment | None = None,
) -> Snapshot:
    return assemble(store, given, Window(END - seconds, END, baseline), deployment)


def one(snapshot: Snapshot, name: str = "x") -> Measurement:
    assert name in snapshot.measurements, snapshot.absent
    return snapshot.measurements[name]
