"""`heft`: heterogeneous earliest finish time, the list scheduler that others are compared with.

Source: Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task scheduling for
heterogeneous computing", IEEE TPDS 13(3), 2002, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Floats, Instance
from netsplit.partition.engines.insertion.schedule import schedule_within_memory
from netsplit.partition.engines.insertion.tasks import StepTasks
from netsplit.partition.partitioner import Choice, Partitioner

__all__ = ["Heft"]


@dataclass(frozen=True)
class Heft(Partitioner):
    """Tasks by falling upward rank, with mean seconds; each in the slot where it finishes first.

    On a plain DAG it is the paper's. A training step is a DAG of forwards and backwards (see
    `insertion`): a node goes where its forward's finish plus its own backward's seconds is least, and
    its backward follows it. A colocated set goes where its first node goes; a device where the whole
    set exceeds the capacity under (5-18) is no candidate. The greedy choice never looks ahead, so with
    large messages or large colocated sets it is easily worse than one device: that is the method.

    The report's objective is the schedule's own length in seconds: without the wait of messages for
    one another, which the simulator adds.
    """

    name = "heft"
    optimises = "one step's time, greedily: each task's earliest finish"

    def choose(self, problem: Problem) -> Choice:
        instance = Instance.of(problem)
        tasks = StepTasks.of(instance)
        order = tasks.by_rank(mean_ranks(instance, tasks))
        schedule = schedule_within_memory(problem, self.name, tasks, order)
        return Choice(
            schedule.device_of(), schedule.start_of(), objective_s=schedule.makespan, notes=schedule.notes()
        )


def mean_ranks(instance: Instance, tasks: StepTasks) -> Floats:
    """[2n] upward ranks: a task's mean seconds over devices, a message's over pairs of devices."""
    pairs = ~np.eye(len(instance.devices), dtype=bool)
    latency, pace = (
        each[pairs].mean() if pairs.any() else 0.0 for each in (instance.latency_s, instance.seconds_per_byte)
    )
    return tasks.upward_ranks(tasks.seconds.mean(axis=1), tasks.messages * latency + tasks.nbytes * pace)
