"""Classes of operators: those of a class reach like shares of a device's peaks. Needs no torch."""

from __future__ import annotations

from math import prod

from netsplit.graph.ir import Graph, Node

__all__ = ["CLASSES", "PARTS", "PASSED", "is_in_place", "is_transposed", "operator_class"]

_NAMES: dict[str, str] = {
    "convolution": "convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
    "matmul": "linear mm bmm matmul addmm baddbmm addbmm mv addmv dot einsum",
    "attention": "scaled_dot_product_attention",
    "normalisation": "batch_norm instance_norm native_batch_norm _native_batch_norm_legit "
        "_native_batch_norm_legit_functional local_response_norm",
    "row normalisation": "layer_norm group_norm native_layer_norm native_group_norm rms_norm",
    "pooling": "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices "
        "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d",
    "average pooling": "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
        "adaptive_avg_pool3d _adaptive_avg_pool2d",
    "softmax": "softmax log_softmax _softmax _log_softmax logsumexp",
    "loss": "cross_entropy_loss nll_loss nll_loss_nd nll_loss2d nll_loss_forward nll_loss2d_forward "
        "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy_with_logits binary_cross_entropy",
    "embedding": "embedding embedding_bag",
    "resampling": "upsample_bilinear2d upsample_nearest1d upsample_nearest2d upsample_nearest3d "
        "upsample_linear1d upsample_bicubic2d upsample_trilinear3d _upsample_bilinear2d_aa grid_sampler "
        "grid_sampler_2d",
    "reduction": "sum mean var std amax amin max min argmax argmin norm linalg_vector_norm cumsum prod all "
        "any",
    "copy": "cat stack concat clone contiguous reshape flatten constant_pad_nd pad reflection_pad2d "
        "replication_pad2d index index_select gather repeat repeat_interleave flip roll copy_ _to_copy to "
        "tile pixel_shuffle pixel_unshuffle im2col where masked_fill masked_fill_ tril triu zeros ones "
        "full arange empty zeros_like ones_like full_like empty_like channel_shuffle lift_fresh_copy",
    "transcendental": "gelu tanh sigmoid silu mish erf exp log sin cos softplus elu selu celu hardswish "
        "hardsigmoid log1p expm1 pow sqrt rsqrt gelu_ tanh_ sigmoid_ silu_ mish_ elu_ hardswish_ glu "
        "logsigmoid logaddexp",
    "random": "dropout dropout_ native_dropout feature_dropout alpha_dropout bernoulli bernoulli_ rand "
        "rand_like randn randn_like rrelu",
    "recurrent": "lstm gru rnn_tanh rnn_relu",
}  # fmt: skip
_CLASS_OF = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_SMALL = 8  # channels of a group, up to which a convolution is no matrix product worth the name

CLASSES = tuple(
    dict.fromkeys(
        (
            *_NAMES,
            "depthwise convolution",
            "pointwise convolution",
            "transposed convolution",
            "elementwise",
            "view",
            "bookkeeping",
        )
    )
)
"""Every answer of `operator_class`."""

PARTS = frozenset(
    ["slice", "select", "narrow", "split", "chunk", "unbind", "split_with_sizes", "tensor_split", "diagonal"]
)
"""Views of a part: their backward fills a tensor of the whole."""

PASSED = frozenset(["add", "add_", "sub", "sub_", "clone", "contiguous", "alias", "lift_fresh_copy"])
"""Their inputs' gradients are their output's, but for what broadcasting sums up."""


def operator_class(graph: Graph, node: Node) -> str:
    """The class of a node's operator, one of `CLASSES`: operators of a class reach like shares of a peak."""
    outputs = [graph.variables[k] for k in node.outputs if k]
    if outputs and all(v.alias_of is not None for v in outputs) and not is_in_place(node):
        return "copy" if node.kind in PARTS else "view"
    if not node.inputs:
        return "bookkeeping"
    kind = _CLASS_OF.get(node.kind, "elementwise")
    return _convolution_class(graph, node) if kind == "convolution" else kind


def _convolution_class(graph: Graph, node: Node) -> str:
    weight, groups = _weight_shape(graph, node), _groups(node)
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


def _groups(node: Node) -> int:
    """Of a convolution; `aten.convolution` has two more arguments before it."""
    place = 8 if node.kind == "convolution" else 6
    return int(node.args[place]) if len(node.args) > place else int(node.kwargs.get("groups", 1))


def _weight_shape(graph: Graph, node: Node) -> tuple[int, ...]:
    """Of a convolution."""
    template = node.args[1]
    if "init" in template:
        return graph.initializers[template["init"]].shape
    return graph.variables[template["var"]].shape
