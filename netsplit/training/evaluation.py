"""A metric over batches that a placed model predicts.

batches ──inputs──► predict ──outputs, targets──► metric, of "auto" chosen at the first batch ──► one number
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from netsplit.errors import ConfigError, NetSplitError
from netsplit.graph.batches.calls import lacking
from netsplit.training.metrics import (
    AUTO,
    Metric,
    as_metric,
    suited_metric,
    update_metric,
    value_of,
)

__all__ = ["evaluated", "lack_explained"]


def evaluated(predict: Callable[[Any], Any], batches: Iterable[Any], metric: Any, loss: Any) -> float:
    """The metric over all batches.

    Args:
        predict: outputs of inputs.
        batches: of pairs (inputs, targets).
        metric: as `ParallelModel.evaluate` takes it.
        loss: that the model is trained by, which "auto" asks.

    Raises:
        NetSplitError: there is no batch, or what is none, or the metric is not for what is there.
    """
    measure = None if isinstance(metric, str) and metric == AUTO else _asked(metric)
    if not isinstance(batches, Iterable):
        raise ConfigError(f"batches is {batches!r}: give pairs (inputs, targets), as a DataLoader does.")
    begun: Metric | None = None
    for batch in batches:
        inputs, targets = _pair(batch)
        outputs = predict(inputs)
        if begun is None:
            begun = suited_metric(outputs, targets, loss) if measure is None else measure
            begun.reset()
        update_metric(begun, outputs, targets)
    if begun is None:
        raise NetSplitError("there is nothing to evaluate: the data has no batch.")
    return value_of(begun)


@contextmanager
def lack_explained(model: nn.Module, loss: Any, inputs: Any) -> Iterator[None]:
    """Within a prediction: of a model with its loss inside, what fails for want of targets says so.

    Raises:
        ConfigError: the inputs lack an argument that targets give in training.
    """
    try:
        yield
    except NetSplitError as error:
        if loss is None and (name := lacking(model, inputs)):
            raise ConfigError(
                f"{type(model).__name__}.forward needs '{name}' too, which it has of the targets in "
                "training, as its loss is inside: give inputs as there, in predict((inputs, targets)) "
                "and evaluate([((inputs, targets), targets)])."
            ) from error
        raise


def _asked(metric: Any) -> Metric:
    measure = as_metric(metric)
    if measure is None:
        raise ConfigError(
            f"metric is {metric!r}, by which there is nothing to evaluate: give one, or leave it out."
        )
    return measure


def _pair(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        what = f"{len(batch)} entries" if isinstance(batch, tuple | list) else f"a {type(batch).__name__}"
        raise ConfigError(
            f"a batch to evaluate is {what}: give pairs (inputs, targets), several inputs as a tuple in it."
        )
    return batch[0], batch[1]
