"""Ranks over time, coloured by event, as SVG; colours are classes of the page, and every mark tells in words what it is."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from rca.loglines import LEVELS
from rca.logs.answers import Count, Counts
from rca.logs.text import clock, moment
from rca.plain import counted, natural, visible

MOST_ROWS = 128
"""More ranks than these are gathered in bands of neighbours, apart from those that stand out."""
FEWEST = 24
"""Columns that a picture has at the least."""
_WIDE, _LEFT, _RIGHT, _TOP, _TICKS, _LETTERS = 960.0, 84.0, 12.0, 6.0, 24.0, 11.0
_CLASSES: Mapping[str, tuple[str, ...]] = {
    "ERROR": ("error1", "error2", "error3"), "WARN": ("warn1", "warn2"), "INFO": ("info1", "info2", "info3", "info4"),
}  # fmt: skip
_STEPS = (0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400)


class Kind(NamedTuple):
    """An event at a level: what a colour stands for."""

    event: str
    level: str

    @property
    def text(self) -> str:
        """Name it."""
        return visible(f"{self.event or 'line without event'}{f' ({self.level})' if self.level else ''}")


class Key(NamedTuple):
    """A colour, by the name of its class, and what it stands for."""

    name: str
    text: str


class Row(NamedTuple):
    """A row of the picture: whose it is, and the lines of each kind by column."""

    name: str
    cells: Mapping[int, Counter[Kind]]


class Drawing(NamedTuple):
    """A picture, the words that go with it, and its colours."""

    svg: str
    text: str
    legend: Sequence[Key]


def draw(counts: Counts, absent: Sequence[str] = ()) -> Drawing | None:
    """Draw the ranks of some counts over time, None where no line has a time; `absent` ranks have a row all the same."""
    timed = [row for row in counts.rows if row.time is not None]
    if not timed:
        return None
    first = min(row.time or 0.0 for row in timed)
    last = max(row.time or 0.0 for row in timed) + counts.width
    colours = _colours(timed)
    width = counts.width * _usual_gap(timed, counts.width, round((last - first) / counts.width))
    last = first + -(-(last - first) // width) * width
    rows = _rows(timed, first, width)
    rows += [Row(rank, {}) for rank in absent[:MOST_ROWS] if rank not in {row.name for row in rows}]
    rows.sort(key=lambda row: natural(row.name))
    high = 14 if len(rows) <= 32 else 9
    height = _TOP + len(rows) * high + _TICKS
    scale = (_WIDE - _LEFT - _RIGHT) / (last - first)
    parts = [*_clocks(first, last, scale, height), *_names(rows, high)]
    for number, row in enumerate(rows):
        parts += _marks(row, colours, (_TOP + number * high, high), (first, width, scale))
    ranks = {row.rank for row in timed}
    text = (
        f"{counted(len(ranks), 'rank')} from {moment(first)} to {moment(last)}. A mark is a stretch of "
        f"{width:g} s in which a rank wrote, coloured by the gravest event in it, and among those by the rarest."
    )
    about = f"{text} {'; '.join(sorted(key.text for key in _legend(colours)))}"
    svg = (
        f'<svg class="map" viewBox="0 0 {_WIDE:.0f} {height:.0f}" width="{_WIDE:.0f}" height="{height:.0f}" role="img" '
        f'aria-label="{escape(about)}">{"".join(parts)}</svg>'
    )
    return Drawing(svg, text, _legend(colours))


def _usual_gap(counts: Sequence[Count], width: float, columns: int) -> int:
    """Return how many stretches of time lie between two in which a rank speaks, as a rule; a picture has no such holes."""
    times: dict[str | None, set[float]] = {}
    for one in counts:
        times.setdefault(one.rank, set()).add(one.time or 0.0)
    gaps = [round((after - before) / width) for own in times.values() for before, after in pairwise(sorted(own))]
    return max(min(int(median(gaps)), columns // FEWEST), 1) if gaps else 1


def _colours(rows: Sequence[Count]) -> dict[Kind, str]:
    """Give the commonest events of each level a colour of their own, the rarest first in the order of weight."""
    total = Counter[Kind]()
    for row in rows:
        total[Kind(row.event, row.level)] += row.lines
    colours: dict[Kind, str] = {}
    for level, names in _CLASSES.items():
        own = [
            kind
            for kind, _ in total.most_common()
            if (kind.level == level or (level == "INFO" and kind.level not in _CLASSES))
        ]
        rest = "other" if level == "INFO" else names[-1]
        colours |= {kind: names[at] if at < len(names) else rest for at, kind in enumerate(own)}
    weight = {kind: (LEVELS.index(kind.level) if kind.level in LEVELS else -1, -total[kind]) for kind in total}
    return {kind: colours[kind] for kind in sorted(total, key=lambda kind: (weight[kind], kind), reverse=True)}


def _legend(colours: Mapping[Kind, str]) -> list[Key]:
    """Return what each colour stands for; several events share one where there are many."""
    shared: dict[str, list[str]] = {}
    for kind, name in colours.items():
        shared.setdefault(name, []).append(kind.text)
    return [
        Key(name, ", ".join(texts[:4]) + (f" and {len(texts) - 4} more" if len(texts) > 4 else ""))
        for name, texts in shared.items()
    ]


def _rows(counts: Sequence[Count], first: float, width: float) -> list[Row]:
    """Return a row for each rank; of many ranks, one for each that stands out, and one for each band of the others."""
    cells: dict[str, dict[int, Counter[Kind]]] = {}
    for one in counts:
        column = int(((one.time or 0.0) - first) / width + 1e-6)
        cells.setdefault(one.rank or "-", {}).setdefault(column, Counter())[Kind(one.event, one.level)] += one.lines
    ranks = sorted(cells, key=natural)
    odd = set(ranks if len(ranks) <= MOST_ROWS else _odd(cells))
    rows = [Row(rank, cells[rank]) for rank in ranks if rank in odd]
    others = [rank for rank in ranks if rank not in odd]
    size = -(-len(others) // (MOST_ROWS // 2)) or 1
    for at in range(0, len(others), size):
        band = others[at : at + size]
        joined: dict[int, Counter[Kind]] = {}
        for rank in band:
            for column, kinds in cells[rank].items():
                joined.setdefault(column, Counter()).update(kinds)
        rows.append(Row(band[0] if len(band) == 1 else f"{band[0]}–{band[-1]}", joined))
    return rows


def _odd(cells: Mapping[str, Mapping[int, Counter[Kind]]]) -> list[str]:
    """Return the ranks that stand out: an event that few have, or an end before that of the others."""
    holders = Counter(kind for row in cells.values() for kind in {kind for kinds in row.values() for kind in kinds})
    ends = {rank: max(row) for rank, row in cells.items()}
    usual = sorted(ends.values())[len(ends) // 4]
    rarity = {rank: min(holders[kind] for kinds in row.values() for kind in kinds) for rank, row in cells.items()}
    few = max(len(cells) // 20, 1)
    odd = [rank for rank in cells if rarity[rank] <= few or ends[rank] < usual - 1]
    return sorted(odd, key=lambda rank: (ends[rank], rarity[rank], natural(rank)))[: MOST_ROWS // 2]


def _marks(
    row: Row, colours: Mapping[Kind, str], place: tuple[float, int], time: tuple[float, float, float]
) -> Iterator[str]:
    """Draw the marks of a row; neighbours that tell the same are one."""
    y, high = place
    first, width, scale = time
    shown = {column: next(kind for kind in colours if kind in kinds) for column, kinds in row.cells.items()}
    for begin, end, kind in _runs(sorted(shown.items())) if shown else ():
        lines = sum(row.cells[column][kind] for column in range(begin, end + 1))
        since, until = first + begin * width, first + (end + 1) * width
        note = f"rank {row.name}, {clock(since)} to {clock(until)}: {kind.text}, {counted(lines, 'line')}"
        size = f'x="{_LEFT + begin * width * scale:.1f}" y="{y:.0f}" width="{max((end + 1 - begin) * width * scale, 1.5):.1f}" height="{high - 1}"'
        yield f'<rect class="{colours[kind]}" {size}><title>{escape(visible(note))}</title></rect>'


def _runs(shown: Sequence[tuple[int, Kind]]) -> Iterator[tuple[int, int, Kind]]:
    """Join neighbours that are alike: first column, last column and kind of each run.

    >>> one = Kind("A", "INFO")
    >>> [(begin, end) for begin, end, _ in _runs([(0, one), (1, one), (3, one)])]
    [(0, 1), (3, 3)]
    """
    begin = shown[0][0]
    for (column, kind), (after, other) in pairwise(shown):
        if after != column + 1 or other != kind:
            yield begin, column, kind
            begin = after
    yield begin, shown[-1][0], shown[-1][1]


def _clocks(first: float, last: float, scale: float, height: float) -> Iterator[str]:
    step = next((one for one in _STEPS if (last - first) / one <= 8), last - first)
    at = -(-first // step) * step
    while at <= last - 0.03 * (last - first):
        x = _LEFT + (at - first) * scale
        yield f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{height - _TICKS:.0f}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{height - 8:.0f}" text-anchor="middle">{clock(at)[: 8 if step >= 1 else 10]}</text>'
        at += step


def _names(rows: Sequence[Row], high: int) -> Iterator[str]:
    """Write whose the rows are, single ranks before bands, as far as there is room."""
    written: list[float] = []
    for number in sorted(range(len(rows)), key=lambda at: (not rows[at].name.isdecimal(), at)):
        y = _TOP + (number + 1) * high - (4 if high > 9 else 1)
        if all(abs(y - other) >= _LETTERS for other in written):
            written.append(y)
            yield f'<text class="tick" x="{_LEFT - 6:.0f}" y="{y:.0f}" text-anchor="end">{escape(_short(rows[number].name))}</text>'


def _short(name: str) -> str:
    shown = visible(name)
    return shown if len(shown) <= 11 else f"…{shown[-10:]}"
