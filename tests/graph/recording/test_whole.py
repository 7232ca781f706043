"""Pieces of Python that stay whole in a graph, and the modes around operators: rebuilt, and on real workers.

Each case is cut in the middle over two worker processes, trained for three batches of four micro-batches, and
compared with the plain loop in double precision (float32 where the model's own autocast is the point).
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from netsplit.graph import Graph, capture, draws, initial_values, rebuild, run_microbatch
from netsplit.graph.ir import HOOK
from netsplit.graph.random_draws import DrawKey
from netsplit.graph.recording.whole import FunctionCall, ModuleCall
from netsplit.program import GPipe
from netsplit.program.schedules import OneFOneB
from netsplit.runtime.distributed import DistributedRuntime
from tests.cover import covering
from tests.nets import SGD, TOLERANCE
from tests.runtime.equivalence.running import assert_close, compiled, cut
from tests.runtime.references import plain_loop
from tests.workers import Pools

SEED = 3


class Experts(nn.Module):
    """Every token goes to the expert that it fits best: how many go where is known in the run only."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.register_buffer("load", torch.zeros(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.gate(x).softmax(-1)
        best, chosen = weights.max(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = (chosen == i).nonzero().squeeze(1)
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]) * best[rows, None])
            self.load[i] += len(rows)
        return F.dropout(out, 0.2, self.training), weights.mean(0).square().sum()


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward, self.mixture, self.outward = nn.Linear(6, 6), Experts(), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        y, balance = self.mixture(self.inward(x).tanh())
        out: Tensor = self.outward(y + x) + balance
        return out


class Straight(torch.autograd.Function):
    """Signs with the gradient of the identity, and a scale of which the backward makes its own gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, power: int) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, scale)
        ctx.power = power
        return x.sign() * scale**power, x.abs().mean()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, scale = ctx.saved_tensors
        signed, mean = gradients
        grown = (signed * x.sign()).sum(0) * ctx.power * scale ** (ctx.power - 1)
        return signed + mean * x.sign() / x.numel(), grown, None


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(6, 6), nn.Linear(6, 5)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 6))

    def forward(self, x: Tensor) -> Tensor:
        signs, mean = Straight.apply(self.inward(x), self.scale, 3)
        out: Tensor = self.outward(signs + x) * mean
        return out


def halved(gradient: Tensor) -> Tensor:
    return gradient * 0.5


def clipped(gradient: Tensor) -> Tensor:
    return gradient.clamp(-0.01, 0.01)


class Hooked(nn.Module):
    """Hooks on a parameter, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inward(x).tanh()
        out: Tensor = self.outward(y + y.sin())
        return out


class NoGrad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inward(x).tanh()
        with torch.no_grad():
            target = y.sign() * self.inward.weight.mean()
            with torch.enable_grad():
                y = y * 2.0
        out: Tensor = self.outward(y - target)
        return out


class Lowered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward, self.middle, self.outward = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inward(x)
        with torch.autocast("cpu", torch.bfloat16):
            y = self.middle(y)
            with torch.autocast("cpu", enabled=False):
                y = y.float().tanh()
        out: Tensor = self.outward(y)
        return out


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(6, 6), nn.Linear(6, 5)
        self.block = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.4), nn.Tanh(), nn.Dropout(0.3))

    def forward(self, x: Tensor) -> Tensor:
        y = checkpoint(self.block, self.inward(x), use_reentrant=False)
        out: Tensor = self.outward(F.dropout(y, 0.2, self.training))
        return out


@dataclass(frozen=True)
class Whole:
    """A model with what its graph must show."""

    build: Callable[[], nn.Module]
    shows: Callable[[Graph], bool]
    dtype: torch.dtype = torch.float64
    tolerance: float = TOLERANCE

    def fresh(self) -> nn.Module:
        torch.manual_seed(7)
        model = self.build().to(self.dtype)
        if isinstance(model, Hooked):
            model.outward.weight.register_hook(halved)
            model.outward.weight.register_hook(clipped)
        return model

    def batch(self, seed: int, size: int = 8) -> tuple[tuple[Tensor, ...], Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(size, 6, generator=generator, dtype=torch.float64).to(self.dtype)
        return (x,), torch.randint(0, 5, (size,), generator=generator)


LOSS = nn.CrossEntropyLoss()
CASES = {
    "experts": Whole(Mixture, lambda g: any(isinstance(call, ModuleCall) for call in g.calls.values())),
    "function": Whole(Custom, lambda g: any(isinstance(call, FunctionCall) for call in g.calls.values())),
    "hooks": Whole(Hooked, lambda g: sum(node.op.startswith(HOOK) for node in g) == 1),
    "no_grad": Whole(NoGrad, lambda g: sum(node.no_grad for node in g) == 3),
    "autocast": Whole(
        Lowered,
        lambda g: Counter(node.autocast for node in g if node.autocast)["bfloat16"] == 1,
        torch.float32,
        1e-6,  # the same operators on the same values; sums of gradients may be associated otherwise
    ),
    "checkpoint": Whole(Checkpointed, lambda g: sum(node.checkpoint != "" for node in g) == 4),
}


def captured(name: str, size: int = 2) -> Graph:
    case = CASES[name]
    return capture(case.fresh(), LOSS, case.batch(0, size))


@pytest.mark.parametrize("name", CASES)
def test_the_rebuilt_graph_is_the_model_bit_for_bit_in_loss_gradients_and_buffers(name: str) -> None:
    case = CASES[name]
    graph = captured(name, 8)
    assert case.shows(graph)
    model, twin = case.fresh(), case.fresh()
    for p in twin.parameters():
        p._backward_hooks = None  # a node of the graph's now
    inputs, targets = case.batch(5)
    module = rebuild(graph, initial_values(twin, graph))
    for i in range(2):
        with draws(graph, SEED, microbatch=i):
            loss = LOSS(model(*inputs), targets)
        loss.backward()
        outputs = run_microbatch(module, graph, (*inputs, targets), DrawKey(SEED, microbatch=i))
        outputs.backward()
        assert torch.equal(loss, outputs)
    for (key, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert p.grad is not None, key
        assert q.grad is not None, key
        assert torch.equal(p.grad, q.grad), key
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), twin.buffers(), strict=True))


def _trained_plainly(case: Whole, graph: Graph) -> Any:
    batches = [case.batch(seed) for seed in range(3)]
    return plain_loop(case.fresh(), LOSS, batches, 2, SGD, drawing=lambda n, i: draws(graph, SEED, n, i))


@covering(name=CASES, at=[0.3, 0.7])
def test_two_workers_train_what_the_plain_loop_trains(pools: Pools, name: str, at: float) -> None:
    case, graph = CASES[name], captured(name)
    placed = cut(graph, [at])
    assert set(placed.values()) == {"cpu:0", "cpu:1"}
    order = GPipe(4) if at < 0.5 else OneFOneB(4)
    model = case.fresh()
    values = {
        k: t.detach().clone().requires_grad_(t.requires_grad) for k, t in initial_values(model, graph).items()
    }
    runtime = DistributedRuntime(compiled(graph, placed, 2, order), pools(2), values, SGD, seed=SEED)
    losses = [runtime.train_batch(*case.batch(seed)) for seed in range(3)]
    wanted = _trained_plainly(case, graph)
    assert losses == pytest.approx(wanted.losses, rel=case.tolerance)
    assert_close(runtime.state(), wanted.state, case.tolerance)
    assert any(not torch.equal(wanted.state[k], t) for k, t in case.fresh().state_dict().items())
