"""Where a loss that is no finite number comes from: the batch is computed once more, operator by operator.

A mask of minus infinity is not finite either, and nothing is wrong with it. So one goes from the loss back
along what is not finite, to an operator with finite inputs, or to a parameter or part of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from netsplit.graph.module import VARIABLE
from netsplit.program.instructions import Program, origin
from netsplit.runtime.faults.failure import words_of_node

__all__ = ["Inspection", "is_finite", "origin_of"]


def is_finite(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex()) or bool(torch.isfinite(tensor).all())


@dataclass
class Inspection:
    """What of one device's part of an iteration is not finite: variables by micro-batch, and initializers."""

    variables: set[tuple[str, int]] = field(default_factory=set)
    initializers: set[str] = field(default_factory=set)

    def inspect(self, tensors: Mapping[str, Tensor]) -> None:
        """Look at initializers."""
        self.initializers |= {k for k, tensor in tensors.items() if not is_finite(tensor.detach())}

    def watching(self, module: fx.GraphModule, i: int) -> Callable[..., Any]:
        """What computes as the module does, and looks at each result of micro-batch i."""
        return partial(_Inspected(module, self, i).run, enable_io_processing=False)


class _Inspected(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, inspection: Inspection, i: int) -> None:
        super().__init__(module)
        self.inspection, self.i = inspection, i

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        k = n.meta.get(VARIABLE)
        if k is not None and isinstance(result, Tensor) and not is_finite(result.detach()):
            self.inspection.variables.add((k, self.i))
        return result


def origin_of(
    program: Program, inspections: Sequence[Inspection], feeds: Sequence[Mapping[str, Tensor]]
) -> str:
    """Names the device, operator and micro-batch, or what of the batch or the model it was."""
    graph = program.graph
    bad = {each for inspection in inspections for each in inspection.variables}
    bad |= {(k, i) for i, feed in enumerate(feeds) for k, tensor in feed.items() if not is_finite(tensor)}
    spoilt = {k for inspection in inspections for k in inspection.initializers}
    loss = graph.output_variables[0]
    i = next((i for i in range(program.microbatches) if (loss, i) in bad), None)
    if i is None:
        return "it was finite when computed again"
    makers = {k: node for node in graph for k in node.outputs if k}

    k = loss
    while k in makers:
        node = makers[k]
        sources = [origin(graph, each) for each in node.inputs]
        before = [each for each in sources if (each, i) in bad]
        if not before:
            break
        k = before[0]
    if k not in makers:
        words = f"a tensor of shape {tuple(feeds[i][k].shape)}"
        return f"the batch itself is not finite, in {words} of micro-batch {i}"
    home = program.on(program.device_of[node.name], i)
    own = [name for name in node.initializers if name in spoilt]
    what = f"'{own[0]}' of the model is not finite and is used" if own else "it arises"
    return f"{what} on device {home} in {words_of_node(graph, node.name)}, micro-batch {i}"
