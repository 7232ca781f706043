"""In which order segments and micro-batches are computed.

A schedule answers one global order of (phase, segment, micro-batch); the compiler gives each device
its part of it and puts the transfers in between. All work on any DAG of segments: a device may hold
several, one may feed many, and a device may be come to again.
"""

from netsplit.program.schedules.base import Compute, Phase, Pipeline, Schedule, TaskTimes
from netsplit.program.schedules.one_f_one_b import EagerOneFOneB, Interleaved, OneFOneB
from netsplit.program.schedules.pipedream import AsyncOneFOneB
from netsplit.program.schedules.searched import Searched
from netsplit.program.schedules.synchronous import GPipe, SingleBatch
from netsplit.program.schedules.v_shape import ZBV, DualPipeV, VHalf, VMin
from netsplit.program.schedules.zero_bubble import ZBH1

__all__ = [
    "SCHEDULES",
    "ZBH1",
    "ZBV",
    "AsyncOneFOneB",
    "Compute",
    "DualPipeV",
    "EagerOneFOneB",
    "GPipe",
    "Interleaved",
    "OneFOneB",
    "Phase",
    "Pipeline",
    "Schedule",
    "Searched",
    "SingleBatch",
    "TaskTimes",
    "VHalf",
    "VMin",
]

SCHEDULES: dict[str, type[Schedule]] = {
    kind.name: kind
    for kind in (
        SingleBatch,
        GPipe,
        OneFOneB,
        EagerOneFOneB,
        Interleaved,
        ZBH1,
        ZBV,
        VHalf,
        VMin,
        DualPipeV,
        Searched,
        AsyncOneFOneB,
    )
}
