"""Optimisers that are made on every device, each for the parameters that lie there; these in buckets.

    factory + all parameters of the model ──on each device──► optimizer ─► groups, as in one process
              own ones real, others blank                                  less what lies elsewhere

A factory sees the whole model everywhere, so that groups are the same on every device. Where moments come
from the host, buckets of parameters are stepped one after another.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import cloudpickle
import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils._pytree import tree_leaves_with_path

from netsplit.errors import ConfigError
from netsplit.signature import called, check_settings

__all__ = [
    "BUCKET_BYTES", "MOMENTUM", "ForModel", "NamedOptimizer", "OptimizerFactory", "ParameterGroups",
    "buckets_of", "check_hooks", "check_keys", "for_model", "largest_bucket", "make_optimizer",
    "plain_attributes", "uncarried_attribute", "uncarried_state",
]  # fmt: skip

OptimizerFactory = Callable[[Any], torch.optim.Optimizer]
"""Called with a list of the parameters; or of pairs (name, parameter), if its first parameter is called
``named_parameters``."""

MOMENTUM: OptimizerFactory = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
"""The default."""

NAMED = "named_parameters"
_LISTS = ("params", "param_names")  # of a group; the rest are its settings
MATCH = "match"


class ParameterGroups:
    """An optimiser whose settings depend on the parameters' names.

    ``ParameterGroups(torch.optim.AdamW, lr=1e-3, groups=[{"match": ["*.bias"], "weight_decay": 0.0}])``

    Parameters that no group matches form the optimiser's first group, with its common settings; the groups
    follow in order, empty ones included. A parameter belongs to the first group that matches.

    Args:
        optimizer: a class of optimisers, or its dotted name.
        groups: each maps ``match`` to one or several patterns of names in ``named_parameters()`` (``*``,
            ``?`` and ``[...]`` as in file names), and has its own settings.
        settings: of all parameters, unless a group has others.

    Raises:
        ConfigError: an unknown setting, or a group without patterns or settings.
    """

    def __init__(
        self,
        optimizer: Callable[..., torch.optim.Optimizer] | str,
        groups: Sequence[Mapping[str, Any]] = (),
        **settings: Any,
    ) -> None:
        self.optimizer = called(optimizer, "optimizer")
        self.settings = check_settings(self.optimizer, settings, "optimizer")
        self.groups = [self._group(index, group) for index, group in enumerate(groups)]

    def __call__(self, named_parameters: Sequence[tuple[str, Tensor]]) -> torch.optim.Optimizer:
        members: list[list[Tensor]] = [[] for _ in range(len(self.groups) + 1)]
        for name, parameter in named_parameters:
            members[self._place(name)].append(parameter)
        options = ({}, *(own for _, own in self.groups))
        groups = [{"params": each, **own} for each, own in zip(members, options, strict=True)]
        return self.optimizer(groups, **self.settings)

    def __repr__(self) -> str:
        name = getattr(self.optimizer, "__name__", str(self.optimizer))
        return f"ParameterGroups({name}, {self.settings}, {self.groups})"

    def check_names(self, names: Collection[str]) -> None:
        """Raises ConfigError: a pattern matches no parameter."""
        for patterns, _ in self.groups:
            for pattern in patterns:
                if not any(fnmatchcase(name, pattern) for name in names):
                    known = ", ".join(sorted(names)[:3])
                    raise ConfigError(
                        f"optimizer.groups has the pattern '{pattern}', which matches no trainable "
                        f"parameter: correct it (the model has {len(names)}, such as {known})."
                    )

    def _place(self, name: str) -> int:
        for index, (patterns, _) in enumerate(self.groups, 1):
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                return index
        return 0

    def _group(self, index: int, group: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
        own = {key: value for key, value in group.items() if key != MATCH}
        patterns = group.get(MATCH, ())
        patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        if not patterns or not own or not all(isinstance(pattern, str) for pattern in patterns):
            raise ConfigError(
                f"optimizer.groups[{index}] is {dict(group)}: give 'match', a list of patterns of names, "
                "and its own settings, as in {match: ['*.bias'], weight_decay: 0.0}."
            )
        return patterns, check_settings(self.optimizer, own, f"optimizer.groups[{index}]", partly=True)


@dataclass(frozen=True)
class ForModel:
    """A factory with its model's trainable parameters, in the model's order, and their Python `attributes`,
    which a factory may read."""

    factory: OptimizerFactory
    parameters: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __call__(self, parameters: Any) -> torch.optim.Optimizer:
        return self.factory(parameters)


@dataclass(frozen=True)
class NamedOptimizer:
    """An optimiser of one device's parameters, the names in each group on all devices, and the original
    tensors among its settings, which it has copied."""

    optimizer: torch.optim.Optimizer
    groups: tuple[tuple[str, ...], ...]
    given: tuple[Tensor, ...] = ()


def for_model(factory: OptimizerFactory, model: object, loss: object = None) -> ForModel:
    """The factory for a model, and a loss module's parameters (named ``loss.…``)."""
    if isinstance(factory, ForModel):
        return factory
    parameters: dict[int, tuple[str, nn.Parameter]] = {}
    for prefix, module in (("", model), ("loss.", loss)):
        if isinstance(module, nn.Module):
            names = {id(p): name for name, p in nn.Module.named_parameters(module)}
            for parameter in module.parameters():  # in the model's own order
                if id(parameter) in names:
                    parameters.setdefault(id(parameter), (prefix + names[id(parameter)], parameter))
    trained = [(name, parameter) for name, parameter in parameters.values() if parameter.requires_grad]
    kinds = {name: (each.dtype, tuple(each.shape)) for name, each in trained}
    attributes = {name: _sendable(name, each) for name, each in trained if vars(each)}
    return ForModel(factory, kinds, attributes)


def make_optimizer(
    factory: OptimizerFactory, own: Mapping[str, Tensor], parts: Mapping[str, str] | None = None
) -> NamedOptimizer:
    """The optimiser of a device's own parameters.

    Args:
        factory: a `ForModel` is called with all of the model's parameters. Those not in `own` are on torch's
            meta device, and leave the groups afterwards.
        own: name -> parameter.
        parts: name of a part in `own` -> the whole parameter.

    Raises:
        ConfigError: no optimiser, several, one of other parameters, or one that groups parts differently.
    """
    parts = parts or {}
    tensors = [(parts.get(k, k), tensor) for k, tensor in own.items()]
    if isinstance(factory, ForModel):
        tensors_of: dict[str, list[Tensor]] = {}
        for name, tensor in tensors:
            tensors_of.setdefault(name, []).append(tensor)
        every = {k: tensors_of.get(k) or [_blank(*kind)] for k, kind in factory.parameters.items()}
        tensors = [(k, tensor) for k, each in (every | tensors_of).items() for tensor in each]
        for k, tensor in tensors:
            vars(tensor).update(factory.attributes.get(k, {}))
    names = {id(parameter): name for name, parameter in tensors}
    optimizer, groups = _grouped(factory, tensors, names)
    given = _own_settings(optimizer)
    if any(k in parts for k in own):
        _check_groups(factory, groups, parts)
    _keep(optimizer, {id(parameter) for parameter in own.values()})
    return NamedOptimizer(optimizer, groups, given)


def _grouped(
    factory: OptimizerFactory, tensors: Sequence[tuple[str, Tensor]], names: Mapping[int, str]
) -> tuple[torch.optim.Optimizer, tuple[tuple[str, ...], ...]]:
    """The optimiser, and the names of whole parameters in its groups."""
    optimizer = _build(factory.factory if isinstance(factory, ForModel) else factory, tensors)
    _check(optimizer, names)
    members = ([names[id(p)] for p in group["params"]] for group in optimizer.param_groups)
    return optimizer, tuple(tuple(dict.fromkeys(each)) for each in members)


def _check_groups(
    factory: OptimizerFactory, groups: Sequence[Sequence[str]], parts: Mapping[str, str]
) -> None:
    """Raises ConfigError: parts and whole parameters are grouped differently."""
    if not isinstance(factory, ForModel):
        return
    blanks = [(k, _blank(*kind)) for k, kind in factory.parameters.items()]
    for k, blank in blanks:
        vars(blank).update(factory.attributes.get(k, {}))
    _, wanted = _grouped(factory, blanks, {id(blank): k for k, blank in blanks})
    group_of = {k: n for n, each in enumerate(wanted) for k in each}
    if len(wanted) != len(groups) or any(group_of[k] != n for n, own in enumerate(groups) for k in own):
        raise ConfigError(
            f"optimizer chooses groups by parameter shapes, but '{min(parts.values())}' is split into "
            "parts of other shapes: choose by names, as netsplit.ParameterGroups does, or keep that "
            "parameter whole."
        )


def _build(factory: OptimizerFactory, parameters: Sequence[tuple[str, Tensor]]) -> Any:
    refusal = ConfigError(
        "optimizer reads parameter values when it is created, but a device holds only its own: compute "
        "what it needs from the model beforehand, and give it as numbers or by the parameters' names."
    )
    try:
        optimizer = factory(list(parameters) if _wants_names(factory) else [each for _, each in parameters])
    except (RuntimeError, NotImplementedError) as error:
        if "meta" not in str(error):
            raise
        raise refusal from error
    groups = optimizer.param_groups if isinstance(optimizer, torch.optim.Optimizer) else []
    if any(isinstance(value, Tensor) and value.is_meta for group in groups for value in group.values()):
        raise refusal
    return optimizer


def _blank(dtype: torch.dtype, shape: tuple[int, ...]) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"))


def _wants_names(factory: OptimizerFactory) -> bool:
    if isinstance(factory, ParameterGroups):
        return True
    try:
        return next(iter(inspect.signature(factory).parameters), "") == NAMED
    except (TypeError, ValueError):
        return False


def _check(optimizer: Any, names: Mapping[int, str]) -> None:
    """Raises ConfigError: not one optimiser of exactly these parameters."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        parts = list(optimizer.values()) if isinstance(optimizer, Mapping) else optimizer
        if isinstance(parts, list | tuple) and any(isinstance(p, torch.optim.Optimizer) for p in parts):
            raise ConfigError(
                f"optimizer returns {len(parts)} optimisers, but a device steps one: return one with "
                "several groups of parameters, as netsplit.ParameterGroups does."
            )
        raise ConfigError(
            f"optimizer returns a {type(optimizer).__name__}, not a torch.optim.Optimizer: give a function "
            "of parameters, such as functools.partial(torch.optim.Adam, lr=1e-3)."
        )
    kind = type(optimizer).__name__
    counts = Counter(id(p) for group in optimizer.param_groups for p in group["params"])
    if foreign := counts.keys() - names.keys():
        raise ConfigError(
            f"optimizer {kind} has {len(foreign)} parameters that it was not given, perhaps the original "
            "model's: build it from its argument, as in lambda parameters: torch.optim.SGD(parameters, "
            "lr=0.1)."
        )
    for key, name in names.items():
        if not counts[key]:
            raise ConfigError(
                f"optimizer {kind} leaves out parameter '{name}': give it every parameter, and call "
                "requires_grad_(False) beforehand on those that should not train."
            )
        if counts[key] > 1:
            raise ConfigError(f"optimizer {kind} has parameter '{name}' twice: give it each only once.")


def _own_settings(optimizer: torch.optim.Optimizer) -> tuple[Tensor, ...]:
    """Copy settings that are tensors, as schedulers write into them; returns the originals."""
    given: dict[int, Tensor] = {}
    copied: dict[int, Tensor] = {}

    def own(value: Any) -> Any:
        if isinstance(value, Tensor):
            given[id(value)] = value
            return copied.setdefault(id(value), value.detach().clone())
        return tuple(map(own, value)) if type(value) is tuple else value

    for settings in (optimizer.defaults, *optimizer.param_groups):
        settings.update({key: own(value) for key, value in settings.items() if key not in _LISTS})
    return tuple(given.values())


def plain_attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Attributes with plain values besides groups and state, such as a step count."""
    kept = ("state", "param_groups", "defaults")
    return {key: value for key, value in vars(optimizer).items() if key not in kept and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, (*value.keys(), *value.values())))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    number = isinstance(value, Tensor) and value.dim() == 0 and not value.is_meta
    return number or isinstance(value, int | float | complex | str | None)


def _keep(optimizer: torch.optim.Optimizer, own: Collection[int]) -> None:
    """Remove parameters of other devices."""
    for group in optimizer.param_groups:
        kept = [index for index, parameter in enumerate(group["params"]) if id(parameter) in own]
        for key in _LISTS:
            if key in group:
                group[key] = [group[key][index] for index in kept]
    for parameter in list(optimizer.state):
        if isinstance(parameter, Tensor) and id(parameter) not in own:
            del optimizer.state[parameter]


_MOST = 2**20  # bytes of an attribute


def _sendable(name: str, parameter: Tensor) -> dict[str, Any]:
    """A parameter's attributes; raises ConfigError if one cannot be sent."""
    for key, value in vars(parameter).items():
        sent = None if isinstance(value, nn.Module | nn.Parameter) else _as_bytes(value)
        if sent is None or len(sent) > _MOST:
            raise ConfigError(
                f"parameter '{name}' has the attribute '{key}', which an optimizer may read but which "
                "cannot be sent to the devices: delete it, or make it a plain value such as a number."
            )
    return dict(vars(parameter))


def uncarried_state(optimizer: torch.optim.Optimizer) -> str | None:
    """Which state would be lost or doubled, after a step, in words."""
    for state in optimizer.state.values():
        name_of: dict[int, str] = {}
        for path, value in tree_leaves_with_path(state):
            keys = [str(getattr(each, "key", getattr(each, "idx", each))) for each in path]
            name = ".".join(keys)
            if any("." in key for key in keys):
                return f"keeps state under '{name}', but a dot in a name means a nested level"
            if isinstance(value, Tensor) and value.numel() and name_of.setdefault(id(value), name) != name:
                return (
                    f"keeps one tensor as '{name_of[id(value)]}' and '{name}', which would become two tensors"
                )
    return None


def uncarried_attribute(optimizer: torch.optim.Optimizer, step: Callable[[], object]) -> str | None:
    """An attribute without plain values that changes in a step, if one is detected."""
    before = {key: _as_bytes(value) for key, value in vars(optimizer).items()}
    step()
    plain = {"state", "param_groups", "defaults", *plain_attributes(optimizer)}
    for key, value in vars(optimizer).items():
        now = None if key in plain else _as_bytes(value)
        if key not in plain and (now is None or now != before.get(key)):
            return key
    return None


def check_hooks() -> None:
    """Raises ConfigError: hooks on all optimisers are registered, which devices do not call."""
    if _global_optimizer_pre_hooks or _global_optimizer_post_hooks:
        raise ConfigError(
            "optimizer: a hook on all optimizers (torch.optim.optimizer.register_optimizer_step_…_hook) "
            "is not called on the devices, which make their own: register it in the function that makes "
            "the optimizer."
        )


def check_keys(optimizer: torch.optim.Optimizer) -> None:
    """Raises ConfigError: state belongs to no parameter, which checkpoints need."""
    keys = [key for key in optimizer.state if not isinstance(key, Tensor)]
    if keys:
        raise ConfigError(
            f"optimizer {type(optimizer).__name__} keeps state under {keys[0]!r}, which is not a "
            "parameter: keep it in self.param_groups, or by parameter in self.state[parameter]."
        )


def _as_bytes(value: Any) -> bytes | None:
    """The pickled value; None if it cannot be pickled."""
    try:
        return cast(bytes, cloudpickle.dumps(value))
    except Exception:  # any class may raise
        return None


BUCKET_BYTES = 2**25
"""Bytes of parameters in a bucket; less costs more calls, and more takes more of the device at once."""


class Sized(Protocol):
    """A tensor, or what describes one."""

    @property
    def nbytes(self) -> int: ...

    @property
    def requires_grad(self) -> bool: ...


T = TypeVar("T", bound=Sized)


def buckets_of(tensors: Iterable[T]) -> list[list[T]]:
    """Those that are trained, in their order, each of `BUCKET_BYTES` at most, or of the largest one's."""
    trained = [each for each in tensors if each.requires_grad]
    limit = max(BUCKET_BYTES, max((each.nbytes for each in trained), default=0))
    buckets: list[list[T]] = []
    room = 0
    for each in trained:
        if each.nbytes > room or not buckets:
            buckets.append([])
            room = limit
        buckets[-1].append(each)
        room -= each.nbytes
    return buckets


def largest_bucket(tensors: Sequence[Sized]) -> int:
    """Bytes of the parameters in the largest bucket; 0 where nothing is trained."""
    return max((sum(each.nbytes for each in bucket) for bucket in buckets_of(tensors)), default=0)
