"""Under autocast a graph has the dtypes of its run, and computed in pieces it gives the plain loop's bits."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from netsplit.errors import ConfigError
from netsplit.graph import (
    Graph,
    WeightGradients,
    capture,
    capture_inference,
    dumps,
    initial_values,
    loads,
    rebuild,
)
from netsplit.graph.autocast import autocast_of
from netsplit.graph.batches.batch import Batch
from netsplit.training.captures import Captures
from tests.cover import covering
from tests.nets import CASES


def _model(name: str) -> tuple[nn.Module, tuple[Tensor, ...], Tensor, nn.Module]:
    case = CASES[name]
    inputs = tuple(t.float() if t.is_floating_point() else t for t in case.inputs)
    return case.fresh().float(), inputs, case.targets, case.loss


def _in_pieces(
    graph: Graph, model: nn.Module, batch: tuple[Tensor, ...], parts: list[list[str]], deferrable: bool
) -> Tensor:
    """One step, part by part on leaves, each part in an autocast of its own; gradients are in the model."""
    values = dict(zip(graph.input_variables, batch, strict=True))
    kept = []
    initial = initial_values(model, graph)
    for nodes in parts:
        inside = set(nodes)
        inputs = list(dict.fromkeys(k for n in nodes for k in graph.nodes[n].inputs))
        inputs = [k for k in inputs if graph.variables[k].producer not in inside]
        made = [k for n in nodes for k in graph.nodes[n].outputs if k]
        outputs = [
            k
            for k in made
            if k in graph.output_variables or any(v not in inside for v in graph.variables[k].consumers)
        ]
        module = rebuild(graph, initial, nodes=nodes, inputs=inputs, outputs=outputs, deferrable=deferrable)
        leaves = [values[k].detach() for k in inputs]
        for k, leaf in zip(inputs, leaves, strict=True):
            leaf.requires_grad_(graph.variables[k].requires_grad)
        with autocast_of(graph, "cpu"):
            results = module(*leaves)
        for k, result in zip(outputs, results, strict=True):
            assert str(result.dtype) == f"torch.{graph.variables[k].dtype}"
            values[k] = result
        kept.append((dict(zip(inputs, leaves, strict=True)), dict(zip(outputs, results, strict=True))))
    (output,) = graph.output_variables
    grads: dict[str, Tensor] = {output: torch.ones_like(values[output])}
    for leaves_of, results_of in reversed(kept):
        queue = WeightGradients()
        ends = [k for k, t in results_of.items() if t.requires_grad and k in grads]
        if ends:
            with queue.collect():
                torch.autograd.backward([results_of[k] for k in ends], [grads[k] for k in ends])
        queue.run()
        for k, leaf in leaves_of.items():
            if leaf.grad is not None:
                grads[k] = grads[k] + leaf.grad if k in grads else leaf.grad
    return values[output].detach()


def _cuts(graph: Graph, seed: int, fraction: float) -> list[list[str]]:
    """The nodes in order, cut at random where no unit is cut."""
    last = {name: max(graph.position[n] for n in unit) for unit in graph.units for name in unit}
    pieces: list[list[str]] = [[]]
    uncut, order = -1, random.Random(seed)
    for node in graph:
        if pieces[-1] and graph.position[node.name] > uncut and order.random() < fraction:
            pieces.append([])
        pieces[-1].append(node.name)
        uncut = max(uncut, last.get(node.name, -1))
    return pieces


_PARTS = {"cat", "stack", "sum"}  # their backward gives views


def _sums_alike(graph: Graph, pieces: list[list[str]]) -> bool:
    """Whether every sum of gradients has the plain loop's order and precision.

    A sum over readers, the last first, is bracketed otherwise where a piece which is not the last to read
    sums several of them itself. And a weight used in two pieces is cast in each, and its gradients are
    summed in float32; a plain run casts it once, and sums in the low precision. Besides, a gradient that
    is a part or a repetition of another is made dense where it is handed on, and kernels then sum otherwise.
    """
    piece_of = {name: i for i, nodes in enumerate(pieces) for name in nodes}
    for k in graph.requires_backward:
        variable = graph.variables[k]
        readers = Counter(piece_of[v] for v in variable.consumers)
        readers.pop(piece_of.get(variable.producer or "", -1), None)
        if any(count > 1 for i, count in readers.items() if i != max(readers)):
            return False
        if any(
            graph.nodes[v].kind in _PARTS and piece_of[v] != piece_of.get(variable.producer or "")
            for v in variable.consumers
        ):
            return False
    weights = [k for k, init in graph.initializers.items() if init.requires_grad]
    return all(len({piece_of[n.name] for n in graph if k in n.initializers}) < 2 for k in weights)


@cache
def _captured(name: str, autocast: str) -> Graph:
    model, inputs, targets, loss_of = _model(name)
    return capture(model, loss_of, (inputs, targets), autocast=autocast)


@cache
def _plain(name: str, autocast: str) -> tuple[Tensor, dict[str, Tensor | None]]:
    model, inputs, targets, loss_of = _model(name)
    with torch.autocast("cpu", getattr(torch, autocast)):
        loss = loss_of(model(*inputs), targets)
    loss.backward()
    return loss.detach(), {k: p.grad for k, p in model.named_parameters()}


def _assert_same(name: str, autocast: str, fraction: float, seed: int, deferrable: bool) -> bool:
    """Compare a run in pieces with the plain loop; whether it had to be the same to the bit."""
    expected, gradients = _plain(name, autocast)
    graph = _captured(name, autocast)
    model, inputs, targets, _ = _model(name)
    pieces = _cuts(graph, seed, fraction)
    loss = _in_pieces(graph, model, (*inputs, targets), pieces, deferrable)
    exact = _sums_alike(graph, pieces)
    assert torch.equal(loss, expected)
    in_pieces = {key: p.grad for key, p in model.named_parameters()}
    assert {key for key, grad in in_pieces.items() if grad is None} == {
        k for k, g in gradients.items() if g is None
    }
    pairs = {
        key: (wanted, grad)
        for key, wanted in gradients.items()
        if wanted is not None and (grad := in_pieces[key]) is not None
    }
    assert all(grad.dtype == torch.float32 for _, grad in pairs.values())
    if exact:
        assert [key for key, (wanted, grad) in pairs.items() if not torch.equal(wanted, grad)] == []
    else:  # a few roundings to 8 bits; a single gradient may be next to nothing, such as before a norm
        whole, error = (
            torch.cat([f(*pair).flatten() for pair in pairs.values()]) for f in (lambda a, b: a, torch.sub)
        )
        assert error.norm() < 2**-6 * whole.norm()
    return exact


@covering(name=CASES, deferrable=[False, True])
def test_loss_and_gradients_are_those_of_the_plain_loop_bit_for_bit(name: str, deferrable: bool) -> None:
    assert _assert_same(name, "bfloat16", 0, 0, deferrable)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(CASES)), st.sampled_from([0.2, 0.5, 1]), st.integers(0, 2**31), st.booleans())
def test_pieces_with_an_autocast_each_give_the_plain_loops_loss_and_gradients(
    name: str, fraction: float, seed: int, deferrable: bool
) -> None:
    event(f"to the bit: {_assert_same(name, 'bfloat16', fraction, seed, deferrable)}")


@pytest.mark.parametrize("name", ["chain", "tied", "attention", "fan", "two_heads"])
def test_most_cuts_must_agree_to_the_bit(name: str) -> None:
    graph = _captured(name, "bfloat16")
    assert any(_sums_alike(graph, _cuts(graph, seed, 0.5)) for seed in range(20))


def test_an_inference_graph_has_the_dtypes_of_its_run_and_keeps_them_in_its_file() -> None:
    model, inputs, targets, loss_of = _model("chain")
    graph = capture_inference(model, inputs, autocast="bfloat16")
    (output,) = graph.output_variables
    assert graph.variables[output].dtype == "bfloat16"
    assert loads(dumps(graph)) == graph
    assert loads(dumps(graph)).autocast == "bfloat16"
    plain = capture(model, loss_of, (inputs, targets))
    assert plain.autocast is None
    assert {v.dtype for v in plain.variables.values()} == {"float32", "int64"}


def test_encoder_layers_predict_under_autocast_as_they_train(caplog: pytest.LogCaptureFixture) -> None:
    """Plain PyTorch takes a fused kernel on a CPU, which answers bfloat16."""
    torch.manual_seed(0)
    model, x = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), torch.randn(4, 5, 16)
    captures = Captures(model, None, "bfloat16", "cpu", trained=lambda: dict(model.named_parameters()))
    graph = captures.inference(Batch.of(x))
    assert [graph.variables[k].dtype for k in graph.output_variables] == ["float32"]
    assert captures.outputs(Batch.of(x)).dtype == torch.float32
    captures.inference(Batch.of(x[:3]))
    assert caplog.text.count("predicts with its attention layers as they train") == 1
    assert torch.backends.mha.get_fastpath_enabled()


def test_casts_count_among_what_a_backward_keeps() -> None:
    model, inputs, targets, loss_of = _model("chain")
    graphs = [capture(model, loss_of, (inputs, targets), autocast=a) for a in (None, "bfloat16")]
    (plain, cast) = (next(node for node in graph if node.kind == "conv2d") for graph in graphs)
    assert (plain.saved, plain.saved_bytes) == (("batch_0",), 0)
    # The input and the weight in two bytes an element; the weight itself is there anyway.
    assert (cast.saved, cast.saved_bytes) == ((), 2 * (8 * 3 * 8 * 8 + 6 * 3 * 3 * 3))


def test_an_unknown_precision_and_a_device_that_is_not_here_are_refused() -> None:
    model, inputs, targets, loss_of = _model("tied")
    with pytest.raises(ConfigError, match="autocast is 'float8': give bfloat16 or float16"):
        capture(model, loss_of, (inputs, targets), autocast="float8")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="as cuda devices do it"):
            capture(model, loss_of, (inputs, targets), autocast="bfloat16", device_type="cuda")
