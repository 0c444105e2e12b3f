"""What exporters really export: names of the shipped queries exist, and a default install still finds heat."""

import csv
import re
from pathlib import Path

import pytest
from read_once import load

from benchmarks.plays import DCGM_DEFAULT, SCENARIOS, look
from rca.physics.world import simulate
from rca.promql import metric_names
from rca.sources.scenario import read

TABLES = Path(__file__).resolve().parents[2] / "rules" / "tables"


def fields(page: Path) -> dict[str, bool]:
    """Return the metrics of a counter list, and whether they are switched on; labels of other metrics are left out."""
    lines = re.findall(r"^(# )?(DCGM_\w+) *, *(?!label)\w+", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: not hidden for hidden, name in lines}


def asked(prefix: str) -> set[str]:
    """Return the metric names of all shipped queries that begin so."""
    queries = [query for signal in load().signals.values() for query in signal.queries]
    return {name for query in queries for name in metric_names(query) if name.startswith(prefix)}


def known() -> set[str]:
    """Return the names that the tables of the rules know: both spellings of DCGM, and documented types."""
    rows = []
    for name in ("dcgm_aliases.csv", "metric_types.csv"):
        with (TABLES / name).open(encoding="utf-8") as file:
            rows += list(csv.DictReader(file))
    return {row[key] for row in rows for key in ("old_name", "new_name", "name") if row.get(key)}


def test_dcgm_names_exist(cases):
    page = fields(cases / "exporter-pages" / "dcgm-default-counters.csv")
    assert len(page) > 50
    assert asked("DCGM_") - set(page) - known() == set()


def test_node_exporter_names_exist(cases):
    text = (cases / "exporter-pages" / "node_exporter-e2e.txt").read_text(encoding="utf-8")
    page = set(re.findall(r"^(node_\w+)[{ ]", text, re.MULTILINE))
    assert len(page) > 500
    assert asked("node_") - page - known() == set()


def test_labels_that_queries_select_by_exist(cases):
    text = (cases / "exporter-pages" / "node_exporter-e2e.txt").read_text(encoding="utf-8")
    for query in (query for signal in load().signals.values() for query in signal.queries):
        for name, labels in re.findall(r"\b(node_\w+)\{([^}]*)\}", query):
            lines = re.findall(rf"^{name}\{{(.*)\}} ", text, re.MULTILINE)
            for label in re.findall(r"(\w+) *(?:=~|!~|!=|=)", labels) if lines else ():
                assert any(re.search(rf'\b{label}="', line) for line in lines), (name, label)


def test_types_are_those_of_the_page(cases):
    text = (cases / "exporter-pages" / "node_exporter-e2e.txt").read_text(encoding="utf-8")
    page = dict(re.findall(r"^# TYPE (node_\w+) (\w+)$", text, re.MULTILINE))
    with (TABLES / "metric_types.csv").open(encoding="utf-8") as file:
        ours = {row["name"]: (row["type"], row["note"]) for row in csv.DictReader(file)}
    wrong = {
        name: (kind, page[name]) for name, (kind, note) in ours.items() if page.get(name, kind) != kind and not note
    }
    assert wrong == {}


def test_the_default_fields_are_those_of_the_page(cases):
    page = fields(cases / "exporter-pages" / "dcgm-default-counters.csv")
    assert {name for name, on in page.items() if on} == DCGM_DEFAULT


@pytest.mark.parametrize("name", ["cooling_fault", "thermal_mixed_fleet"])
def test_a_default_install_still_finds_heat(name):
    """Clock, temperature and power are enough; reasons, violations and SM activity are not exported by default."""
    scenario = read(SCENARIOS / f"{name}.yaml")
    world = simulate(scenario)
    snapshot, report = look(world, "dcgm-extra", world.end)
    assert "gpu_clock_event_reasons" in snapshot.absent
    assert "gpu_thermal_violation_ratio" in snapshot.absent
    first = report.causes[0]
    (expected,) = scenario.expect.causes
    assert (first.cause, first.entity.labels) == (expected.cause, dict(expected.entity))
    assert first.probability >= 0.5
