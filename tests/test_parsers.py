"""Lines of training logs: what each says, in blocks of any size, and among any other text."""

import io
import math
import re
from collections import Counter
from datetime import UTC
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_lines import AIAK, BLOCK, EACH, HEAD, LINES, LONGEST, NOON, OLD

from rca.parsers import Reader, Record
from rca.parsers.reader import LITERALS, OTHERS, blocks, rank_of, shape_of
from rca.parsers.strain import Strainer
from rca.parsers.timers import Names, TimerBlock

CHATTER = "hello 7\nNCCL INFO Channel 00/0 : 7[7] -> 0[0] via P2P\n\n 45%|####      | 45/100 [00:10<00:12]\n{'a': 1}\n{\"b\": 2}\n"
EVERYTHING = "".join(f"{text}\n{CHATTER}" for text, *_ in LINES.values()) + BLOCK + EACH + AIAK + LONGEST + CHATTER


def read(text: str, rank: str | None = None) -> list[Record]:
    reader = Reader(rank, UTC)
    return reader.take(text.encode()) + reader.flush()


@pytest.mark.parametrize("name", LINES)
def test_each_line_says_what_it_says(name: str) -> None:
    text, kind, rank, fields = LINES[name]
    for before in ("", CHATTER):
        found = read(f"{before}{text}\n")[:1]
        assert [one.kind for one in found] == ([kind] if kind else [])
        for one in found:
            assert one.rank == rank
            assert {key: one.fields.get(key) for key in fields} == pytest.approx(fields)
            assert one.time == (
                pytest.approx(NOON, abs=0.6) if any(stamp in text for stamp in ("2026-08", "17874")) else None
            )


@pytest.mark.parametrize("name", [name for name, line in LINES.items() if line[1]])
def test_a_line_that_is_understood_is_not_unknown(name: str) -> None:
    reader = Reader(None, UTC)
    reader.take(f"{LINES[name][0]}\nhello\n".encode())
    assert (reader.lines, reader.unknown) == (2, 1)


def test_the_second_line_of_the_same_keys_is_read_alike() -> None:
    for text in (HEAD, OLD, LINES["bloom"][0], LINES["aiak"][0]):
        first, second = read(f"{text}\n{text}\n")
        assert first == second
        (_, odd) = read(f"{text}\n{re.sub('lm loss: [^ ]+', 'lm loss: nan', text)}\n")
        assert math.isnan(float(odd.fields.get("loss:lm", 0.0)))


def test_a_line_with_more_keys_than_the_one_before_it_is_read_whole() -> None:
    short = "iteration 1/ 9 | consumed samples: 8 | elapsed time per iteration (ms): 500.0 |"
    _, found = read(f"{short}\n{short} lm loss: 2.5E+00 | grad norm: 1.5 |\n")
    assert (found.fields["loss:lm"], found.fields["grad_norm"]) == (2.5, 1.5)


def test_keys_that_differ_by_a_digit_are_not_taken_for_each_other() -> None:
    lines = [f"iteration 1/ 9 | mtp_{one} loss: 2.5 | mtp_{other} loss: 3.5 |\n" for one, other in ((1, 2), (2, 1))]
    assert [one.fields["loss:mtp_1"] for one in read("".join(lines))] == [2.5, 3.5]


@pytest.mark.parametrize(
    ("odd", "steps"), [("iteration -0/ 9 ", []), ("iteration 00/ 9 ", [0.0]), ("iteration 0/ -9 ", [])]
)
def test_what_is_no_step_by_itself_is_none_beside_others(odd: str, steps: list[float]) -> None:
    lines = [f"{head}| lm loss: 2.5 |\n" for head in ("iteration 5/ 9 ", "iteration 6/ 9 ", odd)]
    assert [one.fields["step"] for one in read("".join(lines))] == [5.0, 6.0, *steps]


STEPS = [text for text, kind, *_ in LINES.values() if kind == "step" and "iteration " in text]


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 400), st.sampled_from("0.|:,E+-/]e[ x")), max_size=12))
@settings(max_examples=60, deadline=None)
def test_lines_at_once_say_what_each_says_alone(garbled: list[tuple[str, int, str]]) -> None:
    lines = [line for text, at, letter in garbled for line in (text, text[:at] + letter + text[at + 1 :])]
    together = read("\n".join([*STEPS, *lines]) + "\n")[len(STEPS) :]
    alone = [one for line in lines for one in read(f"{line}\n")]
    assert repr(together).replace("-0.0", "0.0") == repr(alone).replace("-0.0", "0.0")


def test_blocks_of_timers() -> None:
    assert read(BLOCK) == [
        Record("phase_min", None, None, pytest.approx({"forward_backward": 4.0, "forward_compute": 1.25, "optimizer_copy_params": 0.012})),
        Record("phase_max", None, None, pytest.approx({"forward_backward": 4.01, "forward_compute": 1.5, "optimizer_copy_params": 0.013})),
        Record("once", None, None, pytest.approx({"save_checkpoint": 1.0})),
    ]  # fmt: skip
    assert [(one.kind, one.fields) for one in read(AIAK)] == [
        ("phase_min", {"grads_sync": 0.025}),
        ("phase_max", {"grads_sync": 0.05}),
    ]
    assert [(one.kind, one.fields) for one in read(LONGEST)] == [("phase_max", {"forward_compute": 1.5})]
    assert [(one.kind, one.rank, one.fields) for one in read(EACH)] == [
        ("phase", "0", {"forward_compute": 1.25}),
        ("phase", "1", {"forward_compute": 1.5, "grads_sync": 0.05}),
    ]


MIXED = [*BLOCK.splitlines(), *EACH.splitlines(), *AIAK.splitlines(), *LONGEST.splitlines(), *CHATTER.splitlines(), OLD]


@given(
    st.lists(st.tuples(st.integers(0, len(MIXED)), st.integers(1, 6), st.integers(0, 80), st.sampled_from("0.|:,(- x")))
)
@settings(max_examples=200, deadline=None)
def test_timers_at_once_say_what_they_say_line_by_line(parts: list[tuple[int, int, int, str]]) -> None:
    lines = BLOCK.splitlines()
    for begin, count, at, letter in parts:
        first, *others = MIXED[begin : begin + count] or [""]
        lines += [first[:at] + letter + first[at + 1 :], *others]
    whole, single = Reader(None, UTC), Reader(None, UTC)
    found = whole.take("".join(f"{line}\n" for line in lines).encode()) + whole.flush()
    alone = [one for line in lines for one in single.take(f"{line}\n".encode())] + single.flush()
    assert repr(found) == repr(alone)
    assert (whole.lines, whole.unknown) == (single.lines, single.unknown)


def test_timers_come_after_their_step_and_before_the_next() -> None:
    kinds = [one.kind for one in read(f"{OLD}\n{BLOCK}{OLD}\n{LONGEST}")]
    assert kinds == ["step", "phase_min", "phase_max", "once", "step", "phase_max"]


def test_an_empty_line_of_timers_is_known_after_a_step_only() -> None:
    reader = Reader()
    reader.take(f"time (ms)\n{OLD}\ntime (ms)\n{OLD}\nhello\ntime (ms)\n".encode())
    assert reader.unknown == 3


def test_a_block_of_timers_ends_when_others_go_on() -> None:
    reader = Reader()
    found = reader.take((EACH + "hello\n" * 100 + EACH.splitlines()[2] + "\n").encode()) + reader.flush()
    assert [one.kind for one in found] == ["phase", "phase"]
    assert reader.unknown == 101
    scattered = "hello\n".join(line + "\n" for line in BLOCK.splitlines() if "copy" not in line)
    assert [one.kind for one in read(scattered)] == ["phase_min", "phase_max", "once"]


def test_a_list_of_timers_that_was_cut_short_does_not_hide_the_whole() -> None:
    names, lines = Names(), [b"optimizer ....: (50.00, 51.25)\n", b"all-grads-sync ..: (1.0, 2.0)\n"]
    for text in (lines[0], b"".join(lines), b"".join(lines)):
        block, known = TimerBlock(names), set[int]()
        assert block.run(text, 0, known) == len(text)
        assert len(known) == text.count(b"\n") == len(block.records()[0].fields)
    phases, _ = names.usual(b"".join(lines), 0) or ([], None)
    assert phases == ["optimizer", "grads_sync"]


def test_what_only_looks_like_a_timer_is_none() -> None:
    plain, more = Reader(), Reader()
    plain.take(BLOCK.encode())
    more.take((BLOCK + "node-7:1:2 [0] NCCL INFO Channel 00/0 : 7\nnode-7 says 3 : 4\nhello-you : 5\n").encode())
    assert more.unknown == plain.unknown + 2, "one word with a hyphen may be a timer of a new Megatron"


def test_the_rank_of_a_file_is_that_of_lines_that_name_none() -> None:
    assert [one.rank for one in read(f"{OLD}\n{LINES['memory'][0]}\n{BLOCK}", "7")] == ["7", "22", "7", "7", "7"]
    assert [rank_of(name) for name in ("rank_07.log", "Rank-3.out", "worker.rank12.jsonl", "frank7.log")] == [
        "7",
        "3",
        "12",
        None,
    ]


def test_the_configuration_of_deepspeed_is_no_argument() -> None:
    assert read("[2026-08-22 15:22:22,500] [INFO] [config.py:904:print]   world_size ................... 1\n") == []


def test_words_about_checkpoints_are_no_checkpoint() -> None:
    assert read("Loading checkpoint shards: 100%|####| 2/2 [00:10<00:00]\n") == []


def test_unknown_lines_are_counted_and_shown_by_shape() -> None:
    reader = Reader()
    for _ in range(1000):
        reader.take(b"step 0.25 took 7 ms\n" * 50 + b"other words\n")
    assert (reader.lines, reader.unknown) == (51_000, 51_000)
    assert reader.sampled <= 5_064
    assert set(reader.shapes) == {"step #.# took # ms", "other words"}


def test_of_many_shapes_some_are_kept() -> None:
    reader = Reader()
    for one, other in product("abcdefghijklmnopqrst", repeat=2):
        reader.take(f"{one}{other}\n".encode())
    assert len(reader.shapes) == 201
    assert reader.shapes[OTHERS] == 200


def test_bytes_that_are_no_text_have_a_shape() -> None:
    assert shape_of(b"\xff\xfe 17\x00") == "\ufffd\ufffd #\x00"


@given(st.binary(max_size=400), st.sampled_from(sorted(LINES)), st.integers(0, 400))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_read(noise: bytes, name: str, at: int) -> None:
    line = LINES[name][0].encode()
    for data in (
        noise,
        line[:at] + noise + line[at:],
        noise.replace(b" ", b"|"),
        b'{"event": "TRAIN_STEP", ' + noise,
        line[:at],
    ):
        reader = Reader(None, UTC)
        records = reader.take(data) + reader.flush()
        assert 0 <= reader.unknown <= reader.lines == data.count(b"\n") + (not data.endswith(b"\n") and data != b"")
        for record in records:
            assert all(isinstance(value, float | str) for value in record.fields.values())


@given(st.lists(st.integers(0, EVERYTHING.count("\n")), max_size=8))
@settings(max_examples=40, deadline=None)
def test_any_split_between_lines_gives_the_same(cuts: list[int]) -> None:
    lines = EVERYTHING.encode().splitlines(keepends=True)
    lines = [line + b"\n" if not line.endswith(b"\n") else line for line in b"".join(lines).split(b"\n")[:-1]]
    whole, reader = Reader(None, UTC), Reader(None, UTC)
    edges = [0, *sorted(cuts), len(lines)]
    found = [one for begin, end in pairwise(edges) for one in reader.take(b"".join(lines[begin:end]))]
    expected = whole.take(b"".join(lines)) + whole.flush()
    assert repr(found + reader.flush()) == repr(expected)
    assert (reader.lines, reader.unknown) == (whole.lines, whole.unknown)


@given(st.binary(max_size=300), st.sampled_from(LITERALS), st.integers(0, 40))
@settings(max_examples=200, deadline=None)
def test_the_strainer_misses_no_literal_wherever_it_stands(noise: bytes, literal: bytes, pad: int) -> None:
    block = noise + b"\n" + b"x" * pad + literal + noise + b"\n"
    count, found = Strainer((b"|",), LITERALS).strain(block)
    assert count == block.count(b"\n")
    assert all(block[begin:end].count(b"\n") == 0 for begin, end in found)
    assert any(literal in block[begin:end] for begin, end in found)


def test_the_strainer_finds_lines_over_the_edge_of_its_parts() -> None:
    block = b"a" * ((1 << 20) - 7) + b"saved checkpoint from iteration 7\n" + b"b" * 100 + b"|\n"
    count, found = Strainer((b"|",), LITERALS).strain(block)
    assert (count, [block[begin:end][-3:] for begin, end in found]) == (2, [b"n 7", b"bb|"])


@given(st.binary(max_size=200), st.integers(1, 30))
@settings(deadline=None)
def test_blocks_are_made_of_lines(data: bytes, size: int) -> None:
    class Slow(io.BytesIO):
        def read(self, _: int | None = None) -> bytes:
            return super().read(size)

    found = [bytes(block) for block in blocks(Slow(data))]
    assert b"".join(found) == data
    assert all(block.endswith(b"\n") for block in found[:-1])


def test_a_megatron_log_among_chatter_is_found_whole() -> None:
    lines = []
    for step in range(1, 501):
        lines += [CHATTER, OLD.replace("       10/", f"{step:8d}/") + "\n", LONGEST]
    records = read("".join(lines))
    assert [one.fields["step"] for one in records if one.kind == "step"] == list(range(1, 501))
    assert Counter(one.kind for one in records) == {"step": 500, "phase_max": 500}
