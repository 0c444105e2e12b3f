"""Derived signals: reductions through the tables, and arithmetic with holes."""

import numpy as np
import pytest
from memory_store import MemoryStore, series, ticks, without
from small_library import NODE, library, read, signal
from test_identity import info

from rca.library import Derived
from rca.model import Measurement

RANKS = [info(rank) for rank in range(8)]


def ranked(name: str, values: list[float]) -> list[object]:
    """Return a series of each of eight ranks: tensor, pipeline and data parallelism of two each."""
    return [series(name, {"job_id": "j", "rank": str(rank)}, ticks(value)) for rank, value in enumerate(values)]


def reduced(
    entity: str, by: str, *, of: str = "x", values: tuple[float, ...] = (1, 2, 3, 4, 5, 6, 7, 80)
) -> list[float]:
    given = library(
        x=signal("rank", "w"),
        g=signal("gpu", "t"),
        h=signal("node", "load"),
        d=signal(entity, derived=Derived(of=of, by=by)),
    )
    held = [*RANKS, *ranked("w", list(values))]
    held += [
        series("t", {"node": f"n{n // 2}", "gpu": str(n % 2)}, ticks(float(value))) for n, value in enumerate(values)
    ]
    held += [series("load", {"instance": f"n{n}:1"}, ticks(float(n))) for n in range(4)]
    snapshot = read(MemoryStore(held), given)
    assert "d" in snapshot.measurements, snapshot.absent
    return snapshot.measurements["d"].window[:, -1].tolist()


@pytest.mark.parametrize(
    ("entity", "by", "expected"),
    [
        ("cell", "max", [2, 4, 6, 80]),
        ("stage", "min", [1, 3]),
        ("replica", "sum", [10, 98]),
        ("job", "median", [4.5]),
        ("job", "mean", [13.5]),
        ("node", "max", [2, 4, 6, 80]),
        ("gpu", "max", [1, 2, 3, 4, 5, 6, 7, 80]),
        ("group", "min", [1, 3, 2, 4, 1, 5, 2, 6, 1, 5, 3, 7]),
    ],
)
def test_reduce_ranks(entity: str, by: str, expected: list[float]) -> None:
    assert reduced(entity, by) == expected


@pytest.mark.parametrize(
    ("entity", "expected"),
    [
        ("node", [2, 4, 6, 80]),
        ("cell", [2, 4, 6, 80]),
        ("replica", [4, 80]),
        ("stage", [6, 80]),
        ("job", [80]),
    ],
)
def test_reduce_gpus(entity: str, expected: list[float]) -> None:
    assert reduced(entity, "max", of="g") == expected


@pytest.mark.parametrize(("entity", "expected"), [("replica", [1, 3]), ("stage", [2, 3]), ("job", [3])])
def test_reduce_nodes_through_their_gpus(entity: str, expected: list[float]) -> None:
    assert reduced(entity, "max", of="h") == expected


def derived(how: Derived, **values: list[tuple[float, float]]) -> Measurement:
    given = library(**{name: signal("node", name) for name in values}, d=signal("node", derived=how))
    given = library(**given.signals, gone=signal("node", "gone"))
    snapshot = read(MemoryStore([series(name, NODE, samples) for name, samples in values.items()]), given)
    assert "d" in snapshot.measurements, snapshot.absent
    return snapshot.measurements["d"]


def test_arithmetic() -> None:
    both = {"a": ticks(6.0), "b": ticks(4.0)}
    assert np.allclose(derived(Derived(product=("a", "b")), **both).window, 24.0)
    assert np.allclose(derived(Derived(ratio=("a", "b")), **both).window, 1.5)
    assert np.allclose(derived(Derived(sum=("a", "b")), **both).window, 10.0)
    assert np.allclose(derived(Derived(sum=("a", "a"), difference=("b",)), **both).window, 8.0)
    assert np.allclose(derived(Derived(sum=("a",), plus=("b", "b")), **both).window, 14.0)


def test_a_missing_summand_is_missed_and_a_missing_subtrahend_is_nothing() -> None:
    holes = {"a": without(ticks(6.0), 30.0), "b": without(ticks(4.0), 60.0)}
    found = derived(Derived(sum=("a",), difference=("b",)), **holes).window[0]
    assert np.flatnonzero(np.isnan(found)).tolist() == [58]
    assert found[56] == 6.0
    assert found[57] == 2.0
    absent = derived(Derived(sum=("a",), difference=("gone",)), **holes)
    assert absent.window[0, -1] == 6.0
    assert derived(Derived(sum=("a",), plus=("gone",)), **holes).window[0, -1] == 6.0


def test_division_by_zero_is_no_sample() -> None:
    given = library(a=signal("node", "a"), b=signal("node", "b"), d=signal("node", derived=Derived(ratio=("a", "b"))))
    snapshot = read(MemoryStore([series("a", NODE, ticks(1.0)), series("b", NODE, ticks(0.0))]), given)
    assert np.isnan(snapshot.measurements["d"].window).all()


def test_a_coarser_signal_is_read_through_the_labels_that_it_shares() -> None:
    given = library(
        x=signal("rank", "w"), y=signal("node", "load"), d=signal("rank", derived=Derived(product=("x", "y")))
    )
    held = [
        *RANKS,
        *ranked("w", [1.0] * 8),
        *(series("load", {"instance": f"n{n}:1"}, ticks(float(n))) for n in range(4)),
    ]
    found = read(MemoryStore(held), given).measurements["d"]
    assert found.window[:, -1].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_what_nothing_joins_is_absent() -> None:
    given = library(
        x=signal("node", "load"),
        d=signal("cell", derived=Derived(of="x", by="max")),
        e=signal("job", derived=Derived(sum=("x",))),
    )
    absent = read(MemoryStore([series("load", NODE, ticks(1.0))]), given).absent
    assert absent == {
        "d": "needs a cell for each node, and none is known",
        "e": "needs x, which no label joins to a job",
    }
