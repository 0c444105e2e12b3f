"""Series that fulfil an exported rule, and series that do not: worked out from the rule itself.

Each signal that a rule reads gets a value before, and one from `CHANGE` on. What stands behind `unless` gets no series.
"""

import math
from dataclasses import dataclass
from typing import Any as Anything

from rca.detectors import (
    Above,
    AboveBaseline,
    All,
    Any,
    Below,
    BelowBaseline,
    Condition,
    Leaf,
    Not,
    OneOf,
    Rising,
    Set,
    Unless,
    number,
)
from rca.export.conditions import Writer
from rca.export.expressions import Catalogue, InexpressibleError
from rca.library import BUSY, Rule, seconds

CHANGE, MEMBERS = 100, 4
"""The minute of the change, and how many members a coarser entity gets."""


@dataclass
class Wanted:
    """What a signal must read for a rule to hold: between limits, and of another size than before."""

    low: float = -math.inf
    high: float = math.inf
    before: Anything = None
    exactly: float | None = None

    def after(self) -> float:
        if self.exactly is not None:
            return self.exactly
        if math.isfinite(self.low) and math.isfinite(self.high):
            return (self.low + self.high) / 2
        if math.isfinite(self.low):
            return self.low + (abs(self.low) or 1.0) * 0.2
        return self.high - (abs(self.high) or 1.0) * 0.5 if math.isfinite(self.high) else 0.05

    def well(self) -> float:
        """Return what it reads on the entity that nothing ails."""
        if self.before is not None:
            return float(self.before(self.after()))
        if self.exactly is not None:
            return 0.0
        return (
            self.low - max(1.0, abs(self.low)) * 0.5
            if math.isfinite(self.low)
            else self.high + max(1.0, abs(self.high))
        )


def wanted(catalogue: Catalogue, rule: Rule) -> dict[str, Wanted]:
    """Return what each signal of a rule must read for its alert to fire."""
    found: dict[str, Wanted] = {}

    def visit(condition: Condition, true: bool) -> None:
        match condition:
            case Not() | Unless() if not true or isinstance(condition, Not):
                visit(condition.of, not true)
            case Unless():
                return
            case All() | Any() if isinstance(condition, All) == true:
                for part in condition.of:
                    visit(part, true)
            case All() | Any():
                visit(_first(catalogue, rule, condition.of, true), true)
            case _:
                _leaf(found, condition, true)

    visit(rule.when, True)
    for name in [name for name in found if catalogue.library.signals[name].entity == "gpu"]:
        if name != BUSY:
            found.setdefault(BUSY, Wanted(exactly=90.0, before=lambda _: 90.0))
    return found


def _first(catalogue: Catalogue, rule: Rule, parts: tuple[Condition, ...], true: bool) -> Condition:
    """Return the first alternative that can be exported."""
    for part in parts:
        writer = Writer(catalogue, rule)
        try:
            vector = writer.true(part) if true else writer.false(part)
        except InexpressibleError:
            continue
        if "group_left" not in vector.text:
            return part
    raise AssertionError(f"{rule.id}: no alternative can be exported")


def _leaf(found: dict[str, Wanted], leaf: Leaf, true: bool) -> None:
    one = found.setdefault(leaf.signal, Wanted())
    match leaf:
        case Above() | Below():
            limit = number(leaf.limit)
            if limit is None:
                found[str(leaf.limit)] = Wanted(exactly=50.0, before=lambda _: 50.0)
                limit = 50.0
            if isinstance(leaf, Above) == true:
                one.low = max(one.low, limit)
            else:
                one.high = min(one.high, limit)
        case AboveBaseline() if true:
            by = number(leaf.by) or 0.0
            one.before = lambda after: after / (1 + by) / 1.3
        case BelowBaseline() if true:
            by = number(leaf.by) or 0.0
            one.before = lambda after: after / (1 - by) * 1.3
        case AboveBaseline() | BelowBaseline():
            one.before = lambda after: after
        case Rising():
            by = number(leaf.by) or 0.0
            one.before = lambda after: after - 2 * by
        case Set():
            one.exactly = float(1 << BITS.index(leaf.bits[0]))
        case OneOf():
            one.exactly, one.before = leaf.codes[0], lambda _: 0.0
        case _:
            raise AssertionError(f"no series for {leaf}")


BITS = (
    "gpu_idle", "clocks_setting", "power_cap", "hw_slowdown", "sync_boost", "sw_thermal", "hw_thermal",
    "hw_power_brake", "display_clocks",
)  # fmt: skip


def series(catalogue: Catalogue, rule: Rule, who: str, ill: bool) -> list[dict[str, str]]:
    """Return the recorded series of an entity of a rule, as promtool's tests take them."""
    kinds = catalogue.library.entities.kinds
    own = kinds[rule.entity].labels
    length = CHANGE + int(seconds(rule.hold) / 60) + 10
    lines: dict[str, str] = {}
    for name, one in wanted(catalogue, rule).items():
        labels = catalogue.recorded(name).labels
        before, after = one.well(), one.after()
        if ill and one.before is None:
            before = after
        values = f"{before:.12g}x{CHANGE - 1} {after if ill else before:.12g}x{length - CHANGE}"
        for member in range(1 if set(labels) <= set(own) else MEMBERS):
            shown = {theirs: who if ours in own else f"{who}-{member}" for ours, theirs in labels.items()}
            text = ", ".join(f'{key}="{value}"' for key, value in shown.items())
            lines[f"rca:{name}{{{text}}}"] = values
    return [{"series": key, "values": values} for key, values in lines.items()]
