"""Why a plan is as it is: what every device does and holds, what is cut, what binds, the critical path.

placement, timeline ──► explain ──► Explanation ──► .lines()    for people, 100 columns
                                                └─► .to_dict()  for a file
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from netsplit.partition.base import Placement, Problem
from netsplit.partition.common.instance import Instance
from netsplit.planning.explanation.binding import load_binding, path_binding, stages_binding
from netsplit.planning.explanation.explanation import Explanation
from netsplit.planning.explanation.parts import placed_splits
from netsplit.planning.explanation.path import PathSpan, critical_path, overheads, predicted
from netsplit.planning.explanation.uses import cut_edges, device_uses

if TYPE_CHECKING:  # explaining a plan of a file loads neither room
    from netsplit.program.instructions import Program
    from netsplit.simulate.timeline import Timeline

__all__ = ["explain"]


def explain(
    problem: Problem,
    placement: Placement,
    timeline: Timeline | None = None,
    program: Program | None = None,
) -> Explanation:
    """Explain a placement.

    Args:
        timeline: predicted, of the placement. None: `problem.evaluate` is asked; `max_load` needs none.
        program: the program that was simulated; without it segments on the critical path have no names.

    Raises:
        ValueError: a latency without a timeline, and without a way to get one.
    """
    instance = Instance.of(problem)
    where = instance.encode(placement.device_of)
    cuts = cut_edges(instance, where)
    path: tuple[PathSpan, ...] = ()
    loads = problem.objective.loads(problem, placement)
    if loads is not None:
        objective_s, uses = loads.period_s, device_uses(instance, placement, loads)
        binding = (stages_binding if loads.stages else load_binding)(loads, instance.devices)
    else:
        timeline = predicted(problem, placement) if timeline is None else timeline
        if timeline is None:
            raise ValueError("a timeline is needed to explain a latency")
        objective_s, uses = timeline.iteration_s, device_uses(instance, placement, timeline)
        path = critical_path(timeline, program, *overheads(problem.cluster, problem.costs), problem.cluster)
        binding = path_binding(instance, path, objective_s)
    return Explanation(
        method=placement.method,
        objective=problem.objective,
        objective_s=objective_s,
        devices=uses,
        cuts=cuts,
        binding=binding,
        path=path,
        stages=placement.stages,
        recomputed=_recomputed(instance, placement),
        splits=placed_splits(placement, problem.graph),
        exchanges=placement.exchanges,
    )


def _recomputed(instance: Instance, placement: Placement) -> tuple[tuple[str, tuple[str, ...]], ...]:
    nodes: dict[str, list[str]] = {device: [] for device in instance.devices}
    for name in instance.names:
        if name in placement.recomputed:
            nodes[placement.device_of[name]].append(name)
    return tuple((device, tuple(own)) for device, own in nodes.items() if own)
