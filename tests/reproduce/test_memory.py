"""`reproduce.memory` and `exported`: counted by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from netsplit.models import amoebanet_d
from reproduce import ByName, memory_needs
from reproduce.exported import exported_size
from reproduce.onnx_graphs import graph_of, inference_model
from tests.reproduce.nets import CONV, HEAD, IMAGE, IN, MAP, MID, POOLED, SCORES, Counted, case


def test_an_export_folds_the_norm_and_drops_the_dropout() -> None:
    size = exported_size(case().exported_graph(), merge=False)
    assert size.operators == 6  # convolution, two equal ReLUs, sum, mean, linear
    assert size.nodes >= size.operators
    assert size.variable_bytes == IMAGE + 4 * MAP + POOLED + SCORES
    assert size.parameter_bytes == CONV + MID * 4 + HEAD  # a bias comes into the convolution
    assert size.need_bytes(4) == 2 * size.variable_bytes + 4 * size.parameter_bytes


def test_equal_operators_are_merged_where_that_is_asked_for() -> None:
    unmerged, merged = (exported_size(case().exported_graph(), merge) for merge in (False, True))
    assert (merged.operators, merged.nodes) == (unmerged.operators - 1, unmerged.nodes - 1)
    assert merged.variable_bytes == unmerged.variable_bytes - MAP
    assert merged.parameter_bytes == unmerged.parameter_bytes


@pytest.mark.parametrize(
    "build",
    [Counted, pytest.param(lambda: amoebanet_d(10, 3, 32, small_images=True), marks=pytest.mark.slow)],
)
def test_merging_leaves_what_an_exporter_that_merges_writes(build: Callable[[], nn.Module]) -> None:
    """And an export without merging has more than that: the pass is left out, and is back afterwards."""
    model, image = build(), torch.zeros(1, IN, 32, 32)
    for tensor in model.parameters():
        nn.init.uniform_(tensor)
    graphs = [
        graph_of(inference_model(model, image, merge=merge), "a file", {"batch": 2})
        for merge in (True, False, True)
    ]
    before, unmerged, after = (exported_size(graph, merge=False) for graph in graphs)
    assert before == after == exported_size(graphs[1], merge=True)
    assert unmerged.operators > before.operators
    assert unmerged.variable_bytes > before.variable_bytes


def test_the_table_has_the_figures_counted_by_hand_and_the_difference() -> None:
    exported = 2 * (IMAGE + 4 * MAP + POOLED + SCORES) + 4 * (CONV + MID * 4 + HEAD)
    merged = exported - 2 * MAP
    printed_mib = exported / 2**20 / 1.25
    named = case(reference={"nodes": 7, "mib": printed_mib}, label="Counted")
    result = memory_needs(ByName({"mine": named, "other": case()}), alpha=4)
    assert result.column("model") == ["Counted", "other"]
    assert result.column("exported (MiB)") == [exported, exported]
    assert result.column("merged (MiB)") == [merged, merged]
    assert result.column("difference (%)") == [pytest.approx(0.25), None]
    assert result.column("difference merged (%)") == [pytest.approx(merged / exported * 1.25 - 1), None]
    operators = [result.column(f"operators {name}") for name in ("exported", "merged")]
    assert operators == [[6, 6], [5, 5]]
    assert result.column("nodes printed") == [7, None]
    assert result.metrics["exported_bytes.mine"] == exported
    assert result.metrics["merged_bytes.mine"] == merged
    (parameters, _) = result.column("parameters (M)")
    assert parameters == (CONV + HEAD) / 4 + 2 * MID
    # convolution, norm, two ReLUs, sum, dropout, mean, linear, loss; the norm's batch counter is one more
    nodes = result.column("nodes")[0]
    assert nodes in (9, 10)
    static, peak = result.column("static (MiB)")[0], result.column("peak (MiB)")[0]
    assert isinstance(static, int)
    assert isinstance(peak, int)
    assert static >= 2 * (IMAGE + 6 * MAP) + 4 * (CONV + HEAD)
    assert CONV + HEAD < peak < static
