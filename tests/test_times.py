"""Times and durations as people type them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca.errors import UsageError
from rca.plain import stamp
from rca.times import parse_duration, parse_time

NOW = 1_772_373_600.0


@pytest.mark.parametrize(("text", "expected"), [
    ("now", NOW), (" now ", NOW), ("-2h", NOW - 7200), ("-1h30m", NOW - 5400), ("- 15m", NOW - 900),
    ("2026-03-01T14:00:00Z", NOW), ("2026-03-01T14:00:00z", NOW), ("2026-03-01T15:00:00+01:00", NOW),
    ("2026-03-01 14:00:00Z", NOW), ("2026-03-01T14:00:00.5Z", NOW + 0.5), ("2026-03-01T09:30:00-04:30", NOW),
])  # fmt: skip
def test_times(text: str, expected: float) -> None:
    assert parse_time("--at", text, NOW) == expected


@pytest.mark.parametrize(("text", "said"), [
    ("2026-03-01T14:00:00", "has no time zone, write 2026-03-01T14:00:00Z for UTC"),
    ("2026-03-01", "not a time"), ("yesterday", "not a time"), ("", "not a time"), ("1772373600", "not a time"),
    ("+2h", "not a time"), ("-2", "not a duration: '2'"), ("2026-13-01T14:00:00Z", "no such time"),
    ("2026-02-30T14:00:00Z", "no such time"), ("2026-03-01T14:00:00+99:00", "no such time"),
    ("0001-01-01T00:00:00+23:00", "before 1970"), ("-9999w", "before 1970"),
])  # fmt: skip
def test_what_is_no_time_is_refused_with_what_would_be_right(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=r"^--at: ") as caught:
        parse_time("--at", text, NOW)
    assert said in str(caught.value)


def test_a_duration_that_is_none_names_its_flag() -> None:
    assert parse_duration("--window", "15m") == 900.0
    with pytest.raises(UsageError, match=r"^--window: not a duration: '15', write for example"):
        parse_duration("--window", "15")


@given(st.integers(min_value=0, max_value=4_102_444_800))
def test_a_stamp_is_a_time_again(seconds: int) -> None:
    assert parse_time("--at", stamp(float(seconds)), 0.0) == seconds
