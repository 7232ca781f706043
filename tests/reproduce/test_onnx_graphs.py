"""ONNX files as graphs."""

from pathlib import Path

import pytest
import torch
from torch import nn

from netsplit.errors import NetSplitError
from netsplit.graph import Graph, dumps, loads
from netsplit.graph.onnx import export_training
from reproduce.onnx_graphs import read_onnx
from tests.graph.onnx.models import QUICK

LOSS = nn.CrossEntropyLoss()


def read(name: str, path: Path, size: int = 4) -> Graph:
    export_training(QUICK[name].fresh(), LOSS, QUICK[name].batch(2), path)
    return read_onnx(path, {"batch": size})


def test_a_file_has_the_fields_of_table_4_1(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(20, 10))
    export_training(model, LOSS, (torch.randn(2, 3, 4, 4), torch.tensor([1, 2])), tmp_path / "m.onnx")
    graph = read_onnx(tmp_path / "m.onnx", {"batch": 6})
    kinds = ["Conv", "BatchNormalization", "Relu", "Flatten", "Gemm", "SoftmaxCrossEntropyLoss"]
    assert [node.kind for node in graph] == kinds
    assert graph.entry_nodes == (next(iter(graph)).name,)
    assert graph.input_variables == ("input", "target")
    assert graph.output_variables[0] == "loss"
    assert {k: init.shape for k, init in graph.initializers.items() if init.is_parameter} == {
        k: tuple(p.shape) for k, p in model.named_parameters()
    }
    assert {"1.running_mean", "1.running_var"} < set(graph.initializers)
    first = next(iter(graph))
    assert first.kwargs["kernel_shape"] == [3, 3]
    assert graph.variables[first.outputs[0]].shape == (6, 5, 2, 2)
    assert graph.variables["loss"].requires_grad
    assert not graph.variables["target"].requires_grad
    assert graph.batch_size == 6


@pytest.mark.parametrize("name", ["wide_resnet152", "unet", "gpt", "decoder"])
def test_every_shape_is_that_of_the_run(name: str, tmp_path: Path) -> None:
    graph = read(name, tmp_path / "m.onnx", 3)
    outputs = [graph.variables[k].shape for k in graph.output_variables]
    expected = QUICK[name].fresh()(QUICK[name].batch(3)[0])
    assert outputs == [(), tuple(expected.shape)]
    assert loads(dumps(graph)) == graph


def test_a_free_dimension_must_be_given(tmp_path: Path) -> None:
    export_training(nn.Linear(3, 2), LOSS, (torch.randn(2, 3), torch.tensor([0, 1])), tmp_path / "m.onnx")
    with pytest.raises(NetSplitError, match=r"dimension \('batch'\) of the value 'input' is not known"):
        read_onnx(tmp_path / "m.onnx")
