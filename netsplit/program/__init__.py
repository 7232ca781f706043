"""Segments of a placed graph, schedules, and the compilation to instructions."""

from typing import TYPE_CHECKING

from netsplit.lazy import lazy_names

if TYPE_CHECKING:
    from netsplit.program.compile import compile_program
    from netsplit.program.instructions import Program
    from netsplit.program.schedules import (
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
    "ZBH1",
    "ZBV",
    "AsyncOneFOneB",
    "DualPipeV",
    "EagerOneFOneB",
    "GPipe",
    "Interleaved",
    "OneFOneB",
    "Program",
    "Schedule",
    "Searched",
    "SingleBatch",
    "VHalf",
    "VMin",
    "compile_program",
]

__getattr__, __dir__ = lazy_names(__name__)
