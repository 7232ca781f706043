"""Numbers and names of the report: equal decimals, names that keep their ends, breaks that change nothing."""

from __future__ import annotations

import math

from netsplit.report.text import abbreviated, as_given, column, fixed, took


def test_numbers_of_a_column_have_equal_decimals() -> None:
    assert column([0.01234, 10.2, None]) == ["0.012", "10.200", "–"]  # noqa: RUF001
    assert column([1234.5, 99.96]) == ["1,234.5", "100.0"]
    assert as_given([41.83, None, 1000.0]) == ["41.83", "–", "1,000.00"]  # noqa: RUF001
    assert [fixed(x, 4) for x in (1.2345e12, -2e10)] == ["1.23e12", "−2.00e10"]  # noqa: RUF001
    assert fixed(-1.25, 1) == "−1.2"  # noqa: RUF001
    assert fixed(math.nan, 1) == "–"  # noqa: RUF001
    assert [took(s) for s in (4.4, 185, 7800, None)] == ["4 s", "3 min 05 s", "2 h 10 min", "–"]  # noqa: RUF001


def test_names_that_differ_at_their_ends_stay_apart() -> None:
    assert abbreviated("netsplit_without_links", 12) == "netsplit…nks"
    assert abbreviated("netsplit_without_backward", 12) == "netsplit…ard"
