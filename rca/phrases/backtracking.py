"""How many steps a regular expression may take on a line that almost fits.

Python's `re` tries one way after another. Ways multiply where a repetition may stop at several places and what follows
could go on from each: `.*` then anything, and worse, repetitions inside of repetitions. Here ways and steps are counted
along the parsed expression, from above: a repetition stops in one place where no letter of it can begin what follows.
"""

import re
from collections.abc import Sequence
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple, TypeAlias

LENGTH = 4096
"""Letters that a repetition without a bound may take: a pattern is searched in no more of a line."""
MOST = 150_000.0
"""Steps that a pattern may take from a place where it may begin: some milliseconds."""
_ALL = frozenset(range(256))
_WORD = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_DIGIT, _SPACE = frozenset(b"0123456789"), frozenset(b" \t\n\r\f\v")
_CLASSES = {
    op.CATEGORY_DIGIT: _DIGIT, op.CATEGORY_NOT_DIGIT: _ALL - _DIGIT, op.CATEGORY_SPACE: _SPACE,
    op.CATEGORY_NOT_SPACE: _ALL - _SPACE, op.CATEGORY_WORD: _WORD, op.CATEGORY_NOT_WORD: _ALL - _WORD,
}  # fmt: skip
_REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)
_Value: TypeAlias = Any
"""What a part holds, which differs by its kind; `re` has no types for it."""
Items = Sequence[tuple[object, _Value]]
Letters = frozenset[int]


class _Cost(NamedTuple):
    """In how many ways a part may end, one after the other, and how many steps it takes to try them all."""

    ways: float
    steps: float


def steps(expression: str) -> float:
    r"""Return a bound on the steps that a pattern may take from one place of a line; raises re.error.

    >>> steps(r"ab(\d+),"), steps(r"a.{0,9}b.{0,9}c"), steps(r"(a+)+b")
    (4099.0, 210.0, inf)
    """
    return _sequence(_parser.parse(expression.encode(), re.MULTILINE), frozenset()).steps


def _sequence(items: Items, follow: Letters) -> _Cost:
    """Return the cost of a sequence, before letters that may follow it."""
    ways, steps = 1.0, 0.0
    for index, (kind, value) in enumerate(items):
        one = _one(kind, value, _first(items[index + 1 :], follow))
        steps += ways * one.steps
        ways *= one.ways
    return _Cost(ways, steps)


def _one(kind: object, value: _Value, follow: Letters) -> _Cost:
    """Return the cost of one part of a sequence."""
    if kind in _REPEATS:
        return _repeated(kind, value, follow)
    if kind is op.SUBPATTERN:
        return _sequence(value[3], follow)
    if kind is op.ATOMIC_GROUP:
        return _Cost(1.0, _sequence(value, frozenset()).steps)
    if kind in {op.ASSERT, op.ASSERT_NOT}:
        return _Cost(1.0, _sequence(value[1], frozenset()).steps)
    if kind is op.BRANCH:
        return _branched(value[1], follow)
    endless = float("inf") if kind in {op.GROUPREF, op.GROUPREF_EXISTS} else 1.0
    return _Cost(endless, endless)


def _repeated(kind: object, value: tuple[int, Any, Items], follow: Letters) -> _Cost:
    """Return the cost of a repetition: it may stop wherever what follows could go on."""
    least, most, items = value[0], min(int(value[1]), LENGTH), value[2]
    first = _first(items, frozenset())
    inner = _sequence(items, first | follow if most > 1 else follow)
    if inner.ways > 1.0 and most > 8:
        return _Cost(float("inf"), float("inf"))
    stops = most - least + 1 if first & follow and kind is not op.POSSESSIVE_REPEAT else 1
    tries = most if inner.ways == 1.0 else sum(inner.ways**turn for turn in range(most))
    return _Cost(inner.ways**most * stops if inner.ways > 1.0 else stops, tries * inner.steps)


def _branched(branches: Sequence[Items], follow: Letters) -> _Cost:
    """Return the cost of alternatives: of one of them where their first letters tell which, else of all."""
    firsts = [_first(branch, follow) for branch in branches]
    apart = len(frozenset().union(*firsts)) == sum(map(len, firsts))
    costs = [_sequence(branch, follow) for branch in branches]
    ways = [one.ways for one in costs]
    return _Cost(max(ways) if apart else sum(ways), sum(one.steps for one in costs) + len(costs))


def _first(items: Items, follow: Letters) -> Letters:
    """Return the letters that a sequence can begin with, those that follow where it can be empty."""
    found: Letters = frozenset()
    for kind, value in items:
        letters, empty = _begins(kind, value)
        found |= letters
        if not empty:
            return found
    return found | follow


def _begins(kind: object, value: _Value) -> tuple[Letters, bool]:
    """Return the letters that a part can begin with, and whether it can be empty."""
    if kind in _REPEATS:
        letters, empty = _both(value[2])
        return letters, empty or value[0] == 0
    if kind is op.SUBPATTERN:
        return _both(value[3])
    if kind is op.ATOMIC_GROUP:
        return _both(value)
    if kind is op.BRANCH:
        parts = [_both(branch) for branch in value[1]]
        return frozenset().union(*(letters for letters, _ in parts)), any(empty for _, empty in parts)
    if kind is op.AT:
        return (frozenset(b"\n"), False) if value in {op.AT_END, op.AT_END_STRING} else (frozenset(), True)
    if kind in {op.ASSERT, op.ASSERT_NOT}:
        return frozenset(), True
    if kind in {op.GROUPREF, op.GROUPREF_EXISTS}:
        return _ALL, True
    return _letters(kind, value), False


def _both(items: Items) -> tuple[Letters, bool]:
    """Return the letters that a sequence can begin with, and whether it can be empty."""
    mark = frozenset([-1])
    letters = _first(items, mark)
    return letters - mark, bool(letters & mark)


def _letters(kind: object, value: _Value) -> Letters:
    """Return the letters that a part of one letter fits."""
    if kind is op.LITERAL:
        return frozenset([value])
    if kind is op.NOT_LITERAL:
        return _ALL - {value}
    if kind is op.ANY:
        return _ALL - {10}
    found: Letters = frozenset()
    for inner, what in value if kind is op.IN else ():
        if inner is op.LITERAL:
            found |= {what}
        elif inner is op.RANGE:
            found |= frozenset(range(what[0], what[1] + 1))
        elif inner is op.CATEGORY:
            found |= _CLASSES.get(what, _ALL)
    negated = kind is op.IN and value and value[0][0] is op.NEGATE
    return _ALL - found if negated else found
