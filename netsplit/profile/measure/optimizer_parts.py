"""Whether an optimiser may step on parts of a parameter as it would on the whole: found by trying it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from netsplit.errors import ConfigError
from netsplit.graph.ir import Graph
from netsplit.optim.optimizers import ForModel, OptimizerFactory, make_optimizer

__all__ = ["check_element_wise", "is_element_wise"]

_STEPS = 12
_ELEMENTS = (
    2**18
)  # at most, of a parameter that is tried: some treat sides of 128 and more as they do no others
_APART = 30.0  # between the scales of the two halves, which a norm over both would tell


def check_element_wise(factory: OptimizerFactory | None, graph: Graph) -> None:
    """Try an optimiser on a whole and on its halves, for parameters that the graph has in parts.

    Of every group one parameter of each shape is tried, of smaller sizes where it is large.

    Raises:
        ConfigError: the halves do not move as the whole does: it is not element-wise.
    """
    cut: dict[str, set[int]] = {}  # parameter -> the dimensions along which it is cut
    for init in graph.initializers.values():
        if init.region is not None and init.requires_grad:
            sizes = zip(init.shape, init.region.shape, strict=True)
            cut.setdefault(init.region.whole, set()).update(
                d for d, (own, whole) in enumerate(sizes) if own < whole
            )
    _check_along(factory, graph, cut)


def is_element_wise(factory: OptimizerFactory | None, graph: Graph, names: Iterable[str]) -> bool:
    """Whether it may step on rows of these parameters as it would on the whole; found as above."""
    wholes = [graph.initializers[k].whole for k in names]
    try:
        _check_along(factory, graph, {own.name: {0} for own in wholes if own.shape and own.shape[0] > 1})
    except ConfigError:
        return False
    return True


def _check_along(factory: OptimizerFactory | None, graph: Graph, cut: Mapping[str, set[int]]) -> None:
    if factory is None or not cut:
        return
    kinds = {k: (torch.float64, init.shape) for k, init in graph.wholes.items() if init.requires_grad}
    bound = factory if isinstance(factory, ForModel) else ForModel(factory, kinds)
    group_of = {k: n for n, own in enumerate(make_optimizer(bound, {}).groups) for k in own}
    tried: dict[tuple[int, tuple[int, ...], int], str] = {}
    for name, dims in cut.items():
        for dim in sorted(dims):
            tried.setdefault((group_of.get(name, 0), _smaller(kinds[name][1], dim), dim), name)
    for (_, shape, dim), name in tried.items():
        _try(bound, name, shape, dim)


def _smaller(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    """A shape of few elements, with at least two along the dimension that is cut."""
    sizes = list(shape)
    while torch.Size(sizes).numel() > _ELEMENTS:
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        if sizes[largest] <= 2:
            break
        sizes[largest] = max(2, sizes[largest] // 2)
    return tuple(sizes)


def _try(factory: ForModel, name: str, shape: tuple[int, ...], dim: int) -> None:
    bound = replace(factory, parameters={**factory.parameters, name: (torch.float64, shape)})
    draw = torch.Generator().manual_seed(0)
    scale = torch.ones(shape, dtype=torch.float64)
    first = shape[dim] // 2
    scale.narrow(dim, first, shape[dim] - first).mul_(_APART)

    def drawn() -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64) * scale

    start, gradients = drawn(), [drawn() for _ in range(_STEPS)]
    whole = _moved(bound, {name: start}, [{name: gradient} for gradient in gradients], {})[name]
    names = [f"{name}[0]", f"{name}[1]"]

    def halves(tensor: Tensor) -> dict[str, Tensor]:
        return dict(zip(names, tensor.split([first, shape[dim] - first], dim), strict=True))

    parts = _moved(bound, halves(start), list(map(halves, gradients)), dict.fromkeys(names, name))
    moved = torch.cat([parts[k] for k in names], dim)
    near = 1e-6 * whole.abs().max().item()
    if not torch.allclose(moved, whole, rtol=1e-6, atol=near, equal_nan=True):
        kind = type(make_optimizer(factory, {}).optimizer).__name__
        raise ConfigError(
            f"optimizer {kind} steps on parts of '{name}' otherwise than on the whole, and it is in parts on "
            "several devices: choose one that treats each element by itself, such as torch.optim.AdamW, or "
            "a method that leaves operators whole."
        )


def _moved(
    factory: ForModel,
    start: Mapping[str, Tensor],
    gradients: list[dict[str, Tensor]],
    parts: Mapping[str, str],
) -> dict[str, Tensor]:
    """How far parameters go."""
    own = {k: nn.Parameter(tensor.clone()) for k, tensor in start.items()}
    optimizer = make_optimizer(factory, own, parts).optimizer
    with torch.random.fork_rng(devices=[]):
        for each in gradients:
            for k, parameter in own.items():
                parameter.grad = each[k].clone()
            optimizer.step()
    return {k: parameter.detach() - start[k] for k, parameter in own.items()}
