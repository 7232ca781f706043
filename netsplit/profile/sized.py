"""Costs at any number of samples, of what two sizes of micro-batches took, and all sizes in turn.

    seconds of an operator at n samples = (a + b n) f(n)     a, b: through what two sizes took
                                                             f: what all of n samples took beside others

A batch in large micro-batches leaves the caches, one in small ones is all overhead, and in between it takes
less than a line says: the factor is of the whole model, measured in turn for all sizes, and 1 at one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from netsplit.profile.costs import Costs, DeviceCosts, NodeBytes, NodeSeconds, TurnSeconds

__all__ = ["SizeSeconds", "beside", "between", "together"]

TINY_S = 1e-12  # no step takes less

SizeSeconds = dict[str, TurnSeconds]
"""By device kind."""


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
        return replace(
            many,
            nodes={
                name: NodeSeconds(
                    at(few.nodes[name].forward_s, each.forward_s),
                    at(few.nodes[name].backward_s, each.backward_s),
                    at(few.nodes[name].weight_s, each.weight_s),
                )
                for name, each in many.nodes.items()
            },
            transients=_transients(few.transients, many.transients, at),
        )

    devices = {kind: on(low.devices[kind], each) for kind, each in high.devices.items()}
    return replace(high, devices=devices)


def beside(line: Costs, usual_line: Costs, took: SizeSeconds, samples: int, usual: int) -> Costs:
    """Costs at a number of samples, whose seconds add up to what that many took beside the usual number.

    How devices slow one another is what whole micro-batches of that many samples took in company, where that
    was measured.

    Args:
        line, usual_line: as two sizes say, of that many samples and of the usual number.
    """

    def paced(kind: str, own: DeviceCosts) -> DeviceCosts:
        turns = took.get(kind, TurnSeconds())
        if turns.contention:
            own = replace(own, contention=_inside(turns.contention, samples), unsure=False)
        known = turns.seconds
        if usual not in known or len(known) < 2:
            return own
        at = _interpolated(known, samples) / known[usual]
        said = _seconds(own) / max(_seconds(usual_line.devices[kind]), TINY_S)
        factor = at / said if said else 1.0
        nodes = {
            name: NodeSeconds(factor * each.forward_s, factor * each.backward_s, factor * each.weight_s)
            for name, each in own.nodes.items()
        }
        return replace(own, nodes=nodes)

    return replace(line, devices={kind: paced(kind, own) for kind, own in line.devices.items()})


def _seconds(costs: DeviceCosts) -> float:
    return sum(each.forward_s + each.backward_s for each in costs.nodes.values())


def _interpolated(known: Mapping[int, float], samples: int) -> float:
    """Interpolates between the sizes next to it; beyond all, as the nearest is, by the sample."""
    nearest = min(max(samples, min(known)), max(known))
    return _inside(known, nearest) * samples / nearest


def _inside(known: Mapping[int, float], samples: int) -> float:
    """Interpolates between the sizes next to it; beyond all, the nearest's."""
    samples = min(max(samples, min(known)), max(known))
    fewer, more = max(n for n in known if n <= samples), min(n for n in known if n >= samples)
    part = (samples - fewer) / (more - fewer) if more > fewer else 0.0
    return known[fewer] + part * (known[more] - known[fewer])


def _transients(
    few: Mapping[str, NodeBytes], many: Mapping[str, NodeBytes], at: Callable[[float, float], float]
) -> dict[str, NodeBytes]:
    none = NodeBytes()
    return {
        name: NodeBytes(
            round(at(few.get(name, none).forward, many.get(name, none).forward)),
            round(at(few.get(name, none).backward, many.get(name, none).backward)),
        )
        for name in dict.fromkeys([*many, *few])
    }
