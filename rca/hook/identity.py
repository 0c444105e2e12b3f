"""Which rank a process is, of which job, on which node and GPU: what launchers put into the environment."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

CARDS = Path("/proc/driver/nvidia/gpus")
_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_LOCAL = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_WORLD = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_POD = re.compile(r"(.+)-(?:master|worker)-\d+")
_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DIGITS = re.compile(r"\d{1,9}")


class Identity(NamedTuple):
    """Who a rank is; `gpu` holds the labels that name its GPU, as far as they are certain."""

    rank: int = 0
    local_rank: int = 0
    world: int = 1
    job: str = "default"
    node: str = ""
    gpu: Mapping[str, str] = {}

    @classmethod
    def read(cls, environment: Mapping[str, str], cards: Path = CARDS, host: str = "") -> "Identity":
        """Read the variables of torchrun, Slurm, Open MPI and Kubernetes; the first that is set counts.

        `cards` is where the driver lists the GPUs, `host` this machine's name.
        """
        local = _number(environment, _LOCAL, 0)
        return cls(
            rank=_number(environment, _RANK, 0),
            local_rank=local,
            world=max(1, _number(environment, _WORLD, 1)),
            job=_job(environment),
            node=_node(environment, host or os.uname().nodename),
            gpu=gpu_labels(environment, local, list_cards(cards)),
        )


class Card(NamedTuple):
    """A GPU as the driver lists it: UUID, and bus id as dcgm-exporter writes it."""

    uuid: str
    bus: str


def _number(environment: Mapping[str, str], names: Sequence[str], default: int) -> int:
    """Return the first variable that is a number."""
    values = (environment.get(name, "").strip() for name in names)
    return next((int(value) for value in values if _DIGITS.fullmatch(value)), default)


def _job(environment: Mapping[str, str]) -> str:
    """Return the job's name: a given one, Slurm's number, Kubeflow's (its pods are JOB-worker-N), torchrun's run.

    >>> _job({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "llama-70b-worker-12"})
    'llama-70b'
    >>> _job({"TORCHELASTIC_RUN_ID": "none"})
    'default'
    """
    for name in ("RCA_JOB_ID", "SLURM_JOB_ID", "SLURM_JOBID"):
        if environment.get(name):
            return environment[name]
    pod = _POD.fullmatch(environment.get("HOSTNAME", ""))
    if pod is not None and "KUBERNETES_SERVICE_HOST" in environment:
        return pod[1]
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    return run if run not in {"", "none"} else "default"


def _node(environment: Mapping[str, str], host: str) -> str:
    """Return the node's name, nothing in a pod that is not told it: its host name is the pod's."""
    for name in ("NODE_NAME", "K8S_NODE_NAME", "SLURMD_NODENAME"):
        if environment.get(name):
            return environment[name]
    return "" if "KUBERNETES_SERVICE_HOST" in environment else host


def list_cards(folder: Path) -> list[Card]:
    """Return the GPUs that the driver lists, in the order of their bus ids, which is that of NVML."""
    found = []
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return []
    for entry in entries:
        try:
            text = (entry / "information").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        uuid = _UUID.search(text)
        if uuid is not None:
            found.append(Card(uuid[0], bus_id(entry.name)))
    return found


def bus_id(text: str) -> str:
    """Write a PCI address as dcgm-exporter does.

    >>> bus_id("0000:8d:00.0")
    '00000000:8D:00.0'
    """
    domain, _, rest = text.partition(":")
    return f"{domain.zfill(8)}:{rest}".upper()


def gpu_labels(environment: Mapping[str, str], local_rank: int, cards: Sequence[Card]) -> dict[str, str]:
    """Return the labels that name the GPU of a rank, only those that are certain.

    `CUDA_VISIBLE_DEVICES` holds indices, UUIDs (also shortened), or MIG instances, and ends at the first that is none.
    Slurm's cgroups and containers count the GPUs anew from 0; what they stood for is in `SLURM_STEP_GPUS`, or in
    `NVIDIA_VISIBLE_DEVICES`. Source: CUDA programming guide; slurm.schedmd.com/gres.html; NVIDIA container toolkit.

    >>> gpu_labels({"CUDA_VISIBLE_DEVICES": "3,1"}, 1, [])
    {'gpu': '1'}
    >>> gpu_labels({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "4,6"}, 1, [])
    {'gpu': '6'}
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        entry = str(local_rank) if cards or environment.get("SLURM_STEP_GPUS") else ""
    else:
        entry = _own([one.strip() for one in visible.split(",")], local_rank)
    if entry.startswith("MIG-GPU-"):
        entry = entry.removeprefix("MIG-").partition("/")[0]
    if entry.startswith("GPU-"):
        return _by_uuid(entry, cards)
    if not _DIGITS.fullmatch(entry):
        return {}
    return _by_index(int(entry), visible or "", environment, cards)


def _own(entries: Sequence[str], local_rank: int) -> str:
    """Return the entry that is this rank's: its own in a list for the node, or the only one."""
    end = next((place for place, one in enumerate(entries) if one in {"", "-1"}), len(entries))
    shown = entries[:end]
    if len(shown) > local_rank:
        return shown[local_rank]
    return shown[0] if len(shown) == 1 else ""


def _by_uuid(entry: str, cards: Sequence[Card]) -> dict[str, str]:
    """Return the labels of a GPU by its UUID, which may be shortened."""
    found = [card for card in cards if card.uuid.startswith(entry)]
    if len(found) == 1:
        return {"gpu_uuid": found[0].uuid, "pci_bus_id": found[0].bus}
    return {"gpu_uuid": entry} if _UUID.fullmatch(entry) else {}


def _by_index(index: int, visible: str, environment: Mapping[str, str], cards: Sequence[Card]) -> dict[str, str]:
    """Return the labels of a GPU by an index, which means the host's only where nobody has counted anew."""
    for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "NVIDIA_VISIBLE_DEVICES"):
        given = environment.get(name, "")
        if given in {"", "all", "none", "void"}:
            continue
        real = [one.strip() for one in given.split(",")]
        if len(real) == 1 and real[0].startswith("GPU-"):
            return _by_uuid(real[0], cards)
        if not all(_DIGITS.fullmatch(one) for one in real):
            return {}
        if visible and len(real) != visible.count(",") + 1:
            return {}  # a share of them, and nobody says which
        same = set(real) == {one.strip() for one in visible.split(",")}
        return {"gpu": str(index) if same else real[index]} if same or index < len(real) else {}
    if index < len(cards):
        return {"gpu": str(index), "gpu_uuid": cards[index].uuid, "pci_bus_id": cards[index].bus}
    return {"gpu": str(index)}
