"""Logs are followed through whatever happens to them: no line is lost, none comes twice."""

import os
import shutil
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rca import tail
from rca.follow import GONE, MOST_HELD, WALK, Follower


class Told:
    """Keeps what a follower says."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, path: str, text: str) -> None:
        self.lines.append(f"{Path(path).name}: {text}")


def follow(*paths: Path | str, **more: object) -> tuple[Follower, Told]:
    told = Told()
    return Follower([str(path) for path in paths], told, **more), told


def lines(follower: Follower, at: float = 0.0) -> dict[str, list[bytes]]:
    """Return what is new, by the name of the log."""
    found: dict[str, list[bytes]] = {}
    for block in follower.poll(at):
        assert block.data.endswith(b"\n")
        found.setdefault(Path(block.source).name, []).extend(block.data.split(b"\n")[:-1])
    return found


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


# -- one file


def test_only_complete_lines_come_and_each_once(tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes("one\nzwölf".encode()[:-3])
    follower, _ = follow(log)
    assert lines(follower) == {"a.log": [b"one"]}
    assert lines(follower) == {}
    append(log, "zwölf".encode()[-3:] + b"\ntwo\n")
    assert lines(follower) == {"a.log": ["zwölf".encode(), b"two"]}
    assert follower.counts.read == log.stat().st_size


def test_a_large_backlog_comes_in_large_blocks(tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes(b"a line of some length\n" * 600_000)
    follower, _ = follow(log)
    blocks = list(follower.poll(0.0))
    assert sum(block.data.count(b"\n") for block in blocks) == 600_000
    assert len(blocks) == 4


def test_a_line_of_ten_mebibytes_comes_whole_and_one_beyond_measure_is_left_out(tmp_path):
    log = tmp_path / "a.log"
    long = b"x" * (10 << 20)
    log.write_bytes(b"one\n" + long + b"\ntwo\n" + b"y" * (tail.LONGEST + 5))
    follower, _ = follow(log)
    assert lines(follower) == {"a.log": [b"one", long, b"two"]}
    append(log, b"y" * 1000 + b"\nthree\n")
    assert lines(follower) == {"a.log": [b"three"]}
    assert follower.counts.too_long == 1


def test_of_a_progress_bar_only_the_last_state_is_kept(tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes(b"".join(b"\r%6d/100000" % step for step in range(10_000)))
    follower, _ = follow(log)
    assert lines(follower) == {}
    append(log, b"\rdone\n")
    assert lines(follower) == {"a.log": [b"  9999/100000\rdone"]}


def test_what_a_writer_left_empty_before_its_place_is_no_line(tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes(b"one\n")
    follower, _ = follow(log)
    lines(follower)
    with log.open("r+b") as file:
        file.truncate(0)
        file.seek(100 << 20)
        file.write(b"two\n")
    assert lines(follower) == {"a.log": [b"two"]}
    assert (follower.counts.too_long, follower.counts.truncations) == (0, 1)


def test_zeros_at_the_end_are_not_written_yet(tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes(b"one\ntw\0\0\0\0")
    follower, _ = follow(log)
    assert lines(follower) == {"a.log": [b"one"]}
    log.write_bytes(b"one\ntwo\nsix\n")
    assert lines(follower) == {"a.log": [b"two", b"six"]}
    assert follower.counts.truncations == 0


def test_written_anew_and_longer_is_noticed(tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes(b"first run, line one\n")
    follower, _ = follow(log)
    lines(follower)
    log.write_bytes(b"second run, line one\nsecond run, line two\n")
    assert lines(follower) == {"a.log": [b"second run, line one", b"second run, line two"]}
    assert follower.counts.truncations == 1


def test_a_line_that_breaks_off_is_counted(tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes(b"one\nloss: 12")
    follower, _ = follow(log)
    assert lines(follower) == {"a.log": [b"one"]}
    log.write_bytes(b"")
    append(log, b"two\n")
    assert lines(follower) == {"a.log": [b"two"]}
    assert follower.counts.broken == 1


def test_who_will_not_look_again_takes_the_last_line_as_it_is(tmp_path):
    (tmp_path / "a.log").write_bytes(b"one\ntwo")
    follower, _ = follow(tmp_path / "a.log")
    assert lines(follower) == {"a.log": [b"one"]}
    follower.close()
    assert [block.data for block in follower.unfinished(0.0)] == [b"two\n"]


# -- rotation


def test_a_renamed_file_is_read_to_its_end_before_the_new_one(tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes(b"one\n")
    follower, _ = follow(log)
    with log.open("ab", buffering=0) as writer:
        lines(follower)
        writer.write(b"two\nth")
        log.rename(tmp_path / "a.log.1")
        log.write_bytes(b"five\n")
        assert lines(follower, 1.0) == {"a.log": [b"two", b"five"]}
        writer.write(b"ree\nfour\n")
    assert lines(follower, 2.0) == {"a.log": [b"three", b"four"]}
    (tmp_path / "a.log.1").rename(tmp_path / "a.log.2")
    append(tmp_path / "a.log.2", b"late\n")
    assert lines(follower, 3.0) == {"a.log": [b"late"]}
    assert follower.counts.rotations == 1


def test_a_file_deleted_at_once_after_its_rotation_is_read_to_its_end(tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes(b"one\n")
    follower, _ = follow(log)
    lines(follower)
    append(log, b"two\n")
    log.unlink()
    log.write_bytes(b"three\n")
    assert lines(follower, 1.0) == {"a.log": [b"two", b"three"]}
    for at in range(2, 10):
        lines(follower, at + GONE)
    assert follower.files == 1


def test_the_end_of_a_truncated_file_is_read_from_its_copy(tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes(b"one\n")
    follower, _ = follow(tmp_path, patterns=["a.*"])
    assert lines(follower) == {"a.log": [b"one"]}
    append(log, b"two\nthr")
    shutil.copy(log, tmp_path / "a.log.1")
    assert lines(follower, WALK) == {"a.log": [b"two"]}, "the copy is there, and not truncated yet"
    append(log, b"ee\n")
    shutil.copy(log, tmp_path / "a.log.1")
    os.truncate(log, 0)
    append(log, b"four\n")
    assert lines(follower, 2 * WALK) == {"a.log": [b"three", b"four"]}
    assert lines(follower, 3 * WALK) == {}


def test_a_line_that_was_half_copied_goes_on_in_the_truncated_file(tmp_path):
    log = tmp_path / "a.log"
    log.write_bytes(b"one\nt")
    follower, _ = follow(log)
    lines(follower)
    append(log, b"w")
    shutil.copy(log, tmp_path / "a.log-20260301")
    os.truncate(log, 0)
    append(log, b"o\nthree\n")
    assert lines(follower) == {"a.log": [b"two", b"three"]}
    assert follower.counts.broken == 0


# -- folders


def test_new_files_are_found_and_files_that_vanish_are_forgotten(tmp_path):
    (tmp_path / "rank-0.log").write_bytes(b"zero\n")
    (tmp_path / "core.bin").write_bytes(b"no log\n")
    follower, _ = follow(tmp_path)
    assert lines(follower) == {"rank-0.log": [b"zero"]}
    deep = tmp_path / "attempt_1" / "3"
    deep.mkdir(parents=True)
    (deep / "stdout.log").write_bytes(b"three\n")
    assert lines(follower, 1.0) == {"stdout.log": [b"three"]}, "a folder says that it has changed"
    (deep / "stderr.log").write_bytes(b"three, too\n")
    for path in (tmp_path, deep.parent, deep):
        follower._stamps[str(path)] = path.stat().st_mtime_ns  # as where a folder does not
    assert lines(follower, 2.0) == {}
    assert lines(follower, 1.0 + WALK) == {"stderr.log": [b"three, too"]}
    (tmp_path / "rank-0.log").unlink()
    gone = []
    for at in range(20):
        lines(follower, 2 * WALK + 10.0 * at)
        gone += follower.gone
    assert (gone, follower.files) == ([str(tmp_path / "rank-0.log")], 2)


def test_rotated_packed_linked_and_old_files_are_no_logs_of_their_own(tmp_path):
    for name in ("a.log", "a.log.1", "a-20260301.log", "a.log.2.gz", "old.log", "rank.0.log", "rank.1.log"):
        (tmp_path / name).write_bytes(name.encode() + b"\n")
    (tmp_path / "latest.log").symlink_to("a.log")
    os.utime(tmp_path / "old.log", (0, 0))
    follower, _ = follow(tmp_path, patterns=["*"], since=86400.0)
    now = (tmp_path / "a.log").stat().st_mtime
    assert sorted(lines(follower, now)) == ["a.log", "rank.0.log", "rank.1.log"]


def test_a_file_that_is_named_twice_comes_once(tmp_path):
    (tmp_path / "a.log").write_bytes(b"one\n")
    (tmp_path / "b.log").symlink_to("a.log")
    follower, told = follow(tmp_path / "a.log", tmp_path / "b.log", tmp_path, f"{tmp_path}/./a.log")
    assert lines(follower) == {"a.log": [b"one"]}
    already = f"is followed already, as {tmp_path / 'a.log'}"
    assert told.lines == [f"b.log: {already}", f"a.log: {already}"]
    assert (follower.unreadable, follower.files) == (0, 1)


def test_a_file_renamed_inside_its_folder_comes_once(tmp_path):
    (tmp_path / "a.log").write_bytes(b"one\n")
    follower, _ = follow(tmp_path)
    lines(follower)
    (tmp_path / "a.log").rename(tmp_path / "b.log")
    append(tmp_path / "b.log", b"two\n")
    assert lines(follower, WALK) == {"a.log": [b"two"]}
    for at in range(3, 40):
        assert lines(follower, at * WALK) == {}


def test_more_files_than_are_held_open_are_followed_through_a_rotation(tmp_path):
    names = [f"rank_{number}.log" for number in range(MOST_HELD + 50)]
    for name in names:
        (tmp_path / name).write_bytes(b"one\n")
    follower, _ = follow(tmp_path)
    assert len(lines(follower)) == len(names)
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) < MOST_HELD + 100
    for name in names:
        append(tmp_path / name, b"two\n")
        (tmp_path / name).rename(tmp_path / f"{name}.1")
        (tmp_path / name).write_bytes(b"three\n")
    assert lines(follower, 1.0) == {name: [b"two", b"three"] for name in names}
    follower.close()


# -- what cannot be read


def test_what_is_not_there_is_said_once_and_tried_again(tmp_path):
    follower, told = follow(tmp_path / "a.log", tmp_path / "run")
    for at in range(5):
        assert lines(follower, WALK * at) == {}
    assert told.lines == ["a.log: cannot be read: is not there; it is tried again",
                          "run: cannot be read: is not there; it is tried again"]  # fmt: skip
    assert follower.unreadable == 2
    (tmp_path / "a.log").write_bytes(b"one\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "b.log").write_bytes(b"two\n")
    seen = {**lines(follower, 100.0), **lines(follower, 200.0)}
    assert seen == {"a.log": [b"one"], "b.log": [b"two"]}
    assert (told.lines[2:], follower.unreadable) == (["a.log: can be read now"], 0)


def test_what_is_no_file_is_said_once_and_hangs_nobody(tmp_path):
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "loop.log").symlink_to("loop.log")
    follower, told = follow(tmp_path / "pipe.log", tmp_path / "loop.log")
    for at in range(5):
        assert lines(follower, WALK * at) == {}
    assert told.lines == ["pipe.log: cannot be read: is no regular file; it is tried again",
                          "loop.log: cannot be read: too many levels of symbolic links; it is tried again"]  # fmt: skip


# -- streams


def test_a_stream_is_read_to_its_end_with_the_last_line(tmp_path):
    reading, writing = os.pipe()
    follower, _ = follow("-")
    assert follower.stream is not None
    follower.stream.file = reading
    os.write(writing, b"one\ntw")
    assert lines(follower) == {"-": [b"one"]}
    threading.Timer(0.05, os.write, (writing, b"o\nthree")).start()
    wake, stop = os.pipe()
    follower.wait(10.0, wake)
    assert lines(follower) == {"-": [b"two"]}
    os.close(writing)
    assert lines(follower) == {"-": [b"three"]}
    assert follower.over
    for descriptor in (reading, wake, stop):
        os.close(descriptor)


@pytest.mark.parametrize("size", [1, 5, 4096, 1 << 20])
def test_a_stream_may_be_cut_anywhere(size):
    text = b"".join(b"line %d\n" % number for number in range(1000)) + b"x" * (tail.LONGEST + 10) + b"\nlast\n"
    text = text if size > 5000 else text[:8000]
    counts, read = tail.Counts(), b""
    source, sink = os.pipe()
    stream = tail.Stream("-", source, counts)

    def write() -> None:
        for begin in range(0, len(text), size):
            os.write(sink, text[begin : begin + size])
        os.close(sink)

    thread = threading.Thread(target=write)
    thread.start()
    while not stream.ended:
        read += stream.block()
    thread.join()
    os.close(source)
    assert read == b"".join(line + b"\n" for line in text.split(b"\n") if line and len(line) < 1000)
    assert counts.too_long == (size > 5000)


# -- everything at random


class Log(RuleBasedStateMachine):
    """A log that is written, rotated and truncated in every way; all its complete lines are seen once, in order."""

    @initialize(folder=st.booleans())
    def begin(self, folder):
        self.folder = Path(tempfile.mkdtemp(dir=os.environ["RCA_TEST_FOLDER"]))
        self.log = self.folder / "train.log"
        self.told = Told()
        self.follower = Follower([str(self.folder if folder else self.log)], self.told, patterns=["train*"])
        self.at, self.number, self.copies = 0.0, 0, 0
        self.expected: list[bytes] = []
        self.seen: list[bytes] = []
        self.half = b""
        self.looked = False
        self.file = self.log.open("ab", buffering=0)
        self.former = None

    def _wrote(self):
        """Give each state of the file its own time, as hours between them would."""
        self.number += 1
        os.utime(self.file.fileno(), ns=(0, self.number * 1_000_000_000))

    @rule(text=st.text(max_size=20), count=st.integers(1, 4))
    def write(self, text, count):
        clean = "".join(text.split()).replace("\0", "").encode(errors="replace")
        for _ in range(count):
            self.number += 1
            line = b"%d %s" % (self.number, clean)
            self.file.write(line + b"\n")
            self.expected.append(self.half + line)
            self.half = b""
        self._wrote()

    @rule(cut=st.integers(1, 5))
    def write_half(self, cut):
        self.number += 1
        part = f"{self.number}-höher".encode()[: cut + 3]
        self.file.write(part)
        self.half += part
        self._wrote()

    @rule(wait=st.sampled_from([0.5, 1.0, WALK, 100.0]))
    def look(self, wait):
        self.at = max([self.at + wait, *(source.due for source in self.follower.sources.values())])
        for block in self.follower.poll(self.at):
            self.seen += block.data.split(b"\n")[:-1]
        self.looked = True

    @precondition(lambda self: self.looked)
    @rule(late=st.booleans(), late_line=st.booleans())
    def rename(self, late, late_line):
        """Rotate as logrotate does by default; the writer may go on writing to the old file for a while."""
        if self.half:
            self.write("", 1)
        self.copies += 1
        self.log.rename(self.folder / f"train.log.{self.copies}")
        if late:
            self.look(1.0)
        if late_line:
            self.write("late", 1)
        self.file.close()
        self.file = self.log.open("ab", buffering=0)
        self._wrote()
        self.looked = False

    @precondition(lambda self: self.looked and self.seen_something())
    @rule(between=st.booleans())
    def copy_and_truncate(self, between):
        self.copies += 1
        shutil.copyfile(self.log, self.folder / f"train.log.{self.copies}")
        if between:
            self.look(WALK)
        os.truncate(self.log, 0)
        self._wrote()
        self.looked = False

    def seen_something(self):
        """Say whether the file has been looked at with something in it: by that its copy is known."""
        return any(one.mark for source in self.follower.sources.values() for one in [source.current] if one)

    @rule()
    def write_anew(self):
        """A job starts again and empties its log; what nobody has looked at then is lost, as is half a line."""
        self.look(WALK)
        if self.log.stat().st_size == 0:
            return  # to empty what is empty changes nothing that anybody could see
        self.half = b""
        os.truncate(self.log, 0)
        self._wrote()
        self.looked = False

    @rule()
    def delete(self):
        self.look(WALK)
        if self.half:
            self.write("", 1)
        self.log.unlink()
        self.file.close()
        self.file = self.log.open("ab", buffering=0)
        self._wrote()
        self.looked = False

    @invariant()
    def nothing_comes_early_or_twice(self):
        if hasattr(self, "seen"):
            assert self.seen == self.expected[: len(self.seen)]

    def teardown(self):
        if not hasattr(self, "seen"):
            return
        try:
            self.look(WALK)
            self.write("last", 1)
            self.look(WALK)
            self.look(WALK)
            assert self.seen == self.expected
        finally:
            self.follower.close()
            self.file.close()


def test_a_log_with_any_history_loses_and_doubles_no_line(tmp_path, monkeypatch):
    monkeypatch.setenv("RCA_TEST_FOLDER", str(tmp_path))
    machine = settings(max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))
    Log.TestCase.settings = machine
    Log.TestCase("runTest").runTest()
