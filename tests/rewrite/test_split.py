"""An operator in parts is the same operator: loss, all gradients, and what its graph says of itself."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from netsplit.errors import RewriteError
from netsplit.graph import Graph, capture, initial_values, rebuild
from netsplit.rewrite import split_axes
from tests.examples import tried
from tests.rewrite.models import STEPS, Step, assert_same_step, result_of, split_operator
from tests.rewrite.recording import assert_as_recorded, recorded

PATIENT = settings(deadline=None)


def drawn_split(data: st.DataObject, graph: Graph) -> Graph:
    """One operator of the graph in parts; the graph itself where it cannot be cut so."""
    few = [node.name for node in graph if len(node.outputs) < 8]  # parts of many pieces are very many
    node = data.draw(st.sampled_from(few), label="node")
    axes = split_axes(graph, node) if len(graph) < 100 else {}
    if not axes:
        return graph
    axis = data.draw(st.sampled_from(list(axes)), label="axis")
    size = axes[axis]
    blocks = data.draw(st.sampled_from([b for b in (1, 2, 3) if size % b == 0 and size > b]), label="blocks")
    cuts = data.draw(st.sets(st.integers(1, size // blocks - 1), min_size=1, max_size=3), label="cuts")
    ends = [0, *sorted(cuts), size // blocks]
    sizes = [b - a for a, b in pairwise(ends)]
    try:
        return split_operator(graph, node, axis, sizes, blocks)
    except RewriteError as error:
        if "give blocks=1" not in str(error):
            raise
        return graph


@pytest.mark.parametrize("name", STEPS)
def test_every_axis_of_every_operator(name: str) -> None:
    """None is refused that `split_axes` names; uneven parts, and more of them, are drawn below."""
    step = STEPS[name]
    graph = step.graph()
    cut = 0
    for node in graph.nodes:
        for axis, size in split_axes(graph, node).items():
            for parts in range(2, min(size, 1 + tried(2)) + 1):
                assert_same_step(step, split_operator(graph, node, axis, parts))
                cut += 1
    assert cut > len(graph)


@pytest.mark.parametrize("name", STEPS)
@settings(PATIENT, max_examples=tried(24))
@given(data=st.data())
def test_several_rewrites_one_after_another(name: str, data: st.DataObject) -> None:
    """The same step of any operators, parts of parts among them, by uneven sizes, in blocks."""
    step = STEPS[name]
    graph = step.graph()
    for _ in range(data.draw(st.integers(1, 6), label="rewrites")):
        graph = drawn_split(data, graph)
    assert_same_step(step, graph)


@pytest.mark.parametrize("name", STEPS)
@settings(PATIENT, max_examples=tried(9))
@given(data=st.data())
def test_the_analysis_is_that_of_a_full_recording(name: str, data: st.DataObject) -> None:
    """Though only new nodes are run, and those that read tensors which lie in memory otherwise."""
    step = STEPS[name]
    batch = (step.inputs, step.targets)
    model = rebuild(step.graph(), initial_values(step.fresh(), step.graph()))
    graph = recorded(step.graph(), model, batch)
    for _ in range(data.draw(st.integers(1, 4), label="rewrites")):
        graph = drawn_split(data, graph)
    assert_as_recorded(graph, recorded(graph, model, batch))


def test_a_chain_is_split_without_putting_anything_together() -> None:
    """Linear by columns, GELU, linear by rows: one sum at the end, as in Megatron."""
    step = STEPS["mlp"]
    graph = split_operator(step.graph(), "linear", 1, 3)
    graph = split_operator(graph, "gelu", 1, 3)
    graph = split_operator(graph, "linear_1", "input.1", 3)
    assert "aten.cat.default" not in [node.op for node in graph]
    for i in range(3):
        assert graph.successors[f"linear:{i}"] == (f"gelu:{i}",)
        assert graph.successors[f"gelu:{i}"] == (f"linear_1:{i}",)
    assert sum(node.op == "aten.add.Tensor" for node in graph) == 2
    assert not [set_ for set_ in graph.colocated if {"linear:0", "linear:1"} <= set(set_)]
    assert_same_step(step, graph)


def test_heads_of_a_fused_projection_stay_apart() -> None:
    """Three regions of one weight for each head; nothing is put together up to the sum of the projections."""
    step = STEPS["transformer"]
    graph = split_operator(step.graph(), "linear", 2, 2, blocks=3)
    heads = [("chunk", 2), *((name, 2) for name in ("view", "view_1", "view_2"))]
    heads += [(name, 1) for name in ("transpose", "transpose_1", "transpose_2")]
    heads += [("scaled_dot_product_attention", 1), ("transpose_3", 2), ("reshape", 2)]
    for name, axis in [*heads, ("linear_1", "input.2")]:
        graph = split_operator(graph, name, axis, 2)
    assert sorted(node.name for node in graph if node.op == "aten.cat.default") == [
        f"qkv.{kind}:cat{more}" for kind in ("bias", "weight") for more in ("", " 2")
    ]
    assert graph.successors["linear:0"] == ("chunk:0",)
    assert graph.successors["reshape:1"] == ("linear_1:1",)
    assert graph.variables["linear:0"].shape == (8, 5, 12)
    assert_same_step(step, graph)


def test_parts_of_one_tensor_are_cut_once() -> None:
    """Readers that are cut alike share the pieces."""
    step = STEPS["products"]
    graph = step.graph()
    for name in [node.name for node in graph if node.kind in ("gt", "mul")]:
        graph = split_operator(graph, name, 0, 3)
    cuts = [node for node in graph if node.op == "aten.split_with_sizes.default"]
    assert len({(node.inputs, str(node.args[1:])) for node in cuts}) == len(cuts)
    assert_same_step(step, graph)


class Repeated(nn.Module):
    """A half of a tensor twice, beside the whole of another."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(6, 4)
        self.other = nn.Linear(6, 2)
        self.outward = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        first, _ = self.inward(x).split_with_sizes([2, 2], 1)
        return self.outward(torch.tanh(torch.cat([first, first, self.other(x)], 1)))


@pytest.mark.parametrize("sizes", [(4, 2), (2, 4), (2, 2, 2), (3, 3)])
def test_a_piece_that_comes_twice_is_not_the_whole(sizes: tuple[int, ...]) -> None:
    step = replace(STEPS["mlp"], build=Repeated)
    assert_same_step(step, split_operator(step.graph(), "tanh", 1, sizes))


@pytest.mark.parametrize("blocks", [1, 2])
def test_groups_in_blocks(blocks: int) -> None:
    """Groups from two halves go together, each with its own channels."""
    step = STEPS["grouped"]
    for node in ("group_norm", "conv2d", "conv2d_1"):
        assert split_axes(step.graph(), node)["groups"] // blocks > 1
        assert_same_step(step, split_operator(step.graph(), node, "groups", 2, blocks))


@pytest.mark.parametrize("word", [-1, 12])
def test_what_is_no_word_is_refused_by_parts_too(word: int) -> None:
    """As by the whole table, and not taken for one that has nothing to add."""
    step = STEPS["transformer"]
    graph = split_operator(step.graph(), "embedding", "weight.0", 3)
    wrong = replace(step, inputs=step.inputs.clone())
    wrong.inputs[2, 3] = word
    for each in (step.graph(), graph):
        with pytest.raises(IndexError, match="out of range"):
            result_of(wrong, each)


def refused(graph: Graph, *asked: object, **options: int) -> str:
    with pytest.raises(RewriteError) as caught:
        split_operator(graph, *asked, **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


def test_what_is_refused_says_why() -> None:
    grouped, recurrent, mlp = (STEPS[name].graph() for name in ("grouped", "recurrent", "mlp"))
    assert "statistics span the whole batch" in refused(grouped, "batch_norm", 0, 2)
    assert "split along 'groups'" in refused(grouped, "conv2d", 1, 2)
    assert "edges of their neighbours" in refused(grouped, "conv2d", 2, 2)
    assert "writes in place" in refused(grouped, "add_", 0, 2)
    assert "every step needs the previous one" in refused(recurrent, "lstm", 1, 2)
    assert "needs all of it" in refused(recurrent, "softmax", 1, 2)
    assert "no such dimension" in refused(mlp, "linear", 5, 2)
    assert "0 (8), 1 (12), 'input.1' (6)" in refused(mlp, "linear", "weight.7", 2)
    words = STEPS["transformer"].graph()
    assert "give blocks=1" in refused(words, "embedding", "weight.0", 2, blocks=2)
    assert "leave a part empty" in refused(mlp, "linear", 1, 13)
    assert "[5, 5] of 12" in refused(mlp, "linear", 1, [5, 5])
    assert "not divide into 5 equal blocks" in refused(mlp, "linear", 1, 2, blocks=5)
    assert "no operator 'linear_9'" in refused(mlp, "linear_9", 1, 2)


def test_a_draw_is_not_split() -> None:
    """But that of a dropout, which each part makes for the whole."""
    model = nn.Sequential(nn.Linear(6, 8), nn.AlphaDropout(0.5), nn.Dropout(0.5), nn.Linear(8, 5)).double()
    step: Step = STEPS["mlp"]
    graph = capture(model, step.loss, (step.inputs, step.targets))
    assert "random" in refused(graph, "alpha_dropout", 0, 2)
    assert split_axes(graph, "alpha_dropout") == {}
    assert split_axes(graph, "dropout") == {0: 8, 1: 8}


class _Turned(nn.Module):
    def __init__(self, strided: bool) -> None:
        super().__init__()
        self.strided, self.inward, self.head = strided, nn.Linear(6, 12), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        doubled = 2 * self.inward(x).view(len(x), 3, 4).transpose(1, 2)
        if self.strided:
            return self.head(doubled.as_strided((len(x), 12), (12, 1)))
        copy = doubled.contiguous()
        copy.view(-1).mul_(0.5)
        return self.head((doubled + copy).flatten(1))


@pytest.mark.parametrize("strided", [False, True])
def test_parts_that_lie_otherwise_are_refused_where_another_operator_goes_by_that(strided: bool) -> None:
    graph = capture(_Turned(strided), nn.CrossEntropyLoss(), (torch.randn(4, 6), torch.arange(4)))
    with pytest.raises(RewriteError, match="whose memory layout differs"):
        split_operator(graph, "mul", 2, 3)
