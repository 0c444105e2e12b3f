"""Times as the logs of a cluster write them, to unix seconds; what `rca.parsers.moments` reads, and older habits.

What names no zone is of the zone given, or of the machine that reads. What names no year (glog, syslog) is of the latest
year in which it does not lie after `latest`, the time at which the file was written to last.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo

from rca.parsers.moments import STAMP, Moments

DAY = 86_400.0
_MONTHS = {name: number for number, name in enumerate(b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)}
_MONTH = rb"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_CLOCK = rb"(\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)"
_GLOG = re.compile(rb"(?:^|\[|\s)[IWEFD](\d{1,2})(\d\d) " + _CLOCK)  # PyTorch leaves out the zero of a month
_SYSLOG = re.compile(rb"^\s*\[?(?:<\d+>)?" + _MONTH + rb" +(\d{1,2}) " + _CLOCK)
_WRITTEN = re.compile(rb"\[?" + _MONTH + rb" +(\d{1,2}) (\d{4}) " + _CLOCK)
_DMESG = re.compile(rb"\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) " + _MONTH + rb" +(\d{1,2}) " + _CLOCK + rb" (\d{4})\]")
_SLASHES = re.compile(rb"(\d{4})/(\d\d)/(\d\d) " + _CLOCK)
_EPOCH = re.compile(rb"^\s*(?:\[(\d{10})\]|\[?(\d{10}\.\d{1,9}|\d{13}|\d{16}|\d{19})\]?(?=[\s:,|]|$))")
_NUMBER = re.compile(r"\d{9,20}(?:\.\d+)?")
_SCALES = (1e11, 1e14, 1e17)
"""A number beyond these counts milliseconds, microseconds, nanoseconds."""
_FIRST, _LAST = 1e8, 4e9
_LIKELY = 1.2e9
"""A number at the beginning of a line of text is a time since 2008, as 2 to the power of 40 or 50 would be an earlier one."""
_KEPT = 512
HEAD = 240
"""A time stands within so many bytes of the beginning of a line, if it has one."""


class Stamps:
    """Reads times of one file; notes what had to be taken for granted."""

    def __init__(self, zone: tzinfo | None = None, latest: float = 4e9) -> None:
        self._zone, self._latest = zone, latest
        self._moments = Moments(zone)
        self._minutes: dict[str, float] = {}
        self.zoneless = 0
        self.yearless = 0

    def rfc3339(self, text: str) -> float | None:
        """Read a time in UTC as the hook writes it, `2026-05-28T20:26:40.500Z`, and any other as `value` does.

        >>> Stamps().rfc3339("2026-05-28T20:26:40.500Z")
        1780000000.5
        """
        minute = self._minutes.get(text[:16])
        if minute is None or text[-1] != "Z":
            time = self.value(text)
            if time is not None and text[-1:] == "Z" and len(text) >= 20 and text[16] == ":":
                if len(self._minutes) > _KEPT:
                    self._minutes.clear()
                self._minutes[text[:16]] = time - float(text[17:-1])
            return time
        try:
            return minute + float(text[17:-1])
        except ValueError:
            return None

    def value(self, value: object) -> float | None:
        """Read the value of a field: text, or a number of seconds since 1970 or of thousandths of such.

        >>> stamps = Stamps(UTC)
        >>> [stamps.value(one) for one in (1780000000123, "1780000000.5", "2026-05-28T20:26:40.5+00:00", None, True)]
        [1780000000.123, 1780000000.5, 1780000000.5, None, None]
        """
        if isinstance(value, str):
            if _NUMBER.fullmatch(value):
                return _scaled(float(value))
            return self.find(value.encode("utf-8", "replace"))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return _scaled(float(value))
        return None

    def find(self, line: bytes) -> float | None:
        """Return the time that a line of text begins with, as far as one can be seen.

        >>> stamps = Stamps(UTC, latest=1780000000.0)
        >>> stamps.find(b"I0528 20:26:39.250000 7 x.cc:1] a"), stamps.find(b"[2026-05-28 20:26:39,250] b")
        (1779999999.25, 1779999999.25)
        >>> stamps.find(b"May 28 20:26:39 node-1 kernel: c"), stamps.find(b"Jul 1 00:00:00 last year")
        (1779999999.0, 1751328000.0)
        >>> stamps.find(b"[rank3]:[E528 20:26:39.250000000 ProcessGroupNCCL.cpp:629] e")
        1779999999.25
        >>> stamps.find(b"[Thu May 28 20:26:39 2026] d"), stamps.find(b"step 3")
        (1779999999.0, None)
        """
        head = line[:HEAD]
        match = STAMP.search(head)
        if match is not None:
            self.zoneless += match[3] is None
            return self._moments.read(match)
        for pattern, read in _READERS:
            found = pattern.search(head)
            if found is not None:
                return read(self, found)
        return None

    def year_of(self, month: int, day: int, clock: bytes) -> float | None:
        """Return the time of a day whose year is not told."""
        self.yearless += 1
        year = datetime.fromtimestamp(min(self._latest + DAY, _LAST), self._zone or UTC).year
        for one in range(year, year - 5, -1):
            time = self.dated(one, month, day, clock)
            if time is not None and time <= self._latest + DAY:
                return time
        return None

    def dated(self, year: int, month: int, day: int, clock: bytes) -> float | None:
        """Return the time of a day, None where there is no such day or hour."""
        self.zoneless += 1
        text = f"{year:04}-{month:02}-{day:02}T".encode() + clock[:5]
        minute = self._moments.minute(text)
        return None if minute is None else minute + float(clock[6:].replace(b",", b"."))


def _glog(stamps: Stamps, match: re.Match[bytes]) -> float | None:
    return stamps.year_of(int(match[1]), int(match[2]), match[3])


def _syslog(stamps: Stamps, match: re.Match[bytes]) -> float | None:
    return stamps.year_of(_MONTHS[match[1]], int(match[2]), match[3])


def _written(stamps: Stamps, match: re.Match[bytes]) -> float | None:
    return stamps.dated(int(match[3]), _MONTHS[match[1]], int(match[2]), match[4])


def _dmesg(stamps: Stamps, match: re.Match[bytes]) -> float | None:
    return stamps.dated(int(match[4]), _MONTHS[match[1]], int(match[2]), match[3])


def _slashes(stamps: Stamps, match: re.Match[bytes]) -> float | None:
    return stamps.dated(int(match[1]), int(match[2]), int(match[3]), match[4])


def _epoch(_: Stamps, match: re.Match[bytes]) -> float | None:
    time = _scaled(float(match[1] or match[2]))
    return time if time is not None and time > _LIKELY else None


_READERS: tuple[tuple[re.Pattern[bytes], Callable[[Stamps, re.Match[bytes]], float | None]], ...] = (
    (_DMESG, _dmesg), (_WRITTEN, _written), (_GLOG, _glog), (_SYSLOG, _syslog), (_SLASHES, _slashes), (_EPOCH, _epoch),
)  # fmt: skip
"""What else a line may begin with, the clearest first."""


def _scaled(value: float) -> float | None:
    """Return a number as unix seconds, None where it is no time between 1973 and 2096."""
    seconds = value
    for scale in _SCALES:
        seconds = seconds / 1e3 if value > scale else seconds
    return seconds if _FIRST < seconds < _LAST else None
