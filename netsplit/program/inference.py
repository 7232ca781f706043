"""Where the operators of other captures go, of prediction too, given where the training graph's went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import replace

from netsplit.errors import RewriteError
from netsplit.graph.ir import Graph, Node
from netsplit.placement.priority import topological_priority
from netsplit.rewrite.algebra.matching import match_of
from netsplit.rewrite.algebra.record import Algebra
from netsplit.rewrite.records import Rewrite, algebra_of, folded
from netsplit.rewrite.rewriting import applied

__all__ = ["inference_placement", "like_priority", "like_recomputed", "like_rewritten"]

_Key = tuple[str, str, int]  # module, operator, how many times before


def inference_placement(training: Graph, inference: Graph, device_of: Mapping[str, str]) -> dict[str, str]:
    """Device of every node of `inference`, beside the tensors it uses.

    A node goes where the training graph's node of the same module, operator and occurrence is; where
    there is none, to what feeds it. Whoever uses a parameter goes to that parameter's device.
    """
    home = {k: device_of[node.name] for node in training for k in node.initializers}
    twin = dict(zip(_keys(training), training.nodes, strict=True))
    fallback = next(iter(device_of.values()))
    placed: dict[str, str] = {}
    for key, node in zip(_keys(inference), inference, strict=True):
        owners = [home[k] for k in node.initializers if k in home]
        feeders = [placed[u] for u in inference.predecessors[node.name]]
        if owners:
            placed[node.name] = owners[0]
        elif key in twin:
            placed[node.name] = device_of[twin[key]]
        else:
            placed[node.name] = feeders[0] if feeders else fallback
    for group in inference.colocated:
        owners = [home[k] for name in group for k in inference.nodes[name].initializers if k in home]
        placed.update(dict.fromkeys(group, owners[0] if owners else placed[group[0]]))
    return placed


def like_rewritten(captured: Graph, training: Graph, other: Graph, more: Graph | None = None) -> Graph:
    """Another capture with those operators in parts whose likes in training are, where it can have them.

    It then reads the parts of parameters that training has; what it reads whole is put together of them.
    Where its own parts would be others (fewer samples than parts of them), all operators are whole.

    Args:
        captured: the training graph before its rewrites.
        training: and after them.
        more: the same step as `other` at more samples, as captured: it has the same nodes, made like this.

    Raises:
        RewriteError: it cannot have the same nodes.
    """
    rewrites = _likewise(captured, training, more or other)
    like = None if more is None else applied(more, rewrites, scaled=True)
    parts = [
        init for init in training.initializers.values() if init.region is not None and not init.region.copy
    ]
    return applied(other, rewrites, like, scaled=True, parts=parts)


def _likewise(captured: Graph, training: Graph, other: Graph) -> tuple[Rewrite, ...]:
    """The rewrites of training, of the likes of its operators; none where parts would be others."""
    twin = dict(zip(_keys(other), other.nodes, strict=True))
    like = {name: twin.get(key, "") for name, key in zip(captured.nodes, _keys(captured), strict=True)}
    rewrites: list[Rewrite] = [*_algebra_likewise(captured, algebra_of(training.rewrites), other, like)]
    for name, tasks in folded(training.rewrites).items():
        if like.get(name):
            rewrites.append(replace(tasks, node=like[name]))
    try:
        same = applied(other, rewrites, scaled=True).regions.keys() <= training.regions.keys()
    except RewriteError:
        return ()
    return tuple(rewrites) if same else ()


def _algebra_likewise(
    before: Graph, algebra: tuple[Algebra, ...], other: Graph, like: dict[str, str]
) -> tuple[Algebra, ...]:
    """Of training's algebra what matches there.

    Args:
        like: of operators the names there, "" where there is none; gets those of what is made.
    """
    for i in range(len(algebra)):
        after = applied(before, algebra[: i + 1])
        match = match_of(
            other, replace(algebra[i], nodes=tuple(like.get(v, "") for v in algebra[i].nodes)), True
        )
        if match is not None:
            made = applied(other, (*other.rewrites, match.record))
            pairs = zip(_new(before, after), _new(other, made), strict=False)
            like |= {one.name: two.name for one, two in pairs if one.op == two.op}
            other = made
        before = after
    return algebra_of(other.rewrites)


def _new(before: Graph, after: Graph) -> list[Node]:
    return [node for node in after if node.name not in before.nodes]


def like_priority(training: Graph, other: Graph, priority: Mapping[str, int]) -> dict[str, int]:
    """A total order of another capture's nodes: that of their likes, after which come those without one."""
    twin = dict(zip(_keys(training), training.nodes, strict=True))
    rank: dict[str, int] = {}
    for key, node in zip(_keys(other), other, strict=True):
        fed = max((rank[u] for u in other.predecessors[node.name]), default=-1)
        rank[node.name] = priority[twin[key]] if key in twin else fed
    return topological_priority(other, rank)


def like_recomputed(training: Graph, other: Graph, recomputed: Set[str]) -> frozenset[str]:
    """The nodes of another capture whose likes are recomputed, and those without one that are fed by such."""
    twin = dict(zip(_keys(training), training.nodes, strict=True))
    chosen: set[str] = set()
    for key, node in zip(_keys(other), other, strict=True):
        feeders = other.predecessors[node.name]
        if twin[key] in recomputed if key in twin else bool(feeders) and chosen.issuperset(feeders):
            chosen.add(node.name)
    for unit in other.units:
        if not chosen.issuperset(unit):
            chosen.difference_update(unit)
    return frozenset(chosen)


def _keys(graph: Graph) -> list[_Key]:
    seen: Counter[tuple[str, str]] = Counter()
    keys = []
    for node in graph:
        keys.append((node.module, node.op, seen[node.module, node.op]))
        seen[node.module, node.op] += 1
    return keys
