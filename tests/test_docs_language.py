"""What the documents say of rules, signals, sources and scenarios is what the program does."""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from read_once import load

from rca import config, detectors, library, promql
from rca.diagnose import diagnose
from rca.errors import Problem, ProblemsError
from rca.inputs import changes
from rca.load import check, dcgm_aliases, metric_types
from rca.model import Window
from rca.phrases.template import Pattern, Template
from rca.physics import written
from rca.plain import percent
from rca.sources import scenario, topology
from rca.sources.assemble import assemble
from rca.sources.scenario import ScenarioSource, ScenarioStore

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
LIBRARY = load()
ROOTS = sorted(rule.id for rule in LIBRARY.rules.values() if rule.role == "root")
SHORTEST, LONGEST = 40, 80
_EXAMPLE = re.compile(r"^```yaml (right|wrong) (\S+)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
_PROMQL = re.compile(r"^```promql\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_COUNTERS = "dcgm-exporter counters file: "


def read(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


# ---------------------------------------------------------------------------------------------------------- examples
class Example(NamedTuple):
    """A fenced example: of which page and line, whether it is right, what file (or whose `when`) it is, what is said."""

    place: str
    verdict: str
    where: str
    text: str
    said: str


def examples() -> list[Example]:
    found = []
    for page in PAGES:
        text = read(page)
        for match in _EXAMPLE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Example(f"{page}:{line}", *match.groups(default="")))
    return found


EXAMPLE = pytest.mark.parametrize("example", examples(), ids=lambda example: example.place)


def settings(path: Path) -> tuple[Problem, ...]:
    """Return what is wrong with settings, and with the rules as they change them."""
    try:
        given = config.from_file(path)
    except ProblemsError as error:
        return error.problems
    return check(changes=changes(given, path)).problems


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """Check all conditions at once, each in a rule of its own name; return what is said of each."""
    rules = tmp_path_factory.mktemp("short") / "my-rules"
    (rules / "physical").mkdir(parents=True)
    names = {}
    for number, one in enumerate(one for one in examples() if "/" not in one.where and "." not in one.where):
        names[f"example_{number}.yaml"] = one.place
        head = f"summary: An example\nentity: {one.where}\nrole: symptom\n"
        text = f"{head}{one.text}causes: [{{effect: long_step, via: job, strength: 0.5}}]\n"
        (rules / "physical" / f"example_{number}.yaml").write_text(text, encoding="utf-8")
    said = dict.fromkeys(names.values(), "")
    for problem in check(extra=[rules]).problems:
        file, _, line = problem.place.rpartition(":")
        said[names[Path(file).name]] += f"my-rules/physical/example.yaml:{line}: {problem.text}\n"
    return said


def checked(example: Example, folder: Path) -> str:
    """Write a whole file where it belongs, and return what `rca check` says about it."""
    if example.where == "rca.yaml":
        path = folder / "rca.yaml"
    else:
        path = folder / "my-rules" / example.where
        path.parent.mkdir(parents=True)
    path.write_text(example.text, encoding="utf-8")
    problems = settings(path) if example.where == "rca.yaml" else check(extra=[folder / "my-rules"]).problems
    return "".join(f"{problem}\n" for problem in problems).replace(f"{folder}/", "")


@EXAMPLE
def test_an_example_does_what_the_page_says(example, short, tmp_path):
    assert bool(example.said) == (example.verdict == "wrong")
    if example.where == "topology.yaml":
        assert topology.parse(example.text, "topology.yaml").nodes()
    elif example.where == "scenario.yaml":
        (tmp_path / "scenario.yaml").write_text(example.text, encoding="utf-8")
        assert scenario.read(tmp_path / "scenario.yaml").expect
    else:
        said = short[example.place] if example.place in short else checked(example, tmp_path)
        assert said == example.said


def test_every_kind_of_example_is_there():
    assert len([one for one in examples() if one.verdict == "right"]) > 20
    assert len([one for one in examples() if one.verdict == "wrong"]) > 20


# -------------------------------------------------------------------------------------------------- everything is told
DETECTORS = {str(one.__struct_config__.tag): one for one in detectors.Leaf.__args__}


def section(page: str, heading: str) -> str:
    """Return the text below a heading, up to the next one that is not deeper."""
    text = read(page)
    match = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert match, f"{page} lacks the heading {heading}"
    return re.split(rf"^#{{1,{len(match[1])}}} ", text[match.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> set[str]:
    """Return the names in the first column of all tables."""
    cells = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def fields(*structs: type[msgspec.Struct]) -> set[str]:
    return {name for struct in structs for name in struct.__struct_encode_fields__}


@pytest.mark.parametrize("tag", sorted(DETECTORS))
def test_every_detector_is_told_with_a_right_and_a_wrong_example(tag):
    text = section("rule-language.md", f"is: {tag}")
    own = fields(DETECTORS[tag]) - fields(detectors.Detector)
    assert {name for name in own if f"`{name}`" not in text} == set()
    verdicts = {match[1]: match[3] for match in _EXAMPLE.finditer(text)}
    assert f"is: {tag}," in verdicts["right"] + "," or f"is: {tag}}}" in verdicts["right"]
    assert "wrong" in verdicts


def test_combinations_of_conditions_are_told():
    text = section("rule-language.md", "Conditions")
    assert all(
        f"{{{one.__struct_config__.tag}: " in text
        for one in (detectors.All, detectors.Any, detectors.Not, detectors.Unless)
    )
    assert fields(detectors.Detector) <= rows(text)


@pytest.mark.parametrize(
    ("page", "heading", "structs"),
    [
        ("rule-language.md", "Keys of a rule", (library.Rule,)),
        ("rule-language.md", "Keys of an effect", (library.Effect,)),
        ("rule-language.md", "Signals", (library.Signal, library.Derived)),
        ("rule-language.md", "Log templates", (Template, Pattern)),
        ("rule-language.md", "Overrides", (library.Override,)),
        ("sources.md", "Reaching the server", (config.Server,)),
        ("serve.md", "Settings", (config.Serving,)),
        ("scenarios.md", "A file", (written.Scenario,)),
        ("scenarios.md", "cluster", (written.Cluster, written.Mount)),
        (
            "scenarios.md",
            "job",
            (written.Job, written.Data, written.Saving, written.Collector, written.WarmUp, written.Logs),
        ),
        ("scenarios.md", "faults", (written.Fault, written.Where)),
        ("scenarios.md", "telemetry", (written.Telemetry, written.Gap)),
        ("scenarios.md", "expect", (written.Expect, written.ExpectedCause)),
    ],
)
def test_every_key_is_told_and_none_that_is_not(page, heading, structs):
    assert rows(section(page, heading)) == fields(*structs)


def test_every_setting_is_told():
    assert rows(section("sources.md", "Other settings")) | {"prometheus"} == fields(config.Settings)


def test_small_structs_are_told_in_words():
    effects = section("rule-language.md", "Keys of an effect")
    assert {name for name in fields(library.Gain) if f"{name}:" not in effects} == set()
    signals = section("rule-language.md", "Signals")
    assert {name for name in fields(library.Codes, library.Fallback) if f"{name}:" not in signals} == set()
    keys = section("rule-language.md", "Keys of a rule")
    assert {name for name in fields(library.Action) if f"`{name}:`" not in keys} == set()


def test_what_to_enable_is_what_the_signals_say():
    asked = [one.enable.removeprefix(_COUNTERS) for one in LIBRARY.signals.values() if one.enable.startswith(_COUNTERS)]
    listed = re.search(r"^<!-- counters -->\n```text\n(.*?)^```\n", read("sources.md"), re.MULTILINE | re.DOTALL)
    assert listed
    assert listed[1].splitlines() == sorted(set(asked))


def test_every_series_of_a_training_job_is_told():
    queries = [query for signal in LIBRARY.signals.values() for query in signal.queries]
    names = {name for query in queries for name in promql.metric_names(query) if name.startswith("train_")}
    assert {name for name in names if f"`{name}`" not in read("sources.md")} == set()


# ------------------------------------------------------------------------------------------------------------- PromQL
@cache
def known_metrics() -> frozenset[str]:
    """Return the metrics that signals read, or whose type is known, under every spelling."""
    names = {
        name for signal in LIBRARY.signals.values() for query in signal.queries for name in promql.metric_names(query)
    }
    names |= metric_types().keys() | set(LIBRARY.entities.rank_info)
    aliases = dcgm_aliases()
    return frozenset(names | {other for name in names for other, _ in aliases.get(name, ())})


@pytest.mark.parametrize(
    ("page", "query"),
    [(page, query) for page in PAGES for query in _PROMQL.findall(read(page))],
    ids=lambda one: one[:40],
)
def test_promql_parses_and_asks_for_what_there_is(page, query):
    types = metric_types()
    counters, gauges = (frozenset(name for name in types if types[name] == kind) for kind in ("counter", "gauge"))
    pauses = {name for name in promql.metric_names(query) if re.fullmatch(r"node_ethtool_\w+_prio\d_pause", name)}
    assert promql.problems(query, counters | pauses, gauges) == [], page
    assert promql.metric_names(query) - pauses <= known_metrics(), page


# ----------------------------------------------------------------------------------------------------------- runbooks
@pytest.mark.parametrize("rule", ROOTS)
def test_a_runbook_has_its_four_parts_and_a_readable_length(rule):
    lines = read(f"runbooks/{rule}.md").splitlines()
    assert lines[0] == f"# {rule}"
    assert lines[2].endswith(".")
    assert [line for line in lines if line.startswith("## ")] == [
        f"## {name}" for name in ("Meaning", "Impact", "Diagnosis", "Mitigation")
    ]
    assert SHORTEST <= len(lines) <= LONGEST
    assert LIBRARY.rules[rule].runbook == f"docs/runbooks/{rule}.md"


def test_every_runbook_has_a_rule():
    assert sorted(path.stem for path in (DOCS / "runbooks").glob("*.md")) == ROOTS


@pytest.mark.parametrize("rule", ROOTS)
def test_a_runbook_can_be_pasted_from(rule):
    diagnosis, mitigation = (section(f"runbooks/{rule}.md", heading) for heading in ("Diagnosis", "Mitigation"))
    assert _PROMQL.search(diagnosis)
    assert "| looks like | tells apart |" in diagnosis
    assert mitigation.strip().startswith("Now:")
    assert "\nRepair" in mitigation
    assert "\nGone when" in mitigation


def spellings(value: detectors.Number) -> set[str]:
    """Return how a runbook may write a threshold."""
    plain = detectors.number(value)
    if plain is None:
        return set()
    share = {f"{plain * 100:g} %", f"{1 + plain:g}", f"{1 - plain:g}", f"{plain * 1000:g} ms"}
    return {f"{plain:g}", *share}


@pytest.mark.parametrize("rule", ROOTS)
def test_a_runbook_holds_every_threshold_of_its_rule(rule):
    text = read(f"runbooks/{rule}.md")
    for leaf in LIBRARY.conditions(LIBRARY.rules[rule]):
        for key in ("limit", "by", "at_least"):
            value = getattr(leaf, key, None)
            if value is not None and value != detectors.Detector.__struct_defaults__[-1]:
                wanted = spellings(value)
                found = [one for one in wanted if re.search(rf"(?<![\d.]){re.escape(one)}(?![\d.]\d|\d)", text)]
                assert found or not wanted, f"{leaf.signal} {key}: {value} is not told"


@pytest.mark.parametrize("rule", ROOTS)
def test_a_runbook_tells_what_the_rule_is_confused_with(rule):
    table = section(f"runbooks/{rule}.md", "Diagnosis")
    alike = [name for name in LIBRARY.rules[rule].confused_with if name in LIBRARY.rules]
    assert [name for name in alike if f"`{name}`" not in table] == []


# ----------------------------------------------------------------------------------------------------- worked example
@cache
def hot_gpu():
    """Look at the incident that the concepts tell of, at every signal there is."""
    source = ScenarioSource(ROOT / "scenarios" / "thermal_tp8.yaml")
    end = source.latest()
    return load(), assemble(ScenarioStore(source.world), load(), Window(end - 900, end))


def worked() -> list[tuple[str, list[float]]]:
    text = section("concepts.md", "A worked example: one hot GPU, eight-way tensor parallel")
    return [
        (name, [float(cell) for cell in cells.split("|")])
        for name, cells in re.findall(r"^\| `(\w+)` \|[^|]*\|(.*)\|$", text, re.MULTILINE)
    ]


@pytest.mark.parametrize(("signal", "told"), worked(), ids=lambda one: one if isinstance(one, str) else "")
def test_the_worked_example_shows_what_the_simulation_does(signal, told):
    rules, snapshot = hot_gpu()
    columns = snapshot.tables[rules.signals[signal].entity].columns
    seen = []
    for node, gpu in (("node-17", "3"), ("node-17", "4"), ("node-02", "3")):
        (row,) = np.flatnonzero((columns["node"] == node) & (columns["gpu"] == gpu))
        values = snapshot.measurements[signal].window[row]
        seen += [float(np.nanmedian(values[:16])), float(np.nanmedian(values[-16:]))]
    assert seen == pytest.approx(told, rel=0.03, abs=0.01)


def test_the_worked_example_comes_out_as_told():
    cause = diagnose(*hot_gpu()).causes[0]
    assert (cause.cause, cause.entity.labels) == ("gpu_thermal_throttling", {"node": "node-17", "gpu": "3"})
    assert f"the report says {percent(cause.probability)}" in section("concepts.md", "Probability")
    rule, effect = (hot_gpu()[0].rules[name] for name in ("gpu_thermal_throttling", "slow_cell"))
    edge = next(edge for edge in rule.causes if edge.effect == "slow_cell")
    assert f"{rule.prior['slow_onset']:g} / 256 / {rule.leak:g}" in section("concepts.md", "Probability")
    assert f"strength {edge.strength:g} and leak {effect.leak:g}" in section("concepts.md", "Probability")
