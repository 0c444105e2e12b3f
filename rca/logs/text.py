"""Answers as tables for a terminal."""

import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rca.loglines import Line
from rca.logs.answers import Count, Counts, FirstErrors, Lines, Silence, Summary, Told
from rca.logs.levels import Levels, Misuse
from rca.logs.suspects import Suspects
from rca.plain import counted, lasting, natural, quantity, visible
from rca.render.text import plainly
from rca.terminal import Screen

MOST = 40
"""Rows of a table that sums up; JSON has them all."""
SUSPECTED = 5
"""Places where it may have begun that are told; JSON has them all."""
FEW, SHAPE = 3, 80
"""Levels that mislead of which a summary tells, and letters of the shape of their lines."""
_STAMP = re.compile(r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?[ :]+", re.ASCII)
_LONGEST = 400
_STYLES = {"ERROR": "bold red", "WARN": "yellow", "DEBUG": "dim"}
_BARS = " ▁▂▃▄▅▆▇█"
_COLUMNS = 24


def render(told: Told, screen: Screen) -> str:
    """Write an answer for people; nothing in it can steer the terminal."""
    stream = io.StringIO()
    console = Console(
        file=stream, width=screen.width, force_terminal=screen.colour, no_color=not screen.colour, highlight=False,
        color_system="standard" if screen.colour else None, legacy_windows=False, emoji=False, markup=False,
    )  # fmt: skip
    for piece in _pieces(told):
        console.print(piece, soft_wrap=isinstance(piece, str))
    text = "\n".join(line.rstrip() for line in stream.getvalue().split("\n"))
    return plainly(text) if screen.ascii_only else text


def _pieces(told: Told) -> Iterator[Table | str | Text]:
    answer = told.answer
    match answer:
        case Lines():
            yield from _lines(answer)
        case Counts():
            yield from _counts(answer)
        case FirstErrors():
            yield from _errors(answer)
        case Silence():
            yield from _silence(answer)
        case Summary():
            yield from _summary(answer)
        case Suspects():
            yield from accused(answer)
        case Levels():
            yield from misled(answer)


def _lines(answer: Lines) -> Iterator[Table | str]:
    if not answer.count:
        yield "no line fits"
        return
    yield _table(list(answer.lines))
    if answer.left_out:
        yield f"{counted(answer.left_out, 'earlier line')} not shown, see --limit"


def _table(lines: Sequence[Line]) -> Table:
    """Write lines as a table; the day is told once where there is one."""
    days = {day(line.time) for line in lines if line.time is not None}
    one = days.pop() if len(days) == 1 else ""
    nodes, attempts = any(line.node for line in lines), any(line.attempt for line in lines)
    events = any(line.event for line in lines)
    table = _grid()
    table.add_column(f"{one} UTC" if one else "time, UTC", no_wrap=True)
    table.add_column("rank", justify="right", no_wrap=True)
    for name, there in (("try", attempts), ("node", nodes), ("level", True), ("event", events)):
        if there:
            table.add_column(name, no_wrap=True)
    table.add_column("message", overflow="fold")
    for line in lines:
        cells = [clock(line.time) if one else moment(line.time), line.rank or "-"]
        cells += [str(line.attempt)] if attempts else []
        cells += [line.node or "-"] if nodes else []
        cells += [line.level] + ([line.event] if events else [])
        message = Text(visible(said(line, _LONGEST)))
        if line.flaw:
            message.append(f" ({line.flaw})", style="dim")
        table.add_row(*(Text(visible(cell)) for cell in cells), message, style=_STYLES.get(line.level))
    return table


def _counts(answer: Counts) -> Iterator[Table | str]:
    if not answer.rows:
        yield "no line fits"
        return
    times = sorted({row.time for row in answer.rows if row.time is not None})
    by_event: dict[tuple[str, str], list[Count]] = {}
    for row in answer.rows:
        by_event.setdefault((row.event or "-", row.level or "-"), []).append(row)
    if times:
        yield f"{moment(times[0])} to {moment(times[-1] + answer.width)} UTC, in steps of {lasting(answer.width)}"
    table = _grid()
    for name, justify in (
        ("event", "left"),
        ("level", "left"),
        ("lines", "right"),
        ("ranks", "right"),
        ("most of rank", "left"),
    ):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("over time", no_wrap=True)
    for (event, level), rows in sorted(by_event.items(), key=lambda item: -sum(row.lines for row in item[1])):
        ranks = Counter[str]()
        for row in rows:
            ranks[row.rank or "-"] += row.lines
        most = ", ".join(f"{rank} ({lines:,})" for rank, lines in ranks.most_common(2))
        total = f"{sum(ranks.values()):,}"
        course = _course(rows, times, answer.width)
        table.add_row(
            Text(visible(event)),
            Text(visible(level)),
            total,
            f"{len(ranks):,}",
            Text(visible(most)),
            course,
            style=_STYLES.get(level),
        )
    yield table


def _course(rows: Sequence[Count], times: Sequence[float], width: float) -> str:
    """Draw how a number went over time."""
    if not times:
        return ""
    span = times[-1] - times[0] + width
    columns = min(_COLUMNS, max(round(span / width), 1))
    bars = [0] * columns
    for row in rows:
        if row.time is not None:
            bars[min(int((row.time - times[0]) / span * columns), columns - 1)] += row.lines
    top = max(bars)
    return "".join(_BARS[-(-bar * (len(_BARS) - 1) // top)] if top else " " for bar in bars)


def _errors(answer: FirstErrors, most: int = MOST) -> Iterator[Table | str]:
    if not answer.lines:
        yield f"no error in {counted(answer.clean, 'rank')}"
        return
    ranks = len([line for line in answer.lines if line.rank is not None])
    rank = answer.lines[0].rank
    whose = f"rank {visible(rank)}" if rank is not None else "a line that names no rank"
    yield f"first error of {counted(ranks, 'rank')}, {answer.clean:,} more without any: {whose}"
    yield _table(answer.lines[:most])
    if len(answer.lines) > most:
        yield f"and {counted(len(answer.lines) - most, 'rank')} later, see --first-error"


def _silence(answer: Silence) -> Iterator[Table | str]:
    of = f"{answer.known:,}" if answer.expected is None else f"{answer.known:,} of {answer.expected:,}"
    ranks = f"{of} ranks seen" if answer.known or answer.expected else "no line names a rank"
    if not answer.ranks:
        yield f"{ranks}, none is silent" + (
            f": most spoke until {moment(answer.reference)} UTC" if answer.reference else ""
        )
        return
    until = f", most others spoke until {moment(answer.reference)} UTC" if answer.reference is not None else ""
    yield f"{ranks}, {counted(len(answer.ranks), 'silent rank')}{until}"
    missing = [one.rank for one in answer.ranks if one.line is None]
    if missing:
        yield f"no line at all: rank {ranges(missing)}"
    spoke = [one for one in answer.ranks if one.line is not None]
    if spoke:
        table = _grid()
        for name, justify in (
            ("rank", "right"),
            ("silent for", "right"),
            ("last line, UTC", "left"),
            ("event", "left"),
        ):
            table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
        table.add_column("message", overflow="fold")
        for one in spoke[:MOST]:
            line = one.line
            assert line is not None
            cells = (one.rank, lasting(one.seconds or 0.0), moment(line.time), line.event, said(line, _LONGEST))
            table.add_row(*(Text(visible(cell)) for cell in cells))
        yield table
        if len(spoke) > MOST:
            yield f"and {counted(len(spoke) - MOST, 'rank')} silent for less long"


def ranges(ranks: Sequence[str]) -> str:
    """Write ranks, neighbours as a range.

    >>> ranges(["3", "4", "5", "9", "a/1"])
    '3-5, 9, a/1'
    """
    parts: list[list[str]] = []
    for rank in sorted(ranks, key=natural):
        last = parts[-1][-1] if parts else ""
        if last.isdecimal() and rank.isdecimal() and int(rank) == int(last) + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    return ", ".join(part[0] if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _summary(answer: Summary) -> Iterator[Table | str]:
    size = f", {quantity(float(answer.size), 'bytes')} in {counted(answer.files, 'file')}" if answer.files else ""
    span = f": {moment(answer.span.first)} to {moment(answer.span.last)} UTC" if answer.span else ""
    yield f"{answer.where}{span}{size}"
    yield ""
    yield from _silence(answer.silence)
    yield ""
    yield from _errors(answer.errors, 10)
    if answer.levels.found:
        yield ""
        yield from map(wrong, answer.levels.found[:FEW])
        if len(answer.levels.found) > FEW:
            yield f"and {counted(len(answer.levels.found) - FEW, 'more misuse')} of levels, see --levels"


def misled(answer: Levels) -> Iterator[str]:
    """Write which levels mislead, the worst first."""
    seen = ", ".join(f"{counted(lines, f'{level} line')}" for level, lines in answer.lines.items())
    yield f"{seen}, {counted(len(answer.found), 'misuse')} of levels" if answer.found else f"{seen}, no level misleads"
    for position, one in enumerate(answer.found[:MOST], 1):
        yield f"{position}. {wrong(one)}"
        yield f"   first, {moment(one.line.time)} UTC{_whose(one.line)}: {visible(said(one.line, _LONGEST))}"
    if len(answer.found) > MOST:
        yield f"and {len(answer.found) - MOST:,} more"
    if answer.lost:
        yield f"{counted(answer.lost, 'line')} of rare shapes were counted only, so there may be more"


def wrong(one: Misuse) -> str:
    """Write in one sentence which level misleads."""
    name = {"flood": "flood of ERROR", "endless": "WARN without end", "harmless": "ERROR that was none"}.get(one.kind)
    whose = f" of {counted(len(one.ranks), 'rank')} ({ranges(one.ranks[:8])}{', ...' if len(one.ranks) > 8 else ''})"
    lines = f"{counted(one.lines, 'line')}{whose if one.ranks else ''}"
    if one.kind == "level":
        return visible(f"{one.event} at {one.level}, {lines}: {one.why}")
    return visible(f'{name}, "{one.shape[:SHAPE]}", {lines}: {one.why}')


def _whose(line: Line) -> str:
    return f", rank {visible(line.rank)}" if line.rank is not None else ""


def accused(answer: Suspects) -> Iterator[str]:
    """Write where it may have begun, the likeliest first."""
    if not answer.found:
        yield f"inconclusive: nothing says where it began, {answer.spoke:,} of {counted(answer.of, 'rank')} left lines"
    for position, one in enumerate(answer.found[:SUSPECTED], 1):
        whose = f"rank {ranges(one.ranks)}" if one.ranks else one.place or "nobody that is named"
        yield f"{position}. {visible(whose)}{f' ({visible(one.place)})' if one.ranks and one.place else ''}: {one.why}"
        for name, line in (("said", one.first), ("last line", one.last)):
            if line is not None and not (name == "last line" and line == one.first):
                yield f"   {name}, {moment(line.time)} UTC: {visible(said(line, _LONGEST))}"
    if len(answer.found) > SUSPECTED:
        yield f"and {counted(len(answer.found) - SUSPECTED, 'more place')}"
    if answer.found:
        yield f"{answer.spoke:,} of {counted(answer.of, 'rank')} left lines, {counted(answer.echoes, 'line')} only echo it"
    yield from answer.said


def _grid() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)


def said(line: Line, most: int) -> str:
    """Return what a line says, in so many letters: its message without the time that it begins with, or what stands
    beside it where it has none.
    """
    text = line.message or (msgspec.json.encode(line.extra, enc_hook=str).decode() if line.extra else "")
    text = text if line.time is None else _bare(text)
    return text[:most] + ("..." if len(text) > most else "")


def _bare(text: str) -> str:
    """Return a text without the time that it begins with.

    >>> _bare("2026-03-01 14:23:25,123 [INFO] step 3")
    '[INFO] step 3'
    """
    match = _STAMP.match(text)
    return text[match.end() :] if match is not None and match.end() < len(text) else text


def day(time: float | None) -> str:
    """Write the day of a time."""
    return "" if time is None else datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d")


def clock(time: float | None) -> str:
    """Write the time of a day, to the millisecond.

    >>> clock(1780000000.5)
    '20:26:40.500'
    """
    return "-" if time is None else datetime.fromtimestamp(round(time, 3), UTC).strftime("%H:%M:%S.%f")[:-3]


def moment(time: float | None) -> str:
    """Write a day and a time."""
    return "-" if time is None else f"{day(round(time, 3))} {clock(time)}"
