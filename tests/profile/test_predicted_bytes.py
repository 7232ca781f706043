"""What nodes allocate for themselves, found without values: as the meter has it of real ones."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from torch import Tensor, nn

from netsplit.graph import Graph, capture, initial_values
from netsplit.profile.costs import NodeBytes
from netsplit.profile.measure.predicted_bytes import predicted_transients, transient_bytes
from tests.nets import CASES


def metered(
    model: nn.Module, loss: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor
) -> tuple[Graph, Mapping[str, NodeBytes]]:
    graph = capture(model, loss, (inputs, targets))
    batch = (*inputs, targets)
    return graph, transient_bytes(graph, batch, initial_values(model, graph, loss), "cpu")


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_those_that_a_meter_sees(name: str) -> None:
    case = CASES[name]
    graph, expected = metered(case.fresh(), case.loss, case.inputs, case.targets)
    assert expected
    assert predicted_transients(graph) == expected
