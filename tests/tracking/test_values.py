"""Nested values become what MLflow accepts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from netsplit.partition.base import SolverReport
from netsplit.tracking.metrics import (
    epoch_metrics,
    iteration_metrics,
    solver_metrics,
    solver_tags,
    timeline_metrics,
    timeline_tags,
)
from netsplit.tracking.values import as_tags, dotted_keys, masked, plain_key
from tests.tracking.samples import timeline


def test_nested_keys_are_dotted_and_lists_of_values_stay_whole() -> None:
    config = {"a": {"b": 1, "c": None}, "sizes": [1, 2], "layers": [{"n": 3}], "empty": {}}
    assert dotted_keys(config) == {
        "a.b": "1",
        "a.c": "None",
        "sizes": "[1, 2]",
        "layers.0.n": "3",
        "empty": "{}",
    }


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("http://me:secret@host:5000", "http://me:***@host:5000"),
        ("http://me@work:sec/ret@host", "http://me@work:***@host"),
        ("http://me@host:5000/a, you@there", "http://me@host:5000/a, you@there"),
    ],
)
def test_passwords_of_addresses_are_hidden(given: str, shown: str) -> None:
    assert masked(given) == shown


def test_what_is_empty_is_no_tag() -> None:
    """Where nothing is in parts, say; of a config it is a setting, and stays."""
    values = {"n": np.float32(0.5), "no": False, "zero": 0, "path": Path("a/b"), "none": None, "some": ()}
    assert as_tags(values) == {"n": "0.5", "no": "False", "zero": "0", "path": "a/b"}
    report = SolverReport("feasible", 1.0, notes={"splits": [], "answered": "whole", "cut": {}, "why": ""})
    assert as_tags(solver_tags(report)) == {"solver_status": "feasible", "solver_notes.answered": "whole"}
    assert dotted_keys({"empty": []}) == {"empty": "[]"}


def test_only_characters_that_mlflow_refuses_are_replaced() -> None:
    assert plain_key("peak.cpu:0") == "peak.cpu:0"
    assert plain_key("100% = all") == "100_ _ all"


def test_metric_names_are_the_contract() -> None:
    """Each is a chart in MLflow: speed first, then accuracy and loss, and no constants."""
    assert iteration_metrics(3, 0.5, 0.25) == [("train/loss", 0.5, 3), ("train/iteration_s", 0.25, 3)]
    assert iteration_metrics(3, 0.5, None) == [("train/loss", 0.5, 3)]
    keys = [key for key, _, _ in epoch_metrics(0, train_loss=1.0, score=0.5, seconds=2.0)]
    assert keys == ["train/epoch_loss", "train/epoch_s", "test/accuracy"]
    metrics = timeline_metrics(timeline(), timeline(1.25), 34)
    assert set(metrics) == {
        "speed/samples_per_s",
        "speed/samples_per_s_predicted",
        "speed/seconds_per_iteration",
        "seconds_per_iteration_predicted",
        "prediction_error",
        "peak_bytes",
        "peak_bytes_predicted",
    }
    assert metrics["prediction_error"] == pytest.approx(-0.2)
    assert metrics["speed/samples_per_s"] == pytest.approx(34 / timeline(1.25).iteration_s)
    assert as_tags(timeline_tags(timeline(), None)) == {
        f"predicted_peak_bytes.{device}": str(nbytes) for device, nbytes in timeline().peak_bytes.items()
    }
    report = SolverReport("optimal", 1.5, "highs 1", 2.0, 1.0, 0.5, {"groups": 40}, "one pass")
    assert solver_metrics(report) == {"solver_seconds": 1.5, "solver_gap": 0.5}
    assert as_tags(solver_tags(report)) == {
        "solver_status": "optimal",
        "solver_engine": "highs 1",
        "solver_optimises": "one pass",
        "solver_objective_s": "2.0",
        "solver_bound_s": "1.0",
        "solver_notes.groups": "40",
    }
