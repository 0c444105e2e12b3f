"""Eyes in a process of their own see what eyes here see, and nothing is lost when that process is killed."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import made_up
import pytest
from own_server import wait_until
from read_once import load

from rca.apart import Apart
from rca.config import Settings
from rca.errors import Problem, ProblemsError, SourceError, UsageError
from rca.metrics import Look
from rca.plain import unix
from rca.render.json import render
from rca.sources.assemble import Deployment
from rca.sources.recording import RecordingSource
from rca.watch import Eyes, Question, Rules, Shard

RULES = Rules(Settings(), load(), Deployment(), made_up.opened)
ROOT = Path(__file__).parents[1]


class Noted:
    """Past and present that note what is asked and told."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.told: list[Look] = []
        self.error: Exception | None = None
        self.slow = threading.Event()
        self.slow.set()

    def history(self, at: float) -> dict[tuple[str, str], int]:
        self.asked.append(at)
        self.slow.wait(20)
        if self.error is not None:
            raise self.error
        return {("gpu_thermal_throttling", "gpu node=node-03 gpu=5"): 2}

    def saw(self, look: Look) -> None:
        self.told.append(look)


@pytest.fixture
def noted() -> Noted:
    return Noted()


@pytest.fixture
def apart(noted: Noted) -> Iterator[Apart]:
    one = Apart(RULES, noted, noted)
    one.start()
    yield one
    one.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_it_sees_what_eyes_here_see(apart: Apart, noted: Noted) -> None:
    here, beside = Noted(), apart.ask(Question(), keep=True)
    told = Eyes(RULES, here, here).ask(Question(), keep=True)
    assert (render(beside.report), beside.seen) == (render(told.report), told.seen)
    assert RecordingSource(BytesIO(beside.seen)).latest() == unix(beside.report.window.end)
    assert beside.report.causes[0].cause == "gpu_thermal_throttling"
    assert noted.asked == here.asked
    assert noted.told == here.told
    report = apart.tick(wary=True)
    assert report is not None
    assert report.causes == Eyes(RULES, here, here).tick(wary=True).causes
    assert apart.poured()[:2] == b"PK"
    assert apart.owns("any")
    assert not Apart(RULES, noted, noted, Shard(1, 2)).owns("llama-70b")


def test_errors_come_back_as_they_are(apart: Apart, noted: Noted) -> None:
    with pytest.raises(UsageError, match="no such job: 'llama-70', did you mean 'llama-70b'"):
        apart.ask(Question(jobs=("llama-70",)), keep=False)
    pid = apart.pid
    noted.error = SourceError("store: away")
    with pytest.raises(SourceError, match="store: away"):
        apart.ask(Question(), keep=False)
    noted.error = None
    apart.rules = RULES._replace(open=made_up.away)
    with pytest.raises(SourceError, match="connection refused"):
        apart.ask(Question(), keep=False)
    apart.rules = RULES._replace(open=made_up.broken)
    with pytest.raises(FileNotFoundError) as caught:
        apart.ask(Question(), keep=False)
    assert "in broken" in caught.value.__notes__[0]
    apart.rules = RULES
    assert apart.ask(Question(), keep=False).report.status == "causes_found"
    assert apart.pid == pid, "an error ends no process"
    problems = ProblemsError((Problem("a.yaml:1", "is wrong"), Problem("b.yaml:2", "is too")))
    assert pickle.loads(pickle.dumps(problems)).problems == problems.problems


def test_a_child_that_is_killed_costs_a_retry_alone(apart: Apart, noted: Noted) -> None:
    apart.ask(Question(), keep=False)
    os.kill(apart.pid, signal.SIGKILL)
    assert apart.ask(Question(), keep=False).report.status == "causes_found"
    noted.slow.clear()  # and while it is asked
    first, answers, before = apart.pid, [], len(noted.asked)
    asking = threading.Thread(target=lambda: answers.append(apart.ask(Question(), keep=False)))
    asking.start()
    wait_until(lambda: len(noted.asked) > before)
    os.kill(first, signal.SIGKILL)
    noted.slow.set()
    asking.join(30)
    assert answers[0].report.status == "causes_found"
    assert apart.pid != first


def test_an_end_is_prompt_and_who_waits_is_told(apart: Apart, noted: Noted) -> None:
    apart.ask(Question(), keep=False)
    noted.slow.clear()
    told: list[str] = []

    def ask() -> None:
        try:
            apart.ask(Question(), keep=False)
        except SourceError as error:
            told.append(str(error))

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(lambda: len(noted.asked) == 2)
    pid, start = apart.pid, time.monotonic()
    apart.close()
    noted.slow.set()
    asking.join(10)
    assert time.monotonic() - start < 5.0
    assert told == ["the process that looks at the source is told to end"]
    assert not alive(pid)


def test_it_dies_with_its_parent_even_while_it_computes(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import sys, time
        import made_up
        from test_apart import RULES, Noted
        from rca.apart import Apart
        from rca.watch import Question
        if __name__ == "__main__":
            noted = Noted()
            one = Apart(RULES, noted, noted)
            one.start()
            print(one.pid, flush=True)
            while True:
                one.ask(Question(), keep=False)
                print("asked", flush=True)
    """)
    path = tmp_path / "parent.py"
    path.write_text(script)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}"}
    with subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, env=environment, text=True) as parent:
        assert parent.stdout is not None
        try:
            pid = int(parent.stdout.readline())
            assert parent.stdout.readline() == "asked\n"
            time.sleep(0.1)
            parent.kill()
            wait_until(lambda: not alive(pid))
        finally:
            parent.kill()
            with contextlib.suppress(ProcessLookupError, NameError):
                os.kill(pid, signal.SIGKILL)
