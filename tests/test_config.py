"""A deployment's settings: file, environment, flags, and every way in which they can be wrong."""

import contextlib
from pathlib import Path

import hypothesis
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca import config
from rca.config import Server, Settings, check_url, replaced, settle, variable, without_password
from rca.errors import ProblemsError, RcaError, UsageError

KEYS = config.keys()
FULL = """\
prometheus:
  url: https://prometheus:9090/select/0/prometheus
  bearer_token_file: token
  headers: {X-Scope-OrgID: team}
  ca_file: /etc/ca.pem
  timeout: 90s
  workers: 8
topology: topology.yaml
rules_extra: [site]
labels: {node: [my_node_label]}
signals: {rank_step_seconds: ["my_step_seconds"]}
disable: [python_gc]
overrides:
  - {rule: gpu_thermal_throttling, match: {model: "H100.*"}, set: {for: 5m, gpu_thermal_margin.limit: 3}}
window: 15m
baseline: 1h
interval: 30s
alertmanagers: [http://alertmanager:9093]
listen: "[::1]:9797"
store: postgresql://rca@db/rca
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "rca.yaml"
    path.write_text(text)
    return path


def test_every_key_is_read_and_paths_are_relative_to_the_file(tmp_path):
    settings = settle(write(tmp_path, FULL), {}, {})
    server = settings.prometheus
    assert server.url == "https://prometheus:9090/select/0/prometheus"
    assert server.bearer_token_file == str(tmp_path / "token")
    assert server.ca_file == "/etc/ca.pem"
    assert (server.timeout, server.workers, server.headers) == ("90s", 8, {"X-Scope-OrgID": "team"})
    assert settings.topology == str(tmp_path / "topology.yaml")
    assert settings.rules_extra == (str(tmp_path / "site"),)
    assert settings.rules == ""
    assert settings.labels == {"node": ("my_node_label",)}
    assert settings.overrides[0].set == {"for": "5m", "gpu_thermal_margin.limit": 3}
    assert settings.listen == "[::1]:9797"
    assert set(msgspec.structs.asdict(settings)) == set(Settings.__struct_fields__)


def test_nothing_given_gives_the_defaults():
    assert settle(None, {}, {}) == Settings()
    assert Settings().window == "15m"


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path):
    path = write(tmp_path, "window: 1m\nbaseline: 2m\ninterval: 3m\ndisable: [a]\n")
    environ = {
        "RCA_BASELINE": "20m",
        "RCA_INTERVAL": "30m",
        "RCA_DISABLE": "b, c",
        "PATH": "/bin",
        "RCA_PORT": "tcp://x",
    }
    settings = settle(path, environ, {"interval": "300m"})
    assert (settings.window, settings.baseline, settings.interval) == ("1m", "20m", "300m")
    assert settings.disable == ("b", "c")
    assert settle(path, {}, {"disable": ("d",)}).disable == ("d",)
    assert settle(path, {"RCA_WINDOW": ""}, {}).window == "1m"


def test_the_environment_reaches_the_server():
    environ = {
        "RCA_PROMETHEUS_URL": "http://p:9090", "RCA_PROMETHEUS_WORKERS": "2", "RCA_TOPOLOGY": "here.yaml",
        "RCA_PROMETHEUS_HEADERS": "X-Scope-OrgID=team,X-More=a=b", "RCA_ALERTMANAGERS": "http://a:1,http://b:2",
        "RCA_PROMETHEUS_USERNAME": "me", "RCA_PROMETHEUS_PASSWORD_FILE": "password",
    }  # fmt: skip
    settings = settle(None, environ, {})
    assert settings.prometheus.url == "http://p:9090"
    assert settings.prometheus.workers == 2
    assert settings.prometheus.headers == {"X-Scope-OrgID": "team", "X-More": "a=b"}
    assert settings.prometheus.password_file == "password"
    assert settings.topology == "here.yaml"
    assert settings.alertmanagers == ("http://a:1", "http://b:2")


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("windw: 5m", ["1: unknown key 'windw', did you mean 'window'"]),
        ("window: 5", ["1: 'window' must be a duration"]),
        ("prometheus:\n  url: localhost:9090\n", ["2: 'localhost:9090' has no http://"]),
        ("prometheus: {workers: 0}", ["1: 'workers' must be at least 1"]),
        ("listen: '9797'", ["1: '9797' is not HOST:PORT"]),
        ("disable: python_gc", ["1: 'disable' must be a list"]),
        ("window: 5m\nwindow: 6m", ["2: key 'window' is repeated"]),
        ("labels: {node: [my-node]}", ["1: 'my-node' in labels of 'node' is not a label name"]),
        ("alertmanagers: [alertmanager:9093]", ["1: 'alertmanager:9093' has no http://"]),
        ("prometheus: {token: secret}", ["1: unknown key 'token'"]),
        ("window: x\nbaseline: y\nprometheus: {key_file: k}", ["1: ", "2: ", "3: 'key_file' needs 'cert_file'"]),
        ("", ["1: the file is empty"]),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_a_wrong_file_gets_every_problem_with_its_line(tmp_path, text, problems):
    path = write(tmp_path, text)
    with pytest.raises(ProblemsError) as caught:
        settle(path, {}, {})
    lines = str(caught.value).splitlines()
    assert len(lines) == len(problems)
    for line, problem in zip(lines, problems, strict=True):
        assert line.startswith(f"{path}:{problem}")
    assert "secret" not in str(caught.value)


def test_a_file_that_is_not_there_is_one_problem(tmp_path):
    with pytest.raises(ProblemsError, match=r"missing.yaml: cannot be read, no such file"):
        settle(tmp_path / "missing.yaml", {}, {})


@pytest.mark.parametrize(
    ("environ", "flags", "message"),
    [
        ({"RCA_WINDOW": "five"}, {}, "RCA_WINDOW: 'five' is not a duration, write for example 15m"),
        ({"RCA_PROMETHEUS_URL": "p:9090"}, {}, "RCA_PROMETHEUS_URL: 'p:9090' has no http://"),
        ({}, {"prometheus.url": "http://u:secret@p/api/v1/query?x=secret"}, "--prometheus: 'http://p/api/v1/query?"),
        ({}, {"prometheus.ca_file": "x", "prometheus.key_file": "y"}, "--prometheus-key-file: 'key_file' needs"),
        ({"RCA_PROMETHEUS_HEADERS": "team"}, {}, "RCA_PROMETHEUS_HEADERS: a header is written name=value"),
        ({"RCA_PROMETHEUS_WORKERS": "many"}, {}, "RCA_PROMETHEUS_WORKERS: expected `int`"),
        ({}, {"windw": "5m"}, "--windw: 'windw' is no setting, did you mean 'window'"),
    ],
    ids=str,
)
def test_a_wrong_variable_or_flag_is_named(environ, flags, message):
    with pytest.raises(UsageError) as caught:
        settle(None, environ, flags)
    assert str(caught.value).startswith(message)
    assert "u:secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "right"),
    [
        ("localhost:9090", "write http://localhost:9090"),
        ("ftp://host", "write http:// or https://"),
        ("http://", "names no host"),
        ("http://host:port", "no valid port"),
        ("http://host:99999", "no valid port"),
        ("http://a b/", "names no host"),
        ("http://host:9090/graph?g0.expr=up", "write the base URL alone, http://host:9090"),
        ("http://host/prometheus/api/v1/query", "write the base URL alone, http://host/prometheus"),
        ("me:secret@host:9090", "write http://host:9090"),
    ],
)
def test_a_url_that_cannot_be_a_base_says_what_would_be_right(url, right):
    with pytest.raises(ValueError) as caught:
        check_url(url)
    assert str(caught.value).endswith(right) or right in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://h", "https://h:1/a/b/", "http://[::1]:9090", "http://u:p@h", "http://10.0.0.1"]
)
def test_a_base_url_passes(url):
    check_url(url)


def test_two_ways_to_log_in_are_one_too_many():
    for given_ in ({"bearer_token_file": "t", "username": "u", "password_file": "p"}, {"username": "u"},
                   {"password_file": "p"}, {"headers": {"Bad Name": "x"}}, {"headers": {"X": "a\nb"}}):  # fmt: skip
        with pytest.raises(ValueError, match=r"both|together|not valid HTTP"):
            Server(**given_)


def test_secrets_do_not_show_in_settings():
    server = Server(url="http://me:secret@h:9090", headers={"Authorization": "secret"})
    assert "secret" not in repr(server)
    assert "secret" not in repr(Settings(prometheus=server))


def test_every_scalar_and_list_has_a_variable_of_its_own():
    names = [variable(key) for key in KEYS]
    assert len(names) == len(set(names))
    assert "RCA_PROMETHEUS_URL" in names
    assert "RCA_LABELS" not in names


@hypothesis.settings(deadline=None)
@given(st.sampled_from(KEYS), st.text(max_size=20))
def test_any_text_for_any_setting_is_taken_or_refused_in_one_line(key, text):
    try:
        said = repr(replaced(Settings(), [(key, text, "RCA_X")]))
    except UsageError as error:
        said = str(error)
    assert said.startswith(("RCA_X: ", "Settings("))


@hypothesis.settings(deadline=None)
@given(st.text(max_size=30))
def test_any_url_is_taken_or_refused_without_another_error(text):
    with contextlib.suppress(ValueError):
        Server(url=text)
    assert "@" not in without_password(f"http://a:{text}@h").partition("://")[2] or set(text) & set("/?#")


def test_errors_are_of_the_one_tree():
    assert issubclass(UsageError, RcaError)
    assert UsageError.exit_status == 2
