"""Tensor parallelism: products by columns, then rows; between them copies, or pieces of the sequence.

    whole ─► [norm:0] ─► [qkv:0] ─► heads ─► [project:0] ─┐          ┌─► [norm:0] ─► ...
    whole ─► [norm~1] ─► [qkv:1] ─► heads ─► [project:1] ─┴─► sum ──►└─► [norm~1] ─► ...

Every part has a place of its own, and all compute alike: what no product is cut for is computed in copies
that read copies of the weights, or (`sequence`) in pieces, from sums in pieces to the next product.

Sources: Shoeybi et al., "Megatron-LM", 2019, section 3; Korthikanti et al., "Reducing Activation
Recomputation in Large Transformer Models", 2022, section 4.2.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from netsplit.errors import RewriteError
from netsplit.graph.ir import Graph, Node
from netsplit.rewrite.columns_rows import columns_and_rows
from netsplit.rewrite.emitter import weights_of
from netsplit.rewrite.following import AxisIn, FollowedCut, cut_fitting, ways_of_graph
from netsplit.rewrite.leaves import require_copies
from netsplit.rewrite.records import proportioned
from netsplit.rewrite.tasks import OperatorTasks, TaskCut
from netsplit.rewrite.ways import PartialSum

__all__ = ["tensor_parallel_tasks"]

_WORDS = "weight.0"
"""The axis of an embedding's vocabulary."""


def tensor_parallel_tasks(
    graph: Graph, parts: int, sequence: bool = False, dimension: int = 1, whole: Collection[str] = ()
) -> tuple[OperatorTasks, ...]:
    """Tasks on the places (0,), (1,), ... of each operator that can be cut or computed several times.

    Args:
        graph: as it was captured.
        parts: devices that compute each product together.
        sequence: operators between the products are on pieces of the sequence, where they can be.
        dimension: that of the sequence in what products make, [samples, sequence, width].
        whole: operators that are left to the first place.

    Raises:
        RewriteError: no product can be cut into so many parts.
    """
    if parts < 2:
        return ()
    cuts = _products(graph, parts, whole)
    if not cuts:
        raise RewriteError(f"no product of the model can be cut into {parts} parts: give fewer.")
    if sequence:
        cuts |= _on_pieces(graph, parts, cuts, dimension, whole)
    cuts |= _losses(graph, parts, cuts, whole)
    tasks = []
    for node in graph:
        if node.name in cuts:
            weights = tuple(range(parts)) if weights_of(graph, node) else (0,)
            tasks.append(OperatorTasks(node.name, (cuts[node.name],), weights=weights))
        elif node.name not in whole and _can_be_copied(graph, node):
            tasks.append(OperatorTasks(node.name, copies=(parts,)))
    return tuple(tasks)


def _can_be_copied(graph: Graph, node: Node) -> bool:
    try:
        require_copies(graph, node)
    except RewriteError:
        return False
    return True


def _products(graph: Graph, parts: int, whole: Collection[str]) -> dict[str, TaskCut]:
    """Cuts of chains of products, and what is between them; of embeddings by vocabulary, unless what they
    look up is the same in every batch."""
    ways, batch = ways_of_graph(graph)[1], _of_the_batch(graph)
    cuts: dict[str, TaskCut] = {}
    for each in columns_and_rows(graph):
        names = [*each.cuts]
        if {*whole} & {*names}:
            continue
        if not each.chained and _WORDS in ways[names[0]]:
            words = proportioned(ways[names[0]][_WORDS].size, (1.0,) * parts)
            cuts |= {name: TaskCut(_WORDS, words) for name in names if words and name in batch}
            continue
        splits = each.splits((1.0,) * parts)
        cuts |= {split.node: TaskCut(split.axis, split.sizes, split.blocks) for split in splits}
    return cuts


def _of_the_batch(graph: Graph) -> set[str]:
    """Operators that read what the model is given, if only through others."""
    reached, variables = set[str](), {*graph.input_variables}
    for node in graph:
        if not variables.isdisjoint(node.inputs):
            reached.add(node.name)
            variables.update(node.outputs)
    return reached


def _on_pieces(
    graph: Graph, parts: int, cuts: Mapping[str, TaskCut], dimension: int, whole: Collection[str]
) -> dict[str, TaskCut]:
    """Cuts along the sequence of what reads the products' sums, up to the next products."""
    calls, ways = ways_of_graph(graph)
    lies: dict[str, AxisIn] = {}
    pieces: dict[str, TaskCut] = {}
    for name, call in calls.items():
        sizes = [graph.variables[k].shape for k in call.node.inputs if k in lies]
        if name in cuts:
            sums = ways[name][cuts[name].axis].joined
            for k, how in zip(call.node.outputs, sums, strict=True):
                if k and isinstance(how, PartialSum) and len(graph.variables[k].shape) == 3:
                    lies[k] = AxisIn(dimension)
        elif sizes and name not in whole:
            lengths = proportioned(sizes[0][dimension], (1.0,) * parts)
            fitting = (
                cut_fitting(call, axis, way, sizes[0][dimension], lies, made=False)
                for axis, way in ways[name].items()
                if lengths
            )
            cut = next((c for c in fitting if c and _is_piece(c, dimension)), None)
            if cut is not None:
                pieces[name] = TaskCut(cut.axis, lengths)
                lies |= cut.makes()
    return pieces


def _is_piece(cut: FollowedCut, dimension: int) -> bool:
    """Whether the sequence lies in all that it makes as in the products, and no weights are cut."""
    makes = len(cut.makes()) == len([k for k in cut.call.node.outputs if k])
    return makes and not cut.cuts_weights and {*cut.makes().values()} == {AxisIn(dimension)}


def _losses(
    graph: Graph, parts: int, cuts: Mapping[str, TaskCut], whole: Collection[str]
) -> dict[str, TaskCut]:
    """Cuts of losses, and of what is between the last product and them: by words, as the product; else along
    the samples, or words, whose losses are added up."""
    losses: dict[str, TaskCut] = {}
    for k in graph.output_variables:
        name = graph.variables[k].producer
        if name is not None and name not in cuts and name not in whole:
            between = _before(graph, name, {*cuts, *whole})
            losses |= _by_words(graph, cuts, between) or _by_samples(graph, parts, between)
    return losses


def _before(graph: Graph, loss: str, others: Collection[str]) -> list[str]:
    """The loss, and operators that nobody else reads, back to others; the loss first."""
    before = {loss: None}
    for name in reversed(graph.nodes):
        readers = graph.successors[name]
        if name not in others and readers and before.keys() >= {*readers}:
            before[name] = None
    return [*before]


def _by_words(graph: Graph, cuts: Mapping[str, TaskCut], between: Sequence[str]) -> dict[str, TaskCut]:
    """Each as the last product, which is cut by columns; nothing, where the loss cannot be."""
    calls, ways = ways_of_graph(graph)
    readers = {v for name in between for v in graph.predecessors[name]}
    products = [FollowedCut(calls[v], cuts[v].axis, ways[v][cuts[v].axis]) for v in readers if v in cuts]
    products = [each for each in products if each.cuts_weights and each.makes()]
    if len(products) != 1:
        return {}
    (product,) = products
    lies, sizes = product.makes(), cuts[product.call.node.name].sizes
    by_words: dict[str, TaskCut] = {}
    for name in reversed(between):
        every = ways[name].items()
        fitting = (cut_fitting(calls[name], k, way, product.way.size, lies, made=False) for k, way in every)
        cut = next((each for each in fitting if each and each.scale == each.blocks == 1), None)
        if cut is not None:
            lies |= cut.makes()
            by_words[name] = TaskCut(cut.axis, sizes)
    return by_words if between[0] in by_words else {}


def _by_samples(graph: Graph, parts: int, between: Sequence[str]) -> dict[str, TaskCut]:
    calls, ways = ways_of_graph(graph)
    axis = "self.0"
    way = ways[between[0]].get(axis)
    sizes = proportioned(way.size, (1.0,) * parts) if way is not None else ()
    if way is None or not sizes:
        return {}
    first = FollowedCut(calls[between[0]], axis, way)
    by_samples = {between[0]: TaskCut(axis, sizes)}
    wanted = {k: each for (tag, k), each in first.reads() if tag == "var"}
    for name in between[1:]:
        fitting = (
            cut_fitting(calls[name], k, own, way.size, wanted, made=True) for k, own in ways[name].items()
        )
        cut = next((each for each in fitting if each and each.blocks == 1 and not each.cuts_weights), None)
        if cut is not None and not any(cut.scale * each % 1 for each in sizes):
            by_samples[name] = TaskCut(cut.axis, tuple(int(cut.scale * each) for each in sizes))
            wanted |= {k: each for (tag, k), each in cut.reads() if tag == "var"}
    return by_samples
