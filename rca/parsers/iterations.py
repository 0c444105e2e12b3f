"""Megatron-LM's iteration lines, old and new, and those of its forks; NeMo prints alike.

Sources: `training_log` of `megatron/training/training.py` from v2.5 to core 0.16, its forks by their logs, NeMo's
progress printer.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from rca.parsers.keys import name_of
from rca.parsers.moments import Moments
from rca.parsers.record import Record, number

ITERATION = re.compile(rb"iteration +(\d+) */ *(\d+) *\|")
_STAMPED = rb"[^\[]*\[(\d{4}-\d\d-\d\d \d\d:\d\d):(\d)(\d(?:\.\d+)?)\] iteration +(\d+) */ *(\d+) *\|"
"""The head of an iteration line of newer versions: minute, seconds in two parts (JSON knows no 07), and the steps."""
_SPLIT = re.compile(rb"(.*?): *(.*)", re.DOTALL)
_NEMO = b"raining epoch "
_LAYOUTS = 64
_NUMBERS = msgspec.json.Decoder(list[float])
"""Reads numbers at once that stand in a line: between commas and brackets they are JSON."""


class Layout(NamedTuple):
    """Keys in the order in which lines print them: patterns of whole lines and of what follows the steps, and fields.

    `fields` begins with the two steps; `factors` are for the numbers, by place, that are not printed in their unit.
    """

    whole: re.Pattern[bytes]
    rest: re.Pattern[bytes]
    fields: tuple[str, ...]
    factors: tuple[tuple[int, float], ...]


class Iterations:
    """Reads iteration lines: part by part, and by a pattern once lines of the same keys have been seen."""

    def __init__(self, moments: Moments) -> None:
        self._moments = moments
        self._layouts: dict[tuple[bytes, ...], Layout | None] = {}
        self._last: Layout | None = None

    def read(self, line: bytes) -> Record | None:
        """Return what an iteration line says, None for a line that is none.

        >>> line = b"iteration 7/ 10 | elapsed time per iteration (ms): 250.0 | lm loss: 2.0E+00 | num zeros: 3 |"
        >>> Iterations(Moments()).read(line).fields
        {'step': 7.0, 'target_steps': 10.0, 'step_seconds': 0.25, 'loss:lm': 2.0}
        """
        layout = self._last
        match = layout and layout.whole.match(line)
        if match and layout:
            texts = match.groups()
            numbers = _numbers(texts[1:])
            if numbers is not None:
                moment = self._moments.minute(texts[0])
                time = None if moment is None else moment + 10.0 * numbers[0] + numbers[1]
                del numbers[:2]
                return Record("step", time, None, _filled(layout, numbers))
        head = ITERATION.search(line)
        return None if head is None else self._read(line, head)

    def _read(self, line: bytes, head: re.Match[bytes]) -> Record:
        layout, start = self._last, head.start()
        match = layout and layout.rest.match(line, head.end())
        numbers = _numbers([*head.groups(), *match.groups()]) if match else None
        if numbers is not None and layout is not None:
            fields = _filled(layout, numbers)
        else:
            fields = {"step": float(head[1]), "target_steps": float(head[2])}
            self._learn(line[head.end() :], fields)
        if line.find(_NEMO, 0, start) >= 0:
            fields["by"] = "0"
            fields.pop("target_steps")
        return Record("step", self._moments.find(line, 0, start), None, fields)

    def _learn(self, rest: bytes, fields: dict[str, float | str]) -> None:
        """Read the parts of a line one by one, and prepare for the next line of the same keys."""
        pairs = [match.groups() for match in map(_SPLIT.fullmatch, rest.split(b"|")) if match]
        keys = tuple(key for key, _ in pairs)
        for key, text in pairs:
            name, value = name_of(key.decode(errors="replace")), number(text)
            if name is not None and value is not None:
                fields[name.field] = value * name.factor
        if keys not in self._layouts and len(self._layouts) < _LAYOUTS:
            self._layouts[keys] = _layout(keys)
        self._last = self._layouts.get(keys) or self._last


def _numbers(texts: Sequence[bytes]) -> list[float] | None:
    """Read numbers; None where one of them is not written as JSON writes it, such as NaN."""
    try:
        return _NUMBERS.decode(b"[" + b",".join(texts) + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _filled(layout: Layout, numbers: list[float]) -> dict[str, float | str]:
    for place, factor in layout.factors:
        numbers[place] *= factor
    return dict(zip(layout.fields, numbers, strict=False))


def _layout(keys: tuple[bytes, ...]) -> Layout | None:
    """Return the patterns for lines of these keys; None where two of them mean the same."""
    names = [name_of(key.decode(errors="replace")) for key in keys]
    known = [name for name in names if name is not None]
    fields = ("step", "target_steps", *(name.field for name in known))
    if len(set(fields)) < len(fields):
        return None
    pairs = zip(keys, names, strict=True)
    rest = b"".join(re.escape(key) + (rb":[^|]*\|" if name is None else rb":([^|,]*)\|") for key, name in pairs)
    factors = tuple((place + 2, name.factor) for place, name in enumerate(known) if name.factor != 1.0)
    return Layout(re.compile(_STAMPED + rest), re.compile(rest), fields, factors)
