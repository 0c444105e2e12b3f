"""Who a rank is, from what launchers put into the environment, and where it stands in its job."""

from collections import Counter

import pytest

from rca.hook import Identity, Layout
from rca.hook.identity import Card, gpu_labels, list_cards

UUIDS = [f"GPU-{digit * 8}-1111-2222-3333-{digit * 12}" for digit in "abcd"]
CARDS = [Card(uuid, f"00000000:{bus}:00.0") for uuid, bus in zip(UUIDS, ("1B", "43", "8D", "C5"), strict=True)]
TORCHRUN = {"RANK": "11", "LOCAL_RANK": "3", "WORLD_SIZE": "16", "TORCHELASTIC_RUN_ID": "llama-7"}
SLURM = {
    "SLURM_PROCID": "9", "SLURM_LOCALID": "1", "SLURM_NTASKS": "32", "SLURM_JOB_ID": "4711", "SLURMD_NODENAME": "gpu-17",
}  # fmt: skip
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "gpt-worker-3", "RANK": "4", "WORLD_SIZE": "8"}


def read(tmp_path, **environment):
    found = Identity.read(environment, cards=tmp_path / "none", host="host-1")
    return (found.rank, found.local_rank, found.world, found.job, found.node)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 0, 1, "default", "host-1")),
        (TORCHRUN, (11, 3, 16, "llama-7", "host-1")),
        (TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"}, (11, 3, 16, "default", "host-1")),
        (SLURM, (9, 1, 32, "4711", "gpu-17")),
        (SLURM | TORCHRUN, (11, 3, 16, "4711", "gpu-17")),
        (SLURM | {"RCA_JOB_ID": "mine", "NODE_NAME": "n"}, (9, 1, 32, "mine", "n")),
        (POD, (4, 0, 8, "gpt", "")),
        (POD | {"NODE_NAME": "node-5"}, (4, 0, 8, "gpt", "node-5")),
        (POD | {"HOSTNAME": "gpt-node-0-0-x7k2p"}, (4, 0, 8, "default", "")),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, (2, 2, 4, "default", "host-1")),
        ({"RANK": "", "LOCAL_RANK": "x", "WORLD_SIZE": "-1"}, (0, 0, 1, "default", "host-1")),
        ({"RANK": "9" * 400}, (0, 0, 1, "default", "host-1")),
    ],
)  # fmt: skip
def test_launchers(tmp_path, environment, expected):
    assert read(tmp_path, **environment) == expected


@pytest.mark.parametrize(
    ("environment", "local_rank", "expected"),
    [
        # a list for the node, or one GPU for each process
        ({"CUDA_VISIBLE_DEVICES": "2,0,1"}, 0, 2),
        ({"CUDA_VISIBLE_DEVICES": "2,0,1"}, 2, 1),
        ({"CUDA_VISIBLE_DEVICES": "3"}, 0, 3),
        ({"CUDA_VISIBLE_DEVICES": " 3 "}, 2, 3),
        ({}, 1, 1),
        # nothing to see, or not for this rank
        ({"CUDA_VISIBLE_DEVICES": ""}, 0, None),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 0, None),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,2"}, 2, 0),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, 5, None),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0, None),
        # UUIDs, whole or short
        ({"CUDA_VISIBLE_DEVICES": f"{UUIDS[3]},{UUIDS[1]}"}, 1, 1),
        ({"CUDA_VISIBLE_DEVICES": "GPU-cccc"}, 0, 2),
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, 0, None),
        ({"CUDA_VISIBLE_DEVICES": f"MIG-{UUIDS[2]}/7/0"}, 0, 2),
        ({"CUDA_VISIBLE_DEVICES": "MIG-99999999-1111-2222-3333-999999999999"}, 0, None),
        # a container that was given one GPU
        ({"NVIDIA_VISIBLE_DEVICES": UUIDS[3]}, 0, 3),
        ({"NVIDIA_VISIBLE_DEVICES": f"{UUIDS[3]},{UUIDS[1]}"}, 0, None),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, 2, 2),
    ],
)
def test_the_gpu_of_a_rank(environment, local_rank, expected):
    labels = gpu_labels(environment, local_rank, CARDS)
    assert labels.get("gpu_uuid") == (None if expected is None else UUIDS[expected])
    assert labels.get("pci_bus_id") == (None if expected is None else CARDS[expected].bus)
    assert labels.get("gpu", str(expected)) == str(expected)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "4,6"}, {"gpu": "6"}),
        ({"CUDA_VISIBLE_DEVICES": "4,6", "SLURM_STEP_GPUS": "4,6"}, {"gpu": "6"}),
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": "0,1,2,3"}, {}),
        ({"NVIDIA_VISIBLE_DEVICES": "5,7"}, {}),
        ({"NVIDIA_VISIBLE_DEVICES": "5,7", "CUDA_VISIBLE_DEVICES": "0,1"}, {"gpu": "7"}),
        ({"SLURM_STEP_GPUS": "2,5"}, {"gpu": "5"}),
        ({}, {}),
    ],
)
def test_an_index_that_was_counted_anew_counts_only_where_it_is_said_for_what_it_stands(environment, expected):
    assert gpu_labels(environment, 1, []) == expected


def test_the_driver_lists_the_cards(tmp_path):
    for bus, uuid in (("0000:8d:00.0", UUIDS[1]), ("0000:1b:00.0", UUIDS[0])):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text(
            f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nBus Type: \t PCIe\n"
        )
    (tmp_path / "0000:99:00.0").mkdir()
    (tmp_path / "0000:aa:00.0").mkdir()
    (tmp_path / "0000:aa:00.0" / "information").write_text("GPU UUID: \t GPU-????????-????\n")
    assert list_cards(tmp_path) == [Card(UUIDS[0], "00000000:1B:00.0"), Card(UUIDS[1], "00000000:8D:00.0")]


@pytest.mark.parametrize(
    "layout", [Layout(), Layout(tp=4, pp=2), Layout(tp=2, cp=2, pp=2, ep=2), Layout(ep=8), Layout(pp=32)]
)
def test_every_rank_has_a_place_of_its_own(layout):
    places = [layout.place(rank, 32) for rank in range(32)]
    assert len({(one.tp, one.cp, one.dp, one.pp) for one in places}) == 32
    assert [one.tp for one in places[: layout.tp]] == list(range(layout.tp)), "tensor ranks are neighbours"
    assert [one.pp for one in places] == sorted(one.pp for one in places), "stages are blocks"
    if layout.ep > 1:
        assert set(Counter(one.ep for one in places).values()) == {32 // layout.ep}
    assert sum(one.counts for one in places) == layout.dp(32), "one rank speaks for each replica"


@pytest.mark.parametrize("layout", [Layout(tp=3), Layout(tp=0), Layout(ep=5), Layout(pp=-2), Layout(tp=64)])
def test_a_layout_that_does_not_fit_gives_no_place(layout):
    assert layout.place(0, 32) is None
    assert Layout().place(32, 32) is None
