"""A static predictor of seconds: the work of every operator, counted, on a device known by a few rates.

    seconds of a pass = calls · launch + the larger of  FLOPs / (peak · share reached)
                                                        bytes / (bandwidth · share reached)

This is the roofline (Williams, Waterman, Patterson, CACM 52(4), 2009) with a share of both peaks for each
class of operators, and the fixed cost of a call. A device that computes while it waits for memory takes the
larger of the two; one thread of a processor takes their sum. Shares are given for a device that is not here
(`cluster.catalogue`), or fitted to measured profiles (`calibrate_rates`, in `profile.roofline_fit`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from netsplit.cluster.rates import Rates
from netsplit.graph.deferrable import deferrable_nodes
from netsplit.graph.ir import Graph
from netsplit.profile.costs import Costs, NodeSeconds
from netsplit.profile.flops import Work, node_work, operator_class

__all__ = [
    "PASSES",
    "calibrate_rates",
    "operator_class",
    "predicted_costs",
    "predicted_seconds",
]

PASSES = ("forward", "input", "weight")
"""Forward, gradients of variables, gradients of parameters: keys of efficiencies are a class, a class and a
pass as in ``"convolution:weight"``, or a pass of any class as in ``":weight"``."""

AT_MOST = 0.95  # of a backward can be put off: its input part is never nothing


def predicted_costs(graph: Graph, kinds: Mapping[str, Rates], alpha: int) -> Costs:
    """Seconds of every node on every device kind, of an optimiser's step and of an instruction.

    A step reads the parameter, its gradient and its moments and writes all but the gradient: 2 alpha - 1
    passes over the bytes of the parameters.

    Args:
        kinds: device kind -> its rates.
        alpha: bytes of training state per byte of parameter (`Costs.alpha`).
    """
    works = {node.name: (operator_class(graph, node), node_work(graph, node)) for node in graph}
    later = deferrable_nodes(graph)
    moving = {kind: 1.0 / (r.bandwidth * r.shares("elementwise").memory) for kind, r in kinds.items()}
    return Costs(
        {
            kind: {
                name: _node_seconds(rates, cls, work, name in later) for name, (cls, work) in works.items()
            }
            for kind, rates in kinds.items()
        },
        alpha,
        step_seconds_per_byte={kind: (2 * alpha - 1) * each for kind, each in moving.items()},
        instruction_s={kind: rates.launch_s for kind, rates in kinds.items()},
        accumulate_s_per_byte={kind: 3 * each for kind, each in moving.items()},
    )


def predicted_seconds(graph: Graph, rates: Rates) -> dict[str, NodeSeconds]:
    """Of every node on one device."""
    return predicted_costs(graph, {rates.name: rates}, alpha=2).seconds[rates.name]


def _node_seconds(rates: Rates, kind: str, work: Work, deferrable: bool) -> NodeSeconds:
    forward_s = rates.seconds(kind, "forward", work.forward)
    if not work.has_backward:
        return NodeSeconds(forward_s, 0.0)
    back = work.input + work.sums
    weight_s = rates.seconds(kind, "weight", work.weight) if work.weight else 0.0
    backward_s = weight_s + (rates.seconds(kind, "input", back) if back or not work.weight else 0.0)
    return NodeSeconds(forward_s, backward_s, min(weight_s, AT_MOST * backward_s) if deferrable else 0.0)


def calibrate_rates(profiles: Sequence[tuple[Graph, Mapping[str, NodeSeconds]]], name: str) -> Rates:
    """Rates of a processor under which measured profiles are predicted best (`profile.roofline_fit`).

    Args:
        profiles: graphs with the measured seconds of every node, all on the same device.
        name: the device kind of the answer.

    Raises:
        ValueError: no profile.
    """
    from netsplit.profile.roofline_fit import fitted_rates

    return fitted_rates(profiles, name)
