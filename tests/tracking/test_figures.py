"""Pictures are real images with one mark for each thing they show."""

from __future__ import annotations

from pathlib import Path

from matplotlib.collections import PathCollection, PolyCollection

from netsplit.cluster.cluster import Link
from netsplit.pictures.timeline_figure import timeline_figure
from netsplit.tracking.figures import link_figure
from tests.tracking.samples import timeline


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
