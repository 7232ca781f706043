"""Numbers and names of the report: equal decimals, names that keep their ends, breaks that change nothing."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from netsplit.report.render import HTML
from netsplit.report.text import abbreviated, clean
from netsplit.report.units import as_given, column, fixed, took
from tests.tracking.reports import Parsed


def test_numbers_of_a_column_have_equal_decimals() -> None:
    assert column([0.01234, 10.2, None]) == ["0.012", "10.200", "–"]  # noqa: RUF001
    assert column([1234.5, 99.96]) == ["1,234.5", "100.0"]
    assert as_given([41.83, None, 1000.0]) == ["41.83", "–", "1,000.00"]  # noqa: RUF001
    assert [fixed(x, 4) for x in (1.2345e12, -2e10)] == ["1.23e12", "−2.00e10"]  # noqa: RUF001
    assert fixed(-1.25, 1) == "−1.2"  # noqa: RUF001
    assert fixed(math.nan, 1) == "–"  # noqa: RUF001
    assert [took(s) for s in (4.4, 185, 7800, None)] == ["4 s", "3 min 05 s", "2 h 10 min", "–"]  # noqa: RUF001


@given(st.text())
def test_breaks_change_no_character(text: str) -> None:
    macro = HTML.get_template("tables.html.j2").module.breakable  # type: ignore[attr-defined]
    page = Parsed(f"<p>{macro(text)}</p>")
    assert "".join(page.texts).strip("\n") == clean(text).strip("\n")
    assert all(len(word) <= 2 * 20 for part in page.texts for word in part.split())


@given(st.text(min_size=1), st.integers(4, 40))
def test_a_shortened_name_keeps_its_ends(text: str, limit: int) -> None:
    shortened = abbreviated(text, limit)
    assert len(shortened) <= limit
    assert shortened == text or (shortened[0] == text[0] and "…" in shortened)


def test_names_that_differ_at_their_ends_stay_apart() -> None:
    assert abbreviated("netsplit_without_links", 12) == "netsplit…nks"
    assert abbreviated("netsplit_without_backward", 12) == "netsplit…ard"
