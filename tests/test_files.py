"""Files of other systems on the command line: what they name, together and alone, and what is said of them."""

import json
from pathlib import Path
from types import SimpleNamespace

import importing
import msgspec
import numpy as np
import pytest
from read_once import load
from tensorboardX import SummaryWriter

from rca import cli
from rca.diagnose import diagnose
from rca.errors import SourceError, UsageError
from rca.model import Window
from rca.physics.world import World
from rca.sources import nvidia_smi
from rca.sources.files import FilesSource
from rca.sources.foreign import place
from rca.sources.kept import Kept, Series
from rca.sources.scenario import ScenarioStore

SCENE = "cooling_fault"
CULPRIT = {"node": "node-07", "gpu": "1"}


class Outcome(msgspec.Struct, frozen=True):
    status: int
    out: str
    err: str

    def report(self):
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RCA_PROMETHEUS_URL", raising=False)


@pytest.fixture
def rca(capsys: pytest.CaptureFixture[str]):
    def call(*arguments: str | Path) -> Outcome:
        status = cli.run(cli.rca, [str(argument) for argument in arguments])
        return Outcome(status, *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def gpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("gpus")
    importing.write_nvidia_smi(importing.world(SCENE), folder)
    return folder


def tensorboard(scene: World, folder: Path) -> None:
    with SummaryWriter(str(folder / "llama-70b")) as writer:
        for time, step, seconds in importing.steps(scene):
            writer.add_scalar("iteration-time", seconds, step, walltime=time)
            writer.add_scalar("lm loss", 2.0, step, walltime=time)


def mlflow(scene: World, folder: Path) -> None:
    metrics = folder / "mlruns" / "1" / "r1" / "metrics"
    metrics.mkdir(parents=True)
    (folder / "mlruns" / "1" / "meta.yaml").write_text("name: pretraining\n")
    (metrics.parent / "meta.yaml").write_text("run_name: llama-70b\n")
    (metrics / "loss").write_text(
        "".join(f"{round(time * 1000)} 2.0 {step}\n" for time, step, _ in importing.steps(scene))
    )


def wandb(scene: World, folder: Path) -> None:
    rows = [
        {"_timestamp": time, "_step": at, "train/loss": 2.0, "train/global_step": step}
        for at, (time, step, _) in enumerate(importing.steps(scene))
    ]
    (folder / "llama-70b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_files_of_nvidia_smi_alone_name_the_hot_gpu(rca, gpus):
    done = rca("diagnose", "--nvidia-smi", gpus, "--zone", "UTC", "-o", "json")
    assert done.status == 10
    first = done.report()["causes"][0]
    assert (first["cause"], first["entity"]["labels"]) == ("gpu_thermal_throttling", CULPRIT)
    assert first["evidence"][0]["query"] == 'DCGM_FI_DEV_SM_CLOCK{Hostname="node-07",gpu="1"}'
    assert f"{gpus}: its times tell no zone, they are read as UTC" in done.report()["warnings"]


@pytest.mark.parametrize(("flag", "write"), [("--tensorboard", tensorboard), ("--mlflow", mlflow), ("--wandb", wandb)])
def test_with_the_values_of_training_beside_them_they_explain_the_slow_job(rca, gpus, tmp_path, flag, write):
    write(importing.world(SCENE), tmp_path)
    done = rca("diagnose", "--nvidia-smi", gpus, flag, tmp_path, "--zone", "UTC", "-o", "json")
    assert (done.status, done.err) == (10, "")
    report = done.report()
    assert report["symptom"] == "slow_onset"
    assert report["jobs"] == ["llama-70b"]
    first = report["causes"][0]
    assert (first["cause"], first["entity"]["labels"], first["jobs"]) == (
        "gpu_thermal_throttling",
        CULPRIT,
        ["llama-70b"],
    )
    assert first["impact"]["ranks"] == 64
    assert f"{gpus}: tells no job, what it says is taken to be of llama-70b" in report["warnings"]
    assert [text for text in report["warnings"] if text.startswith("ranks: no file tells which rank runs on which GPU")]


class Watched(ScenarioStore):
    """A server that has the training series of a scenario, and no GPU exporter."""

    def __init__(self, scene: World) -> None:
        super().__init__(scene)
        self.site = SimpleNamespace(url="http://watched:9090")
        self.gone = {name for name in scene.metrics if name.startswith("DCGM_")}

    def now(self) -> float:
        return self.world.end

    def extent(self) -> tuple[float, float]:
        return self.world.epoch, self.world.end

    def names(self, start, end):
        return super().names(start, end) - self.gone

    def fetch(self, selectors):
        kept = [one._replace(names=tuple(name for name in one.names if name not in self.gone)) for one in selectors]
        return super().fetch(kept)


def test_files_fill_what_a_server_lacks(gpus):
    scene, library = importing.world(SCENE), load()
    kept = nvidia_smi.read(importing.place(gpus), importing.ways())
    source = FilesSource([kept, Watched(scene)])
    source.of_job()
    assert source.where == f"{gpus}, http://watched:9090"
    assert source.latest() == scene.end
    window = Window(scene.end - 900.0, scene.end, 3600.0)
    report = diagnose(library, source.snapshot(library, window))
    assert (report.causes[0].cause, report.causes[0].entity.labels) == ("gpu_thermal_throttling", CULPRIT)
    assert list(report.causes[0].jobs) == ["llama-70b"]
    assert report.causes[0].impact.ranks == 64, "which rank runs on a GPU the server tells, what the GPU does the file"


def test_what_files_told_is_recorded_and_replayed(rca, gpus, tmp_path):
    saved = tmp_path / "x.rec"
    assert rca("record", "--nvidia-smi", gpus, "--zone", "UTC", "--to", saved).status == 0
    live = rca("diagnose", "--nvidia-smi", gpus, "--zone", "UTC", "-o", "json")
    assert rca("diagnose", "--recording", saved, "-o", "json").out == live.out


def sparse(folder: Path) -> Path:
    with SummaryWriter(str(folder)) as writer:
        for step in range(1, 40):
            writer.add_scalar("lm loss", 2.0, step * 100, walltime=1767571200.0 + step * 900.0)
    return folder


def test_values_too_far_apart_are_told_with_what_to_write(rca, tmp_path):
    done = rca("diagnose", "--tensorboard", sparse(tmp_path / "llama"), "-o", "json")
    hint = [text for text in done.report()["warnings"] if "too short for them" in text]
    assert len(hint) == 1
    assert hint[0].endswith(
        "it has samples that come every 900 s, a window of 900 s is too short for them, write --window 2h30m --baseline 7h30m"
    )
    wide = rca("diagnose", "--tensorboard", tmp_path / "llama", "--window", "2h30m", "--baseline", "7h", "-o", "json")
    assert not [text for text in wide.report()["warnings"] if "too short for them" in text]


def test_a_file_of_another_time_is_told_with_when_to_look(rca, gpus, tmp_path):
    done = rca(
        "diagnose",
        "--nvidia-smi",
        gpus,
        "--zone",
        "Asia/Shanghai",
        "--tensorboard",
        sparse(tmp_path / "llama"),
        "-o",
        "json",
    )
    told = [text for text in done.report()["warnings"] if text.startswith(f"{gpus}: no sample between")]
    assert len(told) == 1
    assert told[0].endswith("to 2026-01-04T17:14:58Z, write --at 2026-01-04T17:14:58Z")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--nvidia-smi", "{gpus}", "--scenario", "scenarios/cooling_fault.yaml"], 2, "--scenario and --nvidia-smi: --scenario stands alone"),
        (["--nvidia-smi", "{gpus}", "--zone", "Mars"], 2, "--zone: no such time zone: 'Mars', write for example UTC"),
        (["--tensorboard", "nowhere"], 2, "--tensorboard: nowhere: no such file or folder"),
        (["--tensorboard", "{gpus}"], 4, "no event files of TensorBoard"),
        (["--wandb", "pyproject.toml"], 4, "pyproject.toml: not a list of JSON objects"),
        (["--nvidia-smi", "pyproject.toml"], 4, "pyproject.toml"),
        (["--mlflow", "http://me:secret@127.0.0.1:9"], 4, "http://127.0.0.1:9: connection refused"),
        (["--influx", "http://me:secret@127.0.0.1:9"], 2, "--influx: http://127.0.0.1:9: write"),
        (["--nvidia-smi", "{gpus}", "--zone", "UTC", "--at", "2020-01-01T00:00:00Z"], 2, "there are some from 2026-01-05"),
        (["--nvidia-smi", "{gpus}", "--zone", "UTC", "--at", "2027-01-01T00:00:00Z"], 2, "is in the future"),
        ([], 2, "or files of other systems: --logs, --tensorboard"),
    ],
)  # fmt: skip
def test_wrong_usage_says_what_would_be_right(rca, gpus, arguments, status, said):
    done = rca("diagnose", *(argument.format(gpus=gpus) for argument in arguments))
    assert (done.status, done.out) == (status, "")
    assert said in done.err
    assert "secret" not in done.err
    assert "Traceback" not in done.err


def test_a_name_in_front_of_a_path(tmp_path, monkeypatch):
    assert place("--x", "llama=runs/a")[1:] == ("runs/a", "llama")
    assert place("--x", "runs/lr=0.1")[1:] == ("runs/lr=0.1", "")
    assert place("--x", "http://m?db=x")[1:] == ("http://m?db=x", "")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=0.1").mkdir()
    assert place("--x", "lr=0.1")[1:] == ("lr=0.1", "")
    assert place("--x", "http://me:secret@m:5000/x?db=y").shown == "http://m:5000/x"


def test_without_any_sample(tmp_path):
    (tmp_path / "events.out.tfevents.1").write_bytes(b"")
    from rca.sources import tensorboard as reader

    with pytest.raises(SourceError, match="no sample that the rules read"):
        FilesSource([reader.read(importing.place(tmp_path), importing.ways())]).latest()
    with pytest.raises(UsageError):
        importing.place(tmp_path / "nowhere").file()


def test_ranks_are_guessed_only_where_nobody_could_be_accused_wrongly(gpus):
    kept = nvidia_smi.read(importing.place(gpus), importing.ways()).of_job("llama")
    one = Series({"__name__": "train_step", "job_id": "llama", "rank": "0"}, np.zeros(1), np.zeros(1))
    several = [one._replace(labels={**one.labels, "rank": str(rank)}) for rank in range(8)]
    told = one._replace(labels={**one.labels, "__name__": "train_rank_info", "node": "node-07", "gpu": "1"})
    for others, guessed in (([one], True), ([], False), (several, False), ([one, told], False)):
        source = FilesSource([kept, Kept(others, "others")])
        source.assume_ranks()
        assert (source.kept[-1].place == "ranks") is guessed
    source = FilesSource([kept, Kept([one], "others")])
    source.assume_ranks()
    places = [dict(labels) for labels, _ in importing.every(source.kept[-1], "train_rank_info")]
    assert {(place["rank"], place["node"], place["gpu"]) for place in places} >= {
        ("0", "node-00", "0"),
        ("57", "node-07", "1"),
    }
