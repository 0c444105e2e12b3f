"""What can be wrong with templates of log lines; their examples are run."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rca.errors import Problem, suggestion
from rca.phrases.backtracking import MOST, steps
from rca.phrases.groups import GROUPS, name_of, told, written_out
from rca.phrases.matcher import Matcher
from rca.phrases.template import Pattern, Template
from rca.places import Places

LEAST = 7
"""Bytes of a mark: shorter ones stand in too many lines."""

LINES = 32
"""Lines that a pattern may read."""


def lint(
    templates: Sequence[Template], places: Places, events: Collection[str] | None = None, fixed: Collection[str] = ()
) -> tuple[Problem, ...]:
    """Return every problem of every template.

    `events` are the names that there are, None where no table says. Templates that are `fixed` cannot be changed by who
    adds others: where two of them and of the others fit one line, it is for the others to say so.
    """
    problems = [problem for template in templates for problem in _template(template, templates, places, events)]
    if problems:  # what cannot be compiled cannot be run
        return tuple(problems)
    run = _Run(Matcher(templates), places, frozenset(fixed))
    return tuple(problem for template in templates for problem in run.template(template))


def _template(
    template: Template, templates: Sequence[Template], places: Places, events: Collection[str] | None
) -> Iterator[Problem]:
    """Check what stands in one template."""
    names = [one.id for one in templates]
    if template.event and events is not None and template.event not in events:
        text = f"unknown event '{template.event}'{suggestion(template.event, events)}"
        yield Problem(places.at("log", template.id, "event"), text)
    for other in template.instead_of:
        if other not in names or other == template.id:
            text = f"unknown log template '{other}'{suggestion(other, [name for name in names if name != template.id])}"
            yield Problem(places.at("log", template.id, "instead_of"), text)
    for key, given in (("patterns", template.patterns), ("examples", template.examples)):
        if not given:
            yield Problem(places.at("log", template.id, key), f"'{key}' is empty, write at least one")
    for index, pattern in enumerate(template.patterns):
        yield from (
            Problem(places.at("log", template.id, "patterns", index, key), text) for key, text in _pattern(pattern)
        )


def _pattern(pattern: Pattern) -> Iterator[tuple[str, str]]:
    """Say what is wrong with a pattern, and with which key of it."""
    mark = pattern.mark
    if len(mark.encode()) < LEAST or not mark.isprintable():
        yield (
            "mark",
            f"'mark' must be at least {LEAST} bytes of a line, a piece that few other lines hold, found {mark!r}",
        )
    if not 1 <= pattern.lines <= LINES:
        yield "lines", f"'lines' must be from 1 to {LINES}, found {pattern.lines}"
    try:
        compiled, count = pattern.compiled(), steps(written_out(pattern.expression))
    except ValueError as error:
        yield "expression", str(error)
        return
    except (re.error, OverflowError, RecursionError) as error:
        yield "expression", f"'expression' is no regular expression, {error}"
        return
    if count > MOST:
        yield (
            "expression",
            "'expression' may take very long on a line that almost fits, bound its repetitions: .{0,80} instead of .*",
        )
    if compiled.search(b""):
        yield "expression", "'expression' fits an empty line, write what it must hold"
    for key, names in (("expression", compiled.groupindex), ("gives", pattern.gives)):
        for name in names:
            if name_of(name) not in GROUPS:
                yield key, f"unknown group '{name}'{suggestion(name, GROUPS)}"


@dataclass(frozen=True)
class _Run:
    """Runs examples and counter-examples against all templates together."""

    matcher: Matcher
    places: Places
    fixed: frozenset[str]

    def template(self, template: Template) -> Iterator[Problem]:
        """Say what is wrong with the examples of a template."""
        used: set[int] = set()
        for index, example in enumerate(template.examples):
            claims = self.matcher.claims(example.line)
            used |= {number for name, number in claims if name == template.id}
            yield from self.example(template, index, {name for name, _ in claims})
        for index in range(len(template.patterns)):
            if index not in used:
                place = self.places.at("log", template.id, "patterns", index)
                yield Problem(place, "no example fits this pattern, write one")
        for index, line in enumerate(template.counter_examples):
            found = self.matcher.match(line)
            if found is not None and found.template == template.id:
                place = self.places.at("log", template.id, "counter_examples", index)
                yield Problem(place, f"'{template.id}' fits the counter-example, narrow its patterns")

    def example(self, template: Template, index: int, claiming: Collection[str]) -> Iterator[Problem]:
        """Say what is wrong with one example, which some templates claim."""
        place, example = self.places.at("log", template.id, "examples", index), template.examples[index]
        if template.id not in claiming:
            yield Problem(place, f"no pattern of '{template.id}' fits the example{_why(template, example.line)}")
            return
        for name in sorted(claiming):
            if name != template.id:
                yield from self.rival(template, self.matcher.templates[name], place)
        found = self.matcher.match(example.line)
        if found is not None and found.template == template.id:
            yield from (Problem(place, text) for text in _groups(example.groups, found.groups))

    def rival(self, template: Template, other: Template, place: str) -> Iterator[Problem]:
        """Say what is wrong where another template claims an example too."""
        added = template.id in self.fixed and other.id not in self.fixed
        if template.before(other) or (added and other.before(template)):
            return
        if other.before(template):
            yield Problem(
                place, f"goes to '{other.id}', which stands instead, write an example that does not fit there"
            )
        elif added:
            text = f"fits an example of '{template.id}' too, write instead_of: [{template.id}], or narrow its patterns"
            yield Problem(self.places.at("log", other.id), text)
        else:
            yield Problem(
                place, f"'{other.id}' claims the example too, write instead_of: [{other.id}], or narrow one of them"
            )


def _why(template: Template, line: str) -> str:
    """Say where the marks are missing, the likeliest reason."""
    if any(pattern.mark in line for pattern in template.patterns):
        return ""
    return f", it holds no mark: {', '.join(repr(pattern.mark) for pattern in template.patterns)}"


def _groups(wanted: Mapping[str, str | int], found: Mapping[str, str]) -> Iterable[str]:
    """Say where the groups of an example are not those that were found."""
    given = {name: str(value) for name, value in wanted.items()}
    for name in sorted({*given, *found}):
        if name not in GROUPS:
            yield f"unknown group '{name}'{suggestion(name, GROUPS)}"
        elif name not in given:
            yield f"finds {name}: {found[name]!r}, which the example does not tell"
        elif name not in found:
            yield f"does not find '{name}'"
        elif given[name] != found[name]:
            hint = f", write it as {found[name]!r}" if told([(name, given[name])]).get(name) == found[name] else ""
            yield f"finds {name}: {found[name]!r}, the example tells {given[name]!r}{hint}"
