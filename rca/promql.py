"""PromQL as data: what a query asks for, what is wrong with it, and how to narrow it safely.

`plan` compiles the part of PromQL that signals are made of: selectors, `rate` and `increase` of one, arithmetic with
numbers and with each other, sums, maxima, minima or means of that, and quantiles of histograms. A source evaluates such a plan on raw samples;
`plan` returns None for everything else, which a server must evaluate. All functions are pure.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

import promql_parser as ast

MatchOp = Literal["=", "!=", "=~", "!~"]
Operator = Literal["+", "-", "*", "/"]
Reduction = Literal["sum", "max", "min", "mean"]
_NAME = "__name__"
_OPS: tuple[tuple[ast.MatchOp, MatchOp], ...] = (
    (ast.MatchOp.Equal, "="),
    (ast.MatchOp.NotEqual, "!="),
    (ast.MatchOp.Re, "=~"),
    (ast.MatchOp.NotRe, "!~"),
)
_REDUCTIONS: Mapping[str, Reduction] = {"sum": "sum", "max": "max", "min": "min", "avg": "mean"}
_COUNTER_ENDINGS = ("_total", "_count", "_sum", "_bucket")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class Match(NamedTuple):
    """One label matcher of a selector."""

    label: str
    op: MatchOp
    value: str


@dataclass(frozen=True)
class Number:
    """A number in an expression."""

    value: float


@dataclass(frozen=True)
class Samples:
    """A selector and what is done with its samples: nothing, or the rate or increase over `range` seconds.

    The metric is called `name`, or matches the regular expression `pattern` where `name` is empty.
    """

    name: str
    pattern: str
    matches: tuple[Match, ...]
    function: Literal["value", "rate", "increase"] = "value"
    range: float = 0.0

    def select(self, names: frozenset[str]) -> tuple[str, ...]:
        """Return which of these metric names the selector asks for, sorted."""
        if self.name:
            return (self.name,) if self.name in names else ()
        pattern = re.compile(self.pattern)
        return tuple(sorted(name for name in names if pattern.fullmatch(name)))

    def fits(self, labels: Mapping[str, str]) -> bool:
        """Say whether a series of that name has the labels that the selector asks for; one that lacks is empty.

        >>> Samples("up", "", (Match("job", "=~", "a|b"), Match("rank", "=", ""))).fits({"job": "b"})
        True
        """
        for match in self.matches:
            value = labels.get(match.label, "")
            hit = value == match.value if match.op in ("=", "!=") else re.fullmatch(match.value, value) is not None
            if hit != (match.op in ("=", "=~")):
                return False
        return True


@dataclass(frozen=True)
class Arithmetic:
    """Two expressions joined by an operator, series by series.

    Series meet on all labels but the metric name, on the labels `on` alone, or on all but the labels `ignoring`.
    """

    op: Operator
    left: "Expression"
    right: "Expression"
    on: tuple[str, ...] | None = None
    ignoring: tuple[str, ...] = ()


@dataclass(frozen=True)
class Aggregate:
    """An expression whose series are gathered to one per entity."""

    by: Reduction
    of: "Expression"


@dataclass(frozen=True)
class Quantile:
    """What a `share` of the observations stay below that the buckets of a histogram count, one value per entity."""

    share: float
    of: "Expression"


Expression = Number | Samples | Arithmetic | Aggregate | Quantile


def parse(query: str) -> ast.Expr:
    """Parse a query; raise ValueError with the parser's words where it is no PromQL."""
    return ast.parse(query)


def plan(query: str) -> Expression | None:
    """Compile a query, or return None where only a server can evaluate it.

    >>> plan("rate(a_total[1m]) / 1e9")
    Arithmetic(op='/', left=Samples(name='a_total', pattern='', matches=(), function='rate', range=60.0), \
right=Number(value=1000000000.0), on=None, ignoring=())
    >>> plan("max_over_time(a[5m])") is None
    True

    Raises ValueError where the query does not parse.
    """
    try:
        return _compile(parse(query))
    except _OnServer:
        return None


def samples(expression: Expression) -> Iterator[Samples]:
    """Yield the selectors of a plan, left to right."""
    if isinstance(expression, Samples):
        yield expression
    elif isinstance(expression, Aggregate | Quantile):
        yield from samples(expression.of)
    elif isinstance(expression, Arithmetic):
        yield from samples(expression.left)
        yield from samples(expression.right)


def metric_names(query: str) -> frozenset[str]:
    """Return the exact metric names in a query; a name matched by a regular expression has none.

    >>> sorted(metric_names('rate(a[1m]) / on (x) {__name__="b"}'))
    ['a', 'b']
    """
    return frozenset(name for name in map(_selector_name, _selectors(parse(query))) if name)


def problems(query: str, counters: frozenset[str] = frozenset(), gauges: frozenset[str] = frozenset()) -> list[str]:
    """Say what is wrong with a query: it does not parse, or takes the rate of a gauge.

    A metric is a counter when it ends like one or is among `counters`, and never when it is among `gauges`.

    >>> problems("rate(node_load1[5m])")
    ['rate() of node_load1, which is a gauge: use it as it is, or name a counter']
    """
    try:
        expression = parse(query)
    except ValueError as error:
        return [f"does not parse: {error}"]
    found: list[str] = []

    def visit(node: ast.Expr) -> None:
        if not isinstance(node, ast.Call) or node.func.name not in ("rate", "irate", "increase"):
            return
        if not node.args or not isinstance(node.args[0], ast.MatrixSelector):
            return
        name = _selector_name(node.args[0].vector_selector)
        ends_well = name.lower().endswith(_COUNTER_ENDINGS)
        if name and (name in gauges or not (ends_well or name in counters)):
            found.append(f"{node.func.name}() of {name}, which is a gauge: use it as it is, or name a counter")

    ast.walk(expression, pre_visit=visit)
    return found


def with_labels(query: str, labels: Mapping[str, str]) -> str:
    r"""Add an equality matcher for each label to every selector of a query; the result is one line.

    >>> with_labels("rate(a[1m]) / b", {"host": 'x"y'})
    'rate(a{host="x\\"y"}[1m]) / b{host="x\\"y"}'

    The query is rebuilt from its syntax tree, so a value may hold anything: it parses back to itself. Raises
    ValueError where the query does not parse.
    """
    return with_matches(query, [Match(label, "=", value) for label, value in labels.items()])


def with_matches(query: str, wanted: Sequence[Match]) -> str:
    """Add matchers to every selector of a query; the result is one line.

    >>> with_matches("rate(a[1m])", [Match("host", "=~", "x|y")])
    'rate(a{host=~"x|y"}[1m])'
    """
    extra = list(wanted)

    def narrow(selector: ast.VectorSelector) -> str:
        groups = selector.matchers.or_matchers or [selector.matchers.matchers]
        return " or ".join(_written([_match(one) for one in group], extra) for group in groups)

    return _rebuilt(query, lambda selector: f"{selector.name or ''}{{{narrow(selector)}}}")


def selector(matches: Sequence[Match]) -> str:
    """Write a selector of these matchers.

    >>> selector([Match("__name__", "=~", "a|b"), Match("phase", "!=", "x")])
    '{__name__=~"a|b",phase!="x"}'
    """
    return "{" + _written(list(matches), []) + "}"


def respell(query: str, spelling: Mapping[str, tuple[str, float]]) -> str:
    """Replace metric names by (new name, new unit per old unit), dividing where the unit differs; one line.

    >>> respell("rate(a[1m]) + b", {"a": ("c_total", 1000.0), "b": ("d", 1.0)})
    '(rate(c_total[1m]) / 1000) + d'
    """

    def factor_of(node: ast.Expr) -> float:
        if isinstance(node, ast.MatrixSelector):
            node = node.vector_selector
        return spelling.get(_selector_name(node), ("", 1.0))[1] if isinstance(node, ast.VectorSelector) else 1.0

    def scale(node: ast.Expr) -> ast.Expr | None:
        inner = node.args[0] if isinstance(node, ast.Call) and node.args else node
        factor = 1.0 if isinstance(node, ast.MatrixSelector) else factor_of(inner)
        if factor == 1.0:
            return None
        new = _renamed(node, spelling)
        return parse(f"({new} / {factor:.17g})")

    expression = ast.transform(parse(query), pre_visit=scale)
    return _renamed(expression, spelling)


class _OnServer(Exception):  # noqa: N818 - control flow inside this module, never seen outside
    """Say that a part of PromQL has no plan."""


def _compile(node: ast.Expr) -> Expression:
    """Compile one node of the syntax tree."""
    match node:
        case ast.ParenExpr():
            return _compile(node.expr)
        case ast.NumberLiteral():
            return Number(float(node.val))
        case ast.UnaryExpr():
            return Arithmetic("-", Number(0.0), _compile(node.expr))
        case ast.VectorSelector():
            return _samples(node, "value", 0.0)
        case ast.Call() if node.func.name in ("rate", "increase"):
            matrix = node.args[0]
            if isinstance(matrix, ast.MatrixSelector):
                function = cast(Literal["rate", "increase"], node.func.name)
                return _samples(matrix.vector_selector, function, matrix.range.total_seconds())
        case ast.Call() if node.func.name == "histogram_quantile":
            return _quantile(_compile(node.args[0]), _compile(node.args[1]))
        case ast.BinaryExpr() if str(node.op) in ("+", "-", "*", "/"):
            return _arithmetic(node)
        case ast.AggregateExpr() if str(node.op) in _REDUCTIONS and node.param is None:
            return Aggregate(_REDUCTIONS[str(node.op)], _compile(node.expr))
    raise _OnServer


def _quantile(share: Expression, buckets: Expression) -> Quantile:
    """Compile a quantile over the rates of buckets, summed or not."""
    inner = buckets.of if isinstance(buckets, Aggregate) and buckets.by == "sum" else buckets
    if not isinstance(share, Number) or not isinstance(inner, Samples) or inner.function == "value":
        raise _OnServer
    return Quantile(share.value, inner)


def _samples(selector: ast.VectorSelector, function: Literal["value", "rate", "increase"], seconds: float) -> Samples:
    """Compile a selector without `offset`, `@` and `or`, whose metric has a name or one pattern."""
    if selector.offset is not None or selector.at is not None or selector.matchers.or_matchers:
        raise _OnServer
    matches = [_match(one) for one in selector.matchers.matchers]
    on_name = [one for one in matches if one.label == _NAME]
    others = tuple(one for one in matches if one.label != _NAME)
    if selector.name:
        on_name.append(Match(_NAME, "=", selector.name))
    if len(on_name) != 1 or on_name[0].op not in ("=", "=~") or not _compiles(matches):
        raise _OnServer
    value = on_name[0].value
    name, pattern = (value, "") if on_name[0].op == "=" else ("", value)
    return Samples(name, pattern, others, function, seconds)


def _compiles(matches: list[Match]) -> bool:
    """Say whether Python reads every regular expression of the matchers (Prometheus speaks RE2)."""
    try:
        for one in matches:
            re.compile(one.value if one.op in ("=~", "!~") else "")
    except re.error:
        return False
    return True


def _arithmetic(node: ast.BinaryExpr) -> Arithmetic:
    """Compile an operator between two expressions."""
    on: tuple[str, ...] | None = None
    ignoring: tuple[str, ...] = ()
    modifier = node.modifier
    if modifier is not None and modifier.matching is not None:
        if modifier.matching.type == ast.LabelModifierType.Include:
            on = tuple(modifier.matching.labels)
        else:
            ignoring = tuple(modifier.matching.labels)
    op = cast(Operator, str(node.op))
    return Arithmetic(op, _compile(node.lhs), _compile(node.rhs), on, ignoring)


def _match(matcher: ast.Matcher) -> Match:
    """Turn the parser's matcher into ours."""
    op = next(text for kind, text in _OPS if kind == matcher.op)
    return Match(matcher.name, op, matcher.value)


def _selectors(expression: ast.Expr) -> list[ast.VectorSelector]:
    """Return every selector of an expression."""
    found: list[ast.VectorSelector] = []

    def visit(node: ast.Expr) -> None:
        if isinstance(node, ast.VectorSelector):
            found.append(node)

    ast.walk(expression, pre_visit=visit)
    return found


def _selector_name(selector: ast.VectorSelector) -> str:
    """Return the metric name of a selector, empty where it has none or only a pattern."""
    if selector.name:
        return selector.name
    named = [one.value for one in map(_match, selector.matchers.matchers) if one.label == _NAME and one.op == "="]
    return named[0] if named else ""


def _quoted(text: str) -> str:
    """Write a string literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", escaped) + '"'


def _written(matches: list[Match], extra: list[Match]) -> str:
    """Write matchers, those of `extra` last and each only once."""
    every = matches + [one for one in extra if one not in matches]
    return ",".join(f"{one.label}{one.op}{_quoted(one.value)}" for one in every)


def _rebuilt(query: str, write: Callable[[ast.VectorSelector], str]) -> str:
    """Replace every selector by what `write` makes of it, keep its modifiers, and print the whole on one line."""

    def swap(node: ast.Expr) -> ast.Expr | None:
        return parse(write(node) + _modifiers(node)) if isinstance(node, ast.VectorSelector) else None

    return _one_line(ast.transform(parse(query), pre_visit=swap))


def _renamed(expression: ast.Expr, spelling: Mapping[str, tuple[str, float]]) -> str:
    """Print an expression with its metrics renamed."""

    def rename(selector: ast.VectorSelector) -> str:
        name = _selector_name(selector)
        new = spelling[name][0] if name in spelling else selector.name or ""
        matches = [_match(one) for one in selector.matchers.matchers]
        if name in spelling:
            matches = [one for one in matches if one.label != _NAME]
        return f"{new}{{{_written(matches, [])}}}"

    return _rebuilt(_one_line(expression), rename)


def _modifiers(selector: ast.VectorSelector) -> str:
    """Write a selector's `@` and `offset`."""
    text = ""
    if selector.at is not None:
        at = selector.at.at
        if at is not None:
            text += f" @ {at.timestamp():.3f}"
        else:
            text += " @ start()" if selector.at.type == ast.AtModifierType.Start else " @ end()"
    if selector.offset is not None:
        sign = "-" if selector.offset.total_seconds() < 0 else ""
        text += f" offset {sign}{ast.display_duration(abs(selector.offset))}"
    return text


def _one_line(expression: ast.Expr) -> str:
    """Print an expression; strings hold no line breaks once printed, so every line break is layout."""
    return re.sub(r"\s*\n\s*", " ", expression.prettify()).strip()
