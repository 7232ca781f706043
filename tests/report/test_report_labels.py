"""Numbers, names and axes of the report: equal decimals, room for every label, nothing covered."""

from __future__ import annotations

import math
from itertools import pairwise
from xml.etree.ElementTree import fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netsplit.report.pictures.axes import even_axis, log_axis, ticks
from netsplit.report.pictures.curves import _LINE, _apart
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


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.sampled_from([0.0, 1.0]))
def test_ticks_are_even_and_enclose_what_is_drawn(low: float, length: float, least: float) -> None:
    high = low + length
    places = ticks(low, high, least)
    steps = [b - a for a, b in pairwise(places)]
    step = steps[0]
    assert 2 <= len(places) <= 9
    assert step > 0
    assert step >= least
    assert steps == pytest.approx([step] * len(steps), rel=1e-6)
    assert places[0] <= low + 1e-6 * step
    assert places[-1] >= high - 1e-6 * step


@given(st.floats(-1e15, 1e15), st.floats(0, 1e15))
def test_every_tick_has_a_text_of_its_own_that_has_room(low: float, length: float) -> None:
    axis = even_axis("loss", low, low + length, 180, 20)
    assert len(set(axis.texts)) == len(axis.ticks)
    assert axis.room >= 7 * max(map(len, axis.texts))
    assert axis.room <= 130


def test_powers_of_ten_are_told_once() -> None:
    axis = even_axis("loss", 0.0, 1.5e12, 0, 1)
    assert (axis.name, axis.texts) == ("loss × 10¹²", ["0.0", "0.5", "1.0", "1.5"])  # noqa: RUF001
    assert even_axis("loss", 0.0, 2e-5, 0, 1).name == "loss × 10⁻⁶"  # noqa: RUF001
    assert even_axis("%", 0.0, 100.0, 0, 1).texts == ["0", "20", "40", "60", "80", "100"]
    assert log_axis("ms", 5.0, 5e6, 0, 1).texts == ["10", "100", "1,000", "10,000", "10⁵", "10⁶"]
    assert log_axis("ms", 0.8, 1.3, 0, 1).texts == ["0.8", "0.9", "1.0", "1.1", "1.2", "1.3"]


def test_the_first_tick_below_stands_beside_that_of_the_y_axis() -> None:
    x, y = log_axis("ms", 80.0, 150.0, 40, 326), log_axis("ms", 80.0, 150.0, 308, 22)
    frame = HTML.get_template("pictures.html.j2").module.frame  # type: ignore[attr-defined]
    texts = [each for each in fromstring(f"<svg>{frame(x, y, 342)}</svg>") if each.text == "80"]
    beside, below = sorted(texts, key=lambda each: each.get("text-anchor") == "middle")
    assert float(below.get("x") or 0) - 7 * len("80") / 2 > float(beside.get("x") or 0)


@given(st.text(min_size=1), st.integers(4, 40))
def test_a_shortened_name_keeps_its_ends(text: str, limit: int) -> None:
    shortened = abbreviated(text, limit)
    assert len(shortened) <= limit
    assert shortened == text or (shortened[0] == text[0] and "…" in shortened)


def test_names_that_differ_at_their_ends_stay_apart() -> None:
    assert abbreviated("netsplit_without_links", 12) == "netsplit…nks"
    assert abbreviated("netsplit_without_backward", 12) == "netsplit…ard"


@given(st.lists(st.floats(10, 200), min_size=1, max_size=12))
def test_names_beside_curves_do_not_cover_one_another(wanted: list[float]) -> None:
    places = sorted(_apart(wanted, 10, 200))
    assert all(b - a >= _LINE - 1e-9 for a, b in pairwise(places))
    assert places[-1] <= 200
    assert places[0] >= 200 - _LINE * 15
