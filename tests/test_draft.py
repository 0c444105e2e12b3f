"""Work that keeps pace with a store: the snapshot is the same in whatever order the answers come."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import END, MemoryStore, counter, series, ticks
from small_library import library, read, signal

from rca.library import Derived
from rca.model import Snapshot, Window
from rca.sources.asking import answers, questions
from rca.sources.draft import Desk
from rca.sources.series import Block, Selector
from rca.sources.topology import Topology

LIBRARY = library(
    a=signal("gpu", "temp"),
    b=signal("gpu", "power", valid=(0, 100)),
    c=signal("rank", "rate(steps[1m])"),
    d=signal("rank", "rate(busy[1m]) / rate(steps[1m])"),
    e=signal("node", "load"),
    f=signal("nic", "node_infiniband_rate"),
    g=signal("nic", "node_infiniband_state_id"),
    h=signal("job", queries=(), derived=Derived(of="c", by="sum")),
)


class Arriving(MemoryStore):
    """A store whose answers come in a given order, the further ones after these."""

    def __init__(self, held: Sequence[object], order: Sequence[str]) -> None:
        super().__init__(held)
        self.order = list(order)

    def fetch(self, selectors: Sequence[Selector]) -> Iterator[tuple[int, Block]]:
        place = {name: index for index, name in enumerate(self.order)}
        for index in sorted(range(len(selectors)), key=lambda at: place.get(selectors[at].names[0], len(place))):
            yield index, self._block(selectors[index])


def held(more: Sequence[str] = ()) -> list[object]:
    """Return the series of two nodes; `more` names metrics that tell of a third."""
    found = []
    for node in ("n0", "n1", "n2"):
        shown = [
            series("temp", {"Hostname": node, "gpu": "0", "UUID": f"GPU-{node}"}, ticks(50.0)),
            series("power", {"Hostname": node, "gpu": "0", "UUID": f"GPU-{node}"}, ticks([1.0] * 60 + [700.0])),
            series("steps", {"job_id": "j", "rank": node[1]}, counter(0.5)),
            series("busy", {"job_id": "j", "rank": node[1]}, counter(0.25)),
            series("load", {"instance": f"{node}:9100"}, ticks(3.0, seconds=4000.0)),
            series("node_infiniband_rate", {"instance": f"{node}:9100", "device": "mlx5_0"}, ticks(4.0)),
            series("node_infiniband_state_id", {"instance": f"{node}:9100", "device": "mlx5_0"}, ticks(4.0)),
            series("train_rank_info", {"job_id": "j", "rank": node[1], "node": node, "gpu": "0"}, ticks(1.0)),
        ]
        found += [one for one in shown if node != "n2" or one[0]["__name__"] in more]
    return found


NAMES = sorted({one[0]["__name__"] for one in held()})


def described(snapshot: Snapshot) -> object:
    tables = {kind: {name: list(column) for name, column in t.columns.items()} for kind, t in snapshot.tables.items()}
    measured = {
        name: (one.window.tobytes(), None if one.before is None else one.before.tobytes(), one.query, list(one.origin))
        for name, one in snapshot.measurements.items()
    }
    return tables, measured, snapshot.warnings, dict(snapshot.absent), snapshot.step, snapshot.before_times.tolist()


@settings(deadline=None, max_examples=60)
@given(st.permutations(NAMES), st.lists(st.sampled_from(NAMES), unique=True))
def test_the_order_of_answers_changes_nothing(order, more):
    given = held(more)
    assert described(read(Arriving(given, order), LIBRARY)) == described(read(Arriving(given, NAMES), LIBRARY))


@pytest.mark.parametrize("last", ["power", "busy"])
def test_a_late_answer_that_names_somebody_new_is_heeded(last):
    snapshot = read(Arriving(held([last]), [name for name in NAMES if name != last]), LIBRARY)
    kind, name = ("gpu", "b") if last == "power" else ("rank", "d")
    assert len(snapshot.tables[kind]) == 3
    assert snapshot.measurements[name].window.shape[0] == 3
    assert np.isnan(snapshot.measurements["a"].window[2:]).all()


def test_what_has_arrived_is_worked_out_before_the_last_answer():
    store, window = Arriving(held(), NAMES), Window(END - 900, END)
    asked = questions(LIBRARY, store.names(0, END), window, {})
    desk = Desk(LIBRARY, asked, window, Topology(), None)
    drafts = []
    for number, one in answers(Arriving(held(), []), asked, END, desk.readings.leading):
        desk.add(number, one)
        drafts.append(desk.draft)
    begun = len(desk.readings.leading) - 1
    assert drafts[:begun] == [None] * begun
    assert drafts[begun:] == [desk.finished()] * (len(drafts) - begun)
    assert begun < len(drafts) - 1
