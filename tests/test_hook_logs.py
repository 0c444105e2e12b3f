"""Structured logs: the lines, the table of events, and that they never hold anybody up."""

import csv
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import structlog
from own_process import awaited

from rca.hook import events, logs
from rca.load import shipped
from rca.model import LAYERS
from rca.parsers.moments import Moments
from rca.parsers.structured import structured

ROOT = Path(__file__).resolve().parent.parent
FIELDS = ["timestamp", "rank", "level", "event", "event_id", "message", "extra"]


@pytest.fixture
def log(tmp_path):
    """A logger of its own, with a handler that writes to a file."""
    logger = logging.Logger("train", logging.INFO)  # noqa: LOG001 - of its own, and nobody else's
    handler = logs.attach(tmp_path, rank=3, logger=logger)
    yield logger
    handler.close()


def written(logger):
    """Return the lines that a logger's handler has written."""
    (handler,) = logger.handlers
    handler.flush()
    return [json.loads(line) for line in Path(handler.path).read_text(encoding="utf-8").splitlines()]


class Slow:
    """What takes long to become text, and says how often it did."""

    def __init__(self):
        self.go = threading.Event()

    def __str__(self):
        self.go.wait(10)
        return "slow"


# lines


def test_a_line_has_these_fields_in_this_order(log):
    log.warning("grad_norm=%.1f", 45.6, extra={"event": events.GRAD_NORM, "data": {"grad_norm": 45.6}, "step": 7})
    (line,) = written(log)
    assert list(line) == FIELDS
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("timestamp"))
    assert line == {
        "rank": 3, "level": "WARN", "event": "GRAD_NORM", "event_id": "EVT_1002", "message": "grad_norm=45.6",
        "extra": {"step": 7, "grad_norm": 45.6},
    }  # fmt: skip


def test_a_line_without_an_event_is_a_message(log):
    log.info("hello")
    log.info("hello", extra={"event": "NO_SUCH"})
    log.info("by id", extra={"event": "EVT_1001"})
    said = [(line["event"], line["event_id"]) for line in written(log)]
    assert said == [("MESSAGE", "EVT_1000"), ("NO_SUCH", None), ("TRAIN_STEP", "EVT_1001")]


@pytest.mark.parametrize(
    ("level", "name"), [(logging.DEBUG, "DEBUG"), (logging.INFO, "INFO"), (logging.WARNING, "WARN"), (logging.ERROR, "ERROR"), (logging.CRITICAL, "ERROR")]
)  # fmt: skip
def test_levels_are_those_of_the_table(log, level, name):
    log.setLevel(logging.DEBUG)
    log.log(level, "x")
    assert [line["level"] for line in written(log)] == [name]


def test_an_event_is_told_at_its_own_level(log):
    logs.tell(log, events.CUDA_OOM, "100 % of 80 GiB", {"gib": 80})
    logs.tell(log, events.TRAIN_STEP, "step=1")
    assert [(line["level"], line["extra"], line["message"]) for line in written(log)] == [
        ("ERROR", {"gib": 80}, "100 % of 80 GiB"), ("INFO", {}, "step=1"),
    ]  # fmt: skip


def test_odd_values_are_written_as_text(log):
    odd = {
        "nan": float("nan"), "inf": -float("inf"), "path": Path("/a"), "set": {1}, "deep": {"a": [1, {"b": (2,)}]},
        "lone": "\ud800", "bytes": b"x", 7: "seven", "event": events.GRAD_NORM, "huge": 10**5000,
    }  # fmt: skip
    log.info("odd \ud800 %s", "\n\x00ü", extra={"data": odd})
    itself: dict[str, object] = {}
    itself["me"] = itself
    log.info("a loop", extra={"data": itself})
    first, second = written(log)
    assert first["message"] == "odd ? \n\x00ü"
    assert list(first["extra"]) == ["unwritable"], "a number of 5,001 digits"
    assert second["message"] == "a loop"
    log.info("x", extra={"data": {key: value for key, value in odd.items() if key != "huge"}})
    assert written(log)[2]["extra"] == {
        "nan": "nan", "inf": "-inf", "path": "/a", "set": [1], "deep": {"a": [1, {"b": [2]}]}, "lone": "?",
        "bytes": "b'x'", "7": "seven", "event": "GRAD_NORM",
    }  # fmt: skip


def test_wrong_arguments_lose_no_line(log):
    log.info("step %d of %d", 1)  # noqa: PLE1206 - meant
    log.info("loss %d", "x")
    assert [line["message"] for line in written(log)] == ["step %d of %d (1,)", "loss %d ('x',)"]


def test_what_changes_later_is_written_as_it_was(log):
    block, data = Slow(), {"step": 1}
    log.info("x", extra={"data": {"slow": block}})
    log.info("y", extra={"data": data})
    data["step"] = 2
    block.go.set()
    assert written(log)[1]["extra"] == {"step": 1}


def test_an_exception_is_kept_short(log):
    def deep(depth):
        return deep(depth - 1) if depth else 1 / 0

    try:
        deep(900)
    except ZeroDivisionError:
        log.exception("failed", extra={"event": events.RANK_FAILED})
    (line,) = written(log)
    assert line["extra"]["exception"].endswith("ZeroDivisionError: division by zero")
    assert len(line["extra"]["exception"]) <= 16384


def test_the_parser_of_logs_reads_what_is_written(log):
    data = {"step": 7, "step_seconds": 0.25, "loss": 2.5, "tokens": 4096.0}
    log.info("step=7 loss=2.5", extra={"event": "TRAIN_STEP", "data": data})
    written(log)
    (handler,) = log.handlers
    (record,) = structured(Path(handler.path).read_bytes().rstrip(), Moments())
    assert (record.kind, record.rank) == ("step", "3")
    assert record.time == pytest.approx(time.time(), abs=60)
    assert {"step": 7.0, "loss:lm": 2.5}.items() <= record.fields.items()


# structlog


def test_structlog_writes_the_same_lines(log):
    structured_log = structlog.wrap_logger(
        log,
        processors=[structlog.contextvars.merge_contextvars, logs.for_structlog],
        wrapper_class=structlog.BoundLogger,
    ).bind(job="j")
    structured_log.info("TRAIN_STEP", step=7, loss=2.5)
    structured_log.warning("100 % full", name="x", msg="y", event_name="DISK_FULL")
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError:
        structured_log.error("plain", exc_info=True)
    first, second, third = written(log)
    assert (first["event_id"], first["extra"]) == ("EVT_1001", {"job": "j", "step": 7, "loss": 2.5})
    assert first["message"] == "job=j step=7 loss=2.5"
    assert (second["event"], second["level"], second["message"]) == ("DISK_FULL", "WARN", "100 % full")
    assert second["extra"] == {"job": "j", "name": "x", "msg": "y"}
    assert third["event"] == "MESSAGE"
    assert "ZeroDivisionError" in third["extra"]["exception"]


# never in the way


def test_lines_without_room_are_dropped_and_counted_and_errors_have_a_reserve(tmp_path):
    logger = logging.Logger("train", logging.INFO)  # noqa: LOG001 - of its own, and nobody else's
    handler = logs.JsonLines(tmp_path / "log.jsonl", room=10)
    logger.addHandler(handler)
    block = Slow()
    logger.info("first", extra={"data": {"slow": block}})
    awaited(lambda: handler._queue.qsize() == 0, 5.0, "the writer has it")
    start = time.perf_counter()
    for _ in range(20):
        logger.info("x")
    logger.error("bad")
    logger.error("worse")
    assert time.perf_counter() - start < 1.0
    assert handler.dropped == 12
    block.go.set()
    lines = written(logger)
    handler.close()
    assert [line["message"] for line in lines if line["level"] == "ERROR"] == ["bad"]
    (said,) = [line for line in lines if line["event"] == "LOGS_DROPPED"]
    assert (said["level"], said["extra"]) == ("WARN", {"dropped": 12})
    assert len(lines) == 1 + 9 + 1 + 1


def test_a_file_that_was_moved_away_is_opened_anew(log, tmp_path):
    (handler,) = log.handlers
    path = Path(handler.path)
    for number in range(3):
        log.info("line %d", number)
        handler.flush()
        path.rename(tmp_path / f"old-{number}")
    log.info("line 3")
    assert [line["message"] for line in written(log)] == ["line 3"]
    assert [json.loads((tmp_path / f"old-{n}").read_text())["message"] for n in range(3)] == [
        "line 0",
        "line 1",
        "line 2",
    ]


def test_a_file_that_cannot_be_written_costs_lines_and_nothing_else(tmp_path):
    (tmp_path / "file").write_text("")
    logger = logging.Logger("train", logging.INFO)  # noqa: LOG001 - of its own, and nobody else's
    handler = logs.attach(tmp_path / "file", rank=0, logger=logger)
    logger.info("x")
    handler.flush()
    assert handler.dropped == 1
    (tmp_path / "file").unlink()
    logger.info("y")
    assert [line["message"] for line in written(logger)] == ["y", "dropped=1"]
    handler.close()


def test_a_full_disk_leaves_whole_lines(tmp_path):
    sink = logs.Sink("/dev/full")
    assert sink.write(["a\n", "b\n"]) == 2
    sink.path = str(tmp_path / "log")
    assert sink.write(["c\n"]) == 0
    assert (tmp_path / "log").read_text() == "c\n"


def test_a_line_that_was_cut_does_not_spoil_the_next(tmp_path):
    sink = logs.Sink(tmp_path / "log")
    assert sink.write(["whole\n"]) == 0
    os.write(sink._file, b"ha")
    sink._broken = True
    assert sink.write(["next\n"]) == 0
    assert (tmp_path / "log").read_text() == "whole\nha\nnext\n"


def test_attaching_twice_writes_once(log, tmp_path):
    logs.attach(tmp_path, rank=3, logger=log)
    log.info("x")
    assert len(written(log)) == 1


CHILDREN = """
import logging, multiprocessing, os, sys
sys.path[:0] = [sys.argv[2], sys.argv[2] + "/tests"]
from rca.hook import logs
logging.getLogger().setLevel(logging.INFO)
handler = logs.attach(sys.argv[1], rank=0)
for number in range(500):
    logging.info("parent %d", number)
child = os.fork()
if child == 0:
    logging.info("child")
    sys.exit(0)
worker = multiprocessing.get_context("fork").Process(target=logging.info, args=("worker",))
worker.start()
worker.join()
os.waitpid(child, 0)
logging.info("last")
"""


def test_forked_children_write_their_own_lines_and_nobodys_twice(tmp_path):
    command = [sys.executable, "-c", CHILDREN, str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    said = [json.loads(line)["message"] for line in (tmp_path / "rank-0.jsonl").read_text().splitlines()]
    assert sorted(said) == sorted([*(f"parent {n}" for n in range(500)), "child", "worker", "last"])


STUCK = """
import logging, os, sys, time
sys.path.insert(0, sys.argv[2])
from rca.hook import logs
os.mkfifo(sys.argv[1])
logger = logging.getLogger()
logger.addHandler(logs.JsonLines(sys.argv[1], patience=0.3))
logger.warning("nobody reads this pipe")
start = time.monotonic()
"""


def test_the_end_does_not_wait_for_a_disk_that_hangs(tmp_path):
    start = time.monotonic()
    command = [sys.executable, "-c", STUCK, str(tmp_path / "pipe"), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0
    assert time.monotonic() - start < 20.0
    assert "lines were not written within 0.3 s" in done.stderr


def test_standard_output_takes_lines_too():
    code = "import logging, rca.hook.logs as l; l.attach('-', rank=1); logging.warning('x')"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout)["rank"] == 1


# the table


ROWS = list(events.table().values())


def test_the_table_is_the_one_that_is_shipped():
    lines = (shipped() / "tables" / "events.csv").read_text(encoding="utf-8").splitlines()
    rows = list(csv.reader(line for line in lines if not line.startswith("#")))
    assert rows[0] == ["event_id", "event", "level", "layer", "meaning", "source"]
    assert {len(row) for row in rows} == {6}, "a comma in a cell needs quotes"
    assert [row[:2] for row in rows[1:]] == [[one.id, one.name] for one in ROWS]
    assert 30 <= len(ROWS) <= 80


@pytest.mark.parametrize("event", ROWS, ids=str)
def test_every_event_is_well_formed(event):
    number = {"training": "1", "communication": "2", "resource": "3", "physical": "4"}
    assert re.fullmatch(rf"EVT_{number[event.layer]}\d{{3}}", event.id)
    assert re.fullmatch(r"[A-Z][A-Z0-9_]+", event.name)
    assert event.level in {"INFO", "WARN", "ERROR"}
    assert event.layer in LAYERS
    assert re.match(r"[A-Z]", event.meaning)
    assert not event.meaning.endswith(".")
    assert event.source


def test_ids_and_names_are_given_once():
    assert len({one.id for one in ROWS}) == len({one.name for one in ROWS}) == len(ROWS)


def test_events_are_constants_of_the_module():
    assert events.NCCL_TIMEOUT == events.find("EVT_2001") == events.find("NCCL_TIMEOUT")
    assert str(events.CUDA_OOM) == "CUDA_OOM"
    with pytest.raises(AttributeError, match=r"no event 'CUDA_OMM', they are listed in rules/tables/events\.csv"):
        events.CUDA_OMM  # noqa: B018


def test_every_event_that_the_code_speaks_of_is_in_the_table():
    named = {
        name
        for path in (ROOT / "rca" / "hook").glob("*.py")
        for name in re.findall(r'"event": "([A-Z_]+)"|"([A-Z]+_MISMATCH)"', path.read_text(encoding="utf-8"))
        for name in name
        if name
    }
    assert {"TRAIN_STEP", "CHECKPOINT_SAVE", "RERUN_MISMATCH"} <= named | {"CHECKPOINT_SAVE"}
    assert named <= set(events.table())


class Mute:
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise ZeroDivisionError

    __repr__ = __str__


def test_objects_that_cannot_say_what_they_are_stop_nothing(log):
    deep: list = []
    for _ in range(3000):
        deep = [deep]
    loop: dict = {}
    loop["again"] = loop
    for value in (Mute(), deep, loop, "\ud800", b"\xff", 10**5000, {Mute(): 1}):
        log.info("x", extra={"event": "TRAIN_STEP", "data": {"v": value}})
    log.info("%s", Mute())
    log.info(Mute())
    log.info("a %d", "b")
    log.info("e", extra={"event": Mute(), "data": 7})
    found = written(log)
    assert len(found) == 11
    assert found[0]["extra"] == {"v": "<Mute>"}
    assert [line["message"] for line in found[7:]] == ["%s <tuple>", "<Mute> ()", "a %d ('b',)", "e"]
    assert found[-1]["event"] == "<Mute>"
    [handler] = log.handlers
    assert handler.dropped == 0
