"""Series in memory as a store, and several stores as one."""

import numpy as np
import pytest

from rca.errors import SourceError
from rca.sources.blocks import nothing
from rca.sources.kept import Kept, Series, Several
from rca.sources.series import Block, Matcher, Selector


def series(name: str, times: list[float], values: list[float] | None = None, **labels: str) -> Series:
    numbers = np.array(times if values is None else values, dtype=float)
    return Series({"__name__": name, **labels}, np.array(times, dtype=float), numbers)


def asked(
    store: Kept | Several, *names: str, matchers: tuple[Matcher, ...] = (), start: float = 0, end: float = 100
) -> Block:
    [(_, block)] = store.fetch([Selector(names, matchers, start, end)])
    return block


def test_a_selector_finds_its_series_within_its_times():
    kept = Kept([series("a", [10, 20, 30], gpu="0"), series("a", [40], gpu="1"), series("b", [20])], "here")
    block = asked(kept, "a", "b", start=15, end=30)
    assert [labels["__name__"] for labels in block.labels] == ["a", "b"]
    assert block.offsets.tolist() == [0, 2, 3]
    assert block.times.tolist() == [20, 30, 20]
    assert asked(kept, "a", matchers=(Matcher("gpu", "=~", "[1-9]"),)).times.tolist() == [40]
    assert asked(kept, "c").offsets.tolist() == [0]


def test_names_are_those_of_the_times_asked_for():
    kept = Kept([series("a", [10]), series("b", [20, 90]), series("never", [])], "here")
    assert kept.names(15, 30) == {"b"}
    assert kept.names(0, 100) == {"a", "b"}
    assert kept.extent() == (10, 90)
    assert Kept((), "here").extent() is None


def test_equal_labels_are_one_series_in_the_order_of_time():
    kept = Kept([series("a", [30, 40], gpu="0"), series("a", [10, 30], [1, 2], gpu="0")], "two files")
    block = asked(kept, "a")
    assert (block.times.tolist(), block.values.tolist()) == ([10, 30, 40], [1, 2, 40])


def test_what_is_nobodys_can_be_given_a_job():
    kept = Kept([series("a", [1], gpu="0"), series("b", [1], job_id="default"), series("c", [1], job_id="x")], "here")
    assert kept.nobodys()
    named = kept.of_job("llama")
    assert [asked(named, name).labels[0].get("job_id") for name in "abc"] == ["llama", "llama", "x"]
    assert "job_id" not in asked(kept, "a").labels[0]
    assert named.place == "here"
    assert not named.nobodys()


class Server(Kept):
    """A store that can evaluate, and answers in its own order."""

    def fetch(self, selectors):
        yield from reversed(list(super().fetch(selectors)))

    def evaluate(self, query, times):
        return nothing()


def test_several_stores_are_one():
    files = Kept([series("a", [10], gpu="0"), series("x", [5])], "files", ["3 names are not read"])
    server = Server([series("a", [10, 20], [9, 9], gpu="0"), series("a", [10], gpu="1")], "server", ["slow"])
    both = Several([files, server], ["told before"])
    assert both.names(0, 100) == {"a", "x"}
    assert both.warnings() == ("told before", "3 names are not read", "slow")
    selectors = [Selector((name,), (), 0, 100) for name in ("a", "x", "nowhere")]
    blocks = dict(both.fetch(selectors))
    assert list(blocks) != sorted(blocks), "answers come as the last store gives them"
    assert blocks[0].offsets.tolist() == [0, 2, 3]
    assert blocks[0].values.tolist() == [9, 9, 10], "of one moment the last store's sample stays"
    assert blocks[1].times.tolist() == [5]
    assert len(blocks[2].labels) == 0


def test_the_one_that_has_a_server_evaluates():
    files, server = Kept((), "files"), Server((), "server")
    assert len(Several([files, server]).evaluate("up", np.zeros(1)).labels) == 0
    assert len(Several([server, files]).evaluate("up", np.zeros(1)).labels) == 0
    with pytest.raises(SourceError, match="files: cannot evaluate 'up', there is no server behind it"):
        Several([files, files]).evaluate("up", np.zeros(1))
