"""What the stores that hold all of their series share: finding the series of a selector, and putting blocks together."""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from rca.sources.series import Block, Matcher


def matching(labels: Sequence[Mapping[str, str]], matchers: Sequence[Matcher]) -> list[int]:
    """Return which label sets fulfil all matchers; a label that is not there counts as empty.

    >>> matching([{"gpu": "0"}, {"gpu": "1"}, {}], [Matcher("gpu", "!=", ""), Matcher("gpu", "=~", "[1-9]")])
    [1]
    """
    rows = list(range(len(labels)))
    for label, op, value in matchers:
        values = {labels[row].get(label, "") for row in rows}
        if op in ("=", "!="):
            hit = {other for other in values if other == value}
        else:
            hit = {other for other in values if re.fullmatch(value, other)}
        wanted = hit if op in ("=", "=~") else values - hit
        rows = [row for row in rows if labels[row].get(label, "") in wanted]
    return rows


def nothing() -> Block:
    """Return a block without series."""
    return Block([], np.zeros(1, dtype=np.int64), np.zeros(0), np.zeros(0))


def appended(blocks: Sequence[Block]) -> Block:
    """Return one block of blocks that have no series in common, such as those of different metrics."""
    if len(blocks) == 1:
        return blocks[0]
    blocks = [nothing(), *blocks]
    offsets = np.concatenate(([0], np.cumsum(np.concatenate([np.diff(block.offsets) for block in blocks]))))
    return Block(
        [label for block in blocks for label in block.labels],
        offsets.astype(np.int64),
        np.concatenate([block.times for block in blocks]),
        np.concatenate([block.values for block in blocks]),
    )
