"""Samples that come as chunks are the samples that come as JSON, whatever they are."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
from servers import prometheus

from rca.config import Server
from rca.errors import SourceError
from rca.sources import chunks
from rca.sources.labels import Pool
from rca.sources.prometheus import MANY, PrometheusStore
from rca.sources.series import Block, Matcher, Selector

END = 1_772_373_600.0
CONFIG = "global: {scrape_interval: 15s, external_labels: {cluster: 'a \"b\"', shelf: '7'}}\n"
ALL = Selector(("x", "y_total"), (), END - 7200.0, END)


def values(random: np.random.Generator, kind: int, count: int) -> np.ndarray:
    """Return values of one of several kinds."""
    some = random.normal(size=count)
    bits = np.frombuffer(random.bytes(8 * count), dtype=np.float64)
    kinds = (
        np.full(count, 42.0),
        np.round(60.0 + 3.0 * some),
        some,
        np.cumsum(np.abs(some)) * 1e6,
        np.where(some > 1.0, np.nan, np.where(some < -1.5, -math.inf, some)),
        np.where(np.isfinite(bits), bits, 1e308),
        np.where(some > 0, 0.0, -0.0),
        np.where(some > 0, 1e-300, -1e300),
    )
    return kinds[kind % len(kinds)]


def exposition(random: np.random.Generator) -> Iterator[str]:
    """Write series of all kinds: regular, with gaps, jittered, short, with labels that need quoting."""
    rows = []
    for number in range(48):
        step = (15.0, 1.0, 60.0, 0.25)[number % 4]
        count = int(random.integers(1, 400))
        times = END - 3000.0 + np.cumsum(np.round(step * (1.0 + random.uniform(0.0, 0.4 * (number % 3), count)), 3))
        times[count // 2 :] += 4000.0 * (number % 5 == 4)
        kept = times <= END
        label = ("plain", 'a "quote"', "back\\slash", "línea", "x" * 300)[number % 5]
        labels = f'n="{number}",label="{label.replace(chr(92), chr(92) * 2).replace(chr(34), chr(92) + chr(34))}"'
        name = "x" if number % 2 else "y_total"
        for time, value in zip(times[kept], values(random, number // 2, count)[kept], strict=True):
            text = "NaN" if math.isnan(value) else "-Inf" if value == -math.inf else repr(float(value))
            rows.append((name, number, f"{name}{{{labels}}} {text} {time:.3f}\n"))
    for name, kind in (("x", "gauge"), ("y_total", "counter")):
        yield f"# TYPE {name.removesuffix('_total')} {kind}\n"
        yield from (row for one, _, row in rows if one == name)
    yield "# EOF\n"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("chunks")
    (folder / "series.om").write_text("".join(exposition(np.random.default_rng(5))))
    with prometheus(folder / "server", folder / "series.om", config=CONFIG) as address:
        yield address


def told(block: Block) -> dict[tuple[tuple[str, str], ...], tuple[bytes, bytes]]:
    """Return the samples of each series, bit by bit; one NaN is as good as another, and JSON has no -0."""
    found = {}
    for row, labels in enumerate(block.labels):
        part = slice(int(block.offsets[row]), int(block.offsets[row + 1]))
        value = block.values[part]
        found[tuple(sorted(labels.items()))] = (
            block.times[part].tobytes(),
            (np.where(np.isnan(value), np.nan, value) + 0.0).tobytes(),
        )
    return found


def fetched(url: str, selector: Selector, streamed: bool) -> Block:
    """Fetch a selector one way or the other, and make sure that it was that way."""
    with PrometheusStore(Server(url=url)) as store:
        if not streamed:
            store._external = lambda: None  # type: ignore[method-assign]
        block = dict(store.fetch([selector] * MANY))[0]
        assert (store._foreign is not None) == streamed
        return block


@pytest.mark.parametrize(
    "selector",
    [
        ALL,
        ALL._replace(names=("x",), start=END - 1000.0, end=END - 10.001),
        ALL._replace(matchers=(Matcher("n", "=~", "1|2|33"), Matcher("label", "!=", "plain"))),
        ALL._replace(matchers=(Matcher("label", "=", 'a "quote"'), Matcher("n", "!~", "1.*"))),
        ALL._replace(names=("nothing",)),
        ALL._replace(start=END - 90000.0, end=END - 80000.0),
    ],
    ids=["all", "a part of the time", "some", "quoted", "no such name", "before all"],
)
def test_chunks_hold_what_json_holds(url: str, selector: Selector) -> None:
    assert told(fetched(url, selector, streamed=True)) == told(fetched(url, selector, streamed=False))


def test_external_labels_are_no_labels_of_the_series(url: str) -> None:
    labels = fetched(url, ALL, streamed=True).labels
    assert len(labels) == 48
    assert {name for one in labels for name in one} == {"__name__", "n", "label"}


def test_a_damaged_stream_is_one_clear_error(url: str) -> None:
    with PrometheusStore(Server(url=url)) as store:
        store._foreign = {}
        body = store._streamed(ALL, int(ALL.start * 1000), int(ALL.end * 1000))
    assert body is not None
    asked = chunks.Asked(ALL.start, ALL.end, {})
    random = np.random.default_rng(3)
    ends = {0, *chunks._frames(body)[1].tolist()}  # between two messages nothing is torn
    for cut in set(random.integers(1, len(body), 60).tolist()) - ends:
        with pytest.raises(SourceError, match="http://x: the chunks of the answer are damaged"):
            chunks.decode(body[:cut], "http://x", Pool(), asked)
    for place in random.integers(0, len(body), 300).tolist():
        broken = bytearray(body)
        broken[place] ^= 1 << int(random.integers(8))
        try:
            block, _ = chunks.decode(bytes(broken), "http://x", Pool(), asked)
        except SourceError as error:
            assert "damaged" in str(error)  # noqa: PT017 - most damage to values cannot be told
        else:
            assert len(block.times) == len(block.values) == block.offsets[-1]
