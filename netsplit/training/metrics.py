"""Metrics of an epoch's test half: sums and counts over batches of any sizes, one number at the end.

auto ──data, loss──► accuracy, mean_iou, perplexity or mse
callable (outputs, targets) -> (sum, count), or an object as torchmetrics has them ──► `Metric`
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from netsplit.data.dataset import IGNORED, Data
from netsplit.errors import ConfigError, NetSplitError
from netsplit.signature import suggest

__all__ = [
    "AUTO", "NAMES", "Metric", "MetricWords", "accuracy", "as_metric", "auto",
    "chosen_metric", "correct", "is_regression", "mean_iou", "mse", "name_of_metric", "no_metric",
    "perplexity", "suited_metric", "top5", "update_metric", "value_of", "words_of_metric",
]  # fmt: skip

AUTO: Literal["auto"] = "auto"
Count = Callable[[Any, Any], tuple[float, int]]

_OTHERS = "choose another metric, or none"
_REGRESSION = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)


@runtime_checkable
class Metric(Protocol):
    """What torchmetrics' objects are: told of batches one after another, and asked at the end."""

    def reset(self) -> Any:
        """Begin anew."""

    def update(self, outputs: Any, targets: Any, /) -> Any:
        """Outputs and targets of a batch, in the structures of model and data."""

    def compute(self) -> Any:
        """One number for all batches since the last reset."""


class MetricWords(NamedTuple):
    """How a metric is written: in a sentence, as a narrow heading; `percent`: it is a fraction."""

    words: str
    short: str
    percent: bool

    @property
    def factor(self) -> float:
        return 100.0 if self.percent else 1.0

    def text(self, value: float) -> str:
        """'64.7 %', '0.0312'."""
        return f"{100 * value:.1f} %" if self.percent else f"{value:.4g}"


_WORDS = {
    "accuracy": MetricWords("accuracy", "Acc.", True),
    "top5": MetricWords("top-5 accuracy", "Top-5", True),
    "mean_iou": MetricWords("mean IoU", "mIoU", True),
    "mse": MetricWords("mean squared error", "MSE", False),
    "perplexity": MetricWords("perplexity", "Perpl.", False),
}


def words_of_metric(name: str) -> MetricWords:
    """How a metric is written; one of the user's own by its name."""
    return _WORDS.get(name) or MetricWords(name, name, False)


def name_of_metric(metric: Metric) -> str:
    """The name under which it is recorded, after ``test_``."""
    return str(getattr(metric, "name", None) or type(metric).__name__)


def value_of(metric: Metric) -> float:
    """What it computes, as one number; raises ConfigError where it computes several."""
    value = metric.compute()
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"metric {name_of_metric(metric)} computes {type(value).__name__}, which is not one number: "
            "choose one that is, as an average over its classes."
        ) from error


def update_metric(metric: Metric, outputs: Any, targets: Any) -> None:
    """A metric's `update`; raises ConfigError where it is not for such outputs and targets."""
    try:
        metric.update(outputs, targets)
    except NetSplitError:
        raise
    except Exception as error:  # of code that may do anything
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        there = f"{_described(outputs)} and {_described(targets)}"
        raise ConfigError(
            f"metric {name_of_metric(metric)} does not take what the model and the data give, {there} "
            f"({reason}): {_OTHERS}."
        ) from error


def as_metric(given: Any) -> Metric | None:
    """A metric, the name of one, or of a function of a batch the mean over what it counts; None: none.

    Raises:
        ConfigError: it is none of them.
    """
    if isinstance(given, str):
        if given not in NAMES:
            raise ConfigError(f"metric is '{given}': {suggest(given, (AUTO, *NAMES))}")
        return NAMES[given]()
    if given is None or (isinstance(given, Metric) and not isinstance(given, type)):
        return given
    if callable(given) and not isinstance(given, type):
        function = getattr(given, "func", given)
        return Mean(given, str(getattr(function, "__name__", type(given).__name__)))
    raise ConfigError(
        f"metric is {given!r}: give an object with reset, update and compute, as torchmetrics has them, or "
        "a function of (outputs, targets) that returns a sum and a count."
    )


def chosen_metric(given: Any, data: Data, loss: Any) -> Metric | None:
    """`as_metric`; of "auto" mse where targets or the loss are a regression's, else what the data names.

    None where there is no test half.

    Raises:
        ConfigError: it is no metric, or one is given and there is no test half.
    """
    if given != AUTO:
        metric = as_metric(given)
        if metric is not None and not len(data.test):
            raise ConfigError(
                f"metrics={name_of_metric(metric)} is of the test half, and '{data.name}' has none: "
                "let dataset._target_ make a pair (train, test), or leave metrics out."
            )
        return metric
    if not len(data.test):
        return None
    target = data.train[0][1] if len(data.train) else None
    if is_regression(target, loss):
        return mse()
    return {"accuracy": accuracy, "mean_iou": mean_iou, "perplexity": perplexity}[data.metric]()


def is_regression(target: Any, loss: Any) -> bool:
    """Whether targets, or the loss, are of real numbers."""
    real = isinstance(target, float) or (isinstance(target, Tensor) and target.is_floating_point())
    return real or isinstance(loss, _REGRESSION)


def suited_metric(outputs: Any, targets: Any, loss: Any) -> Metric:
    """What "auto" is where no dataset names what it is judged by: mse of a regression, else the accuracy.

    Raises:
        ConfigError: neither is for such outputs and targets.
    """
    one_shape = _are_tensors(outputs, targets) and outputs.shape == targets.shape and outputs.ndim > 0
    if is_regression(targets, loss) and one_shape:
        return mse()
    if not is_regression(targets, loss) and _are_scores(outputs, targets):
        return accuracy()
    raise ConfigError(
        f"no metric suits what the model and the data give, {_described(outputs)} and {_described(targets)}: "
        "give metric=, a function of (outputs, targets) that returns a sum and a count."
    )


def correct(outputs: Tensor, targets: Tensor) -> tuple[float, int]:
    """How many class scores (n, classes, ...) are highest at their target (n, ...), and of how many.

    Targets that are `IGNORED`, as torch's losses have it, do not count.
    """
    _require_classes("accuracy", outputs, targets)
    counted = targets != IGNORED
    return float(((outputs.argmax(1) == targets) & counted).sum()), int(counted.sum())


@dataclass
class Mean:
    """The mean of what a function counts; `finish` makes the number of it."""

    count: Count
    name: str
    finish: Callable[[float], float] = float
    total: float = 0.0
    counted: int = 0

    def reset(self) -> None:
        self.total, self.counted = 0.0, 0

    def update(self, outputs: Any, targets: Any) -> None:
        total, counted = self.count(outputs, targets)
        self.total, self.counted = self.total + float(total), self.counted + int(counted)

    def compute(self) -> float:
        if not self.counted:
            raise NetSplitError(f"there is nothing to evaluate: {self.name} counted no target.")
        return self.finish(self.total / self.counted)


@dataclass
class MeanIoU:
    """The mean over classes of intersection over union, of all targets that count; classes that neither
    targets nor answers have are left out.
    """

    name: str = "mean_iou"
    both: Tensor = field(default_factory=lambda: torch.zeros(0))
    either: Tensor = field(default_factory=lambda: torch.zeros(0))

    def reset(self) -> None:
        self.both = self.either = torch.zeros(0)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        _require_classes(self.name, outputs, targets)
        classes, counted = outputs.shape[1], targets != IGNORED
        answers, wanted = outputs.argmax(1)[counted], targets[counted]
        both = torch.bincount(wanted[answers == wanted], minlength=classes)
        either = torch.bincount(wanted, minlength=classes) + torch.bincount(answers, minlength=classes) - both
        self.both = both + self.both if len(self.both) else both
        self.either = either + self.either if len(self.either) else either

    def compute(self) -> float:
        there = self.either > 0
        if not bool(there.any()):
            raise NetSplitError(f"there is nothing to evaluate: {self.name} counted no target.")
        return float((self.both[there].double() / self.either[there]).mean())


def auto() -> str:
    """What suits the data and the loss."""
    return AUTO


def no_metric() -> None:
    """No metric: the test half is not computed."""


def accuracy() -> Metric:
    """The fraction of targets whose class has the highest score."""
    return Mean(correct, "accuracy")


def top5() -> Metric:
    """The fraction of targets whose class has one of the five highest scores."""
    return Mean(_in_top5, "top5")


def mean_iou() -> Metric:
    """Intersection over union, the mean over classes."""
    return MeanIoU()


def mse() -> Metric:
    """The mean squared error over all elements."""
    return Mean(_squares, "mse")


def perplexity() -> Metric:
    """The exponential of the mean cross-entropy over all targets."""
    return Mean(_entropies, "perplexity", _exponential)


def _in_top5(outputs: Tensor, targets: Tensor) -> tuple[float, int]:
    _require_classes("top5", outputs, targets)
    counted = targets != IGNORED
    best = outputs.topk(min(5, outputs.shape[1]), dim=1).indices
    return float(((best == targets.unsqueeze(1)).any(1) & counted).sum()), int(counted.sum())


def _squares(outputs: Tensor, targets: Tensor) -> tuple[float, int]:
    if not _are_tensors(outputs, targets) or outputs.shape != targets.shape:
        raise _unfit("mse", "outputs and targets of one shape", outputs, targets)
    return float((outputs.double() - targets.double()).square().sum()), targets.numel()


def _entropies(outputs: Tensor, targets: Tensor) -> tuple[float, int]:
    _require_classes("perplexity", outputs, targets)
    total = cross_entropy(outputs.double(), targets, ignore_index=IGNORED, reduction="sum")
    return float(total), int((targets != IGNORED).sum())


def _exponential(mean: float) -> float:
    return math.exp(mean) if mean < 700 else math.inf


NAMES: dict[str, Callable[[], Metric | None]] = {
    "accuracy": accuracy, "top5": top5, "mean_iou": mean_iou, "mse": mse, "perplexity": perplexity,
    "none": no_metric,
}  # fmt: skip
"""What conf/metrics/ has, but for `AUTO`, which depends on the task."""


def _are_tensors(*values: Any) -> bool:
    return all(isinstance(value, Tensor) for value in values)


def _require_classes(name: str, outputs: Any, targets: Any) -> None:
    if not _are_scores(outputs, targets):
        needed = "scores (n, classes, ...) of at least 2 classes and whole-numbered targets (n, ...)"
        raise _unfit(name, needed, outputs, targets)
    counted = targets[targets != IGNORED]
    for target in (int(counted.min()), int(counted.max())) if counted.numel() else ():
        if not 0 <= target < outputs.shape[1]:
            raise ConfigError(
                f"metric {name} needs targets from 0 to {outputs.shape[1] - 1}, those of the scores, "
                f"and one is {target}: give the model as many classes as the data has; a target of {IGNORED} "
                "counts nowhere."
            )


def _are_scores(outputs: Any, targets: Any) -> bool:
    """Whether these are of the shapes of class scores and their targets."""
    return (
        _are_tensors(outputs, targets)
        and outputs.ndim >= 2
        and outputs.shape[1] >= 2
        and not targets.is_floating_point()
        and (outputs.shape[0], *outputs.shape[2:]) == tuple(targets.shape)
    )


def _unfit(name: str, needed: str, *there: Any) -> ConfigError:
    given = " and ".join(map(_described, there))
    return ConfigError(f"metric {name} needs {needed}, and the model and the data give {given}: {_OTHERS}.")


def _described(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
