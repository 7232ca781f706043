"""Tasks of operators become a plain graph again.

    graph, tasks ── operators in order ──► parts, copies, and what moves between them ──► a Graph

A task gets what it reads from its own place, else from the nearest that has it. The graph has the loss once,
so autograd gives it the same meaning. Another batch size is lowered anew, into the same nodes (`like`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from netsplit.errors import RewriteError
from netsplit.graph.arguments import Reference, renamed
from netsplit.graph.ir import Graph, Initializer, Node, NodeRole
from netsplit.layout.regions import Misfit, Region, through, whole_region
from netsplit.rewrite.emitter import (
    CAT,
    SPLIT,
    Emitter,
    handed_on,
    in_no_mode,
    operator_named,
    require_graph,
    require_operators,
)
from netsplit.rewrite.holdings import Holdings, Tensor, TensorPiece
from netsplit.rewrite.in_place import out_of_place
from netsplit.rewrite.leaves import CutsBefore, Leaf, LeafPlanner, laid_out, with_tensors
from netsplit.rewrite.sums import Adder, Term
from netsplit.rewrite.tasks import OperatorTasks, TaskCut
from netsplit.rewrite.ways import Arguments, Place, SplitCall
from netsplit.rewrite.weights import WeightReader, WeightsRead

__all__ = ["Lowered", "Lowering", "lowered", "lowered_from"]

_STATE = "rewrite.lowered"
"""Key in `Graph.derived` of what a graph was lowered from."""
_MUL = "aten.mul.Tensor"


@dataclass(frozen=True, eq=False)
class Lowered:
    """What a graph was lowered from. `scaled`: node, cut and refusal of sizes that are not its own."""

    captured: Graph
    tasks: Mapping[str, OperatorTasks]
    parts: tuple[Initializer, ...]
    like: Lowered | None
    cuts: CutsBefore
    scaled: tuple[tuple[str, TaskCut, str], ...]


def lowered_from(graph: Graph) -> Lowered | None:
    """What a graph was lowered from; None: it is as captured, or nobody knows."""
    state: Lowered | None = graph.derived.get(_STATE)
    return state


def lowered(
    graph: Graph,
    tasks: Sequence[OperatorTasks],
    like: Graph | Lowered | None = None,
    parts: Sequence[Initializer] = (),
    rewrites: tuple[Any, ...] | None = None,
    scaled: bool = False,
) -> Graph:
    """The graph whose operators are computed as these tasks.

    Args:
        graph: as it was captured.
        tasks: one for each operator that is not computed whole, once, where its weights are.
        like: the same step at another size, lowered from the same tasks: the graph gets the same nodes.
        parts: those in which parameters are held: who would read others has them put together.
        rewrites: goes into `Graph.rewrites`; the tasks by default.
        scaled: sizes may be of another batch; else they add up, where there is no `like`.

    Raises:
        RewriteError: an operator cannot be cut or computed so, or a later one cannot read what its parts
            make.
    """
    require_graph(graph)
    require_operators(graph)
    if len({each.node for each in tasks}) < len(tasks):
        raise RewriteError("the tasks of an operator are given twice: give them once.")
    for each in tasks:
        operator_named(graph, each.node)
    before = lowered_from(like) if isinstance(like, Graph) else like
    lowering = Lowering(graph, {each.node: each for each in tasks}, before, tuple(parts))
    graph_in_tasks = lowering.run(tuple(tasks) if rewrites is None else rewrites)
    if lowering.planner.scaled and not scaled and before is None:
        raise RewriteError(lowering.planner.scaled[0][2])
    return graph_in_tasks


class Lowering:
    """Lowers one graph."""

    def __init__(
        self,
        graph: Graph,
        tasks: Mapping[str, OperatorTasks],
        like: Lowered | None,
        parts: tuple[Initializer, ...],
    ) -> None:
        self.captured, self.tasks, self.like, self.parts = graph, tasks, like, parts
        in_parts = any(each.cuts or max(each.copies, default=1) > 1 for each in tasks.values())
        self.graph = graph = out_of_place(graph) if in_parts else graph
        self.emitter = Emitter(graph)
        self.holdings = Holdings(self.emitter)
        shapes = {} if like is None else {k: v.shape for k, v in like.captured.variables.items()}
        self.planner = LeafPlanner(graph, self.emitter.plain, shapes, {} if like is None else like.cuts)
        self.leaves: dict[str, list[Leaf]] = {}
        self.tensors: dict[str, Tensor] = {}
        self.terms: dict[str, tuple[list[Term], OperatorTasks]] = {}

    def run(self, rewrites: tuple[Any, ...]) -> Graph:
        at = next(iter(self.graph))
        try:
            for at in self.graph:
                if at.name in self.tasks:
                    self.leaves[at.name] = self.planner.leaves(self.tasks[at.name])
            self._look_ahead()
            for at in self.graph:
                if at.name in self.leaves:
                    self._compute(at)
                else:
                    self._keep(at)
            for k in self.graph.output_variables:
                self._whole(k)
        except Misfit:
            raise RewriteError(
                f"'{at.name}' ({at.kind}) is cut differently at {self.graph.batch_size} samples than at "
                "more: use a number of samples divisible by batch_size, or parts of equal size."
            ) from None
        except RewriteError as error:
            error.operator = at.name
            raise
        graph = self.emitter.finish(rewrites)
        graph.derived[_STATE] = Lowered(
            self.captured, self.tasks, self.parts, self.like, self.planner.cuts, tuple(self.planner.scaled)
        )
        return graph

    def _look_ahead(self) -> None:
        """Who reads what, of all tensors that are wanted in parts or made by tasks."""
        weights: dict[str, list[WeightReader]] = {}
        self.wants: dict[str, list[tuple[Region, tuple[int, ...]]]] = {}
        for leaves in self.leaves.values():
            for leaf in leaves:
                for (tag, k), region in leaf.reads.values():
                    if tag == "init":
                        weights.setdefault(k, []).append(self._reader(leaf, k, region))
                    else:
                        self.wants.setdefault(k, []).append((region, leaf.role.place))
        whole = [node for node in self.graph if node.name not in self.leaves]
        direct = {k for node in whole if not self._looked_through(node) for k in node.initializers}
        outputs = {k for name in self.leaves for k in self.graph.nodes[name].outputs if k}
        read = {k for node in whole for k in node.inputs}
        for k in outputs & {*read, *self.graph.output_variables}:
            self.wants.setdefault(k, []).append((self.planner.full(("var", k)), ()))
        self.weights = WeightsRead(self.emitter, self.holdings, weights, direct, self.parts)

    def _reader(self, leaf: Leaf, k: str, region: Region) -> WeightReader:
        several = leaf.role.place and k in self.graph.constants  # of which there are no copies
        uncut = not several and not leaf.role.cuts and region == self.planner.full(("init", k))
        return WeightReader(leaf.name, region, leaf.weights, uncut)

    def _looked_through(self, node: Node) -> bool:
        """Whether it cuts parameters for tasks alone, which read regions of them."""
        there, outputs = handed_on(self.graph), [k for k in node.outputs if k]
        if not outputs or not there.keys() >= {*outputs} or {*outputs} & {*self.graph.output_variables}:
            return False
        readers = {v for k in outputs for v in self.graph.variables[k].consumers}
        return all(v in self.leaves or self._looked_through(self.graph.nodes[v]) for v in readers)

    def _keep(self, node: Node) -> None:
        """An operator that is computed whole."""
        whole: dict[Reference, Reference] = {("var", k): self._whole(k) for k in node.inputs}
        now = {own: reference for own, reference in whole.items() if reference != own}
        for k in self.weights.gathered.intersection(node.initializers):
            reader = WeightReader(node.name, whole_region(self.graph.initializers[k].shape), 0, True)
            now["init", k] = self.weights.read(k, node, [(reader, ())])[0]
        self.emitter.keep(node, now)
        if node.op in (CAT, SPLIT) and in_no_mode(node):
            self._look_through(node)

    def _whole(self, k: str) -> Reference:
        if k in self.emitter.layouts:
            return "var", k
        self._sum_up(k)
        return self.holdings.fetch(self.tensors[k], [(self.tensors[k].full, ())], k)[0]

    def _look_through(self, node: Node) -> None:
        """What the model itself puts together or takes apart is there in its pieces, too."""
        sources = [each.get("var") for each in (node.args[0] if node.op == CAT else node.args[:1])]
        whole = node.outputs[0] if node.op == CAT else sources[0]
        if not all(sources) or not all(self._alike(k, whole) for k in (*sources, *node.outputs) if k):
            return
        rank = len(self.emitter.plain[whole].shape)
        given = node.args[1:] if node.op == CAT else node.args[2:]
        dim, start = int(given[0] if given else node.kwargs.get("dim", 0)) % max(rank, 1), 0
        for k in sources if node.op == CAT else node.outputs:
            full = self.planner.full(("var", k))
            ((_, size),) = full[dim]
            within = (*full[:dim], ((start, start + size),), *full[dim + 1 :])
            if node.op == CAT:
                for piece in self._tensor(k).pieces:
                    runs = through(within[dim], piece.region[dim])
                    region = (*piece.region[:dim], runs, *piece.region[dim + 1 :])
                    self._tensor(whole).add(replace(piece, region=region))
            else:
                for piece in self._tensor(whole).by_region.get(within, ()):
                    self._tensor(k).add(replace(piece, region=full), first=True)
            start += size
        if node.op == CAT:
            self._tensor(whole).pieces.sort(key=lambda piece: piece.reference == ("var", whole))

    def _alike(self, k: str, other: str) -> bool:
        """Whether nobody writes a tensor, which is of the same kind as another."""
        own, whole = self.emitter.plain[k], self.emitter.plain[other]
        same = (own.dtype, len(own.shape)) == (whole.dtype, len(whole.shape))
        return same and own.root not in self.emitter.written

    def _tensor(self, k: str) -> Tensor:
        """The pieces of a variable; one that no tasks made is there whole."""
        tensor = self.tensors.get(k)
        if tensor is None:
            full = self.planner.full(("var", k))
            name = self.graph.variables[k].producer
            like = self.graph.nodes[name] if name is not None else Node(k, "", (), (k,))
            tensor = self.tensors[k] = Tensor(full, like, NodeRole(like.name), wants=self.wants.get(k, []))
            tensor.add(TensorPiece(("var", k), full))
        return tensor

    def _compute(self, node: Node) -> None:
        leaves = self.leaves[node.name]
        given: list[dict[Place, Reference]] = [{} for _ in leaves]
        for place in dict.fromkeys(place for leaf in leaves for place in leaf.reads):
            reading = [i for i, leaf in enumerate(leaves) if place in leaf.reads]
            ((tag, k),) = dict.fromkeys(leaves[i].reads[place][0] for i in reading)
            regions = [(leaves[i], leaves[i].reads[place][1]) for i in reading]
            if tag == "init":
                tasks = [(self._reader(leaf, k, region), leaf.role.place) for leaf, region in regions]
                references = self.weights.read(k, node, tasks)
            else:
                self._sum_up(k)
                wants = [(region, leaf.role.place) for leaf, region in regions]
                references = self.holdings.fetch(self._tensor(k), wants, k)
            for i, reference in zip(reading, references, strict=True):
                given[i][place] = reference
        outputs = [self._emit(node, leaf, each) for leaf, each in zip(leaves, given, strict=True)]
        for j, k in enumerate(node.outputs):
            if k:
                self._hold_outputs(node, j, k, leaves, [each[j] for each in outputs])

    def _emit(self, node: Node, leaf: Leaf, given: Mapping[Place, Reference]) -> list[str]:
        """One task, and the names of its outputs."""
        name = leaf.name if leaf.name == node.name else self.emitter.fresh(leaf.name)
        outputs = node.outputs  # as it was captured, where the node is called so
        if name != node.name:
            several = len(outputs) > 1
            outputs = tuple(k and (f"{name}.{j}" if several else name) for j, k in enumerate(outputs))
        task = replace(node, name=name, outputs=outputs, part=leaf.role)
        if not leaf.levels:
            call = SplitCall(node, self.emitter.plain, self.graph.initializers)
            read = {call.reference(place): reference for place, reference in given.items()}
            self.emitter.emit(replace(task, **renamed(node, read)))
            pairs = [(k, own) for k, own in zip(node.outputs, outputs, strict=True) if k]
            if any(self.emitter.layouts[own].dtype != self.emitter.plain[k].dtype for k, own in pairs):
                raise RewriteError(
                    f"'{node.name}' ({node.kind}) cannot read copies of its parameters: autocast casts "
                    "differently here than on the devices of the capture."
                )
            return list(outputs)
        emit = partial(self._beside, node, replace(leaf.role, moves=True), name)
        arguments = with_tensors(leaf.arguments, {place: {tag: k} for place, (tag, k) in given.items()})
        inner: list[Arguments] = []
        for way, part in leaf.levels:
            if way.before is not None:
                arguments = way.before(emit, part, arguments)
            inner.append(arguments)
        args, kwargs = laid_out(leaf.op, arguments)
        self.emitter.emit(replace(task, op=leaf.op, args=args, kwargs=kwargs))
        names = list(outputs)
        for (way, part), before in zip(reversed(leaf.levels), reversed(inner), strict=True):
            if way.after is not None:
                names = [way.after(emit, part, before, {"var": names[0]})["var"]]
        for j, how in enumerate(leaf.makes):
            if how.factor is not None and names[j]:
                names[j] = emit(_MUL, {"var": names[j]}, how.factor)["var"]
        return names

    def _beside(
        self, like: Node, role: NodeRole, stem: str, op: str, *args: Any, name: str = ""
    ) -> dict[str, str]:
        """A node of one output, in the operator's modes."""
        own = self.emitter.fresh(f"{stem}:{name or op.split('.')[1]}")
        emitted = replace(like, name=own, op=op, outputs=(own,), args=args, kwargs={}, part=role)
        self.emitter.emit(emitted)
        return {"var": own}

    def _hold_outputs(self, node: Node, j: int, k: str, leaves: Sequence[Leaf], names: Sequence[str]) -> None:
        """Output j of the node is there, in what its tasks made."""
        full, like = self.planner.full(("var", k)), replace(node, no_grad=False)
        tensor = Tensor(full, like, NodeRole(node.name, moves=True), wants=self.wants.get(k, []))
        tensor.whole = (node.name if len(node.outputs) == 1 else f"{node.name}:cat{j}", k)
        self.tensors[k] = tensor
        pieces = [
            TensorPiece(("var", name), leaf.makes[j].region, leaf.role.place)
            for leaf, name in zip(leaves, names, strict=True)
        ]
        if not any(leaf.makes[j].partial for leaf in leaves):
            for piece in pieces:
                tensor.add(piece)
            return
        first = (piece for leaf, piece in zip(leaves, pieces, strict=True) if not leaf.role.copy)
        self.terms[k] = [(piece.place, piece) for piece in first], self.tasks[node.name]
        last = leaves[0].levels[0][0].last
        if last is not None:
            self._finish(like, k, last)

    def _finish(self, node: Node, k: str, last: Callable[..., tuple[Any, ...]]) -> None:
        """What is made of the sum of all tasks."""
        tensor, (terms, tasks) = self.tensors[k], self.terms.pop(k)
        total = Tensor(tensor.full, tensor.like, tensor.role, wants=[(tensor.full, ())])
        self._adder(total, k, tasks).add_up(terms)
        tag, summed = self.holdings.fetch(total, [(tensor.full, ())], k)[0]

        def whole(template: Any) -> Any:
            if isinstance(template, dict) and template.get("var") in self.graph.variables:
                tag, name = self._whole(template["var"])
                return {tag: name}
            return template

        def emit(op: str, *args: Any, name: str = "") -> dict[str, str]:
            return self._beside(node, tensor.role, node.name, op, *map(whole, args), name=name)

        arguments = SplitCall(node, self.emitter.plain, self.graph.initializers).arguments
        op, *args = last(emit, arguments, {tag: summed})
        self.emitter.emit(replace(node, op=op, args=tuple(map(whole, args)), kwargs={}, part=tensor.role))
        tensor.add(TensorPiece(("var", k), tensor.full))

    def _sum_up(self, k: str) -> None:
        """Adds up of partial sums what is wanted of them."""
        if k in self.terms:
            terms, tasks = self.terms.pop(k)
            self._adder(self.tensors[k], k, tasks).add_up(terms)

    def _adder(self, tensor: Tensor, k: str, tasks: OperatorTasks) -> Adder:
        dtype = self.emitter.plain[k].dtype
        return Adder(self.emitter, self.holdings, tensor, k, dtype, tasks.sliced_bytes)
