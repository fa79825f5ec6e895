from __future__ import annotations

import math

import pytest

from engine.formats import format_duration, format_hours, format_number, format_time


@pytest.mark.parametrize(
    ("seconds", "clock"),
    [(0, "0:00"), (7.4, "0:07"), (59.6, "1:00"), (750, "12:30"), (3723, "1:02:03")],
)
def test_duration_is_a_clock(seconds, clock):
    assert format_duration(seconds) == clock


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(98.6, "99 s"), (720, "12 min"), (3725, "62 min"), (7500, "2 h 5 min")],
)
def test_time_takes_the_unit_that_a_reader_expects(seconds, text):
    assert format_time(seconds) == text


@pytest.mark.parametrize(
    ("hours", "text"), [(0.251, "0.25 h"), (3.44, "3.4 h"), (12.6, "13 h"), (1250, "1,250 h")]
)
def test_hours_have_two_digits_or_more(hours, text):
    assert format_hours(hours) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123456, "0.01235"),
        (12345.6, "12,346"),
        (-1234567, "-1,234,567"),
        (0, "0"),
        (1.2346e-7, "1.235e-07"),
        (math.nan, "nan"),
        (math.inf, "inf"),
    ],
)
def test_numbers_keep_their_significant_digits(value, text):
    assert format_number(value) == text
