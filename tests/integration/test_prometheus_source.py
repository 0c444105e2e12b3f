"""Reading a real Prometheus."""

import math
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import servers
from read_once import load

from rca.config import Server
from rca.errors import SourceError, UsageError
from rca.inputs import Inputs, look
from rca.model import Window
from rca.plain import stamp
from rca.sources.prometheus import PrometheusSource, PrometheusStore
from rca.sources.series import Block, Matcher, Selector

START = 1_700_000_000.0
STEP = 15.0
POINTS = 240
GAP = range(100, 110)
END = START + STEP * (POINTS - 1)
SPECIAL = [float("nan"), float("inf"), float("-inf"), 1e6, -1.5, 1e-7, 1e21, 0.1 + 0.2]


def openmetrics() -> str:
    """Write gauges of eight GPUs (one with a gap, each at its own phase), a counter, and every kind of number."""
    lines = ["# TYPE clock gauge"]
    lines += [
        f'clock{{gpu="{gpu}",host="n\\"0\\\\\\n"}} {1980 - gpu} {START + STEP * point + gpu / 8:.3f}'
        for gpu in range(8) for point in range(POINTS) if gpu != 3 or point not in GAP
    ]  # fmt: skip
    lines.append("# TYPE odd gauge")
    lines += [f'odd{{at="{index}"}} {value} {START:.3f}' for index, value in enumerate(SPECIAL)]
    lines.append("# TYPE steps counter")
    lines += [f"steps_total {point * 3} {START + STEP * point:.3f}" for point in range(POINTS)]
    return "\n".join([*lines, "# EOF"]) + "\n"


@pytest.fixture(scope="module")
def url(start_prometheus: Callable[..., str]) -> str:
    return start_prometheus(openmetrics())


def select(*names: str, matchers: tuple[Matcher, ...] = (), start: float = START, end: float = END + 1) -> Selector:
    return Selector(names, matchers, start, end)


def only(store: PrometheusStore, selector: Selector) -> Block:
    [(index, block)] = store.fetch([selector])
    assert index == 0
    return block


def series(block: Block, **labels: str) -> tuple[np.ndarray, np.ndarray]:
    [row] = [i for i, found in enumerate(block.labels) if labels.items() <= found.items()]
    part = slice(block.offsets[row], block.offsets[row + 1])
    return block.times[part], block.values[part]


def test_samples_come_with_their_own_times_and_a_gap_stays_a_gap(url):
    with PrometheusStore(Server(url=url)) as store:
        block = only(store, select("clock"))
    assert len(block.labels) == 8
    assert block.labels[0]["__name__"] == "clock"
    assert block.labels[0]["host"] == 'n"0\\\n'
    times, values = series(block, gpu="3")
    kept = [point for point in range(POINTS) if point not in GAP]
    np.testing.assert_allclose(times, START + STEP * np.array(kept) + 3 / 8, atol=1e-3)
    assert set(values) == {1977.0}


@pytest.mark.parametrize("value", SPECIAL, ids=str)
def test_every_kind_of_number_survives(url, value):
    with PrometheusStore(Server(url=url)) as store:
        block = only(store, select("odd", start=START, end=START))
    _, values = series(block, at=str(0 if math.isnan(value) else SPECIAL.index(value)))
    assert values[0] == value or (math.isnan(value) and math.isnan(values[0]))


def test_both_ends_of_a_selector_are_inside(url):
    with PrometheusStore(Server(url=url)) as store:
        block = only(store, select("steps_total", start=START + STEP, end=START + 3 * STEP))
        earlier = only(store, select("steps_total", start=START + STEP + 0.001, end=START + 3 * STEP - 0.001))
    assert block.values.tolist() == [3.0, 6.0, 9.0]
    assert earlier.values.tolist() == [6.0]


def test_matchers_with_quotes_and_backslashes_pick_what_they_say(url):
    exact = Matcher("host", "=", 'n"0\\\n')
    pattern = Matcher("gpu", "=~", "[0-2]")
    with PrometheusStore(Server(url=url)) as store:
        found = dict(store.fetch([
            select("clock", "nothing", matchers=(exact, pattern)),
            select("clock", matchers=(Matcher("host", "=", "n0"),)),
            select("clock", matchers=(Matcher("gpu", "!~", "[0-6]"), Matcher("gpu", "!=", ""))),
        ]))  # fmt: skip
    assert [len(found[index].labels) for index in range(3)] == [3, 0, 1]
    assert found[1].offsets.tolist() == [0]


def test_names_are_those_of_the_time(url):
    with PrometheusStore(Server(url=url)) as store:
        assert store.names(START, END) == {"clock", "odd", "steps_total"}
        assert store.names(START - 1e6, START - 9e5) == frozenset()


def test_a_window_without_samples_is_empty_not_wrong(url):
    with PrometheusStore(Server(url=url)) as store:
        block = only(store, select("clock", start=START - 5000, end=START - 4000))
        assert len(block.labels) == len(block.times) == 0
        assert store.warnings() == ()


def test_extent_tells_where_the_samples_are(url):
    with PrometheusStore(Server(url=url)) as store:
        oldest, newest = store.extent(store.now())
        assert store.extent(START - 5e6) is None
    assert oldest == pytest.approx(START, abs=2)
    assert newest == pytest.approx(END, abs=3)


def test_evaluate_aggregates_on_the_server(url):
    times = START + 300 + STEP * np.arange(40)
    with PrometheusStore(Server(url=url)) as store:
        block = store.evaluate("sum(rate(steps_total[1m]))", times)
        one = store.evaluate("count(clock)", times[:1])
        empty = store.evaluate("nothing", times)
    np.testing.assert_allclose(block.values, 0.2)
    np.testing.assert_allclose(block.times, times)
    assert one.values.tolist() == [8.0]
    assert len(empty.labels) == 0


def test_a_grid_beyond_the_servers_limit_of_points_is_asked_for_in_pieces(url):
    times = START + 0.1 * np.arange(25_000)
    with PrometheusStore(Server(url=url)) as store:
        block = store.evaluate("count(clock)", times)
    assert len(block.labels) == 1
    np.testing.assert_allclose(block.times, times, atol=1e-3)


def test_a_query_that_the_server_rejects_is_quoted_with_its_reason(url):
    with PrometheusStore(Server(url=url)) as store, pytest.raises(SourceError) as caught:
        store.evaluate("rate(clock)", np.array([START]))
    assert "400 bad request: " in str(caught.value)
    assert "expected type range vector" in str(caught.value)
    assert "asked for rate(clock)" in str(caught.value)


def test_within_the_sample_limit_nothing_changes(start_prometheus, url):
    with PrometheusStore(Server(url=url)) as store:
        whole = only(store, select("clock"))
        rates = store.evaluate("count(clock)", START + STEP * np.arange(200))
    tight = start_prometheus(openmetrics(), flags=["--query.max-samples=300"])
    with PrometheusStore(Server(url=tight)) as store:
        pieces = only(store, select("clock"))
        tight_rates = store.evaluate("count(clock)", START + STEP * np.arange(200))
    assert sorted(map(str, pieces.labels)) == sorted(map(str, whole.labels))
    for labels in whole.labels:
        for left, right in zip(series(whole, **labels), series(pieces, **labels), strict=True):
            np.testing.assert_array_equal(left, right)
    np.testing.assert_array_equal(rates.values, tight_rates.values)


def test_too_much_for_the_server_in_a_single_second_is_said(start_prometheus):
    tiny = start_prometheus(openmetrics(), flags=["--query.max-samples=5"])
    with PrometheusStore(Server(url=tiny)) as store, pytest.raises(SourceError, match="too many samples"):
        only(store, select("clock"))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Path:
    """Make a CA, a server certificate for 127.0.0.1 and a client certificate."""
    folder = tmp_path_factory.mktemp("tls")
    openssl = servers.binary("openssl")

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=folder, check=True, capture_output=True, timeout=60)

    for name in ("ca", "other"):
        run("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")  # fmt: skip
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for name in ("server", "client"):
        run("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
        run("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", "names", "-out", f"{name}.pem")  # fmt: skip
    (folder / "password").write_text("secret\n")
    (folder / "wrong").write_text("guess\n")
    (folder / "web.yml").write_text(
        "tls_server_config: {cert_file: server.pem, key_file: server.key, client_ca_file: ca.pem,"
        " client_auth_type: RequireAndVerifyClientCert}\n"
        # bcrypt of "secret", cost 4
        "basic_auth_users: {reader: $2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW}\n"
    )
    return folder


@pytest.fixture(scope="module")
def guarded(start_prometheus, certificates) -> str:
    """Run a Prometheus that wants TLS, a client certificate and a password."""
    return start_prometheus(openmetrics(), flags=[f"--web.config.file={certificates / 'web.yml'}"], scheme="https")


def login(guarded: str, folder: Path, **changes: str) -> Server:
    names = {"ca_file": "ca.pem", "cert_file": "client.pem", "key_file": "client.key", "password_file": "password"}
    files = {key: str(folder / name) for key, name in names.items()}
    return Server(**{"url": guarded, "username": "reader", **files, **changes})


def test_tls_with_client_certificate_and_password(guarded, certificates):
    with PrometheusStore(login(guarded, certificates)) as store:
        assert len(only(store, select("clock")).labels) == 8
        assert "clock" in store.names(START, END)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"password_file": "wrong"}, "401 unauthorized, user reader with the password of"),
        ({"password_file": "", "username": ""}, "401 unauthorized, no credentials were sent"),
        ({"ca_file": "other.pem"}, "the server's certificate is not trusted"),
        ({"ca_file": ""}, "set ca_file to the CA that signed it"),
        ({"cert_file": "", "key_file": ""}, "set cert_file and key_file"),
        ({"url": "http"}, "https"),  # the server's own words, or ours where its reset overtakes them
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_login_that_fails_says_which(guarded, certificates, changes, message):
    files = {key: str(certificates / name) if name and key != "username" else "" for key, name in changes.items()}
    if "url" in changes:
        files = {"url": guarded.replace("https", "http")}
    with PrometheusStore(login(guarded, certificates, **files)) as store, pytest.raises(SourceError) as caught:
        only(store, select("clock"))
    assert message in str(caught.value).lower() or message in str(caught.value)
    assert "guess" not in str(caught.value)


def test_https_against_plain_http_says_so(url):
    server = Server(url=url.replace("http", "https"))
    with PrometheusStore(server) as store, pytest.raises(SourceError, match="does not speak TLS"):
        store.now()


def test_no_thread_is_left_behind(url):
    with PrometheusStore(Server(url=url)) as store:
        for _ in store.fetch([select("clock")] * 20):
            pass
    assert not [thread for thread in threading.enumerate() if "in_parallel" in thread.name]


def dcgm() -> str:
    """Write two signals of sixteen GPUs on two nodes, one GPU without samples in between."""
    names = {"DCGM_FI_DEV_SM_CLOCK": 1980, "DCGM_FI_DEV_GPU_TEMP": 60}
    lines = []
    for name, value in names.items():
        lines.append(f"# TYPE {name} gauge")
        lines += [
            f'{name}{{gpu="{gpu % 8}",Hostname="node-{gpu // 8}",modelName="H100",instance="node-{gpu // 8}:9400"}}'
            f" {value + gpu} {START + STEP * point:.3f}"
            for gpu in range(16) for point in range(POINTS) if gpu != 5 or point not in GAP
        ]  # fmt: skip
    return "\n".join([*lines, "# EOF"]) + "\n"


@pytest.fixture(scope="module")
def fleet(start_prometheus) -> str:
    return start_prometheus(dcgm())


@pytest.fixture
def source(fleet):
    with PrometheusStore(Server(url=fleet)) as store:
        yield PrometheusSource(store)


def seen(url, window):
    """Look as the command line does."""
    given = Inputs(prometheus=url, at=stamp(window.end), window=f"{window.end - window.start:.0f}s")
    return look(given, {}, lambda step: None).snapshot


def test_a_snapshot_holds_what_the_server_holds(source):
    window = Window(START + 80 * STEP, START + 120 * STEP, baseline=900.0)
    snapshot = source.snapshot(load(), window)
    clock = snapshot.measurements["gpu_sm_clock"]
    assert snapshot.step == STEP
    assert clock.window.shape == (16, 41)
    [row] = [
        i for i, name in enumerate(zip(*(snapshot.tables["gpu"].columns[key] for key in ("node", "gpu")), strict=True))
        if name == ("node-0", "5")
    ]  # fmt: skip
    assert np.isnan(clock.window[row]).sum() == len(GAP)
    assert np.isnan(clock.window).sum() == len(GAP)
    assert np.nanmin(clock.window[row]) == np.nanmax(clock.window[row]) == 1985.0
    assert snapshot.absent


def test_latest_is_the_servers_clock(source):
    assert abs(source.latest() - time.time()) < 60


@pytest.mark.parametrize("start", [START - 1e6, START + 1e6], ids=["before", "after"])
def test_a_window_without_any_sample_says_where_there_are_some(fleet, start):
    with pytest.raises(UsageError, match=r"no samples between .* there are some from 2023-11-14T22:13:2"):
        seen(fleet, Window(start, start + 900))


def test_a_server_without_samples_says_so(start_prometheus):
    with pytest.raises(SourceError, match="no samples"):
        seen(start_prometheus(), Window(START, START + 900))


def test_victoriametrics_speaks_the_same_language(tmp_path):
    first = time.time() // 60 * 60 - 3600
    lines = [
        f'clock{{gpu="{gpu}"}} {1980 + gpu} {(first + STEP * at) * 1000:.0f}' for gpu in range(4) for at in range(9)
    ]
    with servers.victoria_metrics(tmp_path, "\n".join(lines)) as url:
        with PrometheusStore(Server(url=url)) as store:
            assert "clock" in store.names(first, first + 600)
            assert abs(store.now() - time.time()) < 60
            block = only(
                store, select("clock", "x", matchers=(Matcher("gpu", "!=", "3"),), start=first, end=first + 60)
            )
            assert store.evaluate("sum(clock)", np.array([first + 60, first + 75])).values.tolist() == [7926.0, 7926.0]
            assert store.extent(store.now()) is None
        times, values = series(block, gpu="2")
        assert times.tolist() == [first + STEP * at for at in range(5)]
        assert values.tolist() == [1982.0] * 5
        with pytest.raises(SourceError, match="no samples"):
            seen(url, Window(first - 9e5, first - 8.9e5))
