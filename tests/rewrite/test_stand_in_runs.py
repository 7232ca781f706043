"""What running a node on tensors without data shows is known of all that are alike."""

from __future__ import annotations

from typing import Any

import pytest

from netsplit.graph.ir import CALL
from netsplit.rewrite import along_samples, applied
from netsplit.rewrite.layouts import StandInRuns, layouts_of
from tests.rewrite.models import STEPS


@pytest.mark.parametrize("name", STEPS)
def test_what_is_known_of_one_alike_is_what_running_it_shows(name: str) -> None:
    graph = STEPS[name].graph()
    graph = applied(graph, along_samples(graph, 2))  # with views of parameters and of parts
    layouts, runs = layouts_of(graph), StandInRuns(graph)
    held = {k: (init.shape, init.dtype, init.requires_grad) for k, init in graph.initializers.items()}
    nodes = [node for node in graph if not node.op.startswith(CALL)]
    for node in nodes:
        assert runs.run(node, layouts) == runs._run(node, layouts, held)


def test_parts_of_one_size_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    run = StandInRuns._run

    def counted(self: StandInRuns, node: Any, *given: Any) -> Any:
        ran.append(node.op)
        return run(self, node, *given)

    monkeypatch.setattr(StandInRuns, "_run", counted)
    graph = STEPS["transformer"].graph()
    layouts_of(graph)
    first = len(ran)
    splits = along_samples(graph, graph.batch_size)
    made = applied(graph, splits)
    assert len(made) > len(graph) + len(splits)
    assert len(ran) - first < len(made) / 2
    again = len(ran)
    applied(graph, along_samples(graph, graph.batch_size)[:3])
    assert set(ran[again:]) <= {"aten.cat.default"}, "which puts the parts of the third together"
