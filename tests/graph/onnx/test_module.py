"""What a module of a file is, trains, and refuses."""

import copy
import pickle
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import netsplit
from netsplit.errors import NetSplitError
from netsplit.graph import capture, initial_values, rebuild
from netsplit.graph.onnx import OnnxModule, export_training, from_onnx
from tests.graph.onnx.models import QUICK, Subject

LOSS = nn.CrossEntropyLoss()
FLOAT = TensorProto.FLOAT


def written(
    path: Path,
    nodes: list[onnx.NodeProto],
    weights: dict[str, np.ndarray] | None = None,
    outputs: tuple[str, ...] = ("y",),
    inputs: tuple[str, ...] = ("x",),
    opset: int = 17,
    shape: tuple[int | str, ...] = ("n", 3),
) -> str:
    """A file of some nodes; every input has the same shape."""
    graph = helper.make_graph(
        nodes,
        "some",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name in inputs],
        [helper.make_value_info(name, onnx.TypeProto()) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("own.domain", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
    return str(path)


def step(name: str, path: Path) -> tuple[Subject, nn.Module, OnnxModule]:
    subject = QUICK[name]
    model = subject.fresh()
    export_training(model, LOSS, subject.batch(3), path)
    return subject, model, netsplit.from_onnx(str(path))


@pytest.mark.parametrize("name", ["wide_resnet152", "gpt", pytest.param("unet", marks=pytest.mark.slow)])
def test_a_captured_and_rebuilt_file_trains_as_the_model_does(name: str, tmp_path: Path) -> None:
    subject, model, module = step(name, tmp_path / "model.onnx")
    graph = capture(module, module.loss, subject.batch(2))
    rebuilt = rebuild(graph, initial_values(module, graph, module.loss))
    ours = torch.optim.SGD(rebuilt.parameters(), 0.1, momentum=0.9)
    theirs = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for seed in range(3):
        inputs, targets = subject.batch(2, seed=seed)
        losses = rebuilt(inputs, targets), LOSS(model(inputs), targets)
        assert torch.allclose(*losses, rtol=1e-8)
        for loss, optimizer in zip(losses, (ours, theirs), strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for key, value in rebuilt.named_parameters():
        assert torch.allclose(value, model.get_parameter(key), rtol=1e-6, atol=1e-9), key


def test_a_module_is_copied_and_pickled_with_its_loss(tmp_path: Path) -> None:
    subject, _, module = step("encoder", tmp_path / "model.onnx")
    inputs, targets = subject.batch(2)
    expected = module.loss(module(inputs), targets)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin.loss(twin(inputs), targets), expected)


def test_several_inputs_and_outputs_keep_their_order(tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
            return {"p": self.one(b), "q": self.two(a)}

    def loss(out: dict[str, Tensor], t: Tensor) -> Tensor:
        return nn.functional.mse_loss(out["p"], t) + out["q"].abs().mean()

    model, (a, b, t) = Two(), (torch.randn(4, 3), torch.randn(4, 3), torch.randn(4, 2))
    export_training(model, loss, ((a, b), t), tmp_path / "model.onnx")
    module = from_onnx(str(tmp_path / "model.onnx"))
    p, q = module(a, b)
    assert torch.allclose(p, model.one(b))
    assert torch.allclose(q, model.two(a))
    assert torch.allclose(module.loss((p, q), t), loss(model(a, b), t))


def test_a_foreign_file_is_cut_where_it_is_said(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["scores"], transB=1),
        helper.make_node("Sub", ["scores", "t"], ["apart"]),
        helper.make_node("ReduceL2", ["apart"], ["loss"], keepdims=0),
    ]
    weights = {"w": np.eye(3, dtype=np.float32)}
    path = written(tmp_path / "m.onnx", nodes, weights, ("loss",), ("x", "t"))
    whole, cut = from_onnx(path), from_onnx(path, outputs=("scores",))
    x, t = torch.randn(2, 3), torch.randn(2, 3)
    assert whole.input_names == ("x", "t")
    assert cut.input_names == ("x",)
    assert torch.equal(cut.loss(cut(x), t), whole(x, t))
    assert torch.allclose(whole(x, t), (x - t).norm())
    with pytest.raises(NetSplitError, match="has no loss after its outputs"):
        _ = whole.loss
    with pytest.raises(NetSplitError, match="has no value named 'logits'"):
        from_onnx(path, outputs=("logits",))


def test_frozen_weights_get_no_gradient(tmp_path: Path) -> None:
    subject, _, _ = step("wide_resnet152", tmp_path / "model.onnx")
    module = from_onnx(str(tmp_path / "model.onnx"), frozen=("layer1.*", "conv1.weight"))
    module.loss(module(subject.batch(2)[0]), subject.batch(2)[1]).backward()
    for name, parameter in module.named_parameters():
        frozen = name.startswith("layer1.") or name == "conv1.weight"
        assert (parameter.grad is None) == frozen
    with pytest.raises(NetSplitError, match="no parameter of the ONNX file is named 'layer9"):
        from_onnx(str(tmp_path / "model.onnx"), frozen=("layer9.*",))


def test_an_operator_that_is_not_known_is_named_with_its_node(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("LSTM", ["a", "w", "w"], ["b"], name="memory", hidden_size=3),
        helper.make_node("Fused", ["b"], ["y"], name="fast", domain="own.domain"),
    ]
    path = written(tmp_path / "m.onnx", nodes, {"w": np.zeros((1, 12, 3), np.float32)})
    with pytest.raises(NetSplitError, match=r"LSTM \(node 'memory'\), own\.domain\.Fused \(node 'fast'\)"):
        from_onnx(path)


def test_a_shape_that_depends_on_data_is_refused_by_its_node(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["s"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["x", "s"], ["y"], name="reshaped"),
    ]
    module = from_onnx(written(tmp_path / "m.onnx", nodes))
    with pytest.raises(NetSplitError, match=r"node 'reshaped' \(Reshape\).*must not depend on the data"):
        module(torch.ones(2, 3))


def test_a_size_that_the_file_fixes_is_not_given_another(tmp_path: Path) -> None:
    model, batch = nn.Linear(4, 3), (torch.randn(4, 4), torch.arange(4) % 3)
    export_training(model, LOSS, batch, tmp_path / "m.onnx", fixed_batch=True)
    module = from_onnx(str(tmp_path / "m.onnx"))
    assert torch.allclose(module(batch[0]), model(batch[0]))
    with pytest.raises(NetSplitError, match=r"shape \(2, 4\), but the ONNX file takes \(4, 4\)"):
        module(batch[0][:2])
    with pytest.raises(NetSplitError, match="2 tensors were given for the inputs input"):
        module(batch[0], batch[0])


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(NetSplitError, match=r"'.*none\.onnx' is not there"):
        from_onnx(str(tmp_path / "none.onnx"))
    (tmp_path / "text.onnx").write_text("not a model")
    (tmp_path / "empty.onnx").write_bytes(b"")
    _, _, _ = step("encoder", tmp_path / "whole.onnx")
    whole = (tmp_path / "whole.onnx").read_bytes()
    (tmp_path / "half.onnx").write_bytes(whole[: len(whole) // 2])
    for name in ("text", "empty", "half"):
        with pytest.raises(NetSplitError, match=rf"'.*{name}\.onnx' is not an ONNX file"):
            from_onnx(str(tmp_path / f"{name}.onnx"))


def test_weights_in_a_file_beside_it_are_read_and_missed(tmp_path: Path) -> None:
    subject, _, module = step("encoder", tmp_path / "whole.onnx")
    onnx.save(
        onnx.load(str(tmp_path / "whole.onnx")),
        str(tmp_path / "apart.onnx"),
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    inputs, _ = subject.batch(2)
    assert torch.equal(from_onnx(str(tmp_path / "apart.onnx"))(inputs), module(inputs))
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(NetSplitError, match="keeps its weights in another file"):
        from_onnx(str(tmp_path / "apart.onnx"))


def test_statistics_scalars_and_bounds_are_not_trained(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("BatchNormalization", ["x", "g", "b", "m", "v"], ["n"]),
        helper.make_node("Mul", ["n", "s"], ["k"]),
        helper.make_node("Clip", ["k", "low"], ["y"]),
    ]
    three = np.ones(3, np.float32)
    weights = dict.fromkeys("gbmv", three) | {name: np.array(0.5, np.float32) for name in ("s", "low")}
    module = from_onnx(written(tmp_path / "m.onnx", nodes, weights))
    assert {k for k, _ in module.named_parameters()} == {"g", "b"}
    assert {k for k, _ in module.named_buffers()} == {"m", "v"}
    before = module(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
    assert before.min() >= 0.5
    assert torch.equal(module.get_buffer("m"), torch.ones(3))  # the file's node is one of inference


def test_a_model_that_cannot_be_exported_says_what_stops_it(tmp_path: Path) -> None:
    class Odd(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.eigvals(super().forward(x)).real.expand(3, 3)

    with pytest.raises(NetSplitError, match=r"Odd cannot be exported to ONNX: .*eigvals.*opset"):
        export_training(Odd(3, 3), LOSS, (torch.randn(3, 3), torch.arange(3)), tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.slow
def test_a_file_trains_on_two_workers_as_its_model_does_on_one(tmp_path: Path) -> None:
    subject, model, module = step("wide_resnet152", tmp_path / "model.onnx")
    model, module = model.eval(), module.eval()  # batch normalisation would see micro-batches
    batch = subject.batch(8)
    with netsplit.parallelize(
        module, module.loss, batch, partitioner="round_robin", schedule="single_batch"
    ) as parallel:
        losses = [float(parallel.train_batch(*batch)) for _ in range(3)]
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    for loss in losses:
        expected = LOSS(model(batch[0]), batch[1])
        assert abs(loss - expected.item()) < 1e-8
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
