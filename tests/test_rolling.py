"""A store that remembers answers as one that asks for all again would, and asks for less."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from read_once import load

from rca.model import Window
from rca.physics.world import simulate
from rca.sources.assemble import assemble
from rca.sources.rolling import LATE, Memory, Rolling
from rca.sources.scenario import ScenarioStore, read
from rca.sources.series import Block, Matcher, Selector

SCENARIOS = Path(__file__).parents[1] / "scenarios"
UP = Selector(("up",), (Matcher("job", "!=", ""),), 0.0, 600.0)


class Growing:
    """A store of three series, of which one ends and one begins, that notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Selector] = []

    def names(self, start: float, end: float) -> frozenset[str]:
        return frozenset({"up"})

    def warnings(self) -> tuple[str, ...]:
        return ("a warning",)

    def evaluate(self, query: str, times: np.ndarray) -> Block:
        return block({})

    def fetch(self, selectors: Sequence[Selector]) -> Iterator[tuple[int, Block]]:
        for index, one in reversed(list(enumerate(selectors))):
            self.asked.append(one)
            lives = {"a": (0.0, 1e4), "b": (0.0, 700.0), "c": (900.0, 1e4)}
            yield (
                index,
                block({name: _times(max(begin, one.start), min(end, one.end)) for name, (begin, end) in lives.items()}),
            )


def _times(start: float, end: float) -> np.ndarray:
    return np.arange(np.ceil(start / 15.0) * 15.0, end + 1e-9, 15.0)


def block(series: dict[str, np.ndarray]) -> Block:
    """Return a block whose values are their times."""
    filled = {name: times for name, times in series.items() if len(times)}
    times = np.concatenate([np.zeros(0), *filled.values()])
    offsets = np.cumsum([0, *map(len, filled.values())]).astype(np.int64)
    return Block([{"__name__": "up", "instance": name} for name in filled], offsets, times, times.copy())


def told(one: Block) -> dict[str, list[float]]:
    """Return the samples of a block by series."""
    return {
        labels["instance"]: one.values[one.offsets[row] : one.offsets[row + 1]].tolist()
        for row, labels in enumerate(one.labels)
    }


def test_what_is_remembered_is_what_would_be_asked_for() -> None:
    store, memory = Growing(), Memory()
    for end in (600.0, 630.0, 690.0, 720.0, 960.0, 1500.0):
        wanted = UP._replace(start=end - 600.0, end=end)
        [(_, rolled)] = Rolling(store, memory).fetch([wanted])
        [(_, asked)] = Growing().fetch([wanted])
        assert told(rolled) == told(asked), end
    assert [one.start for one in store.asked[1:5]] == [600.0 - LATE, 630.0 - LATE, 690.0 - LATE, 720.0 - LATE]


@pytest.mark.parametrize(
    "then", [(100.0, 400.0), (2000.0, 2600.0), (0.0, 500.0)], ids=["earlier start", "later than all", "earlier end"]
)
def test_where_too_little_is_known_all_is_asked_for(then: tuple[float, float]) -> None:
    store, memory = Growing(), Memory()
    list(Rolling(store, memory).fetch([UP._replace(start=200.0, end=700.0)]))
    wanted = UP._replace(start=then[0], end=then[1])
    [(_, rolled)] = Rolling(store, memory).fetch([wanted])
    assert store.asked[-1] == wanted
    assert told(rolled) == told(next(Growing().fetch([wanted]))[1])


def test_the_memory_forgets_what_nobody_asks_for() -> None:
    memory = Memory()
    list(Rolling(Growing(), memory).fetch([UP]))
    memory.tidy(300.0)
    assert len(memory.kept) == 1
    memory.tidy(601.0)
    assert not memory.kept


def test_a_diagnosis_sees_the_same() -> None:
    world, library, memory = simulate(read(SCENARIOS / "cooling_fault.yaml")), load().in_use(), Memory()
    for back in (300.0, 270.0, 120.0, 0.0):
        window = Window(world.end - back - 900.0, world.end - back)
        rolled = assemble(Rolling(ScenarioStore(world), memory), library, window)
        plain = assemble(ScenarioStore(world), library, window)
        assert rolled.warnings == plain.warnings
        for name, one in plain.measurements.items():
            other = rolled.measurements[name]
            np.testing.assert_array_equal(one.window, other.window, err_msg=name)
            assert (one.before is None) == (other.before is None)
            if one.before is not None and other.before is not None:
                np.testing.assert_array_equal(one.before, other.before, err_msg=name)
