"""What `unity` answers trains as plain PyTorch does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import netsplit
from netsplit.partition import Unity
from netsplit.partition.methods.unity import unity
from netsplit.partition.methods.unity.choices import Dimension
from netsplit.rewrite import Algebra, OperatorTasks
from tests.nets import SGD
from tests.runtime.references import plain_loop
from tests.workers import Pools, lent_to_sessions

LOSS = nn.CrossEntropyLoss()


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


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Generator], Tensor]]] = {
    "wide": (wide, lambda g: torch.randn(8, 16, generator=g, dtype=torch.float64)),
    "transformer": (Block, lambda g: torch.randint(0, 12, (8, 6), generator=g)),
    "algebra": (Products, lambda g: torch.randn(8, 16, generator=g, dtype=torch.float64)),
}


def fresh(build: Callable[[], nn.Module]) -> nn.Module:
    torch.default_generator.manual_seed(7)
    return build().double()


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(
    ("name", "workers", "dimensions"),
    [
        ("wide", 2, ["samples"]),
        ("wide", 4, ["columns", "reduction"]),
        ("transformer", 2, ["columns", "reduction", "heads", "copies"]),
        ("transformer", 4, ["samples", "columns", "reduction", "heads", "copies"]),
        ("algebra", 2, ["samples", "columns", "reduction"]),
    ],
)
def test_it_trains_as_plain_pytorch_does(
    name: str, workers: int, dimensions: list[Dimension], pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The programme's own answer, whatever else takes less here."""
    monkeypatch.setattr(unity.UnitySearch, "others", lambda search: iter(()))
    build, inputs = MODELS[name]
    draws = [torch.Generator().manual_seed(seed) for seed in range(3)]
    batches = [((inputs(draw),), torch.randint(0, 5, (8,), generator=draw)) for draw in draws]
    wanted = plain_loop(fresh(build), LOSS, batches, 8, SGD)
    spec = replace(netsplit.cpu_cluster(workers, capacity="1GB"), latency_s=1e-6, bandwidth=1e10)
    given: dict[str, Any] = {"cluster": spec, "optimizer": SGD, "progress": False, "schedule": "single_batch"}
    method = Unity(dimensions=dimensions)
    with (
        lent_to_sessions(pools),
        netsplit.parallelize(fresh(build), LOSS, batches[0], partitioner=method, **given) as trained,
    ):
        placement = trained.plan.placement
        assert sum(isinstance(each, OperatorTasks) and bool(each.cuts) for each in placement.rewrites) > 2
        told = [each for each in str(trained.plan.summary()).splitlines() if each.startswith("algebra: ")]
        if name == "algebra":
            rules = [each.rule.name for each in placement.rewrites if isinstance(each, Algebra)]
            assert len(rules) == len(told) == len(trained.plan.explain().algebra) == 2
            assert all(rule in line and "then" in line for rule, line in zip(rules, told, strict=True))
        losses = [trained.train_batch(*batch) for batch in batches]
        assert losses == pytest.approx(wanted.losses, rel=1e-12)
        state = trained.state_dict()
    plain = fresh(build)
    plain.load_state_dict(state)
    for k, tensor in plain.state_dict().items():
        torch.testing.assert_close(tensor, wanted.state[k], rtol=1e-12, atol=1e-12)
