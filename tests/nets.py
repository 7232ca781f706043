"""Cases to train: small models with their batches, all in double precision.

Double precision makes a tolerance meaningful. Splitting may only re-associate sums of gradients
(at most a few dozen terms, each rounded to 2^-53 relative), so an honest difference is of the order
of 1e-13 to 1e-11 after three steps; a wrong or missing gradient is of the order of 1e-2.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from netsplit.graph.ir import Graph
from tests import small_models as models

__all__ = [
    "CASES",
    "DRAWING",
    "DROPPED",
    "SGD",
    "STAGES",
    "TOLERANCE",
    "Case",
    "placements",
    "plain_training",
    "random_placement",
]

TOLERANCE = 1e-9
# Weight decay shows whether a parameter that plain PyTorch gives no gradient stays without.
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01)


@dataclass(frozen=True)
class Case:
    """A model with a batch of eight samples."""

    name: str
    build: Callable[[], nn.Module]
    inputs: tuple[Tensor, ...]
    targets: Tensor
    loss: nn.Module = field(default_factory=nn.CrossEntropyLoss)

    def fresh(self) -> nn.Module:
        torch.default_generator.manual_seed(7)  # of no device else, which would note the stack for each
        return self.build().double()

    def batch(self, size: int = 8) -> tuple[tuple[Tensor, ...], Tensor]:
        return tuple(t[:size] for t in self.inputs), self.targets[:size]

    def another(self, seed: int, size: int = 8) -> tuple[tuple[Tensor, ...], Tensor]:
        """A batch of any size; every seed another one."""
        generator = torch.Generator().manual_seed(seed)
        inputs = tuple(_like(t, size, generator) for t in self.inputs)
        return inputs, torch.randint(0, 5, (size,), generator=generator)


def _like(t: Tensor, size: int, generator: torch.Generator) -> Tensor:
    shape = (size, *t.shape[1:])
    if t.is_floating_point():
        return torch.randn(shape, generator=generator, dtype=t.dtype)
    return torch.randint(0, int(t.max()) + 1, shape, generator=generator)


def _case(
    name: str, build: Callable[[], nn.Module], *shapes: tuple[int, ...], loss: nn.Module | None = None
) -> Case:
    generator = torch.Generator().manual_seed(len(name))
    inputs = tuple(torch.randn(8, *shape, generator=generator, dtype=torch.float64) for shape in shapes)
    targets = torch.randint(0, 5, (8,), generator=generator)
    return Case(name, build, inputs, targets, nn.CrossEntropyLoss() if loss is None else loss)


_two = _case("two_inputs", models.TwoInputs, (6,))
_tokens = torch.randint(0, 11, (8, 5), generator=torch.Generator().manual_seed(5))
CASES = {
    case.name: case
    for case in (
        _case("chain", models.Chain, (3, 8, 8)),
        _case("cells", models.Cells, (3, 8, 8)),
        _case("u_shape", models.UShape, (3, 8, 8)),
        _case("tied", models.Tied, (12,)),
        _case("shared_norm", models.SharedNorm, (12,)),
        _case("constants", models.Constants, (12,)),
        _case("assigned", models.Assigned, (12,)),
        Case("two_inputs", models.TwoInputs, (*_two.inputs, torch.arange(8) % 7), _two.targets),
        _case("two_heads", models.TwoHeads, (12,), loss=models.TwoHeadsLoss()),
        _case("fan", models.Fan, (12,)),
        _case("in_place", models.InPlace, (12,)),
        Case("attention", models.Attention, (_tokens,), torch.arange(8) % 5),
    )
}
STAGES = _case("stages", models.stages, (12,))
DROPPED = _case("dropped", models.Dropped, (12,))
DRAWING = _case("drawing", models.Drawing, (4, 8))


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


def random_placement(
    draw: random.Random, graph: Graph, devices: int
) -> tuple[dict[str, str], dict[str, int]]:
    """Any device for every node, colocated sets kept; and any topological order as priority."""
    head = {name: group[0] for group in graph.colocated for name in group}
    home = {
        name: f"cpu:{draw.randrange(devices)}" for name in dict.fromkeys(head.get(n, n) for n in graph.nodes)
    }
    device_of = {name: home[head.get(name, name)] for name in graph.nodes}
    waiting = {name: len(graph.predecessors[name]) for name in graph.nodes}
    ready = [name for name, count in waiting.items() if count == 0]
    priority: dict[str, int] = {}
    while ready:
        name = ready.pop(draw.randrange(len(ready)))
        priority[name] = len(priority)
        for v in graph.successors[name]:
            waiting[v] -= 1
            if waiting[v] == 0:
                ready.append(v)
    return device_of, priority


def placements(graph: Graph, devices: int) -> st.SearchStrategy[tuple[dict[str, str], dict[str, int]]]:
    """Random ones, for properties."""
    return st.randoms(use_true_random=False).map(lambda draw: random_placement(draw, graph, devices))
