"""What is wrong between files is told with its place."""

from pathlib import Path

import pytest
from read_once import load
from rules_folder import ENTITIES, HOT, SIGNALS, SLOW, write

from rca.errors import Problem
from rca.library import Entities
from rca.lint import columns, is_finer, order
from rca.load import check, survey
from rca.places import Places

CLOCK = """\
clock: {summary: Clock, entity: gpu, layer: physical, unit: megahertz, queries: [clock]}
mask: {summary: Reasons, entity: gpu, layer: physical, unit: bits, queries: [mask], bits: [idle, thermal]}
code: {summary: Xid, entity: gpu, layer: physical, unit: code, queries: [code]}
state:
  {summary: State, entity: rank, layer: training, unit: code, queries: [s], codes: {label: s, values: [init, train]}}
loss: {summary: Loss, entity: job, layer: training, unit: loss, queries: [loss]}
share: {summary: Congestion, entity: switch, layer: communication, unit: ratio, queries: [share]}
"""
MORE = ENTITIES.replace(
    "relations:",
    "  switch: {labels: [leaf], summary: a switch}\n"
    "  nic: {labels: [node, device], summary: a port}\n"
    "  cell: {labels: [job, dp, pp], summary: a cell}\n"
    "relations:\n"
    "  leaf: {labels: [leaf], summary: ports of one switch}",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "rules"
    write(root, "entities.yaml", MORE)
    write(root, "signals/all.yaml", SIGNALS + CLOCK)
    write(root, "physical/hot.yaml", HOT)
    write(root, "training/slow.yaml", SLOW)
    return root


def found(folder: Path) -> list[str]:
    """Return what `rca check` says, with places relative to the folder."""
    return [str(problem).replace(f"{folder}/", "") for problem in check(folder).problems]


def only(problems: list[str], place: str) -> list[str]:
    return [problem.removeprefix(f"{place}:") for problem in problems if problem.startswith(place)]


def test_a_sound_folder_has_no_problem(folder):
    assert found(folder) == []


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("{signal: heet, is: above, limit: 1}", "unknown signal 'heet', did you mean 'heat'"),
        (
            "{signal: heat, is: above, limit: clok}",
            "unknown signal 'clok', did you mean 'clock'",
        ),
        (
            "{signal: heat, is: above, limit: 90 C}",
            "'limit' must be a number, a percentage or a signal's name, found '90 C'",
        ),
        (
            "{signal: heat, is: above, limit: nan}",
            "'limit' must be a number, a percentage or a signal's name, found 'nan'",
        ),
        (
            "{signal: heat, is: above_peers, by: 4%, peers: [jobs]}",
            "unknown label or relation 'jobs', did you mean 'job'",
        ),
        (
            "{signal: heat, is: above_peers, by: 4%, peers: [job], load: clok}",
            "unknown signal 'clok', did you mean 'clock'",
        ),
        (
            "{signal: heat, is: correlated, with: clok, limit: 0.8, peers: [job]}",
            "unknown signal 'clok', did you mean 'clock'",
        ),
        ("{signal: mask, is: set, bits: [termal]}", "'mask' has no bit 'termal', did you mean 'thermal'"),
        ("{signal: mask, is: above, limit: 1}", "'mask' is a bit mask, read it with is: set"),
        ("{signal: heat, is: one_of, codes: [79]}", "one_of reads codes, 'heat' is measured in celsius"),
        ("{signal: heat, is: above, limit: 1, reduce: max}", "'heat' has one value on each gpu, leave reduce out"),
        ("{signal: heat, is: above, limit: 1, at_least: 2}", "at_least counts members, it needs reduce: count"),
        ("{signal: share, is: above, limit: 1}", "'share' is measured on switch, which no gpu has or belongs to"),
    ],
)
def test_conditions(folder, condition, problem):
    write(folder, "physical/hot.yaml", HOT.replace("{signal: heat, is: above, limit: 90}", condition))
    assert only(found(folder), "physical/hot.yaml") == [f"4: {problem}"]


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("{signal: step, is: above, limit: 1}", "'step' has several values on one job, add reduce: max, min or count"),
        ("{signal: heat, is: above, limit: 1, reduce: count, at_least: 10%}", None),
        ("{signal: step, is: above, limit: 1, reduce: count, at_least: some}", "'at_least' must be a number, a perc"),
        ("{signal: loss, is: not_falling}", None),
    ],
)
def test_conditions_of_a_job(folder, condition, problem):
    text = SLOW.replace("{signal: step, is: above_baseline, by: 10%, reduce: median}", condition)
    write(folder, "training/slow.yaml", text)
    said = only(found(folder), "training/slow.yaml")
    assert len(said) == (problem is not None)
    assert not said or said[0].startswith(f"4: {problem}")


@pytest.mark.parametrize(
    ("edge", "problems"),
    [
        ("{effect: slwo, via: job, strength: 1}", ["5: unknown effect 'slwo', did you mean 'slow'"]),
        ("{effect: slow, via: jop, strength: 1}", ["5: unknown relation 'jop', did you mean 'job'"]),
        (
            "{effect: slow, via: leaf, strength: 1}",
            ["5: relation 'leaf' does not lead from gpu to job, the entity of 'slow'"],
        ),
        (
            "{effect: slow, via: job, strength: 1, gain: {of: share, factor: 1}}",
            ["5: 'share' is measured on switch, which no gpu has or belongs to"],
        ),
        (
            "{effect: slow, via: job, strength: 1, within: soon}",
            ["5: 'within' must be a duration, found 'soon', write"],
        ),
    ],
)
def test_edges(folder, edge, problems):
    write(folder, "physical/hot.yaml", HOT.replace("{effect: slow, via: job, strength: 0.9}", edge))
    said = [one for one in only(found(folder), "physical/hot.yaml") if "no chain" not in one]
    assert len(said) == len(problems)
    assert all(one.startswith(problem) for one, problem in zip(said, problems, strict=True)), said


def test_cycles_name_every_rule_on_the_way(folder):
    write(folder, "training/slow.yaml", f"{SLOW}causes: [{{effect: late, via: job, strength: 0.5}}]\n")
    write(
        folder,
        "training/late.yaml",
        SLOW.replace("symptom: slow_onset", "causes:\n  - {effect: slow, via: job, strength: 1}"),
    )
    assert found(folder) == [
        "training/late.yaml:6: causes go in a circle: late -> slow -> late, an effect cannot bring about its own cause"
    ]
    assert load_problems(folder) == 1


def load_problems(folder: Path) -> int:
    return len(survey(folder).problems)


def test_a_symptom_cannot_cause_what_lies_before_it_unless_it_accuses_nobody(folder):
    edge = "{effect: idle, via: job, strength: 0.5}"
    write(folder, "training/slow.yaml", f"{SLOW}causes: [{edge}]\n")
    write(folder, "resource/idle.yaml", SLOW.replace("symptom: slow_onset\n", ""))
    (problem,) = found(folder)
    assert problem == (
        "training/slow.yaml:6: an effect of a training symptom cannot lie in layer resource, as 'idle' does: "
        "turn the edge round, or write accuses: false for a wait that lowers activity"
    )
    assert load_problems(folder) == 0
    write(folder, "training/slow.yaml", f"{SLOW}causes: [{edge.replace('0.5', '0.5, accuses: false')}]\n")
    assert found(folder) == []


def test_a_root_cause_may_act_on_any_layer(folder):
    write(folder, "training/skew.yaml", HOT.replace("heat", "loss").replace("gpu", "job").replace("hot.md", "skew.md"))
    write(folder, "resource/slow.yaml", SLOW)
    (folder / "training/slow.yaml").unlink()
    assert found(folder) == []


def test_roles(folder):
    bare = "".join(
        line for line in HOT.splitlines(True) if line.partition(":")[0] not in {"action", "prior", "runbook"}
    )
    write(folder, "physical/hot.yaml", bare)
    assert found(folder) == [
        f"physical/hot.yaml:1: root cause 'hot' lacks '{key}'" for key in ("action", "prior", "runbook")
    ]
    write(folder, "physical/hot.yaml", f"{HOT}symptom: slow_onset\n")
    assert found(folder) == ["physical/hot.yaml:9: a root cause is no symptom class, write role: symptom"]
    write(folder, "physical/hot.yaml", HOT.replace("role: root", "role: symptom"))
    assert found(folder) == [
        "physical/hot.yaml:6: a symptom has no 'prior', leave it out or write role: root",
        "physical/hot.yaml:7: a symptom has no 'action', leave it out or write role: root",
    ]


def test_rules_that_explain_nothing(folder):
    write(folder, "resource/dull.yaml", HOT.replace("role: root", "role: symptom").replace("\ncauses", "\n# causes"))
    assert (
        "resource/dull.yaml:1: 'dull' is dead: nothing causes it, it causes nothing, and it says nothing of a job"
        in found(folder)
    )
    (folder / "resource/dull.yaml").unlink()
    write(folder, "physical/hot.yaml", HOT.replace("\ncauses", "\n# causes"))
    assert found(folder) == [
        "physical/hot.yaml:1: 'hot' has no effects, add causes, or prior: {none: ...} for what is reported without a symptom"
    ]
    write(folder, "physical/hot.yaml", HOT.replace("\ncauses", "\n# causes").replace("slow_onset", "none"))
    assert found(folder) == []


def test_a_prior_needs_a_chain_to_its_symptom(folder):
    write(folder, "training/stuck.yaml", SLOW.replace("slow_onset", "stalled"))
    write(folder, "physical/hot.yaml", HOT.replace("slow_onset: 0.02", "slow_always: 0.02, stalled: 0.1, crashed: 0.1"))
    assert found(folder) == [
        "physical/hot.yaml:6: no chain of effects leads from 'hot' to a rule with symptom: stalled"
    ]


def test_phases_and_labels(folder):
    write(folder, "physical/hot.yaml", f"{HOT}phases: [trian]\nonly: {{modle: '0', node: '['}}\nmeasure: heet\n")
    assert found(folder) == [
        "physical/hot.yaml:9: unknown phase 'trian', did you mean 'train'",
        "physical/hot.yaml:10: '[' in 'only' is no regular expression, unterminated character set at position 0",
        "physical/hot.yaml:10: a gpu has no label 'modle' for 'only', did you mean 'model'",
        "physical/hot.yaml:11: unknown signal 'heet', did you mean 'heat'",
    ]
    write(folder, "physical/hot.yaml", f"{HOT}phases: [any]\nonly: {{tp: '0'}}\nmeasure: heat\n")
    assert found(folder) == []


@pytest.mark.parametrize(
    ("narrow", "problem"),
    [
        ("{signal: heat, is: above, limit: 1}", None),
        ("{signal: loss, is: above, limit: 1}", "narrow needs a signal of a kind finer than cell, found job"),
        ("{signal: heat, is: above, limit: 1, reduce: max}", "narrow asks one entity at a time, leave reduce out"),
    ],
)
def test_narrow_asks_about_something_finer(folder, narrow, problem):
    text = HOT.replace("entity: gpu", "entity: cell").replace("limit: 90", "limit: 90, reduce: max")
    write(folder, "physical/hot.yaml", f"{text}narrow: {narrow}\n")
    assert found(folder) == ([f"physical/hot.yaml:9: {problem}"] if problem else [])


@pytest.mark.parametrize(
    ("signal", "problem"),
    [
        ("entity: gpuu, queries: [a]", "unknown kind of entity 'gpuu', did you mean 'gpu'"),
        ("entity: gpu", "'x' needs either queries or derived, write one of them"),
        ("entity: gpu, queries: [a], derived: {product: [heat, clock]}", "'x' needs either queries or derived, write"),
        ("entity: gpu, queries: [a], valid: [3, 3]", "valid is empty, 3 is not below 3"),
        ("entity: gpu, queries: [a], bits: [b]", "bits need the unit bits, found 'watts'"),
        ("entity: gpu, queries: [a], codes: {label: l, values: [v]}", "codes need the unit code, found 'watts'"),
        ("entity: gpu, derived: {product: [heat, clok]}", "unknown signal 'clok', did you mean 'clock'"),
        ("entity: gpu, derived: {}", "needs exactly one of of, product, ratio, sum (plus and difference go with sum)"),
        ("entity: gpu, derived: {sum: [heat], product: [heat]}", "needs exactly one of of, product, ratio, sum"),
        ("entity: job, derived: {of: heat}", "of and by go together, for example {of: rank_work_seconds, by: max}"),
        ("entity: gpu, derived: {ratio: [heat]}", "ratio takes two signals, found 1"),
        ("entity: gpu, derived: {of: heat, by: max}", "'heat' is a signal of gpu, of needs a signal of a kind finer"),
        ("entity: job, derived: {product: [heat, loss]}", "'heat' is a signal of gpu, read it with of and by"),
        (
            "entity: gpu, derived: {product: [heat, share]}",
            "'share' is measured on switch, which no gpu has or belongs",
        ),
        ("entity: gpu, derived: {product: [heat, x]}", "derived from itself: x -> x, one of them must be measured"),
        ("entity: gpu, queries: ['rate(a[']", "does not parse: "),
        (
            "entity: gpu, queries: ['rate(DCGM_FI_DEV_XID_ERRORS[5m])']",
            "rate() of DCGM_FI_DEV_XID_ERRORS, which is a g",
        ),
        ("entity: gpu, queries: ['increase(a_total[5m])']", None),
        ("entity: job, derived: {of: heat, by: max}", None),
        ("entity: gpu, derived: {sum: [heat], difference: [clock]}", None),
    ],
)
def test_signals(folder, signal, problem):
    write(folder, "tables/metric_types.csv", "name,type\nDCGM_FI_DEV_XID_ERRORS,gauge\n")
    write(folder, "signals/x.yaml", f"x: {{summary: X, layer: physical, unit: watts, {signal}}}\n")
    said = found(folder)
    assert len(said) == (problem is not None), said
    assert not said or said[0].startswith(f"signals/x.yaml:1: {problem}")


def test_problems_are_sorted_by_line_as_a_number_and_told_once():
    problems = [Problem("b.yaml:10", "x"), Problem("b.yaml:9", "x"), Problem("a.yaml", "y"), Problem("b.yaml:9", "x")]
    assert [str(one) for one in order(problems)] == ["a.yaml: y", "b.yaml:9: x", "b.yaml:10: x"]


def test_the_closest_known_place_is_named():
    places = Places({("rule", "hot"): "hot.yaml:1", ("rule", "hot", "when"): "hot.yaml:4"})
    assert places.at("rule", "hot", "when", "of", 0) == "hot.yaml:4"
    assert places.at("rule", "hot", "prior") == "hot.yaml:1"
    assert places.at("rule", "cold", "when") == "rule cold"


def test_which_kinds_are_finer():
    entities: Entities = load().entities
    finer = [("gpu", "node"), ("rank", "cell"), ("cell", "job"), ("nic", "job"), ("cell", "stage")]
    for kind, than in finer:
        assert is_finer(kind, than, entities), (kind, than)
        assert not is_finer(than, kind, entities), (than, kind)
    assert not is_finer("gpu", "rank", entities)
    assert not is_finer("rank", "gpu", entities)
    assert {"node", "gpu", "job", "rank", "model"} <= columns("gpu", entities)
