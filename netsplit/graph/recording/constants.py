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

from netsplit.graph.arguments import read_by
from netsplit.graph.ir import CALL
from netsplit.graph.operators import resolve
from netsplit.graph.recording.stand_ins import StandIns
from netsplit.graph.template import decoded

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

    Args:
        calls: of the recording, so far.
        tensors: the stand-ins of its variables.
        stand_ins: those of its initializers.
    """
    recording = _Replay(calls, tensors, stand_ins)
    makers = recording.calls_before(tag, name)
    if makers is None:
        return None
    with _disable_current_modes(), torch.no_grad():
        for call in makers:
            recording.run(call)
        return recording.value(tag, name)


class _Replay:
    """What is recorded, and real values of variables as calls are run again."""

    def __init__(
        self, calls: Sequence[RecordedCall], tensors: Mapping[str, Tensor], stand_ins: StandIns
    ) -> None:
        self.calls = calls
        self.tensors = tensors
        self.stand_ins = stand_ins
        self.values: dict[str, Tensor] = {}

    def calls_before(self, tag: str, name: str) -> list[RecordedCall] | None:
        """The calls that a value depends on, in order; None: on something that is not known, too.

        By memory: a view depends on what was written into its base, before it was taken or after.
        """
        memory = {self._memory(tag, name)}
        initial = {(tag, name)} if tag == "init" else set()
        calls: list[RecordedCall] = []
        for call in reversed(self.calls):
            produced = any(k and self._memory("var", k) in memory for k in call.outputs)
            written = any(self._memory(*each) in memory for each in call.writes)
            if not (produced or written):
                continue
            if call.random or call.op.startswith(CALL) or call.autocast or call.default_dtype:
                return None
            calls.append(call)
            if call.op not in _OF_SHAPE:
                given = read_by(call)
                memory |= {self._memory(*each) for each in given}
                initial |= {each for each in given if each[0] == "init"}
        inputs = self.tensors.keys() - {k for call in self.calls for k in call.outputs}
        of_inputs = memory & {self._memory("var", k) for k in inputs}
        return None if of_inputs or not self._unchanging(initial, calls) else calls[::-1]

    def _unchanging(self, initial: set[tuple[str, str]], calls: Sequence[RecordedCall]) -> bool:
        """Whether all of these initializers are literals that none of the calls writes."""
        constants = self.stand_ins.constants
        written = {self._memory(*each) for call in calls for each in call.writes}
        return all(
            k in constants and not constants[k].is_meta and self._memory(tag, k) not in written
            for tag, k in initial
        )

    def _memory(self, tag: str, name: str) -> int:
        tensor = self.tensors[name] if tag == "var" else self.stand_ins.fake[name]
        return tensor.untyped_storage()._cdata

    def value(self, tag: str, name: str) -> Tensor:
        return self.stand_ins.constants[name] if tag == "init" else self.values[name]

    def run(self, call: RecordedCall) -> None:
        args, kwargs = decoded(call, self._given, "cpu")
        result = resolve(call.op)(*args, **kwargs)
        results = [result] if isinstance(result, Tensor) else list(result)
        self.values |= {k: each for k, each in zip(call.outputs, results, strict=True) if k}

    def _given(self, tag: str, name: str) -> Tensor:
        if tag == "var" and name not in self.values:  # of which the shape alone is read
            like = self.tensors[name]
            return torch.empty((), dtype=like.dtype).expand(tuple(like.shape))
        return self.value(tag, name)
