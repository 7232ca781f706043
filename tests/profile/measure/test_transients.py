"""What operators allocate for themselves is known by node, and measuring it leaves no trace."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from netsplit.graph import Graph, capture, initial_values
from netsplit.profile.costs import NodeBytes
from netsplit.profile.measure.predicted_bytes import transient_bytes
from tests.cover import few
from tests.nets import CASES

ROWS, CLASSES = 64, 50
LOGITS = 4 * ROWS * CLASSES


def classified(net: nn.Module) -> tuple[Graph, dict[str, NodeBytes]]:
    batch = torch.randn(ROWS, 10), torch.randint(CLASSES, (ROWS,))
    graph = capture(net, nn.CrossEntropyLoss(), batch)
    return graph, transient_bytes(graph, batch, initial_values(net, graph), "cpu")


def test_a_loss_of_two_operators_has_a_gradient_between_them() -> None:
    """Forward what it saves, logarithms of the softmax and a sum of weights, which is let go of before the
    second gradient is made; backward the first."""
    graph, transients = classified(nn.Linear(10, CLASSES))
    linear, loss = graph
    assert linear.name not in transients
    assert transients == {loss.name: NodeBytes(LOGITS + 4, LOGITS - 4)}


@pytest.mark.parametrize("name", few(list(CASES), 5))
def test_nothing_is_changed_and_every_number_is_one_of_bytes(name: str) -> None:
    case = CASES[name]
    net = case.fresh()
    graph = capture(net, case.loss, case.batch())
    values = initial_values(net, graph)
    kept = {k: value.clone() for k, value in values.items()}
    state = torch.get_rng_state()
    inputs, targets = case.batch()
    transients = transient_bytes(graph, (*inputs, targets), values, "cpu")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(values[k], kept[k]) for k in kept)
    assert transients.keys() <= graph.nodes.keys()
    assert all(each.forward >= 0 and each.backward >= 0 for each in transients.values())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: asks its allocator")
def test_on_a_gpu_the_allocator_tells() -> None:
    batch = torch.randn(ROWS, 10), torch.randint(CLASSES, (ROWS,))
    net = nn.Linear(10, CLASSES)
    graph = capture(net, nn.CrossEntropyLoss(), batch)
    transients = transient_bytes(graph, batch, initial_values(net, graph), "cuda")
    assert transients[list(graph.nodes)[-1]].backward >= LOGITS
