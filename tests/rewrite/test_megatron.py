"""Tensor parallelism: the same step, with every part of it on each place alike."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from netsplit.errors import RewriteError
from netsplit.graph import capture
from netsplit.rewrite import Split, applied
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
        scores, _, loss = tasks[-3:]
        assert (scores.cuts[0].axis, loss.cuts[0].axis) == (1, "self.1")


class Scored(nn.Module):
    """Cross entropy of rows, or of (n, classes, t), whose terms count differently where none are added."""

    def __init__(self, reduction: str, last: bool) -> None:
        super().__init__()
        self.reduction, self.last = reduction, last

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        if self.last:
            scores, targets = scores.unflatten(0, (2, -1)).transpose(1, 2), targets.unflatten(0, (2, -1))
        terms = F.cross_entropy(scores, targets, reduction=self.reduction)
        return terms if not terms.dim() else (terms * torch.arange(8.0).view(terms.shape)).sum()


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_is_cut_between_classes(reduction: str, last: bool) -> None:
    targets = torch.tensor([0, 4, -100, 2, 3, 1, 1, 0])
    step = Step(lambda: nn.Linear(6, 5), Scored(reduction, last), STEPS["mlp"].inputs, targets)
    assert_same_step(step, applied(step.graph(), [Split("cross_entropy_loss", "self.1", (1, 3, 1))]))


def test_what_cannot_be_cut_is_refused() -> None:
    graph = capture(
        nn.Linear(3, 1), nn.MSELoss(), tuple(STEPS["scalars"].inputs[:, :n].float() for n in (3, 1))
    )
    with pytest.raises(RewriteError, match="no product of the model can be cut into 4 parts"):
        tensor_parallel_tasks(graph, 4)
