"""Finds the lines of a block that templates know, and what they say."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from rca.phrases.groups import told
from rca.phrases.template import Pattern, Template

BEFORE, AFTER = 1024, 4096
"""Bytes of a line, before a mark and behind it, in which a pattern is searched."""
LONGEST = 16 << 20
"""A line longer than this, that comes in blocks, is known by its beginning only."""
_OFTEN = 8
"""Marks of a line that are tried for one pattern."""
_ORDER = {"root": 0, "confirmation": 1, "echo": 2}


class Found(NamedTuple):
    """A line that a template knows: the byte at which it begins, the template's id, and what its groups say."""

    offset: int
    template: str
    groups: dict[str, str]


class _Way(NamedTuple):
    """A pattern, ready to be searched."""

    template: Template
    number: int
    search: re.Pattern[bytes]
    pattern: Pattern


class Matcher:
    """Finds in logs what templates describe.

    Most of a block is passed over by one look at each of its bytes: all marks are found at once (Aho and Corasick, 1975).
    """

    def __init__(self, templates: Iterable[Template]) -> None:
        self.templates = {template.id: template for template in templates}
        ways: dict[bytes, list[_Way]] = {}
        for template in self.templates.values():
            for number, pattern in enumerate(template.patterns):
                ways.setdefault(pattern.mark.encode(), []).append(_Way(template, number, pattern.compiled(), pattern))
        self._ways = list(ways.values())
        self._marks = BytesAhoCorasick(list(ways), MatchKind.Standard, implementation=Implementation.DFA)
        self._lines = max((way.pattern.lines for some in self._ways for way in some), default=1)

    def find(self, block: bytes) -> Iterator[Found]:
        """Yield the lines of a block that a template knows, in order, each once.

        A line that the block cuts is a line; `scan` puts blocks together.
        """
        for begin, claims in self._claimed(block):
            yield Found(begin, *self._best(claims))

    def scan(self, blocks: Iterable[bytes]) -> Iterator[Found]:
        """Yield what `find` yields for all blocks joined; they may be cut anywhere."""
        base, held, skipping = 0, b"", False
        for block in blocks:
            if skipping:
                cut = block.find(b"\n") + 1
                base += cut or len(block)
                if not cut:
                    continue
                block, skipping = block[cut:], False  # noqa: PLW2901 - the rest of a line too long to be held
            held += block
            end = held.rfind(b"\n") + 1
            keep = _back(held, end, self._lines - 1)
            for found in self.find(held[:end]):
                if found.offset >= keep:
                    break
                yield found._replace(offset=found.offset + base)
            base, held = base + keep, held[keep:]
            if len(held) > LONGEST:
                yield from (found._replace(offset=found.offset + base) for found in self.find(held))
                base, held, skipping = base + len(held), b"", not held.endswith(b"\n")
        yield from (found._replace(offset=found.offset + base) for found in self.find(held))

    def match(self, text: str | bytes) -> Found | None:
        """Return what a message says, None where no template knows it; of several lines the most telling counts."""
        block = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        found = list(self.find(block))
        return min(found, key=lambda one: self._rank(self.templates[one.template]), default=None)

    def claims(self, text: str | bytes) -> dict[tuple[str, int], dict[str, str]]:
        """Return every pattern that fits a message, as template and number, whoever the line is given to."""
        block = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        return {(way.template.id, way.number): groups for _, some in self._claimed(block) for way, groups in some}

    def _claimed(self, block: bytes) -> Iterator[tuple[int, list[tuple[_Way, dict[str, str]]]]]:
        """Yield the lines that patterns fit, with these patterns and what they found."""
        begin, end = 0, -1
        claims: list[tuple[_Way, dict[str, str]]] = []
        tried: dict[tuple[str, int], int] = {}
        places = self._marks.find_matches_as_indexes(block, overlapping=True)
        for place, mark in sorted((place, mark) for mark, place, _ in places):
            if place >= end:
                if claims:
                    yield begin, claims
                begin, end = block.rfind(b"\n", 0, place) + 1, block.find(b"\n", place)
                end = len(block) if end < 0 else end
                claims, tried = [], {}
            for way in self._ways[mark]:
                key = (way.template.id, way.number)
                if tried.get(key, 0) >= _OFTEN:
                    continue
                groups = _groups(way, block, place, (begin, end))
                tried[key] = tried.get(key, 0) + 1 if groups is None else _OFTEN
                if groups is not None:
                    claims.append((way, groups))
        if claims:
            yield begin, claims

    def _best(self, claims: Sequence[tuple[_Way, dict[str, str]]]) -> tuple[str, dict[str, str]]:
        """Return the template that a line is given to, and what all of its patterns find, earlier ones first."""
        templates = {way.template.id: way.template for way, _ in claims}
        left = [one for one in templates.values() if not any(other.before(one) for other in templates.values())]
        best = min(left or templates.values(), key=self._rank)
        own = sorted((claim for claim in claims if claim[0].template is best), key=lambda claim: -claim[0].number)
        return best.id, {name: value for _, groups in own for name, value in groups.items()}

    @staticmethod
    def _rank(template: Template) -> tuple[bool, int, str]:
        return template.general, _ORDER[template.role], template.id


def _groups(way: _Way, block: bytes, place: int, line: tuple[int, int]) -> dict[str, str] | None:
    """Return what a pattern finds around a mark, None where it does not fit."""
    begin, end = line
    for _ in range(way.pattern.lines - 1):
        after = block.find(b"\n", end + 1, place + AFTER)
        if after < 0:
            end = len(block)
            break
        end = after
    end = min(end, place + AFTER)
    if end > begin and block[end - 1 : end] == b"\r":
        end -= 1
    match = way.search.search(block, max(begin, place - BEFORE), end)
    if match is None:
        return None
    found = [(name, text.decode("utf-8", "replace") if text else None) for name, text in match.groupdict().items()]
    return told([*found, *((name, str(value)) for name, value in way.pattern.gives.items())])


def _back(text: bytes, end: int, lines: int) -> int:
    """Return where the last so many lines before a place begin."""
    for _ in range(lines):
        if end <= 0:
            return 0
        end = text.rfind(b"\n", 0, end - 1) + 1
    return end
