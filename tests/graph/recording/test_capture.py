"""Capture: what the graph of a training step holds."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from netsplit.errors import CaptureError
from netsplit.graph import Graph, capture, capture_inference
from tests.nets import CASES


def captured(name: str) -> Graph:
    case = CASES[name]
    return capture(case.fresh(), case.loss, case.batch(4))


@pytest.mark.parametrize("name", CASES)
def test_nodes_are_in_topological_order_and_edges_agree_from_both_ends(name: str) -> None:
    graph = captured(name)
    for node in graph:
        assert all(graph.position[u] < graph.position[node.name] for u in graph.predecessors[node.name])
        for k in node.inputs:
            assert node.name in graph.variables[k].consumers
        for k in node.outputs:
            assert not k or graph.variables[k].producer == node.name


@pytest.mark.parametrize("name", CASES)
def test_parameters_and_buffers_keep_the_names_of_the_state_dict(name: str) -> None:
    graph = captured(name)
    keys = {k for init in graph.initializers.values() for k in (init.name, *init.aliases)}
    assert keys - set(graph.constants) == set(CASES[name].fresh().state_dict())


def test_the_loss_is_a_node_and_the_targets_are_an_input() -> None:
    graph = captured("chain")
    (output,) = graph.output_variables
    producer = graph.nodes[graph.variables[output].producer or ""]
    assert producer.op == "aten.cross_entropy_loss.default"
    assert set(producer.inputs) & set(graph.input_variables)


def test_an_in_place_operator_is_in_one_unit_with_what_it_overwrites() -> None:
    graph = captured("chain")
    relus = [node.name for node in graph if node.op == "aten.relu_.default"]
    assert len(relus) == 2
    for relu in relus:
        (unit,) = [unit for unit in graph.units if relu in unit]
        assert any(graph.nodes[name].op == "aten.batch_norm.default" for name in unit)


def test_a_view_is_colocated_with_the_tensor_it_aliases() -> None:
    graph = captured("chain")
    (view,) = [node for node in graph if node.op == "aten.view.default"]
    (group,) = [group for group in graph.colocated if view.name in group]
    assert graph.variables[view.inputs[0]].producer in group


def test_users_of_a_tied_parameter_are_colocated() -> None:
    graph = captured("tied")
    users = [node.name for node in graph if "inward.weight" in node.initializers]
    assert len(users) == 2
    assert any(set(users) <= set(group) for group in graph.colocated)
    assert graph.initializers["inward.weight"].aliases == ("outward.weight",)


def test_all_uses_of_one_normalisation_are_one_unit_because_its_statistics_have_an_order() -> None:
    graph = captured("shared_norm")
    norms = {node.name for node in graph if node.kind == "batch_norm"}
    assert len(norms) == 3
    assert any(norms <= set(unit) for unit in graph.units)


def test_tensors_that_are_no_parameter_or_buffer_are_kept_with_the_graph() -> None:
    case = CASES["constants"]
    graph = captured("constants")
    assert sorted(t.sum().item() for t in graph.constants.values()) == [10.0, 15.0]
    inference = capture_inference(case.fresh(), case.inputs)
    for name in set(inference.constants) & set(graph.constants):
        assert torch.equal(inference.constants[name], graph.constants[name])


def test_a_buffer_counter_stays_with_its_module() -> None:
    graph = captured("chain")
    (group,) = [g for g in graph.colocated if any("norm1.weight" in graph.nodes[n].initializers for n in g)]
    assert any("norm1.num_batches_tracked" in graph.nodes[n].initializers for n in group)


def test_a_reader_before_an_in_place_write_is_in_the_unit() -> None:
    class ReadsFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            made = self.layer(x)
            before = made + 1.0
            made.mul_(2.0)
            return made + before

    graph = capture(ReadsFirst(), nn.MSELoss(), (torch.randn(2, 4), torch.randn(2, 4)))
    ops = {graph.nodes[name].kind for unit in graph.units for name in unit}
    assert ops == {"linear", "add", "mul_"}


def test_gradients_flow_only_where_autograd_has_them() -> None:
    graph = captured("two_inputs")
    assert not any(graph.variables[k].requires_grad for k in graph.input_variables)
    assert all(v.dtype.startswith("float") for v in graph.variables.values() if v.requires_grad)


def test_saved_tensors_are_known_without_running_the_model() -> None:
    graph = captured("chain")
    (first, _) = [node for node in graph if node.kind == "conv2d"]
    assert first.saved == (graph.input_variables[0],)
    norm = next(node for node in graph if node.kind == "batch_norm")
    assert norm.inputs[0] in norm.saved
    assert norm.saved_bytes == 2 * 6 * 8


def test_sources_are_lines_of_the_model() -> None:
    graph = captured("chain")
    assert all(
        "small_models.py:" in node.source for node in graph if node.kind in ("conv2d", "view", "linear")
    )


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # the line to be named
            return x * self.scale
        return -x * self.scale


def test_a_module_that_branches_on_values_stays_whole_and_its_line_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), Branches())
    graph = capture(model, nn.MSELoss(), (torch.randn(2, 2), torch.randn(2, 2)))
    assert [node.kind for node in graph][:2] == ["linear", "Branches"]
    assert graph.nodes["Branches"].initializers == ("1.scale",)
    (record,) = caplog.records
    assert "test_capture.py:" in record.message
    assert "if x.sum() > 0" in record.message


def test_without_values_to_run_it_on_such_a_module_is_refused_with_its_line() -> None:
    batch = (torch.randn(2, 2, device="meta"), torch.randn(2, 2, device="meta"))
    with pytest.raises(
        CaptureError, match=r"Branches cannot be captured at .*test_capture.py:\d+ \('if x.sum\(\) > 0"
    ) as e:
        capture(Branches().to("meta"), nn.MSELoss(), batch)
    assert "\n" not in str(e.value)


def test_a_loss_that_is_not_a_trainable_scalar_is_refused() -> None:
    with pytest.raises(CaptureError, match="one scalar"):
        capture(nn.Linear(2, 2), nn.MSELoss(reduction="none"), (torch.randn(2, 2), torch.randn(2, 2)))


class Averages(nn.Module):
    """Writes what carries a gradient into a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        self.seen += y.mean(0)
        return y


def test_a_buffer_takes_no_gradient_in_training_and_has_none_in_evaluation() -> None:
    with pytest.raises(CaptureError, match=r"the buffer 'seen' at .*test_capture.py:\d+ carries a gradient"):
        capture(Averages(), nn.MSELoss(), (torch.randn(2, 4), torch.randn(2, 4)))
    graph = capture_inference(Averages(), torch.randn(2, 4))
    assert [node.kind for node in graph] == ["linear", "mean", "add_"]
    assert not any(variable.requires_grad for variable in graph.variables.values())
    assert not any(node.saved or node.saved_bytes or node.no_grad for node in graph)


def test_capture_leaves_the_model_as_it_was() -> None:
    case = CASES["chain"]
    model = case.fresh().eval()
    before = {k: t.clone() for k, t in model.state_dict().items()}
    capture(model, case.loss, case.batch(4))
    capture_inference(model, case.inputs)
    assert not model.training
    assert all(torch.equal(before[k], t) for k, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_the_inference_graph_has_no_training_mode() -> None:
    case = CASES["chain"]
    graph = capture_inference(case.fresh(), case.inputs)
    norms = [node for node in graph if node.kind == "batch_norm"]
    assert norms
    assert all(node.args[5] is False for node in norms)


class _Makes(OrderedDict[str, Any]):
    """A registry that answers an instance of the class it holds, as libraries of models have them."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key)()


ACTIVATIONS = _Makes(relu=nn.ReLU, tanh=nn.Tanh)


class _Chooses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        activation: Tensor = ACTIVATIONS["tanh"](self.linear(x))
        return activation


def test_a_registry_in_the_globals_of_the_model_holds_what_it_held() -> None:
    capture(_Chooses(), nn.CrossEntropyLoss(), (torch.randn(4, 3), torch.tensor([0, 1, 0, 1])))
    assert {k: dict.get(ACTIVATIONS, k) for k in ACTIVATIONS} == {"relu": nn.ReLU, "tanh": nn.Tanh}


def test_buffers_that_take_the_same_new_value_are_one_unit_with_what_lies_between() -> None:
    graph = capture(_Passing(), nn.CrossEntropyLoss(), (torch.randn(4, 5), torch.arange(4)))
    (unit,) = graph.units
    inside = set(unit)
    below: set[str] = set()  # outside, after something of the unit
    for node in graph:
        after = any(u in inside or u in below for u in graph.predecessors[node.name])
        if after and node.name not in inside:
            below.add(node.name)
    assert not any(u in below for name in unit for u in graph.predecessors[name])


class _Passing(nn.Module):
    mean: Tensor
    latest: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("latest", torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        old, x = self.mean, self.layer(x)
        self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
        x = x + old + self.latest
        self.latest = self.mean
        return x + old
