"""Axes of the report's pictures: even ticks, room for every label, nothing covered."""

from __future__ import annotations

from itertools import pairwise
from xml.etree.ElementTree import fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netsplit.report.pictures.axes import even_axis, log_axis, ticks
from netsplit.report.pictures.curves import _LINE, _apart
from netsplit.report.render import HTML


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


@given(st.lists(st.floats(10, 200), min_size=1, max_size=12))
def test_names_beside_curves_do_not_cover_one_another(wanted: list[float]) -> None:
    places = sorted(_apart(wanted, 10, 200))
    assert all(b - a >= _LINE - 1e-9 for a, b in pairwise(places))
    assert places[-1] <= 200
    assert places[0] >= 200 - _LINE * 15
