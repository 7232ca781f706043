"""Every rule that is built in, applied to captured graphs: the same loss and gradients; where none is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from netsplit.errors import RewriteError
from netsplit.formats.placements import read_placement
from netsplit.graph import Graph, capture, capture_inference, initial_values, rebuild
from netsplit.partition import Placement, SolverReport
from netsplit.planning.decide import verified
from netsplit.planning.workload import Workload
from netsplit.program import SingleBatch
from netsplit.rewrite import applied, applied_rule, fingerprint, matches, rewrite_from, rules_builtin
from netsplit.rewrite.algebra.applying import require_same_training
from netsplit.rewrite.algebra.rule import Rule, Term
from tests.builders import costs_of, cpus
from tests.rewrite.algebra.left_sides import LeftSide, Summed
from tests.rewrite.recording import assert_as_recorded, recorded

RULES = {rule.name: rule for rule in rules_builtin()}
MERGED = RULES["products of one input merged (linear with bias), 2"]


def step(model: nn.Module, graph: Graph, batch: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
    values = initial_values(model, graph)
    made = rebuild(graph, values)(*batch)
    loss = made if isinstance(made, Tensor) else made[0]
    trained = {k: v for k, v in values.items() if v.requires_grad}
    return loss, dict(zip(trained, torch.autograd.grad(loss, [*trained.values()]), strict=True))


def assert_same_step(model: nn.Module, one: Graph, two: Graph, batch: tuple[Tensor, ...]) -> None:
    (loss, grads), (other, others) = step(model, one, batch), step(model, two, batch)
    torch.testing.assert_close(other, loss, rtol=1e-12, atol=1e-12)
    assert grads.keys() == others.keys()
    for k, grad in grads.items():
        torch.testing.assert_close(others[k], grad, rtol=1e-12, atol=1e-12 * float(grad.abs().max()), msg=k)


SMALL = [name for name in RULES if not re.search(r", [3-6]\b", name)]
FLAT = ("bias", "(matmul), reversed", "conv", "kernel", "bag")
"""Rules of matrices, of dimensions of their own, or like others."""
STACKS = [name for name in SMALL if not any(word in name for word in FLAT)]


@pytest.mark.parametrize(
    ("name", "lead"), [*((name, ()) for name in SMALL), *((name, (3,)) for name in STACKS)], ids=str
)
def test_a_rule_keeps_loss_and_gradients(name: str, lead: tuple[int, ...]) -> None:
    """And the new graph says of its tensors what a recording of it shows."""
    rule = RULES[name]
    torch.manual_seed(0)
    model = LeftSide(rule, lead)
    batch = (model.batch, model.index, torch.zeros(2).double())
    graph = capture(model, Summed(), (batch[:2], batch[2]))
    matched = matches(graph, [rule])
    assert matched
    for match in matched[:3]:
        made = applied_rule(graph, match)
        assert made.rewrites == (match.record,)
        assert_same_step(model, graph, made, batch)
        require_same_training(graph, made)
        assert_as_recorded(made, recorded(made, model, batch))
        again = rewrite_from(json.loads(json.dumps(match.record.to_dict())))
        assert applied(graph, (again,)).nodes == made.nodes
        assert fingerprint(made) == fingerprint(applied(graph, (again,)))


class Two(nn.Module):
    """Two products of one input, in some way."""

    def __init__(self, run: Callable[[Two, Tensor], Any]) -> None:
        super().__init__()
        self.a, self.b, self.run = nn.Linear(4, 4), nn.Linear(4, 4), run
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def _without_grad(m: Two, x: Tensor) -> Tensor:
    with torch.no_grad():
        a = m.a(x)
    return a * m.b(x)


def _under_autocast(m: Two, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        a = m.a(x)
    return a.float() * m.b(x)


def _two_dtypes(m: Two, x: Tensor) -> Tensor:
    return m.a(x) * torch.nn.functional.linear(x, m.b.weight, m.a.bias).relu()


KEPT_WHOLE: dict[str, tuple[str, Callable[[Two, Tensor], Tensor]]] = {
    "without gradients": (MERGED.name, _without_grad),
    "under autocast": (MERGED.name, _under_autocast),
    "in a checkpoint": (MERGED.name, lambda m, x: checkpoint(m.a, x, use_reentrant=False) * m.b(x)),
    "written in place": (MERGED.name, lambda m, x: m.a(x).add_(1.0) * m.b(x)),
    "a bias that is read elsewhere": (MERGED.name, _two_dtypes),
    "one weight twice": (MERGED.name, lambda m, x: m.a(x) * m.a(x)),
    "a product that is made of the other": (MERGED.name, lambda m, x: m.b(m.a(x))),
    "read elsewhere": (
        "element-wise through a cat, 2",
        lambda m, x: (y := torch.cat([m.a(x), m.b(x)], 1)).relu() * y,
    ),
    "chance": ("element-wise through a cat, 2", lambda m, x: m.drop(torch.cat([m.a(x), m.b(x)], 1))),
    "broadcast": ("sums reassociated", lambda m, x: m.a(x) + x[:1] + x),
    "several times": ("sums reassociated", lambda m, x: torch.add(m.a(x), x, alpha=2) + m.b(x)),
}


@pytest.mark.parametrize("name", KEPT_WHOLE)
def test_no_match(name: str) -> None:
    rule, run = KEPT_WHOLE[name]
    graph = capture(Two(run), lambda y, t: (y - t).square().mean(), (torch.randn(6, 4), torch.zeros(())))
    assert matches(graph, [RULES[rule]]) == []


def test_outputs_are_kept() -> None:
    """Under their names where they are made still; whole, where they would disappear."""
    model = Two(lambda m, x: (m.a(x), m.b(x), torch.cat([x.sin(), x]).exp())).double()
    graph = capture_inference(model, torch.randn(6, 4, dtype=torch.float64))
    cat = next(node for node in graph if node.kind == "cat")
    graph = replace(graph, output_variables=(*graph.output_variables, *cat.outputs))
    assert matches(graph, [RULES["element-wise through a cat, 2"]]) == []
    made = applied_rule(graph, matches(graph, [MERGED])[0])
    assert made.output_variables == graph.output_variables
    (back,) = matches(made, [MERGED.reversed])
    assert fingerprint(applied_rule(made, back)) == fingerprint(graph) != fingerprint(made)


def test_five_products_in_the_place_of_a_cat() -> None:
    """Each reads one tensor, and parameters are called as they were."""
    rule = RULES["a product of a cat as a sum (linear with bias), 5"]
    torch.manual_seed(0)
    model = LeftSide(rule)
    graph = capture(model, Summed(), ((model.batch, model.index), torch.zeros(2).double()))
    made = applied_rule(graph, matches(graph, [rule])[0])
    kinds = [node.kind for node in made if node.name not in graph.nodes]
    assert (kinds.count("linear"), kinds.count("cat"), kinds.count("add")) == (5, 0, 4)
    assert all(node.kind != "cat" for node in made)
    assert made.initializers.keys() == graph.initializers.keys()


def test_a_wrong_rule_is_refused(tmp_path: Path) -> None:
    """By numbers, whatever it says of its proof: in a placement's file, too, before there is a plan."""
    left = (Term("linear", ("x", "w1", "b1")), Term("linear", ("x", "w2", "b2")))
    right = (Term("linear", ("x", "w1", "b2")), Term("linear", ("x", "w2", "b1")))
    rule = Rule("biases change places", left, right, (((0, 0), (0, 0)), ((1, 0), (1, 0))), proof="proven")
    model = Two(lambda m, x: m.a(x) * m.b(x))
    graph = capture(model, nn.MSELoss(), (torch.randn(6, 4), torch.zeros(6, 4)))
    (match,) = matches(graph, [rule])
    with pytest.raises(RewriteError, match=r"'biases change places' .* a rule is wrong"):
        require_same_training(graph, made := applied_rule(graph, match))
    problem = Workload("wrong", graph, costs_of(graph, 1e-3, 1e-3), cpus(1)).problem(
        objective="simulated", schedule=SingleBatch()
    )
    placement = Placement(
        "given",
        dict.fromkeys(made.nodes, "cpu:0"),
        {},
        SolverReport("heuristic", 0.0),
        rewrites=made.rewrites,
    )
    file = tmp_path / "placement.json"
    file.write_text(json.dumps(placement.to_dict()))
    with pytest.raises(RewriteError, match="a rule is wrong"):
        verified(problem, read_placement(file, problem))
    (match,) = matches(graph, [MERGED])
    missing = replace(match.record, nodes=("linear", "linear"))
    with pytest.raises(RewriteError, match="does not match"):
        applied(graph, (missing,))
