"""What was so while the job ran well is not why it stands, or is slow, now."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from read_once import load

from rca.diagnose import SURE, diagnose
from rca.earlier import earlier
from rca.incidents import sightings
from rca.model import Report, Window
from rca.physics.world import simulate
from rca.render._words import verdict
from rca.sources.assemble import assemble
from rca.sources.scenario import ScenarioStore, read

HANG: list[dict[str, Any]] = [
    {"at": "62m", "stuck": True, "on": {"rank": 12}},
    {"at": "62m", "on": {"rank": 12}, "shows": {"DCGM_FI_DEV_GPU_UTIL": 100, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": 0}},
]
FLAWS: dict[str, dict[str, Any]] = {
    "a full disk": {"shows": {'node_filesystem_avail_bytes{mountpoint="/scratch"}': 0}},
    "an old Xid": {"shows": {"DCGM_FI_DEV_XID_ERRORS": 79}, "gpu": 4},
    "an unhealthy fabric": {"shows": {"DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY": 2}, "gpu": 4},
    "a port without a cable": {"shows": {"node_infiniband_state_id": 1}, "device": "mlx5_4"},
    "memory errors": {"counts": {'node_edac_correctable_errors_total{controller="1"}': 0.1}},
    "a cable that flaps": {"flaps": 0.005, "device": "mlx5_4"},
    "CRC errors": {"nvlink_crc": 0.25, "gpu": 4},
    "a port at half its rate": {"port_rate": 25e9, "device": "mlx5_4"},
}
SLOW_HOST: list[dict[str, Any]] = [{"at": "112m", "launch_delay": 1.2, "on": {"node": "node-02"}}]
SLOW_NETWORK: list[dict[str, Any]] = [{"at": "112m", "congestion": 3, "on": {"job": "j"}}]
BESIDE: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "memory errors": (SLOW_HOST, FLAWS["memory errors"]),
    "CRC errors": (SLOW_HOST, {"nvlink_crc": 0.25, "gpu": 4}),
    "somebody's memory": (
        SLOW_HOST,
        {"shows": {"DCGM_FI_DEV_FB_USED": 79600, "DCGM_FI_DEV_FB_FREE": 1959}, "gpu": 4},
    ),
    "a lower power limit": (SLOW_HOST, {"power_limit": 640}),
    "a cable that flaps": (SLOW_NETWORK, FLAWS["a cable that flaps"]),
    "a port at half its rate": (SLOW_NETWORK, {"port_rate": 25e9, "device": "mlx5_4"}),
    "an older PCIe link": (SLOW_NETWORK, {"pcie_generation": 4, "gpu": 4}),
}
UNHEARD = ["node_infiniband_port_transmit_wait_total", "node_infiniband_np_cnp_packets_sent_total"]


def placed(effect: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a fault of node-02 that has been there since long before."""
    place = {key: effect[key] for key in ("gpu", "device") if key in effect}
    rest = {key: value for key, value in effect.items() if key not in place}
    return {"at": "0s", **more, "on": {"node": "node-02", **place}, **rest}


def reports(
    path: Path, faults: list[dict[str, Any]], *, end: int, absent: list[str], back: tuple[float, ...]
) -> list[Report]:
    """Diagnose a job of eight nodes so many seconds before the end of a scenario."""
    written = {
        "summary": "an old flaw",
        "seed": 5,
        "duration": f"{end}m",
        "cluster": {"nodes": 8, "model": "H100"},
        "job": {"id": "j", "tp": 8, "dp": 8, "step": "3s", "sync": "400ms", "samples": 512},
        "faults": faults,
        "telemetry": {"absent": absent},
    }
    path.write_text(yaml.safe_dump(written))
    world, library = simulate(read(path)), load()
    assert not world.unseen
    windows = [Window(world.end - seconds - 900.0, world.end - seconds) for seconds in back]
    return [diagnose(library, assemble(ScenarioStore(world), library.in_use(), window)) for window in windows]


def blamed(report: Report) -> list[str]:
    """Return the causes that a report is sure of and that explain a job's trouble."""
    sure = [one for one in report.causes if one.probability >= SURE and one.cause != "unknown"]
    return [one.cause for one in sure if not one.standing]


@pytest.mark.parametrize("flaw", FLAWS)
def test_an_old_flaw_does_not_explain_a_hang(flaw: str, tmp_path: Path) -> None:
    faults = [*HANG, placed(FLAWS[flaw])]
    for report in reports(tmp_path / "flaw.yaml", faults, end=90, absent=[], back=(960.0, 0.0)):
        assert (report.symptom, report.status) == ("stalled", "inconclusive")
        assert report.causes[0].cause == "unknown"
        assert not blamed(report)


@pytest.mark.parametrize("flaw", BESIDE)
def test_an_old_flaw_does_not_explain_an_onset(flaw: str, tmp_path: Path) -> None:
    trouble, effect = BESIDE[flaw]
    (report,) = reports(tmp_path / "flaw.yaml", [*trouble, placed(effect)], end=125, absent=UNHEARD, back=(0.0,))
    assert (report.symptom, report.status) == ("slow_onset", "inconclusive")
    assert report.causes[0].cause == "unknown"
    assert not blamed(report)


def test_a_flaw_that_has_grown_explains_an_onset(tmp_path: Path) -> None:
    faults = [
        placed({"nvlink_crc": 0.25, "gpu": 4}, until="112m"),
        placed({"nvlink_crc": 4, "nvlink_bandwidth": 0.3, "gpu": 4}, at="112m"),
    ]
    (report,) = reports(tmp_path / "flaw.yaml", faults, end=125, absent=[], back=(0.0,))
    assert blamed(report) == ["nvlink_fault"]


def test_a_port_that_was_slow_before_does_not_hide_congestion(tmp_path: Path) -> None:
    faults = [*SLOW_NETWORK, placed({"port_rate": 25e9, "device": "mlx5_4"})]
    (report,) = reports(tmp_path / "flaw.yaml", faults, end=125, absent=[], back=(0.0,))
    assert report.causes[0].cause == "network_congestion"
    assert blamed(report) == ["network_congestion"]


def test_the_flaw_is_told_beside_what_it_does_not_explain(tmp_path: Path) -> None:
    faults = [*SLOW_HOST, placed({"port_rate": 25e9, "device": "mlx5_4"})]
    (report,) = reports(tmp_path / "flaw.yaml", faults, end=125, absent=[], back=(0.0,))
    told = [(one.cause, one.standing, one.impact.ranks) for one in report.causes if one.probability >= SURE]
    assert told == [("unknown", False, 64), ("nic_degraded", True, 0)]
    assert "besides, and not the reason: nic_degraded on nic node=node-02 device=mlx5_4" in verdict(report)
    assert [(one.key[1], one.symptom.symptom) for one in sightings(report)] == [
        ("nic_degraded", "none"), ("unknown", "slow_onset"),
    ]  # fmt: skip


def test_without_a_baseline_nothing_is_known_of_earlier(tmp_path: Path) -> None:
    path = tmp_path / "short.yaml"
    path.write_text("summary: s\nduration: 20m\ncluster: {nodes: 1}\njob: {id: j, dp: 8}\n")
    world, library = simulate(read(path)), load()
    window = Window(world.end - 900.0, world.end, 0.0)
    assert earlier(assemble(ScenarioStore(world), library.in_use(), window)) is None
