"""Files of `nvidia-smi --query-gpu=... --format=csv -l N`: a file a node, a line a GPU and moment.

Columns come in any order, units in the header or in the cell, numbers with a point or a comma. What a GPU does not
tell (`[N/A]`) is no sample; what it could not tell (`[Unknown Error]`) is counted and said too.
"""

import csv
import math
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, tzinfo
from pathlib import Path

import numpy as np

from rca.errors import SourceError
from rca.imports import Found, Imports, Tally
from rca.plain import counted
from rca.sources.foreign import Place, Ways, files, lines, zone_name
from rca.sources.kept import Kept, Series

NAN = float("nan")
_HEAD = re.compile(r"([a-z][a-z0-9_.]*)(?:\s*\[(.*)\])?")
_NUMBER = re.compile(r"([-+]?\d[\d.,]*)\s*([^\d\s]\S*)?")
_UNITS = {
    "": 1.0, "%": 1.0, "W": 1.0, "C": 1.0, "MHz": 1.0, "MiB": 1.0, "us": 1.0,
    "mW": 1e-3, "kW": 1e3, "Hz": 1e-6, "GHz": 1e3, "KiB": 2.0**-10, "GiB": 2.0**10, "ms": 1e3,
}  # fmt: skip
_WHOLE = {"MHz", "MiB", "us"}
"""Units of whole numbers: a comma between groups of three digits is none of a decimal there."""
_WORDS = {"active": 1.0, "not active": 0.0, "yes": 1.0, "no": 0.0, "enabled": 1.0, "disabled": 0.0}
_SILENT = {
    "",
    "-",
    "n/a",
    "not supported",
    "not available",
    "insufficient permissions",
    "deprecated",
    "requested functionality has been deprecated",
}
_REASONS = {
    "gpu_idle": 1, "applications_clocks_setting": 2, "sw_power_cap": 4, "hw_slowdown": 8, "sync_boost": 16,
    "sw_thermal_slowdown": 32, "hw_thermal_slowdown": 64, "hw_power_brake_slowdown": 128,
}  # fmt: skip
"""Bits of the clock event reasons (nvml.h, nvmlClocksEventReason*)."""
_REASON = re.compile(r"clocks_(?:event|throttle)_reasons\.(\w+)")
_LABELS = {
    "index": "gpu", "uuid": "UUID", "gpu_uuid": "UUID", "pci.bus_id": "pci_bus_id", "gpu_bus_id": "pci_bus_id", "name": "modelName",
    "gpu_name": "modelName", "driver_version": "DCGM_FI_DRIVER_VERSION", "vbios_version": "DCGM_FI_DEV_VBIOS_VERSION",
}  # fmt: skip
_TIME = re.compile(r"(\d{4})[/-](\d\d)[/-](\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:\d\d)?")
_MANY = 200_000
"""Texts of cells to remember; they repeat."""


def read(place: Place, ways: Ways) -> Kept:
    """Read a file, or each file of a folder; raises SourceError where one is none of nvidia-smi."""
    path = place.file()
    found = files(path, (".csv", ".csv.gz", ".log", ".txt"))
    if not found:
        raise SourceError(
            f"{place.shown}: no .csv files in it, write with nvidia-smi --query-gpu=... --format=csv -l 5"
        )
    tally = Tally("columns")
    series: list[Series] = []
    said: list[str] = []
    for one in found:
        log = _Log(one, place.name or node_of(one, found), ways.imports, tally)
        series += log.read(ways.zone)
        said += log.said
    said += _zoned(place, series, ways.zone)
    return Kept(series, place.shown, [*said, *tally.said(place.shown)])


def node_of(path: Path, among: Sequence[Path]) -> str:
    """Name the node of a file: by its name, or by its folder where files of several folders have the same one.

    >>> node_of(Path("logs/nvidia-smi_node-07.csv"), []), node_of(Path("gpu-07.csv.gz"), [])
    ('node-07', 'gpu-07')
    >>> node_of(Path("node-07/gpu.csv"), [Path("node-07/gpu.csv"), Path("node-08/gpu.csv")])
    'node-07'
    """
    if sum(other.name == path.name for other in among) > 1:
        return path.parent.name
    stem = path.name.removesuffix(".gz").rpartition(".")[0] or path.name
    return re.sub(r"^nvidia[-_.]?smi[-_.]|[-_.]nvidia[-_.]?smi$", "", stem) or stem


def _zoned(place: Place, series: Sequence[Series], zone: tzinfo | None) -> list[str]:
    if not series:
        return []
    return [f"{place.shown}: its times tell no zone, they are read as {zone_name(zone, float(series[0].times[0]))}"]


class _Gpu:
    """The samples of one GPU under one header: its times, and the values of each column that is read."""

    def __init__(self, labels: dict[str, str], width: int) -> None:
        self.labels = labels
        self.times = array("d")
        self.columns = [array("d") for _ in range(width)]


class _Section:
    """What follows one header: which columns are read, and as what."""

    def __init__(self, heads: Sequence[tuple[str, str]], imports: Imports, tally: Tally) -> None:
        names = [name for name, _ in heads]
        self.width = len(names)
        self.time = names.index("timestamp") if "timestamp" in names else -1
        self.labels = [(index, _LABELS[name]) for index, name in enumerate(names) if name in _LABELS]
        self.units = [unit for _, unit in heads]
        self.found: list[tuple[int, Found]] = []
        self.bits: list[tuple[int, int]] = []
        for index, name in enumerate(names):
            found, reason = imports.find(name, "nvidia_smi"), _REASON.fullmatch(name)
            if found is not None:
                self.found.append((index, found))
            elif reason and reason[1] in _REASONS:
                self.bits.append((index, _REASONS[reason[1]]))
            if index != self.time and name not in _LABELS and name not in {"count", "serial", "gpu_serial"}:
                tally.note(name, read=found is not None or bool(reason))
        self.reasons = imports.find("clocks_event_reasons.active", "nvidia_smi")
        if self.reasons is None or any(found.row is self.reasons.row for _, found in self.found):
            self.bits = []
        self.gpus: dict[tuple[str, ...], _Gpu] = {}

    def gpu(self, cells: Sequence[str]) -> _Gpu:
        """Return the GPU that a line tells of."""
        key = tuple([cells[index] for index, _ in self.labels])
        gpu = self.gpus.get(key)
        if gpu is None:
            labels = {
                label: text
                for (_, label), text in zip(self.labels, key, strict=True)
                if text.lower().strip("[]") not in _SILENT
            }
            gpu = self.gpus[key] = _Gpu(labels, len(self.found) + bool(self.bits))
        return gpu

    def series(self, node: str) -> Iterator[Series]:
        """Yield the series of all GPUs; of several columns of one metric the first in the table counts."""
        order = sorted(range(len(self.found)), key=lambda column: self.found[column][1].order)
        for gpu in self.gpus.values():
            times = np.frombuffer(gpu.times, dtype=np.float64)
            taken: set[str] = set()
            for column in order:
                row = self.found[column][1].row
                values = np.frombuffer(gpu.columns[column], dtype=np.float64) * row.factor
                if row.metric not in taken and bool(np.isfinite(values).any()):
                    taken.add(row.metric)
                    yield Series({"__name__": row.metric, "Hostname": node, **gpu.labels}, times, values)
            if self.bits and self.reasons is not None:
                values = np.frombuffer(gpu.columns[-1], dtype=np.float64)
                yield Series({"__name__": self.reasons.row.metric, "Hostname": node, **gpu.labels}, times, values)


class _Log:
    """One file as it is read."""

    def __init__(self, path: Path, node: str, imports: Imports, tally: Tally) -> None:
        self.path = path
        self.node = node
        self.said: list[str] = []
        self._imports = imports
        self._tally = tally
        self._sections: list[_Section] = []
        self._heads: list[tuple[str, str]] = []
        self._split = _commas
        self._bad: list[tuple[int, str]] = []
        self._failed: Counter[str] = Counter()
        self._cells: dict[tuple[str, str], float] = {}

    def read(self, zone: tzinfo | None) -> list[Series]:
        """Return the series of the file."""
        clock = Clock(zone)
        torn = 0
        for number, raw in lines(self.path):
            if not raw.endswith(b"\n"):
                torn = number
                break
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8", "replace").strip()
            if text and not self._header(text):
                self._line(number, text, clock)
        self._judge(torn)
        named = [gpu for section in self._sections for gpu in section.gpus.values()]
        _number(named)
        return [one for section in self._sections for one in section.series(self.node)]

    def _header(self, text: str) -> bool:
        """Begin a section where a line is a header."""
        if not text[:1].isalpha() and text[:1] != '"':
            return False
        for split in (_commas, _plain, _semicolons, _tabs):
            heads = [_HEAD.fullmatch(cell.strip().lower() if "[" not in cell else cell.strip()) for cell in split(text)]
            if len(heads) > 1 and all(heads):
                pairs = [(head[1], head[2] or "") for head in heads if head is not None]
                if any(
                    name in {"timestamp", "index", "uuid", "name"} or self._imports.find(name, "nvidia_smi")
                    for name, _ in pairs
                ):
                    self._split = split
                    self._begin(pairs)
                    return True
        return False

    def _begin(self, heads: Sequence[tuple[str, str]]) -> None:
        section = _Section(heads, self._imports, self._tally)
        if section.time < 0:
            raise SourceError(f"{self.path}: no column timestamp, write --query-gpu=timestamp,index,...")
        if not {label for _, label in section.labels} & {"gpu", "UUID", "pci_bus_id"}:
            raise SourceError(
                f"{self.path}: no column tells which GPU a line is of, write --query-gpu=timestamp,index,..."
            )
        if list(heads) != self._heads:
            self._sections.append(section)
        self._heads = list(heads)

    def _line(self, number: int, text: str, clock: "Clock") -> None:
        """Take a line of samples, or keep what is wrong with it."""
        if not self._sections:
            raise SourceError(
                f"{self.path}:{number}: no header with the names of the columns, leave out noheader from --format"
            )
        section = self._sections[-1]
        cells = self._split(text)
        if len(cells) != section.width:
            self._bad.append((number, f"has {len(cells)} cells where the header has {section.width}"))
            return
        cells = [cell.strip() for cell in cells]
        time = clock.read(cells[section.time])
        if time is None:
            self._bad.append((number, f"{cells[section.time]!r} is no time"))
            return
        gpu = section.gpu(cells)
        gpu.times.append(time)
        for column, (index, _) in enumerate(section.found):
            gpu.columns[column].append(self._value(cells[index], section.units[index]))
        if section.bits:
            set_bits = [self._value(cells[index], "") * bit for index, bit in section.bits]
            known = [bit for bit in set_bits if not math.isnan(bit)]
            gpu.columns[-1].append(sum(known) if known else NAN)

    def _value(self, cell: str, unit: str) -> float:
        """Return the number in a cell, NaN where it holds none."""
        value = self._cells.get((cell, unit))
        if value is None:
            if len(self._cells) > _MANY:
                self._cells.clear()
            value = number_in(cell, unit)
            if math.isnan(value) and cell.lower().strip("[]") not in _SILENT:
                self._failed[cell] += 1
                return NAN
            self._cells[cell, unit] = value
        return value

    def _judge(self, torn: int) -> None:
        """Say what was odd, or raise where nothing could be read at all."""
        good = sum(len(gpu.times) for section in self._sections for gpu in section.gpus.values())
        if not good:
            first = f":{self._bad[0][0]}: {self._bad[0][1]}" if self._bad else ": no samples in it"
            raise SourceError(f"{self.path}{first}, is this what nvidia-smi --query-gpu=... --format=csv wrote")
        if self._bad:
            number, what = self._bad[0]
            self.said.append(
                f"{self.path}: {counted(len(self._bad), 'line')} left out, for example line {number}: {what}"
            )
        if torn:
            self.said.append(f"{self.path}:{torn}: the last line is torn, left out")
        for text, times in self._failed.most_common(3):
            self.said.append(f"{self.path}: {text!r} instead of a value, {counted(times, 'time')}")


class Clock:
    """Reads times; those of one minute differ in their seconds only."""

    def __init__(self, zone: tzinfo | None) -> None:
        self._zone = zone
        self._minute = ""
        self._start = 0.0

    def read(self, text: str) -> float | None:
        """Return unix seconds, None for what is no time.

        >>> from datetime import timezone
        >>> Clock(timezone.utc).read("2026/11/30 06:07:16.250")
        1796018836.25
        """
        if text[:17] != self._minute or not self._plain(text[17:]):
            match = _TIME.fullmatch(text)
            if match is None:
                return None
            try:
                moment = datetime(*(int(part) for part in match.group(1, 2, 3, 4, 5)), tzinfo=self._zone)  # type: ignore[misc, arg-type]
                if match[8]:
                    moment = moment.replace(tzinfo=datetime.fromisoformat(f"2000-01-01T00:00:00{match[8]}").tzinfo)
                start = moment.timestamp()
            except (ValueError, OverflowError, OSError):
                return None
            if match[8]:
                return start + float(f"{match[6]}.{match[7] or 0}")
            self._minute, self._start = text[:17], start
            return start + float(f"{match[6]}.{match[7] or 0}")
        return self._start + float(text[17:].replace(",", "."))

    @staticmethod
    def _plain(text: str) -> bool:
        return (
            len(text) >= 2 and text[:2].isdecimal() and (len(text) == 2 or (text[2] in ".," and text[3:].isdecimal()))
        )


def number_in(cell: str, unit: str = "") -> float:
    """Return the number in a cell in nvidia-smi's usual unit, NaN where it holds none.

    >>> number_in("92 %"), number_in("68,32 W"), number_in("1,980 MHz"), number_in("0x0000000000000024")
    (92.0, 68.32, 1980.0, 36.0)
    >>> number_in("2", "GiB"), number_in("Not Active"), number_in("[N/A]")
    (2048.0, 0.0, nan)
    """
    if cell[:2] in {"0x", "0X"}:
        try:
            return float(int(cell, 16))
        except ValueError:
            return NAN
    match = _NUMBER.fullmatch(cell)
    if match is None:
        return _WORDS.get(cell.lower(), NAN)
    text, unit = match[1], match[2] or unit
    if "," in text:
        grouped = re.fullmatch(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?", text) and (unit in _WHOLE or "." in text)
        text = text.replace(",", "") if grouped else text.replace(",", ".")
    try:
        return float(text) * _UNITS[unit]
    except (ValueError, KeyError):
        return NAN


def _number(gpus: Sequence[_Gpu]) -> None:
    """Give GPUs that have no index one by their PCI addresses, in whose order the driver numbers them."""
    known = sorted({gpu.labels["pci_bus_id"] for gpu in gpus if "pci_bus_id" in gpu.labels})
    for gpu in gpus:
        if "gpu" not in gpu.labels and "pci_bus_id" in gpu.labels:
            gpu.labels["gpu"] = str(known.index(gpu.labels["pci_bus_id"]))


def _commas(text: str) -> list[str]:
    """Split as nvidia-smi writes: a comma and a space, so that a decimal comma does no harm."""
    return text.split(", ")


def _plain(text: str) -> list[str]:
    return next(csv.reader([text], skipinitialspace=True))


def _semicolons(text: str) -> list[str]:
    return next(csv.reader([text], delimiter=";", skipinitialspace=True))


def _tabs(text: str) -> list[str]:
    return next(csv.reader([text], delimiter="\t", skipinitialspace=True))
