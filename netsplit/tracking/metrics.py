"""The names of metrics: what people select in MLflow's compare view, so they stay as they are.

per iteration  loss, iteration_s, throughput (samples/s),
               learning_rate where it changed (of the first group; learning_rate.1, .2, … of further ones)
per epoch      train_loss, epoch_s, test_<metric> (test_accuracy, test_mse, …; none without a metric)
per run        predicted_iteration_s, measured_iteration_s (the median), prediction_error,
               median_throughput (at that median), min_throughput, mean_throughput, max_throughput (of the
               iterations' samples/s),
               predicted_peak_bytes.<device>, measured_peak_bytes.<device>,
               predicted_host_bytes.<device>, measured_host_bytes.<device> (at most, of what is offloaded),
               peak_bytes (of the fullest device; measured, where it was),
               predicted_overflow_bytes (above a device's capacity; 0: all fits),
               solver_seconds, solver_objective_s, solver_bound_s, solver_gap
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from netsplit.partition.base import SolverReport
from netsplit.simulate.timeline import Timeline
from netsplit.training.history import Throughputs

__all__ = [
    "TEST",
    "epoch_metrics",
    "iteration_metrics",
    "learning_rate_metrics",
    "overflow_summary",
    "overfull",
    "prediction_error",
    "solver_summary",
    "timeline_summary",
]


TEST = "test_"
"""Before the name of what was computed on the test half."""


def iteration_metrics(step: int, loss: float, seconds: float, samples: int) -> list[tuple[str, float, int]]:
    """Metrics of one iteration; `step` counts over all epochs."""
    throughput = samples / seconds if seconds > 0 else 0.0
    return [("loss", loss, step), ("iteration_s", seconds, step), ("throughput", throughput, step)]


def learning_rate_metrics(step: int, rates: Sequence[float]) -> list[tuple[str, float, int]]:
    """Learning rates of the optimiser's groups, as they were in an iteration's step."""
    return [(f"learning_rate.{i}" if i else "learning_rate", rate, step) for i, rate in enumerate(rates)]


def epoch_metrics(
    epoch: int, *, train_loss: float, score: float | None, seconds: float, metric: str = "accuracy"
) -> list[tuple[str, float, int]]:
    """Metrics of one epoch; `score` is the metric's on the test half, None where nothing was evaluated."""
    metrics = [("train_loss", train_loss, epoch), ("epoch_s", seconds, epoch)]
    if score is not None:
        metrics.append((TEST + metric, score, epoch))
    return metrics


def prediction_error(predicted_s: float | None, measured_s: float | None) -> float | None:
    """(predicted - measured) / measured: negative where the prediction was too fast."""
    if predicted_s is None or not measured_s:
        return None
    return (predicted_s - measured_s) / measured_s


def timeline_summary(
    predicted: Timeline | None,
    measured: Timeline | None,
    samples: int | None = None,
    throughputs: Throughputs | None = None,
) -> dict[str, Any]:
    """Iteration seconds and peak bytes of both timelines, for `MethodRun.summary`; None where unknown.

    Args:
        samples: of an iteration.
        throughputs: of the measured iterations, whose median `measured` has.
    """
    predicted_s = None if predicted is None else predicted.iteration_s
    measured_s = None if measured is None else measured.iteration_s
    fullest = measured or predicted
    return {
        "predicted_iteration_s": predicted_s,
        "measured_iteration_s": measured_s,
        "prediction_error": prediction_error(predicted_s, measured_s),
        "median_throughput": samples / measured_s if samples and measured_s else None,
        "min_throughput": throughputs.least if throughputs else None,
        "mean_throughput": throughputs.mean if throughputs else None,
        "max_throughput": throughputs.greatest if throughputs else None,
        "peak_bytes": max(fullest.peak_bytes.values(), default=None) if fullest else None,
        "predicted_peak_bytes": None if predicted is None else predicted.peak_bytes,
        "measured_peak_bytes": None if measured is None else measured.peak_bytes,
        "predicted_host_bytes": (predicted.host_bytes or None) if predicted else None,
        "measured_host_bytes": (measured.host_bytes or None) if measured else None,
    }


def overfull(peaks: Mapping[str, int], capacity: Mapping[str, int]) -> list[str]:
    """The devices whose peak is above their capacity."""
    return [device for device, peak in peaks.items() if device in capacity and peak > capacity[device]]


def overflow_summary(peaks: Mapping[str, int], capacity: Mapping[str, int]) -> dict[str, Any]:
    """How far the worst predicted peak is above its device's capacity."""
    beyond = (peaks[device] - capacity[device] for device in overfull(peaks, capacity))
    return {"predicted_overflow_bytes": max(beyond, default=0)}


def solver_summary(report: SolverReport) -> dict[str, Any]:
    """A solver's report, for `MethodRun.summary`; status and engine become tags, notes their own kind."""
    return {
        "solver_status": report.status,
        "solver_engine": report.engine or None,
        "solver_optimises": report.optimises or None,
        "solver_seconds": report.seconds,
        "solver_objective_s": report.objective,
        "solver_bound_s": report.bound,
        "solver_gap": report.gap,
        "solver_notes": report.notes or None,
    }
