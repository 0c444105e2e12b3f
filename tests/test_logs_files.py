"""Log files by time: what bisecting finds is what reading all finds, whatever lies in the files."""

import bz2
import gzip
import json
import os
import random
from dataclasses import replace
from datetime import UTC
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_logs import SILENT, START, TIMED_OUT, hang, line, mixed, of_rank, stamp

from rca.errors import SourceError
from rca.load import phrases
from rca.loglines import PATTERNS, Logs, Naming, Notes, Wanted, find, spelt
from rca.loglines.blocks import BLOCK, LONGEST, Timeline, backwards, forwards
from rca.loglines.files import Content, LogFile, is_log
from rca.loglines.known import Templates
from rca.loglines.owners import Owner
from rca.loglines.parse import Habit, Parser
from rca.loglines.read import _quiet
from rca.loglines.scan import Piece, Scanners
from rca.loglines.stamps import Stamps

KNOWN = Templates(phrases)
WATCHDOG = (
    "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=127, OpType=ALLREDUCE, NumelIn=1, "
    "NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out."
)


def logs(*paths: Path, **more: object) -> Logs:
    notes = Notes()
    return Logs(find([str(path) for path in paths], Naming(), PATTERNS, notes), UTC, notes, **more)


def said(of: Logs) -> str:
    return "\n".join([*of.notes.files, *(f"{count} {flaw}" for flaw, count in of.notes.counts.items())])


def messages(of: Logs, wanted: Wanted) -> list[str]:
    return [one.message for one in of.lines(wanted)]


class Written:
    """A file of bytes, open for reading."""

    def __init__(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)
        self.file = os.open(path, os.O_RDONLY)
        self.content = Content(self.file, len(data))

    def __enter__(self) -> Content:
        return self.content

    def __exit__(self, *_: object) -> None:
        os.close(self.file)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 50, 70_000, 300_000]), max_size=25),
    st.booleans(),
    st.integers(1, 5),
    st.integers(0, 10_000),
)
def test_blocks_hold_every_line_once_from_either_end(tmp_path_factory, sizes, ended, block, seed):
    lines = [b"%d" % number + b"x" * size for number, size in enumerate(sizes)]
    data = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    with Written(tmp_path_factory.getbasetemp() / "blocks.log", data) as content:
        ahead = [raw for one in forwards(content, 0, content.size, block * 1000) for _, raw, _ in one.lines()]
        back = [[(offset, raw) for offset, raw, _ in one.lines()] for one in backwards(content, block * 1000)]
        assert ahead == lines
        assert [raw for one in reversed(back) for _, raw in one] == lines
        assert all(data[offset : offset + len(raw)] == raw for one in back for offset, raw in one)
        cut = random.Random(seed).randint(0, content.size)
        parts = [
            raw
            for begin, end in ((0, cut), (next_line(data, cut), content.size))
            for one in forwards(content, begin, end)
            for _, raw, _ in one.lines()
        ]
        assert parts == lines


def next_line(data: bytes, at: int) -> int:
    return 0 if at == 0 else (data.find(b"\n", at - 1) + 1 or len(data))


def test_a_line_longer_than_any_should_be_is_known_by_its_beginning(tmp_path):
    data = b"a\n" + b"x" * (LONGEST + BLOCK) + b"\nb\n"
    with Written(tmp_path / "long.log", data) as content:
        ahead = [(offset, len(raw)) for one in forwards(content, 0, content.size) for offset, raw, _ in one.lines()]
        back = [(offset, len(raw)) for one in backwards(content) for offset, raw, _ in one.lines()]
    assert ahead == [(0, 1), (2, (1 << 16) + 1), (len(data) - 2, 1)]
    assert sorted(back) == ahead


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 4000), st.floats(0.0, 4.0), st.floats(0.0, 0.5))
def test_a_stretch_of_time_is_found_as_by_reading_all(tmp_path_factory, seed, count, disorder, bare):
    chance = random.Random(seed)
    path = tmp_path_factory.getbasetemp() / "rank-1.log"
    times = [START + number * 0.5 + chance.uniform(-disorder, disorder) for number in range(count)]
    path.write_text("".join(
        "  continued, without a time of its own\n" if chance.random() < bare else f"{stamp(time)} line {number}{'y' * chance.choice([0, 0, 900])}\n"
        for number, time in enumerate(times)
    ), encoding="utf-8")  # fmt: skip
    start, end = sorted(START + chance.uniform(-20.0, count * 0.5 + 20.0) for _ in range(2))
    every = list(logs(path).lines(Wanted()))
    expected = [one.source.offset for one in every if one.time is not None and start <= one.time <= end]
    assert [one.source.offset for one in logs(path).lines(Wanted(start=start, end=end))] == expected


def test_little_of_a_large_file_is_read(tmp_path):
    path = tmp_path / "rank-3.jsonl"
    with path.open("w", encoding="utf-8") as file:
        file.writelines(line(START + number, 3, "x" * 200) for number in range(40_000))
    notes = Notes()
    log = LogFile(str(path), Owner("3"), path.stat().st_size, path.stat().st_mtime)
    with Written(tmp_path / "copy.jsonl", path.read_bytes()) as content:
        timeline = Timeline(content, Parser("a", Owner("3"), Habit(json=True), Stamps(UTC)))
        begin, end = timeline.part(START + 20_000.0, START + 20_010.0)
    assert end - begin < content.size // 50
    assert len(list(Logs([log], UTC, notes).lines(Wanted(start=START + 20_000.0, end=START + 20_010.0)))) == 11


@pytest.mark.parametrize("layout", ["ranks", "mixed"])
def test_the_last_line_of_every_rank(tmp_path, layout):
    of = logs(hang(tmp_path / "run") if layout == "ranks" else mixed(tmp_path / "train.jsonl"))
    last = of.last()
    assert sorted(last) == [str(rank) for rank in range(8)]
    assert {rank: end.line.event for rank, end in last.items() if rank == str(SILENT)} == {
        str(SILENT): "DATA_LOAD_TIME"
    }
    assert {end.line.time for rank, end in last.items() if rank != str(SILENT)} == {
        TIMED_OUT + rank / 1000 for rank in range(8) if rank != SILENT
    }
    assert of.last(frozenset({"2"}))["2"].line == last["2"].line
    assert of.world() == 8


def test_a_rank_in_several_files_ends_where_it_spoke_last(tmp_path):
    for number, world in enumerate((8, 8)):
        mixed(tmp_path / f"node-{number}.jsonl", world)
    late = line(TIMED_OUT - 900.0, SILENT, "still there")
    text = (tmp_path / "node-1.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    cut = next(number for number, one in enumerate(text) if '"NCCL_TIMEOUT"' in one)
    (tmp_path / "node-1.jsonl").write_text("".join([*text[:cut], late, *text[cut:]]), encoding="utf-8")
    last = logs(tmp_path).last(frozenset({str(SILENT)}))
    assert last[str(SILENT)].line.message == "still there"


def test_a_rank_before_and_after_a_restart(tmp_path):
    for attempt, begin in ((0, START), (1, START + 500.0)):
        folder = tmp_path / f"none_x/attempt_{attempt}/3"
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text(f"{stamp(begin)} begins\n{stamp(begin + 50.0)} ends\n", encoding="utf-8")
    of = logs(tmp_path)
    assert [(one.rank, one.attempt, one.message[25:]) for one in of.lines(Wanted())] == [
        ("3", 0, "begins"), ("3", 0, "ends"), ("3", 1, "begins"), ("3", 1, "ends"),
    ]  # fmt: skip
    assert of.last()["3"].line.attempt == 1
    assert messages(of, Wanted(latest={"3": START + 550.0}, last=10.0)) == [f"{stamp(START + 550.0)} ends"]


def test_rotated_and_packed_files_are_read(tmp_path):
    texts = of_rank(1, 8)
    (tmp_path / "rank-1.jsonl").write_text("".join(texts[20:]), encoding="utf-8")
    with gzip.open(tmp_path / "rank-1.jsonl.2.gz", "wb") as file:
        file.write("".join(texts[:10]).encode())
    (tmp_path / "rank-1.jsonl.1.bz2").write_bytes(bz2.compress("".join(texts[10:20]).encode()))
    (tmp_path / "rank-1.jsonl.3.zst").write_bytes(b"(\xb5/\xfd")
    of = logs(tmp_path)
    assert sorted(messages(of, Wanted())) == sorted(json.loads(one)["message"] for one in texts)
    assert messages(of, Wanted(start=START, end=START + 1.0)) == ["rank starts"]
    assert of.last()["1"].line.event == "NCCL_TIMEOUT"
    assert "is packed as zst" in said(of)


def test_a_damaged_archive_is_read_as_far_as_it_goes(tmp_path):
    noise = random.Random(1)
    texts = [line(START + number, 1, f"{noise.getrandbits(120):030x}") for number in range(3000)]
    packed = gzip.compress("".join(texts).encode())
    (tmp_path / "rank-1.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    of = logs(tmp_path)
    found = messages(of, Wanted())
    assert 100 < len(found) < len(texts)
    assert "is damaged, read as far as it could be unpacked" in said(of)


def test_files_out_of_order_are_read_whole_and_said(tmp_path):
    path = tmp_path / "train.jsonl"
    old, new = (
        [line(START + shift + number, 0, f"{shift} {number}") for number in range(2000)] for shift in (0, 10_000)
    )
    path.write_text("".join([*new, *old]), encoding="utf-8")
    of = logs(path)
    assert messages(of, Wanted(start=START + 1990.0, end=START + 1992.0)) == ["0 1990", "0 1991", "0 1992"]
    assert "is not in order of time, and was read whole" in said(of)


def test_a_file_that_tells_no_time(tmp_path):
    path = tmp_path / "rank-4.log"
    path.write_text("loss 2.3\nloss 2.2\n", encoding="utf-8")
    os.utime(path, (START, START))
    of = logs(path)
    assert messages(of, Wanted()) == ["loss 2.3", "loss 2.2"]
    assert messages(of, Wanted(start=START, end=START)) == []
    end = of.last()["4"]
    assert (end.line.message, end.line.time, end.guessed) == ("loss 2.2", START, True)
    assert "no line tells a time" in said(of)
    assert of.span() is None


def test_empty_files_and_odd_lines_do_no_harm(tmp_path):
    (tmp_path / "rank-0.jsonl").write_bytes(b"")
    (tmp_path / "rank-1.jsonl").write_bytes(b"\n\n")
    texts = of_rank(2, 8)
    torn = texts[-1][:60].encode()
    (tmp_path / "rank-2.jsonl").write_bytes(
        "".join(texts[:-1]).encode() + b"Traceback (most recent call last):\n\xff\xfe\n" + torn
    )
    of = logs(tmp_path)
    lines = list(of.lines(Wanted(ranks=frozenset({"2"}))))
    assert len(lines) == len(texts) + 2
    assert [one.flaw for one in lines[-3:]] == ["not JSON", "not JSON, invalid UTF-8", "torn"]
    assert sorted(of.last()) == ["2"]
    assert "3 not JSON" not in said(of)
    assert "2 not JSON" in said(of)
    assert "1 torn" in said(of)


def test_the_wanted_ranks_events_and_levels_are_found_without_reading_all(tmp_path):
    of = logs(mixed(tmp_path / "train.jsonl", 30))
    every = list(of.lines(Wanted()))
    asked = [
        Wanted(ranks=frozenset({"2"})), Wanted(ranks=frozenset({"1", "11"})), Wanted(ranks=frozenset({"x"})),
        Wanted(events=spelt(frozenset({"EVT_2001"}))), Wanted(events=frozenset({"DATA_LOAD_TIME"}), level="WARN"),
        Wanted(level="ERROR"), Wanted(level="WARN"), Wanted(text="for 1800s"), Wanted(text='"step":7'),
        Wanted(ranks=frozenset({"3"}), level="ERROR", text="rank=2"),
    ]  # fmt: skip
    for wanted in asked:
        assert list(of.lines(wanted)) == [one for one in every if wanted.holds(one)], wanted


def test_several_processes_find_what_one_does(tmp_path):
    of = logs(mixed(tmp_path / "train.jsonl", 30))
    (log,) = of.files
    pieces = [
        Piece(log, end, 2000, frozenset(), frozenset())
        for end in (-1, of.scan(Piece(log, -1, 2000, frozenset(), frozenset())).begin)
    ]
    alone = [of.scan(piece) for piece in pieces]
    helped = Scanners(of.scan, replace(of, files=(), step=_quiet).scan, worth=0)
    try:
        assert helped.scan(pieces) == alone
        assert helped.width > 1 or len(os.sched_getaffinity(0)) == 1
    finally:
        helped.close()
    assert alone[0].begin > alone[1].begin
    assert alone[0].lines


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 30), st.booleans(), st.booleans(), st.sampled_from([None, KNOWN]))
def test_what_is_passed_over_is_what_is_not_wanted(tmp_path_factory, seed, structured, alone, names):
    chance = random.Random(seed)
    texts = []
    for number in range(chance.randint(1, 400)):
        rank = 2 if alone else chance.choice([1, 2, 12, 112])
        text = chance.choice(
            ["step 3", "ValueError: x", "NCCL_TIMEOUT waits", "level=warn a", "E0301 14:00:00.5 7 x] b", "rank=2 c", WATCHDOG,
             "mlx5_core 0000:c1:00.0 ens1f0np0: Link up"]
        )  # fmt: skip
        own = line(
            START + number,
            rank,
            text,
            event=chance.choice(["E1", "E1", ""]),
            level=chance.choice(["INFO", "WARN", "ERROR"]),
        )
        bare = chance.choice([f"{text}\n", f"[rank{rank}]: {text}\n", f"{stamp(START + number)} {text}\n"])
        texts.append(own if structured and chance.random() < 0.9 else bare)
    path = tmp_path_factory.getbasetemp() / ("rank-2.log" if alone else "train.log")
    path.write_text("".join(texts), encoding="utf-8")
    every = list(logs(path, names=names).lines(Wanted()))
    asked = [
        Wanted(ranks=frozenset({"2"})), Wanted(ranks=frozenset({"112"})), Wanted(ranks=frozenset({"1", "12"})),
        Wanted(level="ERROR"), Wanted(level="WARN"), Wanted(text="Error"), Wanted(events=frozenset({"NCCL_TIMEOUT", "EVT_2001"})),
        Wanted(events=spelt(frozenset({"NIC_RECOVERED", "E1"}))), Wanted(text="TIMEOUT"), Wanted(events=spelt(frozenset({"RANK_FAILED"})), level="ERROR"),
    ]  # fmt: skip
    for wanted in asked:
        assert list(logs(path, names=names).lines(wanted)) == [one for one in every if wanted.holds(one)], wanted
    if names is not None:
        assert {one.event for one in every if WATCHDOG in one.message} <= {"NCCL_TIMEOUT", "E1"}
    last = {one.rank or "": one for one in every}
    if not alone:
        assert {rank: end.line for rank, end in logs(path, names=names).last().items() if rank} == {
            rank: one for rank, one in last.items() if rank
        }


@pytest.mark.parametrize("seed", range(8))
def test_the_last_lines_in_a_text_of_many_ranks_are_found_block_by_block(tmp_path, monkeypatch, seed):
    chance = random.Random(seed)
    texts = []
    for number in range(2000):
        rank = min(int(chance.expovariate(0.3)), 40) if number > 100 else number  # some are heard early on only
        told = chance.choice(
            [f"[rank{rank}]: ", f"{stamp(START + number)} [rank{rank}]: ", f"{stamp(START + number)} ", ""]
        )
        said = chance.choice(["hello", "Rank 7 waits", "rank=3 waits", '{"rank": 5}', "frank 8"])
        texts.append(f"{told}{said}\n")
    path = tmp_path / "train.log"
    path.write_text("".join(texts), encoding="utf-8")
    last = {one.rank: one.source for one in logs(path).lines(Wanted()) if one.rank}
    monkeypatch.setattr("rca.loglines.read.BLOCK", 4096)
    assert {rank: end.line.source for rank, end in logs(path).last().items() if rank} == last


def test_clocks_that_are_ahead_are_set_right(tmp_path):
    for node, ahead in (("node-1", 0.0), ("node-2", 30.0)):
        folder = tmp_path / node
        folder.mkdir()
        (folder / "rank-1.jsonl").write_text(
            "".join(line(START + number + ahead, 1, f"{number}") for number in range(5000)), encoding="utf-8"
        )
    of = logs(tmp_path, offsets={"node-2": 30.0})
    found = list(of.lines(Wanted(start=START + 4000.0, end=START + 4001.0)))
    assert [(one.node, one.message) for one in found] == [
        ("node-1", "4000"),
        ("node-1", "4001"),
        ("node-2", "4000"),
        ("node-2", "4001"),
    ]


def test_ranks_that_two_nodes_count_from_0_are_told_apart(tmp_path):
    for node in ("a", "b"):
        (tmp_path / f"{node}.log").write_text(
            "".join(f"[default{rank}]:{stamp(START + rank)} hello\n" for rank in range(2)), encoding="utf-8"
        )
    assert sorted(logs(tmp_path).last()) == ["a/0", "a/1", "b/0", "b/1"]


def test_what_of_a_folder_is_a_log(tmp_path):
    for name in ("rank-1.jsonl", "core.12", "model.pt", "messages", "sub/kern.log.1", "sub/x.out-20260301.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "dead").symlink_to(tmp_path / "nowhere.log")
    notes = Notes()
    found = find([str(tmp_path), str(tmp_path / "rank-1.jsonl")], Naming(), PATTERNS, notes)
    assert [os.path.relpath(one.path, tmp_path) for one in found] == [
        "messages",
        "rank-1.jsonl",
        "sub/kern.log.1",
        "sub/x.out-20260301.gz",
    ]
    assert notes.passed == 4
    assert not is_log("a/b.pt", ("*.log",))


def test_a_path_that_is_not_there(tmp_path):
    with pytest.raises(SourceError, match="cannot be read, no such file or directory"):
        find([str(tmp_path / "x")], Naming(), PATTERNS, Notes())
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match="is no regular file"):
        find([str(tmp_path / "pipe")], Naming(), PATTERNS, Notes())


def test_a_file_that_goes_away_is_noted(tmp_path):
    of = logs(hang(tmp_path / "run"))
    (tmp_path / "run" / "rank-3.jsonl").unlink()
    assert len({one.rank for one in of.lines(Wanted())}) == 7
    assert "cannot be read: no such file or directory" in said(of)
