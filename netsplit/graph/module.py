"""From a graph, or a part of one, back to an ``fx.GraphModule`` (thesis section 4.1.2, listing 4.1)."""

from __future__ import annotations

import keyword
import operator
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from netsplit.errors import NetSplitError
from netsplit.graph.analyse import storage_id
from netsplit.graph.arguments import decoded
from netsplit.graph.deferral.deferrable import deferrable_nodes, weight_operand
from netsplit.graph.deferral.deferred import CALLS, as_autocast
from netsplit.graph.ir import CALL, TRANSFER, Graph, Initializer, Node, once_of
from netsplit.graph.operators import in_its_mode, node_draws, operator_of, resolve, written_storages
from netsplit.graph.random_draws import drawing_as_now, drawn
from netsplit.graph.recording.stand_ins import named_tensors
from netsplit.graph.remembered import remembered

__all__ = [
    "NODE", "VARIABLE", "copies_as_captured", "find_at_once", "hold_tensor", "initial_values",
    "path_of_tensor", "place_of_tensor", "rebuild",
]  # fmt: skip

Known = dict[tuple[str, str], fx.Node]

NODE = "netsplit_node"
"""Key in ``fx.Node.meta`` of the name of the node that a call is of."""

VARIABLE = "netsplit_variable"
"""And of the name of the variable that a call makes."""


def initial_values(model: nn.Module, graph: Graph, loss: Any = None) -> dict[str, torch.Tensor]:
    """The model's own tensors for a graph's initializers (not copies), by initializer name.

    A part of a parameter is a parameter of its own in the whole's memory.

    Raises:
        NetSplitError: the graph has an initializer that the model has not.
    """
    values = named_tensors(model, loss) | dict(graph.constants)
    missing = [name for name in graph.wholes if name not in values]
    if missing:
        raise NetSplitError(f"the graph needs '{missing[0]}', which {type(model).__name__} does not have.")
    return {name: _own(values, init) for name, init in graph.initializers.items()}


def _own(values: Mapping[str, torch.Tensor], initializer: Initializer) -> torch.Tensor:
    whole = values[initializer.whole.name]
    if initializer.region is None:
        return whole
    part = initializer.cut(whole.detach())
    return nn.Parameter(part, whole.requires_grad) if isinstance(whole, nn.Parameter) else part


def rebuild(
    graph: Graph,
    values: Mapping[str, torch.Tensor],
    *,
    nodes: Iterable[str] | None = None,
    inputs: Iterable[str] | None = None,
    outputs: Iterable[str] | None = None,
    device: torch.device | str | None = None,
    deferrable: bool = False,
    kept: Container[str] = (),
) -> fx.GraphModule:
    """A module that computes `outputs` from `inputs` by the given nodes.

    What the model checkpoints is computed again in the backward here too.

    Args:
        graph: where the nodes come from.
        values: tensors of the initializers, registered under their original dotted names.
        nodes: a convex part of the graph; all of it by default. Run in graph order.
        inputs: variable names, the positional arguments; the graph's own inputs by default.
        outputs: variable names; the result is a tuple, or the bare tensor where `outputs` is left out
            and the graph has one output.
        device: replaces the device in calls which name one.
        deferrable: its backward may leave weight gradients to a `WeightGradients` queue; some
            microseconds a call dearer.
        kept: nodes whose results can be kept while the others are computed again (`remembering`).
    """
    chosen = set(graph.nodes if nodes is None else nodes)
    wanted = list(graph.output_variables if outputs is None else outputs)
    read = graph.input_variables if inputs is None else tuple(inputs)
    writer = _Writer(graph, values, chosen, device, deferrable, kept)
    writer.begin([("var", name) for name in read])
    for name, run in groupby((node for node in graph if node.name in chosen), lambda node: node.checkpoint):
        if name:
            writer.checkpointed(list(run), wanted)
        else:
            for node in run:
                writer.emit(node)
    return writer.end(wanted, bare=outputs is None and len(wanted) == 1)


def path_of_tensor(name: str) -> str:
    """The dotted path under which a rebuilt module holds an initializer: its name, but for clashes."""
    return ".".join(_parts(name))


def place_of_tensor(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Where a rebuilt module holds an initializer: (submodule, attribute)."""
    *path, leaf = _parts(name)
    for part in path:
        module = module._modules[part]  # type: ignore[assignment]
    return module, leaf


def _parts(name: str) -> list[str]:
    parts = name.split(".")
    return list(map(_safe, parts if len(parts) <= _DEEPEST else ["/".join(parts)]))


def _safe(part: str) -> str:
    """A name that neither a module's own attributes nor the generated code can trip over."""
    if keyword.iskeyword(part) or part in _TAKEN:
        part = f"{part} (of the model)"
    return re.sub(r'["\\\n]', lambda char: f"%{ord(char[0]):02x}", part)


_DEEPEST = 50
"""Parts of a path; Python does not compile what fx writes for paths of 200."""

_TAKEN = frozenset(dir(fx.GraphModule(nn.Module(), fx.Graph()))) | {"self"}


def _named(function: Any, name: str) -> Callable[..., Any]:
    """The function with the name and module that fx asks of what it writes a call of."""
    function.__name__ = function.__qualname__ = name
    function.__module__ = __name__
    return function


def _recomputed(module: nn.Module, *args: torch.Tensor) -> Any:
    """Checkpoints only what carries a gradient: a buffer that the module writes may change in between."""
    given = {i: arg for i, arg in enumerate(args) if arg.requires_grad}

    def run(*grad_args: torch.Tensor) -> Any:
        whole = list(args)
        for i, arg in zip(given, grad_args, strict=True):
            whole[i] = arg
        return module(*whole)

    return checkpoint(drawing_as_now(run), *given.values(), use_reentrant=False)


class _Writer:
    """Writes the calls of nodes into an fx graph."""

    def __init__(
        self,
        graph: Graph,
        values: Mapping[str, torch.Tensor],
        chosen: Container[str],
        device: torch.device | str | None,
        deferrable: bool,
        kept: Container[str] = (),
    ) -> None:
        self.kept = kept
        self.graph, self.values, self.chosen = graph, values, chosen
        self.device = device
        names = [node.name for node in graph if node.name in chosen]
        self.put_off = deferrable_nodes(graph, names) if deferrable else frozenset()
        self.root = nn.Module()
        self.fx = fx.Graph()
        self.known: Known = {}

    def begin(self, inputs: Sequence[tuple[str, str]]) -> None:
        for i, key in enumerate(inputs):
            # fx renames what is called as a builtin (`sum`), onto another's name (`sum_1`) if there is one.
            self.known[key] = self.fx.placeholder(f"v{i}_" + re.sub(r"\W", "_", key[1]))
        # Autocast casts a leaf once for all its readers, and sums their gradients as cast ones. That is meant
        # for weights: what is a leaf of this part alone is none in the whole model.
        for tag, k in inputs if self.graph.autocast is not None else ():
            read = self.graph.variables[k] if tag == "var" else None
            leaf = read is not None and read.requires_grad and read.dtype == "float32"
            if leaf and sum(v in self.chosen for v in self.graph.variables[k].consumers) > 1:
                alias = torch.ops.aten.alias.default
                self.known[tag, k] = self.fx.call_function(alias, (self.known[tag, k],))

    def end(self, wanted: Sequence[str], bare: bool = False) -> fx.GraphModule:
        results = tuple(self.known["var", name] for name in wanted)
        self.fx.output(results[0] if bare else results)
        return fx.GraphModule(self.root, self.fx)

    def emit(self, node: Node) -> None:
        self._hold(node)
        weight = weight_operand(self.graph, node, self.chosen) if node.name in self.put_off else None
        cast = weight is not None and self.graph.autocast is not None
        if cast:  # once for all calls that can put its gradient off, as in autocast's cache
            for k in node.initializers:
                if ("as_autocast", k) not in self.known:
                    leaf = self.known["init", k]
                    self.known["as_autocast", k] = self.fx.call_function(as_autocast, (leaf,))

        def tensor(tag: str, k: str) -> fx.Node:
            return self.known["as_autocast" if cast and tag == "init" else tag, k]

        args, kwargs = decoded(node, tensor, self.device)
        target: Callable[..., Any] = operator_of(self.graph, node)
        if weight is not None:  # a call that can leave the gradient of that argument to a queue
            target = CALLS[node.kind]
        if copies_as_captured(self.graph, node):
            target = _named(partial(_copied, target), f"{node.kind}_copied")
        target = in_its_mode(node, target, self.device or "cpu")
        if node_draws(node):
            name = (
                node.name if node.part is None else node.part.operator
            )  # all parts and copies draw the same
            target = _named(partial(drawn, name, target), f"{node.kind}_drawn")
        if node.name in self.kept:
            target = _named(partial(remembered, node.name, target), f"{node.kind}_remembered")
        call = self.fx.call_function(target, tuple(args), kwargs)
        call.meta[NODE] = node.name
        if _returns_one_tensor(node):
            self._make(node.outputs[0], call)
            return
        for i, k in enumerate(node.outputs):
            if k:
                self._make(k, self.fx.call_function(operator.getitem, (call, i)))

    def _make(self, k: str, call: fx.Node) -> None:
        self.known["var", k] = call
        call.meta[VARIABLE] = k

    def checkpointed(self, nodes: list[Node], wanted: Container[str]) -> None:
        """The nodes as one function, of which the backward keeps the arguments only."""
        outputs = {k for node in nodes for k in node.outputs if k}
        inside = {node.name for node in nodes}
        read = [("var", k) for node in nodes for k in node.inputs if k not in outputs]
        read += [("init", k) for node in nodes for k in node.initializers]
        given = list(dict.fromkeys(read))
        needed = [
            k
            for node in nodes
            for k in node.outputs
            if k and (k in wanted or any(v not in inside for v in self.graph.variables[k].consumers))
        ]
        part = _Writer(self.graph, self.values, inside, self.device, False)
        part.begin(given)
        for node in nodes:
            part.emit(node)
        function = _named(partial(_recomputed, part.end(needed)), nodes[0].checkpoint)
        for node in nodes:
            self._hold(node)
        results = self.fx.call_function(function, tuple(self.known[key] for key in given))
        for i, k in enumerate(needed):
            self._make(k, self.fx.call_function(operator.getitem, (results, i)))

    def _hold(self, node: Node) -> None:
        for name in node.initializers:
            if ("init", name) not in self.known:
                self.known["init", name] = self.fx.get_attr(hold_tensor(self.root, name, self.values[name]))


@once_of
def _written_apart(graph: Graph) -> frozenset[str]:
    """What has memory of its own that is written."""
    nodes = (node for node in graph if node.op != TRANSFER)
    return frozenset(root for node in nodes for root in written_storages(graph, node))


def copies_as_captured(graph: Graph, node: Node) -> bool:
    """Whether an operator that may return its argument (`contiguous`, `reshape`) has to copy, as it did when
    captured: its result is written."""
    if not _returns_one_tensor(node) or node.outputs[0] not in _written_apart(graph):
        return False
    return resolve(node.op)._schema.returns[0].alias_info is not None


def _copied(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A copy, if the result shares memory with an argument: what another device sent may lie otherwise."""
    result = operator(*args, **kwargs)
    given = {storage_id(each) for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)}
    return result.clone() if storage_id(result) in given else result


def _returns_one_tensor(node: Node) -> bool:
    if node.op.startswith(CALL):
        return False
    returns = resolve(node.op)._schema.returns
    return len(returns) == 1 and isinstance(returns[0].type, torch._C.TensorType) and bool(node.outputs)


def hold_tensor(module: nn.Module, name: str, value: torch.Tensor) -> str:
    """Registers a tensor in a tree of bare modules under the name the model gave it; the path to it."""
    *path, leaf = _parts(name)
    for part in path:
        if part not in module._modules:
            module._modules[part] = nn.Module()
        module = module._modules[part]  # type: ignore[assignment]
    if isinstance(value, nn.Parameter):
        module._parameters[leaf] = value
    else:
        module._buffers[leaf] = value
    return ".".join([*path, leaf])


def find_at_once(module: nn.Module) -> None:
    """Keep what a segment's modules hold among their plain attributes too, which Python finds faster than
    `nn.Module.__getattr__` does."""
    for each in module.modules():
        each.__dict__ |= {**each._modules, **each._parameters, **each._buffers}
