"""What `unity` answers trains as plain PyTorch does."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import netsplit
from netsplit.cluster.cluster import Link
from netsplit.graph import Graph, capture
from netsplit.models.perceptrons import DLRM
from netsplit.partition import Placement, Unity
from netsplit.partition.methods.unity import unity
from netsplit.partition.methods.unity.choices import DIMENSIONS, Dimension
from netsplit.planning.workload import Workload
from netsplit.program import GPipe, SingleBatch
from netsplit.program.other_batches import with_tail
from netsplit.rewrite import Algebra, OperatorTasks, applied
from netsplit.runtime.checkpoint.shares import load_plain
from netsplit.runtime.share import UpdateRule
from tests.builders import costs_of, linked
from tests.cover import covering, few
from tests.nets import SGD, Case
from tests.runtime.equivalence.running import SCHEDULES, assert_same, compiled, local, on_workers
from tests.runtime.references import Trained, plain_loop
from tests.workers import Pools, lent_to_sessions

CLIPPED = 0.1  # to this the norm of the gradients, which is larger
EXACT = 1e-12
BUDGET = 20
WORKERS = 4


class Block(nn.Module):
    """A transformer's, with words and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(12, 16), nn.Linear(16, 5)
        self.before, self.after = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.project = nn.Linear(16, 48), nn.Linear(16, 16)
        self.widen, self.narrow = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        heads = self.qkv(self.before(x)).unflatten(2, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*heads.unbind(0))
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        return self.head((x + self.narrow(F.gelu(self.widen(self.after(x))))).mean(1))


class Products(nn.Module):
    """Two products of one input that are added up, and two one after another: one each is enough."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.up, self.down = (
            nn.Linear(*sizes, bias=False) for sizes in ((16, 64), (16, 64), (64, 256), (256, 5))
        )
        self.first, self.act = nn.Linear(16, 16), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.first(x))
        return self.down(self.up(self.act(self.one(x) + self.other(x))))


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 256), nn.GELU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 5))


class Towers(nn.Module):
    """Two of unlike widths, joined by a `cat`."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (
            nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 8)) for width in (12, 16)
        )
        self.top = nn.Linear(16, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.top(torch.cat([self.one(x), self.two(y)], 1).relu())


def _numbers(*shape: int) -> Tensor:
    return torch.randn(8, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def _categories(rows: int, *shape: int) -> Tensor:
    return torch.arange(8 * torch.Size(shape).numel()).view(8, *shape) % rows


TARGETS = torch.arange(8) % 5
CASES = {
    "wide": Case("wide", wide, (_numbers(16),), TARGETS),
    "attention": Case("attention", Block, (_categories(12, 6),), TARGETS),
    "products": Case("products", Products, (_numbers(16),), TARGETS),
    "towers": Case("towers", Towers, (_numbers(6), _numbers(6)), TARGETS),
    "dlrm": Case(
        "dlrm", lambda: DLRM([16] * 3, 8, (6, 8), (16, 5)), (_numbers(6), _categories(16, 3, 2)), TARGETS
    ),
}
DIMENSIONS_OF: dict[str, list[Dimension]] = {
    "wide": ["columns", "reduction"],
    "attention": ["columns", "reduction", "heads", "copies"],
}  # others have all
WITH_ALGEBRA = ("products", "dlrm")


@pytest.fixture(autouse=True)
def programme_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer, whatever else takes less here."""
    monkeypatch.setattr(unity.UnitySearch, "others", lambda search: iter(()))


def captured(name: str, samples: int) -> Graph:
    case = CASES[name]
    return capture(case.fresh(), case.loss, case.another(0, samples))


@cache
def planned(name: str, samples: int) -> tuple[Graph, Placement]:
    """The graph as Unity has it, and where."""
    graph, dimensions = captured(name, samples), DIMENSIONS_OF.get(name, DIMENSIONS)
    cluster = linked([f"cpu:{p}" for p in range(WORKERS)], Link(1e-6, 1e-10))
    schedule = SingleBatch() if samples == 8 else GPipe(8 // samples)
    work = Workload(name, graph, costs_of(graph, 1e-3, 2e-3), cluster)
    method = Unity(dimensions=dimensions, budget=BUDGET)
    placement = method.partition(work.problem(objective="simulated", schedule=schedule))
    return applied(graph, placement.rewrites, scaled="samples"), placement


def require_rewritten(name: str, placement: Placement) -> list[str]:
    """Operators are in parts, and the rules of the algebra that were applied."""
    assert sum(isinstance(each, OperatorTasks) and bool(each.cuts) for each in placement.rewrites) > 2
    rules = [each.rule.name for each in placement.rewrites if isinstance(each, Algebra)]
    assert rules or name not in WITH_ALGEBRA
    return rules


@cache
def plain(name: str, samples: int, microbatch: int) -> Trained:
    batches = [CASES[name].another(seed, samples) for seed in range(3)]
    return plain_loop(CASES[name].fresh(), CASES[name].loss, batches, microbatch, SGD, clip_norm=CLIPPED)


@covering(name=CASES, schedule=SCHEDULES, samples=[8, 7])
def test_under_any_schedule(name: str, schedule: str, samples: int) -> None:
    """Three steps, clipped, of whole batches, or with a smaller last micro-batch where there are several."""
    case, order = CASES[name], SCHEDULES[schedule]
    size = order.microbatch_size(8)
    graph, placement = planned(name, size)
    require_rewritten(name, placement)
    program = compiled(graph, (placement.device_of, placement.priority), WORKERS, order, shared_norm=True)
    samples = samples if size < 8 else 8
    if samples < 8:
        program = with_tail(program, graph, applied(captured(name, 1), placement.rewrites, graph))
    batches = [case.another(seed, samples) for seed in range(3)]
    trained = local(program, case, batches, rule=UpdateRule(clip_norm=CLIPPED))
    assert_same(trained, plain(name, samples, size), EXACT)


@covering(name=CASES, schedule=few(list(SCHEDULES), 5))
def test_on_worker_processes(pools: Pools, name: str, schedule: str) -> None:
    case, order = CASES[name], SCHEDULES[schedule]
    graph, placement = planned(name, size := order.microbatch_size(8))
    placed = (placement.device_of, placement.priority)
    program = compiled(graph, placed, WORKERS, order, shared_norm=True)
    batches = [case.another(seed) for seed in range(3)]
    trained = on_workers(program, case, batches, pools(WORKERS), rule=UpdateRule(clip_norm=CLIPPED))
    assert_same(trained, plain(name, 8, size), EXACT)


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(("name", "workers"), [("attention", 2), ("dlrm", 4)])
def test_parallelize(name: str, workers: int, pools: Pools, tmp_path: Path) -> None:
    """Batches of several sizes and prediction; its checkpoint is read by plain PyTorch, and by a plan that
    has everything elsewhere, which trains on."""
    case = CASES[name]
    batches = [case.another(seed, size) for seed, size in enumerate((8, 6, 8, 4))]
    spec = replace(netsplit.cpu_cluster(workers, capacity="1GB"), latency_s=1e-6, bandwidth=1e10)

    def placed(partitioner: Any) -> netsplit.ParallelModel:
        return netsplit.parallelize(
            case.fresh(), case.loss, batches[0], cluster=spec, partitioner=partitioner, optimizer=SGD,
            schedule=GPipe(2), clip_norm=CLIPPED, progress=False,
        )  # fmt: skip

    with lent_to_sessions(pools), placed(Unity(budget=BUDGET)) as trained:
        plan = trained.plan
        rules = require_rewritten(name, plan.placement)
        told = [each for each in str(plan.summary()).splitlines() if each.startswith("algebra: ")]
        assert len(rules) == len(told)
        assert all(rule in line and "then" in line for rule, line in zip(rules, told, strict=True))
        losses = [trained.train_batch(*batch) for batch in batches[:2]]
        trained.save_checkpoint(tmp_path / "two")
        said = trained.predict(batches[0][0])
    wanted = plain_loop(case.fresh(), case.loss, batches[:2], 4, SGD, clip_norm=CLIPPED)
    read = case.fresh()
    load_plain(tmp_path / "two", read, SGD(read.parameters()))
    assert_same(Trained(losses, read.state_dict()), wanted, EXACT)
    torch.testing.assert_close(said, read.eval()(*batches[0][0]), rtol=EXACT, atol=EXACT)
    with lent_to_sessions(pools), placed("round_robin") as resumed:
        resumed.load_checkpoint(tmp_path / "two")
        losses += [resumed.train_batch(*batch) for batch in batches[2:]]
        state = resumed.state_dict()
    wanted = plain_loop(case.fresh(), case.loss, batches, 4, SGD, clip_norm=CLIPPED)
    assert_same(Trained(losses, state), wanted, EXACT)
