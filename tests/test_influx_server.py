"""InfluxDB's query APIs, against servers that speak them as documented, and some that do not."""

import json
import time
from urllib.parse import parse_qs, urlsplit

import importing
import pytest
import servers

from rca.config import Server
from rca.errors import SourceError, UsageError
from rca.sources import influx
from rca.sources.files import FilesSource
from rca.sources.influx_server import InfluxStore
from rca.sources.series import Matcher, Selector

START = 1767571200
TAGS = {"host": "node-07", "index": "1", "uuid": "GPU-b", "pstate": ""}


def opened(url: str, **server: object) -> InfluxStore:
    found = influx.read(
        importing.place(url, flag="--influx"), importing.ways(influx=Server(**{"timeout": "5s", **server}))
    )
    assert isinstance(found, InfluxStore)
    return found


def lines(*results: object) -> bytes:
    """Return an answer in chunks, a JSON object each."""
    return b"".join(json.dumps({"results": [result]}).encode() + b"\n" for result in results)


class OldServer:
    """Version 1: InfluxQL in, chunks of JSON out."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def answer(self, request: servers.Request) -> None:
        form = {key: values[0] for key, values in parse_qs(request.body.decode()).items()}
        assert (urlsplit(request.path).path, form["db"], form["epoch"]) == ("/query", "telegraf", "ms")
        query = form["q"]
        self.asked.append(query)
        if query == "SHOW FIELD KEYS":
            fields = [
                ["temperature_gpu", "integer"],
                ["power_draw", "float"],
                ["driver_version", "string"],
                ["fan_speed", "integer"],
            ]
            series = [{"name": "nvidia_smi", "columns": ["fieldKey", "fieldType"], "values": fields}]
            series += [{"name": "swap", "columns": ["fieldKey", "fieldType"], "values": [["used", "integer"]]}]
            body = lines({"statement_id": 0, "series": series})
        else:
            rows = [[(START + 15 * at) * 1000, None if at == 1 else 640.5, 60 + at] for at in range(4)]
            rows = rows[-1:] if "DESC" in query else rows[:1] if "LIMIT" in query else rows
            part = {"name": "nvidia_smi", "tags": TAGS, "columns": ["time", "power_draw", "temperature_gpu"]}
            note = [{"level": "warning", "text": "deprecated use of something"}]
            body = lines(
                {"statement_id": 0, "series": [{**part, "values": rows[:2], "partial": True}], "partial": True},
                {"statement_id": 0, "series": [{**part, "values": rows[2:]}], "messages": note},
            )
        request.reply(200, body)


def seen(store: InfluxStore) -> None:
    """Check what a store of four samples of a GPU gives."""
    assert store.names(START, START + 60.0) == {"DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE"}
    asked = [
        Selector(("DCGM_FI_DEV_GPU_TEMP",), (Matcher("gpu", "=", "1"),), START + 10.0, START + 60.0),
        Selector(("DCGM_FI_DEV_POWER_USAGE",), (), START - 10.0, START + 60.0),
    ]
    temperature, power = (block for _, block in sorted(store.fetch(asked), key=lambda one: one[0]))
    assert temperature.labels == [
        {"__name__": "DCGM_FI_DEV_GPU_TEMP", "Hostname": "node-07", "gpu": "1", "UUID": "GPU-b"}
    ]
    assert temperature.values.tolist() == [61.0, 62.0, 63.0]
    assert power.times.tolist() == [START, START + 30.0, START + 45.0]


def test_version_1():
    server = OldServer()
    with servers.serving(server.answer) as listener:
        store = opened(f"{listener.url}?db=telegraf")
        assert abs(store.now() - time.time()) < 5.0
        seen(store)
        url = listener.url
        assert store.warnings() == (
            f"{url}: deprecated use of something", f"{url}: 2 of 4 fields are not read: nvidia_smi.fan_speed, swap.used",
        )  # fmt: skip
        assert store.extent() == (START, START + 45.0)
    asked = (
        f'SELECT "temperature_gpu", "power_draw" FROM "nvidia_smi" WHERE time >= {(START - 1800) * 1000}ms '
        f"AND time <= {(START + 60) * 1000}ms GROUP BY *"
    )
    assert server.asked[:2] == ["SHOW FIELD KEYS", asked]


def flux(request: servers.Request) -> None:
    """Version 2: Flux in, annotated CSV out, a table after the other."""
    asked = json.loads(request.body)
    path = urlsplit(request.path)
    assert (path.path, parse_qs(path.query), request.headers["Authorization"]) == (
        "/api/v2/query",
        {"org": ["ops"]},
        "Token abc",
    )
    query = asked["query"]
    if "schema.measurements(" in query:
        body = (
            "#datatype,string,long,string\r\n,result,table,_value\r\n,_result,0,nvidia_smi\r\n,_result,0,swap\r\n\r\n"
        )
    elif "measurementFieldKeys" in query:
        names = ["temperature_gpu", "power_draw", "driver_version"] if '"nvidia_smi"' in query else ["used"]
        body = (
            "#datatype,string,long,string\r\n,result,table,_value\r\n"
            + "".join(f",_result,0,{name}\r\n" for name in names)
            + "\r\n"
        )
    else:
        head = "#datatype,string,long,dateTime:RFC3339,{},string,string,string,string\r\n,result,table,_time,_value,_field,_measurement,host,index,uuid\r\n"
        tail = "nvidia_smi,node-07,1,GPU-b\r\n"
        body = head.format("long") + "".join(
            f",_result,0,2026-01-05T00:00:{15 * at:02d}Z,{60 + at},temperature_gpu,{tail}" for at in range(4)
        ) + "\r\n" + head.format("double") + "".join(
            f",_result,1,2026-01-05T00:00:{15 * at:02d}.000000000Z,640.5,power_draw,{tail}" for at in (0, 2, 3)
        ) + "\r\n"  # fmt: skip
        if "limit(n: 1)" in query:
            body = (
                head.format("long")
                + f",_result,0,2026-01-05T00:00:{45 if 'desc: true' in query else 0:02d}Z,1,x,{tail}"
            )
    request.reply(200, body.encode(), "text/csv; charset=utf-8")


def test_version_2(tmp_path):
    (tmp_path / "token").write_text("abc\n")
    with servers.serving(flux) as listener:
        store = opened(f"{listener.url}?org=ops&bucket=telegraf", bearer_token_file=str(tmp_path / "token"))
        assert abs(store.now() - time.time()) < 5.0
        seen(store)
        assert store.extent() == (START, START + 45.0)
        assert store.warnings() == (
            f"{listener.url}: 2 of 4 fields are not read: nvidia_smi.driver_version, swap.used",
        )


def test_a_server_makes_the_present():
    with servers.serving(OldServer().answer) as listener:
        source = FilesSource([opened(f"{listener.url}?db=telegraf")])
        assert abs(source.latest() - time.time()) < 5.0
        assert source.extent() == (START, START + 45.0)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (lambda request: request.reply(200, lines({"statement_id": 0, "error": "database not found: telegraf"})), "database not found: telegraf (asked for SHOW FIELD KEYS)"),
        (lambda request: request.reply(200, b'{"error": "timeout"}'), "timeout (asked for SHOW FIELD KEYS)"),
        (lambda request: request.reply(400, b'{"error": "error parsing query"}'), "400 bad request: error parsing query"),
        (lambda request: request.reply(401, b'{"error": "authorization failed"}'), "401 unauthorized"),
        (lambda request: request.reply(404, b'{"error": "not found"}'), "404 not found for /query: not found, write http://HOST:8086?db=NAME for versions 1 and 3"),
        (lambda request: request.reply(200, b"pong", "text/plain"), "the answer is not InfluxDB's"),
        (lambda request: request.reply(200, b""), "is this an InfluxDB server"),
        (lambda request: request.wait(3), "no complete answer within 1 s while asking for SHOW FIELD KEYS"),
    ],
)  # fmt: skip
def test_an_old_server_that_is_not_what_it_should_be(answers, said):
    with servers.serving(answers) as listener, pytest.raises(SourceError) as caught:
        opened(
            f"{listener.url.replace('//', '//me:secret@')}?db=telegraf", timeout="1s" if "within" in said else "5s"
        ).now()
    assert str(caught.value).startswith(listener.url)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (lambda request: request.reply(200, b"#datatype,string,string\r\n,error,reference\r\n,failed to parse query,897\r\n", "text/csv"), "failed to parse query (asked for import"),
        (lambda request: request.reply(401, b'{"code": "unauthorized", "message": "unauthorized access"}'), "401 unauthorized"),
        (lambda request: request.reply(404, b'{"code": "not found", "message": "bucket \\"x\\" not found"}'), 'bucket "x" not found'),
        (lambda request: request.reply(200, b"a,b\r\n1,2\r\n", "text/csv"), "the answer is not InfluxDB's CSV"),
    ],
)  # fmt: skip
def test_a_new_server_that_is_not_what_it_should_be(answers, said):
    with servers.serving(answers) as listener, pytest.raises(SourceError) as caught:
        opened(f"{listener.url}?org=ops&bucket=x").now()
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://me:secret@h:8086", "--influx: http://h:8086: write http://HOST:8086?db=NAME for versions 1 and 3"),
        ("http://h:8086?bucket=x", "write http://HOST:8086?db=NAME"),
        ("http://h:8086?db=x&token=secret", "'token' is not known in the URL, write http://"),
        ("http://:8086?db=x", "--influx: 'http://:8086' names no host"),
    ],
)
def test_urls_that_do_not_say_what_to_read(url, said):
    with pytest.raises(UsageError) as caught:
        opened(url)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)
