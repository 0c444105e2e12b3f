"""`rca logs` as a user runs it over files."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from made_logs import SILENT, START, TIMED_OUT, hang, line, mixed, stamp

from rca import cli
from rca.loglines import Ends, Line, Source
from rca.logs.answers import Lines, Told, silence
from rca.logs.jsonl import render
from rca.logs.store import FEW, opened
from rca.logs.text import render as as_text
from rca.terminal import Screen


def ran(*arguments: object) -> tuple[int, str, str]:
    """Run the command; return its status, its result, and what it said beside that."""
    runner = CliRunner()
    with runner.isolation() as (out, err, _):
        status = cli.run(cli.rca, ["logs", *map(str, arguments)])
        return status, out.getvalue().decode(), err.getvalue().decode()


def objects(*arguments: object) -> list[dict]:
    status, out, _ = ran(*arguments)
    assert status == 0
    return [json.loads(one) for one in out.splitlines()]


@pytest.fixture(params=["ranks", "mixed"])
def job(request, tmp_path):
    """Return where the logs of a job that hangs are, as a file a rank or in one file."""
    return hang(tmp_path / "run") if request.param == "ranks" else mixed(tmp_path / "train.jsonl")


def test_the_last_seconds_before_the_own_last_line_of_each_rank(job):
    lines = objects(job, "--last", "10s")
    by_rank = {rank: [one for one in lines if one["rank"] == rank] for rank in range(8)}
    assert [one["message"] for one in by_rank[SILENT]] == [
        "step=23 loss=2.3",
        "step=24 loss=2.3",
        "step=25 loss=2.3",
        "waits for the loader",
    ]
    assert [one["event"] for one in by_rank[1]] == ["NCCL_TIMEOUT"]
    assert objects(job, "--last", "10s", "--rank", SILENT) == by_rank[SILENT]


def test_the_seconds_before_a_time(job):
    lines = objects(job, "--last", "5s", "--at", stamp(START + 50.5))
    assert {one["message"] for one in lines} == {"step=12 loss=2.3"}
    ago = objects(job, "--at", "-1850s", "--last", "5s")
    assert {one["message"] for one in ago} == {"step=12 loss=2.3"}
    assert len(objects(job, "--at", stamp(START))) == 8


def test_one_event_across_ranks_and_filters_together(job):
    assert len(objects(job, "--event", "EVT_2001")) == 7
    assert [
        one["rank"] for one in objects(job, "--event", "NCCL_TIMEOUT", "--event", "DATA_LOAD_TIME", "--rank", "0-2")
    ] == [2, 0, 1]
    assert [one["rank"] for one in objects(job, "--level", "warn", "--grep", "loader")] == [SILENT]


def test_a_line_can_be_read_again(job, tmp_path):
    _, out, _ = ran(job, "--last", "10s")
    (tmp_path / "kept.jsonl").write_text(out, encoding="utf-8")
    again = objects(tmp_path / "kept.jsonl", "--at", stamp(TIMED_OUT + 60.0))
    wanted = ("timestamp", "rank", "level", "event", "event_id", "message")
    assert [[one[name] for name in wanted] for one in again] == [
        [json.loads(one)[name] for name in wanted] for one in out.splitlines()
    ]


def test_who_is_silent(job):
    silent = objects(job, "--silent", "--world-size", 9)
    assert [one["rank"] for one in silent] == [8, SILENT]
    assert silent[0]["last"] is None
    assert silent[1]["silent_seconds"] == pytest.approx(1799.0, abs=0.1)
    assert silent[1]["last"]["event"] == "DATA_LOAD_TIME"


def test_a_rank_without_any_line_is_missed_where_the_logs_tell_how_many_there_are(tmp_path):
    hang(tmp_path)
    (tmp_path / "rank-5.jsonl").write_bytes(b"")
    (tmp_path / "rank-7.jsonl").unlink()
    assert [one["rank"] for one in objects(tmp_path, "--silent")] == [5, 7, SILENT]


def test_the_first_error_of_each_rank(job):
    errors = objects(job, "--first-error")
    assert [one["rank"] for one in errors] == [0, 1, 3, 4, 5, 6, 7]


def test_counts(job):
    counts = objects(job, "--count", "--every", "1m")
    assert sum(one["lines"] for one in counts) == 8 * 26 + 8
    timed_out = [one for one in counts if one["event"] == "NCCL_TIMEOUT"]
    assert {(one["timestamp"], one["lines"]) for one in timed_out} == {("2026-03-01T14:31:00.000Z", 1)}
    assert objects(job, "--count", "--rank", SILENT, "--level", "warn")[0]["lines"] == 1


def test_counts_of_the_database_are_those_of_reading_every_line(tmp_path):
    path = tmp_path / "train.jsonl"
    texts = [line(START + number / 100, number % 7, "m" * 60, event=f"E{number % 3}") for number in range(12_000)]
    path.write_text("".join(texts), encoding="utf-8")
    plain = objects(path, "--count", "--every", "10s")
    path.write_text("".join([*texts, "not JSON\n"]), encoding="utf-8")
    odd = objects(path, "--count", "--every", "10s")
    assert path.stat().st_size > FEW * 20
    assert sum(one["lines"] for one in plain) == 12_000
    assert [one for one in odd if one["event"]] == plain
    assert sum(one["lines"] for one in odd) == 12_001
    asked = ("--count", "--every", "10s", "--rank", "3", "--event", "E1", "--at", stamp(START + 50.0))
    assert sum(one["lines"] for one in objects(path, *asked)) == sum(
        number % 7 == 3 and number % 3 == 1 and number <= 5000 for number in range(12_000)
    )


def test_more_lines_than_memory_holds_come_in_order_of_time():
    lines = [
        Line(
            START + number * 7919 % 60_000 / 8,
            str(number % 9),
            None,
            "INFO",
            "E",
            None,
            f"{number} \x00 \ud800 é \\u0000",
            {"n": number},
            Source("f", number),
        )
        for number in range(FEW + 500)
    ]
    with opened() as store:
        assert store.add(lines) == len(lines)
        found = list(store.sorted())
        last = list(store.sorted(3))
    assert [one.time for one in found] == sorted(one.time for one in lines)
    assert sorted(one.source.offset for one in found) == list(range(len(lines)))
    assert last == found[-3:]
    assert found[0].extra == {"n": found[0].source.offset}
    assert re.fullmatch(r"\d+ \ufffd .* é .*", found[0].message)


def test_a_summary(job):
    (summary,) = objects(job)
    assert (summary["ranks"], summary["expected_ranks"], summary["ranks_without_error"]) == (8, 8, 1)
    assert (summary["start"], summary["end"]) == (stamp(START), stamp(TIMED_OUT + 0.007))
    assert [one["rank"] for one in summary["silent"]] == [SILENT]


def test_text_for_people(job):
    status, out, _ = ran(job, "-o", "text")
    assert status == 0
    assert "1 silent rank, most others spoke until 2026-03-01 14:31:40.006 UTC" in out
    assert re.search(r"^ +2 +30 min +2026-03-01 14:01:41.000 +DATA_LOAD_TIME +waits for the loader$", out, re.MULTILINE)
    assert "first error of 7 ranks, 1 more without any: rank 0" in out
    for asked in (["--last", "10s"], ["--count"], ["--first-error"], ["--silent"]):
        _, out, _ = ran(job, "-o", "text", *asked)
        assert max(map(len, out.splitlines())) <= 100
        assert "\x1b" not in out


def test_the_limit_says_what_it_left_out(job):
    _, out, _ = ran(job, "-o", "text", "--rank", "0-7")
    assert "16 earlier lines not shown, see --limit" in out
    assert len(objects(job, "--rank", "0-7")) == 216
    assert [one["event"] for one in objects(job, "--rank", "0-7", "--limit", "3")] == ["NCCL_TIMEOUT"] * 3


def test_what_is_odd_is_told_beside_the_result(tmp_path):
    hang(tmp_path)
    with (tmp_path / "rank-1.jsonl").open("ab") as file:
        file.write(b"Traceback (most recent call last):\n  caf\xff\n" + b"x" * 100_000 + b"\n" + b'{"timestamp":"2026')
    (tmp_path / "kern.log").write_text(
        "Mar  1 14:31:00 node-1 kernel: NVRM: Xid (PCI:0000:3b:00): 79\n", encoding="utf-8"
    )
    (tmp_path / "model.bin").write_bytes(b"")
    status, out, said = ran(tmp_path, "--at", "2030-01-01T00:00:00Z", "--zone", "UTC")
    flaws = [json.loads(one).get("flaw") for one in out.splitlines()]
    assert status == 0
    assert [one for one in flaws if one] == [
        "not JSON",
        "not JSON, invalid UTF-8",
        "not JSON, cut: 100000 bytes",
        "torn",
    ]
    for words in (
        "3 lines: not JSON",
        "1 line: invalid UTF-8",
        "1 line: cut",
        "1 line: torn",
        "kern.log: times without a year",
        "without a zone, taken to be of UTC",
        "1 file not read",
    ):
        assert words in said, words


def test_an_error_in_a_file_of_no_rank_is_shown(tmp_path):
    hang(tmp_path)
    (tmp_path / "kern.log").write_text(
        "2026-03-01T14:01:39Z node-1 kernel: NVRM: Xid (PCI:0000:3b:00): 79\n", encoding="utf-8"
    )
    first = objects(tmp_path, "--first-error")[0]
    assert (first["rank"], first["message"][-2:]) == (None, "79")


@pytest.mark.parametrize(("arguments", "words"), [
    (["--level", "loud"], "--level: no such level: 'loud'"), (["--rank", "7-3"], "no range of ranks"), (["--rank", ","], "names no rank"),
    (["--last", "10"], "--last: not a duration"), (["--last", "0s"], "--last: 0 s hold nothing"), (["--at", "noon"], "--at: not a time"),
    (["--at", "2026-03-01T14:00:00"], "has no time zone"), (["--names", "("], "--names: '(' is no regular expression"),
    (["--names", "x"], "has no group"), (["--zone", "Mars"], "--zone"), (["--silent", "--at", "-1h"], "--at: who is silent"), (["--silent", "--rank", "2"], "--silent: it is about all"),
    (["--every", "1"], "--every: not a duration"),
])  # fmt: skip
def test_wrong_usage_is_told(arguments, words, tmp_path):
    hang(tmp_path)
    status, out, said = ran(tmp_path, *(["--count"] if "--every" in arguments else []), *arguments)
    assert (status, out) == (2, "")
    assert words in said


def test_places_without_logs(tmp_path):
    (tmp_path / "x.pt").write_bytes(b"")
    status, out, said = ran(tmp_path)
    assert (status, out) == (4, "")
    assert "no log is in there; there are files of other names: 1, see --match" in said
    assert ran(tmp_path / "nowhere")[0] == 4
    assert ran()[0] == 2
    assert ran(tmp_path, "--match", "*.pt")[0] == 0


def test_clock_offsets_from_a_file(tmp_path):
    (tmp_path / "node-1").mkdir()
    (tmp_path / "node-1" / "rank-0.jsonl").write_text(line(START + 30.0, 0, "m"), encoding="utf-8")
    offsets = tmp_path / "clocks.yaml"
    offsets.write_text("node-1: 30\n", encoding="utf-8")
    assert objects(tmp_path / "node-1", "--rank", "0", "--offsets", offsets)[0]["timestamp"] == stamp(START)
    offsets.write_text("node-1: soon\n", encoding="utf-8")
    status, _, said = ran(tmp_path / "node-1", "--offsets", offsets)
    assert (status, "clocks.yaml:1: 'node-1' must be a number" in said) == (3, True)


def ends(*times: float | None, pause: float = 4.0) -> dict[str, Ends]:
    return {
        str(rank): Ends(Line(time, str(rank), None, "", "", None, "", {}, Source("f", 0)), pause)
        for rank, time in enumerate(times)
    }


@pytest.mark.parametrize(("times", "pause", "silent"), [
    ([100.0] * 8, 4.0, []), ([100.0] * 7 + [75.0], 4.0, ["7"]), ([100.0] * 7 + [85.0], 4.0, []), ([100.0] * 7 + [75.0], 60.0, []),
    ([100.0, 400.0] + [100.0] * 14, 4.0, []), ([400.0, 100.0], 4.0, ["1"]), ([], 4.0, []), ([None, 100.0], 4.0, []),
])  # fmt: skip
def test_what_counts_as_silent(times, pause, silent):
    assert [one.rank for one in silence(ends(*times, pause=pause), None).ranks] == silent


def test_a_time_that_is_guessed_is_not_compared_with_those_that_are_told():
    told = ends(*[100.0] * 4)
    late = replace(told["0"], guessed=True, line=told["0"].line._replace(time=9e8))
    assert silence({**told, "4": late}, None).ranks == []
    assert [one.rank for one in silence({"0": replace(late, line=told["0"].line), "4": late}, None).ranks] == ["0"]


def test_nothing_in_a_log_steers_the_terminal():
    bad = Line(
        START, "1\x1b[2J", "n\x07", "ERROR", "E\x9b", None, "m\x1b]0;x\x07 [bold]b[/bold]\r\n", {}, Source("f", 0)
    )
    text = as_text(Told(Lines([bad], 1)), Screen(100, colour=False, ascii_only=True))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    assert "[bold]b[/bold]" in text
    assert json.loads("".join(render(Told(Lines([bad], 1)))))["rank"] == "1\x1b[2J"


def test_a_reader_that_closes_the_pipe_ends_the_command_quietly(job):
    import subprocess
    import sys

    done = subprocess.run(
        f"{sys.executable} -m rca.cli logs {job} --rank 0-7 -o json | head -1", shell=True, capture_output=True, text=True,
        cwd=Path(__file__).resolve().parent.parent, timeout=60, check=False,
    )  # fmt: skip
    assert json.loads(done.stdout)["event"] == "RANK_START"
    assert done.stderr == ""
    assert io.StringIO(done.stdout).readline()
