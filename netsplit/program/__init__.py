"""Segments of a placed graph, schedules, and the compilation to instructions."""

from typing import TYPE_CHECKING

from netsplit.lazy import lazy_names

if TYPE_CHECKING:
    from netsplit.program.check import check_progress
    from netsplit.program.compile import compile_program
    from netsplit.program.instructions import (
        Backward,
        Forward,
        Instruction,
        Program,
        Recv,
        Reduce,
        Segment,
        Send,
        Step,
    )
    from netsplit.program.schedules import (
        SCHEDULES,
        ZBH1,
        ZBV,
        AsyncOneFOneB,
        DualPipeV,
        EagerOneFOneB,
        GPipe,
        Interleaved,
        OneFOneB,
        Schedule,
        Searched,
        SingleBatch,
        VHalf,
        VMin,
    )

__all__ = [
    "SCHEDULES",
    "ZBH1",
    "ZBV",
    "AsyncOneFOneB",
    "Backward",
    "DualPipeV",
    "EagerOneFOneB",
    "Forward",
    "GPipe",
    "Instruction",
    "Interleaved",
    "OneFOneB",
    "Program",
    "Recv",
    "Reduce",
    "Schedule",
    "Searched",
    "Segment",
    "Send",
    "SingleBatch",
    "Step",
    "VHalf",
    "VMin",
    "check_progress",
    "compile_program",
]

__getattr__, __dir__ = lazy_names(__name__)
