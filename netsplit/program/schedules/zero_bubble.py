"""Backward in two parts, of which the weights' part fills what would be idle time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from netsplit.errors import ConfigError
from netsplit.program.schedules.base import Compute, Pipeline, Recompute, Schedule
from netsplit.program.schedules.one_f_one_b import warm_up
from netsplit.program.schedules.order import TASKS_OF_A_CELL, Policy, list_schedule, makespan, tries_of

__all__ = ["ZBH1"]


@dataclass(frozen=True)
class ZBH1(Schedule):
    """ZB-H1: 1F1B whose weight gradients wait for idle time, within 1F1B's memory.

    Source: Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 2.1: the bubble falls from
    (p - 1)(T_F + T_B + T_W) to (p - 1)(T_F + T_B - T_W). No segment keeps more micro-batches between its
    forward and its weight backward than the first one does in 1F1B.

    A backward in two parts costs more than a whole one. So many of the last micro-batches are split as makes
    the shortest schedule (on a chain p - 1): before them a device has no idle time to fill. Where there are
    very many tasks fewer numbers are tried (`order.tries_of`): the first, the last, and some in between.
    """

    microbatches: int = 4
    recompute: Recompute = False
    delay_weights: bool = True
    name: ClassVar[str] = "zb_h1"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.delay_weights:
            raise ConfigError("schedule.delay_weights is false, but zb_h1 is made of it: choose 1f1b.")

    def in_flight(self, devices: int) -> int:
        return min(self.microbatches, devices)

    def order(self, pipeline: Pipeline) -> list[Compute]:
        limits = warm_up(pipeline)
        m, kept = self.microbatches, max(limits, default=1)

        def policy(last: int) -> Policy:
            return Policy(_weights_last, limits, kept=kept, split=frozenset(range(m - last, m)))

        every = [*range(min(2 * len(pipeline.names), m)), m]
        count = min(tries_of(TASKS_OF_A_CELL * len(pipeline) * m), len(every))
        tried = [every[n * (len(every) - 1) // max(count - 1, 1)] for n in range(count)]
        return list_schedule(
            pipeline, m, policy(min(tried, key=lambda last: makespan(pipeline, m, policy(last))))
        )


def _weights_last(task: Compute) -> tuple[int, ...]:
    phase, s, i = task
    if phase in ("input", "backward"):
        return (0, i, s)
    return (1, i, -s) if phase == "forward" else (2, i, s)
