"""Classes of operators: those of a class reach like fractions of a device's peaks. Needs no torch."""

from __future__ import annotations

from collections import Counter
from math import prod

from netsplit.graph.arguments import argument
from netsplit.graph.ir import Graph, Node

__all__ = [
    "CLASSES", "PARTS", "PASSED", "is_in_place", "is_transposed", "operator_class", "plain_kind",
    "unknown_in_words",
]  # fmt: skip

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
}  # fmt: skip
"""Operators without the underscores around their names: one written in place counts as the other."""

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
"""Their inputs' gradients are their output's, but for what broadcasting sums up."""


def operator_class(graph: Graph, node: Node) -> str:
    """The class of a node's operator, one of `CLASSES`: operators of a class reach like fractions of a peak.

    An operator that is in no class counts as an elementwise one (`unknown_in_words` names them).
    """
    outputs = [graph.variables[k] for k in node.outputs if k]
    if outputs and all(v.alias_of is not None for v in outputs) and not is_in_place(node):
        return "copy" if node.kind in PARTS else "view"
    if not node.inputs:
        return "bookkeeping"
    kind = _CLASS_OF.get(plain_kind(node), "elementwise")
    return _convolution_class(graph, node) if kind == "convolution" else kind


def unknown_in_words(graph: Graph) -> str:
    """Operators that are in no class, as "aten.topk.default (2), aten.sort.default (1)"; "" for none.

    Each counts as one elementwise pass.
    """
    counts = Counter(
        node.op
        for node in graph
        if plain_kind(node) not in _CLASS_OF and operator_class(graph, node) == "elementwise"
    )
    return ", ".join(f"{op} ({count})" for op, count in sorted(counts.items()))


def plain_kind(node: Node) -> str:
    """The operator's short name without what says that it writes in place, or is not for users."""
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


def is_in_place(node: Node) -> bool:
    return node.kind.endswith("_") and not node.kind.endswith("__")


def is_transposed(node: Node) -> bool:
    return "transpose" in node.kind or (node.kind == "convolution" and True in node.args[6:7])


def _weight_shape(graph: Graph, node: Node) -> tuple[int, ...]:
    template = node.args[1]
    if "init" in template:
        return graph.initializers[template["init"]].shape
    return graph.variables[template["var"]].shape
