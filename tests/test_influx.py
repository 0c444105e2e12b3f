"""InfluxDB's line protocol."""

import gzip
import string

import importing
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca.errors import SourceError, UsageError
from rca.sources import influx
from rca.sources.influx import Taken, _head
from rca.sources.kept import Kept

START = 1767571200
GPU = r"nvidia_smi,arch=Hopper,compute_mode=Default,host=node-07,index=1,name=NVIDIA\ H100\ 80GB\ HBM3,pstate=P0,uuid=GPU-b"
WHO = {"Hostname": "node-07", "gpu": "1", "modelName": "NVIDIA H100 80GB HBM3", "UUID": "GPU-b"}


def read(folder, text: str, name: str = "x.lp", node: str = "") -> Kept:
    path = folder / name
    path.write_text(text)
    return influx.read(importing.place(path, node), importing.ways())


def test_what_telegraf_says_of_a_gpu(tmp_path):
    text = "".join(
        f'{GPU} temperature_gpu={60 + at}i,power_draw=640.5,driver_version="550.54, \\"x\\" = y",fan_speed=3i {START + at}000000000\n'
        for at in range(3)
    )
    kept = read(tmp_path, text)
    assert importing.samples(kept, "DCGM_FI_DEV_GPU_TEMP", **WHO) == [(START + at, 60.0 + at) for at in range(3)]
    assert importing.samples(kept, "DCGM_FI_DEV_POWER_USAGE", **WHO)[0] == (START, 640.5)
    assert kept.warnings() == (f"{tmp_path / 'x.lp'}: 1 of 3 fields are not read: nvidia_smi.fan_speed",)
    other = text.replace("pstate=P0", "pstate=P2", 1)
    assert len(list(importing.every(read(tmp_path, other), "DCGM_FI_DEV_GPU_TEMP"))) == 1, (
        "a state that changes is no identity"
    )


def test_what_telegraf_says_of_a_host(tmp_path):
    kept = read(
        tmp_path,
        f"cpu,cpu=cpu0,host=node-07 usage_idle=90 {START}\ncpu,cpu=cpu0,host=node-07 usage_idle=50 {START + 10}\n"
        f"cpu,cpu=cpu0,host=node-07 usage_idle=50 {START + 20}\n"
        f"disk,device=sda1,fstype=ext4,host=node-07,mode=rw,path=/ free=10i,total=100i {START}000\n"
        f"diskio,host=node-07,name=sda read_time=2500i,reads=7i {START}000000\n"
        f"infiniband,device=mlx5_0,port=1,host=node-07 port_xmit_data=5i {START}000000000\n"
        f"net,host=node-07,interface=eth0 bytes_recv=9i {START}\nmem,host=node-07 available=3i,total=5i {START}\n",
    )
    node = {"node": "node-07"}
    assert importing.samples(kept, "node_cpu_seconds_total", mode="idle", cpu="cpu0", **node) == [
        (START, 0.0),
        (START + 10, 5.0),
        (START + 20, 10.0),
    ]
    assert importing.samples(kept, "node_filesystem_avail_bytes", mountpoint="/", fstype="ext4", **node) == [
        (START, 10.0)
    ]
    assert importing.samples(kept, "node_disk_read_time_seconds_total", device="sda", **node) == [(START, 2.5)]
    assert importing.samples(kept, "node_infiniband_port_data_transmitted_bytes_total", device="mlx5_0", **node) == [
        (START, 20.0)
    ]
    assert importing.samples(kept, "node_network_receive_bytes_total", device="eth0", **node) == [(START, 9.0)]
    assert kept.warnings() == ()


def test_what_telegraf_has_scraped_keeps_its_name_and_labels(tmp_path):
    kept = read(
        tmp_path,
        f"prometheus,host=collector,url=http://node-07:9400/metrics,Hostname=node-07,gpu=1 DCGM_FI_DEV_GPU_TEMP=92 {START}\n"
        f"train_step,host=collector,job_id=llama,rank=0 gauge=77 {START}\n",
    )
    assert dict(importing.every(kept, "DCGM_FI_DEV_GPU_TEMP")) == {
        tuple(
            sorted(
                {
                    "__name__": "DCGM_FI_DEV_GPU_TEMP",
                    "Hostname": "node-07",
                    "gpu": "1",
                    "instance": "node-07:9400",
                }.items()
            )
        ): [(START, 92.0)]
    }
    assert importing.samples(kept, "train_step", job_id="llama", rank="0") == [(START, 77.0)]


def test_a_node_can_be_named_where_no_tag_does(tmp_path):
    kept = read(
        tmp_path,
        f"nvidia_smi,index=0 temperature_gpu=1i {START}\nnvidia_smi,index=1,host=h temperature_gpu=1i {START}\n",
        node="node-42",
    )
    assert kept.told("Hostname") == {"node-42", "h"}


def test_what_an_export_has_besides_points(tmp_path):
    text = f"# DDL\nCREATE DATABASE telegraf WITH NAME autogen\n# DML\n# CONTEXT-DATABASE:telegraf\n\n{GPU} temperature_gpu=1i {START}\n"
    (tmp_path / "x.lp.gz").write_bytes(gzip.compress(text.encode()))
    kept = influx.read(importing.place(tmp_path), importing.ways())
    assert importing.samples(kept, "DCGM_FI_DEV_GPU_TEMP") == [(START, 1.0)]


def test_what_is_odd_is_counted_and_said(tmp_path):
    path = tmp_path / "x.lp"
    good = f"{GPU} temperature_gpu=1i {START}\n"
    kept = read(
        tmp_path,
        f"{good}nvidia_smi,index= temperature_gpu=1i {START}\ncpu usage_idle=x {START}\ncpu a b c d\n{GPU} temperature_gpu=1i\n",
    )
    assert kept.warnings() == (
        f"{path}: 3 lines left out, for example line 2: not in line protocol",
        f"{path}: 1 line without a time, left out",
    )
    kept = read(tmp_path, good + good[:-16])
    assert kept.warnings() == (f"{path}:2: the last line is torn, left out",)


@pytest.mark.parametrize("text", ["", "hello\n", "<html>\n", "timestamp, index\n1, 2\n", f"{GPU} temperature_gpu=1i\n"])
def test_what_is_no_such_file_is_told(tmp_path, text):
    with pytest.raises(SourceError, match=r"x\.lp(:1)?: no line `measurement,tag=x field=1 time`, is this"):
        read(tmp_path, text)


def test_places_without_files(tmp_path):
    with pytest.raises(UsageError, match="no such file or folder"):
        influx.read(importing.place(tmp_path / "nowhere"), importing.ways())
    with pytest.raises(SourceError, match="no files in line protocol"):
        influx.read(importing.place(tmp_path), importing.ways())


TEXT = st.text(string.ascii_letters + " ,=_-.é/", min_size=1, max_size=12)


def escaped(text: str, letters: str) -> str:
    return "".join(f"\\{letter}" if letter in letters else letter for letter in text)


@given(TEXT, st.dictionaries(TEXT, TEXT, max_size=3))
def test_names_survive_their_escapes(measurement, tags):
    text = escaped(measurement, ", ") + "".join(
        f",{escaped(key, ',= ')}={escaped(value, ',= ')}" for key, value in tags.items()
    )
    assert _head(text) == (measurement, tags, {})


@given(
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.integers(1_000_000_000, 4_000_000_000),
    st.sampled_from([0, 3, 6, 9]),
    TEXT,
)
def test_a_point_survives_any_precision_and_any_text_beside_it(tmp_path_factory, value, at, digits, text):
    path = tmp_path_factory.mktemp("lp") / "x.lp"
    quoted = escaped(text, '"\\')
    path.write_text(f'{GPU} power_draw={value!r},driver_version="{quoted}" {at}{"0" * digits}\n')
    kept = influx.read(importing.place(path), importing.ways())
    assert importing.samples(kept, "DCGM_FI_DEV_POWER_USAGE", **WHO) == [(at, value)]


def test_fields_are_counted_once():
    taken = Taken(importing.table())
    for _ in range(3):
        taken.points("cpu", {}, "usage_nice")
    assert taken.tally.said("here") == ("here: 1 of 1 fields are not read: cpu.usage_nice",)
