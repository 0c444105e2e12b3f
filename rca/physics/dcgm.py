"""Series of dcgm-exporter, under the names before DCGM 4.6 or those since.

Names, units and label spellings: dcgm-exporter `default-counters.csv` and DCGM `dcgm_fields.h` (fields 100 to 1012).
Activity (PROF) values are means over the collection, clocks and power over about a second, the rest is momentary.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rca.model import Floats
from rca.physics.cluster import Ints
from rca.physics.gpu import memory_temperature
from rca.physics.run import DT, Trace, generator
from rca.physics.scrape import Family, Labels, MetricType, Scrapes, average, collected, during, grow, hold

D, P = "DCGM_FI_DEV_", "DCGM_FI_PROF_"
RENAMED: Mapping[str, tuple[str, float]] = {
    f"{D}SM_CLOCK": (f"{D}SM_CLOCK_HERTZ", 1e6),
    f"{D}MAX_SM_CLOCK": (f"{D}SM_MAX_CLOCK_HERTZ", 1e6),
    f"{D}MEM_CLOCK": (f"{D}MEMORY_CLOCK_HERTZ", 1e6),
    f"{D}GPU_TEMP": (f"{D}GPU_TEMP_CELSIUS", 1.0),
    f"{D}MEMORY_TEMP": (f"{D}MEMORY_TEMP_CELSIUS", 1.0),
    f"{D}GPU_MAX_OP_TEMP": (f"{D}GPU_MAX_OP_TEMP_CELSIUS", 1.0),
    f"{D}MEM_MAX_OP_TEMP": (f"{D}MEMORY_MAX_OP_TEMP_CELSIUS", 1.0),
    f"{D}POWER_USAGE": (f"{D}BOARD_POWER_WATTS", 1.0),
    f"{D}ENFORCED_POWER_LIMIT": (f"{D}BOARD_POWER_LIMIT_ENFORCED_WATTS", 1.0),
    f"{D}TOTAL_ENERGY_CONSUMPTION": (f"{D}GPU_ENERGY_JOULES_TOTAL", 1e-3),
    f"{D}CLOCK_THROTTLE_REASONS": (f"{D}CLOCKS_EVENT_REASONS", 1.0),
    f"{D}PCIE_REPLAY_COUNTER": (f"{D}PCIE_REPLAY_TOTAL", 1.0),
    f"{D}GPU_UTIL": (f"{D}GPU_UTIL_RATIO", 1.0),
    f"{D}XID_ERRORS": (f"{D}XID_ERROR", 1.0),
    f"{D}UNCORRECTABLE_REMAPPED_ROWS": (f"{D}ROW_REMAP_UNCORRECTABLE_TOTAL", 1.0),
    f"{D}CORRECTABLE_REMAPPED_ROWS": (f"{D}ROW_REMAP_CORRECTABLE_TOTAL", 1.0),
    f"{D}ROW_REMAP_FAILURE": (f"{D}ROW_REMAP_FAILED", 1.0),
    f"{D}NVLINK_BANDWIDTH_TOTAL": (f"{D}NVLINK_THROUGHPUT_TOTAL", 1.0),
    f"{D}NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": (f"{D}NVLINK_CRC_FLIT_ERROR_TOTAL", 1.0),
    f"{D}NVLINK_RECOVERY_ERROR_COUNT_TOTAL": (f"{D}NVLINK_RECOVERY_ERROR_TOTAL", 1.0),
    f"{P}PIPE_TENSOR_ACTIVE": (f"{P}TENSOR_UTIL_RATIO", 1.0),
    f"{P}SM_ACTIVE": (f"{P}SM_UTIL_RATIO", 1.0),
    f"{P}DRAM_ACTIVE": (f"{P}DRAM_UTIL_RATIO", 1.0),
    f"{P}GR_ENGINE_ACTIVE": (f"{P}GR_ENGINE_UTIL_RATIO", 1.0),
}
_COUNTERS = (
    "TOTAL_ENERGY_CONSUMPTION",
    "VIOLATION",
    "PCIE_REPLAY_COUNTER",
    "ERROR_COUNT_TOTAL",
    "REMAPPED_ROWS",
    "ECC_",
)
_XID_COUNT = re.compile(r'DCGM_EXP_XID_ERRORS_COUNT\{xid="(\d+)"\}')
_LINGER = 0.35  # how much of the busy / waiting alternation is left in a reading of a clock


@dataclass(frozen=True, eq=False)
class Reader:
    """Reads the GPUs of a trace at the times at which DCGM collected: `rows` (G,) and `when` (G, S)."""

    trace: Trace
    rows: Ints
    when: Floats

    def now(self, name: str) -> Floats:
        """Return a momentary value."""
        return hold(self.trace, self.trace.gpu[name], self.rows, self.when)

    def mean(self, values: Floats) -> Floats:
        """Return a mean over the collection."""
        return average(self.trace, values, self.rows, self.when)

    def total(self, rate: Floats) -> Floats:
        """Return a counter of `rate` (T, G)."""
        return grow(rate, self.rows, self.when)

    def fault(self, name: str) -> Floats:
        """Return a fault field."""
        return hold(self.trace, self.trace.spread(name), self.rows, self.when)

    def level(self, value: float) -> Floats:
        """Return a constant."""
        return np.full(self.when.shape, value)

    def noise(self, purpose: str, sigma: float) -> Floats:
        """Return white noise, one draw a collection."""
        drawn = generator(self.trace.plant.scenario.seed, purpose).standard_normal(self.when.shape)
        noise: Floats = sigma * np.take_along_axis(drawn, self.collection, axis=1)
        return noise

    def chance(self, purpose: str, probability: Floats) -> NDArray[np.bool_]:
        """Return events of these probabilities, one draw a collection."""
        drawn = generator(self.trace.plant.scenario.seed, purpose).random(self.when.shape)
        return np.less(np.take_along_axis(drawn, self.collection, axis=1), probability)

    @cached_property
    def collection(self) -> Ints:
        """Return (G, S): the first scrape that shows what each scrape shows."""
        fresh = np.diff(self.when, axis=1, prepend=-1.0) != 0
        return np.maximum.accumulate(np.where(fresh, np.arange(self.when.shape[1]), 0), axis=1)


Draw = Callable[[Reader], Floats]


def families(trace: Trace, scrapes: Scrapes) -> Iterator[Family]:
    """Yield all series of all GPUs."""
    hardware = trace.plant.hardware
    when = collected(trace, scrapes)[hardware.node]
    targets = scrapes.of("dcgm")[hardware.node]
    when = _frozen(trace, when)
    silent = hold(trace, trace.spread("lost"), np.arange(len(targets)), when) > 0
    for gap in trace.plant.scenario.telemetry.gaps:
        for gpu in np.flatnonzero(hardware.slot == gap.gpu) if gap.exporter == "dcgm" and gap.gpu is not None else ():
            if gap.node in (None, hardware.nodes[hardware.node[gpu]]):
                silent[gpu] = during(scrapes.times[targets[gpu]], gap.at, gap.until)
    new = np.isin(np.array(hardware.nodes)[hardware.node], trace.plant.scenario.telemetry.renamed)
    for renamed, rows in ((False, np.flatnonzero(~new)), (True, np.flatnonzero(new))):
        labels = [_labels(trace, scrapes, int(gpu), renamed) for gpu in rows]
        reader = Reader(trace, rows, when[rows])
        for name, draw in METRICS.items():
            if not len(rows):
                continue
            spelled, factor = RENAMED.get(name, (name, 1.0)) if renamed else (name, 1.0)
            yield Family(spelled, _type(name), labels, targets[rows], _drawing(draw, reader, factor, silent[rows]))
    yield from _events(trace, scrapes)


def _events(trace: Trace, scrapes: Scrapes) -> Iterator[Family]:
    """Yield the series that a fault's `shows` begins: the sliding count of each Xid, the SXids of a node's switches."""
    hardware, targets = trace.plant.hardware, scrapes.of("dcgm")
    shown = [name for fault in trace.plant.scenario.faults for name in fault.shows or ()]
    blank = np.full((1, scrapes.times.shape[1]), np.nan)
    for code in sorted({found[1] for name in shown if (found := _XID_COUNT.fullmatch(name))}):
        labels = [
            {**_labels(trace, scrapes, gpu, False), "window_size_in_ms": "300000", "xid": code}
            for gpu in range(len(hardware.node))
        ]
        at = targets[hardware.node]
        yield Family(
            "DCGM_EXP_XID_ERRORS_COUNT", "gauge", labels, at, lambda: np.repeat(blank, len(hardware.node), axis=0)
        )
    for name in sorted({name for name in shown if name.startswith(f"{D}NVSWITCH_")}):
        labels = [
            {**scrapes.targets[int(targets[at])].labels, "nvswitch": "nvswitch0", "Hostname": node}
            for at, node in enumerate(hardware.nodes)
        ]
        yield Family(name, "gauge", labels, targets, lambda: np.repeat(blank, len(hardware.nodes), axis=0))


def _frozen(trace: Trace, when: Floats) -> Floats:
    """Let GPUs whose driver hangs show for ever what they showed last."""
    hangs = trace.spread("frozen") > 0
    since = np.where(hangs.any(axis=0), trace.edges[np.argmax(hangs, axis=0)], np.inf)
    return np.minimum(when, since[:, None])


def _drawing(draw: Draw, reader: Reader, factor: float, silent: NDArray[np.bool_]) -> Callable[[], Floats]:
    return lambda: np.where(silent, np.nan, draw(reader) * factor)


def _type(name: str) -> MetricType:
    return "unknown" if any(part in name for part in _COUNTERS) else "gauge"


def _labels(trace: Trace, scrapes: Scrapes, gpu: int, renamed: bool) -> Labels:
    hardware = trace.plant.hardware
    node, slot = int(hardware.node[gpu]), int(hardware.slot[gpu])
    return {
        **scrapes.targets[int(scrapes.of("dcgm")[node])].labels,
        "gpu": str(slot),
        "UUID": uuid(gpu),
        "pci_bus_id": bus(slot),
        "device": f"nvidia{slot}",
        "modelName": hardware.model.name,
        "hostname" if renamed else "Hostname": hardware.nodes[node],
        "DCGM_FI_DRIVER_VERSION": "550.90.07",
    }


def uuid(gpu: int) -> str:
    """Return the UUID of a GPU of the cluster.

    >>> uuid(57)
    'GPU-00000039-7a5c-4d1e-9b60-000000000039'
    """
    return f"GPU-{gpu:08x}-7a5c-4d1e-9b60-{gpu:012x}"


def bus(slot: int) -> str:
    """Return the PCI address of a slot, as DCGM writes it."""
    return f"00000000:{0x1B + 0x0D * slot:02X}:00.0"


def _rounded(values: Floats, digits: int = 0) -> Floats:
    """Return values as fields print them."""
    found: Floats = np.round(values, digits)
    return found


def _sm_clock(reader: Reader) -> Floats:
    busy = reader.now("busy")
    blend = np.clip(busy + reader.noise("sm clock", _LINGER) * np.sqrt(busy * (1.0 - busy)), 0.0, 1.0)
    clock = reader.now("waiting_clock") * (1.0 - blend) + reader.now("busy_clock") * blend
    clock = clock + reader.noise("sm clock white", 5.0)
    return _rounded(clock / 15.0) * 15.0


def _power(reader: Reader) -> Floats:
    watts = reader.now("power")
    read = watts * (1.0 + reader.noise("power", 0.015))
    return _rounded(np.minimum(read, reader.fault("power_limit") * 1.01), 3)


def _reasons(reader: Reader) -> Floats:
    running = reader.now("running") > 0
    hot, pulsed = reader.now("sw_thermal") > 0, reader.now("hw_thermal") > 0
    braked = (reader.fault("power_brake") > 0) & running
    busy = reader.chance("busy sample", reader.now("busy"))
    bits = (reader.chance("idle sample", reader.now("idle")) | ~running).astype(np.float64)
    bits += 2.0 * (np.isfinite(reader.fault("clock_limit")) & running)
    bits += 4.0 * (busy & (reader.now("power_limited") > 0))
    bits += 8.0 * (pulsed | braked) + 32.0 * hot + 64.0 * pulsed + 128.0 * braked
    found: Floats = bits
    return found


def _used(reader: Reader) -> Floats:
    memory = reader.trace.plant.hardware.model.memory
    return _rounded(reader.now("running") * memory * (0.93 + reader.noise("fb", 0.0005)) + 530.0)


def _links(reader: Reader) -> Floats:
    """Bytes a step are equal on all ranks, so the rate follows the step alone; MB/s, both directions."""
    rates = np.zeros_like(reader.trace.gpu["busy"])
    for job in reader.trace.jobs:
        share = job.layout.job.tp_share if job.layout.job.tp > 1 else 0.02
        per_step = share * float(job.plan.work.mean()) * 450e3
        moving = np.diff(job.progress) / DT
        rates[:, job.layout.gpu] = (per_step * moving)[:, None]
    return _rounded(reader.mean(rates) * (1.0 + reader.noise("nvlink", 0.01)))


def _corrected(reader: Reader) -> Floats:
    """Most GPUs have corrected a few bits in their life, and one now and then while one looks."""
    rate = np.full_like(reader.trace.gpu["busy"], 0.3 / 3600.0)
    return np.floor(reader.total(rate) + (reader.rows[:, None] * 7 % 10) / 10.0)


def _rows(reader: Reader, place: int, count: float) -> Floats:
    """Rows that were remapped long ago: one GPU of 23 has some."""
    return np.where(reader.rows[:, None] % 23 == place, count, 0.0) + reader.level(0.0)


def _active(name: str, of: Callable[[Trace], Floats], sigma: float = 0.01) -> Draw:
    def draw(reader: Reader) -> Floats:
        values = reader.mean(of(reader.trace)) * (1.0 + reader.noise(name, sigma))
        return _rounded(np.clip(values, 0.0, 1.0), 6)

    return draw


def _spinning(trace: Trace) -> Floats:
    spinning: Floats = np.clip(1.0 - trace.gpu["busy"] - trace.gpu["idle"], 0.0, 1.0) * trace.gpu["running"]
    return spinning


METRICS: Mapping[str, Draw] = {
    f"{D}SM_CLOCK": _sm_clock,
    f"{D}MAX_SM_CLOCK": lambda r: r.level(r.trace.plant.hardware.model.max_clock),
    f"{D}MEM_CLOCK": lambda r: r.level(r.trace.plant.hardware.model.memory_clock),
    f"{D}GPU_TEMP": lambda r: np.round(r.now("temperature") + r.noise("core", 0.3)),
    f"{D}MEMORY_TEMP": lambda r: np.round(memory_temperature(r.now("temperature")) + r.noise("hbm", 0.3)),
    f"{D}GPU_MAX_OP_TEMP": lambda r: r.level(r.trace.plant.hardware.model.max_op),
    f"{D}MEM_MAX_OP_TEMP": lambda r: r.level(r.trace.plant.hardware.model.memory_max_op),
    f"{D}POWER_USAGE": _power,
    f"{D}ENFORCED_POWER_LIMIT": lambda r: r.fault("power_limit"),
    f"{D}TOTAL_ENERGY_CONSUMPTION": lambda r: np.floor(
        r.total(r.trace.gpu["power"] * 1e3) + 4.2e12 + 1e9 * r.rows[:, None]
    ),
    f"{D}CLOCK_THROTTLE_REASONS": _reasons,
    f"{D}POWER_VIOLATION": lambda r: np.floor(r.total(1e9 * r.trace.gpu["power_limited"] * r.trace.gpu["busy"])),
    f"{D}THERMAL_VIOLATION": lambda r: np.floor(r.total(1e9 * r.trace.gpu["sw_thermal"])),
    f"{D}PCIE_REPLAY_COUNTER": lambda r: np.floor(
        r.total(r.trace.spread("pcie_replays") + 0.002) + r.rows[:, None] % 5
    ),
    f"{D}PCIE_LINK_GEN": lambda r: r.fault("pcie_generation"),
    f"{D}PCIE_LINK_WIDTH": lambda r: r.fault("pcie_width"),
    f"{D}PCIE_MAX_LINK_GEN": lambda r: r.level(r.trace.plant.hardware.model.pcie_generation),
    f"{D}PCIE_MAX_LINK_WIDTH": lambda r: r.level(16.0),
    f"{D}GPU_UTIL": lambda r: np.clip(
        np.round(100.0 * r.mean(r.trace.gpu["utilisation"]) + r.noise("util", 0.6)), 0, 100
    ),
    f"{D}MEM_COPY_UTIL": lambda r: np.clip(np.round(45.0 * r.mean(r.trace.gpu["busy"]) + r.noise("copy", 1.0)), 0, 100),
    f"{D}XID_ERRORS": lambda r: r.level(0.0),
    f"{D}FB_USED": _used,
    f"{D}FB_FREE": lambda r: r.trace.plant.hardware.model.memory - _used(r),
    f"{D}NVLINK_BANDWIDTH_TOTAL": _links,
    f"{D}NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": lambda r: np.floor(r.total(r.trace.spread("nvlink_crc"))),
    f"{D}NVLINK_RECOVERY_ERROR_COUNT_TOTAL": lambda r: np.floor(r.total(r.trace.spread("nvlink_recoveries"))),
    f"{D}FABRIC_HEALTH_SUMMARY": lambda r: r.level(1.0),
    f"{D}FABRIC_MANAGER_STATUS": lambda r: r.level(3.0),
    f"{D}ECC_DBE_VOL_TOTAL": lambda r: r.level(0.0),
    f"{D}ECC_SBE_VOL_TOTAL": _corrected,
    f"{D}UNCORRECTABLE_REMAPPED_ROWS": lambda r: _rows(r, 7, 2.0),
    f"{D}CORRECTABLE_REMAPPED_ROWS": lambda r: _rows(r, 3, 1.0),
    f"{D}ROW_REMAP_FAILURE": lambda r: r.level(0.0),
    f"{P}GR_ENGINE_ACTIVE": _active("gr", lambda t: (1.0 - t.gpu["idle"]) * t.gpu["running"], 0.004),
    f"{P}SM_ACTIVE": _active("sm", lambda t: 0.92 * t.gpu["busy"] + 0.12 * _spinning(t)),
    f"{P}PIPE_TENSOR_ACTIVE": _active("tensor", lambda t: t.gpu["tensor"]),
    f"{P}DRAM_ACTIVE": _active("dram", lambda t: 0.5 * t.gpu["busy"] + 0.02 * _spinning(t)),
}
