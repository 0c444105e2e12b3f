"""The example for a plain PyTorch loop runs as its page says: two ranks under torchrun, on CPUs, over gloo."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import servers

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "docs" / "examples" / "train_loop.py"
DEBIAN = Path("/usr/lib/python3/dist-packages/torch")


def python_with_torch() -> str:
    """Return a Python that has torch: this one, or Debian's; without one the test fails."""
    if importlib.util.find_spec("torch") is not None:
        return sys.executable
    if not DEBIAN.is_dir():
        pytest.fail("torch is not installed: apt-get install python3-torch, which is for CPUs and stays out of .venv")
    return "/usr/bin/python3"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Run the example, with a slow rank 1, and return the two pages and the two logs."""
    python, folder = python_with_torch(), tmp_path_factory.mktemp("example")
    ports = servers.free_port()
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "RCA_JOB_ID": "example", "RCA_HOOK_LISTEN": f"127.0.0.1:{ports}",
        "RCA_HOOK_LOGS": str(folder / "logs"), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    # Streams are given to files because the torchrun of torch 1.13 fails without, on Python 3.11 (its Std flags).
    launch = ["-m", "torch.distributed.run", "--redirects", "1", "--tee", "2", "--log_dir", str(folder / "streams")]
    rendezvous = ["--nproc_per_node", "2", "--master_port", str(servers.free_port())]
    given = [str(EXAMPLE), "--steps", "12", "--slow-work", "0.05", "--hold", "30"]
    with (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            [python, *launch, *rendezvous, *given], env=environment, cwd=folder, stdout=err, stderr=err
        )
        try:
            pages = [page(process, ports + rank, folder / "err") for rank in range(2)]
        finally:
            process.terminate()
            process.wait(timeout=60)
    logs = [(folder / "logs" / f"rank-{rank}.jsonl").read_text().splitlines() for rank in range(2)]
    return pages, [[json.loads(line) for line in lines] for lines in logs]


def page(process, port, err):
    """Return the metrics of a rank once it has saved its checkpoint."""
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            text = ""
        if "train_checkpoint_duration_seconds_count" in text:
            return text
        time.sleep(0.1)
    pytest.fail(f"no checkpoint within two minutes, exit status {process.poll()}: {err.read_text()[-2000:]}")


def value(text, metric, **labels):
    wanted = ",".join(f'{name}="{one}"' for name, one in labels.items())
    found = re.search(
        rf'^{metric}\{{job_id="example",rank="\d"{"," if wanted else ""}{wanted}\}} (\S+)$', text, re.MULTILINE
    )
    assert found, f"{metric} {labels}"
    return float(found[1])


def test_both_ranks_tell_their_steps(ran):
    pages, _ = ran
    for rank, text in enumerate(pages):
        assert value(text, "train_steps_total") == 12
        assert value(text, "train_tokens_total") == 12 * 8 * 32
        assert value(text, "train_checkpoint_duration_seconds_count", op="save", mode="sync") == 1
        assert value(text, "train_hook_errors_total") == 0
        assert f'local_rank="{rank}"' in text
        assert f'dp_rank="{rank}"' in text
        assert 'framework="pytorch"' in text


def test_the_wait_for_the_slow_rank_is_no_work_of_the_other(ran):
    fast, slow = ran[0]
    phases = ("forward_compute", "backward_compute")
    work = [sum(value(one, "train_phase_duration_seconds_sum", phase=name) for name in phases) for one in (fast, slow)]
    waits = [value(one, "train_collective_wait_seconds_total", group="dp") for one in (fast, slow)]
    assert work[1] > 12 * 0.05
    assert work[1] > 2 * work[0]
    assert waits[0] > 2 * waits[1]


def test_both_ranks_write_structured_logs(ran):
    for rank, lines in enumerate(ran[1]):
        assert {line["rank"] for line in lines} == {rank}
        said = [line["event"] for line in lines]
        assert said[0] == "RANK_START"
        assert said.count("TRAIN_STEP") == 12
        assert said.count("CHECKPOINT_SAVE") == 1
        assert [line["extra"]["step"] for line in lines if line["event"] == "TRAIN_STEP"] == list(range(1, 13))
