"""PromQL as data: names, problems, narrowing, respelling, and plans."""

import promql_parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca import promql
from rca.promql import Aggregate, Arithmetic, Match, Number, Samples

VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def matchers(query: str) -> list[list[tuple[str, str]]]:
    """Return the equality matchers of every selector, left to right."""
    found: list[list[tuple[str, str]]] = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            equal = [one for one in node.matchers.matchers if one.op == promql_parser.MatchOp.Equal]
            found.append([(one.name, one.value) for one in equal])

    promql_parser.walk(promql_parser.parse(query), pre_visit=visit)
    return found


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("up", {"up"}),
        ('{__name__="up"}', {"up"}),
        ('{__name__=~"up|down"}', set()),
        ("sum by (a) (rate(x_total[1m])) / on (a) y", {"x_total", "y"}),
        ("max_over_time((a + b)[5m:1m])", {"a", "b"}),
    ],
)
def test_metric_names(query: str, names: set[str]) -> None:
    assert promql.metric_names(query) == names


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("rate(a_total[1m]) / rate(b_count[1m])", []),
        ("rate(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[1m])", []),
        ("avg_over_time(temperature[1m])", []),
        ('rate({__name__=~"a|b"}[1m])', []),
        ("rate(temperature[1m])", ["rate() of temperature, which is a gauge"]),
        ("1 - sum(irate(temperature[1m])) + increase(load[5m])", ["irate() of temperature", "increase() of load"]),
        ("rate(a_total[1m)", ["does not parse"]),
        ("", ["does not parse"]),
    ],
)
def test_problems(query: str, said: list[str]) -> None:
    found = promql.problems(query)
    assert len(found) == len(said)
    assert all(text.startswith(start) for text, start in zip(found, said, strict=True))


def test_problems_know_counters_and_gauges_by_name() -> None:
    assert promql.problems("rate(energy[1m])", counters=frozenset({"energy"})) == []
    bandwidth = "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"
    assert promql.problems(f"rate({bandwidth}[1m])", gauges=frozenset({bandwidth})) != []


@given(VALUES, VALUES)
def test_label_values_survive_in_every_selector(one: str, other: str) -> None:
    query = promql.with_labels(
        'rate(a_total{x="1"}[5m] offset 5m) / on (x) b + max_over_time(c[5m:1m])',
        {
            "host": one,
            "gpu": other,
        },
    )
    assert "\n" not in query
    for found in matchers(query):
        assert {("host", one), ("gpu", other)} <= set(found)


@pytest.mark.parametrize(
    ("query", "narrowed"),
    [
        ("up", 'up{n="1"}'),
        ('{__name__=~"a|b"}', '{__name__=~"a|b",n="1"}'),
        ('up{n="1"}', 'up{n="1"}'),
        ("rate(a[5m] offset -1m)", 'rate(a{n="1"}[5m] offset -1m)'),
        ("a @ 12.5 + b @ end()", 'a{n="1"} @ 12.500 + b{n="1"} @ end()'),
        ("sum by (n) (rate(a_total[1m])) * 60", 'sum by (n) (rate(a_total{n="1"}[1m])) * 60'),
        ("(a + b) * c", '(a{n="1"} + b{n="1"}) * c{n="1"}'),
    ],
)
def test_with_labels(query: str, narrowed: str) -> None:
    assert promql.with_labels(query, {"n": "1"}) == narrowed


def test_with_labels_prints_long_queries_on_one_line() -> None:
    long = " + ".join(f'rate(a_rather_long_name_{n}_total{{device!~"loop.*|ram.*"}}[2m])' for n in range(6))
    assert "\n" not in promql.with_labels(long, {"n": "1"})


def test_with_labels_of_no_promql() -> None:
    with pytest.raises(ValueError):
        promql.with_labels("rate(", {"n": "1"})


@pytest.mark.parametrize(
    ("query", "spelled"),
    [
        ("a", "(A / 1000000)"),
        ("x / a", "x / (A / 1000000)"),
        ('sum(rate(a{x="1"}[1m])) / b', 'sum((rate(A{x="1"}[1m]) / 1000000)) / B'),
        ('{__name__="b"}', "B"),
        ("c", "c"),
    ],
)
def test_respell(query: str, spelled: str) -> None:
    assert promql.respell(query, {"a": ("A", 1e6), "b": ("B", 1.0)}) == spelled


A = Samples("a_total", "", (), "rate", 60.0)
B = Samples("b", "", (Match("x", "!~", "y.*"),))


@pytest.mark.parametrize(
    ("query", "plan"),
    [
        ("rate(a_total[1m])", A),
        ('b{x!~"y.*"}', B),
        ('{__name__="a_total"}', Samples("a_total", "", ())),
        ('{__name__=~"a|b"}', Samples("", "a|b", ())),
        ("1 - (rate(a_total[1m]))", Arithmetic("-", Number(1.0), A)),
        ("-rate(a_total[1m])", Arithmetic("-", Number(0.0), A)),
        ("sum by (n) (rate(a_total[1m])) / 1e9", Arithmetic("/", Aggregate("sum", A), Number(1e9))),
        ('rate(a_total[1m]) / on (n) b{x!~"y.*"}', Arithmetic("/", A, B, on=("n",))),
        ('rate(a_total[1m]) / ignoring (p) group_left () b{x!~"y.*"}', Arithmetic("/", A, B, ignoring=("p",))),
        ("avg(increase(a[2m]))", Aggregate("mean", Samples("a", "", (), "increase", 120.0))),
    ],
)
def test_plan(query: str, plan: promql.Expression) -> None:
    assert promql.plan(query) == plan


@pytest.mark.parametrize(
    "query",
    [
        "max_over_time(a[5m])",
        "irate(a_total[1m])",
        "a > 1",
        "a and b",
        "a offset 5m",
        "rate(a_total[1m] offset 5m)",
        "a @ 12",
        "topk(3, a)",
        "time()",
        "a ^ 2",
        '{x="1"}',
        '{__name__!="a",x="1"}',
        "a % 2",
        "histogram_quantile(0.9, a)",
    ],
)
def test_everything_else_needs_a_server(query: str) -> None:
    assert promql.plan(query) is None


def test_plan_of_no_promql() -> None:
    with pytest.raises(ValueError, match="brackets"):
        promql.plan("rate(a[1m)")


def test_select_by_name_or_pattern() -> None:
    names = frozenset({"p0_pause", "p1_pause", "p1_paused"})
    assert Samples("", "p[0-9]_pause", ()).select(names) == ("p0_pause", "p1_pause")
    assert Samples("p1_paused", "", ()).select(names) == ("p1_paused",)
    assert Samples("gone", "", ()).select(names) == ()
