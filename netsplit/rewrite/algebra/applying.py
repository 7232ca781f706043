"""A rule applied to a graph: the nodes of its right side replace those of its left side.

What is read later keeps its name, and so do parameters. Before training both sides are computed on the same
drawn values in float64: equal results and gradients there mean equal loss and gradients of the whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from netsplit.errors import RewriteError
from netsplit.graph.arguments import Reference, read_by, renamed
from netsplit.graph.ir import Graph, Node
from netsplit.graph.module import rebuild
from netsplit.graph.quotient import topological_order
from netsplit.rewrite.algebra.matching import Match, match_of
from netsplit.rewrite.algebra.patterns import shape_of, written
from netsplit.rewrite.algebra.rule import Algebra, Ref
from netsplit.rewrite.emitter import Emitter
from netsplit.rewrite.lowering import lowered_from

__all__ = ["applied_rule", "fingerprint", "require_same_algebra", "require_same_training", "with_algebra"]

_CAPTURED, _CHECKED = "rewrite.algebra", "rewrite.algebra.checked"
"""Keys in `Graph.derived` of the graph before algebra, and of whether both were compared."""

TOLERANCE = 1e-10  # relative to the largest number of a tensor
ROWS = 32  # the most rows of a table that is drawn


def with_algebra(graph: Graph, algebra: tuple[Algebra, ...]) -> Graph:
    """The graph after these rules, one after another.

    Raises:
        RewriteError: one has nothing to match where it says.
    """
    for each in algebra:
        match = match_of(graph, each)
        if match is None:
            raise RewriteError(
                f"'{each.rule.name}' does not match '{each.node}' here: the operators differ, or other "
                "nodes read what it would replace."
            )
        graph = applied_rule(graph, match)
    return graph


def applied_rule(graph: Graph, match: Match) -> Graph:
    """The graph after one rule; `Graph.rewrites` has its record as the last.

    Raises:
        RewriteError: a later operator cannot read the new memory layout.
    """
    emitter = Emitter(graph)
    new, instead = _written(graph, match, emitter)
    added = {node.name for node in new}
    for node in _ordered(graph, match, new):
        now = {("var", k): instead[k] for k in node.inputs if k in instead}
        if node.name in added:
            emitter.emit(node)
        else:
            emitter.keep(node, now)
    for k, _ in match.kept:
        if k in emitter.layouts and emitter.layouts[k].shape != graph.variables[k].shape:
            raise RewriteError(f"'{match.rule.name}' would change the shape of '{k}': the rule is wrong.")
    changed = emitter.finish((*graph.rewrites, match.record))
    changed.derived[_CAPTURED] = graph.derived.get(_CAPTURED, graph)
    return changed


def _written(graph: Graph, match: Match, emitter: Emitter) -> tuple[list[Node], dict[str, Reference]]:
    """The nodes of the right side, and what is read instead of variables that are gone."""
    rule, first = match.rule, min((call.node.name for call in match.calls), key=graph.position.__getitem__)
    like, nodes = graph.nodes[first], list[Node]()
    there: dict[Ref, Reference] = dict(match.bound.items())
    kept: dict[Ref, str] = {right: k for k, right in reversed(match.kept) if not isinstance(right, str)}
    instead = {k: right for k, right in match.kept if kept.get(right) != k}
    stem = first.split("+")[0]
    for i, term in enumerate(rule.right):
        shapes = [match.shapes[ref] for ref in term.inputs]
        numbers, count = match.numbers[i], rule.arity(True, i)
        sizes = [match.shapes[i, j][numbers["dim"]] for j in range(count)] if term.op == "split" else ()
        calls = written(term.op, [there[ref] for ref in term.inputs], shapes, numbers, tuple(sizes))
        names: list[str] = []
        for op, args, kwargs in calls:
            names.append(name := emitter.fresh(f"{stem}+{op.split('.')[1]}"))
            outputs: tuple[str, ...] = (name,)
            if len(names) == len(calls):
                own = (name,) if count == 1 else (f"{name}.{j}" for j in range(count))
                outputs = tuple(kept.get((i, j), k) for j, k in enumerate(own))
                there |= {(i, j): ("var", k) for j, k in enumerate(outputs)}
            if op.startswith("aten.embedding_bag"):
                outputs = (*outputs, *(f"{name}.{j}" for j in (1, 2, 3)))
            args = tuple(
                {"var": names[each["made"]]} if isinstance(each, dict) and "made" in each else each
                for each in args
            )
            nodes.append(
                Node(name, op, (), outputs, args=args, kwargs=kwargs, module=like.module, source=like.source)
            )
    return nodes, {k: there[right] for k, right in instead.items()}


def _ordered(graph: Graph, match: Match, new: list[Node]) -> list[Node]:
    """All nodes in a topological order that keeps others in place, if possible.

    Raises:
        RewriteError: nodes that must run in one piece would change places.
    """
    gone, position = set(match.nodes), graph.position
    read = [graph.variables[k].producer for tag, k in match.bound.values() if tag == "var"]
    begin = max((position[name] for name in read if name is not None), default=-1)
    readers = [position[v] for k, _ in match.kept for v in graph.variables[k].consumers if v not in gone]
    place = max(begin + 1, min([*readers, *map(position.__getitem__, gone)]))
    nodes = [*(node for node in graph if node.name not in gone), *new]
    maker = {("var", k): i for i, node in enumerate(nodes) for k in node.outputs if k}
    after: list[dict[int, None]] = [{} for _ in nodes]
    instead = {("var", k): match.bound[right] for k, right in match.kept if isinstance(right, str)}
    for i, node in enumerate(nodes):
        for each in read_by(node):
            each = instead.get(each, each)
            if each in maker:
                after[maker[each]][i] = None
    order = topological_order([*map(list, after)], lambda i: position.get(nodes[i].name, place - 0.5))
    rank = {nodes[i].name: place for place, i in enumerate(order)}
    moved = any(
        sorted(unit, key=rank.__getitem__) != list(unit) for unit in graph.units if rank.keys() >= set(unit)
    )
    if len(order) < len(nodes) or moved:
        raise RewriteError(
            f"'{match.rule.name}' cannot be applied at '{match.nodes[0]}': its inputs depend on its "
            "outputs, or are overwritten in between."
        )
    return [nodes[i] for i in order]


def fingerprint(graph: Graph) -> str:
    """A digest of what a graph computes, whatever its order and names: operators, arguments and shapes,
    who reads what, and which initializers are the same."""
    known: dict[Reference, Reference] = {}
    for i, k in enumerate(graph.input_variables):
        known["var", k] = ("var", _digest("input", i, graph.variables[k].dtype, graph.variables[k].shape))
    for k, init in graph.initializers.items():
        own = init.shape, init.dtype, init.requires_grad, init.is_parameter
        known["init", k] = ("init", _digest(own))
    readers: dict[str, list[str]] = {k: [] for k in graph.initializers}
    every = []
    for node in graph:
        call = json.dumps(renamed(node, known), sort_keys=True, default=str)
        mode = node.no_grad, node.autocast, bool(node.checkpoint)
        every.append(own_digest := _digest(node.op, call, mode))
        known |= {("var", k): ("var", f"{own_digest}.{j}") for j, k in enumerate(node.outputs) if k}
        for k in node.initializers:
            readers[k].append(own_digest)
    shared = sorted((init.shape, sorted(readers[k])) for k, init in graph.initializers.items())
    return _digest(sorted(every), shared, [known["var", k] for k in graph.output_variables], graph.autocast)


def _digest(*what: Any) -> str:
    return hashlib.blake2b(repr(what).encode(), digest_size=12).hexdigest()


def require_same_algebra(graph: Graph) -> None:
    """`require_same_training` of what a graph with algebra was made of, once; others pass. Raises as that."""
    lowered = lowered_from(graph) if graph.rewrites else None
    after = graph if lowered is None else lowered.captured
    captured = after.derived.get(_CAPTURED)
    if captured is not None and _CHECKED not in after.derived:
        require_same_training(captured, after)
        after.derived[_CHECKED] = True


def require_same_training(captured: Graph, after: Graph) -> None:
    """Compares results and gradients of each applied rule, at its sizes, alike ones once.

    Raises:
        RewriteError: some differ; names the rule and the operator.
    """
    graph, known = captured, set[str]()
    for each in after.rewrites[len(captured.rewrites) :]:
        match = match_of(graph, each) if isinstance(each, Algebra) else None
        if match is None:
            continue
        changed = applied_rule(graph, match)
        calls, read = [(call.node.op, call.parameters) for call in match.calls], [*match.bound.values()]
        alike = repr((match.rule, calls, match.shapes, [(own[0], read.index(own)) for own in read]))
        if alike not in known and not _same(graph, changed, match):
            raise RewriteError(
                f"'{match.rule.name}' applied at '{each.node}' changes the result: a rule is wrong."
            )
        known.add(alike)
        graph = changed


def _same(graph: Graph, changed: Graph, match: Match) -> bool:
    given = _drawn(graph, match)
    ones = _computed(graph, given, [("var", k) for k, _ in match.kept])
    others = _computed(
        changed, given, [match.bound[ref] if isinstance(ref, str) else ("var", k) for k, ref in match.kept]
    )
    for one, other in zip(ones, others, strict=True):
        atol = TOLERANCE * float(one.nan_to_num(0.0, 0.0, 0.0).abs().max()) if one.numel() else 0.0
        if one.shape != other.shape or not torch.allclose(one, other, 0.0, atol, equal_nan=True):
            return False
    return True


def _drawn(graph: Graph, match: Match) -> dict[Reference, Tensor]:
    """Values of what both sides read; of tables to look up in only the first rows."""
    generator = torch.Generator().manual_seed(0)
    reads = [own for call in match.calls for own in enumerate(call.inputs) if call.op in ("embedding", "bag")]
    tables = {reference for i, reference in reads if i == 0}
    rows = min([ROWS, *(shape_of(graph, each)[0] for each in tables)])
    given: dict[Reference, Tensor] = {}
    for tag, k in match.bound.values():
        shape = shape_of(graph, (tag, k))
        if (tag, k) in tables:
            shape = (rows, *shape[1:])
        if (graph.variables if tag == "var" else graph.initializers)[k].dtype.startswith("int"):
            given[tag, k] = torch.randint(rows, shape, generator=generator)
        else:
            drawn = torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()
            given[tag, k] = nn.Parameter(drawn) if tag == "init" else drawn
    return given


def _computed(graph: Graph, given: Mapping[Reference, Tensor], wanted: Sequence[Reference]) -> list[Tensor]:
    """The wanted values, and the gradients of all that is given."""
    names, left = set[str](), [each for each in wanted if each not in given]
    while left:
        tag, k = left.pop()
        name = graph.variables[k].producer if tag == "var" else None
        if name is not None and name not in names:
            names.add(name)
            left += [each for each in read_by(graph.nodes[name]) if each not in given]
    inputs = [k for tag, k in given if tag == "var"]
    values = {k: value for (tag, k), value in given.items() if tag == "init"}
    outputs = [k for tag, k in wanted if (tag, k) not in given]
    module = rebuild(graph, values, nodes=names, inputs=inputs, outputs=outputs)
    results = iter(module(*(given["var", k] for k in inputs)))
    wanted_values = [given[each] if each in given else next(results) for each in wanted]
    draws = torch.Generator().manual_seed(1)
    weights = [torch.randn(each.shape, dtype=each.dtype, generator=draws) for each in wanted_values]
    trained = [value for value in given.values() if value.requires_grad]
    grads = torch.autograd.grad(wanted_values, trained, weights, allow_unused=True, materialize_grads=True)
    return [*(each.detach() for each in wanted_values), *grads]
