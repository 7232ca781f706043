"""Nested values become what MLflow accepts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from omegaconf import OmegaConf

from netsplit.partition.base import SolverReport
from netsplit.tracking.metrics import epoch_metrics, iteration_metrics, solver_summary, timeline_summary
from netsplit.tracking.values import as_yaml, dotted_keys, masked, numbers, plain_key
from netsplit.training.history import Throughputs
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


def test_of_nothing_there_is_no_value() -> None:
    assert dotted_keys({}) == {}
    assert numbers({}) == ({}, {})


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("http://me:secret@host:5000", "http://me:***@host:5000"),
        ("http://me:sec@ret@host:5000", "http://me:***@host:5000"),
        ("http://me@work:sec/ret@host", "http://me@work:***@host"),
        ("http://:secret@host", "http://:***@host"),
        ("a://b:c@d,e://f:g@h and i://j:k@l", "a://b:***@d,e://f:***@h and i://j:***@l"),
        ("http://me@host:5000/a, you@there", "http://me@host:5000/a, you@there"),
    ],
)
def test_passwords_of_addresses_are_hidden(given: str, shown: str) -> None:
    assert masked(given) == shown


def test_configs_are_resolved() -> None:
    config = OmegaConf.create({"a": 2, "b": "${a}"})
    assert dotted_keys(config) == {"a": "2", "b": "2"}
    assert yaml.safe_load(as_yaml(config)) == {"a": 2, "b": 2}


def test_numbers_are_told_from_words() -> None:
    metrics, tags = numbers(
        {"n": np.float32(0.5), "ok": True, "who": "highs", "none": None, "path": Path("a/b")}
    )
    assert metrics == {"n": 0.5}
    assert tags == {"ok": "True", "who": "highs", "path": "a/b"}


def test_what_is_empty_is_no_tag() -> None:
    """Where nothing is in parts, say; of a config it is a setting, and stays."""
    report = SolverReport("feasible", 1.0, notes={"splits": [], "answered": "whole", "cut": {}, "why": ""})
    assert numbers(solver_summary(report))[1] == {
        "solver_status": "feasible",
        "solver_notes.answered": "whole",
    }
    assert numbers({"none": (), "no": False, "zero": 0}) == ({"zero": 0.0}, {"no": "False"})
    assert dotted_keys({"empty": []}) == {"empty": "[]"}


def test_only_characters_that_mlflow_refuses_are_replaced() -> None:
    assert plain_key("peak.cpu:0") == "peak.cpu:0"
    assert plain_key("100% = all") == "100_ _ all"


def test_metric_names_are_the_contract() -> None:
    assert [key for key, _, _ in iteration_metrics(3, 0.5, 0.25, 8)] == ["loss", "iteration_s", "throughput"]
    assert iteration_metrics(3, 0.5, 0.25, 8)[2] == ("throughput", 32.0, 3)
    keys = [key for key, _, _ in epoch_metrics(0, train_loss=1.0, score=0.5, seconds=2.0)]
    assert keys == ["train_loss", "epoch_s", "test_accuracy"]
    throughputs = Throughputs(20.0, 27.5, 30.0)
    metrics, _ = numbers(timeline_summary(timeline(), timeline(1.25), 34, throughputs))
    assert set(metrics) == {
        "predicted_iteration_s",
        "measured_iteration_s",
        "prediction_error",
        "median_throughput",
        "min_throughput",
        "mean_throughput",
        "max_throughput",
        "peak_bytes",
        "predicted_peak_bytes.cpu:0",
        "predicted_peak_bytes.cpu:1",
        "measured_peak_bytes.cpu:0",
        "measured_peak_bytes.cpu:1",
    }
    assert round(metrics["prediction_error"], 9) == -0.2
    assert metrics["median_throughput"] == pytest.approx(34 / timeline(1.25).iteration_s)
    assert [metrics[f"{which}_throughput"] for which in ("min", "mean", "max")] == [*throughputs]
    report = SolverReport("optimal", 1.5, "highs 1", 2.0, 1.0, 0.5, {"groups": 40}, "one pass")
    metrics, tags = numbers(solver_summary(report))
    assert metrics == {
        "solver_seconds": 1.5,
        "solver_objective_s": 2.0,
        "solver_bound_s": 1.0,
        "solver_gap": 0.5,
        "solver_notes.groups": 40.0,
    }
    assert tags == {
        "solver_status": "optimal",
        "solver_engine": "highs 1",
        "solver_optimises": "one pass",
    }
