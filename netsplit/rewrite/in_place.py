"""Operators in place that need not be: a graph with their out-of-place twins.

    conv ─► norm ─► relu_ ─► add_ ─► ...      memory of norm, written twice; nobody else looks at it
    conv ─► norm ─► relu  ─► add  ─► ...      the same numbers, each in memory of its own

Twins are torch's own: `aten.add.Tensor` of `aten.add_.Tensor`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import torch

from netsplit.graph.analyse import Facts, analyse
from netsplit.graph.arguments import storage_of
from netsplit.graph.ir import CALL, INITIALIZER, Graph, Node, once_of
from netsplit.graph.operators import is_here, node_draws, resolve, written_references
from netsplit.rewrite.emitter import in_no_mode
from netsplit.rewrite.layouts import MemoryLayout, StandInRuns, keep_layouts, layouts_of

__all__ = ["out_of_place"]


@once_of
def out_of_place(graph: Graph) -> Graph:
    """The graph with the twins of all operators that overwrite a whole tensor which nobody else reads later.

    Left in place are writes into parameters, buffers, inputs, outputs and views, into what a backward needs,
    and all under `no_grad`, autocast or an activation checkpoint.
    """
    writes = {node.name: written_references(graph, node) for node in graph if is_here(graph, node)}
    writers: dict[str, list[Node]] = {}
    for name, references in writes.items():
        for tag, k in references:
            if tag == "var":
                writers.setdefault(storage_of(graph, k), []).append(graph.nodes[name])
    values: dict[str, list[str]] = {}
    for k in graph.variables if writers else ():
        values.setdefault(storage_of(graph, k), []).append(k)
    twins, layouts = dict[str, Node](), layouts_of(graph) if writers else {}
    for root, own in writers.items():
        chain = _twins(graph, layouts, root, own)
        if not chain or not _nobody_else(graph, [root, *chain], own, values[root]):
            continue
        for k in values[root][1:]:  # the values, and views of the last
            layouts[k] = replace(layouts[k], root=k if k in chain else own[-1].outputs[0])
        twins |= {node.name: node for node in chain.values()}
    if not twins:
        return graph
    changed = replace(graph, nodes=graph.nodes | twins)
    facts = Facts(
        {k: layouts[k].root for k in graph.variables},
        {k: INITIALIZER + k for k in graph.initializers},
        frozenset(k for k, variable in graph.variables.items() if variable.requires_grad),
        {name: tuple(references) for name, references in writes.items() if name not in twins},
    )
    changed = analyse(changed, facts)
    keep_layouts(changed, layouts, graph)
    return changed


def _twins(
    graph: Graph, layouts: Mapping[str, MemoryLayout], root: str, writers: Sequence[Node]
) -> dict[str, Node]:
    """The twins of all who write one memory, by what each makes; none where one of them has none."""
    runs, value, twins = StandInRuns(graph), root, dict[str, Node]()
    for node in writers:
        op, given = _twin(node.op), {k: layouts[k] for k in node.inputs}
        alone = written_references(graph, node) == [("var", value)] and len(node.outputs) == 1
        if not op or not alone or node.blocked or node_draws(node):
            return {}
        given[value] = replace(given[value], root=value)
        twin, value = replace(node, op=op), node.outputs[0]
        try:
            run = runs.run(twin, given)
        except Exception:  # torch's own of any kind
            return {}
        own = run.outputs[value]
        if own.root != value or _on_memory(own) != _on_memory(layouts[value]):
            return {}
        twins[value] = replace(twin, saved=run.saved, saved_bytes=run.saved_bytes)
    return twins


def _nobody_else(graph: Graph, chain: Sequence[str], writers: Sequence[Node], values: Sequence[str]) -> bool:
    """Whether each value of a memory is read before it is overwritten, and needed by no backward then:
    `chain` has the values in order, `values` these and all views of them."""
    last, position = writers[-1], graph.position
    if graph.autocast is not None or any(graph.variables[k].producer is None for k in values):
        return False
    touching = {name for k in values for name in (graph.variables[k].producer, *graph.variables[k].consumers)}
    for node in (graph.nodes[name] for name in touching if name is not None):
        if position[node.name] > position[last.name]:
            continue
        saves = node is not last and any(storage_of(graph, k) == chain[0] for k in node.saved)
        views = any(k in values and k not in chain for k in node.outputs)
        if saves or views or node.op.startswith(CALL) or not in_no_mode(node):
            return False
    return not any(
        k in graph.output_variables or position[graph.variables[k].consumers[-1]] > position[writer.name]
        for k, writer in zip(chain, writers, strict=False)
    )


def _on_memory(layout: MemoryLayout) -> tuple[object, ...]:
    strides = [step for n, step in zip(layout.shape, layout.stride, strict=True) if n > 1]
    return layout.shape, layout.dtype, strides if 0 not in layout.shape else []


@cache
def _twin(op: str) -> str:
    """The out-of-place operator of the same arguments, which makes a tensor of its own; "": there is none."""
    namespace, name, overload = op.split(".") if not op.startswith(CALL) else ("", "", "")
    twin = f"{namespace}.{name.removesuffix('_')}.{overload}"
    try:
        own, other = resolve(op)._schema, resolve(twin)._schema
    except (AttributeError, RuntimeError, ValueError):
        return ""

    def taken(schema: torch.FunctionSchema) -> list[tuple[object, ...]]:
        return [(a.name, str(a.type), a.kwarg_only, a.default_value) for a in schema.arguments]

    fresh = not any(a.alias_info for a in (*other.arguments, *other.returns))
    return twin if name.endswith("_") and fresh and taken(own) == taken(other) else ""
