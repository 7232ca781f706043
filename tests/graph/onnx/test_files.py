"""Placed graphs as files, and mistakes in one sentence."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

from netsplit.errors import NetSplitError
from netsplit.graph import Graph, capture
from netsplit.graph.onnx import (
    NodeNotes,
    export_training,
    from_onnx,
    write_onnx,
)
from tests.nets import CASES


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


NET = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda path: from_onnx(None), "path of an ONNX file is None"),
        (lambda path: from_onnx(str(path.parent)), "is a folder"),
        (
            lambda path: from_onnx(str(path), outputs="scores"),
            r"outputs is the string 'scores': give a tuple",
        ),
        (
            lambda path: export_training(nn.Linear(2, 2), nn.MSELoss(), (torch.ones(2, 2),), path),
            "is not a pair",
        ),
        (
            lambda path: export_training(nn.Linear(2, 2), None, (torch.ones(2, 2),) * 2, path),
            "loss to export",
        ),
    ],
    ids=["no path", "a folder", "a text for names", "no targets", "no loss"],
)
def test_odd_input_gets_one_sentence(tmp_path: Path, read: Callable[[Path], object], words: str) -> None:
    path = tmp_path / "m.onnx"
    export_training(NET, nn.MSELoss(), (torch.ones(2, 2), torch.ones(2, 2)), path)
    with pytest.raises(NetSplitError, match=words):
        read(path)
