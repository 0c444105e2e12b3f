"""YAML text as nodes, which know their lines, or every `file:line: problem` that keeps it from being read.

YAML can do more than a file of settings needs: aliases that multiply, tags that name types, several documents. What is
not needed is refused here, before anything is made of it.
"""

import re
from collections.abc import Iterator
from typing import Final

import yaml

from rca.errors import Problem

MAX_DEPTH = 50
TAG = "tag:yaml.org,2002:"
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DOUBTFUL = re.compile(r"[&*!]|^(?:---|\.\.\.)", re.MULTILINE)
"""What anchors, aliases, tags and several documents are written with; most files hold none of it anywhere."""


class _DeepError(Exception):
    """A text may be nested too deep."""


class _Shallow(_LOADER):  # type: ignore[misc, valid-type]  # whichever there is
    """Composes what is not nested deep."""

    depth = 0

    def descend_resolver(self, _parent: object, _index: object) -> None:
        """Go a level down; called before each node, also by the loader in C."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _DeepError

    def ascend_resolver(self) -> None:
        """Come back up."""
        self.depth -= 1


def compose(text: str, place: str) -> tuple[yaml.Node | None, tuple[Problem, ...]]:
    """Return the root node of a text, or None and what is wrong with the text as YAML."""
    problems: tuple[Problem, ...] = ()
    doubtful = _DOUBTFUL.search(text) is not None
    node = None
    try:
        try:
            node = None if doubtful else yaml.compose(text, Loader=_Shallow)
        except _DeepError:
            doubtful = True
        if doubtful:
            wrong = [(line_of(event), what) for event, what in _forbidden(text)]
            problems = tuple(Problem(f"{place}:{line}", printable(what)) for line, what in wrong)
            node = None if problems else yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        return None, (_syntax(error, text, place),)
    if node is None and not problems:
        problems = (Problem(f"{place}:1", "the file is empty, nothing to read"),)
    return node, problems


def line_of(node: yaml.Node | yaml.Event) -> int:
    """Return the line where a node or event begins, counted from 1."""
    return node.start_mark.line + 1 if node.start_mark is not None else 1


def printable(text: str) -> str:
    r"""Write a text that quotes a file in one line, without what a terminal would obey.

    >>> printable("found 'a\nb\x1b[31m é'")
    "found 'a\\nb\\x1b[31m é'"
    """
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _forbidden(text: str) -> Iterator[tuple[yaml.Event, str]]:
    """Yield what YAML allows and these files do not; flat over the events, so that depth cannot exhaust the stack."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents == 2:
                yield event, "a second document begins ('---'), write one document a file"
        elif isinstance(event, yaml.AliasEvent):
            yield event, f"alias '*{event.anchor}' is not supported, write the value out"
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                yield event, f"nested deeper than {MAX_DEPTH} levels, write it flatter"
                return
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
            if event.anchor:
                yield event, f"anchor '&{event.anchor}' is not supported, write the value where it is used"
            if event.tag:
                yield event, f"tag '{event.tag.replace(TAG, '!!')}' is not supported, leave it out"


def _syntax(error: yaml.YAMLError, text: str, place: str) -> Problem:
    if isinstance(error, yaml.MarkedYAMLError):
        line = error.problem_mark.line if error.problem_mark is not None else 0
        lines = text.splitlines()
        indent = re.match(r"\s*", lines[line]) if line < len(lines) else None
        if indent and "\t" in indent.group():
            return Problem(f"{place}:{line + 1}", "a tab indents the line, use spaces")
        parts = [part for part in (error.context, error.problem) if part]
        return Problem(f"{place}:{line + 1}", f"not YAML, {' '.join(parts)}")
    position = getattr(error, "position", 0)
    line = text.encode(errors="replace").count(b"\n", 0, position) + 1
    return Problem(f"{place}:{line}", f"not YAML, {str(error).splitlines()[0].lower()}")
