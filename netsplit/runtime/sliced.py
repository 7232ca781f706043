"""Sharded parameters: gathered from all devices' slices, and released.

slices ─pack─► bytes ─Gather─► [D, n] ─unpack─► whole parameters, until the computation is over
gradients of whole ones ─pack─► [D, n] ─Scatter─► [n] ─unpack─► gradients of the slices
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import prod

import torch
from torch import Tensor, nn

from netsplit.graph.ir import Initializer, Region
from netsplit.placement.sharding import Slice
from netsplit.program.instructions import Program

__all__ = ["SlicedParameters"]

_ALIGNED = 16  # alignment of slices in a message, to read them in place


@dataclass(eq=False)
class SlicedParameters:
    """One device's slices, and which device keeps which rows; `let_go_of` are whole only while used."""

    device: str
    slices: Mapping[str, tuple[Slice, ...]]
    initializers: Mapping[str, Initializer]
    let_go_of: frozenset[str]
    whole: dict[str, Tensor] = field(default_factory=dict)
    own: dict[str, Tensor] = field(default_factory=dict)  # slices, by the names of such parts
    of: dict[str, str] = field(default_factory=dict)  # parameter -> this device's slice of it
    regions: dict[str, Region] = field(default_factory=dict)

    @classmethod
    def of_program(cls, program: Program, device: str) -> SlicedParameters | None:
        """None if the device has no slices."""
        bundles = [bundle for bundle in program.bundles if device in bundle.devices]
        names = [k for bundle in bundles for k in bundle.names]
        if not names:
            return None
        let_go_of = frozenset(k for bundle in bundles if bundle.level == "parameters" for k in bundle.names)
        slices = {k: program.slices[k] for k in names}
        return cls(device, slices, {k: program.graph.initializers[k] for k in names}, let_go_of)

    def take(self, k: str, tensor: Tensor) -> Tensor:
        """Keep this device's slice of a whole parameter; returns what segments compute with."""
        own, let_go = self.initializers[k], k in self.let_go_of
        self.whole[k] = whole = nn.Parameter(tensor, own.requires_grad) if own.requires_grad else tensor
        mine = self._slice(k, self.device)
        if mine is not None:
            rows = _rows(tensor.detach(), mine)
            kept = rows.clone() if let_go else rows
            name = mine.named(own)
            self.own[name] = nn.Parameter(kept) if own.requires_grad else kept
            self.of[k], self.regions[name] = name, mine.region(own)
        if let_go:
            self.let_go([k])
        return whole

    def put(self, k: str, value: Tensor) -> None:
        mine = self._slice(k, self.device)
        if k not in self.let_go_of:
            self.whole[k].copy_(value)
        elif mine is not None:
            self.own[self.of[k]].copy_(_rows(value, mine))

    def let_go(self, names: Sequence[str]) -> None:
        """Release whole parameters; `unpack` fills those that autograd has saved."""
        for k in names:
            self.whole[k].untyped_storage().resize_(0)
            self.whole[k].detach()  # memory meters look at operators' arguments

    def packed(self, names: Sequence[str], devices: Sequence[str]) -> Tensor:
        """[n] bytes: this device's slices of a bundle, padded to the longest of all devices."""
        ends = self._places(names, devices)
        like = next(iter(self.whole[k] for k in names))
        packed = torch.zeros(ends, dtype=torch.uint8, device=like.device)
        for k, at, nbytes in self._layout(names, self.device):
            packed[at : at + nbytes] = self.own[self.of[k]].detach().reshape(-1).view(torch.uint8)
        return packed

    def unpack(self, rows: Tensor, names: Sequence[str], devices: Sequence[str]) -> None:
        """Fill the whole parameters from all devices' `packed`."""
        for k in names:
            if k in self.let_go_of:
                whole = self.whole[k]
                whole.untyped_storage().resize_(prod(whole.shape) * whole.element_size())
        for device, row in zip(devices, rows, strict=True):
            for k, at, nbytes in self._layout(names, device):
                mine = self._slice(k, device)
                if mine is not None and (device != self.device or k in self.let_go_of):
                    target = _rows(self.whole[k].data, mine)  # .data: its version is autograd's
                    target.copy_(row[at : at + nbytes].view(target.dtype).view(target.shape))

    def packed_gradients(self, names: Sequence[str], devices: Sequence[str]) -> Tensor:
        """[D, n]: gradients of every device's slices in at least float32, and which exist."""
        trained = self._trained(names)
        grads = {k: self.whole[k].grad for k in trained}
        dtype = reduce(torch.promote_types, (self.whole[k].dtype for k in trained), torch.float32)
        width = max(self._elements(trained, device) for device in devices)
        like = self.whole[trained[0]]
        packed = torch.zeros((len(devices), width), dtype=dtype, device=like.device)
        for device, row in zip(devices, packed, strict=True):
            for k, mine, at, there in self._gradient_layout(trained, device):
                grad = grads[k]
                if grad is not None:
                    part = _rows(grad, mine)
                    row[at : at + part.numel()] = part.reshape(-1)
                    row[there] = 1.0
        for k in trained:
            self.whole[k].grad = None
        return packed

    def unpack_gradients(self, row: Tensor, names: Sequence[str]) -> None:
        """Add the sum of all devices' `packed_gradients` to the slices' gradients."""
        for k, _, at, there in self._gradient_layout(self._trained(names), self.device):
            if row[there]:
                own = self.own[self.of[k]]
                part = row[at : at + own.numel()].view(own.shape).to(own.dtype)
                own.grad = part.clone() if own.grad is None else own.grad.add_(part)

    def _slice(self, k: str, device: str) -> Slice | None:
        return next((each for each in self.slices[k] if each.device == device), None)

    def _trained(self, names: Sequence[str]) -> list[str]:
        return [k for k in names if self.initializers[k].requires_grad]

    def _layout(self, names: Sequence[str], device: str) -> list[tuple[str, int, int]]:
        """(parameter, where its slice begins, its bytes) in what a device sends."""
        at, layout = 0, []
        for k in names:
            mine = self._slice(k, device)
            if mine is not None:
                nbytes = mine.nbytes(self.initializers[k])
                layout.append((k, at, nbytes))
                at += -(-nbytes // _ALIGNED) * _ALIGNED
        return layout

    def _places(self, names: Sequence[str], devices: Sequence[str]) -> int:
        ends = [at + nbytes for device in devices for _, at, nbytes in self._layout(names, device)[-1:]]
        return -(-max(ends) // _ALIGNED) * _ALIGNED

    def _gradient_layout(self, names: Sequence[str], device: str) -> list[tuple[str, Slice, int, int]]:
        """(parameter, slice, where its gradient begins, where it says whether there is one)."""
        at, layout = 0, []
        mine = [(k, own) for k in names if (own := self._slice(k, device)) is not None]
        count = sum(prod(own.sizes(self.initializers[k])) for k, own in mine)
        for number, (k, own) in enumerate(mine):
            layout.append((k, own, at, count + number))
            at += prod(own.sizes(self.initializers[k]))
        return layout

    def _elements(self, names: Sequence[str], device: str) -> int:
        layout = self._gradient_layout(names, device)
        return layout[-1][3] + 1 if layout else 0


def _rows(tensor: Tensor, mine: Slice) -> Tensor:
    return tensor[mine.start : mine.stop] if tensor.dim() else tensor
