"""Numbers, counts and strings as people can read them; a leaf that anything may import."""

import math
import re
import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache

_DIGITS = re.compile(r"([0-9]+)")
_PLURALS = {"switch": "switches", "series": "series"}
_STEERING = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_AMOUNTS = ("", "k", "M", "B", "T")
_DURATION = re.compile(r"(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?")


def significant(value: float) -> str:
    """Write three significant digits, thousands apart.

    >>> significant(2.3), significant(40.0), significant(1234.5), significant(0.01234)
    ('2.30', '40.0', '1,234', '0.0123')
    """
    rounded = float(f"{value:.3g}") if abs(value) < 1000 else value
    size = abs(rounded)
    if size >= 100 or rounded == 0:
        return f"{rounded:,.0f}"
    return f"{rounded:.1f}" if size >= 10 else f"{rounded:.2f}" if size >= 1 else f"{rounded:.3g}"


def whole(value: float) -> str:
    """Write a whole number, with a decimal only where the number is small and has one.

    >>> whole(92.04), whole(1200.0), whole(1.25), whole(0.04), whole(-0.0)
    ('92', '1,200', '1.2', '0.04', '0')
    """
    size = abs(value)
    if size >= 10 or value == round(value):
        return f"{value + 0.0:,.0f}"  # 0.0 takes the sign off a zero
    return f"{value:.1f}" if size >= 1 else f"{value:.2g}"


def _scaled(value: float, unit: str) -> str:
    """Move a decimal prefix in front of a unit: 1.2e9 B/s is 1.20 GB/s."""
    power = 0
    while abs(value) >= 999.5 and power < len(_DECIMAL) - 1:
        value, power = value / 1000.0, power + 1
    return f"{significant(value)} {_DECIMAL[power]}{unit}"


def _seconds(value: float) -> str:
    size = abs(value)
    if size >= 1 or value == 0:
        return f"{significant(value)} s"
    return f"{significant(value * 1e3)} ms" if size >= 1e-3 else f"{significant(value * 1e6)} µs"


def _suffixed(write: Callable[[float], str], suffix: str) -> Callable[[float], str]:
    return lambda value: write(value) + suffix


_WRITERS: dict[str, Callable[[float], str]] = {
    "bits": lambda value: f"{int(value):#x}",
    "bool": lambda value: "yes" if value else "no",
    "bytes": lambda value: _scaled(value, "B"),
    "bytes_per_second": lambda value: _scaled(value, "B/s"),
    "celsius": _suffixed(whole, " °C"),
    "code": whole,
    "count": whole,
    "generation": lambda value: f"generation {whole(value)}",
    "lanes": _suffixed(whole, " lanes"),
    "loss": lambda value: f"{value:.4g}",
    "mebibytes": _suffixed(whole, " MiB"),
    "number": lambda value: f"{value:.4g}",
    "megabytes_per_second": lambda value: _scaled(value * 1e6, "B/s"),
    "megahertz": _suffixed(whole, " MHz"),
    "per_minute": _suffixed(significant, "/min"),
    "per_second": _suffixed(significant, "/s"),
    "percent": _suffixed(whole, " %"),
    "ratio": lambda value: f"{whole(value * 100.0)} %",
    "samples_per_second": _suffixed(significant, " samples/s"),
    "seconds": _seconds,
    "tokens": _suffixed(whole, " tokens"),
    "watts": _suffixed(whole, " W"),
}


def quantity(value: float, unit: str) -> str:
    """Write a measured value with its unit; a unit that is not known here follows the number as it is spelt.

    >>> quantity(92.0, "celsius"), quantity(1200.0, "megahertz"), quantity(2.3, "seconds"), quantity(0.18, "seconds")
    ('92 °C', '1,200 MHz', '2.30 s', '180 ms')
    >>> quantity(40e6, "bytes_per_second"), quantity(1.2e9, "bytes_per_second"), quantity(0.45, "ratio")
    ('40.0 MB/s', '1.20 GB/s', '45 %')
    """
    if math.isnan(value):
        return "no sample"
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    writer = _WRITERS.get(unit)
    return writer(value) if writer else f"{significant(value)} {unit.replace('_', ' ')}".rstrip()


def amount(value: float) -> str:
    """Write a large number as those who train models say it, in thousands, millions, billions or trillions.

    >>> amount(1.234e12), amount(40e9), amount(999_999.0), amount(345.0)
    ('1.23 T', '40.0 B', '1.00 M', '345')
    """
    power = 0
    while abs(value) >= 999.5 and power < len(_AMOUNTS) - 1:
        value, power = value / 1000.0, power + 1
    return f"{significant(value)} {_AMOUNTS[power]}".rstrip()


def lasting(seconds: float) -> str:
    """Write how long something takes, in its two largest units.

    >>> lasting(273_600.0), lasting(4000.0), lasting(3599.0), lasting(40.0)
    ('3 d 4 h', '1 h 7 min', '1 h', '40 s')
    """
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60.0) if seconds < 86_400.0 - 30.0 else round(seconds / 3600.0) * 60
    hours, days = minutes // 60, minutes // 1440
    parts = ((days, "d"), (hours % 24, "h")) if days else ((hours, "h"), (minutes % 60, "min"))
    return " ".join(f"{number:,} {unit}" for number, unit in parts if number)


def times(factor: float) -> str:
    """Write a factor: how many times as long.

    >>> times(1.5), times(1.333), times(12.4)
    ('1.5x', '1.33x', '12x')
    """
    return f"{factor:,.0f}x" if factor >= 10 else f"{float(f'{factor:.3g}'):g}x"


def percent(probability: float) -> str:
    """Write a probability as people read it.

    >>> percent(0.94), percent(0.996), percent(0.004)
    ('94 %', '>99 %', '<1 %')
    """
    if probability > 0.99:
        return ">99 %"
    return "<1 %" if probability < 0.01 else f"{probability * 100.0:.0f} %"


def counted(number: int, noun: str) -> str:
    """Write a number of things.

    >>> counted(1, "rank"), counted(1024, "switch")
    ('1 rank', '1,024 switches')
    """
    return f"{number:,} {noun if number == 1 else _PLURALS.get(noun, noun + 's')}"


def visible(text: str) -> str:
    """Spell out every character that steers a terminal or cannot be seen, as PromQL and Python would escape it.

    >>> visible("a\\x1b[31mb\\n")
    'a\\\\x1b[31mb\\\\n'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_spelt(char) if unicodedata.category(char) in _STEERING else char for char in text)


def _spelt(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


@lru_cache(maxsize=1 << 17)
def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that takes numbers inside text as numbers.

    >>> sorted(["node-10", "node-9", "a"], key=natural)
    ['a', 'node-9', 'node-10']
    """
    parts = [part for part in _DIGITS.split(text) if part]
    key = [(0, int(part), "") if part[0] in "0123456789" else (1, 0, part) for part in parts]
    return (*key, (2, 0, text))


def stamp(time: float) -> str:
    """Write unix seconds as RFC 3339 in UTC.

    >>> stamp(0.0)
    '1970-01-01T00:00:00Z'
    """
    return datetime.fromtimestamp(round(time), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def unix(text: str) -> float:
    """Read an RFC 3339 time, as reports hold them, in unix seconds.

    >>> unix("1970-01-01T00:01:00Z")
    60.0
    """
    return datetime.fromisoformat(text).timestamp()


def lowered(text: str) -> str:
    """Lower the first letter, unless a second capital shows that it is a name.

    >>> lowered("A GPU is hot"), lowered("HBM temperature"), lowered("NVLink errors")
    ('a GPU is hot', 'HBM temperature', 'NVLink errors')
    """
    return text if len(text) > 1 and text[1].isupper() else text[:1].lower() + text[1:]


def seconds(duration: str) -> float:
    """Read a Prometheus duration.

    >>> seconds("1h30m")
    5400.0

    Raises ValueError for anything else, an empty string and a bare number included.
    """
    match = _DURATION.fullmatch(duration)
    if not duration or match is None or duration == "":
        raise ValueError(f"not a duration: {duration!r}, write for example 30s, 5m or 1h30m")
    factors = (604800.0, 86400.0, 3600.0, 60.0, 1.0, 0.001)
    return sum(float(part) * factor for part, factor in zip(match.groups(), factors, strict=True) if part)
