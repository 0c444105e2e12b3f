"""What simpler methods would say of the same snapshot: a random entity, the loudest number, a list of limits."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from benchmarks.scores import Truth
from rca.library import Library
from rca.model import Floats, Snapshot
from rca.peers import sorted_medians

MAD = 1.4826  # standard deviations of a normal distribution in one median absolute deviation
FEWEST = 5
LATELY = 300.0
"""Limits and deviations are those of the median of the last five minutes, as alerts with `for: 5m` have it."""


class Limit(NamedTuple):
    """A plain alert: the cause it stands for, held when a signal is above, below or exactly a number."""

    cause: str
    signal: str
    side: Literal["above", "below", "is"]
    limit: float


# The limits of public alert collections (awesome-prometheus-alerts, the alerts beside dcgm-exporter and node_exporter)
# and of operating handbooks for training clusters; hard errors first. Nothing is compared with peers or with the past.
_XIDS = {
    "gpu_lost": (79,),
    "gpu_memory_fault": (48, 64, 94, 95),
    "gpu_driver_hang": (119, 120),
    "nvlink_fault": (74,),
    "application_error": (13, 31, 43),
}
LIMITS = (
    Limit("node_down", "node_up", "below", 1),
    *(Limit(cause, "gpu_xid", "is", code) for cause, codes in _XIDS.items() for code in codes),
    Limit("gpu_memory_fault", "gpu_ecc_uncorrected", "above", 0),
    Limit("gpu_memory_fault", "gpu_row_remap_failed", "above", 0),
    Limit("gpu_row_remap_degraded", "gpu_rows_remapped", "above", 0),
    Limit("nic_down", "nic_state", "below", 4),
    Limit("nic_flapping", "nic_link_downs", "above", 1),
    Limit("nic_degraded", "nic_symbol_errors_per_minute", "above", 10),
    Limit("nvlink_fault", "gpu_nvlink_crc_per_minute", "above", 10),
    Limit("nvlink_fault", "gpu_nvlink_recoveries", "above", 0),
    Limit("pcie_degraded", "gpu_pcie_width_ratio", "below", 1),
    Limit("pcie_degraded", "gpu_pcie_replays_per_minute", "above", 10),
    Limit("host_memory_fault", "node_uncorrected_memory_errors", "above", 0),
    Limit("host_memory_exhausted", "node_memory_available_share", "below", 0.1),
    Limit("disk_full", "node_disk_free_share", "below", 0.1),
    Limit("shm_full", "node_shm_free_share", "below", 0.1),
    Limit("gpu_thermal_throttling", "gpu_temperature", "above", 85),
    Limit("gpu_memory_fault", "gpu_memory_temperature", "above", 95),
    Limit("slow_shared_storage", "mount_read_latency", "above", 0.1),
    Limit("slow_local_disk", "node_disk_read_latency", "above", 0.02),
    Limit("cpu_contention", "node_cpu_pressure", "above", 0.3),
    Limit("cpu_contention", "node_cpu_busiest_core", "above", 0.95),
    Limit("network_congestion", "rank_wait_share", "above", 0.4),
    Limit("gpu_degraded", "gpu_utilisation", "below", 60),
)


def rivals(library: Library, snapshot: Snapshot, seed: int) -> dict[str, tuple[Truth, ...]]:
    """Return the answers of all rivals, best first."""
    return {
        "random entity": (anyone(snapshot, seed),),
        "highest robust z": loudest(library, snapshot),
        "plain limits": limits(library, snapshot),
    }


def anyone(snapshot: Snapshot, seed: int) -> Truth:
    """Name an entity by chance."""
    random = np.random.default_rng(seed)
    sizes = {kind: len(table) for kind, table in sorted(snapshot.tables.items())}
    row = int(random.integers(sum(sizes.values())))
    for kind, size in sizes.items():
        if row < size:
            return Truth("", place(snapshot, kind, row))
        row -= size
    raise AssertionError("a row is of some kind")


def place(snapshot: Snapshot, kind: str, row: int) -> str:
    """Name a row of a table as outcomes do."""
    table = snapshot.tables[kind]
    return written({label: str(table.columns[label][row]) for label in table.key})


def written(labels: Mapping[str, str]) -> str:
    """Write the labels of an entity.

    >>> written({"node": "node-05", "gpu": "3"})
    'gpu=3 node=node-05'
    """
    return " ".join(f"{label}={value}" for label, value in sorted(labels.items()))


def lately(snapshot: Snapshot, signal: str) -> Floats:
    """Return (n,): the median of the last five minutes, NaN where there is no sample."""
    columns = max(int(LATELY / snapshot.step), 1)
    return sorted_medians(snapshot.measurements[signal].window[:, -columns:])


def loudest(library: Library, snapshot: Snapshot) -> tuple[Truth, ...]:
    """Name the entity that is furthest from the median of its kind, in robust deviations, in any signal.

    Equal values elsewhere make any difference infinitely odd, so a deviation is never taken below 1 % of the median.
    """
    best, found = 0.0, ()
    for name in sorted(snapshot.measurements):
        signal = library.signals[name]
        level = lately(snapshot, name)
        if signal.unit in ("code", "bits") or np.isfinite(level).sum() < FEWEST:
            continue
        centre = float(sorted_medians(level))
        distance = np.abs(level - centre)
        spread = max(MAD * float(sorted_medians(distance)), 0.01 * abs(centre), 1e-9)
        row = int(np.nanargmax(distance))
        if distance[row] / spread > best:
            best, found = float(distance[row]) / spread, (Truth("", place(snapshot, signal.entity, row)),)
    return found


def limits(library: Library, snapshot: Snapshot) -> tuple[Truth, ...]:
    """Name what is beyond a limit, in the order of the list; of several entities the one that is furthest beyond."""
    found = []
    for one in LIMITS:
        if one.signal in snapshot.measurements:
            level = lately(snapshot, one.signal)
            sign = {"above": 1.0, "below": -1.0, "is": 0.0}[one.side]
            beyond = (level - one.limit) * sign if sign else (level == one.limit).astype(np.float64)
            if (beyond > 0).any():
                row = int(np.nanargmax(beyond))
                found.append(Truth(one.cause, place(snapshot, library.signals[one.signal].entity, row)))
    return tuple(found)
