"""Rebuilt modules compute what the model computes, bit for bit; graph files lose nothing."""

import json
from pathlib import Path

import pytest
import torch

from netsplit.errors import NetSplitError
from netsplit.graph import capture, dumps, initial_values, load, loads, rebuild, save
from tests.cover import covering
from tests.nets import CASES


@covering(dtype=[torch.float32, torch.float64], name=CASES)
def test_loss_and_gradients_of_the_rebuilt_module_are_the_models_bit_for_bit(
    name: str, dtype: torch.dtype
) -> None:
    case = CASES[name]
    model, twin = case.fresh().to(dtype), case.fresh().to(dtype)
    inputs = tuple(t.to(dtype) if t.is_floating_point() else t for t in case.inputs)
    graph = capture(twin, case.loss, (inputs, case.targets))
    module = rebuild(loads(dumps(graph)), initial_values(twin, graph))
    loss, rebuilt = case.loss(model(*inputs), case.targets), module(*inputs, case.targets)
    loss.backward()
    rebuilt.backward()
    assert torch.equal(loss, rebuilt)
    for (key, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), key
        assert p.grad is None or (q.grad is not None and torch.equal(p.grad, q.grad)), key
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), twin.buffers(), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_graph_file_gives_the_same_graph_back(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    graph = capture(case.fresh(), case.loss, case.batch(4))
    save(graph, tmp_path / "graph.json")
    assert load(tmp_path / "graph.json") == graph
    assert set(json.loads((tmp_path / "graph.json").read_text())) >= {
        "nodes", "variables", "entry_nodes", "input_variables", "output_variables", "initializers",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "line 1, column 2: not JSON"),
        ("{}", "not a netsplit-graph file"),
        ('{"format": "netsplit-graph", "version": 1}', "missing"),
    ],
)
def test_a_bad_graph_file_is_refused_by_name(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(NetSplitError, match=complaint) as e:
        load(tmp_path / "bad.json")
    assert "bad.json" in str(e.value)
