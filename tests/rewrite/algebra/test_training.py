"""Algebra under schedules, recomputation, other batches and workers: plain PyTorch's training."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import netsplit
from netsplit.errors import RewriteError
from netsplit.formats.placements import read_placement
from netsplit.graph import Graph, capture
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Choice, Partitioner
from netsplit.program import GPipe, Schedule
from netsplit.program.other_batches import with_tail
from netsplit.program.schedules import ZBH1, OneFOneB
from netsplit.rewrite import Rewrite, Split, applied, matches, rules_builtin
from tests.nets import SGD, Case
from tests.runtime.equivalence.running import assert_same, compiled, local
from tests.runtime.references import plain_loop
from tests.workers import Pools, lent_to_sessions

SCHEDULES: dict[str, Schedule] = {
    "gpipe+recompute": GPipe(4, recompute=True), "1f1b": OneFOneB(4), "zb_h1": ZBH1(4),
}  # fmt: skip
WANTED = (
    "products of one input merged (linear with bias), 3",
    "a product of a cat as a sum (linear with bias), 2",
    "a bag as an embedding and its mean",
    "products reassociated (linear)",
)


class Mixed(nn.Module):
    """Three products of one input, a bag, a product of a `cat`, two products one after another, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(11, 8, mode="mean")
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 6)
        self.one, self.two = nn.Linear(6, 5, bias=False), nn.Linear(5, 8, bias=False)
        self.drop, self.out = nn.Dropout(0.0), nn.Linear(16, 5)

    def forward(self, index: Tensor) -> Tensor:
        x = self.bag(index)
        gate = self.q(x).sigmoid() * self.k(x).tanh()
        return self.out(torch.cat([gate, self.two(self.one(self.v(x)))], 1))


CASE = Case("mixed", Mixed, (torch.arange(40).view(8, 5) % 11,), torch.arange(8) % 5)


def with_rules(graph: Graph) -> Graph:
    for name in WANTED:
        rule = next(rule for rule in rules_builtin() if rule.name == name)
        graph = applied(graph, (*graph.rewrites, matches(graph, [rule])[0].record))
    return graph


def captured(size: int) -> Graph:
    return capture(CASE.fresh(), CASE.loss, CASE.another(0, size))


def halves(graph: Graph) -> dict[str, str]:
    """The first half of the nodes on one device, the others on another; second parts on that, too."""
    device_of = {
        name: f"cpu:{int(i > len(graph) // 2 or name.endswith(':1'))}" for i, name in enumerate(graph.nodes)
    }
    for group in graph.colocated:
        device_of.update(dict.fromkeys(group, device_of[group[0]]))
    return device_of


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules(schedule: str) -> None:
    order = SCHEDULES[schedule]
    graph = with_rules(captured(order.microbatch_size(8)))
    program = compiled(graph, halves(graph), 2, order)
    batches = [CASE.another(seed) for seed in range(3)]
    wanted = plain_loop(CASE.fresh(), CASE.loss, batches, order.microbatch_size(8), SGD)
    assert_same(local(program, CASE, batches), wanted)


def test_a_smaller_last_microbatch_and_parts() -> None:
    """The same rules at its size, and then the same operators in parts."""
    graph = captured(4)
    merged = next(name for name in with_rules(graph).nodes if name == "linear+linear")
    rewrites = (
        *with_rules(graph).rewrites,
        Split(merged, 0, (2, 2)),
        Split("embedding_bag+embedding", 2, (3, 5)),
    )
    whole = applied(graph, rewrites)
    rest = applied(captured(3), rewrites, whole)
    program = with_tail(compiled(whole, halves(whole), 2, GPipe(2)), whole, rest)
    batches = [CASE.another(seed, 7) for seed in range(2)]
    assert_same(local(program, CASE, batches), plain_loop(CASE.fresh(), CASE.loss, batches, 4, SGD))
    with pytest.raises(RewriteError, match="algebra first"):
        applied(graph, rewrites[::-1])


@dataclass
class WithRules(Partitioner):
    """The rules, and halves of what comes of them; `split`: what they merge in parts, too."""

    name = "with_rules"

    def choose(self, problem: Problem) -> Choice:
        graph = with_rules(problem.graph)
        rewrites: tuple[Rewrite, ...] = (*graph.rewrites, Split("linear+linear", 1, (11, 11)))
        return Choice(halves(applied(problem.graph, rewrites)), rewrites=rewrites)


def test_parallelize(pools: Pools, tmp_path: Path, unmeasured: None) -> None:
    """Batches of several sizes, prediction, a checkpoint that plain PyTorch reads, and training on from it
    without the algebra; the placement's file says the same again."""
    batches = [CASE.another(seed, size) for seed, size in enumerate((8, 6, 8, 4))]
    wanted = plain_loop(CASE.fresh(), CASE.loss, batches, 4, SGD)
    model = CASE.fresh()

    def placed(partitioner: Partitioner | str) -> netsplit.ParallelModel:
        return netsplit.parallelize(
            model, CASE.loss, CASE.batch(), partitioner=partitioner, schedule=GPipe(2), optimizer=SGD,
            progress=False,
        )  # fmt: skip

    with lent_to_sessions(pools), placed(WithRules()) as trained:
        placement, problem = trained.plan.placement, trained.plan.problem
        losses = [trained.train_batch(*batch) for batch in batches[:2]]
        trained.save_checkpoint(tmp_path / "two")
        losses += [trained.train_batch(*batch) for batch in batches[2:]]
        state, said = trained.state_dict(), trained.predict(*batches[0][0])
        predicting = [each.graph for each in trained.programs._predicting.values()]
        str(trained.summary())
    assert losses == pytest.approx(wanted.losses, rel=1e-9)
    for k, tensor in wanted.state.items():
        torch.testing.assert_close(state[k], tensor, rtol=1e-9, atol=1e-9)
    assert all("linear+linear:0" in graph.nodes for graph in predicting)
    plain = CASE.fresh()
    plain.load_state_dict(state)
    torch.testing.assert_close(said, plain.eval()(*batches[0][0]), rtol=1e-9, atol=1e-9)
    file = tmp_path / "placement.json"
    file.write_text(json.dumps(placement.to_dict()))
    again = read_placement(file, problem)
    assert (again.rewrites, again.device_of) == (placement.rewrites, placement.device_of)
    with lent_to_sessions(pools), placed("round_robin") as resumed:
        resumed.load_checkpoint(tmp_path / "two")
        rest = [resumed.train_batch(*batch) for batch in batches[2:]]
    assert rest == pytest.approx(wanted.losses[2:], rel=1e-9)
