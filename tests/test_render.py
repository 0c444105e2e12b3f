"""What people and programs read: the three formats, and that no label value can break them."""

import msgspec
import pytest
import sample_report
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from rca import render
from rca.model import Cause, Evidence, NotChecked, Report, Symptom
from rca.plain import percent, quantity
from rca.render import _words as words
from rca.render import json, markdown, text

SAMPLES = {
    "cooling": sample_report.cooling_fault(),
    "skew": sample_report.silent_data_skew(),
    "healthy": sample_report.healthy(),
    "inconclusive": sample_report.inconclusive(),
}
HOSTILE = [
    "\x1b[2J\x1b]0;owned\x07",
    "two\nlines\r\n",
    "a|b",
    "```\n# no heading",
    "<script>alert(1)</script>",
    "\u202egnp.exe",
    "@team",
    "\x9b31m",
    "![x](http://x)",
    "`",
    "a\\|b",
    "$\\frac{1}{2}$",
]


def first_line(report: Report) -> str:
    return text.render(report).splitlines()[0]


def test_the_formats_are_the_modules_of_the_package() -> None:
    assert {"json", "markdown", "text"} <= set(render.formats())
    assert not any(name.startswith("_") for name in render.formats())


def test_first_line_names_cause_entity_probability_effect_and_onset() -> None:
    assert first_line(SAMPLES["cooling"]) == (
        "gpu_thermal_throttling on gpu node=node-07 gpu=1 (94 %): a GPU is hot and lowers its clock; "
        "job llama-70b is 1.5x slower since 14:03:15"
    )


def test_a_job_that_was_slow_all_along_has_no_onset() -> None:
    assert first_line(SAMPLES["skew"]).endswith(
        "job moe-8x22b is 1.4x slower than its work needs, for as long as was looked at"
    )


def test_healthy_says_so_and_how_much_could_not_be_seen() -> None:
    assert first_line(SAMPLES["healthy"]) == "healthy: nothing wrong in job llama-70b"
    blind = msgspec.structs.replace(
        SAMPLES["healthy"], not_checked=[NotChecked(rule="nic_down", missing=["nic_state"], enable="")]
    )
    assert first_line(blind) == (
        "healthy: nothing wrong in job llama-70b, as far as it can be seen (1 rule could not be checked)"
    )


def test_no_job_at_all_is_said() -> None:
    assert "no training job was seen" in first_line(msgspec.structs.replace(SAMPLES["healthy"], jobs=[], symptoms=[]))


def test_inconclusive_gives_the_best_guess_as_a_guess() -> None:
    assert first_line(SAMPLES["inconclusive"]).startswith("inconclusive: job llama-70b is 1.5x slower")
    assert first_line(SAMPLES["inconclusive"]).endswith(
        "and no cause is as likely as 50 %; the best guess is gpu_degraded on gpu node=node-07 gpu=1 (31 %)"
    )
    alone = msgspec.structs.replace(SAMPLES["inconclusive"], causes=[])
    assert first_line(alone).endswith("and no cause is as likely as 50 %; there is no candidate")


def test_two_causes_both_stand_in_the_first_line() -> None:
    other = SAMPLES["skew"].causes[0]
    both = msgspec.structs.replace(SAMPLES["cooling"], causes=[*SAMPLES["cooling"].causes, other])
    assert first_line(both).startswith(
        "2 causes: gpu_thermal_throttling on gpu node=node-07 gpu=1 (94 %) and slow_local_disk on node node=node-03"
    )


def test_an_unknown_cause_is_no_guess_but_is_listed() -> None:
    cause = msgspec.structs.replace(
        SAMPLES["cooling"].causes[0], cause="unknown", summary="Cannot be told", probability=0.6
    )
    shown = text.render(msgspec.structs.replace(SAMPLES["inconclusive"], causes=[cause]))
    assert shown.splitlines()[0].endswith("no cause is as likely as 50 %; look at gpu node=node-07 gpu=1")
    assert "1. unknown  60 %  gpu node=node-07 gpu=1" in shown


@pytest.mark.parametrize(
    ("symptom", "said"),
    [
        ("stalled", "job llama-70b makes no steps since 14:03:15"),
        ("crashed", "job llama-70b has crashed at 14:03:15"),
        ("numeric", "job llama-70b has a loss or gradients that are not right since 14:03:15"),
    ],
)
def test_every_symptom_has_its_words(symptom: Symptom, said: str) -> None:
    job = msgspec.structs.replace(SAMPLES["cooling"].symptoms[0], symptom=symptom)
    assert first_line(msgspec.structs.replace(SAMPLES["cooling"], symptoms=[job])).endswith(said)


def test_the_chain_is_a_tree_layer_by_layer() -> None:
    lines = text.render(SAMPLES["cooling"], width=120).splitlines()
    tree = [line for line in lines if any(f"{layer}: " in line for layer in ("physical", "resource", "training"))]
    assert tree[0].startswith("   physical: gpu_thermal_throttling on gpu node=node-07 gpu=1 since 14:02:30")
    assert tree[1].startswith("   └─ resource: low_gpu_utilisation")
    assert any(line.startswith("      ├─ communication: straggling_rank") for line in lines)
    assert any(line.startswith("      └─ communication: waiting_rank on 63 of 64 ranks") for line in lines)
    assert any(line.startswith("         └─ training: low_throughput on job llama-70b") for line in lines)


def test_evidence_has_value_unit_expectation_and_a_query_alone_on_its_line() -> None:
    lines = [line.strip() for line in text.render(SAMPLES["cooling"], width=40).splitlines()]
    whole = text.render(SAMPLES["cooling"], width=120)
    assert "gpu_temperature 92 °C, expected 64 °C (median of 63 peers)" in whole
    assert "gpu_sm_clock, SM clock: 1,200 MHz, expected 1,980 MHz" in whole
    for evidence in SAMPLES["cooling"].causes[0].evidence:
        assert evidence.query in lines


def test_action_runbook_not_affected_rejected_and_warnings_are_there() -> None:
    shown = text.render(SAMPLES["cooling"], width=120)
    for part in (
        "Do: drain. Move the job off the node",
        "Runbook: docs/runbooks/gpu_thermal_throttling.md",
        "loss_divergence on job llama-70b: the loss goes on falling",
        "gpu_degraded on gpu node=node-07 gpu=1: its clock",
        "- rails: assumed",
        "63 of 64 ranks",
        "holds up 64 ranks",
    ):
        assert part in shown


def test_what_to_enable_is_said_once_for_all_rules_that_need_it() -> None:
    shown = text.render(SAMPLES["cooling"], width=120)
    assert shown.count(sample_report.HOOK) == 1
    assert "for pipeline_imbalance and sequence_imbalance" in shown
    assert "for rack_cooling (without node_inlet_temperature)" in shown


def test_many_alike_findings_are_folded() -> None:
    shown = text.render(SAMPLES["inconclusive"])
    assert shown.count("waiting_rank on rank job=llama-70b rank=") == 3
    assert "waiting_rank on 37 more, in the JSON report" in shown


def test_less_probable_causes_take_a_line_each_and_there_is_an_end() -> None:
    cause = SAMPLES["cooling"].causes[0]
    many = [msgspec.structs.replace(cause, probability=0.06) for _ in range(30)]
    shown = text.render(msgspec.structs.replace(SAMPLES["inconclusive"], causes=many))
    assert shown.count("Do: drain") == 3
    assert "20. gpu_thermal_throttling" in shown
    assert "21. gpu_thermal_throttling" not in shown
    assert "and 10 more causes, in the JSON report" in shown


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("width", [20, 60, 100, 200])
def test_prose_keeps_to_the_width(name: str, width: int) -> None:
    queries = [item.query for cause in SAMPLES[name].causes for item in cause.evidence]
    for line in text.render(SAMPLES[name], width=max(width, 90)).splitlines()[1:]:
        whole = any(query in line for query in queries) or "rules sha256" in line or sample_report.HOOK in line
        assert whole or line.startswith(("1. ", "   Runbook")) or len(line) <= max(width, 90)


def test_colour_is_only_there_when_asked_for() -> None:
    plain, coloured = text.render(SAMPLES["cooling"]), text.render(SAMPLES["cooling"], colour=True)
    assert "\x1b" not in plain
    assert coloured.startswith("\x1b[1;31mgpu_thermal_throttling")
    assert words.visible(coloured) != coloured


@pytest.mark.parametrize("name", SAMPLES)
def test_ascii_only_is_ascii(name: str) -> None:
    assert text.render(SAMPLES[name], ascii_only=True).isascii()
    assert text.render(sample_report.hostile("名前"), ascii_only=True).isascii()


def test_a_time_on_another_day_carries_its_date() -> None:
    report = SAMPLES["cooling"]
    assert words.clock("2026-02-28T23:59:00Z", report) == "2026-02-28 23:59:00"
    assert words.clock("2026-03-01T15:03:15+01:00", report) == "14:03:15"
    assert words.clock("not a time", report) == "not a time"


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_label_cannot_steer_the_terminal(value: str) -> None:
    shown = text.render(sample_report.hostile(value))
    assert all(char == "\n" or words.visible(char) == char for char in shown)
    calm = text.render(sample_report.hostile("calm"), width=10_000).count("\n")
    assert text.render(sample_report.hostile(value), width=10_000).count("\n") == calm


@given(st.text(max_size=40))
@settings(max_examples=100, deadline=None)
def test_no_string_can_steer_the_terminal(value: str) -> None:
    shown = text.render(sample_report.hostile(value), colour=False)
    assert not set(shown) & {chr(code) for code in [*range(10), *range(11, 32), *range(127, 160)]}


def tokens(page: str) -> list[Token]:
    """Parse a ticket as a tracker would, HTML allowed, and return all of its tokens flat."""
    flat: list[Token] = []
    for token in MarkdownIt("commonmark", {"html": True}).enable("table").parse(page):
        flat += [token, *(token.children or [])]
    return flat


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_label_cannot_break_the_ticket(value: str) -> None:
    def shape(page: str) -> list[str]:
        return [token.type for token in tokens(page) if token.type.endswith("_open") or token.type == "fence"]

    page = markdown.render(sample_report.hostile(value))
    assert shape(page) == shape(markdown.render(sample_report.hostile("calm")))
    assert not {"html_block", "html_inline", "image", "link_open"} & {token.type for token in tokens(page)}


@given(st.text(max_size=40))
@settings(max_examples=100, deadline=None)
def test_no_string_becomes_html_in_the_ticket(value: str) -> None:
    kinds = {token.type for token in tokens(markdown.render(sample_report.hostile(value)))}
    assert not {"html_block", "html_inline", "image", "link_open", "hr", "blockquote_open"} & kinds


def test_the_ticket_shows_label_values_as_they_are() -> None:
    page = markdown.render(sample_report.hostile("a`b"))
    assert "gpu node=a`b gpu=1" in [token.content for token in tokens(page) if token.type == "code_inline"]


def test_the_ticket_has_a_table_of_causes_and_fenced_queries() -> None:
    page = markdown.render(SAMPLES["cooling"])
    assert "| 1 | `gpu_thermal_throttling` | 94 % | `gpu node=node-07 gpu=1` | `14:02:30` |" in page
    fences = [token for token in tokens(page) if token.type == "fence"]
    assert [fence.info for fence in fences] == ["promql"] * 3
    assert fences[0].content == 'DCGM_FI_DEV_GPU_TEMP{Hostname="node-07",gpu="1"}\n'


@pytest.mark.parametrize("name", SAMPLES)
def test_json_is_the_report_and_nothing_else(name: str) -> None:
    shown = json.render(SAMPLES[name])
    assert shown.endswith("}\n")
    assert msgspec.json.decode(shown, type=Report) == SAMPLES[name]
    assert shown == json.render(SAMPLES[name])
    assert list(msgspec.json.decode(shown))[:3] == ["schema", "status", "symptom"]


@given(st.text(max_size=40))
@settings(max_examples=100, deadline=None)
def test_json_keeps_any_string_and_steers_nothing(value: str) -> None:
    report = sample_report.hostile(value)
    shown = json.render(report)
    assert msgspec.json.decode(shown, type=Report) == report
    assert not set(shown) & {chr(code) for code in [*range(10), *range(11, 32), *range(127, 160), 0x202E]}


def test_a_query_over_several_lines_is_put_on_one() -> None:
    item = Evidence(signal="x", query="sum(\n  x\n)", value=float("nan"), unit="watts", expected="", text="")
    cause: Cause = msgspec.structs.replace(SAMPLES["cooling"].causes[0], evidence=[item])
    shown = text.render(msgspec.structs.replace(SAMPLES["cooling"], causes=[cause]))
    assert "     sum(x)\n" in shown
    assert "- x no sample\n" in shown


@pytest.mark.parametrize(
    ("value", "unit", "written"),
    [
        (92.0, "celsius", "92 °C"),
        (1200.0, "megahertz", "1,200 MHz"),
        (2.3, "seconds", "2.30 s"),
        (0.18, "seconds", "180 ms"),
        (40e6, "bytes_per_second", "40.0 MB/s"),
        (1.2e9, "bytes_per_second", "1.20 GB/s"),
        (45.0, "percent", "45 %"),
        (0.45, "ratio", "45 %"),
        (999.7e6, "bytes_per_second", "1.00 GB/s"),
        (800.0, "samples_per_second", "800 samples/s"),
        (0x60, "bits", "0x60"),
        (8.0, "lanes", "8 lanes"),
        (3.14159, "furlongs", "3.14 furlongs"),
        (2.31234, "loss", "2.312"),
        (0.0, "seconds", "0 s"),
        (float("inf"), "watts", "infinite"),
        (float("nan"), "bits", "no sample"),
        (12.0, "megabytes_per_second", "12.0 MB/s"),
        (2e-5, "seconds", "20.0 µs"),
        (-3.2, "celsius", "-3.2 °C"),
    ],
)
def test_quantities(value: float, unit: str, written: str) -> None:
    assert quantity(value, unit) == written


def test_a_probability_is_never_written_as_certain() -> None:
    assert percent(0.9999) == ">99 %"
    assert percent(0.0) == "<1 %"
