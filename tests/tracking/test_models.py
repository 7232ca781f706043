"""Trained models in MLflow come back as they were, by the model's number and by the registry's name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from netsplit.tracking import Tracker


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(x)))


INPUTS = torch.linspace(-1, 1, 10).reshape(2, 5)


def logged(database: str, name: str, model: nn.Module, **options: Any) -> tuple[Tracker, Any]:
    tracker = Tracker(database, name, **options)
    with tracker.comparison("all") as comparison, comparison.method("one") as run:
        assert run.logs_model
        run.model(model.eval(), INPUTS)
    assert tracker.client is not None
    return tracker, tracker.client.get_run(run.run_id)


def test_a_model_comes_back_and_predicts_the_same(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow
    from mlflow.tracking._tracking_service.utils import _use_tracking_uri as use_tracking_uri

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///elsewhere.db")
    before = mlflow.get_tracking_uri()
    model = Net()
    tracker, run = logged(database, "models", model, register_model="net")
    assert mlflow.get_tracking_uri() == before
    client = tracker.client
    assert client is not None
    (output,) = run.outputs.model_outputs
    (version,) = client.search_model_versions("name='net'")
    assert version.run_id == run.info.run_id
    assert client.get_logged_model(output.model_id).experiment_id == tracker.experiment_id
    with use_tracking_uri(database):
        for address in (f"models:/{output.model_id}", "models:/net/1"):
            again = mlflow.pytorch.load_model(address)
            many = torch.randn(7, 5)
            torch.testing.assert_close(again(many), model(many), rtol=0, atol=0)
            signature = mlflow.models.get_model_info(address).signature
            assert [each.shape for each in signature.inputs] == [(-1, 5)]
            assert [each.shape for each in signature.outputs] == [(-1, 3)]
