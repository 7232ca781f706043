"""PipeDream's graph.txt: every peculiarity of the real files, and one sentence for each mistake."""

from __future__ import annotations

import pytest

from netsplit.errors import NetSplitError
from netsplit.formats import read_pipedream
from netsplit.partition.objectives import StageTime
from netsplit.planning.workload import Workload
from netsplit.profile.costs import NodeSeconds

COSTS = "forward_compute_time={}, backward_compute_time={}, activation_size={}, parameter_size={}"


def line(node: str, description: str, *costs: object) -> str:
    return f"{node} -- {description} -- " + COSTS.format(*costs)


# Edges stand before nodes, descriptions hold commas, brackets, dots and equal signs, one has " -- " in it.
TEXT = "\n".join(
    [
        "\tnode1 -- node4",
        line("node3", "LSTM(8, eps=0.001, [a; b] -- x=1)", "2.500", "4.0", "[100.0; 20.0; 3.0]", "64.000"),
        line("node1", "Input0", "636.0", "0.000", "50.0", "0.000"),
        line("node4", "Conv2d(3, 8, kernel_size=(3, 3), bias=False)", "1.0", "3.000", "200.000", "12.0")
        + " -- stage_id=2",
        line("node5", "__getitem__(0)", "0.000", "0.000", "100.0", "0.000"),
        line("node6", "__getitem__(1)", "0.000", "0.000", "20.0", "0.000"),
        line("node7", "Linear(8, 2)", "0.5", "0.25", "8.0", "40.0"),
        "\tnode4 -- node3",
        "\tnode3 -- node5",
        "\tnode3 -- node6",
        "",
        "\tnode5 -- node7",
        "\tnode4 -- node3",
    ]
)


def read(text: str = TEXT, **options: str) -> Workload:
    return read_pipedream(text, "g.txt", "g", **options)  # type: ignore[arg-type]


def test_nodes_come_in_topological_order_and_unread_items_are_left_out() -> None:
    work = read()
    assert list(work.graph.nodes) == ["node1", "node4", "node3", "node5", "node7"]
    assert "node6" in " ".join(work.remarks)
    assert work.graph.edges == (
        ("node1", "node4", "node1"),
        ("node4", "node3", "node4"),
        ("node3", "node5", "node3"),
        ("node5", "node7", "node5"),
    )


def test_milliseconds_become_seconds_and_loading_data_costs_none() -> None:
    seconds = read().costs.devices["accelerator"].nodes
    assert seconds["node1"] == NodeSeconds(0.0, 0.0)
    assert seconds["node3"] == NodeSeconds(0.0025, 0.004)
    assert (read().unit, read().unit_s, read().period) == ("ms", 1e-3, StageTime())


def test_a_bracketed_activation_is_summed_and_parameters_are_one_initializer() -> None:
    graph = read().graph
    assert graph.variables["node3"].nbytes == 123
    assert graph.variables["node4"].nbytes == 200
    assert [graph.initializers[k].nbytes for k in graph.nodes["node4"].initializers] == [12]
    assert graph.nodes["node5"].initializers == ()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("node9 -- ReLU -- forward_compute_time=1.0", ["line 14", "not a node", "backward_compute_time=..."]),
        (line("node9", "ReLU", "-1.0", "0", "0", "0"), ["line 14", "forward_compute_time", "-1.0"]),
        (line("node3", "ReLU", "1.0", "1", "1", "1"), ["line 14", "'node3'", "twice"]),
        ("\tnode3 -- node8", ["line 14", "'node8'", "not a node"]),
        ("\tnode3 -- node4", ["cycle of 2 nodes", "node3", "node4", "line "]),
    ],
)
def test_a_mistake_is_named_with_its_line(wrong: str, words: list[str]) -> None:
    with pytest.raises(NetSplitError) as caught:
        read(f"{TEXT}\n{wrong}")
    text = str(caught.value)
    assert text.startswith("g.txt")
    assert "\n" not in text
    assert all(word in text for word in words), text
