"""A rule applied to a graph: the nodes of its right side stand where those of its left side stood.

What is read later keeps its name, so that nothing else changes; parameters keep theirs in any case.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from netsplit.errors import RewriteError
from netsplit.graph.arguments import Reference, read_by, renamed
from netsplit.graph.ir import Graph, Node
from netsplit.graph.order import topological_order
from netsplit.rewrite.algebra.matching import Match, match_of
from netsplit.rewrite.algebra.patterns import written
from netsplit.rewrite.algebra.rule import Algebra, Ref
from netsplit.rewrite.emitter import Emitter

__all__ = ["CAPTURED", "applied_rule", "fingerprint", "with_algebra"]

CAPTURED = "rewrite.algebra"
"""Under this a graph has, derived, that to which algebra was applied."""


def with_algebra(graph: Graph, algebra: tuple[Algebra, ...]) -> Graph:
    """The graph after these rules, one after another.

    Raises:
        RewriteError: one has nothing to match where it says.
    """
    for each in algebra:
        match = match_of(graph, each)
        if match is None:
            raise RewriteError(
                f"'{each.rule.name}' does not match '{each.node}' here: the graph has other operators, or "
                "what it would replace is read elsewhere."
            )
        graph = applied_rule(graph, match)
    return graph


def applied_rule(graph: Graph, match: Match) -> Graph:
    """The graph after one rule; `Graph.rewrites` has its record as the last.

    Raises:
        RewriteError: a later operator cannot read what is made now, which lies in memory in another way.
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
            raise RewriteError(f"'{match.rule.name}' would make '{k}' of another shape: the rule is wrong.")
    changed = emitter.finish((*graph.rewrites, match.record))
    changed.derived[CAPTURED] = graph.derived.get(CAPTURED, graph)
    return changed


def _written(graph: Graph, match: Match, emitter: Emitter) -> tuple[list[Node], dict[str, Reference]]:
    """The nodes of the right side, and what is read now in the place of variables that are gone."""
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
    """All nodes in a topological order: others stay as they are, where that may be.

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
            f"'{match.rule.name}' cannot be applied at '{match.nodes[0]}': what it reads comes of what it "
            "makes, or is written in between."
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
        mode = node.no_grad, node.autocast, node.default_dtype, bool(node.checkpoint)
        every.append(own_digest := _digest(node.op, call, mode))
        known |= {("var", k): ("var", f"{own_digest}.{j}") for j, k in enumerate(node.outputs) if k}
        for k in node.initializers:
            readers[k].append(own_digest)
    shared = sorted((init.shape, sorted(readers[k])) for k, init in graph.initializers.items())
    return _digest(sorted(every), shared, [known["var", k] for k in graph.output_variables], graph.autocast)


def _digest(*what: Any) -> str:
    return hashlib.blake2b(repr(what).encode(), digest_size=12).hexdigest()
