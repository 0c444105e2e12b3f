"""A simulated cluster that happens now says what its series say at that time, and begins again when it is over."""

import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed

from rca import live, openmetrics
from rca.cli import rca, run
from rca.errors import SourceError
from rca.physics.world import World, simulate
from rca.physics.written import Cluster, Fault, Gap, Job, Scenario, Telemetry, Where

NOW = 1_800_000_000.0
SCENARIO = Scenario(
    summary="A brake is pulled",
    duration="10m",
    cluster=Cluster(nodes=2, gpus=2),
    job=Job(id="a", dp=4, step="1s"),
    faults=(Fault(at="8m", power_brake=True, on=Where(node="node-01", gpu=1)),),
    telemetry=Telemetry(missed=0.0, gaps=(Gap(exporter="dcgm", at="6m", node="node-00"),)),
)


@pytest.fixture(scope="module")
def world() -> World:
    return simulate(SCENARIO, NOW + 300.0)


def said(text: str, name: str) -> dict[str, float]:
    """Return the values of a metric by instance."""
    return {
        sample.labels["instance"]: sample.value
        for family in parsed(text)
        for sample in family.samples
        if sample.name == name
    }


def test_every_series_is_said_once_under_its_own_labels(world: World) -> None:
    text = "".join(live.lines(world, NOW))
    found = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(found) == len(set(found))
    expected = {
        openmetrics.selector(labels)
        for metric in world.metrics.values()
        for labels, there in zip(metric.labels, metric.there, strict=True)
        if there[:20].any()
    }
    assert set(found) == expected
    assert list(parsed(text))


def test_a_series_says_what_it_was_last_drawn_as(world: World) -> None:
    for name in ("DCGM_FI_DEV_SM_CLOCK", "train_steps_total", "train_step_duration_seconds_sum"):
        metric = world.metrics[name]
        for at in (NOW, NOW + 6.0):
            last = (metric.times <= at).sum(axis=1) - 1
            assert np.array_equal(live.reading(metric, at, 15.0), metric.values[np.arange(len(last)), last])
    grown = [said("".join(live.lines(world, NOW + more)), "train_steps_total")["node-01:9651"] for more in (0, 60)]
    assert grown[1] - grown[0] == pytest.approx(60.0, abs=3.0)


def test_a_fault_begins_when_its_time_has_come(world: World) -> None:
    before, after = (live.reading(world.metrics["DCGM_FI_DEV_SM_CLOCK"], NOW + more, 15.0) for more in (150.0, 260.0))
    assert after[3] < 0.7 * before[3]
    assert after[2] > 0.9 * before[2]


def test_who_falls_silent_is_not_there(world: World) -> None:
    assert {one[:7] for one in said("".join(live.lines(world, NOW + 120)), "DCGM_FI_DEV_GPU_TEMP")} == {"node-01"}
    assert said("".join(live.lines(world, NOW + 120)), "up")["node-00:9400"] == 0.0


def test_nothing_is_there_before_the_scenario(world: World) -> None:
    assert all(line.startswith("#") for line in live.lines(world, world.epoch - 1.0))


def test_what_is_over_begins_again(world: World) -> None:
    present = live.Present(world)
    again = said(present.exposition(NOW + 330.0), "DCGM_FI_DEV_SM_CLOCK")
    assert set(again) == {"node-00:9400", "node-01:9400"}
    assert min(again.values()) > 1500.0


def test_history_ends_where_the_present_begins(world: World) -> None:
    times = [float(line.split()[-1]) for line in openmetrics.lines(world, NOW) if line.startswith("up{")]
    assert NOW - 20.0 < max(times) <= NOW


def test_it_is_served_for_scrapes(world: World) -> None:
    with live.listening(world, "127.0.0.1:0", lambda: NOW) as address:
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert answer.headers["Content-Type"] == live.CONTENT_TYPE
            assert said(answer.read().decode(), "up")["node-00:9100"] == 1.0
        with pytest.raises(urllib.error.HTTPError, match="404") as raised:
            urllib.request.urlopen(address.replace("/metrics", "/elsewhere"), timeout=10)
        raised.value.close()
        taken = address.split("/")[2]
        with pytest.raises(SourceError, match="--listen"), live.listening(world, taken, lambda: NOW):
            pass


def test_the_first_fault_begins_in_a_minute_unless_told_otherwise() -> None:
    assert live.ending(SCENARIO, NOW) == NOW + 180.0
    assert live.ending(Scenario(summary="", duration="30m", cluster=Cluster(nodes=1)), NOW) == NOW + 600.0


def test_an_address_that_is_none_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    scenario = Path(__file__).parents[1] / "scenarios" / "cooling_fault.yaml"
    assert run(rca, ["simulate", str(scenario), "--listen", "9700"]) == 2
    assert capsys.readouterr().err.startswith("Error: --listen: '9700' is not HOST:PORT")
