"""Segments of a placed graph, schedules, and the compilation to instructions."""

from netsplit.program.check import check_progress
from netsplit.program.compile import compile_program
from netsplit.program.instructions import Backward, Forward, Instruction, Program, Recv, Segment, Send, Step
from netsplit.program.schedules import GPipe, Schedule, SingleBatch

__all__ = [
    "Backward",
    "Forward",
    "GPipe",
    "Instruction",
    "Program",
    "Recv",
    "Schedule",
    "Segment",
    "Send",
    "SingleBatch",
    "Step",
    "check_progress",
    "compile_program",
]
