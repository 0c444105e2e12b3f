"""MLflow: its REST API as its documentation has it, its folder of files, and its database."""

import json
import math
import sqlite3
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import importing
import pytest
import servers

from rca.config import Server
from rca.errors import SourceError, UsageError
from rca.sources import mlflow
from rca.sources.kept import Kept

START = 1767571200
DAY = 86400
LOSS = [(START + step, 3.0 - step / 10, step) for step in range(5)]
WATTS = "system/node-3/gpu_1_power_usage_watts"


class Tracker:
    """A tracking server that speaks version 2.0 of the REST API, a few things a page."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, object]] = {}
        self.history: dict[tuple[str, str], list[tuple[float, float | str, int]]] = {}
        self.asked: list[str] = []

    def run(
        self, run_id: str, name: str, history: dict[str, list[tuple[float, float | str, int]]], **info: object
    ) -> None:
        latest = [
            {"key": key, "value": rows[-1][1], "timestamp": int(rows[-1][0] * 1000), "step": rows[-1][2]}
            for key, rows in history.items()
        ]
        told = {
            "run_id": run_id,
            "experiment_id": "1",
            "run_name": name,
            "status": "RUNNING",
            "lifecycle_stage": "active",
            **info,
        }
        self.runs[run_id] = {"info": told, "data": {"metrics": latest, "tags": [{"key": "mlflow.user", "value": "x"}]}}
        self.history.update({(run_id, key): rows for key, rows in history.items()})

    def answer(self, request: servers.Request) -> None:
        path = urlsplit(request.path)
        body = (
            json.loads(request.body)
            if request.body
            else {key: values[0] for key, values in parse_qs(path.query).items()}
        )
        self.asked.append(path.path)
        at = int(body.get("page_token") or 0)
        if path.path.endswith("/experiments/search"):
            found = {"experiments": [{"experiment_id": "1", "name": "pretraining"}]}
        elif path.path.endswith("/runs/search"):
            assert body["experiment_ids"] == ["1"]
            found = self.page("runs", list(self.runs.values()), at, 2)
        elif path.path.endswith("/metrics/get-history"):
            rows = self.history[body["run_id"], body["metric_key"]]
            metrics = [
                {"key": body["metric_key"], "value": value, "timestamp": int(moment * 1000), "step": step}
                for moment, value, step in rows
            ]
            found = self.page("metrics", metrics, at, 3)
        else:
            request.reply(404, b'{"error_code":"ENDPOINT_NOT_FOUND","message":"no such endpoint"}')
            return
        request.reply(200, json.dumps(found).encode())

    @staticmethod
    def page(key: str, rows: list[object], at: int, size: int) -> dict[str, object]:
        more = {"next_page_token": str(at + size)} if at + size < len(rows) else {}
        return {key: rows[at : at + size], **more}


def read(uri: str | Path, name: str = "", **server: object) -> Kept:
    return mlflow.read(importing.place(uri, name), importing.ways(mlflow=Server(**{"timeout": "5s", **server})))


def expected(kept: Kept, job: str = "llama") -> None:
    assert importing.samples(kept, "train_loss", job_id=job, rank="0") == [(float(at), value) for at, value, _ in LOSS]
    assert importing.samples(kept, "train_step", job_id=job) == [(float(at), float(step)) for at, _, step in LOSS]
    assert importing.samples(kept, "DCGM_FI_DEV_POWER_USAGE", Hostname="node-3", gpu="1", job_id=job) == [
        (START, 640.0),
        (START + 10, 650.0),
    ]


def llama() -> dict[str, list[tuple[float, float | str, int]]]:
    return {"loss": list(LOSS), WATTS: [(START, 640.0, 0), (START + 10, 650.0, 1)], "eval/bleu": [(START, 1.0, 0)]}


def test_a_server_is_read_page_by_page():
    tracker = Tracker()
    tracker.run("r1", "llama", llama())
    with servers.serving(tracker.answer) as server:
        kept = read(server.url)
        assert kept.warnings() == (f"{server.url}: 1 of 3 metrics are not read: eval/bleu",)
    expected(kept)
    assert tracker.asked.count("/api/2.0/mlflow/metrics/get-history") == 3, "two pages of one metric, one of the other"


def test_which_runs_are_read():
    tracker = Tracker()
    tracker.run("r1", "old", {"loss": [(START - 9 * DAY, 1.0, 1)]})
    tracker.run("r2", "llama", llama())
    tracker.run("r3", "llama", {"loss": [(START - DAY, 1.0, 1)]})
    tracker.run("r4", "empty", {})
    with servers.serving(tracker.answer) as server:
        kept = read(server.url)
        assert kept.told("job_id") == {"llama-r2", "llama-r3"}
        assert f"{server.url}: 2 runs are older, not read; name one with {server.url}#RUN" in kept.warnings()
        assert read(f"{server.url}#old").told("job_id") == {"old"}
        assert read(f"{server.url}#r2", "mine").told("job_id") == {"mine"}
        assert read(f"{server.url}#pretraining").told("job_id") == {"old", "llama-r2", "llama-r3"}
        with pytest.raises(UsageError, match="no run or experiment 'lama', did you mean 'llama'"):
            read(f"{server.url}#lama")


def test_no_number_is_a_number_too():
    tracker = Tracker()
    tracker.run("r1", "a", {"loss": [(START, 1.0, 1), (START + 1, "NaN", 2), (START + 2, "Infinity", 3)]})
    with servers.serving(tracker.answer) as server:
        kept = read(server.url)
    assert [value for _, value in importing.samples(kept, "train_nonfinite_steps_total", kind="nan")] == [0.0, 1.0, 1.0]


def circles(request: servers.Request) -> None:
    request.reply(200, b'{"experiments": [], "next_page_token": "again"}')


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (lambda request: request.reply(401, b"{}"), "401 unauthorized, no credentials were sent"),
        (lambda request: request.reply(404, b'{"message": "no such endpoint"}'), "404 not found for /api/2.0/mlflow/experiments/search: no such endpoint, set the base URL of the tracking server"),
        (lambda request: request.reply(500, b'{"error_code": "INTERNAL_ERROR", "message": "database is locked"}'), "500 internal server error: database is locked"),
        (lambda request: request.reply(200, b"[]"), "the answer to experiments/search is not MLflow's"),
        (lambda request: request.reply(200, b"<html><title>Sign in</title>"), "a web page (Sign in)"),
        (lambda request: request.reply(200, b""), "is this an MLflow server"),
        (circles, "repeats a page, is this an MLflow server"),
        (lambda request: request.reply(200, b"{}"), "no run in it"),
        (lambda request: request.wait(3), "no complete answer within 1 s while asking for"),
    ],
)  # fmt: skip
def test_a_server_that_is_not_what_it_should_be(answers, said):
    with servers.serving(answers) as server, pytest.raises(SourceError) as caught:
        read(server.url.replace("http://", "http://me:secret@"), timeout="1s" if "within" in said else "5s")
    text = str(caught.value).replace(
        "user me with the password in the URL was not accepted, check both", "no credentials were sent"
    )
    assert text.startswith(server.url)
    assert said in text
    assert "secret" not in text


def folder(path: Path) -> Path:
    """Lay out a run as MLflow's file store does."""
    run = path / "mlruns" / "1" / "r1"
    metrics = run / "metrics"
    (metrics / "system" / "node-3").mkdir(parents=True)
    (path / "mlruns" / "1" / "meta.yaml").write_text("experiment_id: '1'\nname: pretraining\nlifecycle_stage: active\n")
    (run / "meta.yaml").write_text("run_id: r1\nrun_name: llama\nlifecycle_stage: active\nend_time: null\n")
    (metrics / "loss").write_text("".join(f"{at}000 {value} {step}\n" for at, value, step in LOSS))
    (metrics / WATTS).write_text(f"{START}000 640.0 0\n{START + 10}000 650.0 1\n")
    return path


def test_a_folder_of_files(tmp_path):
    for place in (folder(tmp_path), tmp_path / "mlruns", tmp_path / "mlruns" / "1" / "r1", f"file://{tmp_path}"):
        kept = read(place)
        expected(kept)
        assert kept.warnings() == ()
    expected(read(f"{tmp_path}#pretraining"))


def test_a_run_that_writes_just_now_and_lines_that_are_none(tmp_path):
    path = folder(tmp_path) / "mlruns" / "1" / "r1" / "metrics" / "loss"
    path.write_text(path.read_text() + "what\n17675")
    kept = read(tmp_path)
    assert kept.warnings() == (f"{path}: 2 lines left out, for example line 6",)
    assert len(importing.samples(kept, "train_loss")) == 5
    path.write_text("what\n")
    with pytest.raises(SourceError, match=f"{path}:1: not a line of milliseconds, value and step"):
        read(tmp_path)


def test_deleted_runs_and_broken_descriptions(tmp_path):
    meta = folder(tmp_path) / "mlruns" / "1" / "r1" / "meta.yaml"
    meta.write_text("lifecycle_stage: deleted\n")
    with pytest.raises(SourceError, match="no run in it"):
        read(tmp_path)
    meta.write_text("a: [\n")
    with pytest.raises(SourceError, match=f"{meta}: not YAML"):
        read(tmp_path)


SCHEMA = """
create table experiments (experiment_id integer, name text);
create table runs (run_uuid text, name text, experiment_id integer, lifecycle_stage text);
create table metrics (key text, value float, timestamp bigint, run_uuid text, step bigint, is_nan boolean);
create table latest_metrics (key text, value float, timestamp bigint, step bigint, is_nan boolean, run_uuid text);
insert into experiments values (1, 'pretraining');
insert into runs values ('r1', 'llama', 1, 'active'), ('r2', 'gone', 1, 'deleted');
"""


def database(path: Path) -> Path:
    """Lay out a run as MLflow's SQL store does, in the columns that are read."""
    with sqlite3.connect(path) as connection:
        connection.executescript(SCHEMA)
        rows = [("loss", value, at * 1000, "r1", step, 0) for at, value, step in LOSS]
        rows += [(WATTS, 640.0, START * 1000, "r1", 0, 0), (WATTS, 650.0, (START + 10) * 1000, "r1", 1, 0)]
        rows += [("grad_norm", 0.0, START * 1000, "r1", 1, 1)]
        connection.executemany("insert into metrics values (?, ?, ?, ?, ?, ?)", rows)
        latest = {row[0]: (row[0], row[1], row[2], row[4], row[5], row[3]) for row in rows}
        connection.executemany("insert into latest_metrics values (?, ?, ?, ?, ?, ?)", latest.values())
    connection.close()
    return path


def test_a_database(tmp_path):
    path = database(tmp_path / "mlflow.db")
    for place in (path, f"sqlite:///{path}", f"sqlite:///{path}#llama"):
        kept = read(place)
        expected(kept)
        assert math.isnan(importing.samples(kept, "train_grad_norm")[0][1])
    assert sorted(one.name for one in tmp_path.iterdir()) == ["mlflow.db"], "nothing is written beside it"


def test_what_is_no_database(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere\.db: no such file or folder"):
        read(f"sqlite:///{tmp_path}/nowhere.db")
    other = tmp_path / "other.db"
    other.write_text("this is a text, and by no means a database of any kind")
    with pytest.raises(SourceError, match="file is not a database, is this the database of an MLflow server"):
        read(other)
    with pytest.raises(SourceError) as caught:
        read("postgresql+none://me:secret@127.0.0.1/mlflow")
    assert "secret" not in str(caught.value)
