"""The names of metrics. MLflow draws a chart of each, so what is no result is a tag.

MLflow makes a section of charts of what stands before the ``/``, in alphabetical order, and puts names
without it last: speed comes first, then what was tested and the loss, then the rest.

`docs/tracking.md` lists them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from netsplit.placement.placement import SolverReport
    from netsplit.simulate.timeline import Timeline

__all__ = [
    "COMMAND", "COMPARISON", "DECISION", "TEST", "epoch_metrics", "iteration_metrics",
    "learning_rate_metrics", "overfull", "prediction_error", "solver_metrics",
    "solver_tags", "timeline_metrics", "timeline_tags",
]  # fmt: skip


TEST = "test/"
"""Before the name of what was computed on the test half."""


def iteration_metrics(step: int, loss: float, seconds: float | None) -> list[tuple[str, float, int]]:
    """Metrics of one iteration; `step` counts over all epochs, `seconds` are None where they mean nothing."""
    timed = [] if seconds is None else [("train/iteration_s", seconds, step)]
    return [("train/loss", loss, step), *timed]


def learning_rate_metrics(step: int, rates: Sequence[float]) -> list[tuple[str, float, int]]:
    """Learning rates of the optimiser's groups, as they were in an iteration's step."""
    return [(f"train/learning_rate{f'.{i}' * bool(i)}", rate, step) for i, rate in enumerate(rates)]


def epoch_metrics(
    epoch: int, *, train_loss: float, score: float | None, seconds: float, metric: str = "accuracy"
) -> list[tuple[str, float, int]]:
    """Metrics of one epoch; `score` is the metric's on the test half, None where nothing was evaluated."""
    metrics = [("train/epoch_loss", train_loss, epoch), ("train/epoch_s", seconds, epoch)]
    if score is not None:
        metrics.append((TEST + metric, score, epoch))
    return metrics


def prediction_error(predicted_s: float | None, measured_s: float | None) -> float | None:
    """(predicted - measured) / measured: negative where the prediction was too fast."""
    if predicted_s is None or not measured_s:
        return None
    return (predicted_s - measured_s) / measured_s


def timeline_metrics(
    predicted: Timeline | None, measured: Timeline | None, samples: int
) -> dict[str, float | None]:
    """Metrics of an iteration of so many samples, in seconds and bytes; None where unknown."""
    (predicted_s, predicted_bytes), (measured_s, measured_bytes) = (
        (None, None) if each is None else (each.iteration_s, max(each.peak_bytes.values(), default=None))
        for each in (predicted, measured)
    )
    return {
        "speed/samples_per_s": samples / measured_s if measured_s else None,
        "speed/samples_per_s_predicted": samples / predicted_s if predicted_s else None,
        "speed/seconds_per_iteration": measured_s,
        "seconds_per_iteration_predicted": predicted_s,
        "prediction_error": prediction_error(predicted_s, measured_s),
        "peak_bytes": measured_bytes,
        "peak_bytes_predicted": predicted_bytes,
    }


def timeline_tags(predicted: Timeline | None, measured: Timeline | None) -> dict[str, Mapping[str, int]]:
    """The peaks of each device, and on its host of what is offloaded, in bytes."""
    return {
        f"{name}_{kind}_bytes": each.peak_bytes if kind == "peak" else each.host_bytes
        for name, each in (("predicted", predicted), ("measured", measured))
        if each is not None
        for kind in ("peak", "host")
    }


def overfull(peaks: Mapping[str, int], capacity: Mapping[str, int]) -> list[str]:
    """The devices whose peak is above their capacity."""
    return [device for device, peak in peaks.items() if device in capacity and peak > capacity[device]]


def solver_metrics(report: SolverReport) -> dict[str, float | None]:
    return {"solver_seconds": report.seconds, "solver_gap": report.gap}


def solver_tags(report: SolverReport) -> dict[str, Any]:
    """What a solver said: its objective is of its own, so that beside another method's it would mislead."""
    return {
        "solver_status": report.status,
        "solver_engine": report.engine,
        "solver_optimises": report.optimises,
        "solver_objective_s": report.objective,
        "solver_bound_s": report.bound,
        "solver_notes": report.notes,
    }


COMPARISON = "comparison"
"""The tag of a method's run with the id of its comparison's run."""
COMMAND = "command"
"""The same of all that one command recorded, as the jobs of a sweep."""
DECISION = "adaptive.decision."
"""``adaptive.decision.<n>``: of a method's run, what was decided about its plan in training, as JSON."""
