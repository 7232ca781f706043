"""The arithmetic and the memory traffic of an operator, forward and backward, counted from shapes.

    node ──class──► rule of the class ──► Work: forward │ gradients of inputs │ gradients of parameters │ sums

A multiplication with its addition is 2 FLOPs. Bytes are those of every tensor read and written once, but a
normalisation that computes its own statistics reads its input twice, and a pooling reads each of its windows
whole. A backward reads the gradients of the outputs and what the forward saved. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from netsplit.cluster.catalogue import Pass
from netsplit.graph.arguments import argument, references
from netsplit.graph.deferral.deferrable import weight_operand
from netsplit.graph.ir import Graph, Initializer, Node, Variable, dtype_bytes
from netsplit.profile.roofline.classes import (
    CLASSES,
    PARTS,
    PASSED,
    is_transposed,
    operator_class,
    plain_kind,
)

__all__ = ["CLASSES", "Pass", "Work", "node_work", "operator_class", "step_bytes"]


_NO_PASS = Pass()


@dataclass(frozen=True)
class Work:
    """The work of one node; a pass that it does not make is empty."""

    forward: Pass = _NO_PASS
    input: Pass = _NO_PASS  # gradients of the variables that it read
    weight: Pass = _NO_PASS  # gradients of the parameters that it read
    sums: Pass = _NO_PASS  # adding those gradients to the ones that later readers of a variable have left
    has_backward: bool = False

    @property
    def flops(self) -> float:
        return sum(each.flops for each in (self.forward, self.input, self.weight, self.sums))


_PER_ELEMENT = {
    "transcendental": 12.0,
    "random": 8.0,
    "softmax": 8.0,
    "loss": 8.0,
    "pooling": 10.0,
    "resampling": 8.0,
    "copy": 0.0,
}
"""FLOPs of an element where they are not 1; an exponential takes a polynomial of about that degree."""

PLACES = 16  # of a sample, for which the kernels of a processor compute a convolution at once

_FLASH_BACKWARD = 2.5  # five matrix products for two: a backward computes the scores again


def node_work(graph: Graph, node: Node) -> Work:
    """FLOPs and bytes of a node at the graph's own (micro-)batch size.

    A node through which no gradient flows (`Graph.requires_backward`) has no backward.
    """
    call = _Call(graph, node)
    kind = operator_class(graph, node)
    if kind.endswith("convolution"):
        kind = "convolution"
    work = _RULES.get(kind, _plain)(call, kind)
    if not call.has_backward:
        return Work(work.forward)
    return Work(work.forward, work.input, work.weight, call.sums(), has_backward=True)


def step_bytes(graph: Graph) -> int:
    """Bytes that a step holds: parameters and buffers, gradients as large, and every variable once."""
    own = sum(each.nbytes for each in graph.initializers.values())
    return 2 * own + sum(each.nbytes for each in graph.variables.values() if each.alias_of is None)


@dataclass(frozen=True)
class _Call:
    """A node with its arguments' shapes, bytes and wants at hand."""

    graph: Graph
    node: Node

    def tensor(self, i: int) -> Variable | Initializer | None:
        """A positional tensor; None where the argument is none."""
        template = argument(self.node, i)
        if not isinstance(template, dict):
            return None
        if "var" in template:
            return self.graph.variables[template["var"]]
        return self.graph.initializers[template["init"]] if "init" in template else None

    def shape(self, i: int) -> tuple[int, ...]:
        """The shape of a positional tensor; () where the argument is none."""
        tensor = self.tensor(i)
        return () if tensor is None else tensor.shape

    def size(self, i: int) -> int:
        """Bytes of a positional tensor; 0 where the argument is none."""
        tensor = self.tensor(i)
        return 0 if tensor is None else tensor.nbytes

    def traffic(self, i: int) -> Pass:
        """Reading or writing a positional tensor once."""
        parameter = isinstance(self.tensor(i), Initializer)
        return Pass(weight_bytes=self.size(i)) if parameter else Pass(nbytes=self.size(i))

    def cast(self, i: int) -> Pass:
        """What autocast adds to reading a positional tensor: writing and reading it in half the bytes."""
        tensor = self.tensor(i)
        lowered = self.graph.autocast is not None and tensor is not None and tensor.dtype == "float32"
        return self.traffic(i) if lowered and self.out_dtype == self.graph.autocast else Pass()

    def wanted(self, i: int) -> bool:
        """Whether a gradient of a positional tensor is computed."""
        tensor = self.tensor(i)
        if isinstance(tensor, Variable):
            return tensor.name in self.graph.requires_backward
        return tensor is not None and tensor.requires_grad

    @property
    def has_backward(self) -> bool:
        return any(k in self.graph.requires_backward for k in self.node.outputs)

    @property
    def out_shape(self) -> tuple[int, ...]:
        return next((self.graph.variables[k].shape for k in self.node.outputs if k), ())

    @property
    def out_dtype(self) -> str:
        return next((self.graph.variables[k].dtype for k in self.node.outputs if k), "")

    @property
    def out_bytes(self) -> int:
        return sum(self.graph.variables[k].nbytes for k in self.node.outputs if k)

    @property
    def in_bytes(self) -> int:
        return sum(self.graph.variables[k].nbytes for k in self.node.inputs) + sum(
            self.graph.initializers[k].nbytes for k in self.node.initializers
        )

    @property
    def most_elements(self) -> int:
        """Elements of the largest tensor read or written."""
        names = (*self.node.inputs, *(k for k in self.node.outputs if k))
        return max((prod(self.graph.variables[k].shape) for k in names), default=0)

    @property
    def wanted_variables(self) -> list[str]:
        return [k for k in self.node.inputs if k in self.graph.requires_backward]

    @property
    def wanted_parameters(self) -> list[str]:
        return [k for k in self.node.initializers if self.graph.initializers[k].requires_grad]

    @property
    def gradients_in(self) -> int:
        """Bytes of the gradients of the outputs."""
        return sum(
            self.graph.variables[k].nbytes for k in self.node.outputs if k in self.graph.requires_backward
        )

    @property
    def gradients_out(self) -> int:
        """Bytes of the gradients of the variables read."""
        return sum(self.graph.variables[k].nbytes for k in self.wanted_variables)

    @property
    def parameters_out(self) -> int:
        """Bytes of the gradients of the parameters read."""
        return sum(self.graph.initializers[k].nbytes for k in self.wanted_parameters)

    @property
    def saved(self) -> int:
        """Bytes that the forward kept for the backward."""
        return sum(self.graph.variables[k].nbytes for k in self.node.saved) + self.node.saved_bytes

    def sums(self) -> Pass:
        """A backward goes from the last reader to the first, and each but the last adds."""
        total = Pass()
        for k in self.wanted_variables:
            variable = self.graph.variables[k]
            later = [v for v in variable.consumers if _hands_back(self.graph, v)]
            if later and later[-1] != self.node.name:
                total += Pass(variable.nbytes / dtype_bytes(variable.dtype), 3 * variable.nbytes)
        return total


def _hands_back(graph: Graph, name: str) -> bool:
    return any(k in graph.requires_backward for k in graph.nodes[name].outputs)


def _convolution(call: _Call, kind: str) -> Work:
    weight = call.shape(1)
    shape = call.shape(0) if is_transposed(call.node) else call.out_shape
    flops = 2.0 * prod(shape) * prod(weight[1:])
    idle = flops * max(PLACES / max(prod(shape[2:]), 1) - 1.0, 0.0)
    bias = float(prod(call.out_shape)) if call.size(2) else 0.0
    return _product(call, Pass(flops, idle_flops=idle), (0, 1), Pass(bias, 0.0), 2)


def _matmul(call: _Call, kind: str) -> Work:
    biased = call.node.kind in ("addmm", "baddbmm", "addbmm", "addmv")
    first = 1 if biased else 0
    inner = call.shape(first)[-1] if call.shape(first) else 1
    flops = 2.0 * prod(call.out_shape) * inner
    bias = 0 if biased else 2 if call.node.kind == "linear" else -1
    extra = float(prod(call.out_shape)) if bias >= 0 and call.size(bias) else 0.0
    return _product(call, Pass(flops), (first, first + 1), Pass(extra, 0.0), bias)


def _product(call: _Call, arithmetic: Pass, factors: tuple[int, int], extra: Pass, bias: int) -> Work:
    """A product of two tensors: each one's gradient is a product of as many FLOPs."""
    own = weight_operand(call.graph, call.node)
    once = arithmetic + Pass(nbytes=call.out_bytes) + call.traffic(factors[0]) + call.traffic(factors[1])
    forward = once + call.cast(factors[0]) + call.cast(factors[1]) + extra
    parts = {"input": Pass(), "weight": Pass()}
    for i in factors:
        if call.wanted(i):
            part = "weight" if i == own or "init" in argument(call.node, i) else "input"
            parts[part] += once
    if bias >= 0 and call.wanted(bias):
        parts["weight"] += Pass(extra.flops, call.out_bytes)
    return Work(forward, parts["input"], parts["weight"])


def _attention(call: _Call, kind: str) -> Work:
    query, value = call.shape(0), call.shape(2)
    rows, keys = prod(query[:-1]), call.shape(1)[-2]
    products = 2.0 * rows * keys * (query[-1] + value[-1])
    soft = _PER_ELEMENT["softmax"] * rows * keys
    forward = Pass(products + soft, call.in_bytes + call.out_bytes)
    if not any(call.wanted(i) for i in range(3)):
        return Work(forward)
    moved = call.in_bytes + call.out_bytes + call.gradients_in + call.gradients_out
    return Work(forward, Pass(_FLASH_BACKWARD * products + soft, moved))


def _normalisation(call: _Call, kind: str) -> Work:
    """Statistics over a whole tensor take a pass of their own; over a row they find it in the cache."""
    own = kind == "normalisation" and (True in call.node.args[5:6] or call.size(3) == 0)
    twice = 2 if own else 1
    elements = prod(call.shape(0))
    forward = Pass(5.0 * elements, twice * call.size(0) + call.out_bytes)
    if not (call.wanted_variables or call.wanted_parameters):
        return Work(forward)
    read = call.size(0) + call.size(0)  # the input and the gradient of the output
    input_pass = Pass(9.0 * elements, (2 if own or call.wanted_parameters else 1) * read + call.gradients_out)
    return Work(forward, input_pass)


def _pooling(call: _Call, kind: str) -> Work:
    """Windows overlap, and kernels read each of them whole; the arithmetic is of places more than of taps."""
    window = argument(call.node, 1, "kernel_size")
    places = prod(call.out_shape)
    taps = prod(call.shape(0)) / places  # adaptive: every input once
    if isinstance(window, Sequence) and "adaptive" not in call.node.kind:
        taps = prod(window) ** (1 if len(window) > 1 else _spatial(call))
    width = call.size(0) / prod(call.shape(0))
    index = 8 if kind == "pooling" else 0  # a maximum's place
    flops = _PER_ELEMENT["pooling"] * places
    forward = Pass(flops, places * (width * (taps + 1) + index))
    if not call.wanted_variables:
        return Work(forward)
    return Work(forward, Pass(flops, places * taps * (width + index) + call.gradients_out))


def _embedding(call: _Call, kind: str) -> Work:
    """Work of an embedding: only rows asked for are read; the gradient is a whole table, zero first."""
    forward = Pass(0.0, 2 * call.out_bytes)
    if not (call.wanted_parameters or call.wanted_variables):
        return Work(forward)
    written = call.parameters_out + call.gradients_out
    return Work(forward, weight=Pass(float(prod(call.out_shape)), 3 * call.out_bytes, written))


def _recurrent(call: _Call, kind: str) -> Work:
    """Every matrix meets every sample at every step."""
    shapes = [
        (call.graph.initializers if tag == "init" else call.graph.variables)[k].shape
        for tag, k in references(call.node.args[2:])  # of parts of it the weights are variables
    ]
    steps = prod(call.shape(0)[:2])
    flops = 2.0 * steps * sum(prod(shape) for shape in shapes if len(shape) == 2)
    forward = Pass(flops, call.in_bytes + call.out_bytes + call.saved)
    if not (call.wanted_variables or call.wanted_parameters):
        return Work(forward)
    moved = call.in_bytes + call.saved + call.gradients_in + call.gradients_out
    return Work(forward, Pass(flops, moved), Pass(flops, moved + call.parameters_out))


def _view(call: _Call, kind: str) -> Work:
    """Nothing moves, but for the gradient of an expanded tensor, which is a sum."""
    if call.gradients_out < call.gradients_in:
        return Work(input=Pass(call.gradients_in / 4, call.gradients_in + call.gradients_out))
    return Work()


def _plain(call: _Call, kind: str) -> Work:
    """Reads its inputs and writes its outputs, and back with what was saved."""
    node, elements = call.node, float(call.most_elements)
    flops = _PER_ELEMENT.get(kind, 1.0) * elements
    part = node.kind in PARTS and all(call.graph.variables[k].alias_of for k in node.outputs if k)
    forward = Pass() if part else Pass(flops, call.in_bytes + call.out_bytes)
    if kind == "softmax":
        forward += Pass(0.0, call.in_bytes)  # once more for the sums
    if not (call.wanted_variables or call.wanted_parameters):
        return Work(forward)
    written = call.gradients_out + call.parameters_out
    if plain_kind(node) in PASSED:
        smaller = written < (len(call.wanted_variables) + len(call.wanted_parameters)) * call.gradients_in
        return Work(forward, Pass(elements, call.gradients_in + written) if smaller else Pass())
    if part:
        return Work(forward, Pass(0.0, 2 * call.gradients_in + written))
    return Work(forward, Pass(flops, call.gradients_in + call.saved + written))


_RULES: dict[str, Callable[[_Call, str], Work]] = {
    "convolution": _convolution,
    "matmul": _matmul,
    "attention": _attention,
    "normalisation": _normalisation,
    "row normalisation": _normalisation,
    "pooling": _pooling,
    "average pooling": _pooling,
    "embedding": _embedding,
    "recurrent": _recurrent,
    "view": _view,
}


def _spatial(call: _Call) -> int:
    return next((n for n in (1, 2, 3) if f"{n}d" in call.node.kind), 2)
