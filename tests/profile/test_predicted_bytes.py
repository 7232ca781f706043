"""What nodes allocate for themselves, found without values: as the meter has it of real ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from torch import Tensor, nn

from netsplit.graph import Graph, capture, initial_values
from netsplit.graph.batches.other_sizes import graph_at
from netsplit.profile.costs import NodeBytes
from netsplit.profile.measure import predicted_bytes
from netsplit.profile.measure.predicted_bytes import predicted_transients, with_line
from netsplit.profile.measure.transients import transient_bytes
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


@pytest.mark.parametrize("name", ["cells", "attention"])
def test_bytes_at_a_size_on_the_line_of_three_others_are_those_of_a_walk(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    few, third, many = (capture(case.fresh(), case.loss, case.another(1, n)) for n in (2, 4, 8))
    walked = predicted_transients(graph_at(few, many, 6))
    assert walked
    for each in (few, third, many):
        predicted_transients(each)
    monkeypatch.setattr(predicted_bytes, "_WithoutValues", None)
    assert predicted_transients(with_line(graph_at(few, many, 6), few, third, many)) == walked
    bent = replace(third)
    bent.derived[(predicted_transients.__wrapped__, (), ())] = {}
    with pytest.raises(TypeError):  # it is walked over, which it cannot be here
        predicted_transients(with_line(graph_at(few, many, 6), few, bent, many))
