"""What a model keeps in Python of the shapes it has seen: each is captured from the model as it was given.

alone:  [new] ─► loss          after:  [known] [new] ─► loss          equal? both ways round; else refused
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from netsplit.errors import CaptureError, NetSplitError
from netsplit.graph.autocast import autocast_of
from netsplit.graph.batches.batch import Batch
from netsplit.graph.batches.calls import Loss
from netsplit.graph.checks.copies import copies
from netsplit.graph.checks.difference import difference
from netsplit.graph.checks.plain import forward, has_values, stance, tensors_kept, threads_for
from netsplit.graph.checks.python_state.carried import alike
from netsplit.graph.checks.python_state.rarely_set import set_by_forward
from netsplit.graph.checks.python_state.state import StateSnapshot, bare, equal, state_of
from netsplit.graph.ir import Graph
from netsplit.graph.recording.stand_ins import attribute_tensors, named_tensors
from netsplit.graph.recording.step import TrainingStep
from netsplit.graph.recording.whole import ModuleCall
from netsplit.graph.surroundings.keep import kept

__all__ = ["KindsSeen"]


@dataclass(frozen=True)
class _Kind:
    step: TrainingStep
    batch: Batch
    graph: Graph
    captured: bool  # else the graph is of its micro-batches
    leaves: list[str]  # names of what one call puts into Python
    state: StateSnapshot  # after that
    outputs: list[Tensor]


@dataclass
class KindsSeen:
    """The kinds of batches that training has seen."""

    model: nn.Module
    loss: Loss | None
    _kinds: list[_Kind] = field(default_factory=list)

    def add(self, graph: Graph, batch: Batch, captured: bool = True) -> None:
        """One more kind, on its own and with those before it.

        Args:
            graph: of the batch; or, where that is not `captured`, of the micro-batches of a whole batch.

        Raises:
            CaptureError: what the model keeps from batches of one kind decides what it computes on another's.
        """
        if not has_values(self.model, self.loss, batch):
            return
        with threads_for(2 * sum(v.nbytes for v in graph.variables.values())):
            try:
                new = self._alone(graph, batch, captured)
            except Exception:
                if captured:
                    raise
                return  # a whole batch which plain PyTorch cannot compute
            near = {id(kind): kind for kind in (*self._kinds[:2], *self._kinds[-1:])}
            for known in near.values():
                self._compare(known, new)
                self._compare(new, known)
        if captured and any(kind.captured for kind in self._kinds):
            self._refuse_second_copies(new)
        self._kinds.append(new)

    def _refuse_second_copies(self, new: _Kind) -> None:
        """What a call has set has been compared; what it sets rarely would be each program's own."""
        left = [name for kind in (*self._kinds, new) for name in kind.leaves]
        for call in new.graph.calls.values():
            for module, key in set_by_forward(call.module) if isinstance(call, ModuleCall) else ():
                if not any(name.startswith(f"'{key}' of") for name in left):
                    raise CaptureError(
                        f"the forward of {type(module).__name__}, which stays whole, reads and sets '{key}', "
                        f"and the program for {new.batch.samples} samples of these shapes would have one "
                        "of its own: keep it in a buffer (register_buffer), or use batches of one shape "
                        f"whose micro-batches are of one size (drop_last)."
                    )

    @property
    def leaves(self) -> bool:
        """Whether any of them puts something into Python."""
        return any(kind.leaves for kind in self._kinds)

    def _alone(self, graph: Graph, batch: Batch, captured: bool) -> _Kind:
        step = TrainingStep(self.model, self.loss, batch)
        with kept(self.model, self.loss):
            before = state_of(self.model, self.loss)
            followed = {id(t) for *_, t in attribute_tensors(step)}
            own = {(id(module), key) for module, key, *_ in attribute_tensors(step)}
            self._move_weights()
            outputs = _run(step, graph, batch, captured)
            after = state_of(self.model, self.loss)
            followed |= {id(t) for module, key, _, t in attribute_tensors(step) if (id(module), key) in own}
        return _Kind(step, batch, graph, captured, _left(before, after, followed), after, outputs)

    def _compare(self, first: _Kind, then: _Kind) -> None:
        if not first.leaves or not then.captured:
            return
        try:
            with kept(self.model, self.loss):
                self._move_weights()
                with tensors_kept(first.step):
                    _run(first.step, first.graph, first.batch, first.captured)
                outputs = _run(then.step, then.graph, then.batch, then.captured)
            same = all(difference(a, b) is None for a, b in zip(then.outputs, outputs, strict=True))
        except NetSplitError:  # other draws
            same = False
        except Exception:  # of the user's code, in plain PyTorch too
            return
        if not same:
            raise CaptureError(self._reason(first, then))

    def _reason(self, first: _Kind, then: _Kind) -> str:
        moved = [name for name in first.leaves if not alike(name, first.state, then.state)] or first.leaves
        return (
            f"{type(self.model).__name__} keeps {bare(moved[0])} from batches of {_size(first, then)}, and "
            f"computes otherwise by it on batches of {_size(then, first)}, where a captured step sees the "
            "shapes of its own micro-batches alone: set it before training, or compute it in every forward "
            f"and keep nothing."
        )

    def _move_weights(self) -> None:
        """Where copies may still equal the weights, or a part is multiplied by zero."""
        generator = torch.Generator().manual_seed(2)
        for tensor in dict.fromkeys(named_tensors(self.model, self.loss).values()):
            if tensor.requires_grad and tensor.is_floating_point() and tensor.numel():
                noise = torch.randn(tensor.shape, generator=generator).to(tensor.dtype).to(tensor.device)
                tensor.data.add_(noise, alpha=0.01 * (float(tensor.detach().abs().max()) or 1.0))


def _run(step: TrainingStep, graph: Graph, batch: Batch, captured: bool) -> list[Tensor]:
    if captured:
        return [t.detach() for t in forward(step, graph, batch.tensors, 0)]
    with torch.no_grad(), stance(graph), autocast_of(graph, "cpu"):
        return list(step(*copies(batch.tensors)))


def _left(before: StateSnapshot, after: StateSnapshot, followed: set[int]) -> list[str]:
    """What a call changed in Python; tensors that a capture follows as state are not."""
    known = followed | {id(held.tensor) for held in before.tensors.values()}
    missing = object()
    return [name for name, held in after.tensors.items() if id(held.tensor) not in known] + [
        name
        for name in dict.fromkeys((*before.values, *after.values))
        if not equal(before.values.get(name, missing), after.values.get(name, missing))
    ]


def _size(one: _Kind, other: _Kind) -> str:
    if one.batch.key == other.batch.key:
        return f"{one.batch.samples} samples"
    return " and ".join(str(tuple(t.shape)) for t in one.batch.tensors)
