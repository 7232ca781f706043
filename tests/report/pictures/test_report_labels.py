"""Axes of the report's pictures: even ticks, room for every label, nothing covered."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netsplit.report.pictures.axes import even_axis, log_axis, ticks


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


def test_powers_of_ten_are_told_once() -> None:
    axis = even_axis("loss", 0.0, 1.5e12, 0, 1)
    assert (axis.name, axis.texts) == ("loss × 10¹²", ["0.0", "0.5", "1.0", "1.5"])  # noqa: RUF001
    assert even_axis("loss", 0.0, 2e-5, 0, 1).name == "loss × 10⁻⁶"  # noqa: RUF001
    assert even_axis("%", 0.0, 100.0, 0, 1).texts == ["0", "20", "40", "60", "80", "100"]
    assert log_axis("ms", 5.0, 5e6, 0, 1).texts == ["10", "100", "1,000", "10,000", "10⁵", "10⁶"]
    assert log_axis("ms", 0.8, 1.3, 0, 1).texts == ["0.8", "0.9", "1.0", "1.1", "1.2", "1.3"]
