"""One YAML text becomes one value, or every problem in it."""

from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rca.detectors import Above, All, Any, Below, Not
from rca.errors import ProblemsError
from rca.library import Entities, Rule, Signal
from rca.model import Duration, Symptom
from rca.reader import decode, decode_file, read, read_file

RULE = """\
summary: A GPU is hot
entity: gpu
role: root
when:
  all:
    - {signal: gpu_sm_clock, is: below_peers, by: 4%, peers: [job, model]}
    - any:
        - {signal: gpu_temperature, is: above, limit: gpu_max_op_temperature}
        - not: {signal: gpu_power, is: below, limit: 1e2}
for: 2m
causes:
  - {effect: slow_cell, via: cell, strength: 0.95, gain: {of: gpu_sm_clock, factor: 0.7}}
prior: {slow_onset: 0.02}
action: {do: drain, text: Check the fans.}
"""
GIVEN = {"id": "hot", "layer": "physical"}


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    x: int
    y: float | str = 0.5
    on_time: bool = False
    colour: Literal["red", "green"] = "red"
    every: Duration = "5m"
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    place: str | dict[str, str] = ""
    names: tuple[str, ...] = ()
    pair: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.x == 13:
            raise ValueError("'x' is 13, choose a luckier number")


def problems(text: str, shape: type = Point) -> list[str]:
    return [str(problem) for problem in decode(text, "f", shape).problems]


def test_a_rule_comes_out_whole():
    reading = decode(RULE, "hot.yaml", Rule, GIVEN)
    assert reading.problems == ()
    rule = reading.value
    assert rule is not None
    assert (rule.id, rule.layer, rule.hold, rule.prior) == ("hot", "physical", "2m", {"slow_onset": 0.02})
    assert isinstance(rule.when, All)
    assert isinstance(rule.when.of[1], Any)
    assert rule.when.of[1].of[0] == Above(signal="gpu_temperature", limit="gpu_max_op_temperature")
    assert rule.when.of[1].of[1] == Not(of=Below(signal="gpu_power", limit=100.0))
    assert rule.causes[0].gain is not None
    assert rule.causes[0].gain.factor == 0.7


def test_the_long_form_of_a_condition_means_the_same():
    short = "{any: [{signal: a, is: above, limit: 1}]}"
    long = "{is: any, of: [{signal: a, is: above, limit: 1}]}"
    head = "summary: s\nentity: gpu\nrole: root\nwhen: "
    assert decode(head + short, "f", Rule, GIVEN).value == decode(head + long, "f", Rule, GIVEN).value


def test_lines_are_known_for_every_path():
    lines = decode(RULE, "hot.yaml", Rule, GIVEN).lines
    assert lines[()] == 1
    assert lines["when", "of", 0, "peers"] == 6
    assert lines["when", "of", 1, "of", 1, "of", "limit"] == 9
    assert lines["causes", 0, "gain", "factor"] == 12


def test_every_problem_comes_out_at_once_in_the_order_of_lines():
    text = """\
summary: A GPU is hot
entity: gpu
entity: gpu
role: rot
when:
  all:
    - {signal: gpu_sm_clock, is: below_peers, by: 4%, peers: job}
    - {signal: gpu_sm_clock, is: below_peer, by: 4%, peers: [job]}
    - any:
        - {signal: gpu_thermal_margin, is: below, limt: 1}
for: 90
prior: {slow_onset: 2, staled: 0.1}
action:
id: mine
"""
    found = [str(problem) for problem in decode(text, "f", Rule, GIVEN).problems]
    assert found == [
        "f:3: key 'entity' is repeated, first written in line 2",
        "f:4: 'role' must be one of root, symptom, found 'rot' (did you mean 'root')",
        "f:7: 'peers' must be a list, found 'job', write [job]",
        "f:8: unknown 'is: below_peer', did you mean 'below_peers'",
        "f:10: unknown key 'limt' of 'below', did you mean 'limit'",
        "f:10: 'below' lacks 'limit'",
        "f:11: 'for' must be a duration, found the number 90, write for example 2m",
        "f:12: 'slow_onset' must be at most 1, found 2",
        f"f:12: a key must be one of {', '.join(sorted(get_args(Symptom)))}, found 'staled' (did you mean 'stalled')",
        "f:13: 'action' has no value, write one or leave the key out",
        "f:14: 'id' follows from the name of the file, leave it out",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "f:1: the file is empty, nothing to read"),
        ("# a comment\n", "f:1: the file is empty, nothing to read"),
        ("x: 1\n\ty: 2", "f:2: a tab indents the line, use spaces"),
        ("--- {x: 1}\n--- {x: 2}", "f:2: a second document begins ('---'), write one document a file"),
        ("x: &a 1", "f:1: anchor '&a' is not supported, write the value where it is used"),
        ("x: 1\nplace: *a", "f:2: alias '*a' is not supported, write the value out"),
        ("x: !!int 1", "f:1: tag '!!int' is not supported, leave it out"),
        ("x: !!python/object/apply:os.system [ls]", "f:1: tag '!!python/object/apply:os.system' is not supported"),
        ("[" * 60, "f:1: nested deeper than 50 levels, write it flatter"),
        ("a:\n" + "".join(f"{' ' * depth}-\n" for depth in range(60)), "f:51: nested deeper than 50 levels"),
        ("[" * 100_000, "f:1: n"),
        ("{a: " * 100_000, "f:1: n"),
        ("x: [", "f:2: not YAML, "),
        ("x: 'a\n", "f:2: not YAML, "),
        ("x: 1\n\ny: \x07", "f:3: not YAML, unacceptable character #x0007"),
        ("<<: {x: 1}", "f:1: merge key '<<' is not supported, write the keys out"),
        ("? [a]\n: b", "f:1: a key must be a plain word, found a list or mapping"),
        ("~: b", "f:1: a key is empty, write a word before the colon"),
        ('"a\\e[31m": 1', "f:1: unknown key 'a\\x1b[31m'"),
        ("- x", "f:1: the file must be a mapping of keys to values, found a list"),
        ("5", "f:1: the file must be a mapping of keys to values, found the number 5"),
    ],
)
def test_traps_of_the_text(text, problem):
    found = problems(text)
    assert any(one.startswith(problem) for one in found), found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x: 012", "'x' must be a whole number, found 012, which YAML reads as the number 10"),
        ("x: 1:30", "'x' must be a whole number, found 1:30, which YAML reads as the number 90"),
        ("x: 0x1F", "'x' must be a whole number, found 0x1F, which YAML reads as the number 31"),
        ("x: 1_000", "'x' must be a whole number, found 1_000, which YAML reads as the number 1000"),
        ("x: 1.5", "'x' must be a whole number, found 1.5"),
        ("x: 7%", "'x' must be a whole number, found '7%', write 0.07"),
        ('x: "1"', "'x' must be a whole number, found '1', write 1 without quotes"),
        ("x: yes", "'x' must be a whole number, found yes, which YAML reads as true"),
        ("x: .inf", "'x' must be a whole number, found .inf, which YAML reads as the number inf"),
        ("x: .nan", "'x' must be a whole number, found .nan, which YAML reads as the number nan"),
        ("x: 1e999", "'x' is too large, found 1e999"),
        (f"x: {'9' * 5000}", f"'x' is too large, found {'9' * 57}..."),
        ("x:", "'x' has no value, write one or leave the key out"),
        ("x: [1]", "'x' must be a whole number, found a list"),
        ("x: 13", "'x' is 13, choose a luckier number"),
        ("x: 1\ny: 012", "'y' must be a number, found 012, which YAML reads as the number 10"),
        ("x: 1\non_time: yes", "'on_time' must be true or false, found yes, which YAML reads as true, write true or"),
        ("x: 1\non_time: 1", "'on_time' must be true or false, found the number 1, write true or false"),
        ("x: 1\ncolour: gren", "'colour' must be one of green, red, found 'gren' (did you mean 'green')"),
        ("x: 1\ncolour: no", "'colour' must be one of green, red, found no, which YAML reads as false"),
        ("x: 1\nevery: 90", "'every' must be a duration, found the number 90, write for example 2m"),
        ("x: 1\nevery: 2 minutes", "'every' must be a duration, found '2 minutes', write for example 2m"),
        ("x: 1\nevery: 1:30", "'every' must be a duration, found 1:30, which YAML reads as the number 90, write"),
        ("x: 1\nevery: ''", "'every' must be a duration, found '', write for example 2m"),
        ("x: 1\nevery: |\n  2m\n", "'every' must be a duration, found '2m\\n', write for example 2m"),
        ("x: 1\nshare: 0", "'share' must be above 0, found 0"),
        ("x: 1\nshare: 1.5", "'share' must be at most 1, found 1.5"),
        ("x: 1\nnames: a", "'names' must be a list, found 'a', write [a]"),
        ("x: 1\nnames: [a, on, 2020-01-01]", "item 2 of 'names' must be text, found on, which YAML reads as true"),
        ("x: 1\nnames: [a, on, 2020-01-01]", "item 3 of 'names' must be text, found 2020-01-01, which YAML reads as"),
        ("x: 1\nnames: [012]", "item 1 of 'names' must be text, found 012, which YAML reads as the number 10, write"),
        ("x: 1\npair: [1]", "'pair' must be a list of 2, found 1"),
        ("x: 1\nplace: {a: 1}", "'a' must be text, found the number 1, write \"1\""),
        ("x: 1\nplace: {on: a}", 'a key must be text, found on, which YAML reads as true, write "on"'),
        ("x: 1\nplace: {0: a}", 'a key must be text, found the number 0, write "0"'),
        ("y: 1", "the file lacks 'x'"),
        ("x: 1\nz: 1", "unknown key 'z', known are colour, every, names, on_time, pair, place, share, x, y"),
        ("x: 1\nNames: []", "unknown key 'Names', did you mean 'names'"),
    ],
)
def test_traps_of_the_values(text, problem):
    found = problems(text)
    assert any(one.partition(": ")[2].startswith(problem) for one in found), found


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("x: 1", "y", 0.5),
        ("{x: 1, y: 7%}", "y", "7%"),
        ("{x: 1, y: -1e-3}", "y", -0.001),
        ("{x: 1, y: 1e3}", "y", 1000.0),
        ("{x: 1, y: a_signal}", "y", "a_signal"),
        ("{x: 1, on_time: true}", "on_time", True),
        ("{x: 1, every: 1h30m}", "every", "1h30m"),
        ("{x: 1, place: here}", "place", "here"),
        ("{x: 1, place: {a: b}}", "place", {"a": "b"}),
        ("{x: 1, names: ['on', \"012\", no one]}", "names", ("on", "012", "no one")),
        ("{x: 1, pair: [0, 1e13]}", "pair", (0.0, 1e13)),
        ("{x: 1, pair: null}", "pair", None),
        ("%YAML 1.1\n---\nx: 1\n", "x", 1),
    ],
)
def test_what_is_written_well_is_read(text, field, value):
    assert getattr(read(text, "f", Point), field) == value


def test_files_that_cannot_be_read_are_problems(tmp_path: Path):
    assert str(decode_file(tmp_path / "no.yaml", "no.yaml", Point).problems[0]).startswith(
        "no.yaml: cannot be read, no"
    )
    assert "is a directory" in str(decode_file(tmp_path, "d", Point).problems[0])
    (tmp_path / "latin.yaml").write_bytes(b"x: 1\nplace: caf\xe9\n")
    with pytest.raises(ProblemsError, match=r"latin.yaml:2: byte 0xe9 is not UTF-8, save the file as UTF-8"):
        read_file(tmp_path / "latin.yaml", Point)
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfx: 2\n")
    assert read_file(tmp_path / "bom.yaml", Point).x == 2


def test_problems_of_a_text_are_raised_together():
    with pytest.raises(ProblemsError) as error:
        read("x: a\ny: [1]\n", "p.yaml", Point)
    assert error.value.exit_status == 3
    assert [problem.place for problem in error.value.problems] == ["p.yaml:1", "p.yaml:2"]


@settings(deadline=None)
@given(st.text(max_size=200))
def test_no_text_brings_a_traceback(text):
    for shape in (Point, Entities, dict[str, Signal]):
        reading = decode(text, "f", shape)
        assert (reading.value is None) == bool(reading.problems)
        assert all(problem.place.startswith("f") for problem in reading.problems)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.just("above"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["all", "any", "not", "is", "of", "signal", "limit", "when", "entity", "x"])
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(PLAIN)
def test_no_structure_brings_a_traceback(tree):
    text = yaml.safe_dump(tree)
    reading = decode(text, "f", Rule, GIVEN)
    assert reading.value is None
    assert reading.problems


LINE = st.text(max_size=20).filter(lambda text: not {"\x85", "\u2028", "\u2029"} & set(text))
"""Text without those line breaks that PyYAML itself does not write and read back alike."""


@settings(deadline=None)
@given(
    st.builds(
        dict,
        x=st.integers(-(10**12), 10**12).filter(lambda x: x != 13),
        y=st.floats(allow_nan=False, allow_infinity=False, width=32),
        on_time=st.booleans(),
        place=LINE,
        names=st.lists(LINE, max_size=3),
    )
)
def test_what_yaml_writes_comes_back(fields):
    point = read(yaml.safe_dump(fields, allow_unicode=True), "f", Point)
    assert (point.x, point.on_time, point.place) == (fields["x"], fields["on_time"], fields["place"])
    assert point.y == pytest.approx(fields["y"])
    assert list(point.names) == fields["names"]
