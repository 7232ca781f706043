"""Pictures are real images with one mark for each thing they show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from matplotlib.collections import PathCollection, PolyCollection

from netsplit.cluster.cluster import Link
from netsplit.tracking.figures import comparison_figure, link_figure, timeline_figure
from tests.tracking.samples import rows, timeline


def assert_png(path: Path) -> None:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 5000


def test_timeline_shows_every_event_of_both_on_one_axis(tmp_path: Path) -> None:
    figure = timeline_figure(timeline(), timeline(1.5), tmp_path / "timeline.png")
    assert_png(tmp_path / "timeline.png")
    assert len(figure.axes) == 2
    for axes in figure.axes:
        boxes = [c for c in axes.collections if isinstance(c, PolyCollection)]
        assert sum(len(c.get_paths()) for c in boxes) == len(timeline().events)
        assert [t.get_text() for t in axes.get_yticklabels()] == ["cpu:0", "cpu:1", "cpu:0 → cpu:1"]
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()


def test_links_have_points_a_line_and_their_fit_in_the_legend(tmp_path: Path) -> None:
    pairs = [("cpu:0", "cpu:1"), ("cpu:1", "cpu:0")]
    link = Link(50e-6, 1e-9, 0.9987)
    samples = {pair: [(1 << k, link.seconds(1 << k)) for k in range(10, 24, 2)] for pair in pairs}
    figure = link_figure(samples, {pairs[0]: link, pairs[1]: Link(1e-5, 1e-9)}, tmp_path / "links.png")
    assert_png(tmp_path / "links.png")
    (axes,) = figure.axes
    assert len([c for c in axes.collections if isinstance(c, PathCollection)]) == 2
    legend = axes.get_legend()
    assert legend is not None
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["cpu:0 → cpu:1: 50 µs, 1.00 GB/s, R² 0.9987", "cpu:1 → cpu:0: 10 µs, 1.00 GB/s, given"]


def test_comparison_has_bars_for_each_method_and_says_failed(tmp_path: Path) -> None:
    figure = comparison_figure(rows(), tmp_path / "comparison.png")
    assert_png(tmp_path / "comparison.png")
    left, right = figure.axes
    assert (len(left.patches), len(right.patches)) == (4, 8)
    assert [text.get_text() for text in left.texts] == ["128.0", "106.7", "failed", "71.0"]


def test_of_what_was_only_planned_nothing_is_called_measured(tmp_path: Path) -> None:
    planned = [replace(row, measured_s=None) for row in rows()]
    figure = comparison_figure(planned, tmp_path / "comparison.png")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["predicted"]
    assert figure.axes[0].get_xlabel() == "throughput, predicted (samples/s)"
