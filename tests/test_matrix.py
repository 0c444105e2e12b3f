"""Answers with odd numbers, labels and layouts are read to the last bit, or refused; fast and slow ways read alike."""

import json
import math
import struct

import numpy as np
import pytest
import simdjson
from hypothesis import given, settings
from hypothesis import strategies as st

from rca.errors import SourceError
from rca.sources import matrix

ODD = (
    "NaN", "+Inf", "-Inf", "0", "-0", "-0.0", "1e-05", "-1e-05", "1e+22", "0.1", "0.30000000000000004",
    "1767571213.4190001", "123456789.12345679", "5e-324", "2.2250738585072011e-308", "1.7976931348623157e+308",
    "9007199254740993", "9223372036854775794", "-9223372036854775808", "18446744073709551615", "18446744073709551616",
    "100000000000000000000", "123456789012345678901234567890", "0.1000000000000000055511151231257827021181583404541015625",
    "1e999999",
)  # fmt: skip
DIGITS = st.floats(allow_nan=False, allow_infinity=False).flatmap(
    lambda value: st.sampled_from([repr(value), f"{value:.17g}", f"{value:.25e}", f"{value:f}"])
)


def body(series: list[tuple[dict[str, str], list[list[object]]]], *, compact: bool = True) -> bytes:
    result = [{"metric": labels, "values": values} for labels, values in series]
    separators = (",", ":") if compact else (", ", ": ")
    answer = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    return json.dumps(answer, separators=separators).encode()


def bits(values: list[float]) -> list[bytes]:
    return [b"nan" if math.isnan(value) else struct.pack("d", value) for value in values]


@pytest.mark.parametrize("compact", [True, False], ids=["compact", "with spaces"])
@pytest.mark.parametrize("text", ODD)
def test_an_odd_number_is_read_to_the_last_bit_alone_and_among_others(text, compact):
    for texts in ([text], ["1", text, "2.5"], [text, *ODD]):
        samples = [[1767571213.419 + at, one] for at, one in enumerate(texts)]
        block, _ = matrix.decode(body([({"a": "b"}, samples)], compact=compact), "x")
        assert bits(block.values.tolist()) == bits([float(one) for one in texts])
        assert block.times.tolist() == [1767571213.419 + at for at in range(len(texts))]


@settings(deadline=None)
@given(st.lists(DIGITS, min_size=1, max_size=200))
def test_all_digits_count(texts):
    block, _ = matrix.decode(body([({}, [[at, text] for at, text in enumerate(texts)])]), "x")
    assert bits(block.values.tolist()) == bits([float(text) for text in texts])


@settings(deadline=None)
@given(st.lists(st.integers(0, 3 * 10**12).map(lambda ms: ms / 1000), min_size=1, max_size=50, unique=True).map(sorted))
def test_times_are_read_to_the_last_bit(times):
    block, _ = matrix.decode(body([({}, [[time, "1"] for time in times])]), "x")
    assert bits(block.times.tolist()) == bits(times)


@pytest.mark.parametrize("text", ["1", "-0", "NaN", "123456789012345678901234567890"])
def test_many_series_keep_their_samples_apart(text):
    series = [({"row": str(row)}, [[at, text] for at in range(1 + row % 3)]) for row in range(200)]
    for compact in (True, False):
        block, _ = matrix.decode(body(series, compact=compact), "x")
        assert np.diff(block.offsets).tolist() == [1 + row % 3 for row in range(200)]
        assert block.labels[199] == {"row": "199"}
        assert bits(block.values.tolist()) == bits([float(text)] * len(block.times))


@pytest.mark.parametrize(
    "label",
    ['},"values":[[1,"2"]]},{"metric":{', '"values":[', '\\"', "}", "{", "]]}]}}", '"', "\n", "\\", "€ é", "<&>"],
)
@pytest.mark.parametrize("compact", [True, False], ids=["compact", "with spaces"])
def test_a_label_may_look_like_the_layout(label, compact):
    series = [({"__name__": "up", "a": label, "row": str(row)}, [[1, "5"], [2, str(row)]]) for row in range(3)]
    block, _ = matrix.decode(body(series, compact=compact), "x")
    assert list(block.labels) == [labels for labels, _ in series]
    assert block.values.tolist() == [5, 0, 5, 1, 5, 2]


def test_series_without_samples_are_left_out():
    for compact in (True, False):
        series = [({"a": "1"}, []), ({"a": "2"}, [[1, "5"]]), ({"a": "3"}, [])]
        block, _ = matrix.decode(body(series, compact=compact), "x")
        assert [list(block.labels), block.values.tolist()] == [[{"a": "2"}], [5]]
        assert len(matrix.decode(body([], compact=compact), "x")[0].times) == 0


def test_series_alike_are_read_once_and_stay_several():
    same = [[1, "5"], [2, "5"]]
    series = [({"a": "1"}, same), ({"a": "2"}, same), ({"a": "3"}, [[1, "5"]]), ({"a": "4"}, same)]
    parts = matrix._cut(body(series))
    assert parts is not None
    assert (len(parts.samples), parts.fresh) == (3, [True, False, True, True])
    block, _ = matrix.decode(body(series), "x")
    assert (block.offsets.tolist(), block.values.tolist()) == ([0, 2, 4, 5, 7], [5] * 7)


@pytest.mark.parametrize(
    "sample",
    [
        [1, "one"], [1, None], [1, True], [1], [1, "1", 2], [1, "0x1"], [1, "1_0"], [1, ""], [1, {}], ["a", "1"],
        [9e99, "1"], [1, "1,2"], [1, "1 2"],
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_sample_is_refused(sample):
    for samples in ([sample], [[0, "1"], sample, [2, "3"]]):
        for compact in (True, False):
            with pytest.raises(SourceError, match=r"^x: the samples of the answer are damaged \("):
                matrix.decode(body([({"a": "1"}, samples)], compact=compact), "x")


def test_plain_numbers_take_the_fast_way_and_odd_ones_the_slow():
    class Watched(simdjson.Parser):  # simdjson's own parser, which counts
        calls = 0

        def parse(self, *args):
            type(self).calls += 1
            return super().parse(*args)

    plain = [b'[[1,"2.5"],[2,"-1e-05"],[3,"-0.5"]]}']
    assert matrix._numbers(plain, Watched()).tolist()[:6] == [1, 2.5, 2, -1e-05, 3, -0.5]
    assert Watched.calls == 1
    for odd in (b'[[1,"NaN"]]}', b'[[1,"-0"]]}', b'[[1,"+Inf"]]}'):
        matrix._numbers([odd], Watched())
    assert Watched.calls == 1
