"""`pesto`: the Pesto baseline of the NetSplit thesis, extended to any number of devices (6-2)..(6-7).

    minimise makespan                                                                      (6-2)
    start(i) = 0 of entry nodes                                                            (6-3)
    end(i) = start(i) + seconds(i),  makespan >= end(i)                                    (6-4)
    sum_p place(g,p) = 1, place binary                                                     (6-5)
    commu = sum of place(i,p) place(j,q) F(i,j,p,q),  start(j) >= end(i) + commu     (6-6), (6-7)

Source: NetSplit thesis, section 6.2.1. It has neither the non-overlap nor the congestion rows of the
original (`pesto_full`), and sees the forward pass alone, which section 5.2.1 names as Pesto's flaw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from netsplit.partition.base import Problem
from netsplit.partition.engines.rows import Rows
from netsplit.partition.methods.thesis.formulation import Formulation, thesis_times
from netsplit.partition.methods.thesis.grouped import Grouped

__all__ = ["Pesto", "PestoFormulation", "forward_makespan"]


class PestoFormulation(Formulation):
    """(5-11)..(5-18) less everything about the backward pass: (6-2)..(6-7), and the memory of (5-18)."""

    passes = 1  # the rows of edges are (6-6), (6-7)

    def _add_start_rows(self, rows: Rows) -> None:
        """(6-3)."""
        for name in self.problem.graph.entry_nodes:
            rows.add([(self.start_fp + self.index[name], 1.0)], equal=True)

    def _add_makespan_rows(self, rows: Rows) -> None:
        """(6-4), of exit nodes: all others end before one of them."""
        for name in self.problem.graph.exit_nodes:
            terms, constant = self._seconds(name, "forward_s", 1.0)
            order = [(self.start_fp + self.index[name], 1.0), (self.makespan, -1.0)]
            rows.add([*order, *terms], -constant)


@dataclass(frozen=True)
class Pesto(Grouped):
    """The placement of co-placed groups with the shortest critical path of the forward pass.

    The thesis says of its baseline only that the indicator variables are as in NetSplit. What (6-2)..(6-7)
    leave open is therefore as there too: groups by co-placement (Algorithm 3, with twice the devices as
    the least number, doubled where groups cannot be packed), and memory, by (5-18) under ``memory=static``.

    The report's objective is the forward makespan in seconds.
    """

    name = "pesto"
    optimises = "forward makespan of one micro-batch, nodes of one device may overlap"
    formulation = PestoFormulation

    def limit_s(self, problem: Problem) -> float:
        return self.time_limit_s if problem.time_limit_s is None else problem.time_limit_s

    def times(self, problem: Problem, device_of: Mapping[str, str]) -> tuple[float, Mapping[str, float]]:
        return forward_makespan(problem, device_of), thesis_times(problem, device_of).start_fp


def forward_makespan(problem: Problem, device_of: Mapping[str, str]) -> float:
    """The least solution of (6-2)..(6-7) for one placement, in seconds."""
    start = thesis_times(problem, device_of).start_fp
    kinds = {device.name: device.kind for device in problem.cluster.devices}
    return max(
        (start[v] + problem.costs.forward_s(v, kinds[device_of[v]]) for v in problem.graph.nodes), default=0.0
    )
