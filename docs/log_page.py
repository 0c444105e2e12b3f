"""The templates of log lines as a page."""

from collections.abc import Iterable, Iterator, Sequence

from docs.rule_page import NOTE
from rca.phrases.groups import GROUPS, PIECES
from rca.phrases.template import PARTS, Template

_ABOUT = {
    "rank": "Ranks",
    "gpu": "GPUs",
    "nic": "Network ports",
    "node": "Nodes, their kernel and storage",
    "job": "Jobs",
}


def text(templates: Sequence[Template]) -> str:
    """Write the catalogue of log lines that are known, by what they speak of, and that of the groups."""
    roles = "\n".join(f"- `{role}`: {meaning}." for role, meaning in PARTS.items())
    intro = (
        f"The {len(templates)} templates of `rules/logs`: lines of frameworks, libraries, drivers, kernels and schedulers that "
        "say what went wrong, or who noticed. [How to write one](rule-language.md#log-templates)."
    )
    parts = [
        "# Known log lines",
        NOTE,
        intro,
        f"Each has a role:\n\n{roles}",
        "The lines below are examples, each with what is read of it; the names are [told at the end](#what-is-read).",
    ]
    for kind, title in _ABOUT.items():
        parts += [
            f"## {title}",
            *(one for template in templates if template.entity == kind for one in _template(template)),
        ]
    rows = (f"| `{name}` | {_cell(meaning)} |" for name, (_, meaning) in GROUPS.items())
    parts += ["## What is read", "\n".join(["| name | is |", "|---|---|", *rows])]
    rows = (f"| `%{{{name}}}` | {_cell(meaning)} |" for name, (_, meaning) in PIECES.items())
    parts += ["## Pieces of expressions", "\n".join(["| name | is |", "|---|---|", *rows])]
    return "\n\n".join(parts) + "\n"


def _template(template: Template) -> Iterator[str]:
    yield f"### {template.id}"
    yield f"{template.summary}."
    yield f"{', '.join(_facts(template))}. Source: {template.source}."
    yield f"```text\n{_lines(template)}```"


def _facts(template: Template) -> Iterator[str]:
    yield f"Role `{template.role}`"
    if template.event:
        yield f"event `{template.event}`"
    if template.fatal:
        yield "ends a process"
    if template.general:
        yield "gives way to any other template"
    if template.instead_of:
        yield f"goes before {_links(template.instead_of)}"


def _links(names: Iterable[str]) -> str:
    return ", ".join(f"[`{name}`](#{name})" for name in names)


def _lines(template: Template) -> str:
    """Write the examples with what is read of each."""
    written = ""
    for example in template.examples:
        read = ", ".join(f"{name}={value}" for name, value in example.groups.items())
        written += f"{example.line.rstrip()}\n" + (f"    -> {read}\n" if read else "")
    return written


def _cell(words: str) -> str:
    return words.replace("|", "\\|")
