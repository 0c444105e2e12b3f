"""Templates of log lines: what they know, what their linter refuses, and that no bytes are too odd for the matcher."""

import re
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rules_folder import ENTITIES, HOT, SIGNALS, SLOW, write

from rca.errors import ProblemsError, UsageError
from rca.load import check, load, phrases, shipped
from rca.phrases import Found, Matcher, matcher
from rca.phrases.backtracking import MOST, steps
from rca.phrases.groups import GROUPS, told
from rca.phrases.template import Pattern, Template

TEMPLATES = phrases()
MATCHER = Matcher(TEMPLATES)
EXAMPLES = [(template, one) for template in TEMPLATES for one in template.examples]
CHATTER = (
    b"iteration      100/  500000 | consumed samples:  25600 | lm loss: 2.199E+00 | grad norm: 0.242 | number of nan iterations:   0 |\n"
    b'{"timestamp": "2026-03-01T00:00:00.1Z", "rank": 17, "level": "INFO", "event": "TRAIN_STEP", "message": "step 12", "extra": {}}\n'
    b"n07:185303:186751 [1] NCCL INFO Channel 03/0 : 5[5] -> 4[4] via P2P/CUMEM/read\n"
)
ROOT_CAUSE = (
    "Root Cause (first observed failure):\n[0]:\n  time      : 2024-06-16_20:34:34\n  host      : n07\n"
    "  rank      : 12 (local_rank: 4)\n  exitcode  : -9 (pid: 76626)\n"
)
OURS = """\
summary: Our watchdog waits
role: echo
entity: rank
patterns:
  - {mark: "watchdog of ours", expression: 'watchdog of ours: (?P<rank>\\d{1,7})'}
examples:
  - {line: 'watchdog of ours: 07', groups: {rank: 7}}
source: ours
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "rules"
    for name, text in (("entities.yaml", ENTITIES), ("signals/all.yaml", SIGNALS), ("logs/ours.yaml", OURS)):
        write(root, name, text)
    return root


def said(folder: Path, *extra: Path) -> list[str]:
    """Return all problems of the log templates, with places relative to the folder's parent."""
    try:
        phrases(folder, extra)
    except ProblemsError as error:
        return [str(one).replace(f"{folder.parent}/", "") for one in error.problems]
    return []


# ------------------------------------------------------------------------------------------------- the shipped templates
@pytest.mark.parametrize(("template", "one"), EXAMPLES, ids=[f"{one.id}-{n}" for n, (one, _) in enumerate(EXAMPLES)])
def test_an_example_is_found_as_bytes_as_text_and_behind_a_prefix(template, one):
    groups = {name: str(value) for name, value in one.groups.items()}
    assert MATCHER.match(one.line) == Found(0, template.id, groups)
    assert MATCHER.match(one.line.encode()) == Found(0, template.id, groups)
    fitting = [template.patterns[number] for name, number in MATCHER.claims(one.line) if name == template.id]
    if not any(pattern.expression.startswith("%{line}") for pattern in fitting):
        found = MATCHER.match("2026-03-01T00:00:00Z n07 trainer[17]: " + one.line)
        assert found is not None
        assert (found.template, found.groups) == (template.id, groups)


def test_every_root_says_something_that_a_healthy_log_does_not():
    assert list(MATCHER.find(CHATTER * 100)) == []
    for template in TEMPLATES:
        for line in template.counter_examples:
            found = MATCHER.match(line)
            assert found is None or found.template != template.id


def test_what_is_never_a_root_cause_has_no_root():
    """The list of `Never a root cause`: time-outs, Xid 45 and 154, connections closed by peers, SIGTERM, status 5."""
    never = (
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, Timeout(ms)=10) ran for 11 milliseconds",
        "NVRM: Xid (PCI:0000:3b:00): 45, pid=2312, name=python, Ch 00000010",
        "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        "NVRM: Xid (PCI:0000:3b:00): 43, pid=2312, name=python, Ch 00000010",
        "NVRM: Xid (PCI:0000:3b:00): 137, pid=2312, name=python, NVLink: FLA error",
        "NVRM: Xid (PCI:0000:3b:00): 145, RLW_SRC_TRACK Fatal XC1 i0 Link 12 (0x1)",
        "[W CUDAGuardImpl.h:115] Warning: CUDA warning: unspecified launch failure (function destroyEvent)",
        "n1:1:2 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n2<5>",
        "n1:1:2 [0] NCCL WARN NET/IB : Got completion from peer n2<5> with status=5 opcode=0 len=0 vendor err 249",
        "Sending process 518 closing signal SIGTERM",
        ROOT_CAUSE.replace("-9", "-15"),
    )
    roles = [MATCHER.templates[found.template].role for line in never if (found := MATCHER.match(line)) is not None]
    assert len(roles) == len(never)
    assert "root" not in roles


def test_the_handbook_s_line_leads_from_rank_1_to_rank_2():
    assert MATCHER.match("rank=1 waiting on rank=2 for 1800s") == Found(
        0, "rank_waits", {"rank": "1", "waited_for": "2", "ran_ms": "1800000"}
    )


def test_the_rank_inside_a_communicator_is_not_taken_for_the_rank_of_the_job():
    line = "[PG ID {0} PG GUID {0}({1}) Rank 3] Exception (either an error or timeout) detected by watchdog at work: 5, last enqueued NCCL work: 7, last completed NCCL work: 4."
    inner, outer = MATCHER.match(line.format(9, "TP_GROUP")), MATCHER.match(line.format(0, "default_pg"))
    assert inner is not None
    assert outer is not None
    assert ("rank" in inner.groups, inner.groups["group_rank"]) == (False, "3")
    assert outer.groups["rank"] == "3"


@pytest.mark.parametrize("spelt", ["0000:3b:00", "PCI:0000:3B:00", "PCI:00000000:3b:00.0"])
def test_pci_addresses_come_out_in_one_form(spelt):
    found = MATCHER.match(f"NVRM: Xid ({spelt}): 79, GPU has fallen off the bus.")
    assert found == Found(0, "gpu_lost", {"pci": "00000000:3b:00.0", "xid": "79"})


def test_of_several_lines_of_a_message_the_most_telling_counts():
    text = 'Traceback (most recent call last):\n  File "t.py", line 1\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.'
    found = MATCHER.match(text)
    assert found is not None
    assert found.template == "cuda_out_of_memory"
    assert [one.template for one in MATCHER.find(text.encode())] == ["python_traceback", "cuda_out_of_memory"]


def test_lines_end_as_they_like():
    for end in ("", "\n", "\r\n", "\x00"):
        found = MATCHER.match(f"AssertionError{end}")
        assert (found is not None) == (end != "\x00")
        assert MATCHER.match(f"srun: error: Node failure on n7{end}") == Found(0, "slurm_node_failure", {"node": "n7"})


# ----------------------------------------------------------------------------------------------------- whatever comes in
LINES = st.sampled_from([one.line.encode() for _, one in EXAMPLES])
PIECES = st.one_of(
    st.binary(max_size=80),
    LINES,
    st.just(b"\n"),
    LINES.flatmap(lambda line: st.integers(0, len(line)).map(lambda at: line[:at])),
)
BLOCKS = st.lists(PIECES, max_size=12).map(b"".join)


@given(BLOCKS)
@example(b"")
@example(b"\n")
def test_any_bytes_can_be_searched(block):
    found = list(MATCHER.find(block))
    assert [one.offset for one in found] == sorted({one.offset for one in found})
    for one in found:
        assert one.offset == 0 or block[one.offset - 1 : one.offset] == b"\n"
        assert set(one.groups) <= set(GROUPS)
        assert all(isinstance(value, str) and value for value in one.groups.values())
    MATCHER.match(block)


@given(st.text(max_size=200))
def test_any_text_can_be_matched(text):
    MATCHER.match(text)
    MATCHER.match(text + "NVRM: Xid (PCI:0000:04:00): 79" + text)


@given(BLOCKS, st.lists(st.integers(0, 4000), max_size=6))
@example((ROOT_CAUSE * 2).encode(), [10, 60, 61, 200])
def test_blocks_may_be_cut_anywhere(block, cuts):
    places = [0, *sorted(min(cut, len(block)) for cut in cuts), len(block)]
    blocks = [block[a:b] for a, b in pairwise(places)]
    assert list(MATCHER.scan(blocks)) == list(MATCHER.find(block))
    assert list(MATCHER.find(bytes(600) + b"\n" + block)) == [
        one._replace(offset=one.offset + 601) for one in MATCHER.find(block)
    ]


def test_a_block_of_several_lines_is_read_across_blocks():
    text = (ROOT_CAUSE + "after\n").encode()
    for cut in range(len(text)):
        (found,) = MATCHER.scan([b"before\n", text[:cut], text[cut:]])
        assert found == Found(
            7,
            "torchrun_first_failure",
            {"node": "n07", "rank": "12", "local_rank": "4", "exit_code": "-9", "pid": "76626"},
        )


def test_a_line_without_an_end_is_not_held_for_ever():
    line, piece = b"NVRM: Xid (PCI:0000:04:00): 79, ", b"x" * (1 << 20)
    blocks = [line, *[piece] * ((matcher.LONGEST >> 20) + 3), b"\nNVRM: Xid (PCI:0000:05:00): 48, y\n"]
    found = list(MATCHER.scan(blocks))
    assert [(one.template, one.offset) for one in found] == [
        ("gpu_lost", 0),
        ("gpu_xid_memory", sum(map(len, blocks[:-1])) + 1),
    ]


def test_chatter_is_passed_over_quickly():
    block = CHATTER * ((2 << 20) // len(CHATTER))
    best = min(timed(lambda: list(MATCHER.find(block))) for _ in range(5))
    assert len(block) / best > 50e6, "bytes a second, a quarter of what a free core does"


def test_no_line_takes_long():
    """Lines that almost fit: each example, torn and stuffed with what its patterns repeat."""
    for _, one in EXAMPLES:
        line = one.line.encode().replace(b"\n", b" ")
        half = len(line) // 2
        for stuffing in (b"1", b"[rank1]:[E] ", b"a: "):
            torn = line[:half] + stuffing * (3000 // len(stuffing)) + line[half:-1] + line * 20
            assert timed(lambda torn=torn: list(MATCHER.find(torn))) < 1.0, one.line


def timed(work) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


# ------------------------------------------------------------------------------------------------------------ the linter
def test_templates_of_a_folder_and_of_extra_ones_are_read(folder, tmp_path):
    write(tmp_path / "more", "logs/theirs.yaml", OURS.replace("ours", "theirs"))
    assert [one.id for one in phrases(folder)] == ["ours"]
    assert [one.id for one in phrases(folder, [tmp_path / "more"])] == ["ours", "theirs"]
    assert [one.id for one in phrases(extra=[tmp_path / "more"])] == sorted([*(one.id for one in TEMPLATES), "theirs"])


def test_check_counts_templates_and_tells_their_problems_with_those_of_rules(folder):
    write(folder, "physical/hot.yaml", HOT.replace("entity: gpu", "entity: gup"))
    write(folder, "training/slow.yaml", SLOW)
    assert len(check(folder).phrases) == 1
    write(folder, "logs/ours.yaml", OURS.replace("role: echo", "role: eco"))
    texts = [one.text for one in check(folder).problems]
    assert any("'role' must be one of" in text for text in texts)
    assert any("unknown kind of entity 'gup'" in text for text in texts)


def test_a_diagnosis_does_not_fail_for_a_log_template(folder):
    write(folder, "training/slow.yaml", SLOW)
    write(folder, "logs/ours.yaml", "nonsense")
    assert load(folder).rules.keys() == {"slow"}


def test_every_problem_of_every_file_is_told_at_once(folder, tmp_path):
    write(folder, "tables/events.csv", "event_id,event\nEVT_1,KNOWN\n")
    write(folder, "logs/ours.yaml", OURS.replace("role: echo", "role: echo\nevent: KNOWM\ninstead_of: [other]"))
    write(folder, "logs/broken.yaml", "summary: [")
    write(folder, "logs/empty.yaml", "")
    write(tmp_path / "more", "logs/ours.yaml", OURS)
    found = "\n".join(said(folder, tmp_path / "more"))
    assert re.search(r"rules/logs/broken.yaml:\d: not YAML", found)
    assert "rules/logs/empty.yaml:1: the file is empty" in found
    assert "more/logs/ours.yaml:1: log 'ours' exists already in " in found
    for name in ("broken", "empty"):
        (folder / f"logs/{name}.yaml").unlink()
    assert said(folder) == [
        "rules/logs/ours.yaml:3: unknown event 'KNOWM', did you mean 'KNOWN'",
        "rules/logs/ours.yaml:4: unknown log template 'other'",
    ]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ('mark: "watchdog of ours"', "mark: short", "5: 'mark' must be at least 7 bytes"),
        (r"\d{1,7})", r"\d{1,7}", "5: 'expression' is no regular expression, missing ), unterminated subpattern"),
        ("(?P<rank>", "(?P<rnk>", "5: unknown group 'rnk', did you mean 'rank'"),
        ("expression: '", "lines: 99, expression: '", "5: 'lines' must be from 1 to 32, found 99"),
        ("expression: '", "gives: {sid: 9}, expression: '", "5: unknown group 'sid'"),
        ("watchdog of ours: (", "%{pcy}watchdog of ours: (", "5: unknown piece '%{pcy}', did you mean 'pci'"),
        ("watchdog of ours: (", "(?:a+)+b|watchdog of ours: (", "5: 'expression' may take very long"),
        ("watchdog of ours: (", "(.*).*(.*) (", "5: 'expression' may take very long"),
        ("{rank: 7}", "{rank: 8}", "7: finds rank: '7', the example tells '8'"),
        ("{rank: 7}", '{rank: "07"}', "7: finds rank: '7', the example tells '07', write it as '7'"),
        ("groups: {rank: 7}", "groups: {}", "7: finds rank: '7', which the example does not tell"),
        ("{rank: 7}", "{rank: 7, pid: 3}", "7: does not find 'pid'"),
        ("line: 'watchdog of ours: 07'", "line: 'watchdog of yours: 07'", "7: no pattern of 'ours' fits the example, it holds no mark"),
        ("line: 'watchdog of ours: 07'", "line: 'watchdog of ours; 07'", "7: no pattern of 'ours' fits the example"),
        ("source: ours", "counter_examples: ['watchdog of ours: 9']\nsource: ours", "8: 'ours' fits the counter-example"),
        ("examples:\n  - {line: 'watchdog of ours: 07', groups: {rank: 7}}", "examples: []", "6: 'examples' is empty"),
        ("source: ours", "sauce: ours", "8: unknown key 'sauce'"),
        ("'watchdog of ours: (?P<rank>\\d{1,7})'", "'x*'", "5: 'expression' fits an empty line"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_template_is_told(folder, before, after, told):
    assert before in OURS
    write(folder, "logs/ours.yaml", OURS.replace(before, after))
    assert any(one.startswith(f"rules/logs/ours.yaml:{told}") for one in said(folder)), said(folder)


def test_an_example_that_two_templates_claim_needs_an_order(folder):
    write(folder, "logs/other.yaml", OURS)
    assert said(folder) == [
        "rules/logs/other.yaml:7: 'ours' claims the example too, write instead_of: [ours], or narrow one of them",
        "rules/logs/ours.yaml:7: 'other' claims the example too, write instead_of: [other], or narrow one of them",
    ]
    for order in ("instead_of: [ours]", "general: true"):
        first, second = ("other", "ours") if order == "instead_of: [ours]" else ("ours", "other")
        write(folder, "logs/other.yaml", OURS.replace("role: echo", f"role: echo\n{order}"))
        line = 7 if second == "ours" else 8
        assert said(folder) == [
            f"rules/logs/{second}.yaml:{line}: goes to '{first}', which stands instead, write an example that does not fit there"
        ]


def test_a_template_of_one_s_own_may_stand_instead_of_a_shipped_one(folder, tmp_path):
    mine = write(tmp_path / "more", "logs/mine.yaml", OURS)
    assert said(folder, tmp_path / "more") == [
        "more/logs/mine.yaml:1: fits an example of 'ours' too, write instead_of: [ours], or narrow its patterns",
        "more/logs/mine.yaml:7: 'ours' claims the example too, write instead_of: [ours], or narrow one of them",
    ]
    mine.write_text(OURS.replace("role: echo", "role: echo\ninstead_of: [ours]"), encoding="utf-8")
    assert said(folder, tmp_path / "more") == []
    found = Matcher(phrases(folder, [tmp_path / "more"])).match("watchdog of ours: 3")
    assert found == Found(0, "mine", {"rank": "3"})


def test_a_pattern_that_no_example_shows_is_refused(folder):
    two = "  - {mark: 'watchdog of ours', expression: 'ours; (?P<rank>\\d{1,7})'}\nexamples:"
    write(folder, "logs/ours.yaml", OURS.replace("examples:", two))
    assert said(folder) == ["rules/logs/ours.yaml:6: no example fits this pattern, write one"]


def test_a_folder_that_is_not_there_is_wrong_usage(tmp_path):
    with pytest.raises(UsageError, match="not a folder of rules"):
        phrases(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("expression", "fine"),
    [
        (r"a(\d{1,9}), b(\w+) c", True),
        (r".{0,200}?end", True),
        (r"(?:[^\]]{1,80}\] ){0,3}x", True),
        (r"(?>.{0,300}?x)(?>.{0,300}?y)(?>.{0,300}?z)", True),
        (r".{0,300}x.{0,300}y.{0,300}z", False),
        (r"(a|a)*b", False),
        (r"(\w+\s?)*:", False),
        (r"(a*)*", False),
        (r"(.)\1", False),
        (r"(?:a?){40}a{40}", False),
    ],
)
def test_patterns_that_may_take_very_long_are_known(expression, fine):
    assert (steps(expression) <= MOST) == fine


def test_groups_have_one_form():
    assert told([("rank", "007"), ("pci", "18:00.0"), ("signal", "SIGKILL"), ("ran_s", "0.5"), ("error", "  ")]) == {
        "rank": "7", "pci": "00000000:18:00.0", "signal": "9", "ran_ms": "500",
    }  # fmt: skip


def test_a_template_may_come_from_code():
    pattern = Pattern(mark="\N{SNOWMAN} is here", expression="(?P<node>\N{SNOWMAN}) is here", gives={"rank": 3})
    made = Template(id="x", summary="s", role="root", entity="node", patterns=(pattern,), examples=(), source="s")
    assert Matcher([made]).match("a \N{SNOWMAN} is here") == Found(0, "x", {"node": "\N{SNOWMAN}", "rank": "3"})
    assert list(Matcher([]).find(b"nothing is known")) == []


def test_the_shipped_templates_name_events_that_there_are():
    assert check().problems == ()
    assert len(TEMPLATES) > 60
    assert {path.stem for path in (shipped() / "logs").glob("*.yaml")} == {one.id for one in TEMPLATES}
