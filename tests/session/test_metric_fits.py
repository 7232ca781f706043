"""A metric that is not for a model's outputs is refused before the training."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from netsplit.data.dataset import Data
from netsplit.errors import ConfigError
from netsplit.graph.recording.step import capture
from netsplit.session.comparison import _check_metric
from netsplit.session.step import ModelStep
from netsplit.training.metrics import as_metric

SAMPLES = [(torch.linspace(-1, 1, 3) * i, i % 2) for i in range(5)]


class Counting(nn.Module):
    """With a buffer that a forward in either mode writes."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.head(x)


def parts(metric: Any) -> tuple[Any, ModelStep, int]:
    model, loss = Counting(), nn.CrossEntropyLoss()
    inputs, targets = torch.stack([x for x, _ in SAMPLES[:2]]), torch.tensor([0, 1])
    graph = capture(model, loss, (inputs, targets))
    data = Data("own", SAMPLES, SAMPLES, 2, ["a", "b"])
    step = ModelStep(model, loss, (inputs, targets))
    return SimpleNamespace(metric=metric, data=data, model=model), step, graph.batch_size


@pytest.mark.parametrize("name", ["accuracy", "mean_iou"])
def test_one_that_fits_is_as_it_was_and_so_is_the_model(name: str) -> None:
    experiment, step, size = parts(as_metric(name))
    before = {k: v.clone() for k, v in experiment.model.state_dict().items()}
    random = torch.get_rng_state()
    _check_metric(experiment, step, size)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(v, before[k]) for k, v in experiment.model.state_dict().items())
    assert experiment.model.training
    assert getattr(experiment.metric, "counted", 0) == 0


def test_one_that_does_not_fit_is_refused_on_two_samples() -> None:
    with pytest.raises(ConfigError, match=r"metric mse needs outputs and targets of one shape, .* \(2, 2\)"):
        _check_metric(*parts(as_metric("mse")))
