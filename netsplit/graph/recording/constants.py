"""What a tensor of a recording holds in every step: made of literals alone, by operators that draw nothing.

A mask of ``torch.full`` and ``triu_`` compared with another one is a value that is known without data. The
calls that made it are run again on real tensors, with the writes among them, in their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from netsplit.graph.analyse import storage_id
from netsplit.graph.arguments import decoded, read_by
from netsplit.graph.ir import CALL
from netsplit.graph.operators import resolve
from netsplit.graph.recording.stand_ins import StandIns

__all__ = ["RecordedCall", "constant_value"]


@dataclass
class RecordedCall:
    """One operator call. References in templates are to variables and initializers by name."""

    name: str
    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[str]
    module: str
    source: str
    no_grad: bool
    autocast: str | None
    checkpoint: str
    saved: list[Tensor] = field(default_factory=list)
    random: bool = False
    writes: tuple[tuple[str, str], ...] = ()
    blocked: tuple[str, ...] = ()
    default_dtype: str | None = None


_ATEN = torch.ops.aten
_OF_SHAPE = frozenset(
    {
        str(each.default)
        for each in (
            *(_ATEN.full_like, _ATEN.zeros_like, _ATEN.ones_like, _ATEN.empty_like),
            *(_ATEN.new_full, _ATEN.new_zeros, _ATEN.new_ones, _ATEN.new_empty),
        )
    }
)
"""Operators that read of their tensors the shape and the type only."""


def constant_value(
    calls: Sequence[RecordedCall], tensors: Mapping[str, Tensor], stand_ins: StandIns, tag: str, name: str
) -> Tensor | None:
    """The value that a variable or initializer has after some calls; None: it is not constant.

    By memory: a view depends on what was written into its base, before it was taken or after.

    Args:
        calls: of the recording, so far.
        tensors: the stand-ins of its variables.
        stand_ins: those of its initializers.
    """
    constants, values = stand_ins.constants, dict[str, Tensor]()

    def memory(tag: str, name: str) -> int:
        return storage_id(tensors[name] if tag == "var" else stand_ins.fake[name])

    def value(tag: str, name: str) -> Tensor:
        if tag == "init" or name in values:
            return constants[name] if tag == "init" else values[name]
        return torch.empty((), dtype=tensors[name].dtype).expand(tuple(tensors[name].shape))  # a shape alone

    needed, read = {memory(tag, name)}, {(tag, name)}
    makers: list[RecordedCall] = []
    for call in reversed(calls):
        outputs = (("var", k) for k in call.outputs if k)
        if needed.isdisjoint(memory(*each) for each in (*outputs, *call.writes)):
            continue
        if call.random or call.op.startswith(CALL) or call.autocast or call.default_dtype:
            return None
        makers.append(call)
        if call.op not in _OF_SHAPE:
            read |= set(read_by(call))
            needed |= {memory(*each) for each in read_by(call)}
    written = {memory(*each) for call in makers for each in call.writes}
    inputs = tensors.keys() - {k for call in calls for k in call.outputs}
    literals = {
        k for k, tensor in constants.items() if not tensor.is_meta and memory("init", k) not in written
    }
    if not needed.isdisjoint(memory("var", k) for k in inputs):
        return None
    if any(tag == "init" and k not in literals for tag, k in read):
        return None
    with _disable_current_modes(), torch.no_grad():
        for call in reversed(makers):
            args, kwargs = decoded(call, value, "cpu")
            result = resolve(call.op)(*args, **kwargs)
            results = [result] if isinstance(result, Tensor) else list(result)
            values |= {k: each for k, each in zip(call.outputs, results, strict=True) if k}
        return value(tag, name)
