"""Two plans of one problem compared: what moved, and what the objective's seconds go to before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from netsplit.errors import ConfigError
from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Instance, interchangeable_devices
from netsplit.placement.placement import Placement
from netsplit.planning.explanation.change import PlacementChange
from netsplit.planning.explanation.notation import listed, percent, seconds, wrapped
from netsplit.planning.explanation.parts import restated

__all__ = ["PlanDiff", "played_devices", "with_devices"]

SAME = 1e-9  # relative: sums of floats in another order


@dataclass(frozen=True)
class PlanDiff:
    """What differs between two plans. Devices have the names of the first."""

    before: str  # methods
    after: str
    before_s: float  # the objective
    after_s: float
    made_of_before: Mapping[str, float]  # as in `Explanation`
    made_of_after: Mapping[str, float]
    played: Mapping[str, str]  # device of the second -> the equal device of the first whose part it plays
    change: PlacementChange

    def lines(self, top: int = 8) -> list[str]:
        """Readable text of at most 100 columns."""
        lines = wrapped(f"{self.before} to {self.after}: {_verdict(self.before_s, self.after_s)}")
        for name, change in self._changes()[:top]:
            sign = "+" if change > 0 else "-"
            lines.append(f"    {sign + seconds(abs(change)):>12}  {name}")
        other = [f"{q} is {p}" for q, p in self.played.items() if p != q]
        told = [f"equal devices under other names: {', '.join(other)}"] if other else []
        for text in (*told, *self.change.lines):
            lines += wrapped(text, "  ", "      ")
        return lines

    def _changes(self) -> list[tuple[str, float]]:
        """What the seconds go to, and how many more than before; the greatest change first."""
        names = dict(self.made_of_before) | dict(self.made_of_after)
        each = {k: self.made_of_after.get(k, 0.0) - self.made_of_before.get(k, 0.0) for k in names}
        least = SAME * self.before_s
        return sorted(((k, s) for k, s in each.items() if abs(s) > least), key=lambda item: -abs(item[1]))

    def to_dict(self) -> dict[str, Any]:
        """Numbers, strings, lists and mappings only."""
        return asdict(self)


def _verdict(before: float, after: float) -> str:
    if abs(after - before) <= SAME * before:
        return f"the objective stays at {seconds(before)}"
    pays = "it pays" if after < before else "it does not pay"
    return f"{pays}, {seconds(before)} to {seconds(after)} ({percent(after - before, before)})"


def played_devices(problem: Problem, before: Placement, after: Placement) -> dict[str, str]:
    """Device of `after` -> the equal device of `before` whose part it plays, so that as little as possible
    moves (an assignment problem).

    Args:
        problem: of the graph with the rewrites of `after`.

    Raises:
        ConfigError: the placements are of other devices.
    """
    from scipy.optimize import linear_sum_assignment

    here = before if before.rewrites == after.rewrites else restated(before, problem.graph)
    instance = Instance.of(problem)
    if strange := sorted({*here.device_of.values()} - {*instance.devices}):
        raise ConfigError(
            f"one plan is for {listed(strange)}, the other for {listed(instance.devices)}: give plans for "
            "the same devices."
        )
    old, new = instance.encode(here.device_of), instance.encode(after.device_of)
    weight = np.full(instance.n, 1.0 / max(instance.n, 1))
    for each in ((instance.forward_s + instance.backward_s).max(axis=1), instance.state_bytes):
        weight += each / max(float(each.sum()), 1e-300)
    common = np.zeros((len(instance.devices),) * 2)
    np.add.at(common, (new, old), weight)
    played: dict[str, str] = {}
    for alike in interchangeable_devices(instance):
        rows, columns = linear_sum_assignment(common[np.ix_(alike, alike)], maximize=True)
        played |= {
            instance.devices[alike[q]]: instance.devices[alike[p]] for q, p in zip(rows, columns, strict=True)
        }
    return played


def with_devices(placement: Placement, names: Mapping[str, str]) -> Placement:
    """The same with its devices under other names."""
    stages = tuple(
        replace(stage, devices=tuple(names[each] for each in stage.devices)) for stage in placement.stages
    )
    device_of = {node: names[device] for node, device in placement.device_of.items()}
    return replace(placement, device_of=device_of, stages=stages)
