"""Pipelines that do not wait for one another's optimiser steps: faster, and not what plain SGD computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from netsplit.errors import ConfigError
from netsplit.program.schedules.base import Compute, Pipeline, Recompute, Schedule, split_backward
from netsplit.program.schedules.one_f_one_b import backward_first, warm_up
from netsplit.program.schedules.order import Policy, list_schedule
from netsplit.settings import check_numbers

__all__ = ["AsyncOneFOneB"]


@dataclass(frozen=True)
class AsyncOneFOneB(Schedule):
    """1F1B with optimiser steps in between. It CHANGES WHAT IS COMPUTED: gradients are of older weights.

    A micro-batch is what the papers call a minibatch. A device steps after the backwards of every
    `update_every` micro-batches (r times as many where r replicas share them), with their mean gradient.
    The pipeline drains at the end of each batch, after which all devices have taken all their steps.

    - ``weights="stashed"``: a forward uses its device's newest weights, and its backward the same ones
      (Narayanan et al., PipeDream, SOSP 2019, section 3.3, weight stashing).
    - ``weights="double"``: W(t+1) = W(t) - lr grad f(W(t-1)) on all devices alike, with two versions
      alive: micro-batches of group t use version max(t - 1, 0) (PipeDream-2BW, ICML 2021, section 3.1).
    """

    microbatches: int = 4
    update_every: int = 1
    weights: Literal["stashed", "double"] = "stashed"
    recompute: Recompute = False
    delay_weights: bool = False
    name: ClassVar[str] = "pipedream"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(**{"schedule.update_every": self.update_every})
        if self.weights not in ("stashed", "double"):
            raise ConfigError(f"schedule.weights is {self.weights!r}: give stashed or double.")

    def in_flight(self, devices: int) -> int:
        return min(self.microbatches, devices)

    def version(self, i: int, steps: int) -> int:
        if self.weights == "stashed":
            return steps
        return max(i // self.update_every - 1, 0)

    def order(self, pipeline: Pipeline) -> list[Compute]:
        if self.weights == "double" and any(len(devices) > 1 for devices in pipeline.devices):
            raise ConfigError("schedule.weights is double, which replicated stages do not have: use stashed.")
        policy = Policy(backward_first, warm_up(pipeline), waits_for=self._last_before)
        tasks = list_schedule(pipeline, self.microbatches, policy)
        return split_backward(tasks) if self.delay_weights else tasks

    def _last_before(self, i: int) -> int:
        """The last micro-batch whose gradient is in the weights that micro-batch i uses."""
        if self.weights == "stashed":
            return -1
        return self.version(i, 0) * self.update_every - 1
