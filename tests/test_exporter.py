"""Logs become pages that Prometheus reads, whatever happens to them and whoever asks."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
import servers
import structlog
from click.testing import CliRunner
from own_process import PROGRAM, Own, awaited
from prometheus_client.parser import text_string_to_metric_families

from rca.cli import rca, run
from rca.errors import SourceError, UsageError
from rca.exporter import listen
from rca.exporter.listen import listening
from rca.exporter.logs import MOST_SHAPES, RESTS, Logs
from rca.exporter.names import Naming, Owner, pattern_of
from rca.exporter.page import Page
from rca.follow import WALK, Follower
from rca.ledger import Options

STEP = (
    " [2026-03-01 12:00:{second:02d}] iteration {step:8d}/    1000 | consumed samples: {samples:12d} | elapsed time per "
    "iteration (ms): {ms:.1f} | learning rate: 1.000000E-04 | global batch size:   512 | lm loss: {loss:.6E} | "
    "loss scale: 1.0 | grad norm: 0.500 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)
TIMERS = "(min, max) time across ranks (ms):\n    forward-backward ...............................: (400.00, 500.00)\n"


@pytest.fixture(autouse=True)
def log() -> Iterator[None]:
    """Let nobody else log to where a command of these tests did."""
    yield
    structlog.reset_defaults()


def step(number: int, ms: float = 500.0, loss: float = 2.0) -> str:
    return STEP.format(second=number % 60, step=number, samples=number * 512, ms=ms, loss=loss)


def values(page: bytes | str) -> dict[tuple[str, str], float]:
    """Return the values of a page by name and by the label that tells the series of a name apart here."""
    text = page.decode() if isinstance(page, bytes) else page
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            told = "".join(one.labels.get(name, "") for name in ("rank", "phase", "state", "reason", "shape"))
            found[one.name, told] = one.value
    return found


def linted(page: bytes) -> None:
    """Make sure that promtool has nothing to say of a page."""
    done = subprocess.run(
        [servers.binary("promtool"), "check", "metrics"], input=page, capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def logs(*paths: Path, naming: Naming | None = None) -> tuple[Logs, Follower]:
    follower = Follower([str(path) for path in paths], lambda path, text: None)
    return Logs(follower, naming or Naming(), Options()), follower


def page(of: Logs) -> bytes:
    return Page(of.metrics).text()[0]


# -- what logs say


def test_steps_of_a_log_are_on_the_page(tmp_path):
    (tmp_path / "train.log").write_text("".join(step(number) for number in range(1, 11)))
    one, _ = logs(tmp_path / "train.log", naming=Naming("llama-70b"))
    one.read(0.0)
    found = values(page(one))
    assert found["train_step", "last"] == 10.0
    assert found["train_step_duration_seconds_sum", "last"] == pytest.approx(5.0)
    assert found["train_loss", "last"] == 2.0
    assert found["rca_exporter_lines_total", ""] == 10.0
    assert found["rca_exporter_unknown_lines_total", ""] == 0.0
    assert b'job_id="llama-70b"' in page(one)
    linted(page(one))


def test_before_all_is_read_only_how_reading_goes_is_told(tmp_path):
    (tmp_path / "train.log").write_text(step(1))
    one, _ = logs(tmp_path / "train.log")
    assert not one.ready
    one._take(next(one._follower.poll(0.0)))
    assert {name for name, _ in values(page(one))} >= {"rca_exporter_lines_total"}
    assert "train_step" not in page(one).decode()
    one.read(1.0)
    assert one.ready
    assert ("train_step", "last") in values(page(one))


def test_reading_ends_between_two_blocks_when_it_is_told_to(tmp_path):
    (tmp_path / "a.log").write_text(step(1))
    (tmp_path / "b.log").write_text(step(2))
    one, _ = logs(tmp_path / "a.log", tmp_path / "b.log")
    one.read(0.0, lambda: True)
    assert (one._read_lines(), one.ready) == (1, False)


def test_timers_at_the_end_are_taken_when_the_log_rests(tmp_path):
    log = tmp_path / "train.log"
    log.write_text(step(1) + TIMERS)
    one, _ = logs(log)
    now = log.stat().st_mtime
    one.read(now)
    assert ("train_phase_max_seconds", "forward_backward") not in values(page(one))
    one.read(now + RESTS + 1.0)
    assert values(page(one))["train_phase_max_seconds", "forward_backward"] == 0.5


def test_ranks_of_a_folder_are_told_by_its_paths_and_forgotten_with_its_files(tmp_path):
    for job in ("a", "b"):
        for rank in (0, 1):
            (tmp_path / job).mkdir(exist_ok=True)
            (tmp_path / job / f"rank-{rank}.log").write_text(step(5 + rank))
    one, _ = logs(tmp_path, naming=Naming(pattern=pattern_of("--names", r"(?P<job>[^/]+)/rank-(?P<rank>\d+)\.log")))
    one.read(0.0)
    text = page(one).decode()
    assert 'train_step{job_id="a",rank="0"} 5.0' in text
    assert 'train_step{job_id="b",rank="1"} 6.0' in text
    for rank in (0, 1):
        (tmp_path / "a" / f"rank-{rank}.log").unlink()
    for look in range(20):
        one.read(WALK * (look + 10))
    text = page(one).decode()
    assert 'job_id="a"' not in text
    assert 'job_id="b"' in text
    assert values(text)["rca_exporter_lines_total", ""] == 4.0, "what was read stays counted"


def test_unknown_lines_are_counted_exactly_and_shown_by_few_shapes(tmp_path):
    words = [f"{chr(97 + number % 26)}{chr(97 + number // 26)} says something" for number in range(100)]
    (tmp_path / "a.log").write_text("".join(f"{word} {number}\n" for number, word in enumerate(words * 3)))
    one, _ = logs(tmp_path / "a.log")
    one.read(0.0)
    found = values(page(one))
    assert found["rca_exporter_unknown_lines_total", ""] == 300.0
    assert sum(name == "rca_exporter_unknown_shape_lines" for name, _ in found) <= MOST_SHAPES
    assert "300 lines in 1 file, 300 of them not understood" in one.summary()
    linted(page(one))


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("/logs/train.log", ("default", None)),
        ("/logs/rank_7.log", ("default", "7")),
        ("/logs/rank007/out.log", ("default", "7")),
        ("/logs/global_rank-12.out", ("default", "12")),
        ("/run/none_x/attempt_0/3/stderr.log", ("default", "11")),
        ("/logs/frank7.log", ("default", None)),
        ("-", ("default", None)),
    ],
)
def test_paths_tell_ranks(path, owner):
    assert Naming(first_rank=8).owner(path) == Owner(*owner)


@pytest.mark.parametrize("text", ["(", "rank-([0-9]+)"])
def test_a_pattern_that_tells_nothing_is_refused(text):
    with pytest.raises(UsageError, match=r"^--names: .* write for example"):
        pattern_of("--names", text)


# -- once


def test_once_prints_the_page_and_says_the_rest(tmp_path):
    (tmp_path / "train.log").write_text(step(1) + "what is this 1\n" + step(2).rstrip("\n"))
    result = CliRunner().invoke(rca, ["exporter", str(tmp_path / "train.log"), "--once", "--job", "j"])
    assert result.exit_code == 0
    assert values(result.stdout)["train_step", "last"] == 2.0
    assert "3 lines in 1 file, 1 of them not understood\n        1 × what is this #" in result.stderr
    linted(result.stdout.encode())


def test_a_file_for_node_exporter_comes_whole_and_can_be_read_by_others(tmp_path):
    (tmp_path / "train.log").write_text(step(1))
    to = tmp_path / "rca.prom"
    assert run(rca, ["exporter", str(tmp_path / "train.log"), "--once", "--to", str(to)]) == 0
    assert values(to.read_bytes())["train_step", "last"] == 1.0
    assert "process_" not in to.read_text(), "node_exporter has its own"
    assert to.stat().st_mode & 0o044 == 0o044
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rca.prom", "train.log"]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ([], 2, "nothing to export: name a log, a folder or -, or give --nvml"),
        (["{}/none.log", "--once"], 4, "none.log: is not there"),
        (["{}", "--once", "--to", "{}/no/x.prom"], 4, "x.prom: cannot be written, no such file or directory"),
        (["{}", "--since", "yesterday"], 2, "--since: not a duration: 'yesterday'"),
        (["{}", "--names", "(", "--once"], 2, "--names: '(' is no regular expression"),
        (["{}", "--listen", "9690"], 2, "--listen: '9690' is not HOST:PORT, write for example 127.0.0.1:9690"),
        (["{}", "--listen", "127.0.0.1:99999"], 2, "is not HOST:PORT"),
        (["{}", "--listen", "no.such.host.invalid:9690"], 4, "choose another address or port"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said(arguments, status, said, tmp_path, capsys):
    assert run(rca, ["exporter", *(one.format(tmp_path) for one in arguments)]) == status
    assert said in capsys.readouterr().err


# -- over HTTP


@contextmanager
def serving(text: Callable[[str], tuple[bytes, str]], *, ready: bool = True) -> Iterator[str]:
    with listening("127.0.0.1:0", text, lambda: ready) as (host, port):
        yield f"http://{host}:{port}"


def plain(_accept: str) -> tuple[bytes, str]:
    return b"up 1\n", "text/plain"


def test_pages_and_health_are_served(tmp_path):
    one, _ = logs(tmp_path)
    with serving(Page(one.metrics).text) as url:
        answer = requests.get(f"{url}/metrics", timeout=5)
        assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        linted(answer.content)
        answer = requests.get(
            f"{url}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}, timeout=5
        )
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        assert answer.text.endswith("# EOF\n")
        assert requests.get(f"{url}/-/healthy", timeout=5).text == "healthy\n"
        assert requests.get(f"{url}/-/ready", timeout=5).status_code == 200
        assert requests.get(f"{url}/x", timeout=5).status_code == 404
        assert requests.head(f"{url}/metrics", timeout=5).text == ""
        assert requests.post(f"{url}/metrics", timeout=5).status_code == 501
    with serving(plain, ready=False) as url:
        assert requests.get(f"{url}/-/ready", timeout=5).status_code == 503


def test_a_port_that_is_taken_is_said():
    said = r"--listen: .*: address already in use, choose another"
    with serving(plain) as url, pytest.raises(SourceError, match=said), listening(url[7:], plain, lambda: True):
        pass


def test_clients_that_dawdle_keep_nobody_waiting():
    with serving(plain) as url:
        address = (url.split("//")[1].split(":")[0], int(url.rsplit(":", 1)[1]))
        slow = [socket.create_connection(address, timeout=5) for _ in range(listen.MOST_CLIENTS - 2)]
        for one in slow:
            one.sendall(b"GET /metrics HTTP/1.1\r\n")
        began = time.monotonic()
        assert requests.get(f"{url}/metrics", timeout=5).text == "up 1\n"
        assert time.monotonic() - began < 2.0
        slow += [socket.create_connection(address, timeout=5) for _ in range(20)]
        for one in slow:
            one.close()
        awaited(lambda: answers(url), 5.0, "it serves again")


def answers(url: str) -> bool:
    try:
        return requests.get(f"{url}/metrics", timeout=5).status_code == 200
    except requests.ConnectionError:
        return False


# -- as a process


@contextmanager
def exporting(folder: Path, *arguments: str) -> Iterator[Own]:
    port = servers.free_port()
    own = Own(folder, "exporter", port, ["exporter", *arguments, "--listen", f"127.0.0.1:{port}"])
    own.start()
    try:
        yield own
    finally:
        own.kill()


def query(url: str, expression: str) -> list[float]:
    with urllib.request.urlopen(f"{url}/api/v1/query?query={urllib.request.quote(expression)}", timeout=5) as response:
        return [float(one["value"][1]) for one in json.load(response)["data"]["result"]]


def test_prometheus_sees_a_log_grow(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("".join(step(number) for number in range(1, 4)))
    with exporting(tmp_path, str(log), "--job", "llama-70b") as own:
        config = (
            "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
            f"scrape_configs: [{{job_name: rca-exporter, static_configs: [{{targets: ['{own.url.removeprefix('http://')}']}}]}}]\n"
        )
        with servers.prometheus(tmp_path / "prometheus", config=config) as prometheus:
            awaited(lambda: query(prometheus, 'train_step{job_id="llama-70b"}') == [3.0], 20.0, "the first steps")
            with log.open("a") as file:
                file.write("".join(step(number, ms=700.0, loss=1.5) for number in range(4, 8)))
                file.write(step(8)[:50])
            awaited(lambda: query(prometheus, "train_step") == [7.0], 20.0, "the next steps")
            assert query(prometheus, "train_loss") == [1.5]
            assert query(prometheus, "train_step_duration_seconds_sum") == [pytest.approx(3 * 0.5 + 4 * 0.7)]
            assert query(prometheus, "train_steps_total") == [7.0]
            log.rename(tmp_path / "train.log.1")
            log.write_text(step(9))
            awaited(lambda: query(prometheus, "train_step") == [9.0], 20.0, "the step after a rotation")
            assert query(prometheus, "rca_exporter_unknown_lines_total") == [0.0]
            assert query(prometheus, "up") == [1.0]
        linted(requests.get(f"{own.url}/metrics", timeout=5).content)
        os.kill(own.pid, signal.SIGUSR1)
        awaited(lambda: "8 lines in 2 files, 0 of them not understood" in own.said(), 5.0, "the summary")
        assert own.stop() == 0
    assert "Traceback" not in own.said()


def test_a_pipe_that_ends_ends_the_exporter(tmp_path):
    process = subprocess.Popen(
        [*PROGRAM, "exporter", "-", "--to", str(tmp_path / "rca.prom"), "--every", "1s"],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(step(1).encode())
    process.stdin.flush()
    awaited(
        lambda: (tmp_path / "rca.prom").exists() and b"train_step{" in (tmp_path / "rca.prom").read_bytes(),
        10.0,
        "a page",
    )
    _, said = process.communicate(step(2).encode(), timeout=10)
    assert process.returncode == 0
    assert values((tmp_path / "rca.prom").read_bytes())["train_step", "last"] == 2.0
    assert b"2 lines in 1 file" in said


def test_it_says_when_everybody_may_read(tmp_path):
    port = servers.free_port()
    own = Own(tmp_path, "exporter", port, ["exporter", str(tmp_path), "--listen", f"0.0.0.0:{port}"])
    own.start()
    assert own.stop() == 0
    assert "everybody who reaches this address may read it" in own.said()


def test_where_there_is_no_gpu_it_says_so(capsys):
    assert run(rca, ["exporter", "--nvml", "--once"]) in {0, 4}
    assert "nvml: " in capsys.readouterr().err or Path("/dev/nvidia0").exists()


def test_it_is_light():
    code = "import sys; from rca.exporter import run; print(*{'scipy', 'networkx', 'yaml', 'sqlalchemy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
