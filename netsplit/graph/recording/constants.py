"""What a tensor of a recording holds in every step: made of literals alone, by operators that draw nothing.

A mask of ``torch.full`` and ``triu_`` compared with another one is a value that is known without data. The
calls that made it are run again on real tensors, with the writes among them, in their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from netsplit.graph.ir import CALL
from netsplit.graph.operators import resolve
from netsplit.graph.template import decode, references

if TYPE_CHECKING:
    from netsplit.graph.recording.record import Call, Recorder

__all__ = ["constant_value"]

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


def constant_value(recorder: Recorder, tag: str, name: str) -> Tensor | None:
    """The value that a variable or initializer has by now; None: it is not constant."""
    calls = _calls_behind(recorder, tag, name)
    if calls is None:
        return None
    replay = _Replay(recorder)
    with _disable_current_modes(), torch.no_grad():
        for call in calls:
            replay.run(call)
        return replay.value(tag, name)


def _calls_behind(recorder: Recorder, tag: str, name: str) -> list[Call] | None:
    """The calls that a value depends on, in order; None: on something that is not known, too.

    By memory: a view depends on what was written into its base, before it was taken or after.
    """
    memory = {_memory(recorder, tag, name)}
    initial = {(tag, name)} if tag == "init" else set()
    found: list[Call] = []
    for call in reversed(recorder.calls):
        made = any(k and _memory(recorder, "var", k) in memory for k in call.outputs)
        written = any(_memory(recorder, *each) in memory for each in call.writes)
        if not (made or written):
            continue
        if call.random or call.op.startswith(CALL) or call.autocast or call.default_dtype:
            return None
        found.append(call)
        if call.op not in _OF_SHAPE:
            given = list(references([*call.args, *call.kwargs.values()]))
            memory |= {_memory(recorder, *each) for each in given}
            initial |= {each for each in given if each[0] == "init"}
    inputs = recorder.tensors.keys() - {k for call in recorder.calls for k in call.outputs}
    of_inputs = memory & {_memory(recorder, "var", k) for k in inputs}
    return None if of_inputs or not _unchanging(recorder, initial, found) else found[::-1]


def _unchanging(recorder: Recorder, initial: set[tuple[str, str]], calls: list[Call]) -> bool:
    """Whether all of these initializers are literals that none of the calls writes."""
    constants = recorder.stand_ins.constants
    written = {_memory(recorder, *each) for call in calls for each in call.writes}
    return all(
        k in constants and not constants[k].is_meta and _memory(recorder, tag, k) not in written
        for tag, k in initial
    )


def _memory(recorder: Recorder, tag: str, name: str) -> int:
    return recorder.tensor(tag, name).untyped_storage()._cdata


class _Replay:
    """Real values of variables, as calls are run one after another."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.values: dict[str, Tensor] = {}

    def value(self, tag: str, name: str) -> Tensor:
        return self.recorder.stand_ins.constants[name] if tag == "init" else self.values[name]

    def run(self, call: Call) -> None:
        args = decode(call.args, self._given, "cpu")
        kwargs = {key: decode(each, self._given, "cpu") for key, each in call.kwargs.items()}
        result = resolve(call.op)(*args, **kwargs)
        results = [result] if isinstance(result, Tensor) else list(result)
        self.values |= {k: each for k, each in zip(call.outputs, results, strict=True) if k}

    def _given(self, tag: str, name: str) -> Tensor:
        if tag == "var" and name not in self.values:  # of which the shape alone is read
            shape, dtype = self.recorder.tensors[name].shape, self.recorder.tensors[name].dtype
            return torch.empty((), dtype=dtype).expand(tuple(shape))
        return self.value(tag, name)
