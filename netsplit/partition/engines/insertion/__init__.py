"""List scheduling with insertion: what `heft` and `dpos` share."""

from netsplit.partition.engines.insertion.schedule import (
    Chooser,
    PartialSchedule,
    schedule_placed,
    schedule_within_memory,
)
from netsplit.partition.engines.insertion.tasks import StepTasks

__all__ = ["Chooser", "PartialSchedule", "StepTasks", "schedule_placed", "schedule_within_memory"]
