"""Drawings for pages: charts, the graph of findings, maps and a timeline as SVG that needs no script.

Colours are classes of the page's style sheet, so that a drawing is right in light and in dark; nothing is told by
colour alone. Every text goes through `escape`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rca.model import LAYERS, Floats
from rca.picture import Chart, Map
from rca.plain import amount, counted, quantity, stamp
from rca.runs import Plot

WIDTH, HEIGHT = 720, 190
LEFT, RIGHT, TOP, BOTTOM = 84, 22, 10, 26
LETTER = 7.0
"""Pixels that a letter takes, on average."""


class Node(NamedTuple):
    """A box of the graph: `kind` is cause, link or rejected; `note` is told on hover."""

    key: str
    layer: str
    title: str
    detail: str
    note: str
    kind: str


class Bar(NamedTuple):
    """A line of a timeline: from when on, in unix seconds, something was so."""

    since: float
    layer: str
    text: str
    bold: bool


@dataclass(frozen=True)
class Span:
    """The times that drawings show, in unix seconds: from `first` to `last`, the window from `start` on, and the
    `onset` of a cause where there is one.
    """

    first: float
    start: float
    last: float
    onset: float | None = None

    def x(self, time: float) -> float:
        """Return where a time lies, in pixels."""
        share = (time - self.first) / max(self.last - self.first, 1.0)
        return LEFT + min(max(share, 0.0), 1.0) * (WIDTH - LEFT - RIGHT)


def chart(shown: Chart, span: Span) -> str:
    """Draw a series, the band of its peers behind it."""
    low, high = _limits(shown)
    y = _Scale(low, high)
    wide, tall = span.x(span.last) - span.x(span.start), HEIGHT - TOP - BOTTOM
    parts = [f'<rect class="window" x="{span.x(span.start):.1f}" y="{TOP}" width="{wide:.1f}" height="{tall}"/>']
    for tick in _ticks(low, high):
        at = y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>')
        parts.append(_text(LEFT - 6, at + 4, _short(quantity(tick, shown.unit)), "tick", "end"))
    parts += _clocks(span)
    if shown.band is not None:
        parts += _area(shown.times, shown.band.low, shown.band.high, span, y)
        parts += _line(shown.times, shown.band.middle, span, y, "usual")
    if shown.reference is not None and low <= shown.reference <= high:
        at = y(shown.reference)
        parts.append(f'<line class="reference" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>')
    parts += _line(shown.times, shown.values, span, y, "own")
    if span.onset is not None:
        at = span.x(span.onset)
        parts.append(f'<line class="onset" x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HEIGHT - BOTTOM}"/>')
    return _svg((WIDTH, HEIGHT), f"{shown.signal} of {shown.whose}. {shown.text}", parts, "chart", natural=False)


def _limits(shown: Chart) -> tuple[float, float]:
    """Return the lowest and highest number that a chart must hold, with some room; what is far off is cut."""
    lines = [shown.values] if shown.band is None else [shown.values, shown.band.low, shown.band.high]
    every = np.concatenate(lines)
    known = every[np.isfinite(every)]
    numbers = [*known.tolist(), *([shown.reference] if shown.reference is not None else [])]
    low, high = min(numbers), max(numbers)
    room = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    return low - room if low < 0 or low > room else 0.0, high + room


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float

    def __call__(self, value: float) -> float:
        """Return the height of a value, in pixels from the top."""
        share = (value - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - min(max(share, 0.0), 1.0) * (HEIGHT - TOP - BOTTOM)


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers between two.

    >>> _ticks(1100.0, 2050.0)
    [1200.0, 1400.0, 1600.0, 1800.0, 2000.0]
    """
    raw = (high - low) / 5.0
    power = 10.0 ** np.floor(np.log10(raw))
    step = float(next(power * factor for factor in (1.0, 2.0, 5.0, 10.0) if power * factor >= raw))
    first = int(np.ceil(low / step))
    return [number * step for number in range(first, int(np.floor(high / step)) + 1)]


def _short(text: str) -> str:
    """Leave a long unit away: a chart's words tell it.

    >>> _short("1,200 MHz"), _short("36.5 tokens per second")
    ('1,200 MHz', '36.5')
    """
    return text if LETTER * len(text) < LEFT - 6 else text.partition(" ")[0]


def _clocks(span: Span) -> Iterator[str]:
    """Write times of day below a drawing, at round ones."""
    length = span.last - span.first
    step = next(one for one in (60, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400 * 7) if length / one <= 8)
    for time in np.arange(np.ceil(span.first / step) * step, span.last + 1.0, step):
        at = span.x(float(time))
        yield _text(at, HEIGHT - 8, stamp(float(time))[11:16], "tick", "middle")


def _line(times: Floats, values: Floats, span: Span, y: _Scale, name: str) -> list[str]:
    """Draw a series; where samples are missing it is broken."""
    drawn = []
    for run in _runs(np.isfinite(values)):
        points = [f"{span.x(float(times[at])):.1f},{y(float(values[at])):.1f}" for at in run]
        drawn.append(
            f'<polyline class="{name}" points="{" ".join(points)}"/>'
            if len(points) > 1
            else f'<circle class="{name}" cx="{points[0].split(",")[0]}" cy="{points[0].split(",")[1]}" r="1.5"/>'
        )
    return drawn


def _area(times: Floats, low: Floats, high: Floats, span: Span, y: _Scale) -> list[str]:
    drawn = []
    for run in _runs(np.isfinite(low) & np.isfinite(high)):
        there = [f"{span.x(float(times[at])):.1f},{y(float(high[at])):.1f}" for at in run]
        back = [f"{span.x(float(times[at])):.1f},{y(float(low[at])):.1f}" for at in reversed(run)]
        drawn.append(f'<polygon class="band" points="{" ".join(there + back)}"/>')
    return drawn


def _runs(known: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> list[range]:
    """Return the stretches of columns that are known.

    >>> _runs(np.array([True, True, False, True]))
    [range(0, 2), range(3, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(np.int8)))
    return [range(int(begin), int(end)) for begin, end in zip(edges[0::2], edges[1::2], strict=True)]


def curves(plot: Plot) -> str:
    """Draw runs over what they have done, the present one bold; earlier ones are numbered at their ends.

    What is far off most of the curves, as a loss is at first, is cut.
    """
    every = np.concatenate([one.values for one in plot.curves])
    low, high = (float(one) for one in np.percentile(every, (1.0, 97.0)))
    room = 0.1 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = low - room if low < 0 or low > room else 0.0, high + room
    places = np.concatenate([one.places for one in plot.curves])
    span, y = Span(float(places.min()), float(places.min()), float(places.max())), _Scale(low, high)
    parts = []
    for tick in _ticks(low, high):
        at = y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>')
        parts.append(_text(LEFT - 6, at + 4, quantity(tick, plot.unit), "tick", "end"))
    parts += [_text(span.x(at), HEIGHT - 8, amount(at), "tick", "middle") for at in _ticks(span.first, span.last)]
    for number, one in reversed(list(enumerate(plot.curves))):
        drawn = "".join(_line(one.places, one.values, span, y, "usual" if number else "own"))
        parts.append(f"<g><title>{escape(one.name)}</title>{drawn}</g>")
        if number:
            x, at = span.x(float(one.places[-1])), y(float(one.values[-1]))
            parts.append(_text(x + 4, at + 4, str(number), "tick", "start"))
    return _svg((WIDTH, HEIGHT), plot.about, parts, "chart", natural=False)


BOX, TALL, ACROSS, DOWN = 196, 46, 20, 34
"""Pixels: a box of the graph, and the room between boxes beside and above each other."""
LANE_WIDE = 16
"""Pixels that a line takes where it passes a row of boxes."""
MARGIN = 118
SWEEPS = 4

Edges = Mapping[tuple[str, str], bool]
"""From where to where, and whether it is part of the chosen chain."""


class _Spot(NamedTuple):
    """Where a box is, or a line that passes (no node): its row from the bottom, and its left edge."""

    row: int
    x: float
    node: Node | None


def graph(nodes: Sequence[Node], edges: Edges) -> str:
    """Draw findings by layer, physical at the bottom; lines pass between the boxes of the rows that they cross."""
    floor = _floors(nodes, edges)
    ways = {edge: _way(edge, floor) for edge in edges}
    spots, width = _placed(nodes, floor, list(ways.values()))
    stacks = [[node for node in nodes if floor[node.key] == row] for row in range(max(floor.values()) + 1)]
    height = len(stacks) * (TALL + DOWN)
    parts = [*_bands(stacks, height, width), *_arrows(edges, ways, spots, height), *_boxes(spots, height)]
    causes = [node.title for node in nodes if node.kind == "cause"]
    about = f"Causal graph, {counted(len(nodes), 'finding')} by layer; it starts with {', '.join(causes) or 'none'}"
    return _svg((width, height), about, parts, "graph")


def _floors(nodes: Sequence[Node], edges: Edges) -> dict[str, int]:
    """Return the row of each box from the bottom: by layer, and inside one by the longest way to it."""
    layer = {node.key: node.layer for node in nodes}
    depth = dict.fromkeys(layer, 0)
    for _ in nodes:
        for origin, end in edges:
            if layer[origin] == layer[end]:
                depth[end] = min(max(depth[end], depth[origin] + 1), len(nodes))
    order = [(LAYERS.index(node.layer), depth[node.key]) for node in nodes]
    rows = {place: row for row, place in enumerate(sorted(set(order)))}
    return {node.key: rows[place] for node, place in zip(nodes, order, strict=True)}


def _way(edge: tuple[str, str], floor: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the keys along an edge with their rows: its ends, and a corner in each row between them.

    >>> _way(("a", "b"), {"a": 2, "b": 0})
    [('a', 2), ('a>b 1', 1), ('b', 0)]
    """
    origin, end = edge
    step = 1 if floor[end] >= floor[origin] else -1
    between = range(floor[origin] + step, floor[end], step)
    return [(origin, floor[origin]), *((f"{origin}>{end} {row}", row) for row in between), (end, floor[end])]


def _placed(
    nodes: Sequence[Node], floor: Mapping[str, int], ways: Sequence[Sequence[tuple[str, int]]]
) -> tuple[dict[str, _Spot], float]:
    """Order the rows so that what belongs together is near, and return the place of all, and the width."""
    known = {node.key: node for node in nodes}
    row_of = {**floor, **{key: row for way in ways for key, row in way}}
    near: dict[str, list[str]] = {key: [] for key in row_of}
    for way in ways:
        for (one, _), (other, _) in pairwise(way):
            near[one].append(other)
            near[other].append(one)
    rows = [[key for key in row_of if row_of[key] == row] for row in range(max(row_of.values()) + 1)]
    wide = {key: BOX + ACROSS if key in known else LANE_WIDE for key in row_of}
    broad = max(sum(wide[key] for key in row) for row in rows)
    at: dict[str, float] = {}
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            row.sort(key=lambda key: (key in known and known[key].kind == "rejected", _pull(near[key], at), key))
            left = (broad - sum(wide[key] for key in row)) / 2
            for key in row:
                at[key] = left + wide[key] / 2
                left += wide[key]
    shift = {key: MARGIN - (BOX / 2 if key in known else 0.0) for key in row_of}
    return {key: _Spot(row_of[key], at[key] + shift[key], known.get(key)) for key in row_of}, MARGIN + broad


def _pull(near: Sequence[str], at: Mapping[str, float]) -> float:
    """Return the mean place of what something belongs to, as far as that is placed."""
    places = [at[one] for one in near if one in at]
    return sum(places) / len(places) if places else 0.0


def _bands(stacks: Sequence[Sequence[Node]], height: float, width: float) -> Iterator[str]:
    """Draw a stripe for each layer, with its name."""
    layers = [stack[0].layer for stack in stacks]
    for layer in dict.fromkeys(layers):
        first, count = layers.index(layer), layers.count(layer)
        top = height - (first + count) * (TALL + DOWN)
        yield f'<rect class="stripe {layer}" x="0" y="{top:.0f}" width="{width}" height="{count * (TALL + DOWN)}"/>'
        yield _text(8, top + count * (TALL + DOWN) / 2 + 4, layer, "layer", "start")


def _top(spot: _Spot, height: float) -> float:
    """Return the upper edge of a row's boxes, in pixels from the top."""
    return height - (spot.row + 1) * (TALL + DOWN) + DOWN / 2


def _arrows(
    edges: Edges, ways: Mapping[tuple[str, str], list[tuple[str, int]]], spots: Mapping[str, _Spot], height: float
) -> Iterator[str]:
    """Draw the edges, those of the chosen chain over the others."""
    for (origin, end), bold in sorted(edges.items(), key=lambda item: item[1]):
        path = ""
        for (one, _), (other, _) in pairwise(ways[origin, end]):
            a, b = spots[one], spots[other]
            ax, bx = (spot.x + (BOX / 2 if spot.node else 0.0) for spot in (a, b))
            up = b.row >= a.row
            ay = _top(a, height) + (0 if up else TALL)
            by = _top(b, height) + (TALL if up else 0)
            middle = (ay + by) / 2
            path += f"M{ax:.1f} {ay:.1f}C{ax:.1f} {middle:.1f} {bx:.1f} {middle:.1f} {bx:.1f} {by:.1f}"
            path += "" if b.node else f"v{-TALL if up else TALL}"
        name = "edge chosen" if bold else "edge"
        yield f'<path class="{name}" data-from="{escape(origin)}" data-to="{escape(end)}" d="{path}"/>'


def _boxes(spots: Mapping[str, _Spot], height: float) -> Iterator[str]:
    for spot in spots.values():
        node, x, y = spot.node, spot.x, _top(spot, height)
        if node is None:
            continue
        yield f'<g class="node {node.kind} {node.layer}" data-key="{escape(node.key)}"><title>{escape(node.note)}</title>'
        yield f'<rect x="{x:.1f}" y="{y:.1f}" width="{BOX}" height="{TALL}" rx="6"/>'
        yield _text(x + BOX / 2, y + 19, _fitted(node.title, BOX - 8), "title", "middle")
        yield _text(x + BOX / 2, y + 36, _fitted(node.detail, BOX - 8), "detail", "middle")
        yield "</g>"


def _fitted(text: str, width: float) -> str:
    """Cut a text to a width.

    >>> _fitted("gpu_thermal_throttling", 60)
    'gpu_the…'
    """
    most = int(width / LETTER)
    return text if len(text) <= most else f"{text[: most - 1]}…"


SIDE, LANE, PER_BAND = 11, 16, 64
"""Pixels of a square, pixels between bands of a map, and columns of a band."""


def squares(shown: Map) -> str:
    """Draw a map: columns wrap after `PER_BAND`, alike neighbours are one rectangle, what stands out tells its number."""
    lanes = len(shown.lanes)
    bands = -(-len(shown.ticks) // PER_BAND)
    labels = 10 + LETTER * max(len(shown.ticks[at * PER_BAND]) for at in range(bands))
    tall = lanes * SIDE + LANE
    width, height = labels + min(len(shown.ticks), PER_BAND) * SIDE + 4, bands * tall
    parts = [
        _text(labels - 6, band * tall + SIDE, _fitted(shown.ticks[band * PER_BAND], labels), "tick", "end")
        for band in range(bands)
    ]
    rows: dict[tuple[int, int], list[tuple[int, int, str]]] = {}
    for one in shown.squares:
        band, column = divmod(one.column, PER_BAND)
        note = f"{one.name}: {one.reads}" if one.level else ""
        rows.setdefault((band, one.row), []).append((column, one.level, note))
    for (band, row), line in sorted(rows.items()):
        for first, last, level, note in _merged(sorted(line)):
            x, y = labels + first * SIDE, band * tall + row * SIDE
            size = f'x="{x:.0f}" y="{y}" width="{(last - first + 1) * SIDE - 1}" height="{SIDE - 1}"'
            title = f"<title>{escape(note)}</title>" if note else ""
            parts.append(
                f'<rect class="{_LEVELS[level]}" {size}>{title}</rect>'
                if title
                else f'<rect class="{_LEVELS[level]}" {size}/>'
            )
    about = f"{shown.summary} of job {shown.job}, by {shown.columns} and {shown.rows}; usual is {shown.usual}"
    return _svg((width, height), about, parts, "map")


_LEVELS = {-3: "low3", -2: "low2", -1: "low1", 0: "alike", 1: "high1", 2: "high2", 3: "high3"}


def _merged(line: Sequence[tuple[int, int, str]]) -> Iterator[tuple[int, int, int, str]]:
    """Join neighbours that are as usual: first column, last column, level and note of each rectangle.

    >>> list(_merged([(0, 0, ""), (1, 0, ""), (2, 3, "hot"), (3, 0, "")]))
    [(0, 1, 0, ''), (2, 2, 3, 'hot'), (3, 3, 0, '')]
    """
    first, last, level, note = (*line[0][:1], *line[0])
    for (before, _, _), (column, other, text) in pairwise(line):
        if level == other == 0 and column == before + 1:
            last = column
            continue
        yield first, last, level, note
        first, last, level, note = column, column, other, text
    yield first, last, level, note


def timeline(bars: Sequence[Bar], span: Span) -> str:
    """Draw when findings began, the first at the top; each lasts to the end of what is shown."""
    step, label = 22, 400
    height = len(bars) * step + BOTTOM
    wide = WIDTH + label - LEFT
    parts = []
    for number, bar in enumerate(bars):
        y = number * step + step / 2
        x = span.x(bar.since) - LEFT + label
        name = f"bar {bar.layer}{' chosen' if bar.bold else ''}"
        parts.append(f'<line class="{name}" x1="{x:.1f}" y1="{y}" x2="{wide - RIGHT}" y2="{y}"/>')
        parts.append(f'<circle class="{name}" cx="{x:.1f}" cy="{y}" r="4"/>')
        parts.append(_text(label - 8, y + 4, _fitted(bar.text, label - 12), "tick", "end"))
    parts += [f'<g transform="translate({label - LEFT} {height - HEIGHT})">{text}</g>' for text in _clocks(span)]
    return _svg((wide, height), f"When {counted(len(bars), 'finding')} began", parts, "timeline")


def _text(x: float, y: float, text: str, name: str, anchor: str) -> str:
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(size: tuple[float, float], about: str, parts: Sequence[str], name: str, *, natural: bool = True) -> str:
    """Wrap a drawing of a width and height; one of `natural` size is scrolled where it is too wide, others shrink."""
    wide, high = (f"{one:.0f}" for one in size)
    fixed = f' width="{wide}" height="{high}"' if natural else ""
    return (
        f'<svg class="{name}" viewBox="0 0 {wide} {high}"{fixed} role="img" aria-label="{escape(about)}">'
        f"{''.join(parts)}</svg>"
    )
