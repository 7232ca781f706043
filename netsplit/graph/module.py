"""From a graph, or a part of one, back to an ``fx.GraphModule`` (thesis section 4.1.2, listing 4.1)."""

from __future__ import annotations

import operator
import re
from collections.abc import Container, Iterable, Mapping
from typing import Any

import torch
from torch import fx, nn

from netsplit.errors import NetSplitError
from netsplit.graph.deferrable import deferrable_nodes, weight_operand
from netsplit.graph.deferred_calls import CALLS, PRODUCTS, lowered
from netsplit.graph.ir import TRANSFER, Graph, Node
from netsplit.graph.operators import resolve
from netsplit.graph.random import drawn, node_draws
from netsplit.graph.template import decode

__all__ = ["initial_values", "rebuild"]


def initial_values(model: nn.Module, graph: Graph, loss: Any = None) -> dict[str, torch.Tensor]:
    """The model's own tensors for a graph's initializers (not copies), by initializer name.

    Raises:
        NetSplitError: the graph has an initializer that the model has not.
    """
    found: dict[str, torch.Tensor] = dict(graph.constants)
    for prefix, module in (("loss.", loss), ("", model)):
        if isinstance(module, nn.Module):
            found |= {prefix + k: v for k, v in module.named_parameters(remove_duplicate=False)}
            found |= {prefix + k: v for k, v in module.named_buffers(remove_duplicate=False)}
    missing = [name for name in graph.initializers if name not in found]
    if missing:
        raise NetSplitError(f"the graph needs '{missing[0]}', which {type(model).__name__} does not have.")
    return {name: found[name] for name in graph.initializers}


def rebuild(
    graph: Graph,
    values: Mapping[str, torch.Tensor],
    *,
    nodes: Iterable[str] | None = None,
    inputs: Iterable[str] | None = None,
    outputs: Iterable[str] | None = None,
    device: torch.device | str | None = None,
    devices: Mapping[str, torch.device | str] | None = None,
    deferrable: bool = False,
) -> fx.GraphModule:
    """A module that computes `outputs` from `inputs` by the given nodes.

    Args:
        graph: where the nodes come from.
        values: tensors of the initializers, registered under their original dotted names.
        nodes: a convex part of the graph; all of it by default. Run in graph order.
        inputs: variable names, the positional arguments; the graph's own inputs by default.
        outputs: variable names; the result is a tuple, or the bare tensor where `outputs` is left out
            and the graph has one output.
        device: replaces the device in calls which name one.
        devices: what each device name of a transfer node stands for; needed where the graph has any.
        deferrable: its backward may leave weight gradients to a `WeightGradients` queue; some
            microseconds a call dearer.
    """
    chosen = set(graph.nodes if nodes is None else nodes)
    wanted = list(graph.output_variables if outputs is None else outputs)
    put_off = deferrable_nodes(graph, chosen) if deferrable else frozenset()
    root = _Root(values)
    fx_graph = fx.Graph()
    known: dict[tuple[str, str], fx.Node] = {}
    read = graph.input_variables if inputs is None else tuple(inputs)
    for name in read:
        known["var", name] = fx_graph.placeholder(re.sub(r"\W", "_", name))
    if graph.autocast is not None:
        _keep_from_the_cache(graph, fx_graph, known, (k for k in read if _readers(graph, k, chosen) > 1))
    for node in graph:
        if node.name in chosen:
            for name in node.initializers:
                if ("init", name) not in known:
                    known["init", name] = fx_graph.get_attr(root.add(name))
            if node.op == TRANSFER:
                copy = fx_graph.call_method(
                    "to", (known["var", node.inputs[0]], (devices or {})[node.args[1]])
                )
                known["var", node.outputs[0]] = copy
            else:
                weight = weight_operand(graph, node, chosen) if node.name in put_off else None
                if weight is not None and graph.autocast is not None:
                    _share_casts(fx_graph, node, known)
                _emit(fx_graph, node, known, device, weight)
    results = tuple(known["var", name] for name in wanted)
    fx_graph.output(results[0] if outputs is None and len(results) == 1 else results)
    return fx.GraphModule(root, fx_graph)


def _readers(graph: Graph, k: str, nodes: Container[str]) -> int:
    return sum(v in nodes for v in graph.variables[k].consumers)


def _keep_from_the_cache(
    graph: Graph, fx_graph: fx.Graph, known: dict[tuple[str, str], fx.Node], names: Iterable[str]
) -> None:
    """Autocast casts a leaf once for all its readers, and sums their gradients as cast ones.

    That is meant for weights. What is a leaf of this part alone is none in the whole model.
    """
    for name in names:
        variable = graph.variables[name]
        if variable.requires_grad and variable.dtype == "float32":
            known["var", name] = fx_graph.call_function(torch.ops.aten.alias.default, (known["var", name],))


def _share_casts(fx_graph: fx.Graph, node: Node, known: dict[tuple[str, str], fx.Node]) -> None:
    """One cast of an initializer for all calls that can put its gradient off, as in autocast's cache."""
    for name in node.initializers:
        if ("lowered", name) not in known:
            known["lowered", name] = fx_graph.call_function(lowered, (known["init", name],))


def _emit(
    fx_graph: fx.Graph,
    node: Node,
    known: dict[tuple[str, str], fx.Node],
    device: torch.device | str | None,
    weight: int | None,
) -> None:
    """Append a node's call; one that can leave the gradient of argument `weight` to a queue, if not None."""

    def tensor(tag: str, name: str) -> fx.Node:
        found = known[tag, name]
        return known.get(("lowered", name), found) if tag == "init" and weight is not None else found

    args = tuple(decode(template, tensor, device) for template in node.args)
    kwargs = {key: decode(template, tensor, device) for key, template in node.kwargs.items()}
    target = resolve(node.op)
    if weight is not None:
        target = CALLS[node.kind]
        kwargs |= {"weight": weight} if node.kind in PRODUCTS else {}
    if node_draws(node):
        target, args = drawn, (node.name, target, *args)
    call = fx_graph.call_function(target, args, kwargs)
    if resolve(node.op)._schema.returns and _returns_one_tensor(node):
        known["var", node.outputs[0]] = call
        return
    for i, name in enumerate(node.outputs):
        if name:
            known["var", name] = fx_graph.call_function(operator.getitem, (call, i))


def _returns_one_tensor(node: Node) -> bool:
    returns = resolve(node.op)._schema.returns
    return len(returns) == 1 and isinstance(returns[0].type, torch._C.TensorType)


class _Root(nn.Module):
    """A bare module tree that holds tensors under the dotted names the model gave them."""

    def __init__(self, values: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._values = values

    def add(self, name: str) -> str:
        *path, leaf = name.split(".")
        module: nn.Module = self
        for part in path:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        value = self._values[name]
        if isinstance(value, nn.Parameter):
            module.register_parameter(leaf, value)
        else:
            module.register_buffer(leaf, value)
        return name
