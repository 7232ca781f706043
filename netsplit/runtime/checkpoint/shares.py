"""What a device writes to a checkpoint and reads from it, under the plain model's own names.

    model.<name>                     a parameter or buffer, by each of its names in state_dict()
    optimizer.state.<name>.<key>     moments, step counters
    optimizer.param_groups.<name>.*  hyperparameters, such as lr
    draws.seed, .batches, .predictions   where the draws of random operators stand
    cut.microbatches, .size          into how many micro-batches, and of how many samples, batches are cut
    rng.controller                   state of the controller's random number generator
    replica.<device>.<name>          a buffer as a further replica of a stage has it
    scaler.*                         a GradScaler's state, under float16
    scheduler.kind, .state           the learning rate's scheduler: its class, its state_dict()
    average.<name>, averages.count   moving averages of the parameters, and of how many steps

The keys under ``model`` and ``optimizer`` are those of a plain model and of torch's own flattened form of
an optimiser; no key says which device wrote it, so any placement can read what any other wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from netsplit.errors import ConfigError, NetSplitError
from netsplit.graph.random_draws import DrawCounter
from netsplit.graph.recording.stand_ins import named_tensors, persistent_tensors
from netsplit.optim.learning_rate import settings_of
from netsplit.runtime.checkpoint.files import (
    Refusal,
    Saved,
    State,
    check_fits,
    kind_of,
    read_extra,
    reason_of,
)
from netsplit.runtime.checkpoint.torch_format import TensorParts, put_tensor
from netsplit.runtime.share import Share

__all__ = ["Copies", "Cut", "Holder", "draws_state", "load_draws", "load_own", "load_plain", "saved_cut"]

_SCHEDULED = ("lr", "momentum", "betas")  # what schedulers change
_LISTS = ("params", "param_names")  # of an optimiser's group; the rest are its hyperparameters


@dataclass(frozen=True)
class Copies:
    """Initializers that another device holds first; `apart`: untrained ones may differ."""

    on: Mapping[str, frozenset[str]] = field(default_factory=dict)
    apart: bool = False


@dataclass
class Holder:
    """One device's tensors as a part of a checkpoint.

    `aliases` are further names of initializers, `skip` the graph's own constants, `copies` those beside
    other devices.
    """

    share: Share
    device: str
    aliases: Mapping[str, Sequence[str]] = field(default_factory=dict)
    skip: frozenset[str] = frozenset()
    copies: Copies = field(default_factory=Copies)

    def state(self) -> State:
        """What this device writes; the tensors themselves, not copies."""
        state: State = {}
        for name, tensor in self.share.kept.items():
            if name in self.skip:
                continue
            if self._is_apart(name) and not tensor.requires_grad:
                state[f"replica.{self.device}.{name}"] = tensor.detach()
                continue
            region = self.share.regions.get(name)
            for key in self._names(name):
                put_tensor(state, f"model.{key}", tensor.detach(), region)
        state |= _optimizer_state(self.share) | _scheduler_state(self.share)
        return state | self._averages() | ({} if self.share.idle else _scaler_state(self.share))

    def load(self, folder: Path) -> list[str] | Refusal:
        """Take this device's tensors from a checkpoint; describes hyperparameters that it changed."""
        try:
            return self.take(Saved(folder))
        except (OSError, NetSplitError) as error:
            return Refusal(reason_of(error))

    def take(self, saved: Saved) -> list[str]:
        """Load from an open checkpoint; refusals are raised."""
        _check_scheduler(self.share.scheduler, saved)
        own: State = {}
        for name, tensor in self.share.kept.items():
            if name not in self.skip:
                put_tensor(own, self._key(name, saved), tensor.detach(), self.share.regions.get(name))
        saved.read(own)
        _load_scale(self.share, saved)
        changed = _load_optimizer(self.share, saved)
        return changed + _load_scheduler(self.share.scheduler, saved) + self._load_averages(saved)

    def _averages(self) -> State:
        averages = self.share.averages
        if averages is None:
            return {}
        state: State = {"averages.count": averages.count}
        for name, tensor in averages.values.items():
            for key in self._names(name):
                put_tensor(state, f"average.{key}", tensor, self.share.regions.get(name))
        return state

    def _load_averages(self, saved: Saved) -> list[str]:
        averages, stored = self.share.averages, "averages.count" in saved.entries
        if averages is None:
            return ["its parameter averages are ignored"] if stored else []
        if not stored:
            averages.count = 0
            return ["it has no parameter averages, so they start afresh"]
        values: State = {"averages.count": None}
        for name, tensor in averages.values.items():
            put_tensor(values, f"average.{self.share.whole(name)}", tensor, self.share.regions.get(name))
        averages.count = saved.read(values)["averages.count"]
        return []

    def _names(self, name: str) -> tuple[str, ...]:
        return (self.share.whole(name), *self.aliases.get(self.share.initializer(name), ()))

    def _key(self, name: str, saved: Saved) -> str:
        own = f"replica.{self.device}.{name}"
        return own if self._is_apart(name) and own in saved.entries else f"model.{self.share.whole(name)}"

    def _is_apart(self, name: str) -> bool:
        return self.copies.apart and name in self.copies.on.get(self.device, ())


@dataclass(frozen=True)
class Cut:
    """Micro-batches of a batch and the samples of each (the last may have fewer)."""

    microbatches: int
    size: int

    def __str__(self) -> str:
        return f"{self.microbatches} micro-batch{'es' * (self.microbatches > 1)} of {self.size} samples"


def saved_cut(folder: Path) -> Cut | None:
    """A checkpoint's cut; None if it has none or cannot be read."""
    try:
        saved = Saved(folder)
        places = saved.below("cut")
        values = saved.read(dict.fromkeys(places.values()))
        return Cut(**{key: int(values[place]) for key, place in places.items()})
    except (NetSplitError, TypeError, ValueError):
        return None


def draws_state(counter: DrawCounter) -> State:
    return {f"draws.{key}": value for key, value in asdict(counter).items()}


def load_draws(folder: str | Path, seed: int = 0) -> DrawCounter:
    """Where a checkpoint's random draws stand; the start of `seed` where it does not say."""
    saved = Saved(Path(folder))
    places = saved.below("draws")
    values = saved.read(dict.fromkeys(places.values()))
    return DrawCounter(**{"seed": seed} | {key: values[place] for key, place in places.items()})


def load_own(folder: Path, state: State) -> None:
    """Read the controller's own tensors in place, where the checkpoint has them."""
    saved = Saved(folder)
    saved.read({key: value for key, value in state.items() if key in saved.entries})


def load_plain(
    folder: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    loss: object = None,
    scaler: torch.amp.GradScaler | None = None,
    scheduler: LRScheduler | None = None,
    averages: AveragedModel | None = None,
) -> dict[str, Any]:
    """Load a checkpoint into a plain model and its optimiser, which then go on as the split one would.

    No process group and no worker is needed. Everything is changed in place.

    Args:
        loss: a module with parameters or buffers of its own, where it is one.
        scaler: of a float16 training.
        scheduler: of the optimiser, where the training had one.
        averages: a copy of the model, where the training kept averages; other tensors of it are the model's.

    Returns:
        What was stored beside the tensors: where the training stands.

    Raises:
        NetSplitError: no whole checkpoint, another model, or an optimiser of another kind.
    """
    folder = Path(folder)
    extra = read_extra(folder)
    saved = Saved(folder)
    own = named_tensors(model)
    of_loss = named_tensors(loss) if isinstance(loss, nn.Module) else {}
    every = own | {f"loss.{name}": tensor for name, tensor in of_loss.items() if f"loss.{name}" not in own}
    tensors = {name: tensor for name, tensor in every.items() if f"model.{name}" in saved.entries}
    needed = {name: kind_of(tensor) for name, tensor in (persistent_tensors(model) | tensors).items()}
    theirs = {name: saved.kind(f"model.{name}") for name in saved.names if name.startswith("loss.")}
    check_fits(folder, {name: kind for name, kind in theirs.items() if kind} | needed)
    saved.read({f"model.{name}": tensor.detach() for name, tensor in tensors.items()})
    if optimizer is not None:
        _load_optimizer(Share(tensors, optimizer), saved)
    if scaler is not None:
        places = saved.below("scaler")
        values = saved.read(dict.fromkeys(places.values()))
        scaler.load_state_dict({key: values[place] for key, place in places.items()})
    if scheduler is not None:
        _check_scheduler(scheduler, saved)
        _load_scheduler(scheduler, saved)
    if averages is not None:
        _load_averaged_model(averages, model, saved)
    return extra


def _load_averaged_model(averages: AveragedModel, model: nn.Module, saved: Saved) -> None:
    if "averages.count" not in saved.entries:
        raise ConfigError(f"checkpoint '{saved.folder}' has no parameter averages: leave averages out.")
    averages.module.load_state_dict(model.state_dict())
    state = {f"average.{name}": tensor.detach() for name, tensor in averages.module.named_parameters()}
    saved.read({place: tensor for place, tensor in state.items() if place in saved.entries})
    averages.n_averaged.fill_(saved.read({"averages.count": None})["averages.count"])


def _scaler_state(share: Share) -> dict[str, Any]:
    scale = share.scale
    if scale is None:
        return {}
    values = {
        "scale": scale.factor,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": scale.interval,
        "_growth_tracker": scale.good_steps,
    }
    return {f"scaler.{key}": value for key, value in values.items()}


def _load_scale(share: Share, saved: Saved) -> None:
    places = saved.below("scaler")
    if share.scale is None or not places:
        return
    values = saved.read(dict.fromkeys(places.values()))
    share.scale.factor = values[places["scale"]]
    share.scale.interval = values[places["growth_interval"]]
    share.scale.good_steps = values[places["_growth_tracker"]]


def _optimizer_state(share: Share) -> dict[str, Any]:
    if share.optimizer is None:
        return {}
    names = {id(tensor): name for name, tensor in reversed(share.named.items())}
    state: dict[str, Any] = {}
    for group in share.optimizer.param_groups:
        for parameter in group["params"]:
            region, name = share.regions.get(names[id(parameter)]), share.whole(names[id(parameter)])
            for key, value in share.optimizer.state.get(parameter, {}).items():
                place = f"{_state(name)}.{key}"
                if isinstance(value, Tensor):
                    put_tensor(
                        state, place, value.detach(), region if value.shape == parameter.shape else None
                    )
                else:
                    state[place] = value
            for key, value in group.items():
                if key not in _LISTS:
                    state[f"{_hyper(name)}.{key}"] = value
    return state


def _load_optimizer(share: Share, saved: Saved) -> list[str]:
    """Fill the optimiser's state; describes hyperparameters that the checkpoint changed."""
    if share.optimizer is None:
        return []
    names = {id(tensor): name for name, tensor in reversed(share.named.items())}
    groups = share.optimizer.param_groups
    whole = share.groups or [[share.whole(names[id(p)]) for p in group["params"]] for group in groups]
    firsts = [next((name for name in each if saved.below(_hyper(name))), "") for each in whole]
    wanted: dict[str, Any] = {}
    moments: dict[str, dict[str, Any]] = {}
    for first, group in zip(firsts, groups, strict=True):
        wanted |= _hyperparameters(saved, first, group)
        for parameter in group["params"]:
            name = names[id(parameter)]
            moments[name] = _moments(share, saved, name, group)
            for place, value in moments[name].items():
                if isinstance(value, Tensor):
                    region = share.regions.get(name)
                    put_tensor(wanted, place, value, region if value.shape == parameter.shape else None)
                else:
                    wanted[place] = value
    values = saved.read(wanted)
    changed: dict[str, None] = {}
    share.optimizer.state.clear()
    for first, group in zip(firsts, groups, strict=True):
        for key, place in saved.below(_hyper(first)).items():
            if key in group and place in values:
                scheduled = share.scheduler is not None and key in _SCHEDULED
                if group[key] != values[place] and not scheduled:
                    changed[f"{key} {group[key]} becomes {values[place]}"] = None
                group[key] = values[place]
        for parameter in group["params"]:
            name = names[id(parameter)]
            places = saved.below(_state(share.whole(name)))
            if places:
                share.optimizer.state[parameter] = {
                    key: _own_moment(moments[name][place], values[place]) for key, place in places.items()
                }
    if share.moments is not None:
        share.moments.settle()
    return list(changed)


def _scheduler_state(share: Share) -> State:
    if share.scheduler is None:
        return {}
    kind = type(share.scheduler).__name__
    return {"scheduler.kind": kind, "scheduler.state": share.scheduler.state_dict()}


def _check_scheduler(scheduler: LRScheduler | None, saved: Saved) -> None:
    if scheduler is None:
        return
    kind, start = type(scheduler).__name__, f"checkpoint '{saved.folder}' was saved"
    if "scheduler.kind" not in saved.entries:
        raise ConfigError(
            f"{start} without a scheduler, but this training has {kind}: leave it out, or load only the "
            "parameters (load_state_dict)."
        )
    theirs = saved.read({"scheduler.kind": None})["scheduler.kind"]
    if theirs != kind:
        raise ConfigError(
            f"{start} with the scheduler {theirs}, but this training has {kind}: use the same one."
        )


def _load_scheduler(scheduler: LRScheduler | None, saved: Saved) -> list[str]:
    """Fill the scheduler's state; describes settings that the checkpoint changed."""
    if scheduler is None:
        stored = "scheduler.kind" in saved.entries
        return ["its scheduler is ignored, so the learning rate stays as it is"] if stored else []
    before = settings_of(scheduler)
    scheduler.load_state_dict(saved.read({"scheduler.state": None})["scheduler.state"])
    after = settings_of(scheduler)
    return [f"{key} {before[key]} becomes {after[key]}" for key in before if before[key] != after.get(key)]


def _hyperparameters(saved: Saved, name: str, group: Mapping[str, Any]) -> dict[str, Any]:
    """The hyperparameters the checkpoint has for a group's first parameter."""
    own = {key for key in group if key not in _LISTS}
    places = saved.below(_hyper(name))
    theirs, ours = sorted(set(places) - own), sorted(own - set(places))
    if theirs and ours:
        raise ConfigError(
            f"checkpoint '{saved.folder}' was saved with another optimiser, with {', '.join(theirs)}; this "
            f"one has {', '.join(ours)}."
        )
    return {place: saved.blank(place) for key, place in places.items() if key in own}


def _moments(share: Share, saved: Saved, name: str, group: Mapping[str, Any]) -> dict[str, Any]:
    """Buffers for one parameter: on its own device, but numbers and offloaded moments on the CPU."""
    on_device = group.get("capturable") or group.get("fused")
    parameter, region = share.named[name], share.regions.get(name)
    wanted = {}
    for place in saved.below(_state(share.whole(name))).values():
        kind = saved.kind(place)
        scalar = kind is not None and kind[1] == ()
        on_parameter = bool(on_device) if scalar else share.moments is None
        shape = (
            parameter.shape if region is not None and kind is not None and kind[1] == region.shape else None
        )
        wanted[place] = saved.blank(place, parameter.device if on_parameter else None, shape)
    return wanted


def _own_moment(blank: Any, value: Any) -> Any:
    """A parameter's moment; numbers are read once for all parts."""
    if isinstance(value, TensorParts):
        return blank
    return value.clone() if isinstance(value, Tensor) and value is not blank else value


def _hyper(name: str) -> str:
    return f"optimizer.param_groups.{name}"


def _state(name: str) -> str:
    return f"optimizer.state.{name}"
