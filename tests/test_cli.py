"""The command line as people and scripts use it: results, messages, exit statuses."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import click
import msgspec
import pytest

from docs import paste
from rca import cli
from rca.load import shipped
from rca.model import Report

ROOT = Path(__file__).parent.parent
SMALL = """
summary: Nothing is wrong in a small job
seed: 1
duration: 30m
cluster: {nodes: 2, model: H100}
job: {id: small-job, dp: 16, step: 2s, sync: 200ms, samples: 512}
expect: {status: healthy, symptom: none}
"""


class Outcome(msgspec.Struct, frozen=True):
    status: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("RCA_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def rca(capsys: pytest.CaptureFixture[str]):
    def call(*arguments: str | Path) -> Outcome:
        status = cli.run(cli.rca, [str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Outcome(status, out, err)

    return call


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="session")
def recorded(small: Path) -> Path:
    path = small.with_suffix(".rec")
    assert cli.run(cli.rca, ["record", "--scenario", str(small), "--to", str(path)]) == 0
    return path


def process(*arguments: str | Path, **settings: object) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "rca.cli", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **settings)  # type: ignore[call-overload]


def test_version(rca) -> None:
    assert rca("--version") == Outcome(0, "rca 0.1.0\n", "")


def test_help_starts_without_the_heavy_libraries() -> None:
    code = "import sys, rca.cli; sys.exit(bool({'numpy', 'networkx', 'requests', 'rich', 'yaml'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("command", ["", *cli.rca.commands])
def test_every_option_has_one_line_of_help(rca, command: str) -> None:
    shown = rca(*filter(None, [command, "--help"]))
    options = shown.out.split("Options:\n")[1].split("\n\n")[0].splitlines()
    assert shown.status == 0
    assert all(line.strip().startswith("-") and "  " in line.strip() for line in options)


@pytest.mark.parametrize("page", ["docs/cli.md", "README.md"])
def test_pages_show_what_the_commands_print(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = Path(page).read_text(encoding="utf-8")
    assert paste.commands(text)
    assert paste.pasted(text) == text, "run make docs"


def test_every_command_is_documented() -> None:
    shown = set(paste.commands((ROOT / "docs" / "cli.md").read_text(encoding="utf-8")))
    assert {"rca --help", *(f"rca {name} --help" for name in cli.rca.commands)} <= shown


def test_a_healthy_job_in_words(rca, small: Path) -> None:
    shown = rca("diagnose", "--scenario", small)
    assert shown.status == 0
    assert shown.out.startswith("healthy: nothing wrong in job small-job")
    assert "\x1b" not in shown.out
    assert shown.err == ""


def test_a_recording_gives_the_same_bytes_as_its_source(rca, small: Path, recorded: Path) -> None:
    first = rca("diagnose", "--scenario", small, "-o", "json")
    second = rca("diagnose", "--recording", recorded, "-o", "json")
    assert first == second
    report = msgspec.json.decode(first.out, type=Report)
    assert report.status == "healthy"
    assert report.jobs == ["small-job"]
    assert first.out.count("\n") > 10


def test_a_recording_of_a_recording_is_the_same_file(rca, recorded: Path, tmp_path: Path) -> None:
    again = rca("record", "--recording", recorded, "--to", tmp_path / "again")
    assert again.status == 0
    assert (tmp_path / "again").read_bytes() == recorded.read_bytes()


def test_record_says_what_it_saved(rca, recorded: Path, tmp_path: Path) -> None:
    shown = rca("record", "--recording", recorded, "-O", tmp_path / "copy")
    assert shown.out == ""
    assert shown.err.startswith(f"{tmp_path}/copy: 2026-01-05T00:15:00Z to 2026-01-05T00:30:00Z and 3600 s before it")
    assert " 1 job, " in shown.err


def test_markdown_for_a_ticket(rca, recorded: Path) -> None:
    assert rca("diagnose", "--recording", recorded, "-o", "markdown").out.startswith("# healthy: nothing wrong")


def test_output_from_the_environment(rca, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RCA_OUTPUT", "json")
    assert rca("diagnose", "--recording", recorded).out.startswith("{")


@pytest.mark.parametrize("case", [
    ([], 2, "no source: give --prometheus URL, --scenario FILE, --recording FILE, or files"),
    (["--scenario", "SMALL", "--recording", "REC"], 2, "--scenario and --recording: --scenario stands alone"),
    (["--scenario", "SMALL", "--prometheus", "http://x"], 2, "--scenario and --prometheus: --scenario stands alone"),
    (["--scenario", "nowhere.yaml"], 2, "File 'nowhere.yaml' does not exist"),
    (["--recording", "SMALL"], 4, "is no whole recording"),
    (["--recording", "REC", "--window", "5m"], 2, "leave out --at, --window and --baseline"),
    (["--recording", "REC", "--topology", "SMALL"], 2, "--topology: a recording holds what was known"),
    (["--recording", "REC", "--job", "smal-job"], 2, "--job: no such job: 'smal-job', did you mean 'small-job'"),
    (["--recording", "REC", "--job", "zzz"], 2, "--job: no such job: 'zzz', known are small-job"),
    (["--scenario", "SMALL", "--at", "2026-01-05T00:20:00"], 2, "has no time zone, write 2026-01-05T00:20:00Z"),
    (["--scenario", "SMALL", "--at", "2030-01-01T00:00:00Z"], 2, "is in the future, the present of"),
    (["--scenario", "SMALL", "--at", "2020-01-01T00:00:00Z"], 2, "there are some from 2026-01-05T00:00:00Z to"),
    (["--scenario", "SMALL", "--window", "30s"], 2, "--window: 30 s are less than 3 samples, which come every 15 s"),
    (["--scenario", "SMALL", "--window", "0s"], 2, "--window: a window of 0 s holds nothing"),
    (["--scenario", "SMALL", "--window", "15"], 2, "--window: '15' is not a duration"),
    (["--scenario", "SMALL", "--topology", "SMALL"], 3, "small.yaml:"),
    (["--scenario", "SMALL", "--config", "SMALL"], 3, "small.yaml:"),
    (["--prometheus", "localhost:9090"], 2, "--prometheus: 'localhost:9090' has no http:// or https://"),
    (["--prometheus", "http://127.0.0.1:1"], 4, "http://127.0.0.1:1: connection refused"),
    (["--recording", "REC", "-o", "pdf"], 2, "'pdf' is not one of 'text', 'html', 'json', 'markdown'"),
    (["--sceanrio", "SMALL"], 2, "Did you mean '--scenario'"),
])  # fmt: skip
def test_what_cannot_work_gets_one_clear_message(rca, small, recorded, case) -> None:
    arguments, status, said = case
    names = {"SMALL": small, "REC": recorded}
    shown = rca("diagnose", *(names.get(argument, argument) for argument in arguments))
    assert shown.status == status
    assert said in shown.err
    assert shown.out == ""
    assert "Traceback" not in shown.err


def test_ten_broken_files_are_told_at_once(rca, tmp_path: Path, recorded: Path) -> None:
    for number in range(10):
        (tmp_path / "physical").mkdir(exist_ok=True)
        (tmp_path / "physical" / f"broken_{number}.yaml").write_text("summary: 1\nentity: [\n")
    for arguments in (
        ["check", "--rules-extra", tmp_path],
        ["diagnose", "--recording", recorded, "--rules-extra", tmp_path],
    ):
        shown = rca(*arguments)
        listed = (shown.out if arguments[0] == "check" else shown.err).splitlines()
        assert shown.status == 3
        for number in range(10):
            assert any(f"broken_{number}.yaml:" in line for line in listed)


def test_more_problems_than_anyone_reads_are_counted(rca, tmp_path: Path, recorded: Path) -> None:
    (tmp_path / "physical").mkdir()
    for number in range(60):
        (tmp_path / "physical" / f"broken_{number}.yaml").write_text("{")
    shown = rca("diagnose", "--recording", recorded, "--rules-extra", tmp_path)
    assert shown.err.splitlines()[-1] == "and 10 more problems"
    assert len(rca("check", "--rules-extra", tmp_path).out.splitlines()) >= 60


def test_the_shipped_rules_have_no_problem(rca) -> None:
    shown = rca("check")
    assert (shown.status, shown.out) == (0, "")
    assert "no problem" in shown.err


@pytest.mark.parametrize(
    ("url", "status", "said"),
    [
        ("localhost:9090", 2, "--against: 'localhost:9090' has no http:// or https://, write http://localhost:9090"),
        ("http://127.0.0.1:1", 4, "http://127.0.0.1:1: connection refused"),
    ],
)
def test_a_server_that_cannot_be_asked_for_advice(rca, url: str, status: int, said: str) -> None:
    shown = rca("check", "--against", url)
    assert (shown.status, shown.out) == (status, "")
    assert said in shown.err


def test_broken_rules_are_told_before_a_server_is_asked(rca, tmp_path: Path) -> None:
    (tmp_path / "physical").mkdir()
    (tmp_path / "physical" / "broken.yaml").write_text("{")
    shown = rca("check", "--rules-extra", tmp_path, "--against", "http://127.0.0.1:1")
    assert shown.status == 3
    assert "broken.yaml:" in shown.out


def test_the_schema_of_a_rule_file(rca, tmp_path: Path) -> None:
    shown = rca("check", "--schema", "-")
    assert json.loads(shown.out)["type"] == "object"
    assert rca("check", "--schema", tmp_path / "rule.json").out == ""
    assert (tmp_path / "rule.json").read_text() == shown.out


def test_a_file_that_cannot_be_written(rca, small: Path, recorded: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "no" / "where"
    for arguments in (["simulate", small, "--to", nowhere], ["record", "--recording", recorded, "--to", nowhere]):
        shown = rca(*arguments)
        assert shown.status == 4
        assert shown.err.endswith("where: cannot be written, no such file or directory\n")


def test_simulate_writes_openmetrics(rca, small: Path, tmp_path: Path) -> None:
    shown = rca("simulate", small, "--to", tmp_path / "small.om", "--at", "2026-03-01T00:30:00Z")
    text = (tmp_path / "small.om").read_text()
    assert shown.status == 0
    assert "2026-03-01T00:00:00Z to 2026-03-01T00:30:00Z" in shown.err
    assert text.endswith("# EOF\n")
    assert "DCGM_FI_DEV_GPU_TEMP{" in text


def test_the_environment_names_a_server_and_a_scenario_beats_it(
    rca, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RCA_PROMETHEUS_URL", "http://127.0.0.1:1")
    assert rca("diagnose").status == 4
    assert rca("diagnose", "--recording", recorded).status == 0


def test_the_config_names_a_server_and_disables_rules(rca, recorded: Path, tmp_path: Path) -> None:
    config = tmp_path / "rca.yaml"
    rule = min(path.stem for path in (shipped() / "training").iterdir())
    config.write_text(f"prometheus: {{url: 'http://127.0.0.1:1'}}\ndisable: [{rule}, nonsense]\n")
    shown = rca("diagnose", "--config", config)
    assert shown.status == 3
    assert "unknown rule 'nonsense'" in shown.err
    config.write_text(f"prometheus: {{url: 'http://127.0.0.1:1'}}\ndisable: [{rule}]\n")
    assert rca("diagnose", "--config", config).status == 4
    assert rca("diagnose", "--config", config, "--recording", recorded).status == 0


def test_a_reader_that_goes_away_is_no_error(recorded: Path) -> None:
    with process("diagnose", "--recording", recorded, "-o", "json") as child:
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout(recorded: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "rca.cli", "diagnose", "--recording", str(recorded)]
        child = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, check=False)
    assert child.returncode == 4
    assert child.stderr == b"Error: stdout: cannot be written, no space left on device\n"


def test_a_terminal_without_box_characters_gets_ascii(recorded: Path) -> None:
    with process("diagnose", "--recording", recorded, env={**os.environ, "PYTHONIOENCODING": "ascii"}) as child:
        assert child.stdout.read().isascii()
    assert child.returncode == 0


def heed_interrupts() -> None:
    """Undo what a shell does to programs that it runs in the background: they ignore the interrupt."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupt_is_quiet_while_a_server_keeps_silent() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{server.getsockname()[1]}"
    command = ("diagnose", "--prometheus", url)
    with server, process(*command, preexec_fn=heed_interrupts) as child, server.accept()[0]:
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=20)
    assert (child.returncode, out) == (130, b"")
    assert b"Traceback" not in err


def test_an_error_that_nobody_foresaw_takes_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    def broken() -> None:
        raise KeyError("a\x1b[31m\nb")

    with pytest.raises(KeyError) as caught:
        cli.run(broken, [])
    cli.crash(caught.type, caught.value, caught.tb)
    said = capsys.readouterr().err
    assert said.startswith("internal error at test_cli.py:")
    assert said.count("\n") == 1
    assert "\x1b" not in said
    assert "please report it" in said
