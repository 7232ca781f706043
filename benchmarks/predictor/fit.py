"""Rates fitted to measured profiles: what each class of operators reaches, in each of its passes.

    profiles ──► per class and pass: (FLOPs, bytes of variables, bytes of weights) ──► seconds
             ──► calls, fractions of both peaks, by least squares of log(predicted / measured)

A call costs more the more a step holds beside it, up to several times what the caches do: the next operator
finds neither its tensors nor its code there, and what the backward of a whole step takes beyond its nodes,
most of it for large parameters, is measured as theirs.

Errors count relatively, and large ones no more than in proportion: a profile has nodes of a microsecond,
whose seconds are mostly what the measurement could not take apart. Classes with few samples stay near the
fit of all classes together, which is the prior of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from netsplit.cluster.catalogue import Efficiency, Rates, crowding
from netsplit.files import write_json
from netsplit.graph.ir import Graph
from netsplit.profile.costs import NodeSeconds
from netsplit.profile.roofline import Pass, node_work, operator_class, step_bytes

if TYPE_CHECKING:
    Array = NDArray[np.float64]
else:
    Array = Any

__all__ = ["calibrate_rates", "write_rates"]

UNITS = np.array([1e-6, 1e-11, 1e-10, 1e-10, 1e-5, 1e-11])
"""Seconds of a call, a FLOP, a byte of variables, one of weights, of a call in a crowded step more, and of an
idle FLOP, on a typical thread: coefficients are multiples of these, so that all are near 1."""

CROWDED_BYTES = 96 * 2**20  # of a step: three times a large last-level cache

SMALLEST_S = 1e-7  # of a profile; nothing is cheaper
LARGE = 0.2  # of a relative error, from which it counts in proportion and no longer by its square
PRIOR = 0.05  # weight of the fit of all classes, in squared errors of one sample
FEWEST = 3  # samples of a class and pass, below which it has no fit of its own
STARTS = (np.zeros(6), np.array([1.5, -1.0, 1.0, 0.0, 1.0, 1.0]))  # logarithms, beside the prior
BEST = 1e-3  # smallest coefficient that a peak may be taken from

Sample = tuple[Array, float]  # features as of `_features`, seconds


def calibrate_rates(profiles: Sequence[tuple[Graph, Mapping[str, NodeSeconds]]], name: str) -> Rates:
    """Rates of a processor under which measured profiles are predicted best.

    Args:
        profiles: graphs with the measured seconds of every node, all on the same device.
        name: the device kind of the answer.

    Raises:
        ValueError: no profile.
    """
    if not profiles:
        raise ValueError("fitting rates needs at least one measured profile.")
    samples = _samples(profiles)
    coefficients: dict[str, Array] = {}
    for of in sorted({of for _, of in samples}):
        everything = [each for (_, other), group in samples.items() if other == of for each in group]
        common = _fit(everything, None)
        coefficients[f":{of}"] = common
        for (kind, other), group in samples.items():
            if other == of and len(group) >= FEWEST:
                coefficients[f"{kind}:{of}"] = _fit(group, common)
    coefficients[""] = coefficients[":forward"]
    return _rates(coefficients, name)


def _samples(
    profiles: Sequence[tuple[Graph, Mapping[str, NodeSeconds]]],
) -> dict[tuple[str, str], list[Sample]]:
    """Per class and pass what was done, and the seconds that it took."""
    samples: dict[tuple[str, str], list[Sample]] = {}

    def add(kind: str, of: str, done: Pass, seconds: float) -> None:
        samples.setdefault((kind, of), []).append((_features(done, crowded), max(seconds, SMALLEST_S)))

    for graph, seconds in profiles:
        crowded = crowding(step_bytes(graph), CROWDED_BYTES)
        for node in graph:
            kind, work, took = operator_class(graph, node), node_work(graph, node), seconds[node.name]
            add(kind, "forward", work.forward, took.forward_s)
            back = work.input + work.sums
            if work.has_backward and (back or not work.weight):
                add(kind, "input", back, took.backward_s - took.weight_s)
            if work.weight and took.weight_s > 0:
                add(kind, "weight", work.weight, took.weight_s)
    return samples


def _features(done: Pass, crowded: float) -> Array:
    return np.array([1.0, done.flops, done.nbytes, done.weight_bytes, crowded, done.idle_flops]) * UNITS


def _fit(samples: Sequence[Sample], prior: Array | None) -> Array:
    """Coefficients of the features, none below 0; 0 where no sample has the feature."""
    from scipy.optimize import least_squares

    done = np.array([features for features, _ in samples])
    took = np.log(np.array([seconds for _, seconds in samples]))
    used = done.max(axis=0) > 0
    start = np.zeros(len(UNITS)) if prior is None else np.log(np.where(prior > 0, prior, 1.0))
    pull = 0.0 if prior is None else np.sqrt(PRIOR)

    def promised(logs: Array) -> Array:
        seconds: Array = np.maximum(done @ (np.exp(logs) * used), SMALLEST_S / 100)
        return seconds

    def errors(logs: Array) -> Array:
        return np.concatenate([np.log(promised(logs)) - took, pull * (logs - start)])

    def slopes(logs: Array) -> Array:
        fractions: Array = done * (np.exp(logs) * used) / promised(logs)[:, None]
        return np.vstack([fractions, pull * np.eye(len(logs))])

    fits = [
        least_squares(errors, start + offset, slopes, loss="soft_l1", f_scale=LARGE, max_nfev=100)
        for offset in STARTS
    ]
    coefficients: Array = np.exp(min(fits, key=lambda fit: float(fit.cost)).x) * used
    return coefficients


def _rates(coefficients: Mapping[str, Array], name: str) -> Rates:
    """Peaks are what the best class reaches, and fractions are of them."""
    call = (
        coefficients["elementwise:forward"][0]
        if "elementwise:forward" in coefficients
        else coefficients[""][0]
    )
    launch_s = float(max(call, BEST) * UNITS[0])
    products = [
        c[1] for key, c in coefficients.items() if c[1] > BEST and ("convolution" in key or "matmul" in key)
    ]
    flops = 1.0 / (min(products, default=1.0) * UNITS[1])
    bandwidth = 1.0 / (min((c[2] for c in coefficients.values() if c[2] > BEST), default=1.0) * UNITS[2])

    def efficiency(c: Array) -> Efficiency:
        peaks = (flops, bandwidth, bandwidth, flops)
        compute, memory, weights, idle = (
            1.0 / (max(float(c[i]), 1e-12) * UNITS[i] * peak)
            for i, peak in zip((1, 2, 3, 5), peaks, strict=True)
        )
        calls, crowded = (float(c[i] * UNITS[i]) / launch_s for i in (0, 4))
        return Efficiency(compute, memory, calls, weights, crowded, idle)

    efficiencies = {key: efficiency(c) for key, c in coefficients.items()}
    return Rates(
        name,
        float(flops),
        float(bandwidth),
        launch_s,
        efficiencies,
        overlaps=False,
        crowded_bytes=CROWDED_BYTES,
    )


def write_rates(rates: Rates, path: str | Path) -> None:
    """A file that `netsplit.cluster.catalogue.read_rates` reads; whole or not at all."""
    write_json(path, asdict(rates))
