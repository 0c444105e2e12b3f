"""The generated pages are those that the rules yield, and say what the rules say."""

import doctest
import re
from xml.etree import ElementTree

import pytest
from read_once import load
from small_library import entities, signal

from docs import catalogue, generate, picture, rule_page, words
from rca import detectors
from rca.library import Effect, Library, Rule
from rca.load import phrases, shipped, table

LIBRARY = load()
PAGES = generate.pages(LIBRARY)
SVG = "{http://www.w3.org/2000/svg}"
CONDITIONS = {
    "above": {"limit": 87, "clear": 84},
    "below": {"limit": "limit"},
    "above_peers": {"by": "5%", "peers": ("job",), "load": "load"},
    "below_peers": {"by": 0.05, "peers": ("job", "stage"), "z": 3.0},
    "above_baseline": {"by": 0.1},
    "below_baseline": {"by": 0.1},
    "rising": {"by": 3},
    "set": {"bits": ("sw_thermal",), "peers": ("job",)},
    "one_of": {"codes": (74.0, 79.0)},
    "unlike": {"peers": ("job",)},
    "stalled": {"least": "2m"},
    "not_falling": {},
    "drifting": {"by": "2%"},
    "missing": {"peers": ("node",)},
    "correlated": {"other": "load", "limit": 0.9, "peers": ("job",)},
    "logged": {},
}


def small(*rules: Rule) -> Library:
    signals = {name: signal("gpu", name.upper()) for name in ("heat", "limit", "load")}
    return Library(signals=signals, entities=entities(), rules={rule.id: rule for rule in rules})


def rule(name: str, layer: str = "physical", *causes: Effect, role: str = "root", **more: object) -> Rule:
    when = detectors.Above(signal="heat", limit=90)
    fields = {"id": name, "layer": layer, "summary": "S", "entity": "gpu", "role": role, "when": when, "causes": causes}
    return Rule(**fields, **more)


# freshness


def test_the_pages_are_those_that_the_rules_yield():
    assert list(generate.stale(PAGES)) == [], "run make docs"


def test_the_same_rules_give_the_same_bytes():
    assert generate.pages(load()) == PAGES


def test_a_page_of_a_rule_that_is_gone_is_stale():
    without = {name: text for name, text in PAGES.items() if name != "rules/slow_cell.md"}
    assert "rules/slow_cell.md" in generate.left_over(without)


@pytest.mark.parametrize("module", [words, picture, catalogue, rule_page, generate])
def test_examples_of_the_generator_hold(module):
    assert doctest.testmod(module).failed == 0


# a rule


@pytest.mark.parametrize("one", [pytest.param(rule, id=rule.id) for rule in LIBRARY.rules.values()])
def test_a_page_tells_all_that_a_rule_says(one):
    page = PAGES[f"rules/{one.id}.md"]
    assert one.summary in page
    assert one.source.strip() in page
    assert [edge.effect for edge in one.causes if f"[`{edge.effect}`]({edge.effect}.md)" not in page] == []
    assert [name for name in one.confused_with if f"`{name}`" not in page] == []
    assert one.action is None or one.action.text in page
    assert one.runbook.removeprefix("docs/") in page
    assert [leaf.signal for leaf in LIBRARY.conditions(one) if f"signals.md#{leaf.signal})" not in page] == []
    assert "\nwhen:" in page.partition("```yaml\n")[2].partition("```")[0]


def test_the_index_lists_every_rule():
    index = PAGES["rules/README.md"]
    assert [name for name in LIBRARY.rules if f"[`{name}`]({name}.md)" not in index] == []
    assert "(graph.svg)" in index


def test_what_decides_comes_from_the_runbook():
    assert "| clock within 4 % of its peers'" in PAGES["rules/gpu_thermal_throttling.md"]


# conditions in words


def test_every_detector_has_words_of_its_own():
    tags = {str(one.__struct_config__.tag): one for one in detectors.Leaf.__args__}
    assert tags.keys() == CONDITIONS.keys()
    told = words.Words(small(), "gpu")
    for tag, one in tags.items():
        clause = told.clause(one(signal="heat", **CONDITIONS[tag]))
        assert clause.startswith("[`heat`](../signals.md#heat) "), tag
        assert f"is {tag.replace('_', ' ')}" not in clause or tag in {"above", "below"}, (
            f"{tag} is told by its name alone"
        )
        assert "(`" not in clause, f"{tag}: a setting is told by its name alone: {clause}"


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        (detectors.Above(signal="heat", limit=87, clear=84), "is above 87 u, until it falls below 84 u"),
        (detectors.Below(signal="heat", limit="limit"), "is below [`limit`](../signals.md#limit)"),
        (
            detectors.BelowPeers(signal="heat", by="4%", peers=("job", "model"), reduce="count", at_least="75%"),
            (
                "on at least 75 % of its gpus, [`heat`](../signals.md#heat) is more than 4 % below the median of its peers "
                "(same job and model) and 5 robust deviations from it"
            ),
        ),
        (detectors.Above(signal="heat", limit=1, reduce="max"), "the highest of its gpus in [`heat`]"),
    ],
    ids=str,
)
def test_a_condition_in_words(condition, said):
    assert said in words.Words(small(), "node").clause(condition)


def test_combinations_are_an_indented_list():
    leaf = detectors.Above(signal="heat", limit=1)
    lines = list(words.Words(small(), "gpu").lines(detectors.All((leaf, detectors.Not(detectors.Any((leaf, leaf)))))))
    assert [len(line) - len(line.lstrip()) for line in lines] == [0, 2, 2, 4, 6, 6]
    assert lines[0] == "- all of these:"
    assert "it is known that not" in lines[2]


# the catalogues


def test_the_catalogue_tells_every_signal():
    page = PAGES["signals.md"]
    for name, one in LIBRARY.signals.items():
        text = re.search(rf"^### {name}$(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
        assert text, name
        assert [query for query in one.queries if query not in text[1]] == []
        assert one.enable in text[1]
        readers = {
            rule.id for rule in LIBRARY.rules.values() if name in {leaf.signal for leaf in LIBRARY.conditions(rule)}
        }
        assert [rule for rule in sorted(readers) if f"(rules/{rule}.md)" not in text[1]] == []


def test_the_tables_are_whole():
    assert len(re.findall(r"^\| \d+ \|", PAGES["xid.md"], re.MULTILINE)) > 100
    assert len(re.findall(r"^\| `DCGM_", PAGES["dcgm.md"], re.MULTILINE)) > 300
    assert "| 79 | GPU has fallen off the bus" in PAGES["xid.md"]
    rows = [row for _, row in table(shipped() / "tables" / "imports.csv")]
    assert len(re.findall(r"^\| `", PAGES["imports.md"], re.MULTILINE)) == len(rows)
    assert "| `lm[ _]loss` | `train_loss` | loss=lm |  |  | Megatron-LM |" in PAGES["imports.md"]


# the picture


def boxes(svg: str) -> list[tuple[int, int, int, int]]:
    found = ElementTree.fromstring(svg).iter(f"{SVG}rect")
    return [tuple(int(one.get(key)) for key in ("x", "y", "width", "height")) for one in found if one.get("rx") == "4"]


def test_every_log_template_is_told_with_its_lines():
    page = PAGES["log-templates.md"]
    for template in phrases():
        assert f"### {template.id}\n" in page
        assert all(one.line.rstrip() in page for one in template.examples), template.id


def test_the_picture_holds_every_rule_and_nothing_overlaps():
    svg = PAGES["rules/graph.svg"]
    names = {one.text for one in ElementTree.fromstring(svg).iter(f"{SVG}text")}
    assert LIBRARY.rules.keys() - names == set()
    placed = boxes(svg)
    for number, (x, y, width, height) in enumerate(placed):
        for left, top, wide, high in placed[number + 1 :]:
            assert x + width <= left or left + wide <= x or y + height <= top or top + high <= y


def test_causes_with_the_same_effects_share_a_box():
    edge = Effect(effect="slow", via="gpu", strength=0.5)
    given = small(
        rule("a", "physical", edge),
        rule("b", "physical", edge),
        rule("c", "training", edge),
        rule("slow", "communication", role="symptom", symptom="slow_onset"),
    )
    svg = picture.svg(given)
    assert len(boxes(svg)) == 4
    assert svg.count("<path d=") == 3 + 1


def test_an_edge_that_points_back_and_a_graph_without_edges_can_be_drawn():
    back = Effect(effect="idle", via="gpu", strength=0.5, accuses=False)
    given = small(rule("long", "training", back, role="symptom"), rule("idle", "resource", role="symptom"))
    assert "stroke-dasharray" in picture.svg(given)
    assert len(boxes(picture.svg(small(rule("a"))))) == 1
