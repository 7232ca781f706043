"""A placement from JSON: the `placement.json` of a comparison, the `result.json` of `runners.partition`."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from netsplit.errors import ConfigError, RewriteError
from netsplit.files import parsed_json
from netsplit.graph.quotient import topological_priority
from netsplit.partition.base import Problem
from netsplit.placement.exchange import Exchange
from netsplit.placement.placement import Placement, Shard, ShardName, SolverReport, Stage
from netsplit.planning.verify import verify
from netsplit.rewrite.records import rewrite_from

__all__ = ["read_placement"]

log = logging.getLogger(__name__)


def read_placement(path: str | Path, problem: Problem, key: str = "placement") -> Placement:
    """Read and verify; it may exceed the capacities, and need not be contiguous.

    Without an order it has that of the graph, without stages no replicas, and all activations are kept unless
    it says what is recomputed.

    Args:
        problem: whose nodes and devices it must have.
        key: where the path was given, for errors.

    Raises:
        ConfigError: no such file, no placement, one of another graph or cluster, or one that breaks a rule.
    """
    where = f"{key} is '{path}'"
    try:
        values = parsed_json(Path(path).read_text(encoding="utf-8"))
        placement = _parsed(values)
    except FileNotFoundError as error:
        raise ConfigError(f"{where}, which does not exist.") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{where}, which is not a placement.json or result.json ({error}).") from error
    try:
        problem = problem.rewritten(placement.rewrites)
    except RewriteError as error:
        raise ConfigError(f"{where}, whose rewrites are for another graph: {error}") from error
    _require_same_names(placement, problem, where)
    if absent := [name for name in ("priority", "stages") if name not in values]:
        log.warning("%s has no %s: each device runs its nodes in graph order.", path, " and no ".join(absent))
    graph = problem.graph
    priority = placement.priority or topological_priority(graph, graph.position)
    placement = replace(placement, priority=priority)
    free = replace(problem, objective=problem.objective.relaxed())
    if wrong := verify(free, placement, capacity=False).violations:
        raise ConfigError(f"{where}, which is not valid: {wrong[0]}")
    return placement


def _parsed(values: Any) -> Placement:
    if values.get("alike"):
        raise ValueError("it is of one rank of each stage of a uniform plan: give the method mesh instead")
    return Placement(
        str(values.get("method", "given")),
        {str(node): str(device) for node, device in values["device_of"].items()},
        _priority(values.get("priority") or {}),
        SolverReport("heuristic", 0.0),
        tuple(
            Stage(
                tuple(map(str, stage["nodes"])),
                tuple(map(str, stage["devices"])),
                int(stage.get("warm_up", 0)),
                tuple(map(int, stage.get("turns") or ())),
            )
            for stage in values.get("stages") or ()
        ),
        tuple(map(str, values.get("cuts") or ())),
        frozenset(map(str, values.get("recomputed") or ())),
        tuple(rewrite_from(each) for each in values.get("rewrites") or ()),
        tuple(Exchange.from_dict(each) for each in values.get("exchanges") or ()),
        tuple(
            Shard(
                tuple(map(str, each["devices"])),
                _level(each["level"]),
                tuple(map(str, each.get("cuts") or ())),
            )
            for each in values.get("shards") or ()
        ),
        tuple(map(str, values.get("begins") or ())),
    )


def _level(given: Any) -> ShardName:
    if given not in get_args(ShardName):
        raise ValueError(f"its shard level is {given!r}: give one of {', '.join(get_args(ShardName))}")
    level: ShardName = given
    return level


def _priority(given: Any) -> dict[str, int]:
    """Ranks by node, from such a mapping or from the nodes in order."""
    if isinstance(given, dict):
        return {str(node): int(rank) for node, rank in given.items()}
    return {str(node): rank for rank, node in enumerate(given)}


def _require_same_names(placement: Placement, problem: Problem, where: str) -> None:
    strange = sorted(placement.device_of.keys() ^ problem.graph.nodes.keys())
    if strange:
        raise ConfigError(f"{where}, made for another graph: node '{strange[0]}' is in only one of them.")
    if cut := sorted({*placement.cuts, *placement.begins} - problem.graph.nodes.keys()):
        raise ConfigError(f"{where}, whose cut '{cut[0]}' is not a node of the graph.")
    devices = [device.name for device in problem.cluster.devices]
    used = [
        *placement.device_of.values(),
        *(device for stage in placement.stages for device in stage.devices),
    ]
    absent = next((device for device in used if device not in devices), None)
    if absent is not None:
        raise ConfigError(f"{where}, which uses device '{absent}': the cluster has {', '.join(devices)}.")
