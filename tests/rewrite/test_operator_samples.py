"""Along every axis that is offered of torch's operators, on torch's own samples of them: the same step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch.testing._internal import common_methods_invocations as torch_samples
from torch.testing._internal.opinfo.core import OpInfo

from netsplit.errors import RewriteError
from netsplit.graph import Graph, Node
from netsplit.rewrite import split_axes
from tests.cover import few
from tests.rewrite.models import split_operator
from tests.rewrite.operator_samples import SampledStep, called_here, kind_of, sampled_steps, sizes_to_try

OPERATORS: dict[str, list[OpInfo]] = {}
for each in torch_samples.op_db:
    OPERATORS.setdefault(each.name, []).append(each)

QUICK = (
    "amax", "addmm", "argmax", "baddbmm", "cat", "chunk", "cumsum", "einsum", "expand", "flip", "gather",
    "index_select", "logsumexp", "matmul", "mean", "movedim", "narrow", "new_full", "permute", "prod",
    "repeat_interleave", "reshape", "roll", "select", "split_with_sizes", "squeeze", "std", "stack",
    "sum", "topk", "transpose", "tril", "triu", "unflatten", "where", "nn.functional.conv2d",
    "nn.functional.conv_transpose1d", "nn.functional.cross_entropy", "nn.functional.embedding",
    "nn.functional.glu", "nn.functional.group_norm", "nn.functional.instance_norm", "nn.functional.kl_div",
    "nn.functional.layer_norm", "nn.functional.linear", "nn.functional.max_pool2d",
    "nn.functional.mse_loss", "nn.functional.nll_loss", "nn.functional.pad", "nn.functional.pixel_shuffle",
    "nn.functional.scaled_dot_product_attention", "softmax",
)  # fmt: skip
REST = sorted(OPERATORS.keys() - set(QUICK))
LOTS = 16


@pytest.fixture(autouse=True)
def plainly_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some samples set the seed for each call, which no graph has; `SampledStep` does."""
    monkeypatch.setattr(torch_samples, "wrapper_set_seed", lambda op, *args, **kwargs: op(*args, **kwargs))


def cuts(step: SampledStep, known: set[str]) -> Iterator[tuple[Node, int | str, tuple[int, ...], int]]:
    """Cuts of every operator of the step unlike those `known`, along each axis, in some sizes."""
    for node in step.graph:
        kind = kind_of(node, step.graph)
        if kind in known or not called_here(node):
            continue
        known.add(kind)
        for axis, size in split_axes(step.graph, node.name).items():
            for sizes, blocks in sizes_to_try(size):
                yield node, axis, sizes, blocks


def cut_in_parts(
    graph: Graph, node: Node, axis: int | str, sizes: tuple[int, ...], blocks: int
) -> Graph | None:
    """None: the parts of one block cannot be those of another, which is said."""
    try:
        return split_operator(graph, node.name, axis, sizes, blocks)
    except RewriteError as refusal:
        if blocks == 1 or "give blocks=1" not in str(refusal):
            raise
        return None


def wrong_cuts(name: str, most: int) -> tuple[int, list[str]]:
    """How many cuts were tried, and what is wrong with some of them."""
    tried, wrong, known = 0, [], set[str]()
    for operator in OPERATORS[name]:
        for step in sampled_steps(operator, most):
            plain = step.result(step.graph)
            for node, axis, sizes, blocks in cuts(step, known):
                graph = cut_in_parts(step.graph, node, axis, sizes, blocks)
                difference = "" if graph is None else step.difference(graph, plain)
                tried += graph is not None
                if difference:
                    kind = kind_of(node, step.graph)
                    wrong.append(f"{kind} along {axis} in {blocks} blocks of {sizes}: {difference}")
    return tried, wrong


@pytest.mark.parametrize("name", few(QUICK, 10))
def test_every_axis_of_a_sampled_operator(name: str) -> None:
    tried, wrong = wrong_cuts(name, 3)
    assert not wrong
    assert tried


@pytest.mark.slow
@pytest.mark.parametrize("lot", range(LOTS))
def test_every_axis_of_all_sampled_operators(lot: int) -> None:
    """More samples of the quick ones, too."""
    names = [*QUICK, *REST][lot::LOTS]
    results = {name: wrong_cuts(name, 8) for name in names if not name.startswith("jiterator")}
    assert not {name: wrong for name, (_, wrong) in results.items() if wrong}
    assert sum(tried for tried, _ in results.values()) > 20
