"""Levels that mislead, clocks that are off, and the names of plain lines."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from made_logs import START, line, stamp
from test_logs_command import objects, ran

from rca.load import phrases
from rca.loglines import Ends, Line, Source
from rca.loglines.known import Templates
from rca.logs.levels import Beside, levels
from rca.logs.shapes import MOST, Shapes, shape
from rca.logs.steps import Course, Step, clocks, course, step

KNOWN = Templates(phrases)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.10 GiB"
WATCHDOG = (
    "[rank{0}]:[E301 14:23:25.1 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=127, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds "
    "before timing out."
)


def of(time: float | None, message: str, level: str = "ERROR", rank: str | None = "0", event: str = "") -> Line:
    return Line(time, rank, None, level, event, None, message, {}, Source("f", 0))


def found(lines: Iterable[Line], *, until: float = 10_000.0, went: Course | None = None, started: float = 0.0) -> list:
    shapes = Shapes()
    for one in lines:
        shapes.take(one)
    ends = {str(rank): Ends(of(until, "end", "INFO", str(rank))) for rank in range(8)}
    beside = Beside(ends, went, KNOWN.template, lambda _: started)
    return levels(shapes, beside).found


WENT = Course(10_000.0, 4.0, 0)


def flood(count: int = 400, ranks: int = 2, event: str = "") -> list[Line]:
    return [of(10.0 * n, f"grad_norm={n} above 10", rank=str(n % ranks), event=event) for n in range(count)]


def test_a_flood_of_errors_buries_the_few():
    (one,) = found([*flood(), of(35.0, OOM, rank="3"), of(5000.0, "x", rank="3")])
    assert (one.kind, one.shape, one.lines, one.ranks) == ("flood", "grad_norm=# above #", 400, ("0", "1"))
    assert "99% of all ERROR lines, 0.1 a second; 1 other error (1 line) lies among them" in one.why
    assert found(flood()) == [], "nothing is buried"
    echoes = [of(100.0, f"connection closed by peer {n}", rank=str(n)) for n in range(400)]
    assert found([*echoes, of(100.0, OOM)]) == [], "what each says once is an echo"


def test_an_event_at_another_level_than_its_own():
    lines = [
        of(1.0, "a", "ERROR", event="GRAD_NORM"),
        of(2.0, "b", "WARN", event="CUDA_OOM"),
        of(3.0, "c", "INFO", event="CUDA_OOM"),
    ]
    lines += [
        of(4.0, "d", "ERROR", event="MESSAGE"),
        of(5.0, "e", "ERROR", event="OURS"),
        of(6.0, "f", "ERROR", event="CUDA_OOM"),
    ]
    assert sorted((one.event, one.level, one.should) for one in found(lines)) == [
        ("CUDA_OOM", "INFO", "ERROR"), ("CUDA_OOM", "WARN", "ERROR"), ("GRAD_NORM", "ERROR", "WARN"),
    ]  # fmt: skip
    (named,) = KNOWN.named([of(7.0, f"[WARNING] {OOM}", "WARN")])
    assert named.event == "CUDA_OOM"
    assert found([named]) == [], "its level is that of who wrote it"


def test_a_flood_of_a_wrong_level_is_told_once():
    (one,) = found([*flood(event="GRAD_NORM"), of(35.0, OOM)], went=WENT)
    assert (one.kind, one.should) == ("flood", "WARN")
    assert one.why.endswith("GRAD_NORM is a matter of WARN: it recovers by itself")


def test_a_warning_that_does_not_end():
    lines = [of(9_000.0 + 4.0 * n, f"retrying read of shard {n}", "WARN", "3") for n in range(250)]
    (one,) = found(lines)
    assert (one.kind, one.ranks, one.lines, one.why[:11]) == ("endless", ("3",), 250, "for 17 min,")
    assert found(lines[:-20]) == [], "it has ended"
    assert found(lines[-5:]) == [], "too few"
    assert found([one._replace(time=(one.time or 0.0) * 100 - 990_000.0) for one in lines]) == [], "each for itself"
    other = [one._replace(rank="4") for one in lines[:100]]
    (one,) = found([*lines, *other])
    assert (one.ranks, "by 1 rank of 2" in one.why) == (("3",), True)


def test_an_error_after_which_all_went_on_was_none():
    lines = [of(100.0, "upload failed with status 502")]
    (one,) = found(lines, went=WENT)
    assert (one.kind, one.should, one.why[:11]) == ("harmless", "WARN", "2,475 steps")
    assert found(lines, went=None) == []
    assert found(lines, went=WENT, started=200.0) == [], "ranks were started anew"
    assert found(lines, went=WENT._replace(attempt=1)) == [], "so they were"
    assert found([of(9_990.0, "upload failed")], went=WENT) == [], "nobody knows yet"
    assert found([*lines, of(10_100.0, "upload failed with status 1")], went=WENT) == [], (
        "the last one may be why it ended"
    )
    assert found([of(100.0, "terminate called after throwing an instance of 'c10::Error'")], went=WENT) == []


def test_shapes_are_bounded_and_what_is_lost_is_counted():
    shapes = Shapes()
    words = ["".join(chr(103 + int(digit)) for digit in str(n)) for n in range(3 * MOST)]
    for number, word in enumerate(words):
        shapes.take(of(float(number), f"odd {word}"))
        shapes.take(of(float(number), f"common {number}"))
    assert shapes.of("ERROR")[0].lines == len(words)
    assert len(shapes.of("ERROR")) <= MOST
    assert (
        sum(one.lines for one in shapes.of("ERROR")) + shapes.lost["ERROR"] == shapes.lines["ERROR"] == 2 * len(words)
    )
    assert shape("2026-03-01T14:00:00.123Z [3] 7/9 at 0xdeadbeef") == "[#] # at #"


def test_lines_without_a_time_do_no_harm():
    assert found([of(None, f"x {n}", "WARN") for n in range(50)] + [of(None, "y")], went=WENT) == []


@pytest.mark.parametrize(("message", "number"), [
    ("iteration      100/  500000 | loss", 100), ("step=7 loss=2", 7), ("global_step: 12", 12), ("Step 9, x", 9),
    ("stepping 3", None), ("footsteps=4", None), ("loss 2.3", None),
])  # fmt: skip
def test_the_step_of_a_line(message, number):
    told = step(of(1.0, message, "INFO"))
    assert (told.number if told is not None else None) == number
    assert step(of(1.0, message, "ERROR")) is None


def test_a_course_needs_steps_that_go_on():
    assert course([]) is None
    assert course([Step("0", None, 0, "s", 5, 1.0), Step("0", None, 0, "s", 5, 9.0)]) is None


def stepped(ahead: float, node: int, jitter: float = 0.0, count: int = 8) -> list[Step]:
    return [Step(str(node), f"n{node}", 0, "s", n, 4.0 * n + ahead + jitter * (n % 3)) for n in range(count)]


def test_clocks_are_set_right_where_nodes_are_clearly_in_step():
    good = [one for node in range(4) for one in stepped(0.01 * node, node)]
    assert clocks([*good, *stepped(41.2, 7)]) == {"n7": pytest.approx(41.18, abs=0.05)}
    assert clocks([*good, *stepped(-3.0, 7)]) == {"n7": pytest.approx(-3.0, abs=0.05)}
    assert clocks([*good, *stepped(0.3, 7)]) == {}, "small"
    assert clocks([*good, *stepped(41.2, 7, jitter=1.0)]) == {}, "not steady"
    assert clocks([*good, *stepped(41.2, 7, count=4)]) == {}, "too few steps"
    assert clocks([*stepped(0.0, 0), *stepped(41.2, 1)]) == {}, "nobody knows which of two is right"
    assert clocks([one for node in range(6) for one in stepped(9.0 * node, node)]) == {}, "no two agree"
    loose = [one for node in range(6) for one in stepped(0.0, node, jitter=0.2 * node)]
    assert clocks([*loose, *stepped(41.2, 7)]) == {}, "they are not in step"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Write the logs of five nodes, one with a clock that is ahead, most of them plain."""
    for node in range(5):
        folder = tmp_path / f"node-0{node}"
        folder.mkdir()
        ahead = 41.2 if node == 4 else 0.0
        own = [line(START + ahead, node, "rank starts", event="RANK_START")]
        plain = [f"{stamp(START + ahead)} hello"]
        for n in range(1, 101):
            time = START + 4.0 * n + ahead
            own.append(line(time, node, f"step={n}", step=n))
            plain.append(f"{stamp(time)} [INFO] step={n} loss=2.3")
            if node == 0:
                own += [
                    line(time + 0.1 * k, node, f"grad_norm={n}.{k}", event="GRAD_NORM", level="ERROR") for k in range(3)
                ]
        own.append(line(START + ahead + 20.0, node, "no room", event="CUDA_OOM", level="INFO") if node == 1 else "")
        plain.append(f"{stamp(START + ahead + 405.0)} {WATCHDOG.format(node)}")
        text = "".join(own) if node < 2 else "\n".join(plain) + "\n"
        (folder / f"rank-{node}.{'jsonl' if node < 2 else 'log'}").write_text(text, encoding="utf-8")
    with (tmp_path / "node-01" / "rank-1.jsonl").open("a", encoding="utf-8") as file:
        file.write(line(START + 390.0, 1, "cannot go on", event="RANK_FAILED", level="ERROR"))
    return tmp_path


def test_levels_as_a_user_asks_for_them(job):
    answer = objects(job, "--levels")
    assert [(one["kind"], one["event"], one["level"], one["lines"]) for one in answer] == [
        ("flood", "GRAD_NORM", "ERROR", 300), ("level", "CUDA_OOM", "INFO", 1),
    ]  # fmt: skip
    assert answer[0]["should"] == "WARN"
    _, out, said = ran(job, "--levels", "-o", "text")
    assert 'flood of ERROR, "grad_norm=#", 300 lines of 1 rank (0)' in out
    assert "node-04: its clock is 41.2 s ahead by the steps that all end together, corrected" in said
    _, page, _ = ran(job, "--levels", "-o", "html")
    assert "flood of ERROR" in page
    assert "<svg" in page
    assert ran(job, "--levels", "--rank", "1")[0] == 2


def test_a_summary_tells_the_worst(job):
    (summary,) = objects(job)
    assert [one["kind"] for one in summary["levels"]] == ["flood"]
    assert "flood of ERROR" in ran(job, "-o", "text")[1]


def test_plain_lines_have_the_name_of_their_template(job):
    errors = objects(job, "--event", "NCCL_TIMEOUT")
    assert [(one["rank"], one["level"], one["event_id"]) for one in errors] == [
        (2, "ERROR", "EVT_2001"),
        (3, "ERROR", "EVT_2001"),
        (4, "ERROR", "EVT_2001"),
    ]
    assert {one["timestamp"] for one in errors} == {stamp(START + 405.0)}, "the clock of node-04 is set right"
    counts = objects(job, "--count", "--event", "EVT_2001")
    assert sum(one["lines"] for one in counts) == 3
    assert "NCCL_TIMEOUT" in ran(job, "--last", "1s", "-o", "html")[1]
    assert [one["event"] for one in objects(job, "--grep", "CL_TIMEOUT")] == ["NCCL_TIMEOUT"] * 3


def test_offsets_from_a_file_stand_alone(job, tmp_path):
    (tmp_path / "none.yaml").write_text("{}\n", encoding="utf-8")
    _, out, said = ran(job, "--event", "NCCL_TIMEOUT", "--offsets", tmp_path / "none.yaml")
    assert json.loads(out.splitlines()[-1])["timestamp"] == stamp(START + 446.2)
    assert "clock" not in said


def test_a_kernel_line_tells_its_level_by_its_template(tmp_path):
    (tmp_path / "kern.log").write_text(
        f"{stamp(START)} node-5 kernel: pcieport 0000:a9:10.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)\n",
        encoding="utf-8",
    )
    (one,) = objects(tmp_path, "--level", "error")
    assert (one["node"], one["event"], one["event_id"]) == ("node-5", "PCIE_ERROR", "EVT_4009")
