"""Tensor parallelism: the same step, with every part of it on each place alike."""

from __future__ import annotations

from collections import Counter

import pytest
from torch import nn

from netsplit.errors import RewriteError
from netsplit.graph import capture
from netsplit.rewrite import applied
from netsplit.rewrite.megatron import tensor_parallel_tasks
from tests.language_models import LANGUAGE_MODELS, NextTokens, tokens
from tests.rewrite.models import STEPS, Step, assert_same_step

LANGUAGE_STEPS = {name: Step(build, NextTokens(), *tokens()) for name, build in LANGUAGE_MODELS.items()}


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("name", [*LANGUAGE_STEPS, "transformer", "mlp"])
def test_tensor_parallelism_is_the_same_step(name: str, sequence: bool) -> None:
    step = LANGUAGE_STEPS[name] if name in LANGUAGE_STEPS else STEPS[name]
    assert_same_step(step, applied(step.graph(), tensor_parallel_tasks(step.graph(), 2, sequence)))


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_parts_compute_alike_and_sequences_are_in_pieces(name: str) -> None:
    graph = LANGUAGE_STEPS[name].graph()
    for sequence in (False, True):
        tasks = tensor_parallel_tasks(graph, 2, sequence)
        assert {each.node for each in tasks} == graph.nodes.keys()
        nodes = [node for node in applied(graph, tasks) if node.part and not node.part.moves]
        on = [Counter(n.part.operator for n in nodes if n.part.place == (j,)) for j in range(2)]  # type: ignore[union-attr]
        assert on[0] == on[1]
        norms = [each for each in tasks if "norm" in graph.nodes[each.node].kind]
        assert all([cut.sizes for cut in each.cuts] == [(4, 4)] * sequence for each in norms)
        words = next(each for each in tasks if each.node == "embedding")
        assert words.cuts[0].axis == "weight.0"


def test_what_cannot_be_cut_is_refused() -> None:
    graph = capture(
        nn.Linear(3, 1), nn.MSELoss(), tuple(STEPS["scalars"].inputs[:, :n].float() for n in (3, 1))
    )
    with pytest.raises(RewriteError, match="no product of the model can be cut into 4 parts"):
        tensor_parallel_tasks(graph, 4)
