"""What was so while the job ran well is not why it stands now."""

from pathlib import Path

import pytest
import yaml

from rca.diagnose import SURE, diagnose
from rca.load import load
from rca.model import Window
from rca.physics.world import simulate
from rca.sources.assemble import assemble
from rca.sources.scenario import ScenarioStore, read

HANG = [
    {"at": "62m", "stuck": True, "on": {"rank": 12}},
    {"at": "62m", "on": {"rank": 12}, "shows": {"DCGM_FI_DEV_GPU_UTIL": 100, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": 0}},
]
FLAWS = {
    "a full disk": ({'node_filesystem_avail_bytes{mountpoint="/scratch"}': 0}, {}),
    "an old Xid": ({"DCGM_FI_DEV_XID_ERRORS": 79}, {"gpu": 4}),
    "an unhealthy fabric": ({"DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY": 2}, {"gpu": 4}),
    "a port without a cable": ({"node_infiniband_state_id": 1}, {"device": "mlx5_4"}),
    "memory errors": ({}, {}),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_an_old_flaw_does_not_explain_a_hang(flaw: str, tmp_path: Path) -> None:
    shown, place = FLAWS[flaw]
    effect = {"shows": shown} if shown else {"counts": {'node_edac_correctable_errors_total{controller="1"}': 0.1}}
    written = {
        "summary": flaw,
        "seed": 5,
        "duration": "90m",
        "cluster": {"nodes": 8, "model": "H100"},
        "job": {"id": "j", "tp": 8, "dp": 8, "step": "3s", "samples": 512},
        "faults": [*HANG, {"at": "0s", "on": {"node": "node-02", **place}, **effect}],
        "expect": {"status": "inconclusive", "symptom": "stalled"},
    }
    path = tmp_path / "flaw.yaml"
    path.write_text(yaml.safe_dump(written))
    world, library = simulate(read(path)), load()
    assert not world.unseen
    for end in (world.end - 960.0, world.end):
        report = diagnose(library, assemble(ScenarioStore(world), library.in_use(), Window(end - 900.0, end)))
        assert report.symptom == "stalled"
        assert not [one for one in report.causes if one.probability >= SURE and one.cause != "unknown"], end
