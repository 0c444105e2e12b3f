"""Answers as one HTML file: a picture of ranks over time, and the answer in words and tables."""

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from rca.loglines import Line
from rca.logs import picture
from rca.logs.answers import Counts, FirstErrors, Lines, Silence, Summary, Told
from rca.logs.asked import LISTED
from rca.logs.levels import Levels
from rca.logs.suspects import Suspects
from rca.logs.text import FEW, accused, misled, moment, ranges, said, wrong
from rca.plain import counted, lasting, quantity, visible
from rca.render.html import environment

MOST = LISTED
"""Rows of a table; JSON has them all."""
_LONGEST = 1000
_HEAD = ("time", "rank", "node", "level", "event", "message")


class Sheet(NamedTuple):
    """A table of a page."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


class _Page(NamedTuple):
    title: str
    heading: str
    sentences: Sequence[str]
    tables: Sequence[Sheet]


def render(told: Told) -> str:
    """Write a page."""
    shown = _page(told)
    drawn = picture.draw(told.picture, told.absent) if told.picture is not None else None
    drawing = drawn._replace(svg=Markup(drawn.svg)) if drawn is not None else None  # noqa: S704 - every text in it is escaped where it is drawn
    return environment().get_template("logs.html").render(
        **shown._asdict(), drawing=drawing, notes=[visible(note) for note in told.notes]
    )  # fmt: skip


def _page(told: Told) -> _Page:
    answer = told.answer
    match answer:
        case Lines():
            lines = list(answer.lines)
            less = [f"{counted(answer.left_out, 'earlier line')} not shown."] if answer.left_out else []
            return _Page(counted(answer.count, "line"), "Lines", less, _lines("", lines))
        case Counts():
            return _Page("Lines by event, rank and time", "Counts", [], [_counts(answer)])
        case FirstErrors():
            return _Page(_first(answer), "First errors", [_clean(answer)], _lines("", answer.lines))
        case Silence():
            return _Page(_verdict(answer), "Silent ranks", _said(answer), _silent(answer))
        case Suspects():
            title = f"{counted(len(answer.found), 'place')} where it may have begun"
            return _Page(title, "Suspects", list(accused(answer)), [])
        case Levels():
            title = f"{counted(len(answer.found), 'misuse')} of levels"
            return _Page(title, "Levels that mislead", list(misled(answer)), [])
    return _summary(answer)


def _summary(answer: Summary) -> _Page:
    span = f"{moment(answer.span.first)} to {moment(answer.span.last)}" if answer.span else "no time is told"
    size = f", {quantity(float(answer.size), 'bytes')} in {counted(answer.files, 'file')}" if answer.files else ""
    words = [
        f"{visible(answer.where)}: {span}{size}.", *_said(answer.silence), f"{_first(answer.errors)}. {_clean(answer.errors)}",
        *map(wrong, answer.levels.found[:FEW]),
    ]  # fmt: skip
    return _Page(
        _verdict(answer.silence),
        "Who is silent, and what went wrong first",
        words,
        [*_silent(answer.silence), *_lines("First errors", answer.errors.lines)],
    )


def _lines(title: str, lines: Sequence[Line]) -> list[Sheet]:
    if not lines:
        return []
    rows = [
        (moment(one.time), one.rank or "-", one.node or "-", one.level, one.event, _message(one))
        for one in lines[-MOST:]
    ]
    more = f"{title} (the last {MOST:,} of {len(lines):,})" if len(lines) > MOST else title
    return [Sheet(more, _HEAD, [[visible(cell) for cell in row] for row in rows])]


def _message(line: Line) -> str:
    return said(line, _LONGEST) + (f" ({line.flaw})" if line.flaw else "")


def _counts(answer: Counts) -> Sheet:
    totals: dict[tuple[str, str], tuple[int, set[str | None]]] = {}
    for row in answer.rows:
        lines, ranks = totals.get((row.event, row.level), (0, set()))
        totals[row.event, row.level] = (lines + row.lines, ranks | {row.rank})
    rows = sorted(totals.items(), key=lambda item: -item[1][0])
    return Sheet(
        "", ("event", "level", "lines", "ranks"),
        [(visible(event or "-"), visible(level or "-"), f"{lines:,}", f"{len(ranks):,}") for (event, level), (lines, ranks) in rows],
    )  # fmt: skip


def _first(answer: FirstErrors) -> str:
    return (
        f"First error: rank {visible(answer.lines[0].rank or '-')}, {moment(answer.lines[0].time)}"
        if answer.lines
        else "No error"
    )


def _clean(answer: FirstErrors) -> str:
    return f"{counted(len(answer.lines), 'rank')} with an error, {answer.clean:,} without."


def _verdict(answer: Silence) -> str:
    if not answer.ranks:
        return f"{counted(answer.known, 'rank')}, none is silent"
    silent = ranges([one.rank for one in answer.ranks[:8]])
    more = f" and {len(answer.ranks) - 8:,} more" if len(answer.ranks) > 8 else ""
    return f"Silent: rank {visible(silent)}{more}"


def _said(answer: Silence) -> list[str]:
    of = "" if answer.expected is None else f" of {answer.expected:,}"
    until = f"; most spoke until {moment(answer.reference)}" if answer.reference is not None else ""
    seen = [f"{answer.known:,}{of} ranks seen{until}."]
    missing = [one.rank for one in answer.ranks if one.line is None]
    return seen + ([f"No line at all: rank {ranges(missing)}."] if missing else [])


def _silent(answer: Silence) -> list[Sheet]:
    rows = [
        (one.rank, lasting(one.seconds or 0.0), moment(one.line.time), one.line.event, _message(one.line))
        for one in answer.ranks[:MOST]
        if one.line is not None
    ]
    head = ("rank", "silent for", "last line", "event", "message")
    return (
        [Sheet("Last lines of silent ranks", head, [[visible(cell) for cell in row] for row in rows])] if rows else []
    )
