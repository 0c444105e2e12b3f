"""Reading a server that is not what it should be, and decoding what one says. Every answer here comes over a socket."""

import contextlib
import gc
import gzip
import json
import math
import socket
import threading
import time
import warnings

import msgspec
import numpy as np
import promql_parser
import pytest
import servers
from hypothesis import given, settings
from hypothesis import strategies as st

from rca.config import Server
from rca.errors import ProblemsError, SourceError, UsageError
from rca.sources import matrix
from rca.sources.prometheus import PrometheusStore, written
from rca.sources.series import Block, Matcher, Selector

SELECTOR = Selector(("up",), (), 1000.0, 1060.0)
LABELS = st.text("abcdefghij_", min_size=1, max_size=8).filter(lambda name: not name.startswith("__"))


def answer(result: list[object], kind: str = "matrix", **extra: object) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}, **extra}).encode()


GOOD = answer([{"metric": {"__name__": "up"}, "values": [[1000, "1"], [1015, "0"]]}])


def page(request: servers.Request) -> None:
    html = b"<!DOCTYPE html><html><head><title>Sign in &amp; go</title></head><body></body></html>"
    request.reply(200, html, "text/html; charset=utf-8")


def half(request: servers.Request) -> None:
    request.reply(200, GOOD[: len(GOOD) // 2], Content_Length=str(len(GOOD)), Connection="close")
    request.close_connection = True


def half_without_length(request: servers.Request) -> None:
    request.send_response(200)
    request.send_header("Connection", "close")
    request.end_headers()
    request.wfile.write(GOOD[:-20])
    request.close_connection = True


def half_a_chunk(request: servers.Request) -> None:
    request.send_response(200)
    request.send_header("Transfer-Encoding", "chunked")
    request.end_headers()
    request.wfile.write(b"ffff\r\n" + GOOD)
    request.close_connection = True


def hang_up(request: servers.Request) -> None:
    request.connection.shutdown(socket.SHUT_RDWR)
    request.close_connection = True


def fail(url: str, seconds: str = "5s", **changes: object) -> str:
    """Ask once and return the error's text; it must come soon after the deadline and name the server."""
    server = Server(url=url, timeout=seconds, **changes)
    before = time.monotonic()
    with PrometheusStore(server) as store, pytest.raises(SourceError) as caught:
        list(store.fetch([SELECTOR]))
    assert time.monotonic() - before < 8
    text = str(caught.value)
    assert "\n" not in text
    assert "secret" not in text
    return text


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (lambda r: r.reply(401, b"{}"), "401 unauthorized, no credentials were sent, set bearer_token_file"),
        (lambda r: r.reply(403, b"{}"), "403 forbidden, no credentials were sent"),
        (lambda r: r.reply(404, b"404 page not found", "text/plain"), "404 not found for /api/v1/query, set the base"),
        (
            lambda r: r.reply(422, b'{"status":"error","errorType":"execution","error":"found duplicate series"}'),
            '422 unprocessable entity: found duplicate series (asked for {__name__="up"}[60001ms])',
        ),
        (lambda r: r.reply(500, b"boom\x1b[31m\nsecond", "text/plain"), "500 internal server error: boom?[31m second"),
        (lambda r: r.reply(500, b""), "500 internal server error: no reason given"),
        (page, "answers 200 with a web page (Sign in & go) where JSON of the API belongs"),
        (lambda r: r.reply(502, b"<html><title>502</title>", "text/html", Retry_After="0"), "answers 502 with a web p"),
        (lambda r: r.reply(302, b"", Location="https://u:secret@sso/login?token=secret"), "to https://sso/login, set"),
        (half, "the answer broke off or is damaged"),
        (half_without_length, "the answer breaks off after"),
        (half_a_chunk, "the answer broke off or is damaged"),
        (hang_up, "the connection failed"),
        (lambda r: r.reply(200, b""), "the answer is empty where JSON belongs"),
        (lambda r: r.reply(200, b"pong", "text/plain"), "the answer is not JSON"),
        (lambda r: r.reply(200, b'{"ok": true}'), "JSON, but not of the Prometheus API"),
        (lambda r: r.reply(200, b"[1, 2]"), "JSON, but not of the Prometheus API"),
        (lambda r: r.reply(200, b'{"status":"success","data":null}'), "JSON, but not of the Prometheus API"),
        (lambda r: r.reply(200, answer([], "vector")), "answers with a vector where a matrix belongs"),
        (lambda r: r.reply(200, answer([1, "2"], "scalar")), "JSON, but not of the Prometheus API"),
        (
            lambda r: r.reply(200, answer([{"metric": {}, "values": [[1, "one"]]}])),
            "samples of the answer are damaged",
        ),
        (
            lambda r: r.reply(200, answer([{"metric": {}, "values": [[1, "1", 2]]}])),
            "samples of the answer are damaged",
        ),
        (lambda r: r.reply(200, GOOD, Content_Encoding="gzip"), "the answer broke off or is damaged"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_each_failure_says_what_is_wrong_and_what_would_be_right(answers, message):
    with servers.serving(answers) as server:
        text = fail(server.url)
    assert text.startswith(f"{server.url}: ")
    assert message in text


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_what_passes_is_tried_again(status):
    left = [status, status, 0]

    def flaky(request: servers.Request) -> None:
        now = left.pop(0)
        request.reply(*((now, b"{}") if now else (200, GOOD)), Retry_After="0")

    with servers.serving(flaky) as server, PrometheusStore(Server(url=server.url)) as store:
        [(_, block)] = store.fetch([SELECTOR])
    assert block.values.tolist() == [1.0, 0.0]
    assert [method for method, *_ in server.requests] == ["POST"] * 3
    assert len({body.split(b"&timeout")[0] for *_, body in server.requests}) == 1


def test_what_does_not_pass_is_said_after_the_last_try():
    with servers.serving(lambda r: r.reply(503, b'{"error": "too busy"}', Retry_After="0")) as server:
        assert "503 service unavailable: too busy" in fail(server.url)
    assert len(server.requests) == 4


def test_a_server_that_asks_for_an_hour_of_patience_gets_the_deadline():
    with servers.serving(lambda r: r.reply(503, b"{}", Retry_After="3600")) as server:
        before = time.monotonic()
        assert "no complete answer within 1 s while asking for" in fail(server.url, "1s")
        assert time.monotonic() - before < 4


def drip(request: servers.Request) -> None:
    request.send_response(200)
    request.send_header("Content-Length", "100000")
    request.end_headers()
    while not request.server.closing.is_set():
        request.wfile.write(b" ")
        request.wait(0.05)


def drip_headers(request: servers.Request) -> None:
    request.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not request.server.closing.is_set():
        request.wfile.write(b"x")
        request.wait(0.05)


@pytest.mark.parametrize(
    "answers", [lambda r: r.wait(30), drip, drip_headers], ids=["silent", "drips", "drips headers"]
)
def test_a_server_that_never_ends_its_answer_holds_nobody_up(answers):
    with servers.serving(answers) as server:
        before = time.monotonic()
        text = fail(server.url, "500ms")
        assert time.monotonic() - before < 3
        assert 'no complete answer within 0.5 s while asking for {__name__="up"}' in text
        with PrometheusStore(Server(url=server.url, timeout="300ms")) as store:
            for ask in (store.now, lambda: store.names(0, 1)):
                with pytest.raises(SourceError, match=r"within 0\.3 s while asking for"):
                    ask()


def test_a_listener_that_never_speaks_holds_nobody_up():
    before = set(threading.enumerate())
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ResourceWarning
        )  # whose handshake is cut off, leaves its socket to the collector
        with socket.socket() as mute:
            mute.bind(("127.0.0.1", 0))
            mute.listen()
            port = mute.getsockname()[1]
            for scheme in ("http", "https"):
                assert "no complete answer within 0.4 s" in fail(f"{scheme}://127.0.0.1:{port}", "400ms")
        for thread in set(threading.enumerate()) - before:
            thread.join(10)
        gc.collect()


def test_the_deadline_covers_all_requests_together():
    def slow(request: servers.Request) -> None:
        request.wait(0.3)
        request.reply(200, GOOD)

    with servers.serving(slow) as server, PrometheusStore(Server(url=server.url, timeout="1s", workers=2)) as store:
        seen = []
        with pytest.raises(SourceError, match=r"\[60001ms\].* and \d+ more|no complete answer"):
            seen.extend(index for index, _ in store.fetch([SELECTOR] * 40))
    assert len(seen) <= 8


def test_refused_unknown_and_not_http():
    assert "connection refused, is the server running" in fail(f"http://127.0.0.1:{servers.free_port()}")
    assert "the name nowhere.invalid does not resolve" in fail("http://nowhere.invalid:9090", "20s")
    with socket.socket() as ssh:
        ssh.bind(("127.0.0.1", 0))
        ssh.listen()

        def greet() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = ssh.accept()
                    peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                    peer.close()

        threading.Thread(target=greet, daemon=True).start()
        assert "the connection failed" in fail(f"http://127.0.0.1:{ssh.getsockname()[1]}")
        ssh.shutdown(socket.SHUT_RDWR)


def test_small_questions_fail_in_the_same_words():
    cases = [
        (page, "web page"),
        (lambda r: r.reply(200, b'{"status":"success","data":5}'), "another shape"),
        (lambda r: r.reply(200, b'{"status":"error"}'), "answers with status 'error'"),
        (lambda r: r.reply(200, b"{}"), "not of the Prometheus API"),
    ]
    for answers, message in cases:
        with (
            servers.serving(answers) as server,
            PrometheusStore(Server(url=server.url)) as store,
            pytest.raises(SourceError, match=message),
        ):
            store.names(0.0, 1.0)


def test_credentials_and_headers_go_with_every_request_and_into_no_message(tmp_path):
    (tmp_path / "token").write_text("secret\n")

    def labels(request: servers.Request) -> None:
        body = (
            GOOD if request.command == "POST" else b'{"status":"success","data":["up"],"warnings":["one store down"]}'
        )
        request.reply(200, body)

    login = Server(url="", bearer_token_file=str(tmp_path / "token"), headers={"X-Scope-OrgID": "team"})
    with servers.serving(labels) as server:
        given = msgspec.structs.replace(login, url=f"{server.url}/prometheus/")
        with PrometheusStore(given) as store:
            assert store.names(0.0, 1.0) == {"up"}
            list(store.fetch([SELECTOR]))
            assert store.warnings() == (f"{server.url}/prometheus: one store down",)
    for _, path, headers, _ in server.requests:
        assert path.startswith("/prometheus/api/v1/")
        assert headers["Authorization"] == "Bearer secret"
        assert headers["X-Scope-OrgID"] == "team"
        assert headers["Accept-Encoding"] == "identity"
    with servers.serving(lambda r: r.reply(401, b"{}")) as server:
        text = fail(server.url, bearer_token_file=str(tmp_path / "token"))
        assert f"401 unauthorized, the bearer token of {tmp_path}/token was not accepted" in text
        text = fail(server.url.replace("//", "//me:secret@"))
        assert "user me with the password in the URL was not accepted" in text
    assert [headers["Authorization"] for _, _, headers, _ in server.requests] == ["Bearer secret", "Basic bWU6c2VjcmV0"]


def test_a_password_in_netrc_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login other password secret\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    with servers.serving(lambda r: r.reply(200, GOOD)) as server, PrometheusStore(Server(url=server.url)) as store:
        list(store.fetch([SELECTOR]))
    assert "Authorization" not in server.requests[0][2]


def test_files_of_the_settings_that_cannot_be_used_are_named_before_anything_is_asked(tmp_path):
    (tmp_path / "empty").write_text("")
    (tmp_path / "no.pem").write_text("nothing\n")
    missing, empty, text = str(tmp_path / "missing"), str(tmp_path / "empty"), str(tmp_path / "no.pem")
    cases = [
        ({"bearer_token_file": missing}, f"{missing}: the bearer token cannot be read, no such file"),
        ({"bearer_token_file": empty}, f"{empty}: the bearer token must be one line of text"),
        ({"username": "me", "password_file": missing}, f"{missing}: the password cannot be read"),
        ({"ca_file": missing}, f"{missing}: cannot be read, no such file"),
        ({"ca_file": text}, f"{text}: must hold CA certificates"),
        ({"cert_file": text}, f"{text}: must hold a client certificate"),
    ]
    for files, message in cases:
        with pytest.raises(ProblemsError) as caught:
            PrometheusStore(Server(url="https://127.0.0.1:1", **files))
        assert str(caught.value).startswith(message)
    with pytest.raises(UsageError, match="no server is named"):
        PrometheusStore(Server())


def test_server_warnings_and_infos_are_kept_once_each():
    body = answer([], warnings=["a store is down"], infos=["metric might not be a counter"])
    with servers.serving(lambda r: r.reply(200, body)) as server, PrometheusStore(Server(url=server.url)) as store:
        list(store.fetch([SELECTOR, SELECTOR]))
        warnings = store.warnings()
    assert [text.split(": ")[1] for text in warnings] == ["a store is down", "metric might not be a counter"]


def test_nothing_to_fetch_asks_nothing():
    with servers.serving(page) as server, PrometheusStore(Server(url=server.url)) as store:
        assert list(store.fetch([])) == []
        assert len(store.evaluate("up", np.zeros(0)).labels) == 0
        [(_, block)] = store.fetch([Selector(("up",), (), 10.0, 9.0)])
        assert len(block.times) == 0
    assert server.requests == []


@settings(deadline=None)
@given(
    st.lists(st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:.]{0,8}", fullmatch=True), min_size=1, max_size=3, unique=True),
    st.lists(st.tuples(LABELS, st.sampled_from(["=", "!="]), st.text(max_size=12)), max_size=3),
)
def test_a_selector_says_in_promql_what_it_means(names, matchers):
    selector = Selector(tuple(names), tuple(Matcher(*matcher) for matcher in matchers), 0.0, 1.0)
    parsed = promql_parser.parse(f"{written(selector)}[1s]").vector_selector.matchers.matchers
    assert [(m.name, m.value) for m in parsed if m.name != "__name__"] == [(name, text) for name, _, text in matchers]
    [name] = [m.value for m in parsed if m.name == "__name__"]
    assert name.replace("\\", "") == "|".join(names)


NUMBERS = st.floats() | st.integers(-(10**6), 10**6).map(float)
TIMES = st.lists(st.integers(0, 10**13), min_size=1, max_size=6, unique=True).map(sorted)
NAMES = st.text(max_size=6) | st.sampled_from(["}", '}"', '},{"metric":{', '},"values":[[1,"2"]]', "]]}]}}"])


@settings(deadline=None)
@given(st.lists(st.tuples(NAMES, TIMES, st.lists(NUMBERS, min_size=6, max_size=6)), max_size=5), st.booleans())
def test_answers_are_read_as_python_reads_them(rows, compact):
    def go(value: float) -> str:  # as Prometheus writes it
        return {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN" if math.isnan(value) else repr(value))

    result = [
        {"metric": {"name": name}, "values": [[t / 1000, go(v)] for t, v in zip(times, values, strict=False)]}
        for name, times, values in rows
    ]
    body = answer(result)
    if compact:  # as Prometheus lays it out
        body = json.dumps(json.loads(body), separators=(",", ":")).encode()
    block, notes = matrix.decode(body, "x")
    assert notes == ()
    assert list(block.labels) == [{"name": name} for name, _, _ in rows]
    for row, (_, times, values) in enumerate(rows):
        part = slice(block.offsets[row], block.offsets[row + 1])
        np.testing.assert_array_equal(block.times[part], np.array(times) / 1000)
        np.testing.assert_array_equal(block.values[part], values[: len(times)])


def test_a_server_that_compresses_all_the_same_is_understood():
    def squeezed(request: servers.Request) -> None:
        body = gzip.compress(GOOD)
        request.send_response(200)
        request.send_header("Content-Encoding", "gzip")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        for at in range(len(body)):
            request.wfile.write(body[at : at + 1])
            request.wfile.flush()

    with servers.serving(squeezed) as server, PrometheusStore(Server(url=server.url)) as store:
        [(_, block)] = store.fetch([SELECTOR])
    assert block.values.tolist() == [1.0, 0.0]


def test_a_cut_answer_is_what_a_parsed_one_is():
    result = [{"metric": {"a": str(row)}, "values": [[1, str(row)], [2, "NaN"]]} for row in range(3)]
    body = json.dumps(json.loads(answer(result)), separators=(",", ":")).encode()
    cut, parsed = matrix._cut(body), matrix._parsed(body, "x")
    assert cut is not None
    assert list(map(bytes, cut.metrics)) == list(map(bytes, parsed.metrics))
    assert cut.samples == [bytes(text) + b"}" for text in parsed.samples]
    assert (cut.fresh, cut.notes) == (parsed.fresh, parsed.notes)
    for at in range(len(body)):
        with pytest.raises(SourceError):
            matrix.decode(body[:at], "x")


def test_native_histograms_are_counted_and_left_out():
    result = [
        {"metric": {"__name__": "h"}, "histograms": [[1, {"count": "1", "sum": "2", "buckets": [[0, "1", "2", "3"]]}]]},
        {"metric": {"__name__": "up"}, "values": [[1, "1"]]},
        {"metric": {"__name__": "none"}, "values": []},
    ]
    block, notes = matrix.decode(answer(result), "x")
    assert [labels["__name__"] for labels in block.labels] == ["up"]
    assert notes == ("1 series are native histograms, which are not read",)


def test_times_that_repeat_or_fall_are_put_in_order():
    result = [
        {"metric": {"a": "1"}, "values": [[3, "3"], [1, "1"], [3, "4"], [2, "2"]]},
        {"metric": {"a": "2"}, "values": [[1, "9"]]},
    ]
    block, _ = matrix.decode(answer(result), "x")
    assert block.times.tolist() == [1, 2, 3, 1]
    assert block.values.tolist() == [1, 2, 4, 9]
    assert block.offsets.tolist() == [0, 3, 4]


def block_of(rows: dict[str, list[float]]) -> Block:
    times = [time for row in rows.values() for time in row]
    offsets = np.cumsum([0, *(len(row) for row in rows.values())])
    return Block([{"row": name} for name in rows], offsets, np.array(times), np.array(times) * 10)


ROWS = st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(0, 50), min_size=1, unique=True).map(sorted))


@settings(deadline=None)
@given(ROWS, st.integers(-1, 51), st.integers(-1, 51))
def test_cutting_and_joining_loses_nothing(rows, first, last):
    whole = block_of(rows)
    cut = matrix.clipped(whole, first, last)
    expected = {name: [time for time in row if first <= time <= last] for name, row in rows.items()}
    assert as_rows(cut) == {name: row for name, row in expected.items() if row}
    parts = [matrix.clipped(whole, -1, first), matrix.clipped(whole, first + 0.5, 99)]
    assert as_rows(matrix.joined(parts)) == rows


def as_rows(block: Block) -> dict[str, list[float]]:
    assert all(10 * time == value for time, value in zip(block.times, block.values, strict=True))
    return {
        labels["row"]: block.times[block.offsets[i] : block.offsets[i + 1]].tolist()
        for i, labels in enumerate(block.labels)
    }
