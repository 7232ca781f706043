"""Small models, each with something that a split must not break; all in double precision.

Double precision makes a tolerance meaningful. Splitting may only re-associate sums of gradients
(at most a few dozen terms, each rounded to 2^-53 relative), so an honest difference is of the order
of 1e-13 to 1e-11 after three steps; a wrong or missing gradient is of the order of 1e-2.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from netsplit.cluster.cluster import Cluster, Device, Link
from netsplit.graph.ir import Graph

__all__ = ["CASES", "TOLERANCE", "Case", "cluster_of", "placements", "plain_training"]

TOLERANCE = 1e-9
# Weight decay shows whether a parameter that plain PyTorch gives no gradient stays without.
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01)


class Chain(nn.Module):
    """Convolution, BatchNorm, in-place ReLU, view, linear: one path."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 4, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 8 * 8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)), inplace=True)
        x = F.relu(self.norm2(self.conv2(x)), inplace=True)
        return self.head(x.view(x.shape[0], -1))


class Cells(nn.Module):
    """Every cell feeds the next two, as in AmoebaNet; sums of three and a split."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.left = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.right = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(3))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        older = newer = self.stem(x)
        for left, right, norm in zip(self.left, self.right, self.norms, strict=True):
            made = norm(F.relu(left(newer)) + right(older) + newer)
            made += older
            older, newer = newer, made
        first, second = torch.chunk(torch.cat([older, newer], 1), 2, dim=1)
        return self.head(torch.cat([second.mean((2, 3)), first.amax((2, 3))], 1))


class Tied(nn.Module):
    """One weight used twice, far apart, and a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(12, 12)
        self.middle = nn.Linear(12, 12)
        self.outward = nn.Linear(12, 12, bias=False)
        self.outward.weight = self.inward.weight
        self.scale = nn.Parameter(torch.full((12,), 1.5), requires_grad=False)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.inward(x))
        x = torch.sigmoid(self.middle(x * self.scale)) + x
        return self.head(self.outward(x))


class TwoInputs(nn.Module):
    """Two inputs, one of them used at both ends, and an integer path without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        looked_up = self.embed((index + 1) % 7)
        mixed = F.gelu(self.mix(x)) * looked_up
        weight = (index > 3).to(x.dtype).unsqueeze(1)
        return self.head(torch.cat([mixed, x * weight], 1))


class SharedNorm(nn.Module):
    """One BatchNorm used three times: its running statistics have an order."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(12, 8)
        self.norm = nn.BatchNorm1d(8)
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.inward(x))
        for _ in range(2):
            x = torch.relu(self.norm(self.middle(x))) + x
        return self.head(x)


class Constants(nn.Module):
    """Tensors that are neither parameter nor buffer: an attribute and a literal."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(12, 5)
        self.shift = torch.arange(5, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64)
        return torch.tanh(self.inward(x).double() + self.shift) * scale


class Assigned(nn.Module):
    """Buffers that are assigned rather than written, and a branch that does not reach the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(12, 8)
        self.idle = nn.Linear(8, 8)
        self.head = nn.Linear(8, 5)
        self.register_buffer("mean", torch.zeros(12))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + 1
        centred = x - self.mean
        self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
        hidden = torch.tanh(self.inward(centred))
        idle = torch.relu(self.idle(hidden)).detach()
        return self.head(hidden + 0.1 * idle)


@dataclass(frozen=True)
class Case:
    """A model with a batch of eight samples."""

    name: str
    build: Callable[[], nn.Module]
    inputs: tuple[Tensor, ...]
    targets: Tensor
    loss: nn.Module = field(default_factory=nn.CrossEntropyLoss)

    def fresh(self) -> nn.Module:
        torch.manual_seed(7)
        return self.build().double()

    def batch(self, size: int = 8) -> tuple[tuple[Tensor, ...], Tensor]:
        return tuple(t[:size] for t in self.inputs), self.targets[:size]


def _case(name: str, build: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> Case:
    generator = torch.Generator().manual_seed(len(name))
    inputs = tuple(torch.randn(8, *shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return Case(name, build, inputs, torch.randint(0, 5, (8,), generator=generator))


_two = _case("two_inputs", TwoInputs, (6,))
CASES = {
    case.name: case
    for case in (
        _case("chain", Chain, (3, 8, 8)),
        _case("cells", Cells, (3, 8, 8)),
        _case("tied", Tied, (12,)),
        _case("shared_norm", SharedNorm, (12,)),
        _case("constants", Constants, (12,)),
        _case("assigned", Assigned, (12,)),
        Case("two_inputs", TwoInputs, (*_two.inputs, torch.arange(8) % 7), _two.targets),
    )
}


def cluster_of(devices: int, capacity: int = 2**40) -> Cluster:
    """CPU devices with given links."""
    found = tuple(Device(f"cpu:{rank}", "cpu", capacity) for rank in range(devices))
    pairs = [(p.name, q.name) for p in found for q in found if p != q]
    return Cluster(f"cpu{devices}", found, dict.fromkeys(pairs, Link(1e-5, 1e-9)))


def plain_training(
    case: Case, microbatches: int, steps: int = 3, optimizer: Callable[..., torch.optim.Optimizer] = SGD
) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and final state of an ordinary loop with gradient accumulation on one device."""
    model = case.fresh()
    step = optimizer([p for p in model.parameters() if p.requires_grad])
    losses = []
    for _ in range(steps):
        parts = []
        pieces = zip(*(t.chunk(microbatches) for t in (*case.inputs, case.targets)), strict=True)
        for *inputs, targets in pieces:
            loss = case.loss(model(*inputs), targets)
            (loss / microbatches).backward()
            parts.append(loss.item())
        step.step()
        step.zero_grad()
        losses.append(sum(parts) / microbatches)
    return losses, model.state_dict()


@st.composite
def placements(draw: st.DrawFn, graph: Graph, devices: int) -> tuple[dict[str, str], dict[str, int]]:
    """Any device for every node, colocated sets kept; and any topological order as priority."""
    head = {name: group[0] for group in graph.colocated for name in group}
    heads = list(dict.fromkeys(head.get(name, name) for name in graph.nodes))
    chosen = draw(st.lists(st.integers(0, devices - 1), min_size=len(heads), max_size=len(heads)))
    device = dict(zip(heads, chosen, strict=True))
    device_of = {name: f"cpu:{device[head.get(name, name)]}" for name in graph.nodes}
    order = random.Random(draw(st.integers(0, 2**32)))
    waiting = {name: len(graph.predecessors[name]) for name in graph.nodes}
    ready = [name for name, count in waiting.items() if count == 0]
    priority: dict[str, int] = {}
    while ready:
        name = ready.pop(order.randrange(len(ready)))
        priority[name] = len(priority)
        for v in graph.successors[name]:
            waiting[v] -= 1
            if waiting[v] == 0:
                ready.append(v)
    return device_of, priority
