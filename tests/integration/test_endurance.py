"""Killed at any moment, flooded, cut off: nothing that was acknowledged is lost, and nothing ends by it."""

import multiprocessing
import random
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import endurance
import servers
from own_process import running, scaled_rules, serve


def test_what_was_acknowledged_is_diagnosed_once_however_often_the_server_is_killed(tmp_path: Path) -> None:
    servers.binary("prometheus")
    counts = endurance.killed(tmp_path, 4, random.Random(1))
    assert counts["acknowledged"] > 20
    assert counts["incidents"] == 1


def test_a_flood_of_deliveries_is_kept(tmp_path: Path) -> None:
    servers.binary("prometheus")
    with endurance.past(tmp_path) as (source, starts):
        settings = {**endurance.SCALED, "prometheus": {"url": source}, "rules": str(scaled_rules(tmp_path / "rules"))}
        with running(serve(tmp_path, settings)) as server:
            known = endurance.burst(server.url, 400, 20, 4.0, starts)
            assert known.statuses == {202: 400}
            endurance.awaited(lambda: endurance.waiting(server.url) == 0, 60.0, "all alerts are looked into")
            server.stop()
        assert endurance.settled(tmp_path / "rca.db", known.fingerprints, server)["kept"] == 400


def test_nothing_ends_while_prometheus_or_alertmanager_is_away_slow_or_wrong(tmp_path: Path) -> None:
    servers.binary("prometheus")
    servers.binary("prometheus-alertmanager")
    said: list[str] = []
    with endurance.site(tmp_path, endurance.SHORT) as site:
        endurance.endured(site, endurance.SHORT, said.append)
    assert [line.partition(":")[0] for line in said[-3:]] == ["down", "slow", "errors"]
    for line in said[-3:-1]:
        assert " 0 failed" not in line, line


def test_ticks_leave_nothing_behind(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:  # what others held here comes and goes
        held = fresh.submit(endurance.remembered, tmp_path, 40, 10).result()
    assert held[-1] - held[-2] < 16.0, f"MiB after every ten ticks: {held}"
