"""Programs of a training's other batches, by the usual batch's placement and program: fewer samples at an
epoch's end, other shapes, whose graphs may leave parameters out, and prediction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import replace

from netsplit.errors import NetSplitError, RewriteError
from netsplit.graph.ir import Graph, Node
from netsplit.graph.quotient import topological_priority
from netsplit.program.instructions import Program, origin
from netsplit.program.transfers import insert_transfers
from netsplit.rewrite.algebra.matching import match_of
from netsplit.rewrite.algebra.rule import Algebra
from netsplit.rewrite.records import Rewrite, algebra_of, folded
from netsplit.rewrite.rewriting import applied

__all__ = [
    "inference_placement",
    "like_priority",
    "like_recomputed",
    "like_rewritten",
    "require_same_operators",
    "require_used",
    "with_tail",
]


def with_tail(program: Program, graph: Graph, tail: Graph) -> Program:
    """The program with a last micro-batch by `tail`, a capture of the same model at fewer samples.

    Raises:
        NetSplitError: the model has other operators or constants for so many samples.
    """
    require_same_operators(graph, tail)
    for k, init in graph.initializers.items():
        differs = k not in tail.initializers or tail.initializers[k].shape != init.shape
        if differs or (k in graph.constants and not graph.constants[k].equal(tail.constants[k])):
            raise NetSplitError(
                f"the model's tensor '{k}' differs between {tail.batch_size} and {graph.batch_size} "
                "samples: use a number of samples divisible by batch_size."
            )
    for k in program.lasting:
        own = origin(program.graph, k)
        if tail.variables[own].shape != graph.variables[own].shape:
            raise NetSplitError(
                f"'{own}', computed from weights, differs in size between {tail.batch_size} and "
                f"{graph.batch_size} samples: use a number of samples divisible by batch_size."
            )
    device_of = {name: program.device_of[name] for name in graph.nodes}
    return replace(program, tail=insert_transfers(tail, device_of, program.exchanges)[0])


def require_same_operators(graph: Graph, tail: Graph) -> None:
    """Raises as `with_tail` if the operators differ."""
    same_names = (
        list(tail.nodes) == list(graph.nodes)
        and list(tail.variables) == list(graph.variables)
        and tail.output_variables == graph.output_variables
    )
    if not same_names or any(
        tail.nodes[n].op != graph.nodes[n].op
        and all(0 not in tail.variables[k].shape for k in tail.nodes[n].inputs)  # empty parts may differ
        for n in graph.nodes
    ):
        raise NetSplitError(
            f"the model has different operators for {tail.batch_size} and {graph.batch_size} samples: use a "
            "number of samples divisible by batch_size."
        )


def require_used(program: Program, waiting: Set[str]) -> None:
    """Raises NetSplitError: a parameter whose gradient is `waiting` for a step is not in this program."""
    if unused := sorted(waiting - program.trained.keys()):
        raise NetSplitError(
            f"a gradient of '{unused[0]}' waits for a step, but this batch does not use that parameter: "
            "accumulate gradients over batches that use the same parameters, or call drop_gradients()."
        )


def inference_placement(training: Graph, inference: Graph, device_of: Mapping[str, str]) -> dict[str, str]:
    """Device of every node of `inference`: where its parameters are, else where its like of the same module,
    operator and occurrence is, else that of what feeds it."""
    home = {k: device_of[node.name] for node in training for k in node.initializers}
    twin, fallback = _twins(inference, training), next(iter(device_of.values()))
    placed: dict[str, str] = {}
    for node in inference:
        owners = [home[k] for k in node.initializers if k in home]
        feeders = [placed[u] for u in inference.predecessors[node.name]]
        if owners:
            placed[node.name] = owners[0]
        elif node.name in twin:
            placed[node.name] = device_of[twin[node.name]]
        else:
            placed[node.name] = feeders[0] if feeders else fallback
    for group in inference.colocated:
        owners = [home[k] for name in group for k in inference.nodes[name].initializers if k in home]
        placed.update(dict.fromkeys(group, owners[0] if owners else placed[group[0]]))
    return placed


def like_rewritten(captured: Graph, training: Graph, other: Graph, more: Graph | None = None) -> Graph:
    """Another capture, rewritten as training's operators are; operators whose parts would differ stay whole.

    Args:
        captured, training: the training graph before and after its rewrites.
        more: the same step as `other` at more samples, as captured: it has the same nodes, made like this.

    Raises:
        RewriteError: it cannot have the same nodes.
    """
    rewrites = _likewise(captured, training, more or other)
    like = None if more is None else applied(more, rewrites, scaled=True)
    parts = [
        init for init in training.initializers.values() if init.region is not None and not init.region.copy
    ]
    return applied(other, rewrites, like, scaled=True, parts=parts)


def _likewise(captured: Graph, training: Graph, other: Graph) -> tuple[Rewrite, ...]:
    """Training's rewrites for the matching operators; none where parts would differ."""
    like = _twins(captured, other)
    rewrites: list[Rewrite] = [*_algebra_likewise(captured, algebra_of(training.rewrites), other, like)]
    for name, tasks in folded(training.rewrites).items():
        if name in like:
            rewrites.append(replace(tasks, node=like[name]))
    try:
        same = applied(other, rewrites, scaled=True).regions.keys() <= training.regions.keys()
    except RewriteError:
        return ()
    return tuple(rewrites) if same else ()


def _algebra_likewise(
    before: Graph, algebra: tuple[Algebra, ...], other: Graph, like: dict[str, str]
) -> tuple[Algebra, ...]:
    """Training's algebraic rewrites that match here; `like` gets the counterparts of new operators."""
    for i in range(len(algebra)):
        after = applied(before, algebra[: i + 1])
        match = match_of(
            other, replace(algebra[i], nodes=tuple(like.get(v, "") for v in algebra[i].nodes)), True
        )
        if match is not None:
            rewritten = applied(other, (*other.rewrites, match.record))
            pairs = zip(_new(before, after), _new(other, rewritten), strict=False)
            like |= {one.name: two.name for one, two in pairs if one.op == two.op}
            other = rewritten
        before = after
    return algebra_of(other.rewrites)


def _new(before: Graph, after: Graph) -> list[Node]:
    return [node for node in after if node.name not in before.nodes]


def like_priority(training: Graph, other: Graph, priority: Mapping[str, int]) -> dict[str, int]:
    """A total order of another capture's nodes: by their counterparts, then those without one."""
    twin, rank = _twins(other, training), dict[str, int]()
    for node in other:
        fed = max((rank[u] for u in other.predecessors[node.name]), default=-1)
        rank[node.name] = priority[twin[node.name]] if node.name in twin else fed
    return topological_priority(other, rank)


def like_recomputed(training: Graph, other: Graph, recomputed: Set[str]) -> frozenset[str]:
    """Nodes whose counterparts are recomputed, and those without counterpart that such nodes feed."""
    twin, chosen = _twins(other, training), set[str]()
    for v, feeders in other.predecessors.items():
        if twin[v] in recomputed if v in twin else bool(feeders) and chosen.issuperset(feeders):
            chosen.add(v)
    for unit in other.units:
        if not chosen.issuperset(unit):
            chosen.difference_update(unit)
    return frozenset(chosen)


def _twins(graph: Graph, other: Graph) -> dict[str, str]:
    """Node -> its counterpart with the same module, operator and occurrence."""

    def numbered(graph: Graph) -> dict[tuple[str, str, int], str]:
        counts: Counter[tuple[str, str]] = Counter()
        names = {}
        for node in graph:
            names[node.module, node.op, counts[node.module, node.op]] = node.name
            counts[node.module, node.op] += 1
        return names

    counterparts = numbered(other)
    return {name: counterparts[key] for key, name in numbered(graph).items() if key in counterparts}
