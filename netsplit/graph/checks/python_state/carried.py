"""What a step leaves for the next one where no captured step finds it: tensors anywhere, first results kept.

first call ─► what it made ─┬─► the second reads it, and puts another there: state
                            └─► it is still there: kept from the first batch. Had another batch been the
                                first, would a step compute something else? Then it is refused
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from netsplit.errors import CaptureError
from netsplit.graph.checks.python_state.state import (
    Held,
    StateSnapshot,
    bare,
    equal,
    memory_key,
    same_values,
)
from netsplit.graph.code_places import quoted, user_frame
from netsplit.graph.recording.stand_ins import attribute_tensors
from netsplit.graph.recording.whole import FunctionCall
from netsplit.graph.surroundings.reach import within

__all__ = ["Carried", "alike", "handed_between", "refuse_first_batch", "set_at_first"]

Run = Callable[[tuple[Tensor, ...]], tuple[list[Tensor], StateSnapshot]]
"""One forward of the model as it is, on a batch; its outputs, and the state it leaves."""


class Carried:
    """Tensors that a call of the model leaves for the next, elsewhere than in its buffers.

    Args:
        step: whose modules' own attributes, where they are tensors, a capture follows.
        before: the state before the first call.
        written: memory of what the captured graph itself writes.
    """

    def __init__(self, step: nn.Module, before: StateSnapshot, written: Collection[int | None]) -> None:
        self.step = step
        self.before = before
        self.written = written
        self.followed = {(id(module), key) for module, key, *_ in attribute_tensors(step)}
        self.first = before
        self.made: dict[str, Held] = {}
        self.reads: dict[int, str] = {}

    def begin(self, first: StateSnapshot) -> None:
        """After the first call."""
        known = {id(held.tensor) for held in self.before.tensors.values()}
        known |= {id(t) for m, key, _, t in attribute_tensors(self.step) if (id(m), key) in self.followed}
        self.first = first
        self.made = {k: held for k, held in first.tensors.items() if id(held.tensor) not in known}

    def watched(self) -> AbstractContextManager[Any]:
        """Around the second call."""
        self.reads = {}
        made = {id(held.tensor) for held in self.made.values()}
        return _Reads(made, self.reads) if made else nullcontext()

    def reason(self, second: StateSnapshot) -> str | None:
        """What is state, and the cure; None where there is none."""
        still = {id(held.tensor) for held in second.tensors.values()}
        for name, held in self.made.items():
            now = second.tensors.get(name)
            if now is None or now.tensor is held.tensor:
                continue
            if id(held.tensor) in self.reads or id(held.tensor) in still:
                frame = self.reads.get(id(held.tensor))
                where = f" (at {quoted(frame)})" if frame else ""
                return (
                    f"{bare(name)} is another tensor after every step, and the next step needs it{where}, "
                    "which a captured step cannot follow: register it as a buffer (register_buffer), and "
                    "write into it in place (copy_), without a gradient"
                )
        for name, held in self.first.tensors.items():
            now = second.tensors.get(name)
            written = now is not None and now.tensor is held.tensor and now.content != held.content
            if written and memory_key(held.tensor) not in self.written:
                return (
                    f"{bare(name)} is written at every step where a captured step does not see it: register "
                    "it as a buffer (register_buffer), and write into it with tensors, in place"
                )
        return None


def handed_between(calls: Mapping[str, Any], first: StateSnapshot, second: StateSnapshot) -> str | None:
    """What pieces of Python that stay whole hand to one another through Python, in words; None: nothing."""
    moving = {
        name
        for name, held in second.tensors.items()
        if name in first.tensors and first.tensors[name].tensor is not held.tensor
    }
    reached: dict[str, str] = {}
    for code in dict.fromkeys(_code_of(call) for call in calls.values()) if moving else ():
        for name in {name for name, _ in within((("", code),))} & moving:
            if name in reached:
                return (
                    f"{reached[name]} and {code.__name__} hand {bare(name)} to one another, which is "
                    "lost where they run on two devices: pass it as an argument"
                )
            reached[name] = code.__name__
    return None


def _code_of(call: Any) -> Any:
    return call.function if isinstance(call, FunctionCall) else type(getattr(call, "module", call))


class _Reads(TorchFunctionMode):
    """Which of some tensors are read, and by which line first."""

    def __init__(self, watched: set[int], reads: dict[int, str]) -> None:
        super().__init__()
        self.watched, self.reads = watched, reads

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for tensor in _tensors((args, kwargs or {})):
            if id(tensor) in self.watched and id(tensor) not in self.reads:
                self.reads[id(tensor)] = user_frame()
        if isinstance(func, torch._C.ScriptMethod):  # torch names the module twice: bound, and first argument
            args = args[1:]
        return func(*args, **(kwargs or {}))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each)


def set_at_first(before: StateSnapshot, first: StateSnapshot, second: StateSnapshot) -> list[str]:
    """Names of what the first call changed and the second did not."""
    changed = [
        name
        for name, held in first.tensors.items()
        if not _is(before.tensors.get(name), held) and _is(second.tensors.get(name), held)
    ]
    missing = object()
    return changed + [
        name
        for name, value in first.values.items()
        if not equal(before.values.get(name, missing), value)
        and equal(second.values.get(name, missing), value)
    ]


def refuse_first_batch(
    name: str, suspects: list[str], first: StateSnapshot, batch: tuple[Tensor, ...], fresh: Run, carried: Run
) -> None:
    """Refuse what the first batch decides for all others.

    Args:
        name: of the model.
        suspects: `set_at_first`.
        first: the state that the first call left.
        fresh, carried: run the model as it was given, and as it is after a step on `batch`.

    Raises:
        CaptureError: names what is kept.
    """
    for other in _others(batch):
        try:
            plain, state = fresh(other)
            moved = [each for each in suspects if not alike(each, first, state)]
            if not moved or not all(bool(torch.isfinite(t).all()) for t in plain):
                continue
            ours, _ = carried(other)
        except Exception:
            continue
        if any(not torch.equal(a, b) for a, b in zip(plain, ours, strict=True)):
            raise CaptureError(
                f"{name} computes {bare(moved[0])} from the first batch and keeps it for all others, where "
                "a captured step computes it from every batch: compute it before training, and register it "
                f"as a buffer (register_buffer)."
            )


def _others(batch: tuple[Tensor, ...]) -> Iterator[tuple[Tensor, ...]]:
    """Batches whose values are drawn from those of the given one: other counts, largest ones, and signs."""
    generator = torch.Generator().manual_seed(3)
    for scale, low, high in ((-1.7, 0.0, 1.0), (0.6, 0.0, 0.5), (1.3, 0.5, 1.0)):
        other = []
        for tensor in batch:
            values = tensor.detach().reshape(-1).sort().values
            begin = int(low * len(values))
            end = max(begin + 1, int(high * len(values)))
            index = torch.randint(begin, end, (len(values),), generator=generator)
            drawn = values[index.to(values.device)]
            drawn = drawn * scale if drawn.is_floating_point() else drawn
            other.append(torch.empty_like(tensor).copy_(drawn.view(tensor.shape)))
        yield tuple(other)


def alike(name: str, a: StateSnapshot, b: StateSnapshot) -> bool:
    if name in a.tensors:
        return name in b.tensors and same_values(a.tensors[name].tensor, b.tensors[name].tensor)
    return name in b.values and equal(a.values[name], b.values[name])


def _is(a: Held | None, b: Held) -> bool:
    return a is not None and a.tensor is b.tensor
