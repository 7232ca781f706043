"""In which order segments and micro-batches are computed.

A schedule gives one global order of (phase, segment, micro-batch); the compiler gives each device its part
and inserts transfers. All work on any DAG of segments: a device may hold several, one may feed many.
"""

from netsplit.program.schedules.base import Compute, Phase, Pipeline, Schedule, TaskTimes
from netsplit.program.schedules.named import (
    ZBH1,
    AsyncOneFOneB,
    EagerOneFOneB,
    GPipe,
    Interleaved,
    OneFOneB,
    SingleBatch,
)
from netsplit.program.schedules.search import Searched
from netsplit.program.schedules.v_shape import ZBV, DualPipeV, VHalf, VMin

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
