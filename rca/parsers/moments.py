"""Times as logs write them, to unix seconds."""

import re
from datetime import datetime, tzinfo

STAMP = re.compile(rb"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d):(\d\d(?:[.,]\d{1,9})?)(Z|[+-]\d\d:?\d\d)?")
"""Year to minute, seconds, and the zone where there is one."""
_KEPT = 256


class Moments:
    """Reads times; those that name no zone are of `zone`, or where that is None of the machine that reads them."""

    def __init__(self, zone: tzinfo | None = None) -> None:
        self._zone = zone
        self._minutes: dict[bytes, float | None] = {}

    def find(self, line: bytes, start: int = 0, end: int = 1 << 62) -> float | None:
        """Return the first time in a part of a line, in unix seconds, or None.

        >>> from datetime import UTC
        >>> Moments(UTC).find(b"[2026-08-22 15:22:22.5] iteration"), Moments().find(b"2025-06-12T14:03:21Z stdout F")
        (1787412142.5, 1749737001.0)
        """
        match = STAMP.search(line, start, end)
        return None if match is None else self.read(match)

    def read(self, match: re.Match[bytes]) -> float | None:
        """Return the time that `STAMP` matched, None where there is no such day or hour."""
        text, seconds, zone = match.groups()
        minute = self.minute(text + (zone or b""))
        return None if minute is None else minute + float(seconds.replace(b",", b"."))

    def minute(self, text: bytes) -> float | None:
        """Return the beginning of a minute, `2026-08-22 15:22` with or without a zone; None where there is none."""
        if text not in self._minutes:
            if len(self._minutes) >= _KEPT:
                self._minutes.clear()
            self._minutes[text] = self._begin(text)
        return self._minutes[text]

    def _begin(self, text: bytes) -> float | None:
        try:
            moment = datetime.fromisoformat(text.decode())
            return (moment if moment.tzinfo else moment.replace(tzinfo=self._zone)).timestamp()
        except (ValueError, OverflowError, OSError):
            return None
