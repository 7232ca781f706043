"""Bytes that single nodes allocate for themselves while they run, found without values.

    graph's shapes ──► tensors without data ──► measure.transients, node by node ──► as metered on a CPU

Nodes that call the same on tensors of the same kinds are run once; none where three other sizes of the graph
say its bytes (`with_line`).
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from fractions import Fraction
from typing import TypeAlias

import torch
from torch import Tensor, nn

from netsplit.graph.arguments import Reference, read_by, renamed
from netsplit.graph.ir import CALL, Graph, Initializer, Node, Variable, once_of
from netsplit.graph.recording.stand_in_mode import StandInMode
from netsplit.graph.storage import storage_bytes
from netsplit.profile.costs import NodeBytes
from netsplit.profile.measure.bench import NodeBench
from netsplit.profile.measure.clock import Clock
from netsplit.profile.measure.live_values import LiveValues
from netsplit.profile.measure.transients import node_transient

__all__ = ["predicted_transients", "with_line"]

log = logging.getLogger(__name__)

_LINE = "line of predicted transients"  # key of `Graph.derived`

_Kind: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]  # sizes, strides
_Ran: TypeAlias = tuple[NodeBytes, dict[int, _Kind]]  # and what each output is like that is read


@once_of
def predicted_transients(graph: Graph) -> dict[str, NodeBytes]:
    """Of the nodes that have any, as `measure.transients.transient_bytes` meters them on a CPU.

    Pieces of Python, which stay whole as they need values, and operators that torch does not have count none.
    """
    line = graph.derived.get(_LINE)
    if line is not None and (known := _on_line(graph.batch_size, *line)) is not None:
        return known
    transients, unknown = {}, set()
    with StandInMode():
        walk = _WithoutValues(graph)
        for node in graph:
            each = walk.run(node)
            if each is None:
                unknown.add(node.op)
            elif each != NodeBytes():
                transients[node.name] = each
    if unknown:
        log.info("not predicted: what %s allocate for themselves while they run", ", ".join(sorted(unknown)))
    return transients


def with_line(graph: Graph, few: Graph, third: Graph, many: Graph) -> Graph:
    """The graph, whose bytes are those that two other sizes of it say, if a third is what these say."""
    graph.derived[_LINE] = few, third, many
    return graph


def _on_line(samples: int, few: Graph, third: Graph, many: Graph) -> dict[str, NodeBytes] | None:
    """None where the third is not on the line of the others, or that has no whole number of bytes."""
    low, middle, high = (predicted_transients(each) for each in (few, third, many))
    if not low.keys() == middle.keys() == high.keys():
        return None

    def at(n: int, first: int, last: int) -> Fraction:
        return first + Fraction((last - first) * (n - few.batch_size), many.batch_size - few.batch_size)

    made = {}
    for name, known in middle.items():
        ends = [(low[name].forward, high[name].forward), (low[name].backward, high[name].backward)]
        said = [at(third.batch_size, *each) for each in ends]
        here = [at(samples, *each) for each in ends]
        if said != [known.forward, known.backward] or any(each.denominator > 1 for each in here):
            return None
        made[name] = NodeBytes(*map(int, here))
    return made


class _WithoutValues:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.own = storage_bytes(graph)
        self.device = torch.device("cpu")
        batch = tuple(_empty(graph.variables[k]) for k in graph.input_variables)
        values = {k: _empty(init) for k, init in graph.initializers.items()}
        self.live = LiveValues(graph, batch, values, self.device)
        self.clock = Clock(self.device, 1)
        self.known: dict[Hashable, _Ran] = {}

    def run(self, node: Node) -> NodeBytes | None:
        """None: it cannot be run so."""
        if node.op.startswith(CALL) or node.op.count(".") != 2:
            self._pass_over(node)
            return None
        key = self._key(node)
        if key in self.known:
            transient, kinds = self.known[key]
            outputs = {
                node.outputs[i]: torch.empty_strided(*sizes, dtype=dtype)
                for i, (*sizes, dtype) in kinds.items()
            }
            self.live.adopt(node, outputs)
            return transient
        needs_backward = any(k in self.graph.requires_backward for k in node.outputs)
        try:
            bench = NodeBench(self.graph, node, self.clock, needs_backward, nn.Module())
            transient = node_transient(bench, self.live, self.own)
        except Exception as error:  # torch's own of any kind, where sizes depend on values
            log.debug("%s cannot be run without values: %s", node.name, error)
            self._pass_over(node)
            return None
        made = {i: self.live.tensors.get(("var", k)) for i, k in enumerate(node.outputs)}
        self.known[key] = transient, {i: _kind(tensor) for i, tensor in made.items() if tensor is not None}
        return transient

    def _pass_over(self, node: Node) -> None:
        self.live.adopt(node, {k: _empty(self.graph.variables[k]) for k in node.outputs if k})

    def _key(self, node: Node) -> Hashable:
        """What its bytes depend on: the call with its tensors numbered, and what each is like."""
        read = list(dict.fromkeys(read_by(node)))
        numbers: dict[Reference, Reference] = {each: ("var", str(i)) for i, each in enumerate(read)}
        leaves = [self.live.leaf(each) for each in read]
        kinds = tuple((_kind(leaf), leaf.requires_grad) for leaf in leaves)
        carrying = tuple(
            (k in self.graph.requires_backward, ("var", k) in self.live.last_reader) for k in node.outputs
        )
        modes = (node.no_grad, node.autocast, node.default_dtype, node.blocked)
        return (node.op, repr(renamed(node, numbers)), kinds, carrying, modes)


def _kind(tensor: Tensor) -> _Kind:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


def _empty(like: Variable | Initializer) -> Tensor:
    return torch.empty(like.shape, dtype=getattr(torch, like.dtype), device="cpu")
