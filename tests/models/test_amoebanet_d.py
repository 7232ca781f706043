"""AmoebaNet-D: its published sizes, and that it can be captured and trained in micro-batches."""

from __future__ import annotations

import torch
from torch import nn

from netsplit.models import amoebanet_d
from netsplit.models.amoebanet_d import AmoebaNetD


def small() -> nn.Module:
    torch.manual_seed(0)
    return amoebanet_d(num_layers=3, num_filters=16, small_images=True)


def test_operators_are_as_many_as_published() -> None:
    with torch.device("meta"):
        modules = list(amoebanet_d().modules())
    count = {kind: sum(type(module) is kind for module in modules) for kind in (nn.Conv2d, nn.BatchNorm2d)}
    assert count == {nn.Conv2d: 279, nn.BatchNorm2d: 275}


def test_every_cell_reads_its_two_predecessors() -> None:
    """Changing the output of any one cell changes what both of the next two give."""
    model = small().eval()
    images = torch.randn(1, 3, 32, 32)
    assert isinstance(model, AmoebaNetD)
    read: dict[int, set[int]] = {}
    made: dict[int, int] = {}

    def note(index: int):  # type: ignore[no-untyped-def]
        def hook(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            read[index] = {made[id(tensor)] for tensor in inputs if id(tensor) in made}
            made[id(output)] = index

        return hook

    for index, cell in enumerate(model.cells):
        cell.register_forward_hook(note(index))
    with torch.no_grad():
        kept = [images]  # keeps every tensor alive, so that ids stay unique
        for cell in model.cells:
            cell.register_forward_hook(lambda module, inputs, output: kept.append(output))
        model(images)
    assert read == {index: {i for i in (index - 1, index - 2) if i >= 0} for index in range(len(model.cells))}
