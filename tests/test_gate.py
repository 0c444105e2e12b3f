"""Who may not come in does not, and who asks for too much costs little."""

import asyncio
import base64
import http.client
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st
from own_server import Engine, alert, backend, delivery, get, post, refused, running, wait_until
from servers import binary
from test_webhook import BODIES

from rca.config import Serving
from rca.errors import ProblemsError, SourceError
from rca.serve import app, gate
from rca.serve import server as process


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def works(tmp_path, engine):
    return backend(tmp_path, engine)


@pytest.fixture
def url(works) -> Iterator[str]:
    with running(works) as base:
        yield base


def test_a_body_over_the_limit_is_refused_before_it_is_read(url):
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as line:
        line.sendall(b"POST /api/v1/alerts HTTP/1.1\r\nHost: x\r\nContent-Length: 52428800\r\n\r\n")
        assert line.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_a_body_without_a_length_is_held_up_to_the_limit_only(works):
    sent: list[dict] = []
    chunks = iter([b"x" * 65536] * 800)
    taken = 0

    async def receive() -> dict:
        nonlocal taken
        chunk = next(chunks)
        taken += len(chunk)
        return {"type": "http.request", "body": chunk, "more_body": True}

    async def send(message: dict) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/api/v1/alerts", "headers": [], "query_string": b"",
             "client": ("::1", 1), "http_version": "1.1", "scheme": "http", "root_path": ""}  # fmt: skip
    asyncio.run(app(works, Serving(max_body=1 << 20))(scope, receive, send))
    assert sent[0]["status"] == 413
    assert taken <= (1 << 20) + 65536
    works.archive.close()


def test_fifty_mebibytes_in_chunks_are_refused_over_the_wire(url):
    parts = urlsplit(url)
    line = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
    line.request("POST", "/api/v1/alerts", body=(b"x" * 65536 for _ in range(800)), encode_chunked=True,
                 headers={"Transfer-Encoding": "chunked"})  # fmt: skip
    assert line.getresponse().status == 413
    line.close()


def test_a_slow_sender_is_given_up():
    async def receive() -> dict:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b"x", "more_body": True}

    with pytest.raises(gate.RefusalError) as caught:
        asyncio.run(gate.body(gate.Request({"type": "http", "headers": []}, receive), 1000, 0.1))
    assert (caught.value.status, caught.value.text) == (408, "the body did not arrive within 0.1 s")


class Hasty(process.Impatient):
    patience = 0.5


def test_headers_that_drip_are_given_up(works):
    with running(works, protocol=Hasty) as url:
        parts = urlsplit(url)
        began = time.monotonic()
        with socket.create_connection((parts.hostname, parts.port), timeout=10) as line:
            line.sendall(b"POST /api/v1/alerts HTTP/1.1\r\nHost: ")
            while time.monotonic() - began < 5.0:
                try:
                    line.sendall(b"x")
                    time.sleep(0.05)
                except (ConnectionResetError, BrokenPipeError):
                    break
        assert 0.4 < time.monotonic() - began < 5.0
        with requests.Session() as session:  # who asks at leisure stays
            for _ in range(4):
                assert session.get(f"{url}/-/healthy", timeout=10).status_code == 200
                time.sleep(0.2)


# -- who may ask


TOKEN = "s3cret-token"
PASSWORD = "pass:word-ü"


def locked(folder: Path) -> Serving:
    """Write the secrets into a folder, and return the settings that name them."""
    (folder / "token").write_text(f"{TOKEN}\n")
    (folder / "password").write_text(f"{PASSWORD}\n", encoding="utf-8")
    return Serving(token_file=str(folder / "token"), username="alertmanager", password_file=str(folder / "password"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("guarded")
    with running(backend(folder, Engine()), locked(folder)) as base:
        yield base


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize("login", [f"Bearer {TOKEN}", f"bearer {TOKEN}", basic("alertmanager", PASSWORD)])
def test_a_valid_login_comes_in(guarded, login):
    assert get(guarded, "/metrics", headers={"Authorization": login}).status_code == 200
    assert (
        requests.post(
            f"{guarded}/api/v1/alerts", json=delivery(alert()), headers={"Authorization": login}, timeout=10
        ).status_code
        == 202
    )


@pytest.mark.parametrize(
    "login",
    [
        None, "", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", "Basic !!", "Basic 4",
        "Digest x", basic("alertmanager", ""), basic("alertmanager", PASSWORD + "x"), basic("", PASSWORD),
        basic("other", PASSWORD), "Bearer " + "x" * 5000, "Basic é".encode("latin-1"),
    ],
)  # fmt: skip
def test_any_other_stays_out(guarded, login, caplog):
    headers = {} if login is None else {"Authorization": login}
    with caplog.at_level(logging.DEBUG):
        for path in ("/metrics", "/api/v1/incidents", "/api/v1/nowhere", "/api/v1/openapi.json"):
            answer = get(guarded, path, headers=headers)
            assert refused(answer) == (401, "log in with the bearer token, or with user and password")
            assert "Basic" in answer.headers["WWW-Authenticate"]
        assert refused(requests.post(f"{guarded}/-/reload", headers=headers, timeout=10))[0] == 401
    assert TOKEN not in caplog.text


def test_health_asks_for_no_login_but_all_that_changes_does(guarded):
    assert get(guarded, "/-/healthy").status_code == 200
    assert get(guarded, "/-/ready").status_code == 200
    assert requests.head(f"{guarded}/-/ready", timeout=10).status_code == 200
    assert requests.post(f"{guarded}/-/ready", timeout=10).status_code == 401


def test_a_secret_may_change_and_may_be_away(tmp_path, works):
    with running(works, locked(tmp_path)) as url:
        (tmp_path / "token").write_text("new")
        assert get(url, "/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 401
        assert get(url, "/metrics", headers={"Authorization": "Bearer new"}).status_code == 200
        (tmp_path / "token").unlink()
        status, said = refused(get(url, "/metrics", headers={"Authorization": "Bearer new"}))
        assert (status, str(tmp_path) in said) == (503, False)


def test_a_page_of_another_site_changes_nothing(url):
    for origin in ("http://evil.example", "null", "http://[", ""):
        answer = requests.post(f"{url}/-/reload", headers={"Origin": origin}, timeout=10)
        assert refused(answer)[0] == 403
    assert requests.post(f"{url}/-/reload", headers={"Origin": url}, timeout=10).status_code == 200
    assert get(url, "/metrics", headers={"Origin": "http://evil.example"}).status_code == 200


def test_who_asks_too_often_is_told_so(works):
    with running(works, Serving(max_rate=3)) as url:
        statuses = [get(url, "/metrics").status_code for _ in range(5)]
        assert statuses[:3] == [200, 200, 200]
        assert 429 in statuses[3:]
        assert get(url, "/-/healthy").status_code == 200
        answers = [post(url, delivery(alert(number))) for number in range(5)]
        assert {answer.status_code for answer in answers} <= {202, 503}, (
            "a delivery is repeated after 503, never after 429"
        )
        assert 503 in [answer.status_code for answer in answers]


def test_many_addresses_cost_no_memory(works):
    one = gate.Gate(lambda *_: None, Serving(), clock=lambda: 0.0)
    for number in range(3 * gate.MOST_CLIENTS):
        one._bucket(gate.Request({"type": "http", "client": (str(number), 1), "headers": []}))
    assert len(one._buckets) == gate.MOST_CLIENTS
    works.archive.close()


def test_it_speaks_tls(tmp_path, works):
    subprocess.run(
        [binary("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
         "key.pem", "-out", "cert.pem", "-subj", "/CN=rca", "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=tmp_path, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    serving = Serving(cert_file=str(tmp_path / "cert.pem"), key_file=str(tmp_path / "key.pem"))
    process.check(serving)
    with running(works, serving) as url:
        assert url.startswith("https://")
        assert get(url, "/-/ready", verify=str(tmp_path / "cert.pem")).status_code == 200


# -- hostile input


@pytest.fixture(scope="module")
def long_lived(tmp_path_factory) -> Iterator[str]:
    engine = Engine(errors=[SourceError("away")] * 1000)
    with running(backend(tmp_path_factory.mktemp("fuzz"), engine), Serving(max_rate=100_000)) as base:
        yield base


PATHS = st.sampled_from(
    ["/api/v1/alerts", "/api/v1/diagnose", "/api/v1/incidents", "/api/v1/incidents/", "/api/v1/reports/", "/metrics/"]
)


@settings(max_examples=80, deadline=None)
@given(BODIES, st.sampled_from(["/api/v1/alerts", "/api/v1/diagnose"]))
def test_no_body_brings_it_down(long_lived, body, path):
    answer = post(long_lived, body, path=path)
    assert answer.status_code in {200, 202, 400, 413, 503}
    if answer.status_code >= 400:
        refused(answer)


@settings(max_examples=80, deadline=None)
@given(PATHS, st.text(), st.text(alphabet=st.characters(codec="latin-1", exclude_characters="\r\n\x00")), st.text())
def test_no_path_query_or_header_brings_it_down(long_lived, path, name, header, value):
    parts = urlsplit(long_lived)
    line = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
    target = requests.Request(
        "GET", long_lived + path + requests.utils.quote(name), params={"state": value, name: value}
    )
    line.putrequest("GET", target.prepare().path_url, skip_host=True)
    for key in ("Host", "Authorization", "Accept", "Origin"):
        line.putheader(key, header.strip().encode("latin-1") or b"x")
    line.endheaders()
    assert line.getresponse().status < 500
    line.close()


def test_bytes_that_are_no_request_end_the_connection_alone(long_lived):
    parts = urlsplit(long_lived)
    for rubbish in (
        b"\x16\x03\x01\x02\x00",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /a HTTP/1.1\r\nA: " + b"x" * 99_999,
    ):
        with socket.create_connection((parts.hostname, parts.port), timeout=10) as line:
            line.sendall(rubbish + b"\r\n\r\n")
            line.recv(100)
    assert get(long_lived, "/-/healthy").status_code == 200


# -- the process


def test_a_place_that_cannot_be_listened_on_is_said():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(SourceError, match=rf"listen: {listen}: address already in use, choose"),
            process.listening(listen),
        ):
            pass
    with process.listening("[::1]:0") as ear:
        assert ear.family == socket.AF_INET6


def test_secrets_and_certificates_are_looked_at_first(tmp_path):
    with pytest.raises(ProblemsError, match="nowhere: the token cannot be read"):
        process.check(Serving(token_file="nowhere"))
    (tmp_path / "cert").write_text("no certificate")
    with pytest.raises(ProblemsError, match=r"cert: must hold a certificate, and .*key its key, in PEM"):
        process.check(Serving(cert_file=str(tmp_path / "cert"), key_file=str(tmp_path / "key")))


SCRIPT = textwrap.dedent("""
    import sys
    from pathlib import Path
    from own_server import Engine, backend
    from rca.config import Settings
    from rca.serve import serve

    class Told(Engine):
        def reload(self):
            print("reload", flush=True)

    works = backend(Path(sys.argv[1]), Told())
    serve(works, Settings(listen=sys.argv[2]))
    works.archive.close()
    print("over", flush=True)
""")


def test_the_process_reloads_and_ends_as_told(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as ear:
        listen = f"127.0.0.1:{ear.getsockname()[1]}"
    here = Path(__file__).parent
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path), listen], stdout=subprocess.PIPE, text=True, cwd=here.parent,
        env={**os.environ, "PYTHONPATH": f"{here}:{here.parent}"},
    )  # fmt: skip
    try:
        wait_until(lambda: child.poll() is not None or answers(f"http://{listen}/-/ready"), 60)
        child.send_signal(signal.SIGHUP)
        wait_until(lambda: child.stdout.readline() == "reload\n")
        assert post(f"http://{listen}", delivery(alert())).status_code == 202
        child.send_signal(signal.SIGTERM)
        said = child.stdout.read()
        assert child.wait(20) == 0
        assert said.endswith("over\n")
    finally:
        child.kill()
        child.stdout.close()
        child.wait()


def answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).status_code == 200
    except requests.ConnectionError:
        return False
