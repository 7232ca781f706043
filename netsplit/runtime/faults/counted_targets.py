"""Losses that are means over those targets which count: how many a micro-batch has is known when it comes.

    cross_entropy(scores, targets, ignore_index=-100) = sum over targets that count / their number

Where the micro-batches of a batch have different numbers, the mean of their losses is not the batch's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx
from torch.fx.operator_schemas import normalize_function

from netsplit.graph.ir import COUNTED
from netsplit.graph.module import NODE
from netsplit.program.instructions import Program
from netsplit.runtime.feeds import microbatch_sizes

__all__ = ["CountedTargets", "none_counts", "uneven"]

_LOSSES = ("aten::cross_entropy_loss", "aten::nll_loss", "aten::nll_loss_nd", "aten::nll_loss2d")
_MEAN = 1  # aten's number of that reduction
_START = "targets that count in "  # of what stands among an iteration's outputs by (variable, micro-batch)
_SAME = 1e-6  # relative


@dataclass
class CountedTargets:
    """Weights of counted targets of one device and iteration, by (loss, micro-batch)."""

    numbers: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    microbatch: int = 0

    def watch(self, module: fx.GraphModule) -> None:
        """Have every such loss of a segment tell the weights of its targets."""
        for node in list(module.graph.nodes):
            if node.meta.get(NODE, "").endswith(COUNTED):  # none of its own parts
                with module.graph.inserting_after(node):
                    module.graph.call_function(self._counted, (node.name, node))
                continue
            schema = getattr(node.target, "_schema", None)
            if schema is None or schema.name not in _LOSSES:
                continue
            given: Any = normalize_function(
                node.target, node.args, node.kwargs, normalize_to_only_use_kwargs=True
            )
            options = given.kwargs
            if options.get("reduction", _MEAN) != _MEAN:
                continue
            ignored = options.get("ignore_index", -100)
            with module.graph.inserting_before(node):
                arguments = (node.name, options["target"], options.get("weight"), ignored)
                module.graph.call_function(self._note, arguments)
        module.recompile()

    def _note(self, name: str, targets: Tensor, weights: Tensor | None, ignored: int) -> None:
        if targets.is_floating_point():  # probabilities, of which all count
            return
        counts = targets != ignored
        if weights is None:
            number = counts.sum()
        else:
            number = weights.detach()[targets.clamp(0, len(weights) - 1)].mul(counts).sum()
        self.numbers[name, self.microbatch] = number

    def _counted(self, name: str, number: Tensor) -> None:
        self.numbers[name, self.microbatch] = number

    def outputs(self) -> dict[tuple[str, int], float]:
        """The numbers to stand among the iteration's outputs."""
        return {(_START + name, i): float(number) for (name, i), number in self.numbers.items()}


def _by_loss(outputs: Mapping[tuple[str, int], float]) -> dict[str, dict[int, float]]:
    numbers_of: dict[str, dict[int, float]] = {}
    for (name, i), number in outputs.items():
        if name.startswith(_START):
            numbers_of.setdefault(name, {})[i] = number
    return numbers_of


def none_counts(outputs: Mapping[tuple[str, int], float]) -> str:
    """Names a micro-batch in which no target counts; empty where there is none."""
    for each in _by_loss(outputs).values():
        for i, number in sorted(each.items()):
            if not number:
                return (
                    f" (no target of micro-batch {i} counts, and a mean over none is no number: the schedule "
                    "'single_batch' does not cut batches)"
                )
    return ""


def uneven(program: Program, outputs: Mapping[tuple[str, int], float]) -> list[float] | None:
    """The micro-batches' numbers, where some have more for their samples than others, else None."""
    sizes = microbatch_sizes(program)
    for each in _by_loss(outputs).values():
        a_sample = [each[i] / sizes[i] for i in sorted(each)]
        if max(a_sample) - min(a_sample) > _SAME * max(a_sample):
            return [each[i] for i in sorted(each)]
    return None
