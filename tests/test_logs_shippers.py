"""The configurations that ship our logs: of the right shape, about our files and fields; the programs are not run."""

import json
import logging
import re
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from rca.hook import logs as hook
from rca.loglines.owners import Owner
from rca.loglines.parse import Habit, Parser
from rca.loglines.stamps import Stamps

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
FILEBEAT = yaml.safe_load((DEPLOY / "filebeat" / "filebeat.yml").read_text(encoding="utf-8"))
FLUENT_BIT = yaml.safe_load((DEPLOY / "fluentd" / "fluent-bit.yaml").read_text(encoding="utf-8"))
FLUENTD = (DEPLOY / "fluentd" / "fluent.conf").read_text(encoding="utf-8")
AT = 1_772_373_600.25


@pytest.fixture
def written(tmp_path) -> dict:
    """Return a line as the hook writes it, and make sure of the name of its file."""
    handler = hook.attach(tmp_path, rank=3, logger=logging.getLogger("shipped job"))
    assert Path(handler.path).name == "rank-3.jsonl"
    handler.close()
    logging.getLogger("shipped job").removeHandler(handler)
    return json.loads(hook.text(hook.Line(AT, "WARN", "GRAD_NORM", "grad_norm=45.6", {"grad_norm": 45.6}), 3))


def sections(text: str) -> dict[str, dict[str, str]]:
    """Read Fluentd's own format: sections by their path, each with its settings; sections must close in order."""
    found: dict[str, dict[str, str]] = {}
    path: list[str] = []
    for line in (one.strip() for one in text.splitlines()):
        if match := re.fullmatch(r"<(/?)(\w+)(?: [\w.*]+)?>", line):
            if match[1]:
                assert path.pop() == match[2]
            else:
                path.append(match[2])
                found["/".join(path)] = {}
        elif line and not line.startswith("#"):
            name, _, value = line.partition(" ")
            found["/".join(path)][name] = value.strip()
    assert path == []
    return found


def read(document: dict):
    line = Parser("es", Owner(), Habit(), Stamps(UTC)).read(json.dumps(document).encode(), 0)
    assert line is not None
    return line


def test_all_three_follow_the_files_that_the_hook_writes():
    conf = sections(FLUENTD)
    paths = [
        FILEBEAT["filebeat.inputs"][0]["paths"],
        conf["source"]["path"].split(","),
        FLUENT_BIT["pipeline"]["inputs"][0]["path"].split(","),
    ]
    for patterns in paths:
        for path in ("/var/log/train/rank-0.jsonl", "/var/log/train/llama-70b/rank-12.jsonl"):
            assert any(fnmatch(path, pattern) for pattern in patterns)
        assert not any(fnmatch("/var/log/train/rank-0.jsonl.1", pattern) for pattern in patterns)


def test_filebeat_reads_our_times_and_puts_our_fields_where_we_look_for_them(written):
    (source,) = FILEBEAT["filebeat.inputs"]
    (stamp,) = (one["timestamp"] for one in source["processors"])
    assert stamp["field"] == "rca.timestamp"
    assert source["parsers"][0]["ndjson"]["target"] == "rca"
    go = {"2006": "%Y", "01": "%m", "02": "%d", "15": "%H", "04": "%M", "05": "%S", "000": "%f"}
    layout = re.sub(r"\d+", lambda match: go[match[0]], stamp["layouts"][0])
    for text in (*stamp["test"], written["timestamp"]):
        assert datetime.strptime(text, layout).replace(tzinfo=UTC).year == 2026
    typed = {one["name"] for one in FILEBEAT["setup.template"]["append_fields"]}
    assert typed | {"rca.message"} == {f"rca.{name}" for name in written}
    assert fnmatch("train-logs-2026.03.01", FILEBEAT["setup.template"]["pattern"])
    assert FILEBEAT["output.elasticsearch"]["index"].startswith(FILEBEAT["setup.template"]["name"])
    line = read(
        {"@timestamp": "2026-03-01T14:00:00.250Z", "rca": written, "host": {"name": "n1"}, "agent": {}, "ecs": {}}
    )
    assert (line.time, line.rank, line.node, line.level, line.event, line.extra) == (
        AT,
        "3",
        "n1",
        "WARN",
        "GRAD_NORM",
        {"grad_norm": 45.6},
    )


def test_fluentd_reads_our_times_and_keeps_our_fields(written):
    conf = sections(FLUENTD)
    parse = conf["source/parse"]
    assert (parse["@type"], parse["time_key"], parse["keep_time_key"]) == ("json", "timestamp", "true")
    assert datetime.strptime(written["timestamp"], parse["time_format"].replace("%N", "%f")).timestamp() == AT  # noqa: DTZ007 - it reads the zone
    assert conf["filter/record"].keys() == {"node"}
    assert conf["match"]["logstash_prefix"] == "train-logs"
    line = read(
        {**written, "node": "n1", "file": "/var/log/train/rank-3.jsonl", "@timestamp": "2026-03-01T14:00:00.250Z"}
    )
    assert (line.time, line.rank, line.node, line.event, line.message) == (AT, "3", "n1", "GRAD_NORM", "grad_norm=45.6")
    assert read({"unmatched_line": "Traceback", "@timestamp": "2026-03-01T14:00:00.250Z"}).message == "Traceback"


def test_fluent_bit_reads_our_times_and_sends_lines_whole(written):
    (parser,) = FLUENT_BIT["parsers"]
    (source,), (sink,) = FLUENT_BIT["pipeline"]["inputs"], FLUENT_BIT["pipeline"]["outputs"]
    assert source["parser"] == parser["name"]
    assert (parser["format"], parser["time_key"], parser["time_keep"]) == ("json", "timestamp", True)
    assert datetime.strptime(written["timestamp"], parser["time_format"].replace("%L", "%f")).timestamp() == AT  # noqa: DTZ007 - it reads the zone
    assert (sink["name"], sink["line_format"], sink["match"]) == ("loki", "json", source["tag"])
    assert "rank" not in sink["labels"]
