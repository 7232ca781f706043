"""A training step written and read back: outputs, gradients and running statistics are the model's."""

from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

from netsplit.graph.onnx import OnnxModule, export_training, from_onnx
from netsplit.graph.onnx.export import exported_inference
from tests.cover import covering, few
from tests.graph.onnx.models import QUICK, SLOW, Subject

LOSS = nn.CrossEntropyLoss()
SUBJECTS = QUICK | SLOW
NAMES = [*few(list(QUICK), 4), *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
# Exporters write some operators as several others (attention, GELU), which round otherwise: a few units in
# the last place for each of some hundred operators.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4}


def exported(
    subject: Subject, path: Path, dtype: torch.dtype, opset: int = 17
) -> tuple[nn.Module, OnnxModule]:
    """A model and the module of its file, which was written with a batch of another size."""
    model = subject.fresh(dtype)
    export_training(model, LOSS, subject.batch(3, dtype), path, opset=opset)
    return model, from_onnx(str(path)).train()


def largest_difference(model: nn.Module, module: nn.Module) -> float:
    """The largest difference of a gradient, as a fraction of the largest gradient of all."""
    ours, theirs = dict(module.named_parameters()), dict(model.named_parameters())
    assert set(ours) == {k for k, p in theirs.items() if p.grad is not None}
    scale = max(p.grad.abs().max().item() for p in theirs.values() if p.grad is not None)
    return max((ours[k].grad - theirs[k].grad).abs().max().item() for k in ours) / scale  # type: ignore[operator]


@pytest.mark.parametrize("name", NAMES)
def test_outputs_gradients_and_statistics_are_the_models(name: str, tmp_path: Path) -> None:
    model, module = exported(SUBJECTS[name], tmp_path / "model.onnx", torch.float64)
    inputs, targets = SUBJECTS[name].batch(2, seed=2)
    theirs, ours = model(inputs), module(inputs)
    LOSS(theirs, targets).backward()
    loss = module.loss(ours, targets)
    loss.backward()
    assert ours.shape == theirs.shape
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-10 * max(1.0, theirs.abs().max().item()))
    assert torch.allclose(loss, LOSS(theirs, targets), rtol=1e-10)
    assert largest_difference(model, module) < TOLERANCE[torch.float64]
    after = dict(model.named_buffers())
    for key, buffer in module.named_buffers():
        if key in after:
            assert torch.allclose(buffer, after[key], atol=1e-12), key


@covering(name=["wide_resnet152", "encoder", "various"], opset=[14, 20])
def test_every_operator_set_says_the_same(name: str, opset: int, tmp_path: Path) -> None:
    model, module = exported(SUBJECTS[name], tmp_path / "model.onnx", torch.float64, opset)
    inputs, targets = SUBJECTS[name].batch(2, seed=2)
    LOSS(model(inputs), targets).backward()
    module.loss(module(inputs), targets).backward()
    assert largest_difference(model, module) < TOLERANCE[torch.float64]


@pytest.mark.parametrize("name", ["wide_resnet152"])
def test_an_export_for_inference_computes_what_evaluation_does(name: str, tmp_path: Path) -> None:
    model = SUBJECTS[name].fresh()
    onnx.save(exported_inference(model, SUBJECTS[name].batch(1)[0]), str(tmp_path / "model.onnx"))
    module = from_onnx(str(tmp_path / "model.onnx"))
    inputs, _ = SUBJECTS[name].batch(2, seed=2)
    with torch.no_grad():
        assert torch.allclose(module(inputs), model.eval()(inputs), atol=1e-10)


def test_exporting_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model = QUICK["wide_resnet152"].fresh()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.get_rng_state()
    export_training(model, LOSS, QUICK["wide_resnet152"].batch(2), tmp_path / "model.onnx")
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    written = from_onnx(str(tmp_path / "model.onnx")).state_dict()
    assert all(torch.equal(v, before[k]) for k, v in written.items())


def test_the_models_state_loads_into_the_module(tmp_path: Path) -> None:
    _, module = exported(QUICK["wide_resnet152"], tmp_path / "model.onnx", torch.float64)
    torch.manual_seed(5)
    other = QUICK["wide_resnet152"].build().double()
    keys = module.load_state_dict(other.state_dict(), strict=False)
    assert not keys.missing_keys
    assert all(key.endswith("num_batches_tracked") for key in keys.unexpected_keys)
    inputs, _ = QUICK["wide_resnet152"].batch(2)
    assert torch.allclose(module.eval()(inputs), other.eval()(inputs), atol=1e-12)
