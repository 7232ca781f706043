"""Activation checkpoints of the model's own: what a segment keeps of them, and what it makes again.

    forward     a ─► b ─► c ─► d    one function, of which the arguments stay
    backward    d │ a b c again, to the last of them that saves │ c, b, a go back │ the arguments go

The runtime computes every run of consecutive nodes of a checkpoint as one such function (`graph.module`).
It is made again where the first node that saves anything goes back. What is saved then goes as the nodes go
back; the arguments go after the last of those that save anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType

from netsplit.graph.ir import Graph, Node
from netsplit.graph.storage import storage_of
from netsplit.profile.costs import NodeBytes
from netsplit.rewrite.layouts import stand_in_run

__all__ = ["CheckpointRun", "checkpoint_runs", "forward_peak"]


@dataclass(frozen=True)
class CheckpointRun:
    """Consecutive nodes of one checkpoint of the model's own, within a segment."""

    nodes: tuple[Node, ...]
    arguments: frozenset[str]  # storages that come from outside
    saving: Mapping[str, frozenset[str]]  # nodes that save anything, in order -> storages that are made again
    extra: Mapping[str, int]  # of these, bytes of what else they save
    peak: int  # bytes, beside all that is there, while it is made again

    @property
    def last_back(self) -> str:
        """The node that goes back last of those that save anything, the first of them; "" if none does."""
        return next(iter(self.saving), "")


def checkpoint_runs(
    graph: Graph,
    nodes: Sequence[Node],
    outputs: Collection[str],
    own: Mapping[str, int],
    transients: Mapping[str, NodeBytes],
) -> tuple[CheckpointRun, ...]:
    """Those of a segment.

    Args:
        nodes, outputs: of the segment, nodes in order.
        own: `storage_bytes` of the graph.
        transients: what nodes allocate for themselves.
    """
    groups = groupby(nodes, lambda node: node.checkpoint)
    return tuple(_run(graph, tuple(group), outputs, own, transients) for name, group in groups if name)


def _run(
    graph: Graph,
    nodes: tuple[Node, ...],
    outputs: Collection[str],
    own: Mapping[str, int],
    transients: Mapping[str, NodeBytes],
) -> CheckpointRun:
    made = [k for node in nodes for k in node.outputs if k]
    arguments = _roots(graph, (k for node in nodes for k in node.inputs if k not in made))
    produced = _roots(graph, made) - arguments
    saving: dict[str, frozenset[str]] = {}
    extra: dict[str, int] = {}
    for node in nodes:
        run = stand_in_run(graph, node.name)
        if run is None:  # all that can be
            saving[node.name], extra[node.name] = _roots(graph, (*node.inputs, *node.outputs)) & produced, 0
        elif run.saves:
            saving[node.name], extra[node.name] = _roots(graph, run.saved) & produced, run.saved_bytes
    peak = 0
    if saving:  # torch stops once all is there that is saved, which may be before the result of the last
        inside = {node.name for node in nodes}
        needed = {k for k in made if _leaves(graph, k, outputs, inside)}
        *_, last = saving
        again = nodes[: 1 + next(i for i, node in enumerate(nodes) if node.name == last)]
        results = _roots(graph, again[-1].outputs)
        counted = again[:-1] if not extra[last] and results.isdisjoint(saving[last]) else again
        new = produced & _roots(graph, (k for node in counted for k in node.outputs))
        staying = _roots(graph, needed).union(*saving.values())
        peak = forward_peak(graph, again, new, staying, own, extra, transients)
    return CheckpointRun(nodes, arguments, saving, extra, peak)


def _leaves(graph: Graph, k: str, outputs: Collection[str], inside: Collection[str]) -> bool:
    return k in outputs or any(name not in inside for name in graph.variables[k].consumers)


def _roots(graph: Graph, variables: Iterable[str]) -> frozenset[str]:
    return frozenset(storage_of(graph, k) for k in variables if k)


_NONE = NodeBytes()


def forward_peak(
    graph: Graph,
    nodes: Sequence[Node],
    produced: Collection[str],
    staying: Collection[str],
    own: Mapping[str, int],
    extra: Mapping[str, int],
    transients: Mapping[str, NodeBytes],
    held: Mapping[str, Collection[str]] = MappingProxyType({}),
    leaving: bool = False,
) -> int:
    """Of storages that the nodes make, beside all that is there before.

    Args:
        nodes: in order.
        produced: the storages that count.
        staying: those among them that do not go after the last node that reads them.
        own: bytes of storages.
        extra: of nodes, bytes of what else they save.
        transients: what they allocate for themselves, with that.
        held: node -> storages that are read until it is over, too.
        leaving: what else a node saves goes with it.
    """
    last = {
        root: node.name
        for node in nodes
        for root in (
            *(storage_of(graph, k) for k in (*node.inputs, *filter(None, node.outputs))),
            *held.get(node.name, ()),
        )
    }
    dying: dict[str, list[str]] = {}
    for root in set(produced).difference(staying):
        dying.setdefault(last[root], []).append(root)
    seen: set[str] = set()
    now = peak = 0
    for node in nodes:
        made = {storage_of(graph, k) for k in node.outputs if k}.intersection(produced) - seen
        seen |= made
        saved = extra.get(node.name, 0)
        now += sum(own[root] for root in made) + saved
        peak = max(peak, now, now - saved + transients.get(node.name, _NONE).forward)
        now -= sum(own[root] for root in dying.get(node.name, ()))
        now -= saved if leaving else 0
    return peak
