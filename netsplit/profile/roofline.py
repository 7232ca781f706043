"""The class of an operator, its arithmetic and memory traffic, forward and backward, counted from shapes.

    node ──class──► rule of the class ──► Work: forward │ gradients of inputs │ gradients of parameters │ sums

Operators of a class reach similar fractions of a device's peaks. A multiply-add is 2 FLOPs. Bytes are those
of every tensor read and written once; a normalisation that computes its own statistics reads its input twice,
and a pooling reads each window whole. A backward reads output gradients and what the forward saved. Needs no
torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod

from netsplit.cluster.catalogue import Pass
from netsplit.graph.arguments import argument, references
from netsplit.graph.deferral.deferrable import weight_operand
from netsplit.graph.ir import Graph, Initializer, Node, Variable, dtype_bytes

__all__ = ["CLASSES", "Pass", "Work", "node_work", "operator_class", "step_bytes", "unknown_in_words"]

_NAMES: dict[str, str] = {
    "convolution": "convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
    "matmul": "linear mm bmm matmul addmm baddbmm addbmm mv addmv dot einsum",
    "attention": "scaled_dot_product_attention",
    "normalisation": "batch_norm instance_norm native_batch_norm native_batch_norm_legit "
        "native_batch_norm_legit_functional local_response_norm",
    "row normalisation": "layer_norm group_norm native_layer_norm native_group_norm rms_norm",
    "pooling": "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices "
        "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d",
    "average pooling": "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
        "adaptive_avg_pool3d",
    "softmax": "softmax log_softmax logsumexp",
    "loss": "cross_entropy_loss nll_loss nll_loss_nd nll_loss2d nll_loss_forward nll_loss2d_forward "
        "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy_with_logits binary_cross_entropy "
        "kl_div soft_margin_loss poisson_nll_loss",
    "embedding": "embedding embedding_bag",
    "resampling": "upsample_bilinear2d upsample_nearest1d upsample_nearest2d upsample_nearest3d "
        "upsample_linear1d upsample_bicubic2d upsample_trilinear3d upsample_bilinear2d_aa grid_sampler "
        "grid_sampler_2d",
    "reduction": "sum mean var var_mean std std_mean amax amin aminmax max min argmax argmin norm "
        "linalg_vector_norm cumsum cumprod prod all any nansum nanmean count_nonzero",
    "copy": "cat stack concat clone contiguous reshape flatten constant_pad_nd pad reflection_pad1d "
        "reflection_pad2d replication_pad1d replication_pad2d index index_select gather scatter scatter_add "
        "index_put index_add index_copy index_fill slice_scatter select_scatter take take_along_dim repeat "
        "repeat_interleave flip roll copy to_copy to tile pixel_shuffle pixel_unshuffle im2col col2im where "
        "masked_fill tril triu zeros ones full arange empty zeros_like ones_like full_like empty_like fill "
        "zero new_zeros new_ones new_full new_empty one_hot channel_shuffle lift_fresh_copy",
    "elementwise": "add sub rsub mul div true_divide floor_divide addcmul addcdiv lerp neg abs sign sgn "
        "positive reciprocal square relu relu6 leaky_relu prelu prelu_kernel hardtanh hardshrink softshrink "
        "threshold clamp clamp_min clamp_max clip maximum minimum fmax fmin fmod remainder round floor ceil "
        "trunc frac fix copysign heaviside nan_to_num eq ne lt le gt ge isnan isinf isfinite isposinf "
        "isneginf logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor "
        "bitwise_not bitwise_left_shift bitwise_right_shift and or xor lshift rshift iand ior ixor ilshift "
        "irshift signbit conj_physical angle deg2rad rad2deg nextafter ldexp frexp gcd lcm equal",
    "transcendental": "gelu tanh sigmoid silu mish erf erfc erfinv exp exp2 expm1 log log2 log10 log1p "
        "logit logaddexp logaddexp2 sin cos tan asin acos atan atan2 sinh cosh asinh acosh atanh sinc "
        "softplus elu selu celu hardswish hardsigmoid logsigmoid log_sigmoid_forward glu pow float_power "
        "sqrt rsqrt hypot xlogy lgamma digamma polygamma mvlgamma igamma igammac i0",
    "random": "dropout native_dropout feature_dropout alpha_dropout bernoulli rand rand_like randn "
        "randn_like rrelu rrelu_with_noise",
    "recurrent": "lstm gru rnn_tanh rnn_relu",
    "collective": "group_identity group_slice group_all_reduce group_all_gather group_reduce_scatter "
        "group_all_to_all",
}  # fmt: skip
"""Operators without underscores around their names: in place or not, they count alike."""

_CLASS_OF = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_SMALL = 8  # channels of a group, up to which a convolution is no matrix product worth the name

_OF_CONVOLUTION = ("depthwise convolution", "pointwise convolution", "transposed convolution")
CLASSES = (*_NAMES, *_OF_CONVOLUTION, "view", "bookkeeping")
"""Every answer of `operator_class`."""

PARTS = frozenset(
    ["slice", "select", "narrow", "split", "chunk", "unbind", "split_with_sizes", "tensor_split", "diagonal"]
)
"""Views of a part: their backward fills a tensor of the whole."""

PASSED = frozenset(["add", "sub", "clone", "contiguous", "alias", "lift_fresh_copy"])
"""Hand the output's gradient on to their inputs, but for sums over broadcast dimensions."""


def operator_class(graph: Graph, node: Node) -> str:
    """The class of a node's operator, one of `CLASSES`; unknown ones count as elementwise
    (`unknown_in_words`)."""
    outputs = [graph.variables[k] for k in node.outputs if k]
    in_place = node.kind.endswith("_") and not node.kind.endswith("__")
    if outputs and all(v.alias_of is not None for v in outputs) and not in_place:
        return "copy" if node.kind in PARTS else "view"
    if not node.inputs:
        return "bookkeeping"
    kind = _CLASS_OF.get(plain_kind(node), "elementwise")
    return _convolution_class(graph, node) if kind == "convolution" else kind


def unknown_in_words(graph: Graph) -> str:
    """Operators in no class, as "aten.topk.default (2), aten.sort.default (1)"; "" for none."""
    counts = Counter(
        node.op
        for node in graph
        if plain_kind(node) not in _CLASS_OF and operator_class(graph, node) == "elementwise"
    )
    return ", ".join(f"{op} ({count})" for op, count in sorted(counts.items()))


def plain_kind(node: Node) -> str:
    """The operator's short name without underscores, which mark it as in place or internal."""
    return node.kind.strip("_")


def _convolution_class(graph: Graph, node: Node) -> str:
    weight, place = _weight_shape(graph, node), 8 if node.kind == "convolution" else 6
    groups = int(argument(node, place, "groups") or 1)
    channels = weight[0] // groups if is_transposed(node) else weight[1]
    if groups > 1 and channels <= _SMALL:
        return "depthwise convolution"
    if is_transposed(node):
        return "transposed convolution"
    return "pointwise convolution" if prod(weight[2:]) == 1 else "convolution"


def is_transposed(node: Node) -> bool:
    return "transpose" in node.kind or (node.kind == "convolution" and True in node.args[6:7])


def _weight_shape(graph: Graph, node: Node) -> tuple[int, ...]:
    template = node.args[1]
    if "init" in template:
        return graph.initializers[template["init"]].shape
    return graph.variables[template["var"]].shape


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

BLOCK, ROW = 128, 10  # of FlashAttention-2: keys in a block; starts of a row for each element of its head
_FLASH_BACKWARD = 2.5  # five matrix products for two: a backward computes the scores again


def node_work(graph: Graph, node: Node) -> Work:
    """FLOPs and bytes of a node at the graph's own (micro-)batch size; without gradients, no backward."""
    call = _Call(graph, node)
    kind = operator_class(graph, node)
    if kind.endswith("convolution"):
        kind = "convolution"
    work = _RULES.get(kind, _plain)(call, kind)
    if graph.requires_backward.isdisjoint(node.outputs):
        return Work(work.forward)
    return Work(work.forward, work.input, work.weight, call.sums(), has_backward=True)


def step_bytes(graph: Graph) -> int:
    """Bytes that a step holds: parameters and buffers, gradients as large, and every variable once."""
    own = sum(each.nbytes for each in graph.initializers.values())
    return 2 * own + sum(each.nbytes for each in graph.variables.values() if each.alias_of is None)


class _Call:
    """A node with its arguments' shapes, bytes and wants at hand."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node = graph, node
        back, variables, initializers = graph.requires_backward, graph.variables, graph.initializers
        read = [variables[k] for k in node.inputs]
        held = [initializers[k] for k in node.initializers]
        self.outputs = [variables[k] for k in node.outputs if k]
        self.out_shape = next((each.shape for each in self.outputs), ())
        self.out_bytes = _bytes(self.outputs)
        self.in_bytes = _bytes(read) + _bytes(held)
        self.most_elements = max((prod(each.shape) for each in (*read, *self.outputs)), default=0)
        self.wanted = [each for each in read if each.name in back]  # variables whose gradient is computed
        self.trained = [each for each in held if each.requires_grad]
        self.gradients_in = _bytes(each for each in self.outputs if each.name in back)  # of the outputs
        self.gradients_out, self.parameters_out = _bytes(self.wanted), _bytes(self.trained)
        self.saved = _bytes(variables[k] for k in node.saved) + node.saved_bytes  # kept for the backward

    def tensor(self, i: int) -> Variable | Initializer | None:
        """A positional tensor; None where the argument is none."""
        template = argument(self.node, i)
        if not isinstance(template, dict):
            return None
        if "var" in template:
            return self.graph.variables[template["var"]]
        return self.graph.initializers[template["init"]] if "init" in template else None

    def shape(self, i: int) -> tuple[int, ...]:
        tensor = self.tensor(i)
        return () if tensor is None else tensor.shape

    def size(self, i: int) -> int:
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
        return self.traffic(i) if lowered and self.outputs[0].dtype == self.graph.autocast else Pass()

    def wants(self, i: int) -> bool:
        """Whether a gradient of a positional tensor is computed."""
        tensor = self.tensor(i)
        if isinstance(tensor, Variable):
            return tensor.name in self.graph.requires_backward
        return tensor is not None and tensor.requires_grad

    def sums(self) -> Pass:
        """A backward goes from the last reader to the first, and each but the last adds."""
        total = Pass()
        for variable in self.wanted:
            back = self.graph.requires_backward
            later = [v for v in variable.consumers if not back.isdisjoint(self.graph.nodes[v].outputs)]
            if later and later[-1] != self.node.name:
                total += Pass(variable.nbytes / dtype_bytes(variable.dtype), 3 * variable.nbytes)
        return total


def _bytes(tensors: Iterable[Variable | Initializer]) -> int:
    return sum(each.nbytes for each in tensors)


def _convolution(call: _Call, kind: str) -> Work:
    weight = call.shape(1)
    shape = call.shape(0) if is_transposed(call.node) else call.out_shape
    flops = 2.0 * prod(shape) * prod(weight[1:])
    idle = flops * max(PLACES / max(prod(shape[2:]), 1) - 1.0, 0.0)
    bias = float(prod(call.out_shape)) if call.size(2) else 0.0
    return _product(call, [Pass(flops, idle_flops=idle)] * 3, (0, 1), Pass(bias, 0.0), 2)


def _matmul(call: _Call, kind: str) -> Work:
    biased = call.node.kind in ("addmm", "baddbmm", "addbmm", "addmv")
    first = 1 if biased else 0
    inner = call.shape(first)[-1] if call.shape(first) else 1
    flops = 2.0 * prod(call.out_shape) * inner
    bias = 0 if biased else 2 if call.node.kind == "linear" else -1
    extra = float(prod(call.out_shape)) if bias >= 0 and call.size(bias) else 0.0
    columns = call.out_shape[-1] if len(call.out_shape) > 1 else 1
    rows = prod(call.out_shape) / columns if len(call.shape(first + 1)) < 3 else call.out_shape[-2]
    summed = (inner, columns, rows)
    arithmetic = [Pass(flops, starts=flops / max(each, 1)) for each in summed]
    return _product(call, arithmetic, (first, first + 1), Pass(extra, 0.0), bias)


def _product(
    call: _Call, arithmetic: Sequence[Pass], factors: tuple[int, int], extra: Pass, bias: int
) -> Work:
    """A product of two tensors; `arithmetic` is its own and that of their gradients, two products."""
    own = weight_operand(call.graph, call.node)
    moved = Pass(nbytes=call.out_bytes) + call.traffic(factors[0]) + call.traffic(factors[1])
    forward = arithmetic[0] + moved + call.cast(factors[0]) + call.cast(factors[1]) + extra
    parts = {"input": Pass(), "weight": Pass()}
    for i, each in zip(factors, arithmetic[1:], strict=True):
        if call.wants(i):
            part = "weight" if i == own or "init" in argument(call.node, i) else "input"
            parts[part] += each + moved
    if bias >= 0 and call.wants(bias):
        parts["weight"] += Pass(extra.flops, call.out_bytes)
    return Work(forward, parts["input"], parts["weight"])


def _attention(call: _Call, kind: str) -> Work:
    """Two products, and five in a backward; a causal mask hides half of the scores, in whole blocks."""
    query, value = call.shape(0), call.shape(2)
    rows, keys = prod(query[:-1]), call.shape(1)[-2]
    products = 2.0 * rows * keys * (query[-1] + value[-1])
    soft = _PER_ELEMENT["softmax"] * rows * keys
    hidden = max(0.5 - 0.5 * BLOCK / keys, 0.0) if argument(call.node, 5, "is_causal") else 0.0
    starts = 4.0 * rows * (keys * (1.0 - hidden) + ROW * query[-1])

    def arithmetic(times: float) -> Pass:
        flops = times * products + soft
        return Pass(flops, masked_flops=hidden * flops, starts=times * starts)

    moved = call.in_bytes + call.out_bytes
    backward = Pass(nbytes=moved + call.gradients_in + call.gradients_out)
    return Work(Pass(nbytes=moved) + arithmetic(1.0), backward + arithmetic(_FLASH_BACKWARD))


def _normalisation(call: _Call, kind: str) -> Work:
    """Statistics over a whole tensor take a pass of their own; over a row they find it in the cache."""
    own = kind == "normalisation" and (True in call.node.args[5:6] or call.size(3) == 0)
    twice = 2 if own else 1
    elements = prod(call.shape(0))
    forward = Pass(5.0 * elements, twice * call.size(0) + call.out_bytes)
    read = call.size(0) + call.size(0)  # the input and the gradient of the output
    input_pass = Pass(9.0 * elements, (2 if own or call.trained else 1) * read + call.gradients_out)
    return Work(forward, input_pass)


def _pooling(call: _Call, kind: str) -> Work:
    """Windows overlap, and kernels read each of them whole; the arithmetic is of places more than of taps."""
    window = argument(call.node, 1, "kernel_size")
    places = prod(call.out_shape)
    taps = prod(call.shape(0)) / places  # adaptive: every input once
    if isinstance(window, Sequence) and "adaptive" not in call.node.kind:
        spatial = next((n for n in (1, 2, 3) if f"{n}d" in call.node.kind), 2)
        taps = prod(window) ** (1 if len(window) > 1 else spatial)
    width = call.size(0) / prod(call.shape(0))
    index = 8 if kind == "pooling" else 0  # a maximum's place
    flops = _PER_ELEMENT["pooling"] * places
    forward = Pass(flops, places * (width * (taps + 1) + index))
    return Work(forward, Pass(flops, places * taps * (width + index) + call.gradients_out))


def _embedding(call: _Call, kind: str) -> Work:
    """Work of an embedding: only rows asked for are read; the gradient is a whole table, zero first."""
    forward = Pass(0.0, 2 * call.out_bytes)
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
    written = call.gradients_out + call.parameters_out
    if plain_kind(node) in PASSED:
        smaller = written < (len(call.wanted) + len(call.trained)) * call.gradients_in
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
