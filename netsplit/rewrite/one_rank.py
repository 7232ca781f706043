"""What the first of the devices does that compute a graph together, as its tasks say: all do alike.

    x ─► [linear] ─► [gelu] ─► [linear_1] ─► y     of two devices, columns then rows
    x ─► identity ─► [linear:0] ─► [gelu:0] ─► [linear_1:0] ─► all_reduce ─► y
         └ back: all_reduce                                    └ back: identity

Every tensor is as large as that device has it, and what the devices move among themselves is a node that
says how, forward and backward: conjugates, as a sum's gradient goes to all, and the gradient of what all read
is a sum (Shoeybi et al., Megatron-LM, 2019, section 3; Korthikanti et al., 2022, section 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from netsplit.errors import RewriteError
from netsplit.graph.arguments import Reference
from netsplit.graph.ir import MOVE, Graph, Node, NodeRole, dtype_bytes
from netsplit.layout.regions import Region, length_of, now, whole_region
from netsplit.rewrite.emitter import require_graph, require_operators
from netsplit.rewrite.lowering import Lowering
from netsplit.rewrite.tasks import OperatorTasks
from netsplit.rewrite.ways import Place

__all__ = ["MoveName", "RankMove", "one_rank", "rank_move"]

MoveName = Literal["identity", "slice", "all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


@dataclass(frozen=True)
class RankMove:
    """What devices that compute together move for one tensor; `nbytes` are those of the whole tensor."""

    forward: MoveName
    backward: MoveName
    nbytes: int


def rank_move(node: Node) -> RankMove | None:
    """The move that a node of `one_rank` is; None: it computes."""
    if not node.op.startswith(MOVE):
        return None
    _, forward, backward, nbytes = node.args
    return RankMove(forward, backward, nbytes)


def one_rank(graph: Graph, tasks: Sequence[OperatorTasks]) -> Graph:
    """The graph of the first device. To plan with, and not to run.

    Args:
        graph: as it was captured.
        tasks: as for `lowered`, all on a mesh of one axis; operators without any are computed on every
            device.

    Raises:
        RewriteError: an operator cannot be cut so.
    """
    require_graph(graph)
    require_operators(graph)
    return _OneRank(graph, {each.node: each for each in tasks}, None, ()).run(tuple(tasks))


@dataclass(frozen=True)
class _Made:
    """How the device has a variable: a region of it, or a term of it."""

    name: str
    region: Region
    partial: bool


class _OneRank(Lowering):
    def run(self, rewrites: tuple[object, ...]) -> Graph:
        self.made: dict[str, _Made] = {}
        self.moved: dict[tuple[str, Region, bool], str] = {}
        for k in self.graph.input_variables:
            self.made[k] = _Made(k, self.planner.full(("var", k)), False)
        for node in self.graph:
            try:
                self._compute(node)
            except RewriteError as error:
                error.operator = node.name
                raise
        for k in self.graph.output_variables:
            self._read(k, self.planner.full(("var", k)), False)
        return self.emitter.finish(rewrites)

    def _compute(self, node: Node) -> None:
        leaf = self.planner.leaves(self.tasks.get(node.name, OperatorTasks(node.name)), True)[0]
        leaf = replace(leaf, name=node.name, role=NodeRole(node.name, leaf.role.cuts))
        given: dict[Place, Reference] = {}
        for place, ((tag, k), region) in leaf.reads.items():
            if tag == "init":
                given[place] = "init", self._weight(k, region)
            else:
                summed = bool(leaf.levels) and not any(place in way.cut for way, _ in leaf.levels)
                given[place] = "var", self._read(k, region, summed)
        names = self._emit(node, leaf, given)
        for k, name, output in zip(node.outputs, names, leaf.makes, strict=True):
            if k:
                self.made[k] = _Made(name, output.region, output.partial)

    def _weight(self, k: str, region: Region) -> str:
        own = self.graph.initializers[k]
        if region == whole_region(own.shape):
            return k
        shape = _shape(region)
        name = f"{k}[{', '.join(map(str, shape))}]"
        self.emitter.add_initializer(replace(own, name=name, shape=shape), k)
        return name

    def _read(self, k: str, region: Region, summed: bool) -> str:
        """A variable as a task reads it; `summed`: its gradient is a term of a sum over the devices."""
        own = self.made[k]
        carries = self.emitter.layouts[own.name].carries
        summed = summed and carries
        forward, backward = self._moves(k, own, region, summed)
        if forward == backward == "identity":
            return own.name
        key = k, region, summed
        if key not in self.moved:
            self.moved[key] = self._move(k, own, region, forward, backward if carries else "identity")
        return self.moved[key]

    def _moves(self, k: str, own: _Made, region: Region, summed: bool) -> tuple[MoveName, MoveName]:
        full = self.planner.full(("var", k))
        if own.partial:
            forward: MoveName = "all_reduce" if region == full else "reduce_scatter"
        elif own.region == region:
            forward = "identity"
        else:
            forward = "slice" if own.region == full else "all_gather" if region == full else "all_to_all"
        whole = own.partial or own.region == full  # so its maker wants the gradient
        if region != full:
            backward: MoveName = "all_gather" if whole else forward
        elif summed:
            backward = "all_reduce" if whole else "reduce_scatter"
        else:
            backward = "identity" if whole else "slice"
        return forward, backward

    def _move(self, k: str, own: _Made, region: Region, forward: MoveName, backward: MoveName) -> str:
        emitter, layout = self.emitter, self.emitter.layouts[own.name]
        shape = _shape(region)
        nbytes = prod(_shape(self.planner.full(("var", k)))) * dtype_bytes(layout.dtype)
        name = emitter.fresh(f"{k}:{forward if forward != 'identity' else backward}")
        like = self.graph.variables[k].producer
        module = self.graph.nodes[like].module if like is not None else ""
        args, role = ({"var": own.name}, forward, backward, nbytes), NodeRole(like or name, moves=True)
        emitter.nodes[name] = Node(
            name, f"{MOVE}{forward}", (own.name,), (name,), args=args, module=module, part=role
        )
        strides = [prod(shape[d + 1 :]) for d in range(len(shape))]
        if forward in ("identity", "slice"):  # of the same memory
            emitter.layouts[name] = replace(layout, shape=shape)
        else:
            emitter.layouts[name] = replace(layout, shape=shape, stride=tuple(strides), root=name)
        return name


def _shape(region: Region) -> tuple[int, ...]:
    return tuple(now(length_of(runs)) for runs in region)
