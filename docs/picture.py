"""The causal graph as a picture: causes at the left, layer by layer, what they bring about in columns to the right.

Causes with the same effects stand in one box, so that a box has one bundle of lines. Symptoms stand in the column of
their layer, one column further for each symptom of the same layer that leads to them. Everything follows from the rules
alone, in whole pixels, so the same rules give the same bytes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

from rca.library import Library, Rule
from rca.model import LAYERS

COLOURS = {"physical": "#b3261e", "resource": "#9a6700", "communication": "#0b57d0", "training": "#146c2e"}
FILLS = {"physical": "#fdeceb", "resource": "#fdf3dc", "communication": "#e8f0fe", "training": "#e6f4ea"}
CLASSES = "#5f6368"
ORDER: dict[str, int] = {layer: number for number, layer in enumerate(LAYERS)}
LINE, LETTER, PAD, GAP = 17, 15, 8, 12
"""Pixels; a letter is so many half pixels wide."""
WIDE = 84
"""Pixels between columns, for the lines."""
TOP, LEFT = 64, 24
SWEEPS = 8

Edge = tuple[str, str, bool]


@dataclass
class Box:
    """Some rules in one box, or a corner of a line that passes a column (no rules): its column and its place there."""

    key: str
    column: int
    layer: str
    rows: list[str] = field(default_factory=list)
    y: int = 0

    @property
    def height(self) -> int:
        """Return the height in pixels."""
        return LINE * len(self.rows) + (PAD if self.rows else 4)

    @property
    def middle(self) -> int:
        """Return the height at which lines meet the box."""
        return self.y + self.height // 2


def svg(library: Library) -> str:
    """Draw all rules of a library."""
    boxes, edges, columns = _boxes(library)
    lines = _routed(boxes, edges)
    stacks = _ordered(boxes, lines, len(columns))
    for stack in stacks:
        _placed(stack, max(_tall(one) for one in stacks))
    return _drawn(boxes, lines, stacks, columns)


def _boxes(library: Library) -> tuple[dict[str, Box], list[Edge], list[str]]:
    """Return the boxes, the edges between them (origin, end, whether it accuses), and the layer of each column."""
    symptoms = [rule for rule in library.rules.values() if rule.role == "symptom"]
    depth = _depths({rule.id: rule for rule in symptoms})
    columns = [
        "",
        *(f"{layer}" for layer in LAYERS for _ in range(max(_depths_of(symptoms, layer, depth), default=-1) + 1)),
    ]
    first = {layer: columns.index(layer) for layer in LAYERS if layer in columns}
    boxes = {rule.id: Box(rule.id, first[rule.layer] + depth[rule.id], rule.layer, [rule.id]) for rule in symptoms}
    edges = {(rule.id, edge.effect, edge.accuses) for rule in symptoms for edge in rule.causes}
    groups: dict[tuple[str, tuple[tuple[str, bool], ...]], Box] = {}
    for layer in LAYERS:
        for rule in sorted(library.rules.values(), key=lambda one: one.id):
            if rule.role == "root" and rule.layer == layer:
                ends = tuple(sorted({(edge.effect, edge.accuses) for edge in rule.causes}))
                box = groups.setdefault((layer, ends), Box(f"{layer} {rule.id}", 0, layer))
                box.rows.append(rule.id)
                edges |= {(box.key, *end) for end in ends}
    boxes |= {box.key: box for box in groups.values()}
    classes = sorted({found for rule in symptoms for found in (rule.symptom, rule.onset) if found})
    boxes |= {f"= {name}": Box(f"= {name}", len(columns), "", [name]) for name in classes}
    edges |= {(rule.id, f"= {name}", True) for rule in symptoms for name in (rule.symptom, rule.onset) if name}
    return boxes, sorted(edge for edge in edges if edge[1] in boxes), [*columns, "job"]


def _depths_of(rules: Sequence[Rule], layer: str, depth: Mapping[str, int]) -> list[int]:
    return [depth[rule.id] for rule in rules if rule.layer == layer]


def _depths(rules: Mapping[str, Rule]) -> dict[str, int]:
    """Return for each symptom how many symptoms of its own layer lead to it in a row, along edges that accuse."""
    found: dict[str, int] = {}

    def depth(name: str, above: tuple[str, ...]) -> int:
        if name not in found:
            before = [
                other.id
                for other in rules.values()
                if other.layer == rules[name].layer and other.id not in above
                and any(edge.effect == name and edge.accuses for edge in other.causes)
            ]  # fmt: skip
            found[name] = max((depth(other, (*above, name)) + 1 for other in before), default=0)
        return found[name]

    for name in sorted(rules):
        depth(name, (name,))
    return found


def _routed(boxes: dict[str, Box], edges: Sequence[Edge]) -> list[tuple[list[str], bool]]:
    """Return the path of each edge through a corner in each column that it passes; corners become boxes."""
    lines = []
    for origin, end, accuses in edges:
        path, layer = [origin], boxes[origin].layer
        for column in range(boxes[origin].column + 1, boxes[end].column):
            corner = f"{column} {end} {layer} {accuses}"
            boxes.setdefault(corner, Box(corner, column, layer))
            path.append(corner)
        lines.append(([*path, end], accuses))
    return lines


def _ordered(boxes: Mapping[str, Box], lines: Sequence[tuple[list[str], bool]], count: int) -> list[list[Box]]:
    """Put the boxes of each column into an order with few crossings: each near the middle of those that it meets.

    The first column keeps its layers together.
    """
    stacks: list[list[Box]] = [[] for _ in range(count)]
    for box in boxes.values():
        stacks[box.column].append(box)
    meets: dict[str, set[str]] = {key: set() for key in boxes}
    for path, _ in lines:
        for one, other in pairwise(path):
            if abs(boxes[one].column - boxes[other].column) == 1:
                meets[one].add(other)
                meets[other].add(one)
    for sweep in range(SWEEPS):
        for stack in stacks if sweep % 2 == 0 else reversed(stacks):
            _placed(stack, 0)
            wanted = {
                box.key: sum(boxes[one].middle for one in meets[box.key]) / len(meets[box.key])
                if meets[box.key]
                else box.middle
                for box in stack
            }
            stack.sort(key=lambda box: (ORDER[box.layer] if box.column == 0 else 0, round(wanted[box.key]), box.key))
            _placed(stack, max(_tall(one) for one in stacks))
    return stacks


def _tall(stack: Sequence[Box]) -> int:
    return sum(box.height + GAP for box in stack)


def _placed(stack: Sequence[Box], height: int) -> None:
    """Stack boxes, spread over the height."""
    spare = max(height - _tall(stack), 0) // (len(stack) + 1)
    y = TOP + spare
    for box in stack:
        box.y = y
        y += box.height + GAP + spare


def _drawn(
    boxes: Mapping[str, Box],
    lines: Sequence[tuple[list[str], bool]],
    stacks: Sequence[Sequence[Box]],
    columns: Sequence[str],
) -> str:
    """Write the picture."""
    titles = ["causes", *columns[1:-1], "class of the job"]
    names = [[title, *(row for box in stack for row in box.rows)] for title, stack in zip(titles, stacks, strict=True)]
    widths = [max(map(len, column)) * LETTER // 2 + 2 * PAD for column in names]
    lefts = [LEFT + sum(widths[:column]) + WIDE * column for column in range(len(stacks))]
    across = lefts[-1] + widths[-1] + LEFT
    high = TOP + max(_tall(stack) for stack in stacks) + 4 * GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{across}" height="{high}" viewBox="0 0 {across} {high}" '
        'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="12">'
    )
    body = [f'<rect width="{across}" height="{high}" fill="#ffffff"/>']
    body += [_curve(path, accuses, boxes, (lefts, widths)) for path, accuses in lines]
    for column, stack in enumerate(stacks):
        colour = COLOURS.get(columns[column], CLASSES)
        body.append(f'<text x="{lefts[column]}" y="30" font-weight="bold" fill="{colour}">{titles[column]}</text>')
        for box in stack:
            body += _shown(box, lefts[column], widths[column])
    body += _legend(high - 16)
    return "\n".join([head, "<title>What brings about what</title>", *body, "</svg>"]) + "\n"


def _shown(box: Box, left: int, width: int) -> Iterator[str]:
    """Write a box with its names; a corner is not shown."""
    if not box.rows:
        return
    fill, colour = FILLS.get(box.layer, "#f1f3f4"), COLOURS.get(box.layer, CLASSES)
    yield (
        f'<rect x="{left}" y="{box.y}" width="{width}" height="{box.height}" rx="4" fill="{fill}" stroke="{colour}"/>'
    )
    for number, row in enumerate(box.rows):
        y = box.y + PAD // 2 + LINE * number + 13
        yield f'<text x="{left + PAD}" y="{y}" fill="#202124">{escape(row)}</text>'


def _curve(
    path: Sequence[str], accuses: bool, boxes: Mapping[str, Box], across: tuple[Sequence[int], Sequence[int]]
) -> str:
    """Write a line; one that only explains is dashed."""
    lefts, widths = across
    first, last = boxes[path[0]], boxes[path[-1]]
    start = lefts[first.column] + widths[first.column]
    steps = [f"M{start} {first.middle}"]
    x, y = start, first.middle
    for box in [boxes[key] for key in path[1:]]:
        left = lefts[box.column]
        ahead = left > x
        bend = WIDE // 2 if ahead else 40
        end = left if ahead else left + widths[box.column]
        steps.append(f"C{x + bend} {y} {end - bend if ahead else end + bend} {box.middle} {end} {box.middle}")
        x, y = end, box.middle
        if box is not last:
            x = left + widths[box.column]
            steps.append(f"L{x} {y}")
    colour = COLOURS.get(first.layer, CLASSES) if accuses else CLASSES
    shade = 'stroke-opacity="0.6"' if accuses else 'stroke-opacity="0.4" stroke-dasharray="4 4"'
    return f'<path d="{" ".join(steps)}" fill="none" stroke="{colour}" {shade}/>'


def _legend(y: int) -> Iterator[str]:
    """Write what colours and dashes mean."""
    x = LEFT
    for layer in LAYERS:
        yield f'<rect x="{x}" y="{y - 11}" width="12" height="12" rx="2" fill="{FILLS[layer]}" stroke="{COLOURS[layer]}"/>'
        yield f'<text x="{x + 18}" y="{y}" fill="{COLOURS[layer]}">{layer}</text>'
        x += 18 + LETTER * len(layer) // 2 + 24
    yield f'<path d="M{x} {y - 5} L{x + 40} {y - 5}" stroke="{CLASSES}" stroke-dasharray="4 4"/>'
    yield f'<text x="{x + 48}" y="{y}" fill="{CLASSES}">explains, and never speaks for a cause</text>'
