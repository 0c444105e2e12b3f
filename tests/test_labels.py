"""Label sets: what was written comes back, and equal sets have equal numbers whatever the metric."""

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rca.sources.labels import LabelSets, Pool, metric_names, taken

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ['"__name__":"x",', "__name__", '\\"', "\n", "a,b", '{"']
)
NAMES = st.sampled_from(["A", "a", "job", "node", "zone", "_"])
SETS = st.lists(
    st.tuples(st.sampled_from(["", "up", "temp", 'u"p']), st.dictionaries(NAMES, TEXT, max_size=4)), max_size=6
)


def labelled(name: str, labels: dict[str, str]) -> dict[str, str]:
    return {"__name__": name, **labels} if name else labels


@settings(deadline=None)
@given(SETS, st.booleans(), st.sampled_from([(",", ":"), (", ", ": ")]))
def test_what_is_written_comes_back(sets, ordered, separators):
    written = [labelled(*one) for one in sets]
    texts = [json.dumps(one, sort_keys=ordered, separators=separators).encode() for one in written]
    found = Pool().read(texts)
    assert list(found) == written
    assert list(metric_names(found)) == [name for name, _ in sets]


@settings(deadline=None)
@given(SETS, st.randoms(use_true_random=False))
def test_numbers_tell_sets_apart_and_nothing_else(sets, random):
    pool = Pool()
    texts = []
    for one in sets:
        items = list(labelled(*one).items())
        random.shuffle(items)
        texts.append(json.dumps(dict(items)).encode())
    who = pool.read(texts).who.tolist()
    for index, (_, labels) in enumerate(sets):
        assert [number == who[index] for number in who] == [other == labels for _, other in sets]


@settings(deadline=None)
@given(SETS)
def test_plain_labels_and_written_ones_share_a_pool(sets):
    pool = Pool()
    plain = [labelled(*one) for one in sets]
    adopted = pool.adopt(plain)
    assert list(adopted) == plain
    assert pool.adopt(adopted) is adopted
    assert list(Pool().adopt(adopted)) == plain
    rows = np.arange(len(plain))[::-1]
    assert list(taken(adopted, rows)) == list(taken(plain, rows)) == plain[::-1]
    assert list(adopted[1:]) == plain[1:]


def test_reduced_sets_meet_on_the_labels_that_count():
    pool = Pool()
    first = pool.adopt([{"__name__": "a", "x": "1", "y": "1"}, {"x": "1", "y": "2"}, {"x": "2"}])
    less = pool.reduced(first.who, None, ("y",))
    assert less[0] == less[1] != less[2]
    later = pool.adopt([{"x": "1", "y": "3"}, {"y": "2"}])
    assert pool.reduced(later.who, None, ("y",))[0] == less[0]
    only = pool.reduced(first.who, ("y",), ())
    assert pool.reduced(later.who, ("y",), ())[1] == only[1]
    assert len({*only.tolist()}) == 3
    assert isinstance(first, LabelSets)
