"""Capture: what the graph of a training step holds."""

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


def test_a_parameter_whose_elements_share_memory_is_refused() -> None:
    """No optimizer can step it: torch's own error comes only at the step."""
    model = nn.Sequential(nn.Linear(6, 3))
    model[0].bias = nn.Parameter(torch.zeros(1).expand(3))
    with pytest.raises(CaptureError, match=r"parameter '0\.bias' of Sequential share memory"):
        capture(model, nn.CrossEntropyLoss(), (torch.randn(8, 6), torch.randint(0, 3, (8,))))
