"""From a ``torch.export`` program to nodes and variables (thesis section 4.1.1)."""

from __future__ import annotations

import operator
import re
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind

from netsplit.errors import CaptureError
from netsplit.graph.ir import Graph, Initializer, Node, Variable
from netsplit.graph.template import encode, references

__all__ = ["read"]

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_CHECKS = (torch.ops.aten._assert_tensor_metadata.default,)  # of what export knew already; they make nothing
_TORCH = str(Path(torch.__file__).parent)


def read(program: torch.export.ExportedProgram, step: nn.Module, constants: str = "") -> Graph:
    """Graph of an exported step; shapes are there, aliases and gradients are not yet (see `analyse`).

    `constants` precedes the names of tensors that are no parameter or buffer: torch numbers literals in
    every export anew.
    """
    return _Reader(program, step, constants).graph()


class _Reader:
    def __init__(self, program: torch.export.ExportedProgram, step: nn.Module, prefix: str) -> None:
        self.program = program
        self.prefix = prefix
        self.constants: dict[str, torch.Tensor] = {}
        self.names = _canonical_names(step)
        self.tensors: dict[str, torch.Tensor] = {**program.state_dict, **program.constants}
        self.initializers: dict[str, Initializer] = {}
        self.initializer_of: dict[fx.Node, str] = {}
        self.inputs: list[str] = []

    def graph(self) -> Graph:
        self._read_placeholders()
        nodes: dict[str, Node] = {}
        values: dict[str, Any] = {k: self._meta(k) for k in self.inputs}
        outputs: tuple[str, ...] = ()
        for fx_node in self.program.graph.nodes:
            if fx_node.target in _CHECKS:
                continue
            if fx_node.op == "call_function" and fx_node.target is not operator.getitem:
                node = self._node(fx_node)
                nodes[node.name] = node
                values.update({k: self._meta(k) for k in node.outputs if k})
            elif fx_node.op == "output":
                outputs = tuple(out.name for out in fx_node.args[0] if isinstance(out, fx.Node))
            elif fx_node.op not in ("placeholder", "call_function"):
                raise CaptureError(_unsupported(fx_node))
        return Graph(
            nodes=nodes,
            variables=_variables(nodes, values),
            input_variables=tuple(self.inputs),
            output_variables=outputs,
            initializers=self._used(nodes),
            constants=self.constants,
            output_spec=_output_spec(self.program, outputs),
        )

    def _read_placeholders(self) -> None:
        by_name = {node.name: node for node in self.program.graph.nodes if node.op == "placeholder"}
        for spec in self.program.graph_signature.input_specs:
            fx_node = by_name[spec.arg.name]
            if spec.kind is InputKind.USER_INPUT:
                self.inputs.append(fx_node.name)
            elif spec.target is not None and spec.kind is not InputKind.CUSTOM_OBJ:
                self.initializer_of[fx_node] = self._initializer(spec.target, spec.kind)

    def _initializer(self, target: str, kind: InputKind) -> str:
        name, aliases = self.names.get(target, (self.prefix + _stripped(target), ()))
        tensor = self.tensors[target]
        if target not in self.names:
            self.constants[name] = tensor.detach()
        self.initializers[name] = Initializer(
            name=name,
            dtype=_dtype(tensor),
            shape=tuple(tensor.shape),
            is_parameter=kind is InputKind.PARAMETER,
            requires_grad=tensor.requires_grad,
            aliases=aliases,
        )
        return name

    def _node(self, fx_node: fx.Node) -> Node:
        if not isinstance(fx_node.target, torch._ops.OpOverload):
            raise CaptureError(_unsupported(fx_node))
        try:
            args = tuple(encode(arg, self._reference) for arg in fx_node.args)
            kwargs = {key: encode(arg, self._reference) for key, arg in fx_node.kwargs.items()}
        except TypeError as error:
            raise CaptureError(f"{_unsupported(fx_node)} (its argument {error})") from error
        found = list(dict.fromkeys(references([*args, *kwargs.values()])))
        return Node(
            name=fx_node.name,
            op=str(fx_node.target),
            inputs=tuple(name for tag, name in found if tag == "var"),
            outputs=_outputs(fx_node),
            initializers=tuple(name for tag, name in found if tag == "init"),
            args=args,
            kwargs=kwargs,
            module=_module(fx_node),
            source=_source(fx_node),
        )

    def _reference(self, value: Any) -> dict[str, str] | None:
        if not isinstance(value, fx.Node):
            return None
        if value in self.initializer_of:
            return {"init": self.initializer_of[value]}
        return {"var": value.name}

    def _meta(self, name: str) -> Any:
        return next(node.meta.get("val") for node in self.program.graph.nodes if node.name == name)

    def _used(self, nodes: dict[str, Node]) -> dict[str, Initializer]:
        used = {name for node in nodes.values() for name in node.initializers}
        return {name: init for name, init in self.initializers.items() if name in used}


def _output_spec(program: torch.export.ExportedProgram, outputs: tuple[str, ...]) -> Any:
    """None where the model also returned what is no tensor."""
    spec = program.call_spec.out_spec
    return spec if spec is not None and spec.num_leaves == len(outputs) else None


def _canonical_names(step: nn.Module) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Exported name -> (the model's own first name of that tensor, its further names)."""
    by_id: dict[int, list[str]] = {}
    tensors = [*step.named_parameters(remove_duplicate=False), *step.named_buffers(remove_duplicate=False)]
    for name, tensor in tensors:
        by_id.setdefault(id(tensor), []).append(name)
    found = {}
    for names in by_id.values():
        own = [_stripped(name) for name in names]
        found.update(dict.fromkeys(names, (own[0], tuple(own[1:]))))
    return found


def _stripped(name: str) -> str:
    return name.removeprefix("model.")


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _outputs(fx_node: fx.Node) -> tuple[str, ...]:
    if isinstance(fx_node.meta.get("val"), torch.Tensor):
        return (fx_node.name,)
    gets = [user for user in fx_node.users if user.target is operator.getitem]
    items = {user.args[1]: user.name for user in gets if isinstance(user.args[1], int)}
    return tuple(items.get(i, "") for i in range(max(items, default=-1) + 1))


def _variables(nodes: dict[str, Node], values: dict[str, Any]) -> dict[str, Variable]:
    producer = {name: node.name for node in nodes.values() for name in node.outputs if name}
    consumers: dict[str, list[str]] = {name: [] for name in values}
    for node in nodes.values():
        for name in node.inputs:
            consumers[name].append(node.name)
    return {
        name: Variable(
            name=name,
            dtype=_dtype(value),
            shape=tuple(value.shape),
            producer=producer.get(name),
            consumers=tuple(consumers[name]),
        )
        for name, value in values.items()
    }


def _module(fx_node: fx.Node) -> str:
    stack = list(fx_node.meta.get("nn_module_stack", {}).values())
    path = stack[-1][0] if stack else ""
    return _stripped(path) if path != "model" else ""


def _source(fx_node: fx.Node) -> str:
    """The innermost line outside torch that led to this call."""
    frames = _FRAME.findall(fx_node.meta.get("stack_trace") or "")
    own = [(file, line) for file, line in frames if not file.startswith(_TORCH)]
    return ":".join((own or frames)[-1]) if frames else ""


def _unsupported(fx_node: fx.Node) -> str:
    """A block such as ``torch.no_grad`` is a submodule: its line is that of its first call."""
    inside = getattr(fx_node.graph.owning_module, str(fx_node.target), None)
    calls = list(inside.graph.nodes) if isinstance(inside, fx.GraphModule) else []
    where = next(filter(None, map(_source, (fx_node, *calls))), "an unknown line")
    return (
        f"'{fx_node.target}' ({fx_node.op}) at {where} cannot be placed: "
        "rewrite that line with plain tensor operators of fixed sizes."
    )
