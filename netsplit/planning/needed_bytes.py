"""What a placement needs on each device, by the rule of its problem: the one count that says what fits."""

from __future__ import annotations

import numpy as np

from netsplit.partition.base import Placement, Predicted
from netsplit.partition.common.instance import Instance, Ints

__all__ = ["needed_bytes"]


def needed_bytes(instance: Instance, placement: Placement, predicted: Predicted | None = None) -> Ints:
    """[D] bytes by `Problem.memory`: under (5-18), or the simulated peaks; each replica holds its stage.

    Args:
        predicted: of the placement; None: `Problem.evaluate` is asked where peaks are needed.
    """
    problem = instance.problem
    if problem.memory == "static":
        return instance.totals(placement.all_stages).nbytes
    if predicted is None:
        assert problem.evaluate is not None, "lifetimes are those of a schedule"
        predicted = problem.evaluate(placement)
    return np.array([predicted.peak_bytes.get(name, 0) for name in instance.devices], np.int64)
