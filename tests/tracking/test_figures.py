"""Pictures are real images with one mark for each thing they show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.collections import LineCollection, PathCollection, PolyCollection

from netsplit.cluster.cluster import Link
from netsplit.rewrite.node_parts import NodePart, PartCut
from netsplit.tracking.figures import (
    TrainingCurve,
    comparison_figure,
    link_figure,
    timeline_figure,
    training_figure,
)
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


def test_timeline_boxes_carry_their_micro_batch(tmp_path: Path) -> None:
    figure = timeline_figure(timeline(), None, tmp_path / "timeline.png")
    labels = [text.get_text() for text in figure.axes[0].texts]
    assert sorted(labels) == ["0", "0", "0", "1", "1", "1", "1"]


def test_boxes_that_compute_parts_have_a_line_and_say_so_where_there_is_room() -> None:
    cut = PartCut(1, 2, 0.5, 0, 1, samples=True)
    part = NodePart("linear", "fc1", (cut,), copy=None, variables=False)
    events = timeline().events
    name = next(event.name for event in events if event.kind == "forward")
    figure = timeline_figure(timeline(), timeline(2.0), parts={name: (part,)})
    computed = [e for e in events if e.name == name and e.kind in ("forward", "backward")]
    for axes in figure.axes:
        lines = [each for each in axes.collections if isinstance(each, LineCollection)]
        assert sum(len(each.get_segments()) for each in lines) == len(computed) > 0
    texts = [text.get_text() for text in figure.axes[1].texts]
    assert [text for text in texts if ": " in text]
    assert {text.partition(": ")[2] for text in texts} <= {"", "part 2/2 of linear", "2/2"}
    assert figure.legends[0].get_texts()[-1].get_text() == "computes parts of operators"
    whole = replace(part, cuts=(), variables=True)
    assert len(timeline_figure(timeline(), parts={name: (whole,)}).legends[0].get_texts()) < len(
        figure.legends[0].get_texts()
    )


def test_an_empty_timeline_can_be_drawn(tmp_path: Path) -> None:
    from netsplit.simulate.timeline import Timeline

    timeline_figure(Timeline((), 0.0), None, tmp_path / "empty.png")
    assert_png(tmp_path / "empty.png")


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
    assert labels == [
        "cpu:0 → cpu:1: 50 µs, 1.00 GB/s, R² 0.9987",
        "cpu:1 → cpu:0: 10 µs, 1.00 GB/s, given",
    ]


def test_training_curves_by_epoch_and_by_time(tmp_path: Path) -> None:
    curve = TrainingCurve([2.0, 1.0, 0.5], [0.3, 0.6, 0.9], [4.0, 3.0, 3.0])
    figure = training_figure({"netsplit": curve, "single": curve}, tmp_path / "training.png")
    assert_png(tmp_path / "training.png")
    assert [len(axes.lines) for axes in figure.axes] == [2, 2, 2, 2]
    assert np.asarray(figure.axes[3].lines[0].get_xdata()).tolist() == [4.0, 7.0, 10.0]
    assert np.asarray(figure.axes[3].lines[0].get_ydata()).tolist() == [30.0, 60.0, 90.0]


def test_comparison_has_bars_for_each_method_and_says_failed(tmp_path: Path) -> None:
    figure = comparison_figure(rows(), tmp_path / "comparison.png")
    assert_png(tmp_path / "comparison.png")
    left, right = figure.axes
    assert (len(left.patches), len(right.patches)) == (4, 8)
    assert [text.get_text() for text in left.texts] == ["128.0", "106.7", "failed", "71.0"]


def test_the_suffix_chooses_the_format(tmp_path: Path) -> None:
    timeline_figure(timeline(), None, tmp_path / "timeline.svg")
    assert "<svg" in (tmp_path / "timeline.svg").read_text()[:2000]


def test_of_what_was_only_planned_nothing_is_called_measured(tmp_path: Path) -> None:
    planned = [replace(row, measured_s=None) for row in rows()]
    figure = comparison_figure(planned, tmp_path / "comparison.png")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["predicted"]
    assert figure.axes[0].get_xlabel() == "throughput, predicted (samples/s)"
