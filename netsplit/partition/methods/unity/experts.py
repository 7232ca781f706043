"""What an expert would fix before the programme decides the rest.

data parallelism, columns and rows ──► numbers of choices of some operators, for `best_mapping`
hosts ──► stages of a pipeline ──► operator -> devices
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product

from netsplit.errors import InfeasibleError, ModelSizeError, TimeLimitError
from netsplit.graph.ir import Graph
from netsplit.partition.base import Problem
from netsplit.partition.methods.pipedream.pipedream import PipeDream
from netsplit.partition.methods.unity.choices import TaskAxis, TaskKind
from netsplit.partition.methods.unity.costed import Costed, Devices
from netsplit.rewrite import columns_and_rows

__all__ = ["Wanted", "chosen_before", "stages_of_hosts", "wanted_by_experts", "widest_cut"]

WIDE = 0.5  # times the bytes of the widest chain, from which others are cut with it
STAGES = PipeDream(straight=True, max_states=400)

Wanted = Callable[[str, TaskAxis], bool]
"""Whether an operator is to be cut along an axis."""


def wanted_by_experts(graph: Graph) -> Iterator[tuple[str, Wanted]]:
    """What it is called, and what it is."""
    yield "data parallelism", lambda _, axis: axis.dimension == "samples"
    if columns := {v: c for chain in columns_and_rows(graph) if chain.chained for v, c in chain.cuts.items()}:
        yield (
            "columns and rows",
            lambda v, axis: v in columns and (columns[v].axis, columns[v].blocks) == (axis.axis, axis.blocks),
        )


def widest_cut(graph: Graph, devices: int) -> dict[str, TaskKind]:
    """Operator -> its tasks, so many each, of those whose weights are the widest; all else is whole."""
    chains = columns_and_rows(graph)
    widest = max((each.weight_bytes for each in chains), default=0)
    cuts = [each.cuts for each in chains if each.weight_bytes >= WIDE * widest]
    return {v: ((cut.axis, cut.blocks, devices),) for own in cuts for v, cut in own.items()}


def chosen_before(costed: Costed, wanted: Wanted) -> dict[str, int]:
    """Operator -> number of its choice, of those that can be cut so over all devices that they may be on."""
    every = tuple(range(len(costed.machines.cluster.devices)))
    made: dict[str, int] = {}
    for v, vertex in enumerate(costed.vertices):
        group = costed.stages.get(vertex.name, every)
        for i, choice in enumerate(costed.options(v, every).choices):
            own = choice.axes[0] if len(choice.axes) == 1 else None
            if choice.view.devices == group and own is not None and wanted(vertex.name, own[0]):
                made.setdefault(vertex.name, i)
    return made


def stages_of_hosts(problem: Problem, hosts: Sequence[int]) -> dict[str, Devices]:
    """Operator -> the devices of its stage; none where there is one host, or a pipeline is not foreseen to
    gain."""
    groups = [tuple(p for p, own in enumerate(hosts) if own == host) for host in dict.fromkeys(hosts)]
    if not 1 < len(groups) < len(hosts):
        return {}
    cluster = problem.cluster
    of = {cluster.names[each[0]]: each for each in groups}
    devices = tuple(
        replace(each, capacity_bytes=sum(cluster.devices[p].capacity_bytes for p in of[each.name]))
        for each in cluster.devices
        if each.name in of
    )
    links = {pair: cluster.links[pair] for pair in product(of, of) if pair in cluster.links}
    nics = tuple(replace(nic, devices=tuple(d for d in nic.devices if d in of)) for nic in cluster.nics)
    own = replace(cluster, devices=devices, links=links, levels=(), nics=nics)
    asked = replace(problem, cluster=own, simulator=None, improved=None, known=None, meter=None)
    with suppress(InfeasibleError, ModelSizeError, TimeLimitError):
        first_of = STAGES.partition(asked).device_of
        if len({*first_of.values()}) > 1:
            return {name: of[first] for name, first in first_of.items()}
    return {}
