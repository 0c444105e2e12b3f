"""House rules, held over every rule and every signal that is shipped."""

import re
from collections import Counter
from pathlib import Path

import jsonschema
import pytest
import yaml
from read_once import load

from rca.detectors import AboveBaseline, AbovePeers, BelowBaseline, BelowPeers, number
from rca.library import Rule, Signal, seconds
from rca.lint import leaves
from rca.load import check, metric_types, shipped
from rca.promql import metric_names
from rca.schema import schema

LIBRARY = load()
RULES = [pytest.param(rule, id=rule.id) for rule in LIBRARY.rules.values()]
ROOTS = [pytest.param(rule, id=rule.id) for rule in LIBRARY.rules.values() if rule.role == "root"]
SIGNALS = [pytest.param(name, signal, id=name) for name, signal in LIBRARY.signals.items()]


def file_of(rule: Rule) -> Path:
    return shipped() / rule.layer / f"{rule.id}.yaml"


def test_nothing_is_wrong_with_what_is_shipped():
    assert [str(problem) for problem in check().problems] == []


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_valid_for_an_editor(rule):
    written = yaml.safe_load(file_of(rule).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema()).validate(written)


def test_the_schema_is_one_and_refuses_what_the_reader_refuses():
    validator = jsonschema.Draft202012Validator(schema())
    validator.check_schema(schema())
    good = {"summary": "s", "entity": "gpu", "role": "root", "when": {"signal": "a", "is": "above", "limit": 1}}
    bad = [
        {**good, "id": "x"},
        {**good, "whne": 1},
        {**good, "when": {"signal": "a", "is": "abov", "limit": 1}},
        {**good, "when": {"any": {"signal": "a", "is": "above", "limit": 1}}},
        {**good, "when": {"is": "any", "of": [good["when"]]}},
        {**good, "when": {"all": [good["when"]], "any": []}},
        {**good, "for": 90},
        {**good, "for": "90 seconds"},
        {**good, "prior": {"slow_onset": 2}},
        {**good, "prior": {"slow": 0.1}},
    ]
    assert validator.is_valid(good)
    assert validator.is_valid({**good, "when": {"all": [good["when"], {"not": good["when"]}]}})
    assert [index for index, one in enumerate(bad) if validator.is_valid(one)] == []


@pytest.mark.parametrize("rule", RULES)
def test_a_summary_is_one_short_sentence_without_a_full_stop(rule):
    assert re.fullmatch(r"[A-Z][^\n]{9,109}[^.\s]", rule.summary), rule.summary


@pytest.mark.parametrize("rule", RULES)
def test_thresholds_say_where_they_come_from(rule):
    assert len(rule.source) > 20, "write source: which measurement, paper or vendor page the numbers come from"


@pytest.mark.parametrize("rule", ROOTS)
def test_a_root_cause_says_what_to_do(rule):
    assert rule.runbook == f"docs/runbooks/{rule.id}.md"
    assert rule.action is not None
    assert re.fullmatch(r"[a-z][a-z_]+", rule.action.do)
    assert re.fullmatch(r"[A-Z].{30,}\.", rule.action.text), rule.action.text


@pytest.mark.parametrize("rule", ROOTS)
def test_a_root_cause_says_with_what_it_is_confused(rule):
    assert rule.confused_with, "name at least one fault that looks alike"
    assert rule.id not in rule.confused_with
    assert len(set(rule.confused_with)) == len(rule.confused_with)


@pytest.mark.parametrize("rule", RULES)
def test_a_condition_holds_for_a_while_but_not_for_the_whole_window(rule):
    assert 60 <= seconds(rule.hold) <= 600


@pytest.mark.parametrize("rule", RULES)
def test_a_margin_lies_above_the_noise_of_healthy_peers(rule):
    for _, leaf in leaves(rule):
        if isinstance(leaf, AbovePeers | BelowPeers | AboveBaseline | BelowBaseline):
            by = number(leaf.by)
            assert by is None or 0.03 <= by <= 20, f"{leaf.signal}: by {leaf.by}"
            assert 3 <= leaf.z <= 10


@pytest.mark.parametrize("rule", RULES)
def test_peers_share_a_job_a_node_or_a_cell(rule):
    for _, leaf in leaves(rule):
        peers = getattr(leaf, "peers", None)
        if peers:
            assert {"job", "node", "cell", "leaf", "rail"} & set(peers), f"{leaf.signal}: peers {peers}"


@pytest.mark.parametrize("rule", RULES)
def test_edges_are_few_and_each_leads_somewhere_else(rule):
    ends = Counter((edge.effect, edge.via) for edge in rule.causes)
    assert not [end for end, count in ends.items() if count > 1]
    assert rule.id not in {edge.effect for edge in rule.causes}
    assert len(rule.causes) <= 6


def test_priors_of_one_symptom_leave_room_for_the_unknown():
    total = Counter()
    for rule in LIBRARY.rules.values():
        total.update(rule.prior)
    assert {symptom: share for symptom, share in total.items() if share > 0.95} == {}


@pytest.mark.parametrize(("name", "signal"), SIGNALS)
def test_a_measured_signal_says_how_to_get_it(name, signal):
    assert re.fullmatch(r"[A-Z][^\n]{4,139}[^.\s]|node_exporter .+", signal.summary), signal.summary
    if signal.queries and signal.queries != ('up{job=~".*node.*"}',):
        assert signal.enable, "write enable: the exporter setting that supplies it"
        assert "; " not in signal.enable, "one setting a line: reports join several by semicolons"


@pytest.mark.parametrize(("name", "signal"), SIGNALS)
def test_every_metric_has_a_known_type(name, signal: Signal):
    unknown = {metric for query in signal.queries for metric in metric_names(query)} - set(metric_types())
    assert unknown == set(), "add them to rules/tables/metric_types.csv"


def test_files_are_plain_and_end_with_a_line_end():
    for path in sorted(shipped().rglob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        assert text.endswith("\n"), path
        assert "\t" not in text, path
        assert max(map(len, text.splitlines())) <= 220, path
