"""Layers that fit on no device: refused whole in a sentence, and trained in parts as by plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import netsplit
from netsplit.cluster.described import uniform_cluster
from netsplit.errors import InfeasibleError, RewriteError
from netsplit.formats import read_pipedream
from netsplit.partition import Auto, OsDpos
from netsplit.partition.partitioner import Partitioner
from netsplit.program import GPipe
from netsplit.rewrite import OperatorTasks
from netsplit.training.parallel import ParallelModel
from tests.cover import covering
from tests.nets import SGD
from tests.runtime.references import plain_loop
from tests.workers import Pools, lent_to_sessions

pytestmark = pytest.mark.usefixtures("unmeasured")
SEARCH = Auto(time_limit_s=1.0, starts=2)
LOSS = nn.CrossEntropyLoss()


class Wide(nn.Sequential):
    """One hidden layer of so many units."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(16, 1024), nn.GELU(), nn.Linear(1024, 5))


class Block(nn.Module):
    """A transformer's, whose two layers behind the attention are wide, and its words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 16)
        self.before, self.after = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.project = nn.Linear(16, 48), nn.Linear(16, 16)
        self.widen, self.narrow = nn.Linear(16, 1024), nn.Linear(1024, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        heads = self.qkv(self.before(x)).unflatten(2, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*heads.unbind(0), is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        x = x + self.narrow(F.gelu(self.widen(self.after(x))))
        return self.head(x.mean(1))


@dataclass(frozen=True)
class Layered:
    build: Callable[[], nn.Module]
    inputs: Callable[[torch.Generator], Tensor]
    wide: int  # units of the widest layer
    room: dict[int, float]  # by workers: of that layer's weights with their gradient and momentum

    def fresh(self) -> nn.Module:
        torch.default_generator.manual_seed(7)
        return self.build().double()

    def batch(self, seed: int) -> tuple[tuple[Tensor], Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return (self.inputs(generator),), torch.randint(0, 5, (8,), generator=generator)

    def capacity(self, workers: int) -> int:
        """Bytes: less than the wide layer with what it makes, and more than as large a part of all layers."""
        return int(self.room[workers] * 3 * 8 * 16 * self.wide)


MODELS = {
    "wide": Layered(
        Wide, lambda g: torch.randn(8, 16, generator=g, dtype=torch.float64), 1024, {2: 0.95, 4: 0.95}
    ),
    "transformer": Layered(
        Block, lambda g: torch.randint(0, 12, (8, 3), generator=g), 1024, {2: 1.9, 4: 1.2}
    ),
}


def given(case: Layered, workers: int) -> dict[str, Any]:
    spec = netsplit.cpu_cluster(workers, capacity=case.capacity(workers))
    spec = replace(spec, latency_s=1e-5, bandwidth=1e9, timeout_s=30.0)
    return {"cluster": spec, "optimizer": SGD, "progress": False}


def assert_trained(case: Layered, trained: ParallelModel, batches: list[Any]) -> None:
    """In parts, and as a plain loop with micro-batches of four samples."""
    wanted = plain_loop(case.fresh(), LOSS, batches, 4, SGD)
    tasks = (each for each in trained.plan.placement.rewrites if isinstance(each, OperatorTasks))
    assert any(sum(cut.sizes) == case.wide for each in tasks for cut in each.cuts)
    losses = [trained.train_batch(*batch) for batch in batches]
    assert losses == pytest.approx(wanted.losses, rel=1e-9)
    state = trained.state_dict()
    for k, tensor in wanted.state.items():
        torch.testing.assert_close(state[k], tensor, rtol=1e-9, atol=1e-9)


@covering(name=MODELS, workers=[2, 4])
def test_a_layer_that_fits_nowhere_is_trained_in_parts(name: str, workers: int, pools: Pools) -> None:
    case = MODELS[name]
    options = given(case, workers) | {"schedule": GPipe(2)}
    batches = [case.batch(seed) for seed in range(3)]
    with lent_to_sessions(pools):
        with pytest.raises(
            InfeasibleError, match=r"auto finds no placement that fits on cluster .* over its limit"
        ):
            netsplit.parallelize(case.fresh(), LOSS, batches[0], partitioner=SEARCH, **options)
        parts = replace(SEARCH, splits=True)
        with netsplit.parallelize(case.fresh(), LOSS, batches[0], partitioner=parts, **options) as trained:
            assert_trained(case, trained, batches)


def test_a_whole_plan_trains_it_in_parts_too(pools: Pools) -> None:
    case = MODELS["wide"]
    open_ = netsplit.AutoSchedule(microbatches=2, time_limit_s=3.0, splits=True)
    batches = [case.batch(seed) for seed in range(3)]
    with (
        lent_to_sessions(pools),
        netsplit.parallelize(case.fresh(), LOSS, batches[0], schedule=open_, **given(case, 2)) as trained,
    ):
        assert trained.plan.choice.frontier[0].kind == "parts"
        assert_trained(case, trained, batches)


@pytest.mark.parametrize("method", [Auto(splits=True), OsDpos()], ids=["auto", "os_dpos"])
def test_nodes_of_other_projects_are_refused(method: Partitioner) -> None:
    """Their files say what a node takes, and not what it computes; `max_load` is of whole nodes anyway."""
    lines = [
        f"node{i} -- Linear(4, 4) -- forward_compute_time=1.0, backward_compute_time=2.0, "
        "activation_size=8.0, parameter_size=16.0"
        for i in range(3)
    ]
    text = "\n".join([*lines, "\tnode0 -- node1", "\tnode1 -- node2"])
    work = read_pipedream(text, "g.txt", "g")
    cluster = uniform_cluster(2, capacity=10**9, bandwidth=1e9)
    with pytest.raises(RewriteError, match="'node0' is 'Linear', which is not an operator of this torch"):
        method.partition(work.problem(cluster, time_limit_s=1.0))
    if isinstance(method, Auto):
        method.partition(work.problem(cluster, "max_load", time_limit_s=1.0))
