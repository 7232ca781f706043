"""Views that are copies where what an operator reads was sent from elsewhere."""

from __future__ import annotations

from netsplit.graph import capture
from netsplit.graph.recording.relaid import copied_views
from netsplit.graph.storage import storage_bytes, storage_of
from netsplit.program.transfers import insert_transfers
from tests.nets import CASES


def test_an_attention_whose_projection_is_elsewhere_copies_its_result() -> None:
    case = CASES["attention"]
    graph = capture(case.fresh(), case.loss, (case.inputs[0], case.targets))
    name = "scaled_dot_product_attention"
    assert storage_of(graph, "flatten") == name
    assert copied_views(graph, name) == {"flatten"}
    made = list(graph.nodes)
    device_of = {v: f"cpu:{int(i >= made.index(name))}" for i, v in enumerate(made)}
    placed, _ = insert_transfers(graph, device_of)
    own = storage_bytes(placed)
    assert (storage_of(placed, "transpose"), storage_of(placed, "flatten")) == (name, "flatten")
    assert own["flatten"] == own[name] > 0
    together, _ = insert_transfers(graph, dict.fromkeys(graph.nodes, "cpu:0"))
    assert storage_of(together, "flatten") == name


def test_what_lies_in_plain_order_at_home_too_stays_a_view() -> None:
    case = CASES["chain"]
    graph = capture(case.fresh(), case.loss, (case.inputs[0], case.targets))
    assert any(variable.alias_of for variable in graph.variables.values())
    assert not any(copied_views(graph, name) for name in graph.nodes)
