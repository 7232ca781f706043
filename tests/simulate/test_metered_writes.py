"""Bytes of operators that write into views, whose backward copies the gradient twice (CopySlices)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from netsplit.graph.module import initial_values
from netsplit.graph.recording.step import capture
from netsplit.profile.measure.predicted_bytes import predicted_transients
from netsplit.program.compile import compile_program
from netsplit.program.schedules import GPipe
from netsplit.runtime.local import LocalRuntime
from netsplit.simulate.memory import predicted_peak_bytes
from tests.builders import cluster_of
from tests.profile.measure.test_memory_meter import metered_iteration
from tests.simulate.test_memory import within_margin

WIDTH, PLACES = 32, 24


class Writing(nn.Module):
    """A write into what a projection made, or into a view of that."""

    def __init__(self, into: str) -> None:
        super().__init__()
        self.into = into
        self.first, self.second = nn.Linear(WIDTH, WIDTH, bias=into != "no bias"), nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(PLACES * WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.first(x)
        if self.into == "view":
            y = y.view(-1, WIDTH, PLACES).relu_().view(-1, PLACES, WIDTH)
        elif self.into == "turned":
            y = y.transpose(1, 2).relu_().transpose(1, 2)
        elif self.into == "part":
            y = self.second(y)
            y[:, : PLACES // 2].mul_(2.0)
        elif self.into == "rest of each":
            z = self.second(y)
            z[..., 3:] = y.tanh()[..., 3:]
            y = y + z
        elif self.into == "new zeros":
            z = y.new_zeros(y.shape)
            z[..., ::2] = self.second(y)[..., ::2]
            z[..., 1::2] = y[..., 1::2].sigmoid()
            y = y + z
        elif self.into == "whole":
            y = self.first(x.flatten(0, 1)).relu_().unflatten(0, (-1, PLACES))
        elif self.into == "silu":
            y = nn.functional.silu(y, inplace=True)
        elif self.into != "nothing":
            y = y.relu_()
        scores: Tensor = self.last(self.second(y).flatten(1))
        return scores


@pytest.mark.parametrize(
    "into",
    [
        "nothing",
        "projection",
        "no bias",
        "silu",
        "view",
        "turned",
        "part",
        "rest of each",
        "new zeros",
        "whole",
    ],
)
def test_writes_into_views_take_what_is_predicted(into: str) -> None:
    torch.manual_seed(0)
    model, loss = Writing(into), nn.CrossEntropyLoss()
    x, targets = torch.randn(16, PLACES, WIDTH), torch.randint(5, (16,))
    graph, cluster = capture(model, loss, ((x[:8],), targets[:8])), cluster_of([10**9])
    program = compile_program(graph, dict.fromkeys(graph.nodes, "d0"), graph.position, cluster, GPipe(2))
    runtime = LocalRuntime(
        program, cluster, initial_values(model, graph), lambda each: torch.optim.SGD(each, lr=0.01)
    )
    runtime.train_batch((x,), targets)
    metered = metered_iteration(runtime, (x,), targets)["d0"]
    assert within_margin(predicted_peak_bytes(program, 2, {"d0": predicted_transients(graph)})["d0"], metered)
