"""Files as graphs, and placed graphs as files."""

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

from netsplit.errors import NetSplitError
from netsplit.graph import Graph, capture, dumps, loads
from netsplit.graph.onnx import (
    NodeNotes,
    export_inference,
    export_training,
    from_onnx,
    read_onnx,
    write_node_data,
    write_onnx,
)
from tests.graph.onnx.models import QUICK
from tests.nets import CASES

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


def placed() -> tuple[Graph, NodeNotes]:
    case = CASES["u_shape"]
    graph = capture(case.fresh(), case.loss, (case.inputs, case.targets))
    names = list(graph.nodes)
    device = {name: f"cpu:{i % 2}" for i, name in enumerate(names)}
    return graph, NodeNotes(device, {name: 1e-3 * i for i, name in enumerate(names)}, {names[0]: 0.25})


def test_a_placed_graph_is_a_valid_file_with_devices_seconds_and_bytes(tmp_path: Path) -> None:
    graph, notes = placed()
    write_onnx(graph, tmp_path / "placed.onnx", notes)
    onnx.checker.check_model(str(tmp_path / "placed.onnx"))
    file = onnx.load(str(tmp_path / "placed.onnx"))
    assert [node.name for node in file.graph.node] == list(graph.nodes)
    for made, node in zip(file.graph.node, graph, strict=True):
        said = {each.key: each.value for each in made.metadata_props}
        assert said["device"] == notes.device[node.name]
        assert float(said["forward_s"]) == pytest.approx(notes.forward_s[node.name])
        assert ("backward_s" in said) == (node.name in notes.backward_s)
        assert int(said["output_bytes"]) == sum(graph.variables[k].nbytes for k in node.outputs if k)
        assert int(said["parameter_bytes"]) == sum(graph.initializers[k].nbytes for k in node.initializers)
        assert {*node.inputs, *node.initializers} == set(made.input)
    values = {each.name: each for each in (*file.graph.value_info, *file.graph.output, *file.graph.input)}
    for name, variable in graph.variables.items():
        dims = values[name].type.tensor_type.shape.dim
        assert tuple(dim.dim_value for dim in dims) == variable.shape
        assert values[name].metadata_props[0].value == str(variable.nbytes)
    assert {each.key: each.value for each in file.metadata_props}["netsplit.devices"] == '["cpu:0", "cpu:1"]'


@pytest.mark.parametrize("what", ["device", "forward_s", "output_bytes"])
def test_node_data_finds_nodes_by_what_they_make(what: str, tmp_path: Path) -> None:
    graph, notes = placed()
    write_node_data(graph, tmp_path / "data.json", notes, what)
    data = json.loads((tmp_path / "data.json").read_text())["netsplit"]
    assert set(data["results"]) == {k for node in graph for k in node.outputs if k}
    if what == "device":
        colours = {result["value"]: result["bgColor"] for result in data["results"].values()}
        assert set(colours) == {"cpu:0", "cpu:1"}
        assert len(set(colours.values())) == 2
    else:
        assert [each["stop"] for each in data["gradient"]] == [0, 1]
        last = list(graph.nodes.values())[-1]
        expected = {"forward_s": notes.forward_s[last.name], "output_bytes": 8}[what]
        assert data["results"][last.outputs[0]]["value"] == pytest.approx(expected)


def test_notes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    graph, notes = placed()
    with pytest.raises(NetSplitError, match="speak of the node 'ghost', which the graph has not"):
        write_onnx(graph, tmp_path / "m.onnx", NodeNotes({"ghost": "cpu:0"}))
    with pytest.raises(NetSplitError, match="node data of 'joules' is not known"):
        write_node_data(graph, tmp_path / "data.json", notes, "joules")
    with pytest.raises(NetSplitError, match="no node has a forward_s"):
        write_node_data(graph, tmp_path / "data.json", NodeNotes(), "forward_s")
    assert not list(tmp_path.iterdir())


NET = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda path: from_onnx(None), "path of an ONNX file is None"),
        (lambda path: from_onnx(str(path.parent)), "is a folder"),
        (lambda path: from_onnx(str(path), outputs="scores"), r"outputs is the text 'scores': give a tuple"),
        (lambda path: read_onnx(path, {"batch": 0}), "size of 'batch' is 0"),
        (lambda path: export_training(nn.Linear(2, 2), nn.MSELoss(), (torch.ones(2, 2),), path), "no pair"),
        (
            lambda path: export_training(nn.Linear(2, 2), None, (torch.ones(2, 2),) * 2, path),
            "loss to export",
        ),
    ],
    ids=["no path", "a folder", "a text for names", "no samples", "no targets", "no loss"],
)
def test_odd_input_gets_one_sentence(tmp_path: Path, read: Callable[[Path], object], words: str) -> None:
    path = tmp_path / "m.onnx"
    export_inference(NET, torch.ones(2, 2), path)
    with pytest.raises(NetSplitError, match=words):
        read(path)
