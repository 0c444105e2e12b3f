"""Report -> Markdown: for a ticket."""

import re
from collections.abc import Iterator

from rca.model import Cause, Report
from rca.plain import counted, percent
from rca.render import _words as words

_SPECIAL = re.compile(r"[\\`*\[\]<>|~&$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_MENTION = re.compile(r"@[A-Za-z0-9][\w/-]*")


def render(report: Report) -> str:
    """Write a report as GitHub-flavoured Markdown; label values cannot become markup, HTML or mentions."""
    return "\n".join(_lines(words.safe(report))) + "\n"


def prose(text: str) -> str:
    """Escape what Markdown or HTML would take for markup, and put mentions into code.

    >>> prose("a|b <i> @team"), prose("gpu_sm_clock _x_")
    ('a\\\\|b \\\\<i\\\\> `@team`', 'gpu_sm_clock \\\\_x\\\\_')
    """
    escaped = _SPECIAL.sub(lambda match: "\\" + match[0], text)
    return _MENTION.sub(lambda match: f"`{match[0]}`", escaped)


def code(text: str) -> str:
    """Quote a text as code, whatever backticks it has.

    >>> code("a"), code("a`b")
    ('`a`', '``a`b``')
    """
    fence = "`" * (_longest_ticks(text) + 1)
    space = " " if text[:1] in ("`", " ", "") or text[-1:] in ("`", " ") else ""
    return f"{fence}{space}{text}{space}{fence}"


def _longest_ticks(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def _cell(text: str) -> str:
    return code(text).replace("|", "\\|")


def _lines(report: Report) -> Iterator[str]:
    yield f"# {prose(words.verdict(report))}"
    yield ""
    yield f"Window: {prose(words.span(report))}. Jobs: {', '.join(map(code, report.jobs)) or 'none seen'}."
    for line in words.course(report):
        yield ""
        yield prose(line)
    yield from _table(report)
    for position, cause in enumerate(report.causes, start=1):
        if words.detailed(position, cause):
            yield from _cause(position, cause, report)
    yield from _section(
        "What ranks wrote last",
        [
            f"{prose(heading)}{''.join(f'; {code(line)}' for line in lines)}"
            for heading, lines in words.last_words(report)
        ],
    )
    yield from _section(
        "Not affected",
        [f"{code(item.rule)} on {code(words.name(item.entity))}: {prose(item.text)}" for item in report.not_affected],
    )
    yield from _section(
        "Rejected",
        [f"{code(item.cause)} on {code(words.name(item.entity))}: {prose(item.why)}" for item in report.rejected],
    )
    yield from _section(
        "Found, and explained by no cause",
        [f"{code(item.finding)} on {code(words.gathered(item))}: {prose(item.text)}" for item in report.unexplained],
    )
    yield from _not_checked(report)
    yield from _section("Warnings", [prose(warning) for warning in report.warnings])
    yield ""
    yield f"Rules: {code(report.rules)}"


def _table(report: Report) -> Iterator[str]:
    if not report.causes:
        return
    yield from ("", "| # | Cause | Probability | Entity | Since (UTC) |", "|--:|:--|--:|:--|:--|")
    for position, cause in enumerate(report.causes, start=1):
        cells = [_cell(cause.cause), percent(cause.probability).replace(">", "\\>").replace("<", "\\<")]
        cells += [_cell(words.name(cause.entity)), _cell(words.clock(cause.since, report))]
        yield f"| {position} | {' | '.join(cells)} |"


def _cause(position: int, cause: Cause, report: Report) -> Iterator[str]:
    yield from ("", f"## {position}. {code(cause.cause)} on {code(words.name(cause.entity))}", "")
    yield from (f"{prose(words.ended(cause.summary))} {prose(words.ended(words.weight(cause)))}", "")
    if cause.members:
        yield from (f"Members: {', '.join(code(words.name(member)) for member in cause.members)}", "")
    yield f"**Do:** {code(cause.action.do)}. {prose(cause.action.text)}"
    if cause.runbook:
        yield from ("", f"Runbook: {code(cause.runbook)}")
    if cause.chain:
        yield from ("", "### Chain", "")
    for link in cause.chain:
        since = f" since {words.clock(link.since, report)}" if link.since else ""
        yield f"- {link.layer}: {code(link.finding)} on {code(words.crowd(link))}{prose(since)}. {prose(link.text)}"
    yield from _evidence(cause, report)


def _evidence(cause: Cause, report: Report) -> Iterator[str]:
    if cause.evidence:
        yield from ("", "### Evidence")
    for evidence in cause.evidence:
        yield from ("", prose(words.measured(evidence)))
        if evidence.quote is not None:
            yield from ("", code(words.quoted(evidence.quote, report)))
        if evidence.query:
            fence = "`" * max(3, _longest_ticks(evidence.query) + 1)
            yield from ("", f"{fence}promql", evidence.query, fence)


def _section(title: str, items: list[str], most: int = 50) -> Iterator[str]:
    if items:
        yield from ("", f"## {title}", "")
        yield from (f"- {item}" for item in items[:most])
    if len(items) > most:
        yield f"- and {len(items) - most:,} more, in the JSON report"


def _not_checked(report: Report) -> Iterator[str]:
    lines = []
    for enable, rules in words.enabling(report.not_checked).items():
        lines.append(f"{code(enable) if enable else 'Nothing that is known here'}: {', '.join(map(code, rules))}")
    yield from _section(f"Could not be checked: {counted(len(report.not_checked), 'rule')}; what to enable", lines)
