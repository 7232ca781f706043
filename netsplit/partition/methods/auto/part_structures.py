"""What may be done to a graph so that devices share its operators, and where its parts are then.

on all devices, on one server, or in stages that are servers:  columns and rows, or data parallelism
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from netsplit import rewrite
from netsplit.cluster.cluster import Cluster
from netsplit.errors import InfeasibleError, ModelSizeError, TimeLimitError
from netsplit.graph.ir import Graph
from netsplit.partition.base import Problem
from netsplit.partition.common.side_by_side import linked_groups, side_by_side
from netsplit.partition.methods.pipedream.pipedream import PipeDream
from netsplit.rewrite.records import Rewrite

__all__ = ["StructureInParts", "equal_or_by_speed", "structures"]

WIDE = 0.5  # times the bytes of the widest chain, from which others are cut with it
STAGES = PipeDream(straight=True, max_states=400)

Beside = Mapping[str, Sequence[str]]
"""Node -> the devices of its parts; all of them, where it does not say."""


@dataclass(frozen=True)
class StructureInParts:
    """What may be done to a graph, in words and how."""

    origin: str
    parts: int  # of operators that it makes, about
    rewrites: Callable[[], tuple[Rewrite, ...]]
    beside: tuple[Beside, ...] = ({},)

    def places(self, graph: Graph, cluster: Cluster) -> list[dict[str, str]]:
        """Of the rewritten graph: node -> device, in each way."""
        return [side_by_side(graph, cluster, beside=each) for each in self.beside]


def structures(problem: Problem) -> Iterator[StructureInParts]:
    """Where devices are in groups of fast links: in as many parts as a group has devices, all on the first
    group, or each stage of a pipeline on another. Then in as many as there are devices, equal ones and as
    large as the devices are fast."""
    groups = linked_groups(problem.cluster)
    if len(groups) > 1 and len({len(each) for each in groups}) == 1 and len(groups[0]) > 1:
        beside = tuple(_in_groups(problem, groups))
        yield from _families(problem.graph, (1.0,) * len(groups[0]), ", servers apart", beside)
    for parts in equal_or_by_speed(problem):
        yield from _families(problem.graph, parts)


def equal_or_by_speed(problem: Problem) -> list[tuple[float, ...]]:
    """Proportions of parts: equal, and as large as devices are fast."""
    return list(dict.fromkeys([(1.0,) * len(problem.cluster.devices), _speeds(problem)]))


def _families(
    graph: Graph, parts: tuple[float, ...], where: str = "", beside: tuple[Beside, ...] = ({},)
) -> Iterator[StructureInParts]:
    cuts = rewrite.columns_and_rows(graph)
    widest = max((each.weight_bytes for each in cuts), default=0)
    chosen = {
        "columns and rows": [each for each in cuts if each.chained],
        "columns and rows of the widest": [each for each in cuts if each.weight_bytes >= WIDE * widest],
        "columns and rows of all weights": cuts,
    }
    families: dict[str, Callable[[tuple[float, ...]], tuple[Rewrite, ...]]] = {
        "data parallelism on copies": partial(rewrite.replicate, graph),
        "data parallelism on one set of weights": partial(rewrite.along_samples, graph),
    }
    for origin, each_of in chosen.items():
        some = [each for each in each_of if each.splits(parts)]
        count = len(parts) * sum(len(each.cuts) for each in some)
        made = partial(rewrite.splits_of, graph, some, parts)
        yield StructureInParts(origin + where, count, made, beside)
    for origin, family in families.items() if len(parts) <= graph.batch_size else ():
        yield StructureInParts(origin + where, len(parts) * len(graph), partial(family, parts), beside)


def _in_groups(problem: Problem, groups: Sequence[tuple[str, ...]]) -> Iterator[Beside]:
    """All on the first group; and runs of operators on one after another, where that is foreseen to gain."""
    yield dict.fromkeys(problem.graph.nodes, groups[0])
    of = {each[0]: each for each in groups}
    with suppress(InfeasibleError, ModelSizeError, TimeLimitError):
        first_of = STAGES.partition(_by_group(problem, groups)).device_of
        if len(set(first_of.values())) > 1:
            yield {name: of[first] for name, first in first_of.items()}


def _by_group(problem: Problem, groups: Sequence[tuple[str, ...]]) -> Problem:
    """With the first device of each group, which holds what all of them hold."""
    cluster, first = problem.cluster, {each[0]: each for each in groups}
    devices = tuple(
        replace(each, capacity_bytes=sum(cluster.device(name).capacity_bytes for name in first[each.name]))
        for each in cluster.devices
        if each.name in first
    )
    nics = tuple(replace(nic, devices=tuple(d for d in nic.devices if d in first)) for nic in cluster.nics)
    links = {pair: cluster.links[pair] for pair in product(first, first) if pair in cluster.links}
    own = replace(cluster, devices=devices, links=links, levels=(), nics=nics)
    return replace(problem, cluster=own, simulator=None, improved=None, known=None, meter=None)


def _speeds(problem: Problem) -> tuple[float, ...]:
    """Of the devices: how often each does everything in a second, beside the slowest."""
    costs = problem.costs
    seconds = {
        device.kind: sum(costs.total_s(name, device.kind) for name in problem.graph.nodes)
        for device in problem.cluster.devices
    }
    slowest = max(seconds.values())
    if min(seconds.values()) <= 0:
        return (1.0,) * len(problem.cluster.devices)
    return tuple(slowest / seconds[device.kind] for device in problem.cluster.devices)
