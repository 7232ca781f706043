"""Every operator computes what the standard's reference implementation computes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from netsplit.errors import NetSplitError
from netsplit.graph.onnx import from_onnx
from netsplit.graph.onnx.operators import OPERATORS

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """One node: `data` are tensors, `known` further inputs as the file's constants; None is left out."""

    op: str
    data: tuple[Array | None, ...]
    known: tuple[Array | None, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 17
    outputs: int = 1


def draw(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> Array:
    return np.random.default_rng(seed + sum(shape)).uniform(low, high, shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, dtype=np.int64)


def floats(*values: float) -> Array:
    return np.array(values, dtype=np.float32)


def model_of(case: Case) -> onnx.ModelProto:
    values = [*case.data, *case.known]
    names = ["" if value is None else f"x{i}" for i, value in enumerate(values)]
    made = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.op, names, made, name="the_node", **case.attributes)

    def info(name: str, value: Array) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)

    inputs = [info(names[i], value) for i, value in enumerate(case.data) if value is not None]
    known = [
        numpy_helper.from_array(value, names[len(case.data) + i])
        for i, value in enumerate(case.known)
        if value is not None
    ]
    outputs = [helper.make_value_info(name, onnx.TypeProto()) for name in made]
    graph = helper.make_graph([node], "one", inputs, outputs, known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=8)


X = draw(2, 3, 7, 6)
POSITIVE = draw(2, 3, 4, low=0.1)
UNARY = {
    "Abs": X, "Acos": X / 2.1, "Acosh": POSITIVE + 1, "Asin": X / 2.1, "Asinh": X, "Atan": X,
    "Atanh": X / 2.1, "Ceil": X, "Cos": X, "Cosh": X, "Elu": X, "Erf": X, "Exp": X, "Floor": X,
    "HardSigmoid": X, "HardSwish": X,
    "Identity": X, "IsNaN": np.where(X > 1, np.nan, X), "LeakyRelu": X, "Log": POSITIVE, "Neg": X,
    "Not": X > 0, "Reciprocal": POSITIVE, "Relu": X, "Round": np.round(X * 4) / 2, "Sigmoid": X,
    "Sign": X, "Sin": X, "Sinh": X, "Softplus": X, "Softsign": X, "Sqrt": POSITIVE, "Tan": X / 2, "Tanh": X,
    "ThresholdedRelu": X, "Celu": X, "Shape": X, "Size": X, "Mish": X, "GlobalAveragePool": X,
    "GlobalMaxPool": X, "Flatten": X, "Transpose": X, "ArgMax": X, "ArgMin": X, "Softmax": X, "LogSoftmax": X,
}  # fmt: skip
A, B, ROW = draw(2, 3, 4), draw(2, 3, 4, seed=1), draw(4, seed=2)
WHOLE, OTHERS = np.array([[7, -7, 5], [-5, 9, -8]], np.int64), np.array([[2, 2, -3], [3, -4, 3]], np.int64)
REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip
W = draw(4, 3, 3, 2)
SCORES, LABELS = draw(4, 5), np.array([0, 3, 4, 1], np.int64)
MAPS, MASK = draw(2, 5, 3, 3), np.arange(18, dtype=np.int64).reshape(2, 3, 3) % 5

TURNED = {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}
THREE, INCLUDED = {"kernel_shape": [3, 3]}, {"count_include_pad": 1}
TWO = {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}
AROUND, UNEVEN = {"pads": [1, 1, 1, 1]}, {"pads": [1, 0, 0, 2]}

# fmt: off
CASES = [
    *(Case(op, (x,)) for op, x in UNARY.items() if op not in ("Mish",)),
    Case("Mish", (X,), opset=18),
    *(Case(op, (A, B)) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Less", "Greater", "Equal")),
    *(Case(op, (A, ROW)) for op in ("Add", "Sub", "Mul", "Div", "LessOrEqual", "GreaterOrEqual")),
    *(Case(op, (A,), (floats(0.5).reshape(()),)) for op in ("Add", "Sub", "Mul", "Div", "Pow")),
    *(Case(op, (WHOLE, OTHERS)) for op in ("Add", "Mul", "Mod", "Equal", "Less")),
    *(Case(op, (A > 0, B > 0)) for op in ("And", "Or", "Xor")),
    Case("Mod", (WHOLE, OTHERS), attributes={"fmod": 1}),
    Case("Div", (np.abs(WHOLE), np.abs(OTHERS))),
    Case("Pow", (POSITIVE, draw(4))),
    Case("Sum", (A, B, ROW)),
    Case("Mean", (A, B, ROW)),
    Case("Where", (A > 0, A, ROW)),
    Case("PRelu", (X, draw(3, 1, 1))),
    Case("PRelu", (A, draw(4, seed=5))),
    Case("HardSigmoid", (X,), attributes={"alpha": 0.3, "beta": 0.4}),
    Case("Gelu", (X,), opset=20),
    Case("Gelu", (X,), attributes={"approximate": "tanh"}, opset=20),
    Case("Clip", (X,), (floats(-0.5).reshape(()), floats(1).reshape(()))),
    Case("Clip", (X,), (None, floats(0.25).reshape(()))),
    Case("Cast", (X,), attributes={"to": 7}),
    Case("Cast", (WHOLE,), attributes={"to": 1}),
    Case("CastLike", (X, WHOLE)),
    *(Case(op, (POSITIVE,), attributes={"axes": [1], "keepdims": 0}) for op in REDUCTIONS[1:]),
    *(Case(op, (POSITIVE,), (ints(0, -1),), opset=18) for op in REDUCTIONS),
    *(Case(op, (POSITIVE,), opset=18) for op in REDUCTIONS),
    Case("ReduceSum", (POSITIVE,), (ints(),), {"noop_with_empty_axes": 1}),
    Case("ArgMax", (np.round(X),), attributes={"axis": 2, "keepdims": 0, "select_last_index": 1}),
    # convolutions
    Case("Conv", (X, W, draw(4))),
    Case("Conv", (X, W), attributes={"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    Case("Conv", (X, W), attributes={"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    Case("Conv", (X, W), attributes={"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    Case("Conv", (X, W), attributes={"auto_pad": "VALID", "dilations": [2, 1]}),
    Case("Conv", (X, draw(6, 1, 3, 3)), attributes={"group": 3, "pads": [1, 1, 1, 1]}),
    Case("Conv", (draw(2, 3, 9), draw(4, 3, 3)), attributes={"pads": [1, 1]}),
    Case("ConvTranspose", (X, draw(3, 4, 3, 2), draw(4))),
    Case("ConvTranspose", (X, draw(3, 4, 3, 3)), attributes={"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    Case("ConvTranspose", (X, draw(3, 4, 3, 3)), attributes={"strides": [2, 2], "pads": [0, 1, 1, 0]}),
    Case("ConvTranspose", (X, draw(3, 4, 3, 3)), attributes={"strides": [2, 2], "output_padding": [1, 1]}),
    Case("Gemm", (draw(3, 4), draw(4, 5), draw(5))),
    Case("Gemm", (draw(4, 3), draw(5, 4), draw(3, 5)), attributes=TURNED),
    Case("Gemm", (draw(3, 4), draw(5, 4), draw(5)), attributes={"transB": 1}),
    Case("MatMul", (A, draw(4, 5))),
    Case("MatMul", (draw(2, 1, 3, 4), draw(3, 4, 5))),
    Case("Einsum", (A, B), attributes={"equation": "bij,bkj->bik"}),
    # pooling
    Case("MaxPool", (X,), attributes={"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    Case("MaxPool", (X,), attributes=THREE | UNEVEN),
    Case("MaxPool", (X,), attributes={"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    Case("MaxPool", (X,), attributes={"kernel_shape": [2, 2], "dilations": [2, 2]}),
    Case("MaxPool", (X,), attributes=THREE | {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    Case("AveragePool", (X,), attributes={"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    Case("AveragePool", (X,), attributes=THREE | AROUND | INCLUDED),
    Case("AveragePool", (X,), attributes=THREE | UNEVEN),
    Case("AveragePool", (X,), attributes=THREE | UNEVEN | INCLUDED),
    Case("AveragePool", (X,), attributes=TWO, opset=19),
    # normalisation
    Case("BatchNormalization", (X, *(draw(3, seed=i, low=0.5) for i in range(4)))),
    Case("InstanceNormalization", (X, draw(3), draw(3, seed=1))),
    Case("LayerNormalization", (A, draw(4), draw(4, seed=1))),
    Case("LayerNormalization", (A, draw(3, 4), draw(3, 4, seed=1)), attributes={"axis": 1}),
    Case("LayerNormalization", (A, draw(1)), attributes={"axis": 1, "epsilon": 0.1}),
    Case("GroupNormalization", (draw(2, 4, 3), draw(4), draw(4)), attributes={"num_groups": 2}, opset=21),
    Case("LRN", (draw(6, 6, 3, 3),), attributes={"size": 3, "alpha": 0.1}),
    Case("RMSNormalization", (A, draw(4)), opset=23),
    Case("Softmax", (A,), attributes={"axis": 1}),
    Case("LogSoftmax", (A,), attributes={"axis": 0}),
    Case("SoftmaxCrossEntropyLoss", (SCORES, LABELS)),
    Case("SoftmaxCrossEntropyLoss", (SCORES, LABELS), attributes={"reduction": "none"}, outputs=2),
    Case("SoftmaxCrossEntropyLoss", (MAPS, MASK), (floats(1, 2, 3, 4, 5),), {"ignore_index": 2}),
    Case("NegativeLogLikelihoodLoss", (MAPS, MASK), attributes={"reduction": "sum"}),
    Case("Dropout", (X,), (floats(0.5).reshape(()),)),
    Case("Dropout", (X,), outputs=2),
    # arrangement
    Case("Reshape", (A,), (ints(0, -1),)),
    Case("Reshape", (draw(2, 0, 4),), (ints(0, 4, 2),), {"allowzero": 1}),
    Case("Flatten", (X,), attributes={"axis": 2}),
    Case("Flatten", (X,), attributes={"axis": 0}),
    Case("Flatten", (X,), attributes={"axis": -1}),
    Case("Transpose", (X,), attributes={"perm": [0, 2, 3, 1]}),
    Case("Squeeze", (draw(1, 3, 1, 2),)),
    Case("Squeeze", (draw(1, 3, 1, 2),), (ints(-2),)),
    Case("Unsqueeze", (A,), (ints(0, -1),)),
    Case("Concat", (A, B), attributes={"axis": -1}),
    Case("Split", (A,), (ints(1, 3),), {"axis": 2}, outputs=2),
    Case("Split", (A,), attributes={"axis": 1, "num_outputs": 2}, opset=18, outputs=2),
    Case("Split", (A,), attributes={"axis": 2}, opset=13, outputs=2),
    Case("Slice", (X,), (ints(1, 0), ints(2**62, -2), ints(2, 3), ints(2, 1))),
    Case("Slice", (X,), (ints(-1), ints(-(2**62)), ints(2), ints(-2))),
    Case("Slice", (X,), (ints(0, 1), ints(1, 2))),
    Case("Slice", (X,), (ints(3), ints(3), ints(2))),
    Case("Gather", (A,), (ints(2, 0, -1),), {"axis": 1}),
    Case("Gather", (A,), (np.array(-1),), {"axis": 2}),
    Case("Gather", (A, np.array([[0, -1], [1, 1]]))),
    Case("Gather", (draw(6, 4), np.array([[0, 5], [1, 1]]))),
    Case("GatherElements", (A, np.array([[[0, -1, 1, 1]]] * 2)), attributes={"axis": 1}),
    Case("ScatterND", (A, np.array([[0, 1], [1, 2]]), draw(2, 4))),
    Case("ScatterND", (A, np.array([[0, 1], [0, 1]]), draw(2, 4)), attributes={"reduction": "add"}, opset=16),
    Case("ScatterElements", (A, np.array([[[0, -1, 1, 1]]] * 2), draw(2, 1, 4)), attributes={"axis": 1}),
    Case("Expand", (draw(3, 1),), (ints(2, 1, 4),)),
    Case("Tile", (A,), (ints(1, 2, 3),)),
    Case("Pad", (A,), (ints(0, 1, 0, 0, 0, 2), floats(0.5).reshape(()))),
    Case("Pad", (A,), (ints(0, 1, 1, 0, 0, 2),), {"mode": "reflect"}),
    Case("Pad", (A,), (ints(0, 1, 1, 0, 0, 2),), {"mode": "edge"}),
    Case("Pad", (A,), (ints(1, 2), None, ints(-1)), opset=18),
    Case("Trilu", (A,), (np.array(-1),), {"upper": 0}),
    Case("Trilu", (A,)),
    Case("CumSum", (A,), (np.array(1),), {"exclusive": 1, "reverse": 1}),
    Case("CumSum", (A,), (np.array(2),)),
    Case("TopK", (A,), (ints(2),), {"axis": 1}, outputs=2),
    Case("DepthToSpace", (draw(2, 8, 2, 3),), attributes={"blocksize": 2}),
    Case("DepthToSpace", (draw(2, 8, 2, 3),), attributes={"blocksize": 2, "mode": "CRD"}),
]
# fmt: on

IMAGE = draw(1, 2, 4, 6)
PLAIN = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
RESIZES = [
    *(
        Case(
            "Resize",
            (IMAGE,),
            (None, None, ints(1, 2, *to)),
            {"mode": mode, "coordinate_transformation_mode": how},
        )
        for mode in ("linear", "cubic")
        for how in ("half_pixel", "pytorch_half_pixel", "align_corners")
        for to in ((8, 12), (7, 3))
    ),
    Case("Resize", (IMAGE,), (None, floats(1, 1, 2, 0.5)), PLAIN),
    Case("Resize", (IMAGE,), (None, floats(1, 1, 1.5, 1.25)), {"mode": "linear"}),
    Case("Resize", (IMAGE,), (None, None, ints(8, 3)), {"mode": "linear", "axes": [2, 3]}, opset=18),
]


def name_of(case: Case) -> str:
    return f"{case.op}-{case.opset}-{sorted(case.attributes.items())}-{len(case.known)}"


@pytest.mark.parametrize("case", [*CASES, *RESIZES], ids=name_of)
def test_an_operator_computes_what_the_reference_computes(case: Case, tmp_path: Path) -> None:
    model = model_of(case)
    path = tmp_path / "one.onnx"
    onnx.save(model, str(path))
    feeds = {f"x{i}": value for i, value in enumerate(case.data) if value is not None}
    expected = ReferenceEvaluator(model).run(None, feeds)
    module = from_onnx(str(path)).eval()
    outputs = module(*(torch.from_numpy(np.array(value)) for value in feeds.values()))
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    assert len(outputs) == len(expected)
    for ours, theirs in zip(outputs, expected, strict=True):
        theirs = np.asarray(theirs)
        assert tuple(ours.shape) == theirs.shape
        assert str(ours.dtype) == f"torch.{theirs.dtype}"
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=2e-5, atol=2e-5)


def run(case: Case, tmp_path: Path) -> torch.Tensor:
    path = tmp_path / "one.onnx"
    onnx.save(model_of(case), str(path))
    return from_onnx(str(path)).eval()(*(torch.from_numpy(value) for value in case.data))


def test_before_operator_set_13_a_softmax_is_over_all_dimensions_from_its_axis_on(tmp_path: Path) -> None:
    outputs = run(Case("Softmax", (A,), attributes={"axis": 1}, opset=11), tmp_path)
    assert torch.allclose(outputs.flatten(1), torch.from_numpy(A).flatten(1).softmax(1))


def test_upsample_repeats_what_is_before(tmp_path: Path) -> None:
    outputs = run(Case("Upsample", (IMAGE,), (floats(1, 1, 2, 3),), opset=9), tmp_path)
    expected = torch.from_numpy(IMAGE).repeat_interleave(2, 2).repeat_interleave(3, 3)
    assert torch.equal(outputs, expected)


def test_a_resize_that_torch_does_not_know_is_refused(tmp_path: Path) -> None:
    case = Case("Resize", (IMAGE,), (None, floats(1, 1, 2, 2)), {"mode": "cubic", "exclude_outside": 1})
    with pytest.raises(NetSplitError, match="mode 'cubic' with coordinates 'half_pixel' is not supported"):
        run(case, tmp_path)


@pytest.mark.parametrize("op", ["RandomUniformLike", "RandomNormalLike", "Bernoulli", "OneHot"])
def test_what_is_not_known_is_refused_by_its_name(op: str, tmp_path: Path) -> None:
    with pytest.raises(NetSplitError, match=f"not supported: {op} "):
        run(Case(op, (np.full((2, 2), 0.5, np.float32),)), tmp_path)


def test_no_operator_is_left_untested() -> None:
    assert {case.op for case in CASES + RESIZES} == set(OPERATORS)
