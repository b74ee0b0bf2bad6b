"""Numbers get their words and units, and no more digits than are known."""

import math

import pytest

from hasten import format
from hasten.records import Interval, Where


@pytest.mark.parametrize(
    ("value", "plain", "rough"),
    [
        (0.0, "0 ms", "0 ms"),
        (4e-8, "40.0 ns", "40 ns"),
        (3.21e-5, "32.1 µs", "32 µs"),
        (0.000412, "412 µs", "410 µs"),
        (0.0009996, "1.0 ms", "1.0 ms"),
        (0.00912, "9.1 ms", "9.1 ms"),
        (0.0412, "41.2 ms", "41 ms"),
        (0.3124, "312 ms", "310 ms"),
        (0.9996, "1.0 s", "1.0 s"),
        (13.72, "13.7 s", "14 s"),
        (118.0, "118 s", "120 s"),
        (750.0, "12.5 min", "12 min"),
        (9000.0, "2.5 h", "2.5 h"),
        (-0.0031, "-3.1 ms", "-3.1 ms"),
    ],
)
def test_seconds_take_the_unit_that_keeps_them_short(value, plain, rough):
    assert format.seconds(value) == plain
    assert format.seconds(value, rough=True) == rough


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (0.3124, 0.3051, 0.3197, "312 ms (305 to 320)"),
        (0.0598, 0.0581, 0.0614, "59.8 ms (58.1 to 61.4)"),
        (0.312, 0.25, 0.4, "310 ms (250 to 400)"),
        (0.95, 0.9, 1.01, "0.95 s (0.90 to 1.01)"),
        (13.7, 9.0, 18.0, "14 s (9 to 18)"),
        (0.0, -0.0021, 0.0018, "0.0 ms (-2.1 to 1.8)"),
        (6.7, 6.7, 6.7, "6.7 s"),
        (6.7, -math.inf, math.inf, "6.7 s"),
    ],
)
def test_an_interval_has_the_digits_its_width_allows(value, low, high, text):
    assert format.interval(Interval(value, low, high)) == text


def test_the_ends_of_an_interval_carry_their_unit():
    assert format.bounds(Interval(0.1204, 0.1103, 0.1312)) == "110 to 131 ms"
    assert format.bounds(Interval(1.0, 1.0, 1.0)) == ""
    assert format.middle(Interval(0.1204, 0.1103, 0.1312)) == "120 ms"


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1023.9, "1.0 KiB"), (399_000, "390 KiB"), (15.6 * 2**30, "15.6 GiB")],
)
def test_bytes_take_binary_units(num_bytes, text):
    assert format.size(num_bytes) == text


def test_bytes_of_a_whole_say_their_unit_once():
    assert format.size_of(3.2 * 2**30, 15.6 * 2**30) == "3.2 of 15.6 GiB"
    assert format.size_of(2**20, 2**30) == "1.0 MiB of 1.0 GiB"


def test_ratios_shares_and_rates_are_short():
    assert [format.ratio(x) for x in (0.98, 1.15, 3.21, 9.96, 12.3)] == [
        "0.98x",
        "1.15x",
        "3.2x",
        "10x",
        "12x",
    ]
    assert [format.share(x) for x in (0, 1e-4, 0.004, 0.41)] == ["0%", "<0.1%", "0.4%", "41%"]
    assert [format.rate(x) for x in (0.51, 18.94, 12345)] == [
        "0.51 samples/s",
        "18.9 samples/s",
        "12,300 samples/s",
    ]
    assert format.share_interval(Interval(0.004, -0.002, 0.011)) == "0.4% (-0.2 to 1.1)"
    assert format.size_rate(2**20) == "1.0 MiB/s"
    assert (format.celsius(61.2), format.watts(88.4)) == ("61 °C", "88 W")


def test_counts_agree_with_their_nouns():
    assert format.count(1, noun="step") == "1 step"
    assert format.count(112120, noun="sample") == "112,120 samples"
    assert [format.amount(x) for x in (2.0, 0.12, 1234.5)] == ["2", "0.1", "1,234"]


@pytest.mark.parametrize("unmeasured", [None, math.nan, math.inf])
def test_what_was_not_measured_is_never_a_number(unmeasured):
    words = (
        format.seconds,
        format.size,
        format.ratio,
        format.share,
        format.rate,
        format.amount,
        format.celsius,
    )
    assert {word(unmeasured) for word in words} == {"not measured"}
    assert format.seconds(unmeasured, unknown="not seen") == "not seen"


def test_an_unmeasured_interval_or_count_or_place_says_so():
    assert format.interval(None) == format.share_interval(None) == format.count(None) == "not measured"
    assert format.place(None) == "not seen"


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (Where("/home/ada/train.py", 88, "train"), "train.py:88 in train()"),
        (Where("/home/ada/pkg/train.py", 8, "<module>"), "pkg/train.py:8"),
        (Where("/home/adam/train.py", 8), "/home/adam/train.py:8"),
        (Where("/home/ada/train.py", 3, "<lambda>"), "train.py:3 in <lambda>"),
    ],
)
def test_a_place_is_told_relative_to_the_run(where, text):
    assert format.place(where, directory="/home/ada") == text


def test_a_place_on_windows_is_told_relative_to_the_run():
    assert format.place(Where("C:\\films\\train.py", 8), directory="C:\\films") == "train.py:8"
