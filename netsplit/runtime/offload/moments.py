"""Optimiser state in the host's memory between steps.

    step: of every bucket of parameters   state ──► device, optimizer.step() of these alone, state ──► host

The step is the optimiser's own, on the device, on the same values: what is trained is the same bit for bit,
as long as the optimiser steps on every parameter by itself (`check_buckets`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from netsplit.errors import ConfigError
from netsplit.optim.buckets import buckets_of
from netsplit.optim.optimizers import ForModel
from netsplit.profile.optimizer_checks import steps_alike
from netsplit.runtime.offload.saved_tensors import HostMemory

__all__ = ["HostMoments", "check_buckets"]

_PARTS = ("params", "param_names")  # of an optimiser's group, that go by the parameter


class HostMoments:
    """An optimiser whose state is in the host's memory but for a step; what it has already moves at once."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Mapping[str, nn.Parameter],
        host: HostMemory,
        buckets: Sequence[Sequence[Tensor]] | None = None,
    ) -> None:
        self.optimizer = optimizer
        self.host = host
        self.parameters = parameters
        self.buckets = buckets_of(parameters.values()) if buckets is None else buckets
        self.settle()

    def settle(self) -> None:
        """Move all state to the host, as after a checkpoint was read."""
        for parameter in list(self.optimizer.state):
            self._send(parameter)
        self.host.settle()

    def step(self) -> None:
        """`optimizer.step()`, bucket by bucket."""
        for bucket in self.buckets:
            with self._alone(bucket):
                for parameter in bucket:
                    self._fetch(parameter)
                try:
                    self.optimizer.step()
                finally:
                    for parameter in bucket:
                        self._send(parameter)
        self.host.settle()

    def by_bucket(self, values: dict[str, Tensor], change: Callable[[Sequence[str]], None]) -> None:
        """Call `change` with the names of every bucket while their `values`, kept here, are on the device."""
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        for bucket in self.buckets:
            keys = [names[id(parameter)] for parameter in bucket]
            on_host = {k: values[k] for k in keys}
            values |= {k: self.host.bring(tensor) for k, tensor in on_host.items()}
            change(keys)
            for k, tensor in on_host.items():
                values[k] = tensor.copy_(values[k], non_blocking=self.host.pinned)
        self.host.settle()

    @contextmanager
    def _alone(self, bucket: Sequence[Tensor]) -> Iterator[None]:
        """The optimiser's groups with these parameters alone."""
        groups = self.optimizer.param_groups
        whole = [{key: group[key] for key in _PARTS if key in group} for group in groups]
        own = {id(parameter) for parameter in bucket}
        for group, parts in zip(groups, whole, strict=True):
            kept = [index for index, each in enumerate(parts["params"]) if id(each) in own]
            group.update({key: [each[index] for index in kept] for key, each in parts.items()})
        try:
            yield
        finally:
            for group, parts in zip(groups, whole, strict=True):
                group.update(parts)

    def _fetch(self, parameter: Tensor) -> None:
        self._move(parameter, lambda value: self.host.bring(value) if value in self.host else value)

    def _send(self, parameter: Tensor) -> None:
        """Single numbers, such as Adam's step counter, stay where the optimiser wants them."""
        host = self.host
        self._move(parameter, lambda value: host.take(value) if value.dim() and value not in host else value)

    def _move(self, parameter: Tensor, moved: Callable[[Tensor], Tensor]) -> None:
        state = self.optimizer.state
        if parameter in state:
            state[parameter] = tree_map_only(Tensor, moved, state[parameter])


def check_buckets(factory: ForModel) -> None:
    """Whether an optimiser makes the same of parameters in buckets, with its state elsewhere between steps.

    Raises:
        ConfigError: it does not.
    """

    def in_buckets(
        optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]
    ) -> Callable[[], None]:
        host = HostMemory(torch.device("cpu"))
        return HostMoments(optimizer, parameters, host, [[each] for each in parameters.values()]).step

    if not steps_alike(factory, in_buckets):
        raise ConfigError(
            "offload steps on parameters in groups, and this optimizer then gives other results, as it "
            "counts its steps or keeps tensors outside self.state[parameter]: leave offload out, or use "
            "one such as torch.optim.AdamW."
        )
