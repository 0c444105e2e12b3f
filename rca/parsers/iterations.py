"""Megatron-LM's iteration lines, old and new, and those of its forks; NeMo prints alike.

Sources: `training_log` of `megatron/training/training.py` from v2.5 to core 0.16, its forks by their logs, NeMo's
progress printer.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import asdict

from rca.parsers.keys import Name, name_of
from rca.parsers.moments import Moments
from rca.parsers.record import Record, number

BEGIN = b"iteration "
_ITERATION = re.compile(rb"iteration +(\d+) */ *(\d+) *\|")
_STAMP = re.compile(rb"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?\] ")
_MINUTE = re.compile(rb"\[\d{4}-\d\d-\d\d[ T]\d\d:\d\d:")
_NEMO = b"raining epoch "
_LAYOUTS, _KEYS = 64, 1024
_OF_NUMBERS = b"0123456789+-.E "
"""What the numbers of lines and the blanks around them are made of: lines of one shape are the same without them."""
_Whole = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
_BLANKS = bytes(set(range(256)) - set(b"0123456789+-.E,[]|"))
_AS_JSON = bytes.maketrans(_BLANKS + b"|", b" " * len(_BLANKS) + b",")


class Stamp:
    """Times in brackets before the steps, all as long as the first: `2026-08-22 15:22:22.250000`."""

    def __init__(self, text: bytes) -> None:
        fraction = max(len(text) - len("2026-08-22 15:22:22."), 0)
        self._length = len("[") + len(text) + len("] ")
        self._minutes = np.dtype({"names": ["minute"], "formats": ["S18"], "itemsize": self._length})
        self._digits = np.array([18, 19, *range(21, 21 + fraction)])
        self._weights = 10.0 ** np.arange(fraction + 1, -1, -1)
        self._scale = 10.0**fraction
        self._after = np.uint8(ord("." if fraction else "]"))

    def read(self, lines: Sequence[bytes], begins: Sequence[int], moments: Moments) -> list[float] | None:
        """Return when lines were printed; None where in one something else stands in the place of the time."""
        if min(begins) < self._length:
            return None
        text = b"".join([line[begin - self._length : begin] for line, begin in zip(lines, begins, strict=True)])
        printed = np.frombuffer(text, dtype=np.uint8).reshape(len(lines), -1)
        digits = printed.take(self._digits, axis=1) - np.uint8(48)
        minutes = np.frombuffer(text, dtype=self._minutes)["minute"].tolist()
        starts = {one: moments.minute(one[1:17]) if _MINUTE.match(one) else None for one in set(minutes)}
        if digits.max() > 9 or (printed[:, 20] != self._after).any() or None in starts.values():
            return None
        times: list[float] = (
            np.array([starts[one] for one in minutes]) + digits @ self._weights / self._scale
        ).tolist()
        return times


class Layout(NamedTuple):
    """How lines of one shape are read.

    `numbers` decodes the numbers of many lines: with blanks for keys and commas for bars between them they are JSON. It
    takes steps of digits alone, so what it takes of a shape that was an iteration line once is one. `factors` are for
    those that are not printed in their unit, and make floats of steps. `names` are of those whose name is none in
    Python, and what it is; `unknown` are those without any. `stamp` reads the times of lines whose only time before the
    steps stands in brackets right before them, None where there is none.
    """

    numbers: msgspec.json.Decoder[list[Any]]
    factors: list[tuple[str, float]]
    names: list[tuple[str, str]]
    unknown: list[str]
    stamp: Stamp | None

    def read(self, lines: Sequence[bytes], begins: Sequence[int], moments: Moments) -> list[Record] | None:
        """Read lines from where they begin; None where something is not written as JSON writes it, such as 1,000."""
        texts = [
            line[begin + len(BEGIN) : line.rfind(b"|")].replace(b"/", b",", 1)
            for begin, line in zip(begins, lines, strict=True)
        ]
        try:
            rows = self.numbers.decode(b"[[%b]]" % b"],[".join(texts).translate(_AS_JSON))
        except msgspec.DecodeError:
            return None
        if len(rows) != len(lines) or 0 in [row.step for row in rows] or 0 in [row.target_steps for row in rows]:
            return None  # 0 may be -0, which is no step
        times: Sequence[float | None] | None
        if self.stamp is None:
            times = [moments.find(line, 0, begin) for line, begin in zip(lines, begins, strict=True)]
        else:
            times = self.stamp.read(lines, begins, moments)
        found = list(map(asdict, rows))
        for field, factor in self.factors:
            for one in found:
                one[field] *= factor
        for name, field in self.names:
            for one in found:
                one[field] = one.pop(name)
        for name in self.unknown:
            for one in found:
                del one[name]
        return (
            None if times is None else [Record("step", time, None, one) for time, one in zip(times, found, strict=True)]
        )


class Iterations:
    """Reads iteration lines: those of one shape all at once, or part by part."""

    def __init__(self, moments: Moments) -> None:
        self._moments = moments
        self._layouts: dict[bytes, Layout | None] = {}
        self._names: dict[bytes, Name | None] = {}

    def read(self, lines: Sequence[bytes]) -> list[Record | None]:
        """Return what each line says, None for one that is no iteration line.

        >>> line = b"iteration 7/ 10 | elapsed time per iteration (ms): 250.0 | lm loss: 2.0E+00 | num zeros: 3 |"
        >>> steps = Iterations(Moments()).read([line, b"hello"])
        >>> steps[0].fields, steps[1]
        ({'step': 7.0, 'target_steps': 10.0, 'step_seconds': 0.25, 'loss:lm': 2.0}, None)
        """
        found: list[Record | None] = [None] * len(lines)
        alike: defaultdict[bytes, list[int]] = defaultdict(list)
        begins = [line.find(BEGIN) for line in lines]
        likely = [place for place, begin in enumerate(begins) if begin >= 0]
        shapes = b"\n".join([lines[place] for place in likely]).translate(None, _OF_NUMBERS).split(b"\n")
        for place, shape in zip(likely, shapes, strict=False):
            alike[shape].append(place)
        for shape, places in alike.items():
            these = [lines[place] for place in places]
            if shape not in self._layouts and len(self._layouts) < _LAYOUTS:
                self._layouts[shape] = self._layout(these[0])
            layout = self._layouts.get(shape)
            steps = layout and layout.read(these, [begins[place] for place in places], self._moments)
            if steps and steps[0] != self._read(these[0]):
                del self._layouts[shape]  # was made from a line whose keys were garbled
                steps = None
            for place, step in zip(places, steps or map(self._read, these), strict=True):
                found[place] = step
        return found

    def _read(self, line: bytes) -> Record | None:
        """Read the parts of a line one by one."""
        head = _ITERATION.search(line)
        if head is None:
            return None
        fields: dict[str, float | str] = {"step": float(head[1]), "target_steps": float(head[2])}
        for part in line[head.end() :].split(b"|"):
            key, colon, text = part.partition(b":")
            name = self._name(key) if colon else None
            value = None if name is None else number(text)
            if name is not None and value is not None:
                fields[name.field] = value * name.factor
        for field in [one for one in fields if not one.isidentifier()]:
            fields[field] = fields.pop(field)  # as a layout orders them
        if line.find(_NEMO, 0, head.start()) >= 0:
            fields["by"] = "0"
            fields.pop("target_steps")
        return Record("step", self._moments.find(line, 0, head.start()), None, fields)

    def _name(self, key: bytes) -> Name | None:
        if key in self._names:
            return self._names[key]
        name = name_of(key.decode(errors="replace"))
        if len(self._names) < _KEYS:
            self._names[key] = name
        return name

    def _layout(self, line: bytes) -> Layout | None:
        """Return how lines of the shape of this one are read; None where it has numbers that are not for JSON."""
        head, step = _ITERATION.search(line), self._read(line)
        if head is None or step is None:
            return None
        keys = [part.partition(b":")[0] for part in line[head.end() : line.rfind(b"|")].split(b"|")]
        known = [Name("step"), Name("target_steps"), *map(self._name, keys)]
        fields = [
            name.field if name and name.field.isidentifier() else f"number_{place}" for place, name in enumerate(known)
        ]
        if len(set(fields)) < len(fields):
            return None
        pairs = list(zip(fields, known, strict=True))
        columns = [*((field, _Whole) for field in fields[:2]), *((field, float) for field in fields[2:])]
        row = msgspec.defstruct("Row", columns, array_like=True, forbid_unknown_fields=True, gc=False)
        before, bracket, stamp = line[: head.start()].rpartition(b"[")
        alone = bracket and before.count(b":") < 2 and _STAMP.fullmatch(stamp)
        layout = Layout(
            msgspec.json.Decoder(list[row]),  # type: ignore[valid-type]  # made above
            [
                *((field, 1.0) for field in fields[:2]),
                *((field, one.factor) for field, one in pairs if one and one.factor != 1.0),
            ],
            [(field, name.field) for field, name in pairs if name and name.field != field],
            [field for field, name in pairs if not name],
            Stamp(stamp.removesuffix(b"] ")) if alone else None,
        )
        return layout if layout.read([line], [line.find(BEGIN)], self._moments) == [step] else None
