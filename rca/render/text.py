"""Report -> text: for a tired engineer at three in the morning."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rca.model import Cause, Link, Report
from rca.plain import counted, percent
from rca.render import _words as words

MOST = 20
_STYLES = {"bold": "1", "dim": "2", "red": "1;31", "green": "1;32", "yellow": "33", "cyan": "36"}
_STATUS = {"causes_found": "red", "healthy": "green", "inconclusive": "yellow"}
_ASCII = str.maketrans({
    "│": "|", "├": "|", "└": "`", "─": "-", "°": "", "µ": "u", "…": "...", "→": "->", "≥": ">=", "≤": "<=",
})  # fmt: skip


@dataclass(frozen=True)
class Page:
    """How wide a page is, and whether it has colours."""

    width: int
    colour: bool

    def paint(self, text: str, style: str) -> str:
        """Colour a text; an empty style leaves it as it is."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.colour and style and text else text

    def prose(self, text: str, first: str = "", rest: str | None = None, style: str = "") -> Iterator[str]:
        """Wrap a text between words behind a prefix for its first line and one for the others."""
        rest = " " * len(first) if rest is None else rest
        room = max(self.width - max(len(first), len(rest)), 24)
        lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
        for number, line in enumerate(lines or [""]):
            yield (rest if number else first) + self.paint(line, style)

    def section(self, title: str, items: Sequence[str], indent: str = "  ") -> Iterator[str]:
        """Yield a titled list after an empty line; nothing when the list is empty."""
        if items:
            yield ""
            yield self.paint(title, "bold")
            for item in items:
                yield from self.prose(item, f"{indent}- ")


def render(report: Report, *, width: int = 100, colour: bool = False, ascii_only: bool = False) -> str:
    """Write a report for people, `width` columns wide; queries and the first line are never broken.

    `colour` adds terminal colours, `ascii_only` replaces box characters and signs that a terminal may lack. Whatever
    labels contain, nothing else in the text can steer a terminal.
    """
    shown, page = words.safe(report), Page(width, colour)
    text = "\n".join(_lines(shown, page)) + "\n"
    return plainly(text) if ascii_only else text


def plainly(text: str) -> str:
    """Replace every sign that is not ASCII by one that is."""
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode()


def _lines(report: Report, page: Page) -> Iterator[str]:
    yield page.paint(words.verdict(report), _STATUS[report.status])
    yield ""
    yield from page.prose(f"{words.span(report)}; {_jobs(report)}", style="dim")
    for line in words.course(report):
        yield from page.prose(line, style="dim")
    yield from _causes(report, page)
    yield from _last_words(report, page)
    yield from page.section("Not affected", _not_affected(report))
    yield from page.section("Rejected", _rejected(report))
    yield from page.section("Found, and explained by no cause", _unexplained(report))
    yield from _not_checked(report, page)
    yield from page.section("Warnings", report.warnings)
    yield ""
    yield page.paint(f"rules {report.rules}" if report.rules else "no rules", "dim")


def _jobs(report: Report) -> str:
    return f"{'job' if len(report.jobs) == 1 else 'jobs'} {words.listed(report.jobs) or 'none seen'}"


def _causes(report: Report, page: Page) -> Iterator[str]:
    for position, cause in enumerate(report.causes[:MOST], start=1):
        detailed = words.detailed(position, cause)
        if detailed or position == words.DETAILED + 1:
            yield ""
        yield _headline(position, cause, report, page)
        if detailed:
            yield from _details(cause, report, page)
    if len(report.causes) > MOST:
        yield f"   and {counted(len(report.causes) - MOST, 'more cause')}, in the JSON report"


def _headline(position: int, cause: Cause, report: Report, page: Page) -> str:
    style = "red" if cause.probability >= words.LIKELY else "yellow"
    since = f"  since {words.clock(cause.since, report)}" if cause.since else ""
    title = f"{position}. {page.paint(cause.cause, style)}  {percent(cause.probability)}"
    return f"{title}  {words.name(cause.entity)}{since}"


def _details(cause: Cause, report: Report, page: Page) -> Iterator[str]:
    indent = "   "
    for sentence in filter(None, (cause.summary, words.weight(cause))):
        yield from page.prose(words.ended(sentence), indent)
    if cause.members:
        yield from page.prose(f"Members: {words.listed([words.name(member) for member in cause.members], 8)}", indent)
    yield from page.prose(f"Do: {cause.action.do}. {cause.action.text}", indent, style="bold")
    if cause.runbook:
        yield f"{indent}Runbook: {cause.runbook}"
    if cause.chain:
        yield ""
        yield from _tree(cause.chain, report, page, indent)
    if cause.evidence:
        yield ""
        yield from _evidence(cause, report, page, indent)


def _tree(chain: Sequence[Link], report: Report, page: Page, indent: str) -> Iterator[str]:
    """Draw a chain as a tree: the cause is its root, and each layer hangs on the last link of the layer before it."""
    layers = [[chain[0]], *(list(links) for _, links in groupby(chain[1:], key=lambda link: link.layer))]
    for depth, links in enumerate(layers):
        stem = indent + "   " * (depth - 1) if depth else indent
        for number, link in enumerate(links):
            last = number == len(links) - 1
            branch = ("└─ " if last else "├─ ") if depth else ""
            below = stem + (("   " if last else "│  ") if depth else "")
            below += "│  " if last and depth + 1 < len(layers) else "   "
            since = f" since {words.clock(link.since, report)}" if link.since else ""
            title = f"{link.layer}: {link.finding} on {words.crowd(link)}{since}"
            yield from page.prose(title, stem + branch, below, style="cyan")
            if link.text:
                yield from page.prose(link.text, below, below)


def _evidence(cause: Cause, report: Report, page: Page, indent: str) -> Iterator[str]:
    yield f"{indent}{page.paint('Evidence', 'bold')}"
    for evidence in cause.evidence:
        yield from page.prose(words.measured(evidence), f"{indent}- ")
        if evidence.quote is not None:
            yield from page.prose(words.quoted(evidence.quote, report), f"{indent}  ")
        if evidence.query:
            yield f"{indent}  {page.paint(evidence.query, 'dim')}"


def _last_words(report: Report, page: Page) -> Iterator[str]:
    told = words.last_words(report)
    if told:
        yield ""
        yield page.paint("What ranks wrote last", "bold")
    for heading, lines in told:
        yield from page.prose(heading, "  - ")
        for line in lines:
            yield from page.prose(line, "    ", "      ", style="dim")


def _not_affected(report: Report) -> list[str]:
    return [f"{item.rule} on {words.name(item.entity)}: {item.text}" for item in report.not_affected]


def _rejected(report: Report) -> list[str]:
    return _folded([(item.cause, words.name(item.entity), item.why) for item in report.rejected])


def _unexplained(report: Report) -> list[str]:
    return _folded([
        (item.finding, words.gathered(item), _since(item.since, item.text, report)) for item in report.unexplained
    ])  # fmt: skip


def _since(since: str, text: str, report: Report) -> str:
    return f"{text} (since {words.clock(since, report)})" if since else text


def _folded(items: Sequence[tuple[str, str, str]], most: int = 3) -> list[str]:
    """Write a line an item; of many alike, the first few and how many more there are."""
    folded = []
    for rule in dict.fromkeys(item[0] for item in items):
        alike = [item for item in items if item[0] == rule]
        folded += [f"{rule} on {whom}: {text}" for _, whom, text in alike[:most]]
        if len(alike) > most:
            folded.append(f"{rule} on {len(alike) - most:,} more, in the JSON report")
    return folded


def _not_checked(report: Report, page: Page) -> Iterator[str]:
    if not report.not_checked:
        return
    yield ""
    yield page.paint(f"Could not be checked: {counted(len(report.not_checked), 'rule')}; what to enable", "bold")
    for enable, rules in words.enabling(report.not_checked).items():
        yield f"  - {enable or 'nothing that is known here'}"
        yield from page.prose(f"for {words.listed(rules, 10)}", "    ", style="dim")
