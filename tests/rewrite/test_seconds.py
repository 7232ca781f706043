"""What parts are estimated to take: together the work of the whole."""

from __future__ import annotations

import pytest

from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.profile.roofline import node_work, operator_class
from netsplit.rewrite import along_samples, applied, rewritten_costs
from tests.rewrite.models import STEPS

HEAVY = {"matmul", "convolution", "attention", "recurrent"}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("parts", [2, 3])
def test_parts_along_the_samples_take_what_the_whole_takes(name: str, parts: int) -> None:
    graph = STEPS[name].graph()
    cut = applied(graph, along_samples(graph, parts))
    seconds = {node: NodeSeconds(1.0, 2.0) for node in graph.nodes}
    costs = Costs({"cpu": DeviceCosts(seconds, accumulate_s_per_byte=1e-9)}, 2)
    after = rewritten_costs(costs, graph, cut).devices["cpu"].nodes
    looked = 0
    for node in graph:
        own = [f"{node.name}:{i}" for i in range(parts)]
        heavy = operator_class(graph, node) in HEAVY and node_work(graph, node).forward.flops > 0
        if heavy and all(each in cut.nodes for each in own):
            looked += 1
            assert sum(after[each].forward_s for each in own) == pytest.approx(1.0), node.name
            assert sum(after[each].backward_s for each in own) == pytest.approx(2.0), node.name
    assert looked or name == "scalars"
