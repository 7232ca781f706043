"""An ONNX file as a trainable module, and the loss in it as another."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from netsplit.errors import NetSplitError
from netsplit.graph.module import hold_tensor, place_of_tensor
from netsplit.graph.onnx.call import OnnxCall, Value, as_tensor
from netsplit.graph.onnx.constants import evaluate_node, fold_constants, kinds_of
from netsplit.graph.onnx.files import OnnxNode, load_model, metadata_of, nodes_of, onnx_package, opsets_of
from netsplit.graph.onnx.operators import DRAWING, HOST_ONLY, OPERATORS
from netsplit.graph.user_code import line_of

__all__ = ["OLDEST", "OnnxModule", "from_onnx"]

OLDEST, CONVERTED = 13, 17
"""The oldest operator set that is known, and that to which files of older ones are converted."""


@dataclass(frozen=True)
class OnnxPart:
    """Nodes between some values of a file and others, with what they read."""

    nodes: tuple[OnnxNode, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: Mapping[str, tuple[int | None, ...] | None]  # of the file's own inputs; None: free
    numbers: Mapping[str, np.ndarray[Any, Any]]
    buffers: Mapping[str, np.ndarray[Any, Any]]
    parameters: Mapping[str, np.ndarray[Any, Any]]
    temporary: frozenset[str]  # buffers that are no initializers: not in the state_dict
    frozen: frozenset[str]
    opset: int


class OnnxFile:
    """A file's nodes and values, of which parts are made."""

    def __init__(self, model: Any, path: str, frozen: tuple[str, ...] = ()) -> None:
        """Reads a ModelProto; raises NetSplitError where it is too old, or `frozen` names what it has not."""
        to_array = onnx_package().numpy_helper.to_array
        model, self.path, self.notes = _recent(model, path), path, metadata_of(model)
        self.opset = opsets_of(model).get("", 0)
        nodes = nodes_of(model, path)
        self.kinds = kinds_of(model, nodes, self.notes)
        self.arrays = {each.name: to_array(each) for each in model.graph.initializer}
        self.inputs = {each.name: _dims(each) for each in model.graph.input if each.name not in self.arrays}
        self.outputs = tuple(each.name for each in model.graph.output)
        self.numbers = {name: self.arrays[name] for name, kind in self.kinds.items() if kind == "number"}
        self.nodes, self.large = fold_constants(nodes, self.numbers, self.opset)
        self.computed = {name for node in self.nodes for name in node.outputs}
        self.frozen = _matching(frozen, [name for name, kind in self.kinds.items() if kind == "parameter"])

    def part(self, ends: tuple[str, ...], stop: tuple[str, ...] = ()) -> OnnxPart:
        """The nodes that lead to `ends`, from the file's inputs or from `stop`, with what they read."""
        wanted = set(ends)
        reads: set[str] = set()
        chosen: list[OnnxNode] = []
        for node in reversed(self.nodes):
            if wanted.intersection(node.outputs):
                chosen.append(node)
                reads.update(node.inputs)
                wanted.update(k for k in node.inputs if k not in stop)
        self._check_operators(chosen)
        outputs = {name for node in chosen for name in node.outputs}
        unknown = [
            k
            for k in reads - outputs - {""}
            if not any(k in each for each in (self.arrays, self.inputs, self.numbers, self.large, stop))
        ]
        if unknown:
            raise NetSplitError(
                f"'{self.path}': no node makes the value '{min(unknown)}', which others read."
            )
        needed = [k for k in reads if self.kinds.get(k) in ("parameter", "buffer")]
        parameters = {k: v for k, v in self.arrays.items() if k in needed and self.kinds[k] == "parameter"}
        buffers = {k: v for k, v in self.arrays.items() if k in needed and k not in parameters}
        temporary = {k: v for k, v in self.large.items() if k in reads or k in ends}
        numbers = {k: v for k, v in self.numbers.items() if k in reads or k in ends}
        sources = (*stop, *self.inputs)
        read = reads.union(ends)
        return OnnxPart(
            # Exporters name all that a batch normalisation could give.
            nodes=tuple(
                replace(node, outputs=tuple(k if k in read else "" for k in node.outputs))
                for node in reversed(chosen)
            ),
            inputs=tuple(k for k in sources if k in reads),
            outputs=ends,
            shapes=self.inputs,
            numbers=numbers,
            buffers=buffers | temporary,
            parameters=parameters,
            temporary=frozenset(temporary),
            frozen=self.frozen,
            opset=self.opset,
        )

    def _check_operators(self, nodes: Iterable[OnnxNode]) -> None:
        missing: dict[str, str] = {}
        for node in nodes:
            if node.domain or (node.op not in OPERATORS and node.op not in HOST_ONLY):
                missing[node.label] = node.name
        if missing:
            named = ", ".join(f"{op} (node '{name}')" for op, name in sorted(missing.items()))
            raise NetSplitError(f"'{self.path}' has operators that are not supported: {named}.")


def _recent(model: Any, path: str) -> Any:
    """The model in an operator set that is known, by ONNX's own converter."""
    opset = opsets_of(model).get("", 0)
    if opset >= OLDEST:
        return model
    try:
        return onnx_package().version_converter.convert_version(model, CONVERTED)
    except Exception as error:
        raise NetSplitError(
            f"'{path}' uses operator set {opset}, which ONNX cannot convert ({line_of(error)}): export it "
            f"with {OLDEST} or a later one."
        ) from error


def _dims(value: Any) -> tuple[int | None, ...] | None:
    """Sizes that the file fixes; None where any will do, or for all where it does not say."""
    kind = value.type.tensor_type
    return tuple(each.dim_value or None for each in kind.shape.dim) if kind.HasField("shape") else None


def _matching(patterns: Iterable[str], names: list[str]) -> frozenset[str]:
    matching: set[str] = set()
    for pattern in patterns:
        matched = fnmatch.filter(names, pattern)
        if not matched:
            raise NetSplitError(f"frozen: no parameter of the ONNX file is named '{pattern}'.")
        matching.update(matched)
    return frozenset(matching)


class OnnxModule(nn.Module):
    """What a file computes, node by node, by differentiable operators of torch.

    Parameters and buffers keep the names of the file's initializers. Nodes of training (BatchNormalization,
    Dropout) follow the file in `train()`, and are as in inference in `eval()`.
    """

    def __init__(self, part: OnnxPart, loss: OnnxModule | NetSplitError | None = None) -> None:
        super().__init__()
        self._part = replace(part, parameters={}, buffers={})  # tensors are not kept twice
        # Not a submodule: its tensors are the loss's, not the model's.
        object.__setattr__(self, "_loss", loss)
        names = {**part.parameters, **part.buffers}
        if clash := [k for k in names if any(other.startswith(f"{k}.") for other in names)]:
            raise NetSplitError(f"the ONNX file has '{clash[0]}' and weights within it: rename it there.")
        for name, array in part.parameters.items():
            hold_tensor(self, name, nn.Parameter(as_tensor(array), name not in part.frozen))
        for name, array in part.buffers.items():
            hold_tensor(self, name, as_tensor(array))
            if name in part.temporary:
                module, leaf = place_of_tensor(self, name)
                module._non_persistent_buffers_set.add(leaf)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The values that `forward` takes, in order."""
        return self._part.inputs

    @property
    def loss(self) -> OnnxModule:
        """``(outputs, *targets) -> loss``: the file's nodes after the model's outputs.

        Raises:
            NetSplitError: the file has none, or one that reads more of the model than its outputs.
        """
        loss = self.__dict__["_loss"]
        if isinstance(loss, NetSplitError):
            raise loss
        if loss is None:
            raise NetSplitError(
                "the ONNX file has no loss after its outputs: give a loss, or, if the file's last value is "
                "the loss, name the model's outputs (outputs=...)."
            )
        return loss

    def forward(self, *batch: Any) -> Any:
        """Tensors for `input_names`; a tuple or list stands for its items."""
        given = [t for each in batch for t in (each if isinstance(each, tuple | list) else (each,))]
        part = self._part
        if len(given) != len(part.inputs):
            raise NetSplitError(f"{len(given)} tensors were given for the inputs {', '.join(part.inputs)}.")
        for name, tensor in zip(part.inputs, given, strict=True):
            _check_shape(name, tensor, part.shapes.get(name))
        device = given[0].device if given else torch.device("cpu")
        known: dict[str, Value | None] = {**part.numbers, **dict(zip(part.inputs, given, strict=True))}
        for node in part.nodes:
            values = [self._value(known, name) if name else None for name in node.inputs]
            results = self._run(node, values, device)
            known.update((name, value) for name, value in zip(node.outputs, results, strict=False) if name)
        outputs = tuple(self._value(known, name) for name in part.outputs)
        outputs = tuple(v if isinstance(v, Tensor) else as_tensor(v, device) for v in outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def _run(self, node: OnnxNode, values: list[Value | None], device: torch.device) -> Sequence[Value]:
        if node.op not in DRAWING and all(v is None or isinstance(v, np.ndarray) for v in values):
            return evaluate_node(node, values, self._part.opset)  # type: ignore[arg-type]
        call = OnnxCall(node, values, self._part.opset, self.training, device)
        function = OPERATORS.get(node.op)
        if function is None:
            raise call.refuse("its inputs must not depend on the data: export the model with fixed sizes.")
        try:
            result = function(call)
        except NetSplitError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError, KeyError) as error:
            raise call.refuse(f"{line_of(error)}.") from error
        return result if isinstance(result, tuple | list) else (result,)

    def _value(self, known: Mapping[str, Value | None], name: str) -> Any:
        if name in known:
            return known[name]
        module, leaf = place_of_tensor(self, name)
        return (module._parameters if leaf in module._parameters else module._buffers)[leaf]


def from_onnx(
    path: str, outputs: tuple[str, ...] | None = None, frozen: tuple[str, ...] | None = None
) -> OnnxModule:
    """A trainable module of an ONNX file: `netsplit.parallelize(netsplit.from_onnx(path), loss, batch)`.

    Where the file has the loss in it (as `netsplit.graph.onnx.export_training` writes it), the module is the
    model without it, and the module's `loss` the rest: ``(outputs, *targets) -> loss``.

    Args:
        path: of the file; external data beside it.
        outputs: values of the file where the model ends; None: as this package has noted in the file, else
            the file's outputs. A file of another tool whose one output is the loss is cut by this.
        frozen: names of initializers that are not to be trained; ``*`` stands for anything.

    Raises:
        NetSplitError: there is no such file, it is damaged, or it has operators that are not known: the
            message names the nodes.
    """
    for what, given in (("outputs", outputs), ("frozen", frozen)):
        if isinstance(given, str):
            raise NetSplitError(f"{what} is the string {given!r}: give a tuple of names, ({given!r},).")
    file = OnnxFile(load_model(path), path, tuple(frozen or ()))
    ends = tuple(outputs or file.notes.get("outputs") or file.outputs)
    for name in ends:
        if not any(name in each for each in (file.computed, file.numbers, file.large)):
            raise NetSplitError(f"'{path}' has no value named '{name}': give names from the file.")
    part = file.part(ends)
    return OnnxModule(part, _loss(file, ends, part))


def _loss(file: OnnxFile, ends: tuple[str, ...], model: OnnxPart) -> OnnxModule | NetSplitError | None:
    """What is left of the file after the model; an error to raise when it is asked for."""
    rest = [name for name in file.outputs if name not in ends]
    if len(rest) != 1:
        return None
    try:
        part = file.part((rest[0],), stop=ends)
    except NetSplitError as error:
        return error
    shared = [*set(part.parameters) & set(model.parameters), *set(part.inputs) & set(model.inputs)]
    if shared:
        return NetSplitError(
            f"the loss in '{file.path}' reads '{min(shared)}', which is part of the model: name more "
            "outputs, or give your own loss."
        )
    missing = [k for k in ends if k not in part.inputs]
    if missing:
        return NetSplitError(
            f"the loss in '{file.path}' does not read the output '{missing[0]}': name only outputs that it "
            "reads."
        )
    return OnnxModule(part)


def _check_shape(name: str, tensor: Tensor, declared: tuple[int | None, ...] | None) -> None:
    """Sizes that the file fixes may be in its constants too: another size could be computed wrongly."""
    if declared is None:
        return
    shape = tuple(tensor.shape)
    if len(shape) == len(declared) and all(b in (None, a) for a, b in zip(shape, declared, strict=True)):
        return
    wanted = ", ".join("any" if size is None else str(size) for size in declared)
    raise NetSplitError(
        f"the input '{name}' has the shape {shape}, but the ONNX file takes ({wanted}): give that shape, or "
        "export the model with a free batch dimension."
    )
