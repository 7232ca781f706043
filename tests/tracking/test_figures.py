"""Pictures are real images with one mark for each thing they show."""

from __future__ import annotations

from pathlib import Path

from matplotlib.collections import PolyCollection

from netsplit.pictures.timeline_figure import timeline_figure
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
