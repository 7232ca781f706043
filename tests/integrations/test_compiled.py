"""Segments that `torch.compile` made train what segments as they are train."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import InvalidCxxCompiler

import netsplit
from netsplit.errors import ConfigError
from netsplit.graph import capture, initial_values
from netsplit.graph.random_draws import DrawKey, drawing
from netsplit.program import SingleBatch
from netsplit.runtime.pieces import Piece
from tests.builders import compile_placed, cpus
from tests.integrations.conftest import Split

X = torch.linspace(-1, 1, 8 * 12, dtype=torch.float64).reshape(8, 12).sin()
Y = torch.arange(8) % 3


class Net(nn.Module):
    """BatchNorm, whose statistics a compiled segment writes; a skip; dropout, which parts compiled code."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.middle, self.head = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.norm, self.drop = nn.BatchNorm1d(16), nn.Dropout(0.25)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.inward(x))
        y = torch.relu(self.norm(self.middle(x)))
        return self.head(self.drop(x) + y)


def fresh() -> Net:
    torch.manual_seed(1)
    return Net().double()


def trained(
    split: Split, backend: str | None, schedule: str
) -> tuple[list[float], dict[str, Tensor], Tensor]:
    parallel = split(
        fresh(),
        nn.CrossEntropyLoss(),
        (X, Y),
        schedule=schedule,
        optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        compile_backend=backend,
    )
    losses = [parallel.train_batch(X, Y) for _ in range(3)] + [parallel.train_batch(X[:6], Y[:6])]
    outputs = parallel.predict(X)
    return losses, parallel.state_dict(), outputs


def assert_same(split: Split, backend: str, schedule: str) -> None:
    plain, made = trained(split, None, schedule), trained(split, backend, schedule)
    assert made[0] == pytest.approx(plain[0], abs=1e-9)
    torch.testing.assert_close(made[1], plain[1], rtol=0, atol=1e-9)
    torch.testing.assert_close(made[2], plain[2], rtol=0, atol=1e-9)
    assert not torch.equal(made[1]["norm.running_mean"], torch.zeros(16))


def test_they_train_the_same(split: Split) -> None:
    assert_same(split, "aot_eager", "zb_h1")


@pytest.mark.slow
def test_those_of_inductor_too(split: Split) -> None:
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        pytest.skip(str(error))
    assert_same(split, "inductor", "gpipe")


def test_a_compiled_segment_draws_what_it_draws_as_it_is() -> None:
    case = nn.Sequential(nn.Linear(12, 16), nn.Dropout(0.5), nn.Tanh(), nn.Linear(16, 3)).double()
    graph = capture(case, nn.CrossEntropyLoss(), (X, Y))
    values = initial_values(case, graph)
    program = compile_placed(
        graph, dict.fromkeys(graph.nodes, "cpu:0"), graph.position, cpus(1), SingleBatch()
    )
    (segment,) = program.segments
    outputs = []
    for backend in (None, "aot_eager"):
        piece = Piece(graph, segment, values, torch.device("cpu"), backend=backend)
        assert (piece.usual == piece.module.forward) == (backend is None)
        for iteration in range(2):
            with drawing(DrawKey(1, iteration)):
                (loss,) = piece.compute({k: (X, Y)[i] for i, k in enumerate(segment.inputs)}).values()
                outputs.append((loss.detach(), *torch.autograd.grad(loss, list(case.parameters()))))
    assert all(map(torch.equal, outputs[0] + outputs[1], outputs[2] + outputs[3]))
    assert outputs[0][0] != outputs[1][0]


def test_a_backend_that_is_not_there_is_refused_before_any_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netsplit.session.session.WorkerPool", None)
    with pytest.raises(ConfigError, match="compile_backend is 'fast', which"):
        netsplit.parallelize(fresh(), nn.CrossEntropyLoss(), (X, Y), compile_backend="fast")
    with pytest.raises(ConfigError, match=r"cudagraphs.*micro-batches would overwrite"):
        netsplit.parallelize(fresh(), nn.CrossEntropyLoss(), (X, Y), compile_backend="cudagraphs")
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
    with pytest.raises(ConfigError, match=r"needs a C\+\+ compiler"):
        netsplit.parallelize(fresh(), nn.CrossEntropyLoss(), (X, Y), compile_backend="inductor")
