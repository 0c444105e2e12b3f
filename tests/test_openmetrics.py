"""A simulated cluster written as OpenMetrics comes back from a real Prometheus as it was."""

import re
from pathlib import Path

import numpy as np
import pytest
import servers

from rca import openmetrics
from rca.config import Server
from rca.physics.world import World, simulate
from rca.physics.written import Cluster, Data, Fault, Gap, Job, Mount, Scenario, Telemetry, Where
from rca.sources.prometheus import PrometheusStore
from rca.sources.scenario import ScenarioStore
from rca.sources.series import Block, Matcher, Selector


@pytest.fixture(scope="module")
def world() -> World:
    return simulate(
        Scenario(
            summary="small",
            duration="10m",
            cluster=Cluster(nodes=2, gpus=4, cpus=2, mounts=(Mount(export="filer:/a b"),)),
            job=Job(id='odd "name"\\', tp=2, pp=2, dp=2, step="2s", data=Data(source="mount")),
            faults=(Fault(at="5m", cooling=4.0, on=Where(node="node-00", gpu=1)),),
            telemetry=Telemetry(
                missed=0.03, renamed=("node-01",), gaps=(Gap(exporter="node", node="node-01", at="8m"),)
            ),
        )
    )


@pytest.fixture(scope="module")
def text(world: World) -> str:
    return "".join(openmetrics.lines(world))


def by_labels(block: Block) -> dict[tuple[tuple[str, str], ...], tuple[np.ndarray, np.ndarray]]:
    return {
        tuple(sorted(labels.items())): (block.times[start:stop], block.values[start:stop])
        for labels, start, stop in zip(block.labels, block.offsets[:-1], block.offsets[1:], strict=True)
    }


def test_a_real_prometheus_gives_back_the_same_names_labels_times_and_values(
    world: World, text: str, tmp_path: Path
) -> None:
    (tmp_path / "series.om").write_text(text)
    with (
        servers.prometheus(tmp_path / "server", tmp_path / "series.om") as url,
        PrometheusStore(Server(url=url)) as store,
    ):
        assert store.names(world.epoch, world.end) == frozenset(world.metrics)
        selectors = [Selector((name,), (), world.epoch, world.end) for name in world.metrics]
        simulated = dict(ScenarioStore(world).fetch(selectors))
        served = dict(store.fetch(selectors))
    for index, name in enumerate(world.metrics):
        expected, found = by_labels(simulated[index]), by_labels(served[index])
        assert found.keys() == expected.keys(), name
        for labels, (times, values) in expected.items():
            np.testing.assert_array_equal(found[labels][0], times, err_msg=name)
            np.testing.assert_array_equal(found[labels][1], values, err_msg=name)


def test_families_are_declared_once_and_hold_their_samples(text: str) -> None:
    declared: dict[str, str] = {}
    family = ""
    lines = text.splitlines()
    assert lines[-1] == "# EOF"
    for line in lines[:-1]:
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split(" ")
            assert family not in declared
            declared[family] = kind
            continue
        name = re.split(r"[{ ]", line, maxsplit=1)[0]
        suffixes = {"counter": ("_total",), "info": ("_info",), "summary": ("_sum", "_count")}.get(
            declared[family], ("",)
        )
        assert name in {family + suffix for suffix in suffixes}
    assert list(declared) == sorted(declared)
    assert declared["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] == "unknown"
    assert declared["node_disk_read_bytes"] == declared["train_steps"] == "counter"
    assert declared["train_rank"] == declared["infiniband_switch_uplink"] == "info"
    assert declared["train_step_duration_seconds"] == "summary"


def test_each_series_is_one_run_with_rising_times(text: str) -> None:
    seen: dict[str, float] = {}
    last = ""
    for line in text.splitlines():
        if not line.startswith("#"):
            series, _, time = line.rsplit(" ", 2)
            base = re.sub(r"_(sum|count)\{", "{", series)
            assert base == last or base not in seen or base.startswith("train_"), "a series is interrupted"
            assert float(time) >= seen.get(base, 0.0)
            seen[base], last = float(time), base


def test_the_end_may_be_chosen(world: World) -> None:
    later = simulate(world.scenario, 1_800_000_000.0)
    boot, first = (ward.metrics["node_boot_time_seconds"].values[0, 0] for ward in (later, world))
    assert boot - first == pytest.approx(1_800_000_000.0 - world.end)
    assert later.metrics["up"].times.max() <= 1_800_000_000.0


def test_a_store_matches_as_prometheus_does(world: World) -> None:
    store = ScenarioStore(world)

    def count(*matchers: Matcher, name: str = "node_cpu_seconds_total") -> int:
        return len(dict(store.fetch([Selector((name,), matchers, world.epoch, world.end)]))[0].labels)

    assert count() == 2 * 2 * 5
    assert count(Matcher("mode", "=", "idle")) == 4
    assert count(Matcher("mode", "!=", "idle")) == 16
    assert count(Matcher("mode", "=~", "idle|user"), Matcher("cpu", "=", "0")) == 4
    assert count(Matcher("mode", "=~", "idl")) == 0  # anchored
    assert count(Matcher("mode", "!~", "i.*")) == 12
    assert count(Matcher("absent", "=", "")) == 20
    assert count(name="nobody") == 0
    half = dict(store.fetch([Selector(("up",), (), world.epoch + 300, world.end)]))[0]
    assert half.times.min() >= world.epoch + 300
    assert store.names(world.end + 1, world.end + 2) == frozenset()
