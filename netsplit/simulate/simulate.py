"""The timeline that an iteration of a program is predicted to have."""

from __future__ import annotations

from dataclasses import replace

from netsplit.cluster.cluster import Cluster
from netsplit.profile.costs import Costs
from netsplit.program.instructions import Program
from netsplit.simulate.memory import memory_profile
from netsplit.simulate.run import Run
from netsplit.simulate.timeline import Timeline

__all__ = ["simulate", "with_peaks"]


def simulate(program: Program, cluster: Cluster, costs: Costs, peaks: bool = True) -> Timeline:
    """Predicted timeline of one iteration in seconds, with the peak bytes of every device.

    Args:
        peaks: False leaves the bytes out, which are most of the work.

    An instruction first costs its device `instruction_s` of its kind (a Send or Recv `message_s`); a
    computation then waits for what it reads and lasts the sum of its operators' seconds, longer where
    `contention` or `copy_s_per_byte` of their kinds say so (`engine.pace`). The iteration ends when all
    devices have finished and all their sends are over.

    Raises:
        DeadlockError: the program cannot complete (never so for what `compile_program` returns).
        NetSplitError: an operator without a measured cost, or a transfer without a link.
    """
    run = Run(program, cluster, costs)
    timeline = Timeline(run.events, run.iteration_s)
    return with_peaks(timeline, program, cluster, costs) if peaks else timeline


def with_peaks(timeline: Timeline, program: Program, cluster: Cluster, costs: Costs) -> Timeline:
    """The timeline of a program, with the peak bytes of every device."""
    transients = costs.transients(cluster.devices)
    scratch = costs.step_scratch(cluster.devices)
    profiles = memory_profile(program, costs.alpha, transients, costs.offload, scratch)
    alive = {device: each.peak_bytes for device, each in profiles.items()}
    hosts = {device: each.host_bytes for device, each in profiles.items()} if costs.offload else {}
    return replace(timeline, peak_bytes=alive, host_bytes=hosts)
