"""What an iteration changes of a device before it steps, as it was before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from netsplit.runtime.share import Share

__all__ = ["Before"]


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
        """Only once: the copies become the gradients."""
        with torch.no_grad():
            for k, tensor in self.written.items():
                share.tensors[k].detach().copy_(tensor)
        if self.gradients is None:
            return
        for k, parameter in (share.parameters | share.stepped).items():
            parameter.grad = self.gradients.get(k)
