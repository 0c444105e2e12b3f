"""`rca logs` over servers that keep logs: paging, what they are asked, and how they fail."""

import json

import made_logs
import pytest
from click.testing import CliRunner
from log_servers import NANO, Elastic, Loki, holding
from made_logs import SILENT, START, TIMED_OUT
from servers import serving

from rca import cli
from rca.loglines import elasticsearch, loki

WORLD = 8
AT = ("--at", made_logs.stamp(TIMED_OUT + 100.0))


def documents(world: int = WORLD) -> list[dict]:
    lines = [json.loads(one) for rank in range(world) for one in made_logs.of_rank(rank, world)]
    return [{**one, "@timestamp": one["timestamp"]} for one in lines]


def streams(world: int = WORLD) -> list[tuple[dict[str, str], list[tuple[int, str]]]]:
    found = []
    for node in range(2):
        texts = [one for rank in range(world) if rank * 2 // world == node for one in made_logs.of_rank(rank, world)]
        entries = [(round(made_time(one) * NANO), one.rstrip("\n")) for one in texts]
        found.append(({"job": "train", "node": f"node-{node}"}, sorted(entries)))
    return found


def made_time(text: str) -> float:
    return Elastic.time({"@timestamp": json.loads(text)["timestamp"]})


def asked(*arguments: str) -> tuple[int, list[dict], str]:
    """Run the command; return its status, its JSON lines and what it said beside them."""
    runner = CliRunner()
    with runner.isolation() as (out, err, _):
        status = cli.run(cli.rca, ["logs", *arguments])
        said, lines = err.getvalue().decode(), out.getvalue().decode()
    return status, [json.loads(one) for one in lines.splitlines()], said


@pytest.fixture(params=["elasticsearch", "opensearch", "loki"])
def place(request):
    """Yield the arguments that name a server, and the server."""
    if request.param == "loki":
        server = Loki(streams())
        with holding(server) as listener:
            yield [f"loki+{listener.url}", "--query", '{job="train"}'], server
    else:
        server = Elastic(documents(), opensearch=request.param == "opensearch")
        with holding(server) as listener:
            yield [f"es+{listener.url}/train"], server


REACH = ("--window", "1000000h")


def test_the_last_seconds_of_one_rank(place):
    status, lines, said = asked(*place[0], *REACH, "--rank", str(SILENT), "--last", "10s")
    assert (status, said) == (0, "")
    assert [one["message"] for one in lines] == [
        "step=23 loss=2.3",
        "step=24 loss=2.3",
        "step=25 loss=2.3",
        "waits for the loader",
    ]
    assert {one["rank"] for one in lines} == {SILENT}


def test_the_last_seconds_before_a_time_are_those_of_all_ranks(place):
    status, lines, _ = asked(*place[0], "--at", made_logs.stamp(START + 100.5), "--last", "10s")
    assert status == 0
    assert len(lines) == 3 * WORLD
    assert [one["timestamp"] for one in lines] == sorted(one["timestamp"] for one in lines)


def test_one_event_across_ranks(place):
    for name in ("NCCL_TIMEOUT", "EVT_2001"):
        _, lines, _ = asked(*place[0], *AT, "--event", name)
        assert sorted(one["rank"] for one in lines) == [rank for rank in range(WORLD) if rank != SILENT]


def test_who_is_silent_and_what_went_wrong_first(place):
    _, (summary,), _ = asked(*place[0], *REACH, "--world-size", str(WORLD + 1))
    assert [one["rank"] for one in summary["silent"]] == [WORLD, SILENT]
    assert summary["first_errors"][0]["rank"] == 0
    assert (len(summary["first_errors"]), summary["ranks_without_error"]) == (WORLD - 1, 1)


def test_levels_that_mislead(place):
    status, lines, said = asked(*place[0], *AT, "--levels")
    assert (status, lines, said) == (0, [], "")


def test_counts_and_a_text(place):
    _, lines, _ = asked(*place[0], *AT, "--count")
    assert sum(one["lines"] for one in lines) == len(documents())
    _, lines, _ = asked(*place[0], *AT, "--grep", "for 1800s")
    assert len(lines) == WORLD - 1


def many(count: int, step: float) -> list[dict]:
    return [
        {"@timestamp": made_logs.stamp(START + number * step), "rank": number % 8, "message": str(number)}
        for number in range(count)
    ]


@pytest.mark.parametrize("opensearch", [False, True])
def test_pages_of_an_index_hold_every_line_once(opensearch):
    found = many(
        elasticsearch.PAGE * 2 + 50, 0.0004
    )  # two or three lines a millisecond, which is all that a page tells
    with holding(Elastic(found, opensearch=opensearch)) as listener:
        _, lines, said = asked(f"es+{listener.url}/train", *AT, "--last", "1h")
        assert sum(path.startswith("/_search") and verb == "POST" for verb, path, _, _ in listener.requests) >= 3
    assert said == ""
    assert sorted(int(one["message"]) for one in lines) == list(range(len(found)))


def test_pages_of_streams_hold_every_line_once():
    entries = [(round((START + number // 3) * NANO), str(number)) for number in range(loki.PAGE * 2 + 50)]
    with holding(Loki([({"job": "train", "rank": "1"}, entries)])) as listener:
        _, lines, said = asked(f"loki+{listener.url}", "--query", '{job="train"}', *REACH, "--rank", "1")
        assert len(listener.requests) == 3
    assert said == ""
    assert sorted(int(one["message"]) for one in lines) == list(range(len(entries)))


def test_more_lines_of_one_time_than_a_page_holds_where_nothing_breaks_the_tie():
    with holding(Elastic(many(elasticsearch.PAGE + 1, 0.0), opensearch=True)) as listener:
        _, lines, _ = asked(f"es+{listener.url}/train", *AT, "--last", "1h")
    assert len(lines) == elasticsearch.PAGE + 1


def test_a_point_in_time_is_closed_where_a_page_fails():
    server = Elastic(documents(), window=100)
    with holding(server) as listener:
        status, _, said = asked(f"es+{listener.url}/train", *AT, "--rank", "1")
    assert (status, server.opened, server.closed) == (4, 1, 1)
    assert "illegal_argument_exception" in said


def test_failed_shards_and_a_search_out_of_time_are_told():
    failures = [{"shard": 1, "reason": {"type": "circuit_breaking_exception", "reason": "data too large"}}]
    server = Elastic(
        documents(), shards={"total": 3, "successful": 2, "failed": 1, "failures": failures}, timed_out=True
    )
    with holding(server) as listener:
        status, lines, said = asked(f"es+{listener.url}/train", *AT, "--rank", "1")
    assert status == 0
    assert lines
    assert "1 of 3 shards failed (data too large), lines are missing" in said
    assert "timed out on the server, lines are missing" in said


def test_what_filebeat_ships_is_laid_open():
    own = {"rank": 3, "level": "WARN", "event": "GRAD_NORM", "event_id": "EVT_1002", "extra": {"grad_norm": 45.6}}
    document = {
        "@timestamp": made_logs.stamp(START), "message": "grad_norm=45.6", "host": {"name": "node-0"},
        "agent": {"type": "filebeat"}, "ecs": {"version": "8.0.0"}, "log": {"level": "warn"},
        "rca": own,
    }  # fmt: skip
    with holding(Elastic([document], kinds={})) as listener:
        _, (line,), _ = asked(f"es+{listener.url}/train", *AT, "--level", "debug")
    expected = {"rank": 3, "node": "node-0", "event": "GRAD_NORM", "level": "WARN", "message": "grad_norm=45.6"}
    assert {name: line[name] for name in expected} == expected
    assert line["extra"]["grad_norm"] == 45.6


def test_text_in_loki_has_its_rank_from_the_labels_or_its_prefix():
    entries = [(round(START * NANO), "[rank7]: Traceback (most recent call last):")]
    with holding(
        Loki([({"job": "train", "node": "n1"}, entries), ({"job": "train", "rank": "4"}, [(entries[0][0], "hello")])])
    ) as listener:
        _, lines, _ = asked(f"loki+{listener.url}", "--query", '{job="train"}', *AT, "--level", "error")
        assert [(one["rank"], one["node"], one["message"]) for one in lines] == [
            (7, "n1", "Traceback (most recent call last):")
        ]
        _, lines, _ = asked(f"loki+{listener.url}", "--query", '{job="train"}', *AT, "--rank", "4")
    assert [one["message"] for one in lines] == ["hello"]


def test_warnings_of_a_loki_are_told():
    with holding(Loki(streams(), warnings=["limit was reached"])) as listener:
        _, _, said = asked(f"loki+{listener.url}", "--query", '{job="train"}', *REACH, "--silent")
    assert "the server warns: limit was reached" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["http://localhost:9200/x"], "which kind of server"),
        (["es+http://localhost:9200"], "no index is named"),
        (["es+localhost:9200/x"], "has no http://"),
        (["es+http://me:secret@localhost:9200/x", "tests"], "stands alone"),
        (["tests", "--query", "{}"], "files are not asked"),
        (["loki+http://127.0.0.1:1", "--query", "{}", "--window", "soon"], "--window: not a duration"),
    ],
)  # fmt: skip
def test_wrong_places_are_refused(arguments, words):
    status, lines, said = asked(*arguments)
    assert (status, lines) == (2, [])
    assert words in said
    assert "secret" not in said


def test_a_loki_is_asked_for_streams_alone():
    with holding(Loki(streams())) as listener:
        assert "its labels are job, node" in asked(f"loki+{listener.url}")[2]
        status, _, said = asked(f"loki+{listener.url}", "--query", "train")
        assert (status, "names no streams" in said) == (2, True)


@pytest.mark.parametrize(("status", "body", "words"), [
    (401, b'{"error": "missing authentication"}', "no credentials were sent"),
    (404, b'{"error": {"reason": "no such index [train]"}, "status": 404}', "write the index behind the address"),
    (400, b'{"error": {"reason": "parse_exception"}, "status": 400}', "parse_exception"),
    (200, b"[1, 2]", "the answer is not what an Elasticsearch says"),
    (200, b"<html><title>Sign in</title></html>", "web page (Sign in)"),
])  # fmt: skip
def test_what_goes_wrong_is_put_into_words(status, body, words):
    with serving(lambda request: request.reply(status, body)) as listener:
        got, lines, said = asked(f"opensearch+{listener.url}/train", "--rank", "1")
    assert (got, lines) == (4, [])
    assert words in said


def test_a_server_that_does_not_answer_is_left(tmp_path):
    config = tmp_path / "rca.yaml"
    config.write_text("{loki: {timeout: 1s}, elasticsearch: {timeout: 1s}}", encoding="utf-8")
    with serving(lambda request: request.wait(20.0)) as listener:
        for place in (["loki+" + listener.url, "--query", '{job="train"}'], [f"es+{listener.url}/train"]):
            status, _, said = asked(*place, "--config", str(config), "--rank", "1")
            assert (status, "no complete answer within 1 s" in said) == (4, True)


def test_credentials_and_the_tenant_are_sent(tmp_path):
    (tmp_path / "token").write_text("sesame\n", encoding="utf-8")
    config = tmp_path / "rca.yaml"
    config.write_text("loki: {bearer_token_file: token, headers: {X-Scope-OrgID: team}}", encoding="utf-8")
    with holding(Loki(streams())) as listener:
        status, _, _ = asked(
            f"loki+{listener.url}", "--query", '{job="train"}', *AT, "--config", str(config), "--rank", "1"
        )
        headers = listener.requests[0][2]
    assert status == 0
    assert (headers["Authorization"], headers["X-Scope-OrgID"]) == ("Bearer sesame", "team")
