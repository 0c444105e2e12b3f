"""Forty composite alert rules, as a site without `rca` would write them for the same faults on the same series.

Each joins what is wrong on a part with its job being slow, as a rule of ours does through its edges: without the second
half it pages for every warm GPU. They are plain alerting rules, without recording rules before them: what a fragment
costs is paid by each rule that reads it, as our rules were counted, and what Prometheus sees twice it may remember.
"""

import json
from itertools import product
from pathlib import Path

_STEP = (
    "sum by (job_id) (rate(train_step_duration_seconds_sum[{0}))"
    " / sum by (job_id) (rate(train_step_duration_seconds_count[{0}))"
)
_WORK = (
    'sum by (job_id, rank) (rate(train_phase_duration_seconds_sum{phase=~"forward_compute|backward_compute"}[2m]))'
    " / sum by (job_id, rank) (rate(train_steps_total[2m]))"
)
_WAIT = (
    "sum by (job_id, rank) (rate(train_collective_wait_seconds_total[2m]))"
    " / sum by (job_id, rank) (rate(train_steps_total[2m]))"
)
_LOW_CLOCK = "(DCGM_FI_DEV_SM_CLOCK < on () group_left 0.96 * quantile(0.5, DCGM_FI_DEV_SM_CLOCK))"
_GPU = "on (Hostname, gpu)"

SLOW = {
    "slower": f"(({_STEP.format('2m]')}) > 1.1 * ({_STEP.format('5m] offset 5m')}))",
    "spread": f"(max by (job_id) ({_WORK}) > 1.1 * quantile by (job_id) (0.5, {_WORK}))",
    "waiting": f"(quantile by (job_id) (0.5, {_WAIT}) > 0.1)",
    "standing": "(sum by (job_id) (increase(train_steps_total[5m])) == 0)",
}
"""How a job shows that it suffers: slower than before, one rank works longer, most ranks wait, no step at all."""

GPU = {
    "Hot": f"{_LOW_CLOCK} and {_GPU} (rate(DCGM_FI_DEV_THERMAL_VIOLATION[2m]) > 1e7)",
    "NearItsLimit": f"{_LOW_CLOCK} and {_GPU} (DCGM_FI_DEV_GPU_MAX_OP_TEMP - DCGM_FI_DEV_GPU_TEMP < 1)",
    "HotMemory": f"{_LOW_CLOCK} and {_GPU} (DCGM_FI_DEV_MEM_MAX_OP_TEMP - DCGM_FI_DEV_MEMORY_TEMP < 1)",
    "LowLimit": (
        f"{_LOW_CLOCK} and {_GPU} (DCGM_FI_DEV_ENFORCED_POWER_LIMIT < on () group_left"
        " 0.95 * quantile(0.5, DCGM_FI_DEV_ENFORCED_POWER_LIMIT))"
    ),
    "HeldBack": f"{_LOW_CLOCK} and {_GPU} (DCGM_FI_DEV_CLOCK_THROTTLE_REASONS > 4)",
    "NarrowLink": f"DCGM_FI_DEV_PCIE_LINK_WIDTH < {_GPU} DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH",
    "Replays": "rate(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[5m]) > 0.1",
    "LinkErrors": "rate(DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL[5m]) > 1",
    "LinkRecovers": "rate(DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL[5m]) > 0",
    "Xid": "changes(DCGM_FI_DEV_XID_ERRORS[5m]) > 0",
}
"""What is wrong on a GPU, ten faults by their own evidence."""


def rules() -> list[dict[str, object]]:
    """Return the rules: each fault of a GPU, where a rank runs on it whose job suffers, in four ways."""
    found: list[dict[str, object]] = []
    for (fault, gpu), (how, slow) in product(GPU.items(), SLOW.items()):
        placed = f'label_replace({gpu}, "node", "$1", "Hostname", "(.+)")'
        expr = f"train_rank_info and on (node, gpu) {placed} and on (job_id) ({slow})"
        found.append({"alert": f"Gpu{fault}AndJob{how.capitalize()}", "expr": expr, "for": "1m"})
    return found


def write(path: Path, interval: float) -> int:
    """Write the rules as one group, in JSON, which is YAML too; return how many there are."""
    written = rules()
    group = {"name": "composite", "interval": f"{interval:.0f}s", "rules": written}
    path.write_text(json.dumps({"groups": [group]}, indent=1), encoding="utf-8")
    return len(written)
