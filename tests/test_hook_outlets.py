"""How metrics leave the process, what that costs it, and that nothing of it ever stands in the way."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import servers
from own_process import awaited

from rca.hook import Hook, Identity, Settings, Surroundings
from rca.hook.outlets import HttpOutlet

ROOT = Path(__file__).resolve().parent.parent
HEAVY = (
    "numpy", "scipy", "networkx", "msgspec", "prometheus_api_client", "prometheus_client", "torch", "yaml", "requests",
    "structlog", "click", "rich", "sqlalchemy", "dataclasses", "inspect", "http", "email",
)  # fmt: skip


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def serve():
    """Make hooks that serve on a port of their own."""
    made = []

    def one(listen="127.0.0.1:0", rank=0, **more):
        who = Identity(rank=rank, local_rank=rank, world=8, job="j", node="n")
        made.append(Hook(who=who, settings=Settings(listen=listen, **more)))
        return made[-1]

    yield one
    for hook in made:
        hook.close()


def fetch(address, path="/metrics", method="GET"):
    url = f"http://{address[0]}:{address[1]}{path}"
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as answer:
        return answer.status, answer.headers["Content-Type"], answer.read().decode()


# import


def test_the_import_is_light_and_brings_nothing_else_of_rca():
    code = "import sys, rca.hook; print(*sorted(sys.modules))"
    loaded = run(code).stdout.split()
    assert [name for name in loaded if name.partition(".")[0] in HEAVY] == []
    assert [name for name in loaded if name.startswith("rca.") and not name.startswith("rca.hook")] == []
    assert "rca.hook.logs" not in loaded
    assert "socket" not in loaded, "only where something is served"


def test_all_of_it_lives_on_the_standard_library():
    code = (
        "import sys, rca.hook, rca.hook.logs, rca.hook.events, rca.hook.outlets, rca.hook.huggingface, rca.hook.lightning\n"
        "rca.hook.events.table()\n"
        "ours = {name.partition('.')[0] for name in sys.modules if not name.startswith('_')}\n"
        "print(*sorted(ours - set(sys.stdlib_module_names) - {'rca', 'sitecustomize', 'usercustomize'}))"
    )
    assert run(code).stdout.split() == []


def test_the_import_takes_no_longer_than_it_must():
    """Not seconds, which other programs disturb: no more than four times a program that imports what any has."""
    light = "import logging, pathlib, typing, re, threading"
    took = {"hook": [], "light": []}
    for _ in range(3):
        for name, code in (("hook", "import rca.hook"), ("light", light)):
            done = run(f"import time; s = time.process_time(); {code}; print(time.process_time() - s)")
            took[name].append(float(done.stdout))
    assert min(took["hook"]) < 4 * min(took["light"])


# HTTP


def test_the_metrics_are_served(serve):
    hook = serve()
    with hook.step(3):
        pass
    status, kind, text = fetch(hook.address)
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert 'train_step{job_id="j",rank="0"} 3\n' in text
    assert fetch(hook.address, "/metrics?x=1")[2].splitlines()[0] == text.splitlines()[0]
    assert fetch(hook.address, method="HEAD")[2] == ""


@pytest.mark.parametrize(("path", "method", "status"), [("/other", "GET", 404), ("/metrics", "POST", 405)])
def test_other_requests_are_refused(serve, path, method, status):
    hook = serve()
    with pytest.raises(urllib.error.HTTPError) as error:
        fetch(hook.address, path, method)
    assert error.value.code == status
    error.value.close()


@pytest.mark.parametrize(
    "sent", [b"", b"\r\n", b"\xff\xfe\x00", b"GET\r\n\r\n", b"GET " + b"x" * 100_000, b"GET / HTTP/1.1\r\n"]
)
def test_odd_clients_do_no_harm(serve, sent):
    hook = serve()
    with socket.create_connection(hook.address, timeout=5) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        while True:
            try:
                if not client.recv(65536):
                    break
            except ConnectionError:
                break
    assert fetch(hook.address)[0] == 200


def test_clients_that_say_nothing_hold_nobody_up(serve):
    hook = serve()
    silent = [socket.create_connection(hook.address, timeout=5) for _ in range(5)]
    assert fetch(hook.address)[0] == 200
    for one in silent:
        one.close()


def test_each_local_rank_has_the_next_port(serve):
    port = servers.free_port()
    hook = serve(f"127.0.0.1:{port - 3}", rank=3)
    assert hook.address == ("127.0.0.1", port)


def test_a_port_that_is_taken_is_said_once_and_served_when_it_is_free(caplog):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        outlet = HttpOutlet(("127.0.0.1", port), lambda: "x 1\n", again=0.05)
        time.sleep(0.2)
        assert outlet.address is None
    awaited(lambda: outlet.address, 5.0, "the port is free")
    awaited(lambda: fetch(("127.0.0.1", port))[2] == "x 1\n", 5.0, "it is served")
    outlet.close()
    (said,) = [one.getMessage() for one in caplog.records]
    assert said.startswith(f"127.0.0.1:{port}: cannot be listened on, address already in use")


def test_a_taken_port_does_not_stop_the_loop(serve):
    first = serve()
    second = serve(f"127.0.0.1:{first.address[1]}")
    with second.step():
        pass
    assert second.address is None
    assert 'train_steps_total{job_id="j",rank="0"} 1\n' in second.series.text()


@pytest.mark.parametrize("listen", ["9650", "here:there", "127.0.0.1:99999", "999.1.1.1:80", ":::"])
def test_an_address_that_is_none_is_said_and_survived(serve, caplog, listen):
    hook = serve(listen)
    assert hook.address is None
    assert caplog.text.count("\n") >= 1
    with hook.step():
        pass


def test_the_port_is_free_once_it_is_over(serve):
    hook = serve()
    address = hook.address
    hook.close()
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(address)


# textfile


def test_a_file_for_node_exporter_is_whole_at_every_moment(serve, tmp_path):
    hook = serve("", textfile=str(tmp_path), interval=0.05, rank=2)
    path = tmp_path / "rca_j_2.prom"
    awaited(path.is_file, 5.0, "it is written")
    for number in range(20):
        with hook.step(number):
            time.sleep(0.005)
        text = path.read_text()
        assert text.startswith("# HELP")
        assert text.endswith("\n")
        assert text.count("\ntrain_state{") == 7
    awaited(lambda: 'train_step{job_id="j",rank="2"} 19\n' in path.read_text(), 5.0, "it follows")
    assert hook.address is None
    assert {one.name for one in tmp_path.glob("*.prom")} == {path.name}
    hook.close()
    assert list(tmp_path.iterdir()) == [], "node_exporter would go on serving it"


def test_a_folder_that_cannot_be_written_is_said_once_and_survived(serve, tmp_path, caplog):
    hook = serve("", textfile=str(tmp_path / "nowhere"), interval=0.05)
    time.sleep(0.3)
    with hook.step():
        pass
    assert caplog.text.count("nowhere/rca_j_0.prom: cannot be written, no such file or directory") == 1


def test_settings_come_from_the_environment():
    read = {"RCA_HOOK_LISTEN": "1.2.3.4:5", "RCA_HOOK_LOGS": "/l"}
    assert Settings.read(Surroundings(environment=read))[:4] == ("1.2.3.4:5", "", 15.0, "/l")
    assert Settings.read(Surroundings(environment={})).listen == "0.0.0.0:9650"
    assert Settings.read(Surroundings(environment={"RCA_HOOK_TEXTFILE": "/t"}))[:2] == ("", "/t")


# forks, and the end

FORK = """
import json, os, socket, sys, time, urllib.request
from pathlib import Path
from rca.hook import Hook, Settings

folder = Path(sys.argv[1])
hook = Hook("j", settings=Settings(listen="127.0.0.1:0", textfile=str(folder), interval=0.05))
host, port = hook.address
while not Path(folder, "rca_j_0.prom").exists():
    time.sleep(0.01)
with hook.step(1):
    child = os.fork()
if child == 0:
    with hook.step(2), hook.phase("forward_compute"):
        pass
    hook.log(loss=9.0)
    dumb = hook.address is None
    hook.close()
    Path(folder, "part").write_text(json.dumps({"dumb": dumb, "file": Path(folder, "rca_j_0.prom").exists()}))
    Path(folder, "part").rename(Path(folder, "child.json"))
    time.sleep(float(sys.argv[2]))
    sys.exit(0)  # with all that atexit does
while not Path(folder, "child.json").exists():
    time.sleep(0.01)
if float(sys.argv[2]) == 0:
    os.waitpid(child, 0)
text = urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=5).read().decode()
hook.close()
with socket.socket() as probe:
    refused = probe.connect_ex((host, port))
print(json.dumps({"text": text, "refused": refused, "left": [p.name for p in folder.glob("*.prom")], "child": child}))
"""


@pytest.mark.parametrize("child_lives_on", [False, True])
def test_a_forked_child_serves_nothing_and_spoils_nothing(tmp_path, child_lives_on):
    done = run(FORK, str(tmp_path), "1" if child_lives_on else "0")
    assert done.returncode == 0, done.stderr
    told, child = json.loads(done.stdout), json.loads((tmp_path / "child.json").read_text())
    assert child == {"dumb": True, "file": True}, "the child took nothing away"
    assert 'train_steps_total{job_id="j",rank="0"} 1\n' in told["text"]
    assert "train_loss" not in told["text"]
    assert told["refused"] != 0, "the child does not hold the parent's port"
    assert told["left"] == []
    assert done.stderr == ""


def test_the_end_of_the_process_needs_no_call(tmp_path):
    code = (
        "import sys; from rca.hook import Hook, Settings\n"
        "hook = Hook('j', settings=Settings(listen='127.0.0.1:0', textfile=sys.argv[1], interval=60))\n"
        "import time; time.sleep(0.3)\n"
        "print(*__import__('os').listdir(sys.argv[1]))"
    )
    done = run(code, str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "rca_j_0.prom\n", "")
    assert list(tmp_path.iterdir()) == []


def test_a_loop_that_fails_fails_as_it_would_without(tmp_path):
    code = (
        "from rca.hook import Hook, Settings\n"
        "hook = Hook(settings=Settings(listen='127.0.0.1:0'))\n"
        "with hook.step(), hook.phase('forward_compute'):\n    1 / 0"
    )
    done = run(code)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert "rca" not in done.stderr


def test_the_overhead_is_measured():
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_hook.py"), "--small", "--repeats", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "scraped every second, logs on" in done.stdout
    assert done.stdout.strip().endswith(("ok", "missed"))
