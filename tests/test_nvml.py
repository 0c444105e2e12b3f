"""GPUs are read through NVML under the names of dcgm-exporter, and what fails keeps nobody from the rest."""

import csv
import ctypes.util
import inspect
import subprocess
import time
from pathlib import Path

import made_nvml
import pynvml
import pytest
import servers
from made_nvml import MadeNvml

from rca.errors import SourceError
from rca.exporter.dcgm import CALLS, VALUES
from rca.exporter.gpus import LEAST, Gpus, families
from rca.exporter.nvml import WINDOW, Node, Snapshot
from rca.exporter.page import Page, metric

RULES = Path(__file__).resolve().parents[1] / "rules"
ONE_NAME = {
    "DCGM_FI_DEV_MEM_COPY_UTIL",
    "DCGM_FI_DEV_FB_RESERVED",
    "DCGM_FI_DEV_FB_TOTAL",
    "DCGM_FI_DEV_ROW_REMAP_PENDING",
}
"""Fields of DCGM that were never renamed, and which no rule reads."""


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def node(nvml: MadeNvml, clock: Clock | None = None) -> Node:
    nvml.clock = clock = clock or Clock()
    one = Node(nvml, "node-1", clock)
    one.open()
    return one


def values(snapshot: Snapshot, gpu: str = "0") -> dict[str, float]:
    return {one.name: value for one in snapshot.families for labels, value in one.samples if labels["gpu"] == gpu}


def test_the_double_has_the_signatures_of_the_real_one():
    for name, function in inspect.getmembers(MadeNvml, inspect.isfunction):
        if name.startswith("nvml"):
            ours = list(inspect.signature(function).parameters)[1:]
            assert ours == list(inspect.signature(getattr(pynvml, name)).parameters), name


def test_numbers_come_in_the_units_of_dcgm():
    found = values(node(MadeNvml()).read())
    assert found["DCGM_FI_DEV_SM_CLOCK"] == 1980.0
    assert found["DCGM_FI_DEV_POWER_USAGE"] == 698.5
    assert found["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] == 123_456_789.0
    assert found["DCGM_FI_DEV_FB_USED"] == 80000.0
    assert found["DCGM_FI_DEV_GPU_TEMP"] == 50.0
    assert found["DCGM_FI_DEV_MEMORY_TEMP"] == 61.0
    assert found["DCGM_FI_DEV_GPU_TEMP_LIMIT"] == -3.0
    assert found["DCGM_FI_DEV_GPU_MAX_OP_TEMP"] == 87.0
    assert found["DCGM_FI_DEV_CLOCKS_EVENT_REASONS"] == found["DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"] == 4.0
    assert found["DCGM_FI_DEV_THERMAL_VIOLATION"] == 2000.0
    assert found["DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"] == 10.0
    assert found["DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"] == 1.0
    assert found["DCGM_FI_DEV_ROW_REMAP_FAILURE"] == 1.0
    assert found["DCGM_FI_DEV_NVLINK_ERROR_DL_CRC"] == 4.0 * made_nvml.LINKS
    assert found["DCGM_FI_DEV_FABRIC_MANAGER_STATUS"] == 3.0
    assert found["DCGM_FI_DEV_XID_ERRORS"] == 0.0


def test_labels_are_those_of_dcgm_exporter():
    [family] = [one for one in node(MadeNvml()).read().families if one.name == "DCGM_FI_DEV_GPU_TEMP"]
    assert family.samples[1][0] == {
        "gpu": "1", "UUID": "GPU-00000001", "pci_bus_id": "00000000:1C:00.0", "device": "nvidia1",
        "modelName": "NVIDIA H100 80GB HBM3", "Hostname": "node-1", "DCGM_FI_DRIVER_VERSION": "570.86.15",
    }  # fmt: skip


def test_all_names_and_units_are_known_to_the_rules():
    with (RULES / "tables" / "dcgm_aliases.csv").open() as file:
        known = {name for row in csv.DictReader(file) for name in (row["old_name"], row["new_name"])}
    with (RULES / "tables" / "metric_types.csv").open() as file:
        types = {row["name"]: row["type"] for row in csv.DictReader(file)}
    for one in (*CALLS, *VALUES):
        assert one.name in known | types.keys() | ONE_NAME, one.name
        assert types.get(one.name, one.type) == one.type, one.name


def test_traffic_is_the_difference_between_two_readings():
    nvml, clock = MadeNvml(), Clock()
    one = node(nvml, clock)
    assert "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL" not in values(one.read())
    clock.now += 10.0
    nvml.fields[pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX] += 4_000_000
    assert values(one.read())["DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"] == 400.0
    nvml.fields[pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX] = 0
    clock.now += 10.0
    assert "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL" not in values(one.read()), "the driver was loaded anew"


def test_xid_errors_stick_and_are_counted_for_five_minutes():
    nvml, clock = MadeNvml(), Clock()
    one = node(nvml, clock)
    nvml.xids = [(1, 48), (1, 63), (1, 63)]
    one.wait(5.0)
    assert clock.now == pytest.approx(1005.0, abs=0.01)
    said = {item.name: item.samples for item in one.read().families}
    assert [(labels["gpu"], labels["err_code"]) for labels, _ in said["DCGM_FI_DEV_XID_ERRORS"]] == [
        ("0", "0"),
        ("1", "63"),
    ]
    counted = [(labels["gpu"], labels["xid"], value) for labels, value in said["DCGM_EXP_XID_ERRORS_COUNT"]]
    assert counted == [("1", "48", 1.0), ("1", "63", 2.0)]
    one.wait(WINDOW)
    said = {item.name: item.samples for item in one.read().families}
    assert "DCGM_EXP_XID_ERRORS_COUNT" not in said
    assert said["DCGM_FI_DEV_XID_ERRORS"][1][1] == 63.0


@pytest.mark.parametrize("one", [*CALLS, *VALUES], ids=lambda one: one.name)
def test_what_a_gpu_does_not_know_is_left_out_and_counted(one):
    unknown = {one.function} if hasattr(one, "function") else {getattr(pynvml, one.field)}
    healthy, snapshot = node(MadeNvml()).read(), node(MadeNvml(unknown=unknown)).read()
    gone = values(healthy).keys() - values(snapshot).keys()
    assert one.name not in values(snapshot)
    assert len(gone) == snapshot.unsupported["0"] - healthy.unsupported["0"]
    assert snapshot.errors == {}


@pytest.mark.parametrize("name", ["c_nvmlGpuFabricInfo_v3_t", "nvmlMemory_v2", "NVML_FI_DEV_MEMORY_TEMP"])
def test_an_older_pynvml_lacks_some_names(name):
    nvml = MadeNvml()
    before = values(node(nvml).read())
    older = MadeNvml(unknown={name})
    assert values(node(older).read()).keys() <= before.keys()


def test_where_nobody_tells_of_xid_errors_they_stay_unknown():
    one = node(MadeNvml(unknown={"nvmlDeviceRegisterEvents"}))
    assert not one.listens
    assert "DCGM_FI_DEV_XID_ERRORS" not in values(one.read())


def test_a_lost_gpu_says_nothing_but_why_and_the_others_go_on():
    nvml = MadeNvml()
    one = node(nvml)
    nvml.xids = [(0, 79)]
    nvml.lost = {0}
    one.wait(1.0)
    snapshot = one.read()
    assert values(snapshot, "0") == {"DCGM_FI_DEV_XID_ERRORS": 79.0, "DCGM_EXP_XID_ERRORS_COUNT": 1.0}
    assert values(snapshot, "1")["DCGM_FI_DEV_SM_CLOCK"] == 1980.0
    assert snapshot.errors == {"gpu is lost": 1}


def test_the_end_of_the_driver_ends_the_reading():
    nvml = MadeNvml()
    one = node(nvml)
    nvml.broken = "NVML_ERROR_UNINITIALIZED"
    with pytest.raises(pynvml.NVMLError):
        one.read()
    nvml.broken = "NVML_ERROR_UNKNOWN"
    assert one.read().errors == {"uninitialized": 1, "unknown error": pytest.approx(100, abs=99)}


# -- in a process of its own


class Hasty(Gpus):
    pause = 0.05


def gpus(library: str, said: list[str] | None = None) -> Gpus:
    return Hasty("node-1", LEAST, (said if said is not None else []).append, time.monotonic, library)


def test_where_there_is_no_driver_it_says_so():
    if ctypes.util.find_library("nvidia-ml"):
        return  # this machine has one
    with pytest.raises(SourceError, match=r"nvml: libnvidia-ml\.so\.1 is not there, is the NVIDIA driver installed"):
        gpus("pynvml").start()


def test_where_the_package_is_missing_it_says_how_to_get_it():
    with pytest.raises(SourceError, match=r"nvml: nvidia-ml-py is not installed, pip install 'rca\[nvml\]'"):
        gpus("no_such_package").start()


def test_gpus_are_read_apart_and_begun_again_when_that_ends():
    said: list[str] = []
    one = gpus("made_nvml", said)
    one.start()
    try:
        assert one.up
        assert values(one.snapshot(), "1")["DCGM_FI_DEV_GPU_TEMP"] == 51.0
        assert one._process is not None
        one._process.kill()
        end = time.monotonic() + 10.0
        while one.restarts < 1 or not said:
            assert time.monotonic() < end
            time.sleep(0.02)
        assert said == ["the process that reads NVML has ended; it is tried again"]
    finally:
        one.close()


def test_what_is_too_old_is_not_shown():
    clock = Clock()
    one = Gpus("node-1", 10.0, print, clock, "made_nvml")
    one._latest = (clock.now, node(MadeNvml()).read())
    clock.now += 45.0
    assert one.snapshot().families
    clock.now += 10.0
    assert one.snapshot().families == ()
    assert {item.name: item.samples for item in families(one)}["rca_exporter_nvml_up"] == (({}, 0.0),)


def test_the_page_names_what_dcgm_exporter_names():
    one = Gpus("node-1", 10.0, print, Clock(), "made_nvml")
    one._latest = (Clock.now, node(MadeNvml()).read())
    page = Page(lambda: map(metric, families(one)))
    done = subprocess.run(
        [servers.binary("promtool"), "check", "metrics"], input=page.text()[0], capture_output=True, check=False
    )
    said = {line.split(" ", 1)[1].partition("'")[0] for line in (done.stdout + done.stderr).decode().splitlines()}
    assert said <= {
        "label names should be written in ",
        "metric name should not include type ",
        "metric names should not contain abbreviated units",
    }
    text = page.text()[0].decode()
    assert "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION untyped\n" in text
    assert '\nDCGM_FI_DEV_SM_CLOCK{DCGM_FI_DRIVER_VERSION="570.86.15",Hostname="node-1",' in text
    assert (
        "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION unknown\n" in page.text("application/openmetrics-text")[0].decode()
    )
