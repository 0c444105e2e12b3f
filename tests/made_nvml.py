"""A double of `pynvml`: its real constants, structs and errors, over GPUs that are made up.

The module itself stands for a node of two healthy GPUs, so that it can be imported by name like the real one.
"""

# ruff: noqa: N802, N803 - functions and arguments are called so in pynvml
import ctypes
from dataclasses import dataclass, field
from types import ModuleType

import pynvml

CLOCKS = {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 2619}
LINKS = 2
FIELDS = {
    pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT: LINKS,
    pynvml.NVML_FI_DEV_MEMORY_TEMP: 61,
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP: 5_000_000_000,
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN: 7_000_000_000,
    pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL: 3,
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC: 4,
    pynvml.NVML_FI_DEV_NVLINK_GET_STATE: 1,
    pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: 1_000_000,
    pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX: 2_000_000,
}


def error(name: str) -> pynvml.NVMLError:
    return pynvml.NVMLError(getattr(pynvml, name))


@dataclass
class MadeNvml(ModuleType):
    """A node; `unknown` are functions and fields that its GPUs do not know, `lost` GPUs that have fallen off the bus."""

    gpus: int = 2
    unknown: set[object] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    broken: str = ""
    xids: list[tuple[int, int]] = field(default_factory=list)
    fields: dict[int, int] = field(default_factory=lambda: dict(FIELDS))
    clock: object = None

    def __post_init__(self) -> None:
        super().__init__("pynvml")

    def __getattr__(self, name: str) -> object:
        if name in self.__dict__.get("unknown", ()) and not name.startswith("nvml"):
            raise AttributeError(name)
        return getattr(pynvml, name)

    def _asked(self, name: str, handle: object = None) -> int:
        """Return which GPU is meant, or raise what NVML would."""
        if self.broken:
            raise error(self.broken)
        if name in self.unknown:
            raise error("NVML_ERROR_NOT_SUPPORTED")
        index = -1 if handle is None else (ctypes.cast(handle, ctypes.c_void_p).value or 0) // 4096 - 1
        if index in self.lost:
            raise error("NVML_ERROR_GPU_IS_LOST")
        return index

    @staticmethod
    def handle(index: int) -> object:
        return ctypes.cast(4096 * (index + 1), pynvml.c_nvmlDevice_t)

    def nvmlInit(self):
        self._asked("nvmlInit")

    def nvmlSystemGetDriverVersion(self):
        return "570.86.15"

    def nvmlDeviceGetCount(self):
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.handle(index)

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{self._asked('nvmlDeviceGetUUID', handle):08d}"

    def nvmlDeviceGetName(self, handle):
        return "NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetMinorNumber(self, handle):
        return self._asked("nvmlDeviceGetMinorNumber", handle)

    def nvmlDeviceGetPciInfo(self, handle):
        info = pynvml.nvmlPciInfo_t()
        info.busId = b"00000000:%02X:00.0" % (0x1B + self._asked("nvmlDeviceGetPciInfo", handle))
        return info

    def nvmlDeviceGetClockInfo(self, handle, type):  # noqa: A002 - it is called so there
        self._asked("nvmlDeviceGetClockInfo", handle)
        return CLOCKS[type]

    def nvmlDeviceGetMaxClockInfo(self, handle, type):  # noqa: A002 - likewise
        self._asked("nvmlDeviceGetMaxClockInfo", handle)
        return CLOCKS[type]

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 50 + self._asked("nvmlDeviceGetTemperature", handle) + sensor

    def nvmlDeviceGetTemperatureThreshold(self, handle, threshold):
        self._asked("nvmlDeviceGetTemperatureThreshold", handle)
        return {0: 92, 1: 89, 2: 95, 3: 87}[threshold]

    def nvmlDeviceGetMarginTemperature(self, handle):
        self._asked("nvmlDeviceGetMarginTemperature", handle)
        return -3

    def nvmlDeviceGetPowerUsage(self, handle):
        self._asked("nvmlDeviceGetPowerUsage", handle)
        return 698_500

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):
        self._asked("nvmlDeviceGetEnforcedPowerLimit", handle)
        return 700_000

    def nvmlDeviceGetPowerManagementLimit(self, handle):
        self._asked("nvmlDeviceGetPowerManagementLimit", handle)
        return 650_000

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        self._asked("nvmlDeviceGetTotalEnergyConsumption", handle)
        return 123_456_789

    def nvmlDeviceGetPerformanceState(self, handle):
        self._asked("nvmlDeviceGetPerformanceState", handle)
        return 0

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        self._asked("nvmlDeviceGetCurrentClocksEventReasons", handle)
        return pynvml.nvmlClocksEventReasonSwPowerCap

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        self._asked("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return pynvml.nvmlClocksEventReasonSwPowerCap

    def nvmlDeviceGetViolationStatus(self, device, perfPolicyType):
        self._asked("nvmlDeviceGetViolationStatus", device)
        return pynvml.c_nvmlViolationTime_t(referenceTime=1, violationTime=1000 * (1 + perfPolicyType))

    def nvmlDeviceGetUtilizationRates(self, handle):
        self._asked("nvmlDeviceGetUtilizationRates", handle)
        return pynvml.c_nvmlUtilization_t(gpu=100, memory=40)

    def nvmlDeviceGetMemoryInfo(self, handle, version=None):
        self._asked("nvmlDeviceGetMemoryInfo", handle)
        assert version == pynvml.nvmlMemory_v2
        mib = 1 << 20
        return pynvml.c_nvmlMemory_v2_t(
            version=version, total=81559 * mib, reserved=559 * mib, free=1000 * mib, used=80000 * mib
        )

    def nvmlDeviceGetPcieReplayCounter(self, handle):
        self._asked("nvmlDeviceGetPcieReplayCounter", handle)
        return 6

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle):
        self._asked("nvmlDeviceGetCurrPcieLinkGeneration", handle)
        return 4

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle):
        self._asked("nvmlDeviceGetMaxPcieLinkGeneration", handle)
        return 5

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle):
        self._asked("nvmlDeviceGetCurrPcieLinkWidth", handle)
        return 8

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle):
        self._asked("nvmlDeviceGetMaxPcieLinkWidth", handle)
        return 16

    def nvmlDeviceGetTotalEccErrors(self, handle, errorType, counterType):
        self._asked("nvmlDeviceGetTotalEccErrors", handle)
        return 10 * errorType + counterType

    def nvmlDeviceGetRemappedRows(self, device):
        self._asked("nvmlDeviceGetRemappedRows", device)
        return (2, 1, 0, 1)

    def nvmlDeviceGetFieldValues(self, handle, fieldIds):
        self._asked("nvmlDeviceGetFieldValues", handle)
        values = (pynvml.c_nvmlFieldValue_t * len(fieldIds))()
        for value, (number, scope) in zip(values, fieldIds, strict=True):
            value.fieldId, value.scopeId = number, scope
            known = number in self.fields and number not in self.unknown
            value.nvmlReturn = pynvml.NVML_SUCCESS if known else pynvml.NVML_ERROR_NOT_SUPPORTED
            value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            value.value.ullVal = self.fields.get(number, 0)
        return values

    def nvmlDeviceGetGpuFabricInfoV(self, device, gpuFabricInfo):
        self._asked("nvmlDeviceGetGpuFabricInfoV", device)
        info = gpuFabricInfo._obj
        info.state, info.status, info.healthSummary = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, pynvml.NVML_SUCCESS, 1
        return pynvml.NVML_SUCCESS

    def nvmlEventSetCreate(self):
        return pynvml.c_nvmlEventSet_t()

    def nvmlDeviceRegisterEvents(self, handle, eventTypes, eventSet):
        self._asked("nvmlDeviceRegisterEvents", handle)
        assert eventTypes == pynvml.nvmlEventTypeXidCriticalError

    def nvmlEventSetWait_v2(self, eventSet, timeoutms):
        if not self.xids:
            if self.clock is not None:
                self.clock.now += timeoutms / 1000
            raise error("NVML_ERROR_TIMEOUT")
        index, xid = self.xids.pop(0)
        data = pynvml.c_nvmlEventData_t()
        data.device, data.eventType, data.eventData = self.handle(index), pynvml.nvmlEventTypeXidCriticalError, xid
        return data


_NODE = MadeNvml()


def __getattr__(name: str) -> object:
    return getattr(_NODE, name)
