"""What a device holds between iterations: its tensors of the model, their optimiser, and how it steps.

backward ──► gradients, by the Step that takes them ──Reduce──► sums over replicas, norm over all
                                                         └────► Step: unscale, clip, optimiser
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import get_ema_multi_avg_fn

from netsplit.errors import ConfigError
from netsplit.graph.arguments import sparse_gradients
from netsplit.graph.ir import Graph, Initializer, Region
from netsplit.optim.learning_rate import LearningRate, step
from netsplit.optim.optimizers import ForModel, NamedOptimizer, OptimizerFactory, make_optimizer
from netsplit.profile.costs import Offload
from netsplit.profile.measure.optimizer import is_element_wise
from netsplit.program.instructions import Program
from netsplit.runtime.offload import HostMemory, HostMoments
from netsplit.runtime.sliced import SlicedParameters
from netsplit.settings import OnNonFinite

__all__ = ["Averages", "LossScale", "OptimizerFactory", "Share", "UpdateRule", "check_clipping", "sliced_for"]


@dataclass(frozen=True)
class UpdateRule:
    """What happens before and after the optimiser steps.

    `clip_norm`: most norm of the gradients over all devices, as in ``torch.nn.utils.clip_grad_norm_``.
    `loss_scaling`: the loss is multiplied by a factor that follows overflows (see `LossScale`).
    `learning_rate`: its schedule; None: constant.
    `ema_decay`: decay of parameter averages (see `Averages`); None: no averages.
    `on_nonfinite`: for a non-finite loss, raise ("stop"), warn and step ("warn"), or warn and do not step
    ("skip"); None: no check.
    """

    clip_norm: float | None = None
    loss_scaling: bool = False
    learning_rate: LearningRate | None = None
    ema_decay: float | None = None
    on_nonfinite: OnNonFinite | None = None

    @property
    def shared_norm(self) -> bool:
        """Whether a step needs all devices' gradients."""
        return self.clip_norm is not None or self.loss_scaling


def sliced_for(program: Program, optimizer: OptimizerFactory | None) -> Program:
    """The program, with whole parameters unless the optimiser is element-wise."""
    names = [k for bundle in program.bundles if bundle.trained for k in bundle.names]
    trained = [k for k in names if program.graph.initializers[k].requires_grad]
    if not trained or is_element_wise(optimizer, program.graph, trained):
        return program
    return replace(program, bundles=tuple(replace(each, whole=True) for each in program.bundles))


def check_clipping(clip_norm: float | None, graph: Graph) -> None:
    """Raises ConfigError if a parameter has a sparse gradient, which plain PyTorch does not clip."""
    if clip_norm is not None and (sparse := sparse_gradients(graph)):
        raise ConfigError(
            f"clip_norm is {clip_norm:g}, but clip_grad_norm_ does not support the sparse gradient of "
            f"'{sparse[0]}': make the embedding without sparse=True, or leave clip_norm out."
        )


@dataclass
class LossScale:
    """The factor on a float16 loss: halved after an overflow, doubled after `interval` steps without one.

    The rule and its constants are those of ``torch.amp.GradScaler``. All devices follow it alike.
    """

    factor: float = 65536.0
    good_steps: int = 0
    interval: int = 2000

    def update(self, overflow: bool) -> None:
        if overflow:
            self.factor, self.good_steps = self.factor / 2, 0
            return
        self.good_steps += 1
        if self.good_steps == self.interval:
            self.factor, self.good_steps = self.factor * 2, 0


@dataclass
class Averages:
    """Exponential moving averages of parameters, by name.

    Those of ``torch.optim.swa_utils.AveragedModel`` with ``get_ema_multi_avg_fn(decay)``: after the first
    step the parameters themselves, then decay * average + (1 - decay) * parameter.
    """

    decay: float
    values: dict[str, Tensor]
    count: int = 0

    def update(self, parameters: Mapping[str, Tensor]) -> None:
        self.blend(parameters)
        self.count += 1

    def blend(self, parameters: Mapping[str, Tensor]) -> None:
        pairs = [(self.values[name], parameter.detach()) for name, parameter in parameters.items()]
        if self.count == 0:
            for average, parameter in pairs:
                average.copy_(parameter)
        elif pairs:
            averages, present = map(list, zip(*pairs, strict=True))
            get_ema_multi_avg_fn(self.decay)(averages, present, self.count)


@dataclass
class Share:
    """A device's own tensors of the model, and their optimiser.

    `tensors` are initializers by name; the optimiser has the trainable ones.
    `copies` are initializers that another device holds first; a norm counts their gradients there.
    `groups` are the names in the optimiser's groups on all devices, if known.
    `idle`: the device had nothing to step on and saw no overflows.
    `host` holds offloaded tensors; `moments` is the offloaded optimiser state.
    `regions`: initializer that is a part of a parameter -> which part.
    `sliced`: this device's slices of sharded parameters.
    """

    tensors: dict[str, Tensor]
    optimizer: torch.optim.Optimizer | None
    rule: UpdateRule = field(default_factory=UpdateRule)
    copies: frozenset[str] = frozenset()
    scale: LossScale | None = None
    groups: tuple[tuple[str, ...], ...] = ()
    scheduler: LRScheduler | None = None
    averages: Averages | None = None
    idle: bool = False
    host: HostMemory | None = None
    moments: HostMoments | None = None
    regions: dict[str, Region] = field(default_factory=dict)
    sliced: SlicedParameters | None = None

    @classmethod
    def of(
        cls,
        values: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]],
        device: torch.device,
        optimizer: OptimizerFactory | None,
        trainable: Iterable[str] = (),
        rule: UpdateRule | None = None,
        copies: frozenset[str] = frozenset(),
        fresh: Container[str] = (),
        offload: Offload | None = None,
        regions: Mapping[str, Region] | None = None,
        sliced: SlicedParameters | None = None,
    ) -> Share:
        """Copies of `values` on `device`; those in `trainable` become parameters; `fresh` ones are not
        copied.

        A device without parameters has an optimiser, with empty groups, if `optimizer` is a `ForModel`.
        """
        tensors: dict[str, Tensor] = {}
        names = set(trainable)
        for name, value in values.items() if isinstance(values, Mapping) else values:
            copy = (value.detach() if name in fresh else value.detach().clone()).to(device)
            if sliced is not None and name in sliced.slices:
                tensors[name] = sliced.take(name, copy)
            else:
                tensors[name] = torch.nn.Parameter(copy) if name in names else copy
        regions = dict(regions or {}) | ({} if sliced is None else sliced.regions)
        own = _stepped(tensors, sliced)
        named: NamedOptimizer | None = None
        if optimizer is not None and (own or (isinstance(optimizer, ForModel) and optimizer.parameters)):
            named = make_optimizer(optimizer, own, {k: each.whole for k, each in regions.items()})
        rule = rule or UpdateRule()
        scale = LossScale() if rule.loss_scaling else None
        share = cls(tensors, None, rule, copies, scale, regions=regions, sliced=sliced)
        if named is not None:
            share.optimizer, share.groups = named.optimizer, named.groups
            if rule.learning_rate is not None:
                share.scheduler = rule.learning_rate.scheduler_for(named.optimizer)
        if rule.ema_decay is not None:
            share.averages = Averages(rule.ema_decay, {k: p.detach().clone() for k, p in own.items()})
        if offload:
            share.host = HostMemory(device)
            if offload.optimizer:
                if share.optimizer is not None:
                    share.moments = HostMoments(share.optimizer, share.stepped, share.host)
                if share.averages is not None and share.moments is not None:  # together with the moments
                    averages = share.averages.values
                    share.averages.values = {k: share.host.take(each) for k, each in averages.items()}
                    share.host.settle()
        return share

    def whole(self, name: str) -> str:
        """The model's own name of an initializer; a part has that of its whole."""
        region = self.regions.get(name)
        return name if region is None else region.whole

    def add(self, initializer: Initializer, value: Tensor) -> None:
        """Add an untrained tensor."""
        self.tensors[initializer.name] = value
        if initializer.region is not None:
            self.regions[initializer.name] = initializer.region

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        return {k: t for k, t in self.tensors.items() if isinstance(t, torch.nn.Parameter)}

    @property
    def stepped(self) -> dict[str, torch.nn.Parameter]:
        """What the optimiser steps on: trainable tensors, or this device's slices of them."""
        return _stepped(self.tensors, self.sliced)

    @property
    def kept(self) -> dict[str, Tensor]:
        """Tensors kept between iterations: slices instead of parameters that are then released."""
        if self.sliced is None:
            return self.tensors
        let_go, of = self.sliced.let_go_of, self.sliced.of
        whole = {k: tensor for k, tensor in self.tensors.items() if k not in let_go}
        return whole | {of[k]: self.sliced.own[of[k]] for k in self.tensors if k in let_go and k in of}

    @property
    def named(self) -> dict[str, Tensor]:
        return self.tensors if self.sliced is None else self.tensors | self.sliced.own

    def initializer(self, name: str) -> str:
        """The initializer a tensor or slice belongs to."""
        if self.sliced is None or name not in self.sliced.own:
            return name
        return next(k for k, each in self.sliced.of.items() if each == name)

    @torch.no_grad()
    def put(self, values: Mapping[str, Tensor]) -> None:
        """Copy values in place, as segments and the optimiser refer to the tensors."""
        for name, value in values.items():
            if self.sliced is not None and name in self.sliced.slices:
                self.sliced.put(name, value)
            else:
                self.tensors[name].copy_(value)

    def state(self, averaged: bool = False) -> dict[str, Tensor]:
        """Tensors this device holds first, on the CPU; their averages on request."""
        tensors = self.kept
        if averaged and self.averages is not None:
            tensors = tensors | self.averages.values
        return {k: tensor.detach().cpu() for k, tensor in tensors.items() if k not in self.copies}

    @property
    def loss_factor(self) -> float:
        return self.scale.factor if self.scale is not None else 1.0

    @property
    def learning_rates(self) -> list[float]:
        return [] if self.optimizer is None else [float(group["lr"]) for group in self.optimizer.param_groups]

    def set_learning_rates(self, rates: Sequence[float]) -> None:
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        for group, rate in zip(groups, rates, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def after_iteration(self) -> None:
        """Update scale and averages after a step, alike on every device."""
        if self.averages is not None:
            self._update_averages(self.averages)
        if self.rule.learning_rate is not None and self.rule.learning_rate.every == "step":
            self.step_scheduler(None)

    def _update_averages(self, averages: Averages) -> None:
        parameters = self.stepped
        if self.moments is None:
            averages.update(parameters)
            return
        self.moments.by_bucket(averages.values, lambda keys: averages.blend({k: parameters[k] for k in keys}))
        averages.count += 1

    def step_scheduler(self, loss: float | None) -> list[float]:
        """Step the scheduler; returns the learning rates."""
        if self.scheduler is not None:
            step(self.scheduler, loss)
        return self.learning_rates

    def all_tensors(self) -> list[Tensor]:
        tensors = list(self.named.values())
        tensors += [tensor.grad for tensor in tensors if tensor.grad is not None]
        if self.averages is not None:
            tensors += self.averages.values.values()
        if self.optimizer is not None:
            states = self.optimizer.state.values()
            tensors += [value for state in states for value in state.values() if isinstance(value, Tensor)]
        return tensors

    def packed_gradients(self, names: Iterable[str]) -> Tensor:
        """These parameters' gradients in one vector of at least float32, and which have one."""
        own = self.parameters
        parameters = [own[k] for k in names]
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        present = torch.tensor([float(p.grad is not None) for p in parameters])
        dtype = reduce(torch.promote_types, (part.dtype for part in parts), torch.float32)
        flat = [part.reshape(-1).to(dtype) for part in parts]
        return torch.cat([*flat, present.to(dtype=dtype, device=flat[0].device if flat else None)])

    def unpack_gradients(self, packed: Tensor, names: Iterable[str]) -> None:
        """Store the sum of all devices' `packed_gradients`."""
        own = self.parameters
        parameters = [own[k] for k in names]
        present = packed[len(packed) - len(parameters) :].tolist()
        start = 0
        for parameter, count in zip(parameters, present, strict=True):
            part = packed[start : start + parameter.numel()].view_as(parameter).to(parameter.dtype)
            parameter.grad = part if count else None
            start += parameter.numel()

    def norm_terms(self) -> Tensor:
        """[3] float64: the gradients' sum of squares without copies, has infinities?, has NaNs?"""
        own = (p for k, p in self.stepped.items() if k not in self.copies)
        grads = [
            p.grad.coalesce().values() if p.grad.is_sparse else p.grad for p in own if p.grad is not None
        ]
        norms = [
            torch.linalg.vector_norm(g, dtype=torch.complex128 if g.is_complex() else torch.float64)
            for g in grads
        ]
        total = torch.stack(norms).pow(2).sum().cpu() if norms else torch.zeros((), dtype=torch.float64)
        value = float(total)
        counted = value if math.isfinite(value) else 0.0
        terms = [counted, float(math.isinf(value)), float(math.isnan(value))]
        return torch.tensor(terms, dtype=torch.float64)

    def step(self, fraction: float = 1.0, terms: Tensor | None = None) -> None:
        """Step on the gradients times `fraction` and release them; `terms`: all devices' `norm_terms`."""
        factor, overflow = fraction, False
        if terms is not None:
            squares, infinite, unknown = terms.tolist()
            overflow = infinite > 0 or unknown > 0
            norm = math.nan if unknown else math.inf if infinite else math.sqrt(squares)
            factor *= self._factor(norm)
        if self.optimizer is not None and not (overflow and self.scale is not None):
            for parameter in self.stepped.values() if factor != 1.0 else ():
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
            self.step_optimizer()
        elif self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)
        if self.scale is not None:
            self.scale.update(overflow)

    def step_optimizer(self) -> None:
        """Step and release gradients; where there are none, some optimisers count their steps."""
        if self.optimizer is not None:
            (self.moments or self.optimizer).step()
            self.optimizer.zero_grad(set_to_none=True)

    def drop_gradients(self) -> None:
        for parameter in (self.parameters | self.stepped).values():
            parameter.grad = None

    def _factor(self, norm: float) -> float:
        unscale = 1.0 / self.loss_factor
        if self.rule.clip_norm is None:
            return unscale
        clipped = self.rule.clip_norm / (norm * unscale + 1e-6)
        return unscale * (clipped if math.isnan(clipped) else min(1.0, clipped))


def _stepped(tensors: Mapping[str, Tensor], sliced: SlicedParameters | None) -> dict[str, torch.nn.Parameter]:
    in_slices = {} if sliced is None else sliced.slices
    every = {k: tensor for k, tensor in tensors.items() if k not in in_slices}
    every |= {} if sliced is None else sliced.own
    return {k: tensor for k, tensor in every.items() if isinstance(tensor, torch.nn.Parameter)}
