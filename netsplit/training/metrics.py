"""Metrics of an epoch's test half: sums and counts over batches of any sizes, one number at the end.

auto ──data, loss──► accuracy, mean_iou, perplexity or mse
callable (outputs, targets) -> (sum, count), or an object as torchmetrics has them ──► `Metric`
batches ──inputs──► predict ──outputs, targets──► `Metric` ──► one number
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from netsplit.data.dataset import IGNORED, Data
from netsplit.errors import ConfigError, NetSplitError
from netsplit.signature import suggest

__all__ = [
    "AUTO", "NAMES", "Metric", "MetricWords", "as_metric", "chosen_metric", "correct", "evaluated",
    "name_of_metric", "named", "update_metric", "words_of_metric",
]  # fmt: skip

AUTO: Literal["auto"] = "auto"
Count = Callable[[Any, Any], tuple[Any, Any]]

_OTHERS = "choose another metric, or none"
_REGRESSION = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)


@runtime_checkable
class Metric(Protocol):
    """The interface of torchmetrics' metrics."""

    def reset(self) -> Any:
        """Begin anew."""

    def update(self, outputs: Any, targets: Any, /) -> Any:
        """Outputs and targets of a batch, in the structures of model and data."""

    def compute(self) -> Any:
        """One number for all batches since the last reset."""


class MetricWords(NamedTuple):
    """How a metric is printed: in a sentence, as a column heading; `percent`: it is a fraction."""

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
    return _WORDS.get(name) or MetricWords(name, name, False)


def name_of_metric(metric: Metric) -> str:
    """The name it is recorded under, after ``test_``."""
    return str(getattr(metric, "name", None) or type(metric).__name__)


def update_metric(metric: Metric, outputs: Any, targets: Any) -> None:
    """Update a metric; raises ConfigError if it does not fit these outputs and targets."""
    try:
        metric.update(outputs, targets)
    except NetSplitError:
        raise
    except Exception as error:  # of code that may do anything
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        values = f"{_described(outputs)} and {_described(targets)}"
        raise ConfigError(
            f"metric {name_of_metric(metric)} cannot use {values} ({reason}): {_OTHERS}."
        ) from error


def named(name: str) -> Metric | Literal["auto"] | None:
    """The metric of a name in conf/metrics/; "none" is None, "auto" is itself."""
    if name in (AUTO, "none"):
        return AUTO if name == AUTO else None
    if name not in NAMES:
        raise ConfigError(f"metric is '{name}': {suggest(name, (AUTO, 'none', *NAMES))}")
    return Mean(NAMES[name][0], name, *NAMES[name][1:])


def as_metric(given: Any) -> Metric | None:
    """A metric from a metric, a name, or a function of a batch; None stays None."""
    metric = named(given) if isinstance(given, str) else given
    if metric is None or (isinstance(metric, Metric) and not isinstance(metric, type)):
        return metric
    if callable(given) and not isinstance(given, type):
        function = getattr(given, "func", given)
        return Mean(given, str(getattr(function, "__name__", type(given).__name__)))
    raise ConfigError(
        f"metric is {given!r}: give an object with reset, update and compute, as torchmetrics has them, or "
        "a function of (outputs, targets) that returns a sum and a count."
    )


def chosen_metric(given: Any, data: Data, loss: Any) -> Metric | None:
    """`as_metric`; "auto" is mse for a regression, else the data's own; None without a test half."""
    if given != AUTO:
        metric = as_metric(given)
        if metric is not None and not len(data.test):
            raise ConfigError(
                f"metrics={name_of_metric(metric)} is computed on test data, and '{data.name}' has none: "
                "let dataset._target_ make a pair (train, test), or leave metrics out."
            )
        return metric
    if not len(data.test):
        return None
    target = data.train[0][1] if len(data.train) else None
    return as_metric("mse" if _is_regression(target, loss) else data.metric)


def _is_regression(target: Any, loss: Any) -> bool:
    real = isinstance(target, float) or (isinstance(target, Tensor) and target.is_floating_point())
    return real or isinstance(loss, _REGRESSION)


def _suited_metric(outputs: Any, targets: Any, loss: Any) -> str:
    """ "auto" where no dataset chooses: mse for a regression, else accuracy."""
    one_shape = _are_tensors(outputs, targets) and outputs.shape == targets.shape and outputs.ndim > 0
    if _is_regression(targets, loss) and one_shape:
        return "mse"
    if not _is_regression(targets, loss) and _are_scores(outputs, targets):
        return "accuracy"
    raise ConfigError(
        f"no metric suits outputs {_described(outputs)} and targets {_described(targets)}: give metric=, a "
        "function of (outputs, targets) that returns a sum and a count."
    )


def correct(outputs: Tensor, targets: Tensor) -> tuple[float, int]:
    """How many class scores (n, classes, ...) are highest at their target (n, ...), and the total."""
    _require_classes("accuracy", outputs, targets)
    counted = targets != IGNORED
    return float(((outputs.argmax(1) == targets) & counted).sum()), int(counted.sum())


@dataclass
class Mean:
    """A function's counts, summed over batches; `finish` turns the two sums into a number."""

    count: Count
    name: str
    finish: Callable[[Tensor, Tensor], Tensor] = torch.div
    total: Tensor | float = 0.0
    counted: Tensor | float = 0.0

    def reset(self) -> None:
        self.total = self.counted = 0.0

    def update(self, outputs: Any, targets: Any) -> None:
        total, counted = self.count(outputs, targets)
        self.total = self.total + torch.as_tensor(total, dtype=torch.float64)
        self.counted = self.counted + torch.as_tensor(counted, dtype=torch.float64)

    def compute(self) -> float:
        total, counted = map(torch.as_tensor, (self.total, self.counted))
        if not counted.any():
            raise NetSplitError(f"there is nothing to evaluate: {self.name} found no target to count.")
        return float(self.finish(total, counted))


def _in_top5(outputs: Tensor, targets: Tensor) -> tuple[float, int]:
    _require_classes("top5", outputs, targets)
    counted = targets != IGNORED
    best = outputs.topk(min(5, outputs.shape[1]), dim=1).indices
    return float(((best == targets.unsqueeze(1)).any(1) & counted).sum()), int(counted.sum())


def _over_either(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    _require_classes("mean_iou", outputs, targets)
    classes, counted = outputs.shape[1], targets != IGNORED
    answers, wanted = outputs.argmax(1)[counted], targets[counted]
    both = torch.bincount(wanted[answers == wanted], minlength=classes)
    either = torch.bincount(wanted, minlength=classes) + torch.bincount(answers, minlength=classes) - both
    return both, either


def _squares(outputs: Tensor, targets: Tensor) -> tuple[float, int]:
    if not _are_tensors(outputs, targets) or outputs.shape != targets.shape:
        raise _unfit("mse", "outputs and targets of one shape", outputs, targets)
    return float((outputs.double() - targets.double()).square().sum()), targets.numel()


def _entropies(outputs: Tensor, targets: Tensor) -> tuple[float, int]:
    _require_classes("perplexity", outputs, targets)
    total = cross_entropy(outputs.double(), targets, ignore_index=IGNORED, reduction="sum")
    return float(total), int((targets != IGNORED).sum())


NAMES: dict[str, tuple[Any, ...]] = {
    "accuracy": (correct,),
    "top5": (_in_top5,),
    "mean_iou": (_over_either, lambda both, either: (both / either)[either > 0].mean()),
    "mse": (_squares,),
    "perplexity": (_entropies, lambda total, counted: (total / counted).exp()),
}
"""Name -> count of a batch, and how the sums become a number if not by division. `mean_iou` averages over the
classes in targets or outputs."""


def evaluated(predict: Callable[[Any], Any], batches: Iterable[Any], metric: Any, loss: Any) -> float:
    """The metric over all pairs (inputs, targets); the first one and `loss` decide what "auto" is."""
    if not isinstance(batches, Iterable):
        raise ConfigError(f"batches is {batches!r}: give pairs (inputs, targets), as a DataLoader does.")
    is_open, measure = isinstance(metric, str) and metric == AUTO, None
    for batch in batches:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            what = f"{len(batch)} entries" if isinstance(batch, tuple | list) else f"a {type(batch).__name__}"
            raise ConfigError(
                f"a batch to evaluate is {what}: give pairs (inputs, targets), with several inputs as a "
                "tuple."
            )
        outputs, targets = predict(batch[0]), batch[1]
        if measure is None:
            measure = as_metric(_suited_metric(outputs, targets, loss) if is_open else metric)
            if measure is None:
                raise ConfigError(
                    f"metric is {metric!r}, so there is nothing to evaluate: give one, or leave it out."
                )
            measure.reset()
        update_metric(measure, outputs, targets)
    if measure is None:
        raise NetSplitError("there is nothing to evaluate: the data has no batch.")
    value = measure.compute()
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"metric {name_of_metric(measure)} computes {type(value).__name__}, not one number: choose one "
            "that does, such as an average over classes."
        ) from error


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
                f"metric {name} needs targets from 0 to {outputs.shape[1] - 1}, the model's classes, but one "
                f"is {target}: give the model as many classes as the data has (targets of {IGNORED} are "
                "ignored)."
            )


def _are_scores(outputs: Any, targets: Any) -> bool:
    return (
        _are_tensors(outputs, targets)
        and outputs.ndim >= 2
        and outputs.shape[1] >= 2
        and not targets.is_floating_point()
        and (outputs.shape[0], *outputs.shape[2:]) == tuple(targets.shape)
    )


def _unfit(name: str, needed: str, *values: Any) -> ConfigError:
    kinds = " and ".join(map(_described, values))
    return ConfigError(f"metric {name} needs {needed}, but the model and the data give {kinds}: {_OTHERS}.")


def _described(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
