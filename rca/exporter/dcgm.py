"""Which numbers of NVML are which fields of DCGM: names, types and units as dcgm-exporter has them.

Sources: nvml.h for what NVML returns, dcgm_fields.h for names and units of DCGM.
"""

from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["gauge", "counter"]
MIB = 1 / (1 << 20)


class Call(NamedTuple):
    """A metric that a function of NVML returns: the function, its arguments, which part of the result, a factor."""

    name: str
    type: Kind
    help: str
    function: str
    arguments: tuple[str, ...] = ()
    part: str | int | None = None
    factor: float = 1.0


class Value(NamedTuple):
    """A metric that is one of NVML's numbered fields; `links`: one value a link, added up."""

    name: str
    type: Kind
    help: str
    field: str
    links: bool = False


_ROWS = "nvmlDeviceGetRemappedRows"
_ECC = "nvmlDeviceGetTotalEccErrors"
_HELD_BACK = "nvmlDeviceGetViolationStatus"
_THRESHOLD = "nvmlDeviceGetTemperatureThreshold"
_MEMORY = "nvmlDeviceGetMemoryInfo"
_SINGLE, _DOUBLE = "NVML_MEMORY_ERROR_TYPE_CORRECTED", "NVML_MEMORY_ERROR_TYPE_UNCORRECTED"
_VOLATILE, _AGGREGATE = "NVML_VOLATILE_ECC", "NVML_AGGREGATE_ECC"
CALLS = (
    Call("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock (in MHz).", "nvmlDeviceGetClockInfo", ("NVML_CLOCK_SM",)),
    Call("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock (in MHz).", "nvmlDeviceGetClockInfo", ("NVML_CLOCK_MEM",)),
    Call("DCGM_FI_DEV_MAX_SM_CLOCK", "gauge", "Highest SM clock that the GPU allows (in MHz).", "nvmlDeviceGetMaxClockInfo", ("NVML_CLOCK_SM",)),
    Call("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", "nvmlDeviceGetTemperature", ("NVML_TEMPERATURE_GPU",)),
    Call("DCGM_FI_DEV_GPU_TEMP_LIMIT", "gauge", "Distance to the nearest slowdown (in C).", "nvmlDeviceGetMarginTemperature"),
    Call("DCGM_FI_DEV_SLOWDOWN_TEMP", "gauge", "Temperature at which the hardware slows down (in C).", _THRESHOLD, ("NVML_TEMPERATURE_THRESHOLD_SLOWDOWN",)),
    Call("DCGM_FI_DEV_SHUTDOWN_TEMP", "gauge", "Temperature at which the GPU shuts down (in C).", _THRESHOLD, ("NVML_TEMPERATURE_THRESHOLD_SHUTDOWN",)),
    Call("DCGM_FI_DEV_GPU_MAX_OP_TEMP", "gauge", "Highest operating temperature of the GPU (in C).", _THRESHOLD, ("NVML_TEMPERATURE_THRESHOLD_GPU_MAX",)),
    Call("DCGM_FI_DEV_MEM_MAX_OP_TEMP", "gauge", "Highest operating temperature of the memory (in C).", _THRESHOLD, ("NVML_TEMPERATURE_THRESHOLD_MEM_MAX",)),
    Call("DCGM_FI_DEV_POWER_USAGE", "gauge", "Board power (in W).", "nvmlDeviceGetPowerUsage", factor=1e-3),
    Call("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "gauge", "Power limit in force (in W).", "nvmlDeviceGetEnforcedPowerLimit", factor=1e-3),
    Call("DCGM_FI_DEV_POWER_MGMT_LIMIT", "gauge", "Power limit that was asked for (in W).", "nvmlDeviceGetPowerManagementLimit", factor=1e-3),
    Call("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Energy since the driver was loaded (in mJ).", "nvmlDeviceGetTotalEnergyConsumption"),
    Call("DCGM_FI_DEV_PSTATE", "gauge", "Performance state, 0 is the fastest.", "nvmlDeviceGetPerformanceState"),
    Call("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "gauge", "Why the clock is not higher (bit mask).", "nvmlDeviceGetCurrentClocksEventReasons"),
    Call("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "gauge", "Why the clock is not higher (bit mask), the older name.", "nvmlDeviceGetCurrentClocksThrottleReasons"),
    Call("DCGM_FI_DEV_POWER_VIOLATION", "counter", "Time held back by power (in ns).", _HELD_BACK, ("NVML_PERF_POLICY_POWER",), "violationTime"),
    Call("DCGM_FI_DEV_THERMAL_VIOLATION", "counter", "Time held back by heat (in ns).", _HELD_BACK, ("NVML_PERF_POLICY_THERMAL",), "violationTime"),
    Call("DCGM_FI_DEV_SYNC_BOOST_VIOLATION", "counter", "Time held back by sync boost (in ns).", _HELD_BACK, ("NVML_PERF_POLICY_SYNC_BOOST",), "violationTime"),
    Call("DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", "counter", "Time held back by the board's limit (in ns).", _HELD_BACK, ("NVML_PERF_POLICY_BOARD_LIMIT",), "violationTime"),
    Call("DCGM_FI_DEV_LOW_UTIL_VIOLATION", "counter", "Time held back by low use (in ns).", _HELD_BACK, ("NVML_PERF_POLICY_LOW_UTILIZATION",), "violationTime"),
    Call("DCGM_FI_DEV_RELIABILITY_VIOLATION", "counter", "Time held back for reliability (in ns).", _HELD_BACK, ("NVML_PERF_POLICY_RELIABILITY",), "violationTime"),
    Call("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilisation (in %).", "nvmlDeviceGetUtilizationRates", part="gpu"),
    Call("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilisation (in %).", "nvmlDeviceGetUtilizationRates", part="memory"),
    Call("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB).", _MEMORY, ("nvmlMemory_v2",), "free", MIB),
    Call("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).", _MEMORY, ("nvmlMemory_v2",), "used", MIB),
    Call("DCGM_FI_DEV_FB_RESERVED", "gauge", "Framebuffer memory reserved (in MiB).", _MEMORY, ("nvmlMemory_v2",), "reserved", MIB),
    Call("DCGM_FI_DEV_FB_TOTAL", "gauge", "Framebuffer memory (in MiB).", _MEMORY, ("nvmlMemory_v2",), "total", MIB),
    Call("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "PCIe retries.", "nvmlDeviceGetPcieReplayCounter"),
    Call("DCGM_FI_DEV_PCIE_LINK_GEN", "gauge", "PCIe generation in use.", "nvmlDeviceGetCurrPcieLinkGeneration"),
    Call("DCGM_FI_DEV_PCIE_LINK_WIDTH", "gauge", "PCIe lanes in use.", "nvmlDeviceGetCurrPcieLinkWidth"),
    Call("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", "gauge", "PCIe generation that is possible.", "nvmlDeviceGetMaxPcieLinkGeneration"),
    Call("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", "gauge", "PCIe lanes that are possible.", "nvmlDeviceGetMaxPcieLinkWidth"),
    Call("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter", "Single-bit ECC errors since the driver was loaded.", _ECC, (_SINGLE, _VOLATILE)),
    Call("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Double-bit ECC errors since the driver was loaded.", _ECC, (_DOUBLE, _VOLATILE)),
    Call("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "counter", "Single-bit ECC errors over the life of the GPU.", _ECC, (_SINGLE, _AGGREGATE)),
    Call("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "counter", "Double-bit ECC errors over the life of the GPU.", _ECC, (_DOUBLE, _AGGREGATE)),
    Call("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "counter", "Rows remapped for correctable errors.", _ROWS, part=0),
    Call("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "Rows remapped for uncorrectable errors.", _ROWS, part=1),
    Call("DCGM_FI_DEV_ROW_REMAP_PENDING", "gauge", "Whether rows wait for a reset to be remapped.", _ROWS, part=2),
    Call("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "Whether a row could not be remapped.", _ROWS, part=3),
)  # fmt: skip
VALUES = (
    Value("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C).", "NVML_FI_DEV_MEMORY_TEMP"),
    Value("DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS", "counter", "Time held back by the power cap (in ns).", "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP"),
    Value("DCGM_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST_NS", "counter", "Time held back by sync boost (in ns).", "NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST"),
    Value("DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS", "counter", "Time held back by heat, by software (in ns).", "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN"),
    Value("DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS", "counter", "Time held back by heat, by hardware (in ns).", "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN"),
    Value("DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS", "counter", "Time held back by the power brake (in ns).", "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN"),
    Value("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "counter", "NVLink flow-control CRC errors.", "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL"),
    Value("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "counter", "NVLink data CRC errors.", "NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL"),
    Value("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "counter", "NVLink replays.", "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL"),
    Value("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "counter", "NVLink recoveries.", "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL"),
    Value("DCGM_FI_DEV_NVLINK_ERROR_DL_CRC", "counter", "NVLink CRC errors of the data link layer.", "NVML_FI_DEV_NVLINK_ERROR_DL_CRC", links=True),
    Value("DCGM_FI_DEV_NVLINK_ERROR_DL_RECOVERY", "counter", "NVLink recoveries of the data link layer.", "NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY", links=True),
    Value("DCGM_FI_DEV_NVLINK_ERROR_DL_REPLAY", "counter", "NVLink replays of the data link layer.", "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY", links=True),
    Value("DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS", "counter", "NVLink recoveries, NVLink 5.", "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS", links=True),
    Value("DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", "counter", "NVLink recoveries that failed, NVLink 5.", "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", links=True),
    Value("DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", "gauge", "What the driver wants done (0 nothing, 1 reset, 2 reboot, 3 and 4 drain).", "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"),
)  # fmt: skip
