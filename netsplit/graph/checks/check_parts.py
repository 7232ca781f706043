"""The check of a model for which there is no memory to run it twice: module by module.

    one forward without gradients ─► what comes into each part ─► each part captured and checked alone

A part is the largest module that fits. What lies between parts, and the loss, is not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from netsplit.errors import CaptureError
from netsplit.graph.batches.batch import Arguments, Batch
from netsplit.graph.batches.tree import flatten
from netsplit.graph.code_places import line_of, where_of
from netsplit.graph.recording.step import TrainingStep, capture
from netsplit.graph.surroundings.keep import kept

__all__ = ["check_parts"]

Check = Callable[[nn.Module, Any, Any, Batch], object]
"""A check of a model, its loss, their graph and a batch."""


class _Fed(nn.Module):
    """A part whose inputs carry gradients, as they do in the model: scaled by a parameter that is one."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        tensors, tree, _ = flatten((args, kwargs))
        moved = [t * self.scale.to(t.dtype) if t.is_floating_point() else t for t in tensors]
        args, kwargs = tree.build(moved)
        return self.part(*args, **kwargs)


def _total(outputs: Any) -> Tensor:
    """A scalar through which every output has a gradient of its own."""
    terms = [t.float() for t in flatten(outputs)[0] if t.is_floating_point() and t.requires_grad]
    return torch.stack([(t * torch.linspace(0.5, 1.5, t.numel()).view(t.shape)).mean() for t in terms]).sum()


def check_parts(
    model: nn.Module, loss: Any, batch: Batch, fits: Callable[[nn.Module], bool], check: Check
) -> tuple[int, int]:
    """How many parts were checked, and how many of the model's trainable parameters are not in one.

    Args:
        fits: whether there is memory to check a module alone.

    Raises:
        CaptureError: a part trains otherwise than it does in plain PyTorch; names it.
    """
    parts = dict(_parts_of("", model, fits))
    calls: dict[str, tuple[Any, Any]] = {}
    step = TrainingStep(model, loss, batch)
    with kept(model, loss), torch.no_grad():
        handles = [
            part.register_forward_pre_hook(_remember(calls, path), with_kwargs=True)
            for path, part in parts.items()
        ]
        try:
            step(*(tensor.clone() for tensor in batch.tensors))
        except Exception as error:
            raise CaptureError(
                f"{type(model).__name__} does not run on this batch in plain PyTorch{where_of(error)}: "
                f"{line_of(error)}; check the model and the batch."
            ) from error
        finally:
            for handle in handles:
                handle.remove()
    done: set[int] = set()
    for path, (args, kwargs) in calls.items():
        part = parts[path]
        trained = [p for p in part.parameters() if p.requires_grad]
        if trained:
            _check_part(path, part, Batch.of(Arguments(*args, **kwargs)), check)
            done |= {id(p) for p in trained}
    return len(calls), sum(p.requires_grad and id(p) not in done for p in model.parameters())


def _parts_of(
    path: str, module: nn.Module, fits: Callable[[nn.Module], bool]
) -> Iterator[tuple[str, nn.Module]]:
    """The largest modules that fit, but containers, which are never called themselves."""
    called = not isinstance(module, nn.ModuleList | nn.ModuleDict)
    if path and called and fits(module):
        yield path, module
        return
    for name, child in module.named_children():
        yield from _parts_of(f"{path}.{name}" if path else name, child, fits)


def _remember(calls: dict[str, tuple[Any, Any]], path: str) -> Callable[..., None]:
    def remember(_: nn.Module, args: Any, kwargs: Any) -> None:
        tensors, tree, _marks = flatten((args, kwargs))
        calls.setdefault(path, tree.build([t.detach().clone() for t in tensors]))

    return remember


def _check_part(path: str, part: nn.Module, batch: Batch, check: Check) -> None:
    fed = _Fed(part)
    fed.training = part.training
    try:
        check(fed, _total, capture(fed, _total, batch), batch)
    except CaptureError as error:
        raise CaptureError(f"in module '{path}': {error}") from error
