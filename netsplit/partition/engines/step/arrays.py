"""A problem and a schedule for compiled functions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netsplit.compiled import Floats, Ints, Packed, inlined
from netsplit.simulate.engine.arrays import DeviceSeconds

__all__ = [
    "EAGER_1F1B",
    "GPIPE",
    "KINDS",
    "ONE_F_ONE_B",
    "SINGLE_BATCH",
    "Arrays",
    "moving_s",
]

SINGLE_BATCH, GPIPE, ONE_F_ONE_B, EAGER_1F1B = range(4)
KINDS = {"single_batch": SINGLE_BATCH, "gpipe": GPIPE, "1f1b": ONE_F_ONE_B, "eager_1f1b": EAGER_1F1B}
"""Of schedules, in `Arrays.turns`."""


class Arrays(NamedTuple):
    """An instance for compiled functions."""

    forward_s: Floats  # [n, D]
    backward_s: Floats  # [n, D]
    trained: NDArray[np.bool_]  # [n]
    final: NDArray[np.bool_]  # [n] makes an output of the graph that a gradient comes back from
    producer: Ints  # [m]
    requires_backward: NDArray[np.bool_]  # [m]
    consumers: Packed  # [m] -> nodes
    reads: Packed  # [n] -> variables
    gives: NDArray[np.bool_]  # [reads] a gradient comes back from this node
    makes: Packed  # [n] -> variables
    nbytes: Ints  # [m]
    latency_s: Floats  # [D, D]
    seconds_per_byte: Floats  # [D, D]
    trainable_bytes: Ints  # [n]
    device: DeviceSeconds
    unit_of: Ints  # [n] as the instance has it; a node that is in none of the graph's is one alone
    units: Packed  # -> nodes
    weights: Packed  # [n] -> parameters that the optimiser changes
    weight_bytes: Ints  # [parameters]
    lasting: NDArray[np.bool_]  # [m] sent once for all micro-batches (`Program.lasting`)
    turns: Ints  # [2] kind of schedule, micro-batches


@inlined
def moving_s(u: int, p: int, q: int, a: Arrays) -> float:
    """Seconds of a variable's transfer from p to q."""
    return a.latency_s[p, q] + a.nbytes[u] * a.seconds_per_byte[p, q]
