"""Costs at any number of samples, of what two sizes of micro-batches took, and all sizes in turn.

    seconds of an operator at n samples = (a + b n) f(n)     a, b: through what two sizes took
                                                             f: what all of n samples took beside others

A batch in large micro-batches leaves the caches, one in small ones is all overhead, and in between it takes
less than a line says: the factor is of the whole model, measured in turn for all sizes, and 1 at one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, replace

import numpy as np

from netsplit.profile.costs import Costs, DeviceCosts, NodeBytes, NodeSeconds

__all__ = ["SizeSeconds", "beside", "between", "together"]

TINY_S = 1e-12  # no step takes less

SizeSeconds = Mapping[str, Mapping[int, float]]
"""Device kind -> samples -> seconds of a whole micro-batch, forward and backward."""


def together(alone: Costs, known: Costs) -> Costs:
    """Costs of single devices, with how they slow one another as is known of another size."""
    devices = {
        kind: replace(
            each,
            contention=(other := known.devices[kind]).contention,
            unsure=other.unsure,
            message_s=other.message_s,
            copy_s_per_byte=other.copy_s_per_byte,
        )
        for kind, each in alone.devices.items()
    }
    return replace(alone, devices=devices)


def between(low: Costs, high: Costs, small: int, large: int, samples: int) -> Costs:
    """Costs at a number of samples, on the line through those at two; all else is as at the larger.

    Seconds and bytes do not fall as samples rise, and are none below zero.
    """
    part = (samples - small) / (large - small) if large > small else 1.0

    def at(first: float, last: float) -> float:
        return max(min(first, last), 0.0) if last <= first else max(first + part * (last - first), 0.0)

    def on(few: DeviceCosts, many: DeviceCosts) -> DeviceCosts:
        nodes = {
            name: NodeSeconds(*map(at, astuple(few.nodes[name]), astuple(each)))
            for name, each in many.nodes.items()
        }
        none, transients = NodeBytes(), dict[str, NodeBytes]()
        for name in dict.fromkeys([*many.transients, *few.transients]):
            ends = (astuple(each.transients.get(name, none)) for each in (few, many))
            transients[name] = NodeBytes(*map(round, map(at, *ends)))
        return replace(many, nodes=nodes, transients=transients)

    devices = {kind: on(low.devices[kind], each) for kind, each in high.devices.items()}
    return replace(high, devices=devices)


def beside(line: Costs, usual_line: Costs, took: SizeSeconds, samples: int, usual: int) -> Costs:
    """Costs at a number of samples, whose seconds add up to what that many took beside the usual number.

    Between the sizes that were measured it interpolates; beyond all of them, as the nearest, by the sample.

    Args:
        line, usual_line: as two sizes say, of that many samples and of the usual number.
    """

    def paced(kind: str, own: DeviceCosts) -> DeviceCosts:
        known = took.get(kind, {})
        said = sum(each.total_s for each in own.nodes.values())
        if usual not in known or len(known) < 2 or not said:
            return own
        nearest = min(max(samples, min(known)), max(known))
        at = float(np.interp(nearest, sorted(known), [known[n] for n in sorted(known)])) * samples / nearest
        usual_s = sum(each.total_s for each in usual_line.devices[kind].nodes.values())
        speed = said / max(usual_s, TINY_S) * known[usual] / at
        return replace(own, nodes={name: each.scaled(speed) for name, each in own.nodes.items()})

    return replace(line, devices={kind: paced(kind, own) for kind, own in line.devices.items()})
