"""Placement files and checkpoints written before operators had tasks are read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from netsplit.formats.placements import read_placement
from netsplit.graph import Graph, initial_values
from netsplit.planning.workload import Workload
from netsplit.program import GPipe
from netsplit.runtime.local import LocalRuntime
from netsplit.runtime.share import UpdateRule
from tests.builders import costs_of, cpus
from tests.nets import CASES, SGD
from tests.rewrite.test_copies import captured_mlp
from tests.rewrite.test_parts import ADAMW, LOSS, OTHERS, batches, mlp, workerless
from tests.runtime.checkpoint.test_checkpoint import restore
from tests.runtime.equivalence.running import assert_same, batches_of, captured, compiled, local
from tests.runtime.references import Trained, plain_loop

OLDER = Path(__file__).parent / "older"
GRAPHS = {
    "heads": lambda: captured("attention", 4),
    "replicas": captured_mlp,
    "parts_and_copies": captured_mlp,
}


@pytest.mark.parametrize("name", GRAPHS)
def test_an_older_placement_trains_what_it_trained(name: str) -> None:
    """Parts and whole operators are where they were; what moves tensors for them is beside them."""
    captured_graph: Graph = GRAPHS[name]()
    problem = Workload(name, captured_graph, costs_of(captured_graph, 1e-3, 2e-3), cpus(2)).problem()
    placement = read_placement(OLDER / f"{name}.json", problem)
    graph = problem.rewritten(placement.rewrites).graph
    assert placement.device_of.keys() == graph.nodes.keys()
    assert {f"cpu:{i}" for i in range(2)} == set(placement.device_of.values())
    parts = [node for node in graph if node.part is not None and node.part.cuts and not node.part.moves]
    assert all(
        placement.device_of[node.name] == f"cpu:{node.part.cuts[-1].index}" for node in parts if node.part
    )
    program = compiled(graph, placement.device_of, 2, GPipe(2))
    if name == "heads":
        case = CASES["attention"]
        assert_same(
            local(program, case, batches_of(case)),
            plain_loop(case.fresh(), case.loss, batches_of(case), 4, SGD),
        )
        return
    runtime = LocalRuntime(
        compiled(graph, placement.device_of, 2, GPipe(4)), cpus(2), initial_values(mlp(), graph), ADAMW
    )
    trained = Trained([runtime.train_batch(*batch) for batch in batches()], runtime.state())
    assert_same(trained, plain_loop(mlp(), LOSS, batches(), 2, ADAMW))


def test_an_older_checkpoint_goes_on() -> None:
    """The checkpoint is of two batches, with moments and averages, in parts; here they are others."""
    rule = UpdateRule(ema_decay=0.5, clip_norm=0.3)
    after = workerless(OTHERS, rule)
    restore(after, OLDER / "checkpoint")
    losses = [after.train_batch(*batch) for batch in batches(4)[2:]]
    wanted = plain_loop(mlp(), LOSS, batches(4), 2, ADAMW, clip_norm=0.3)
    assert losses == pytest.approx(wanted.losses[2:], rel=1e-9)
    for k, tensor in after.state().items():
        torch.testing.assert_close(tensor, wanted.state[k], rtol=1e-9, atol=1e-9)
