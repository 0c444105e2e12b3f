"""Files of nvidia-smi, in all the shapes that drivers, shells and spreadsheets leave them in."""

import gzip
import math
from datetime import UTC, datetime
from pathlib import Path

import importing
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca.errors import SourceError, UsageError
from rca.sources import nvidia_smi
from rca.sources.kept import Kept
from rca.sources.nvidia_smi import number_in

AT = datetime(2026, 11, 30, 6, 7, 16, tzinfo=UTC).timestamp()
UNITS_IN_BOTH = """timestamp, index, uuid, name, temperature.gpu, power.draw [W], clocks.current.sm [MHz], utilization.gpu [%]
2026/11/30 06:07:16.000, 0, GPU-a, NVIDIA H100 80GB HBM3, 61, 687.10 W, 1980 MHz, 99 %
2026/11/30 06:07:16.002, 1, GPU-b, NVIDIA H100 80GB HBM3, 63, [N/A], 1965 MHz, 100 %
2026/11/30 06:07:21.000, 0, GPU-a, NVIDIA H100 80GB HBM3, 62, 688.00 W, 1980 MHz, 98 %
"""
CLOCK, POWER, TEMPERATURE, BUSY = (
    f"DCGM_FI_DEV_{name}" for name in ("SM_CLOCK", "POWER_USAGE", "GPU_TEMP", "GPU_UTIL")
)
REASONS = "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"


def read(folder: Path, text: str, name: str = "node-07.csv", zone: str = "UTC") -> Kept:
    path = folder / name
    path.write_text(text)
    return nvidia_smi.read(importing.place(path), importing.ways(zone))


def test_a_file_as_the_driver_writes_it(tmp_path):
    kept = read(tmp_path, UNITS_IN_BOTH)
    who = {"Hostname": "node-07", "gpu": "0", "UUID": "GPU-a", "modelName": "NVIDIA H100 80GB HBM3"}
    assert importing.samples(kept, CLOCK, **who) == [(AT, 1980.0), (AT + 5, 1980.0)]
    assert importing.samples(kept, POWER, gpu="0") == [(AT, 687.1), (AT + 5, 688.0)]
    assert [dict(labels)["gpu"] for labels, _ in importing.every(kept, POWER)] == ["0"], "not told is no sample"
    assert importing.samples(kept, BUSY, gpu="1") == [(AT + 0.002, 100.0)]
    assert kept.warnings() == (f"{tmp_path / 'node-07.csv'}: its times tell no zone, they are read as UTC",)


@pytest.mark.parametrize(
    "text",
    [
        "power.draw [W], index, timestamp, clocks.sm [MHz]\n687.10, 3, 2026/11/30 06:07:16.000, 1980\n",
        "timestamp,index,clocks.sm [MHz],power.draw [W]\n2026/11/30 06:07:16.000,3,1980 MHz,687.10 W\n",
        "timestamp;index;clocks.sm [MHz];power.draw [W]\n2026/11/30 06:07:16,000;3;1980 MHz;687,10 W\n",
        "timestamp, index, clocks.current.sm [MHz], power.draw [W]\n2026/11/30 06:07:16.000, 3, 1.98 GHz, 687,10 W\n",
        'timestamp,index,clocks.current.sm [MHz],power.draw [W]\n"2026/11/30 06:07:16.000","3","1,980 MHz","687,10 W"\n',
        "timestamp\tindex\tclocks.current.sm [MHz]\tpower.draw [mW]\n2026-11-30T06:07:16Z\t3\t1980\t687100\n",
        "\ufefftimestamp, index, clocks.sm [MHz], power.draw [W]\r\n2026/11/30 06:07:16.000, 3, 1980 MHz, 687.10 W\r\n",
        "power.draw.instant [W], timestamp, index, clocks.sm [MHz], power.draw.average [W]\n701.00 W, 2026/11/30 06:07:16.000, 3, 1980 MHz, 687.10 W\n",
    ],
    ids=["any order, no units", "no spaces", "semicolons", "decimal comma", "quoted", "tabs, zone told", "from Windows", "average first"],
)  # fmt: skip
def test_shapes_of_files(tmp_path, text):
    kept = read(tmp_path, text)
    assert importing.samples(kept, CLOCK, gpu="3") == [(AT, pytest.approx(1980.0))]
    assert importing.samples(kept, POWER, gpu="3") == [(AT, pytest.approx(687.1))]


def test_reasons_become_one_mask(tmp_path):
    head = "timestamp, index, clocks_throttle_reasons.sw_power_cap, clocks_throttle_reasons.hw_thermal_slowdown, clocks_throttle_reasons.gpu_idle"
    kept = read(tmp_path, f"{head}\n2026/11/30 06:07:16.000, 0, Active, Active, Not Active\n")
    assert importing.samples(kept, REASONS, gpu="0") == [(AT, 68.0)]
    mask = "timestamp, index, clocks_event_reasons.active, clocks_event_reasons.sw_power_cap\n"
    kept = read(tmp_path, f"{mask}2026/11/30 06:07:16.000, 0, 0x0000000000000024, Active\n")
    assert importing.samples(kept, REASONS, gpu="0") == [(AT, 36.0)]
    kept = read(
        tmp_path,
        f"{head}\n2026/11/30 06:07:16.000, 0, [N/A], [N/A], [N/A]\n2026/11/30 06:07:17.000, 0, [N/A], Active, [N/A]\n",
    )
    assert importing.samples(kept, REASONS, gpu="0")[1:] == [(AT + 1, 64.0)], "what is not told is not healthy"
    assert math.isnan(importing.samples(kept, REASONS, gpu="0")[0][1])


def test_times_are_local_to_the_node(tmp_path):
    kept = read(tmp_path, UNITS_IN_BOTH, zone="Asia/Shanghai")
    assert importing.samples(kept, CLOCK, gpu="0")[0] == (AT - 8 * 3600, 1980.0)
    assert "read as Asia/Shanghai" in kept.warnings()[0]


def test_a_folder_holds_a_file_a_node(tmp_path):
    for node in ("node-07", "nvidia-smi_node-08"):
        read(tmp_path, UNITS_IN_BOTH, f"{node}.csv")
    (tmp_path / "node-09.csv.gz").write_bytes(gzip.compress(UNITS_IN_BOTH.encode()))
    (tmp_path / ".hidden.csv").write_text("x")
    kept = nvidia_smi.read(importing.place(tmp_path), importing.ways())
    assert kept.told("Hostname") == {"node-07", "node-08", "node-09"}
    for node in ("a", "b"):
        (tmp_path / node).mkdir()
        read(tmp_path / node, UNITS_IN_BOTH, "gpu.csv")
    assert nvidia_smi.read(importing.place(tmp_path), importing.ways()).told("Hostname") >= {"a", "b"}


def test_a_node_can_be_named(tmp_path):
    path = tmp_path / "out.csv"
    path.write_text(UNITS_IN_BOTH)
    assert nvidia_smi.read(importing.place(path, "node-42"), importing.ways()).told("Hostname") == {"node-42"}


def test_gpus_without_an_index(tmp_path):
    text = "timestamp, pci.bus_id, temperature.gpu\n" + "".join(
        f"2026/11/30 06:07:1{second}.000, 00000000:{bus}:00.0, {50 + second}\n"
        for second in (6, 7)
        for bus in ("3B", "1A")
    )
    kept = read(tmp_path, text)
    assert importing.samples(kept, TEMPERATURE, gpu="0", pci_bus_id="00000000:1A:00.0") == [(AT, 56.0), (AT + 1, 57.0)]
    kept = read(tmp_path, "timestamp, uuid, temperature.gpu\n2026/11/30 06:07:16.000, GPU-a, 50\n")
    assert importing.samples(kept, TEMPERATURE, UUID="GPU-a") == [(AT, 50.0)]


def test_what_is_odd_is_counted_and_said(tmp_path):
    text = (
        UNITS_IN_BOTH
        + "2026/11/30 06:07:26.000, 0, GPU-a, NVIDIA H100 80GB HBM3, [Unknown Error], ERR!, [GPU requires reset], 0 %\n"
        + "2026/11/30 06:07:31.000, 0, GPU-a\n"
        + "yesterday, 0, GPU-a, NVIDIA H100 80GB HBM3, 61, 687.10 W, 1980 MHz, 99 %\n"
        + UNITS_IN_BOTH.splitlines()[0] + "\n"
        + "2026/11/30 06:07:36.000, 0, GPU-a, NVIDIA H100 80GB HBM3, 64, 687.10 W, 1980 MHz, 99 %\n"
        + "2026/11/30 06:07:41.000, 0, GPU-a, NVIDIA H100 80GB HBM3, 64, 68"
    )  # fmt: skip
    kept = read(tmp_path, text)
    path = tmp_path / "node-07.csv"
    assert set(kept.warnings()) == {
        f"{path}: 2 lines left out, for example line 6: has 3 cells where the header has 8",
        f"{path}:10: the last line is torn, left out",
        f"{path}: '[Unknown Error]' instead of a value, 1 time",
        f"{path}: 'ERR!' instead of a value, 1 time",
        f"{path}: '[GPU requires reset]' instead of a value, 1 time",
        f"{path}: its times tell no zone, they are read as UTC",
    }
    found = [pair for pair in importing.samples(kept, TEMPERATURE, gpu="0") if not math.isnan(pair[1])]
    assert found == [(AT, 61.0), (AT + 5, 62.0), (AT + 20, 64.0)]


def test_a_new_header_begins_other_columns(tmp_path):
    kept = read(
        tmp_path,
        "timestamp, index, temperature.gpu, fan.speed [%]\n2026/11/30 06:07:16.000, 0, 61, 30 %\n"
        "timestamp, clocks.sm [MHz], index\n2026/11/30 06:07:21.000, 1980 MHz, 0\n",
    )
    assert importing.samples(kept, TEMPERATURE, gpu="0") == [(AT, 61.0)]
    assert importing.samples(kept, CLOCK, gpu="0") == [(AT + 5, 1980.0)]
    assert f"{tmp_path / 'node-07.csv'}: 1 of 3 columns are not read: fan.speed" in kept.warnings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ": no samples in it, is this what nvidia-smi"),
        (UNITS_IN_BOTH.splitlines()[0] + "\n", ": no samples in it, is this"),
        ("2026/11/30 06:07:16.000, 0, 61\n", ":1: no header with the names of the columns, leave out noheader"),
        ("index, temperature.gpu\n0, 61\n", ": no column timestamp, write --query-gpu=timestamp,index,..."),
        ("timestamp, temperature.gpu\n2026/11/30 06:07:16.000, 61\n", ": no column tells which GPU a line is of"),
        ("<html><body>\n", ":1: no header with the names"),
        ("timestamp, index, temperature.gpu\nx, y, z\n", ":2: 'x' is no time, is this what"),
        (
            "timestamp, index, temperature.gpu\n2026/02/30 06:07:16.000, 0, 61\n",
            ":2: '2026/02/30 06:07:16.000' is no time",
        ),
    ],
)
def test_what_is_no_such_file_is_told(tmp_path, text, said):
    with pytest.raises(SourceError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "node-07.csv") + said)


def test_places_without_files(tmp_path):
    with pytest.raises(UsageError, match="no such file or folder"):
        nvidia_smi.read(importing.place(tmp_path / "nowhere"), importing.ways())
    with pytest.raises(SourceError, match=r"no \.csv files in it"):
        nvidia_smi.read(importing.place(tmp_path), importing.ways())
    (tmp_path / "a.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(SourceError, match=r"a\.csv\.gz: cannot be read"):
        nvidia_smi.read(importing.place(tmp_path), importing.ways())


@given(st.floats(0, 1e5).map(lambda value: round(value, 2)), st.sampled_from(["", " W", " MHz", " MiB", " %"]))
def test_a_number_survives_any_unit_and_decimal_mark(value, unit):
    assert number_in(f"{value:.2f}{unit}") == value
    assert number_in(f"{value:.2f}{unit}".replace(".", ",")) == value


@given(st.text(max_size=20))
def test_no_cell_is_too_strange(text):
    assert isinstance(number_in(text), float)
