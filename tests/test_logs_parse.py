"""One raw line to what it says: our schema, foreign ones, launchers' prefixes, times, and what is odd."""

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_logs import START

from rca.loglines.line import LEVELS, Line
from rca.loglines.owners import Naming, Owner, pattern_of, told_apart
from rca.loglines.parse import MOST, Habit, Parser
from rca.loglines.stamps import Stamps

AT = datetime.fromtimestamp(START, UTC)
ISO = "2026-03-01T14:00:00"


NOBODY = Owner()


def parser(owner: Owner = NOBODY, habit: Habit | None = None) -> Parser:
    return Parser("a.log", owner, habit or Habit(), Stamps(UTC, START + 60.0))


def read(text: str | bytes, owner: Owner = NOBODY, habit: Habit | None = None, *, ended: bool = True) -> Line:
    line = parser(owner, habit).read(text if isinstance(text, bytes) else text.encode(), 0, ended=ended)
    assert line is not None
    return line


def test_our_own_schema():
    text = '{"timestamp":"2026-03-01T14:00:00.500Z","rank":3,"level":"WARN","event":"GRAD_NORM","event_id":"EVT_1002","message":"m","extra":{"a":1}}'
    line = read(text)
    assert (line.time, line.rank, line.level, line.event, line.event_id) == (
        START + 0.5,
        "3",
        "WARN",
        "GRAD_NORM",
        "EVT_1002",
    )
    assert (line.message, line.extra, line.flaw) == ("m", {"a": 1}, "")


@pytest.mark.parametrize("fields", [
    {"ts": START, "severity": "error", "msg": "m", "rank": "003"},
    {"time": int(START * 1000), "levelname": "CRITICAL", "message": "m", "global_rank": 3},
    {"@timestamp": "2026-03-01T15:00:00+01:00", "lvl": "err", "text": "m", "rank": 3.0},
    {"asctime": "2026-03-01 14:00:00,000", "levelname": "ERROR", "message": "m", "rank": 3},
    {"ts": int(START * 1e9), "log": {"level": "fatal"}, "message": "m", "rank": 3},
    {"time": ISO + "Z", "log": json.dumps({"level": "ERROR", "msg": "m", "rank": 3})},
    {"timestamp": None, "time": ISO + ".000000000Z", "level": "error", "event": "m m", "rank": 3},
], ids="+".join)  # fmt: skip
def test_foreign_spellings(fields):
    line = read(json.dumps(fields))
    assert (line.time, line.rank, line.level, line.message.split()[0]) == (START, "3", "ERROR", "m")


def test_what_has_no_place_of_its_own_is_kept_beside_the_message():
    line = read('{"ts": 1772373600, "msg": "m", "loss": NaN, "step": 7, "extra": [1]}')
    assert line.extra["step"] == 7
    assert line.extra["extra"] == [1]
    assert str(line.extra["loss"]) == "nan"


@pytest.mark.parametrize(("text", "rank", "node", "message"), [
    ("[rank12]: hello", "12", None, "hello"),
    ("[rank1]:[E301 14:00:00.5 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog", "1", None, "[E301 14:00:00.5 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog"),
    ("2026-03-01T14:00:00.1Z stderr F [Rank 5] boom", "5", None, "[Rank 5] boom"),
    ("rank=1 waiting on rank=2 for 1800s", "1", None, "rank=1 waiting on rank=2 for 1800s"),
])  # fmt: skip
def test_launchers_and_texts_tell_the_rank(text, rank, node, message):
    line = read(text)
    assert (line.rank, line.node, line.message) == (rank, node, message)


def test_prefixes_that_are_habits_of_a_file_alone():
    assert read(" 7: hello", habit=Habit(labelled=True)).rank == "7"
    assert read(" 7: hello").rank is None, "a number in front of one line is no rank"
    assert read("vm-07: hello", habit=Habit(hosted=True)).node == "vm-07"
    assert read("[default3]: hello", habit=Habit(local=True, group="node-1")).rank == "node-1/3"
    assert read("[default3]: hello", habit=Habit(local=True)).rank == "3"


@pytest.mark.parametrize(("text", "time"), [
    (f"{ISO}Z a", 0.0), (f"{ISO}+02:00 a", -7200.0), (f"[{ISO.replace('T', ' ')}.25] a", 0.25),
    (f"{ISO.replace('T', ' ')},123 - INFO - a", 0.123), ("I0301 14:00:00.250000 77 x.cc:3] a", 0.25),
    ("Mar  1 14:00:00 node-3 kernel: a", 0.0), ("[Sun Mar  1 14:00:00 2026] a", 0.0), ("[Mar 01 2026 14:00:00] a", 0.0),
    ("2026/03/01 14:00:00 a", 0.0), ("1772373600.5 a", 0.5), ("[1772373600] a", 0.0), ("1772373600500: a", 0.5),
    ("<6>Mar  1 14:00:00 node-3 a", 0.0),
])  # fmt: skip
def test_times(text, time):
    assert read(text).time == pytest.approx(START + time, abs=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "step 3",
        "2026-13-01T14:00:00Z",
        "[ 1234.567890] usb",
        "Feb 30 00:00:00 x",
        "17723736001 a",
        "  1073741824   268435456 float sum",
        "1099511627776 B",
    ],
)
def test_what_is_no_time(text):
    assert read(text).time is None


def test_a_time_without_a_year_is_not_after_the_file():
    stamps = Stamps(UTC, datetime(2026, 1, 2, tzinfo=UTC).timestamp())
    assert stamps.find(b"Dec 31 23:59:59 x") == datetime(2025, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
    assert stamps.yearless == 1


def test_the_zone_of_times_without_one():
    stamps = Stamps(timezone(timedelta(hours=8)))
    assert stamps.find(b"2026-03-01 22:00:00 a") == START
    assert stamps.find(b"2026-03-01T14:00:00Z a") == START
    assert stamps.zoneless == 1


@pytest.mark.parametrize(("text", "level"), [
    ("WARNING: x", "WARN"), ("[ERROR] x", "ERROR"), ("level=error msg=x", "ERROR"), ("Traceback (most recent call last):", "ERROR"),
    ("torch.OutOfMemoryError: CUDA out of memory", "ERROR"), ("E0301 14:00:00.1 7 x] a", "ERROR"),
    ("Mar  1 14:00:00 n kernel: NVRM: Xid (PCI:0000:03:00): 79, fallen", "ERROR"), ("step 3 error rate 0.1", ""), ("", ""),
])  # fmt: skip
def test_levels_of_text(text, level):
    assert read(text or "x").level == level


@pytest.mark.parametrize(("text", "node"), [
    ("Mar  1 14:00:00 node-005 kernel: a", "node-005"), ("2026-03-01T14:00:00.5+00:00 n07 slurmd[88]: a", "n07"),
    ("2026-03-01T14:00:00Z INFO kernel: a", None), ("2026-03-01T14:00:00Z hello world: a", None),
])  # fmt: skip
def test_syslog_tells_the_node(text, node):
    assert read(text).node == node
    assert read(text, Owner(node="n1")).node == "n1"


def test_an_event_of_the_table_is_seen_in_text():
    line = read(f"{ISO}Z NCCL_TIMEOUT rank=3 waits")
    assert (line.event, line.event_id) == ("NCCL_TIMEOUT", "EVT_2001")


def test_a_line_without_a_time_is_of_the_time_before_it():
    reader = parser(Owner("4"))
    reader.read(f"{ISO}Z RuntimeError: x".encode(), 0)
    line = reader.read(b"  File y", 30)
    assert line is not None
    assert (line.time, line.rank) == (START, "4")


def test_odd_lines_are_kept_and_say_so():
    of_json = Habit(json=True)
    assert read("Traceback", habit=of_json).flaw == "not JSON"
    torn = read(
        '{"timestamp":"2026-03-01T14:00:00.000Z","rank":3,"level":"ERROR","event":"NCCL_TIMEOUT","mess',
        habit=of_json,
        ended=False,
    )
    assert (torn.time, torn.rank, torn.level, torn.event, torn.flaw) == (START, "3", "ERROR", "NCCL_TIMEOUT", "torn")
    assert read(b"caf\xe9 \xff").flaw == "invalid UTF-8"
    assert read('{"message": "m"}').flaw == "no time"
    assert read('{"timestamp":"yesterday","rank":1,"level":"INFO","event":"E","message":"m"}').flaw == "no time"
    assert read(b'{"message": "caf\xe9", "ts": 1772373600}').message == "caf\ufffd"
    assert read("\x1b[31mred\x1b[0m").message == "red"
    assert read("10%\r50%\r100% done\r").message == "100% done"
    assert parser().read(b" \0\0 ", 0) is None


def test_long_lines_are_cut_and_say_so():
    line = read("x" * (10 << 20))
    assert (len(line.message), line.flaw) == (MOST, f"cut: {10 << 20} bytes")
    line = read(json.dumps({"ts": START, "rank": 1, "message": "y" * (10 << 20), "extra": {"z": "z" * (1 << 20)}}))
    assert (line.time, line.rank, len(line.message), line.extra["cut"] > 1 << 20) == (START, "1", MOST, True)
    assert line.flaw.startswith("cut")


@given(st.one_of(st.binary(max_size=300), st.text(max_size=200).map(str.encode)))
def test_any_bytes_are_read(raw):
    for habit in (Habit(), Habit(json=True, ranked=True), Habit(labelled=True, hosted=True, local=True)):
        for ended in (True, False):
            line = parser(habit=habit).read(raw, 0, ended=ended)
            assert line is None or isinstance(line.message, str)


@given(
    st.dictionaries(
        st.sampled_from(
            ["timestamp", "ts", "rank", "level", "event", "message", "msg", "extra", "host", "log", "attempt", "rca"]
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
            max_leaves=6,
        ),
    )
)
def test_any_object_is_read(found):
    line = parser().read(json.dumps(found).encode(), 0)
    assert line is not None
    assert line.level in {*LEVELS, ""} or line.level.isupper() or line.level == line.level.upper()
    assert line.rank is None or isinstance(line.rank, str)


@pytest.mark.parametrize(("path", "rank", "node", "attempt"), [
    ("rank_12.log", "12", None, 0), ("12.out", "12", None, 0), ("logs/global_rank-007.jsonl.2.gz", "7", None, 0),
    ("run/attempt_1/3/stderr.log", "3", None, 1), ("node-03/rank-5.jsonl", "5", "node-03", 0), ("slurm-812345.out", None, None, 0),
    ("host12.log", None, "host12", 0), ("restart_2/rank0.err", "0", None, 2), ("train.log", None, None, 0),
])  # fmt: skip
def test_paths_tell_whose_they_are(path, rank, node, attempt):
    owner = Naming().owner(path)
    assert (owner.rank, owner.node, owner.attempt) == (rank, node, attempt)


def test_ranks_of_several_launchers_are_told_apart():
    owners = [
        Naming(first_rank=8).owner(f"run/none_{name}/attempt_0/{rank}/stdout.log") for name in "ab" for rank in range(2)
    ]
    assert [one.rank for one in told_apart(owners)] == ["none_a/8", "none_a/9", "none_b/8", "none_b/9"]


def test_names_of_ones_own():
    naming = Naming(pattern_of("--names", r"(?P<node>n\d+)/w(?P<rank>\d+)"))
    assert naming.owner("logs/n7/w003.txt") == Owner("3", "n7", 0, None)
