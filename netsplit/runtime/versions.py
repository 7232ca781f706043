"""Older weights kept for the micro-batches that began on them (weight stashing); what is taken back.

A forward reads leaves that share the parameters' storage. Before a Step that others are still in flight
of, the parameters move to new storage: what an older micro-batch saved stays as it was, and goes with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from netsplit.program.instructions import Forward, Instruction, Step
from netsplit.runtime.share import Share

__all__ = ["Before", "WeightVersions", "versions_of"]


class WeightVersions:
    """The versions of a device's parameters within one iteration, and the gradients of each Step.

    `parameters` always hold the newest weights; `needed` says how many forwards use a version."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], needed: Mapping[int, int]) -> None:
        self.parameters = dict(parameters)
        self.needed = dict(needed)
        self.gradients: dict[int, dict[str, Tensor]] = {}
        self.begin()

    def begin(self) -> None:
        """Start an iteration."""
        self.left = dict(self.needed)
        self.leaves = {0: self._leaves()}
        self.newest = 0

    def use(self, version: int) -> dict[str, Tensor]:
        """The leaves for one forward; forgotten here after the last that uses them."""
        leaves = self.leaves[version]
        self.left[version] -= 1
        if not self.left[version] and version != self.newest:
            del self.leaves[version]
        return leaves

    def collect(self, leaves: Mapping[str, Tensor], names: Iterable[str], step: int) -> None:
        """Move the leaves' gradients to those that a Step will take."""
        sums = self.gradients.setdefault(step, {})
        for name in names:
            grad = leaves[name].grad
            if grad is None:
                continue
            leaves[name].grad = None
            sums[name] = grad if name not in sums else sums[name].add_(grad)

    def before_step(self, step: int) -> None:
        """Put the gradients where the optimiser looks, and the weights where nobody else does."""
        gradients = self.gradients.pop(step, {})
        for name, parameter in self.parameters.items():
            parameter.grad = gradients.get(name)
            parameter.data = parameter.data.clone()

    def after_step(self) -> None:
        if not self.left.get(self.newest):
            self.leaves.pop(self.newest, None)
        self.newest += 1
        self.leaves[self.newest] = self._leaves()

    def _leaves(self) -> dict[str, Tensor]:
        return {name: parameter.data.requires_grad_() for name, parameter in self.parameters.items()}


def versions_of(
    instructions: Iterable[Instruction],
    parameters: Mapping[str, torch.nn.Parameter],
    trains: Callable[[int], bool],
) -> WeightVersions | None:
    """None where all forwards of an iteration use the same weights.

    Args:
        trains: whether a segment, by its index, has parameters.
    """
    own = list(instructions)
    if not any(isinstance(ins, Step) and ins.number for ins in own):
        return None
    needed = Counter(ins.version for ins in own if isinstance(ins, Forward) and trains(ins.segment))
    return WeightVersions(parameters, needed)


@dataclass(frozen=True)
class Before:
    """Copies of what forwards write, and of gradients that wait for a later step."""

    written: dict[str, Tensor]
    gradients: dict[str, Tensor] | None  # None: a prediction, which touches none

    @classmethod
    def of(cls, share: Share, written: Iterable[str], training: bool) -> Self:
        """Args:
        written: initializers that forwards write.
        """
        copies = {k: share.tensors[k].detach().clone() for k in written}
        if not training:
            return cls(copies, None)
        every = share.parameters | share.stepped
        return cls(copies, {k: p.grad.clone() for k, p in every.items() if p.grad is not None})

    def restore(self, share: Share) -> None:
        """Restore, once: the copies become the gradients."""
        with torch.no_grad():
            for k, tensor in self.written.items():
                share.tensors[k].detach().copy_(tensor)
        if self.gradients is None:
            return
        for k, parameter in (share.parameters | share.stepped).items():
            parameter.grad = self.gradients.get(k)
