"""What adapters share: a framework's optimiser made again on every device, a checkpoint as one mapping."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from netsplit.api import parallelize
from netsplit.errors import NetSplitError
from netsplit.training.parallel import ParallelModel

__all__ = ["KEY", "SplitModel", "overriding", "pack"]


class NamedGroups:
    """A factory of optimisers like a given one that has not stepped yet."""

    def __init__(self, optimizer: Optimizer, model: nn.Module) -> None:
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.kind = type(optimizer)
        title = self.kind.__name__
        if optimizer.state:
            raise NetSplitError(
                f"the optimiser {title} has already stepped, and its state would be lost: give a new one."
            )
        self.groups: list[tuple[tuple[str, ...], dict[str, Any]]] = []
        for group in optimizer.param_groups:
            foreign = [parameter for parameter in group["params"] if id(parameter) not in names]
            if foreign:
                raise NetSplitError(
                    f"the optimiser {title} has a parameter of shape {tuple(foreign[0].shape)}, which is "
                    "not the model's: give it the model's parameters."
                )
            settings = {key: group[key] for key in optimizer.defaults if key in group}
            # A group of frozen parameters stays, without members.
            members = tuple(names[id(each)] for each in group["params"] if each.requires_grad)
            self.groups.append((members, settings))
        parameters = signature(self.kind).parameters
        self.defaults = {key: value for key, value in optimizer.defaults.items() if key in parameters}

    def __call__(self, named_parameters: Sequence[tuple[str, Tensor]]) -> Optimizer:
        own = dict(named_parameters)
        groups = [
            {"params": [own[name] for name in names if name in own], **settings}
            for names, settings in self.groups
        ]
        return self.kind(groups, **self.defaults)


class OtherSettings:
    """Passes on learning rates of the framework's optimiser, and nothing else."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.fixed = self._fixed()

    def give(self, parallel: ParallelModel) -> None:
        """Set the split model's learning rates; raises NetSplitError if anything else has changed."""
        for before, after in zip(self.fixed, self._fixed(), strict=True):
            for key, value in after.items():
                if before.get(key) != value:
                    raise NetSplitError(
                        f"'{key}' of the optimiser changed from {before.get(key)} to {value} while "
                        "training, but only learning rates reach the devices: leave it unchanged."
                    )
        rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        if rates != parallel.learning_rate:
            parallel.learning_rate = rates

    def _fixed(self) -> list[dict[str, str]]:
        groups: Iterable[Mapping[str, Any]] = self.optimizer.param_groups
        own = ("params", "param_names", "lr", "initial_lr")
        return [{key: repr(value) for key, value in group.items() if key not in own} for group in groups]


def overriding(kind: type, name: str, *frameworks: str) -> type | None:
    """The user's class that overrides a method of `kind`, if any."""
    owner = next((each for each in kind.__mro__ if name in vars(each)), None)
    return None if owner is None or owner.__module__.split(".")[0] in ("netsplit", *frameworks) else owner


class SplitModel:
    """The model that a framework's loop trains, and what adapters share about it."""

    parallel: ParallelModel | None = None
    resumed: Mapping[str, Tensor] | None = None  # state for the next split model
    settings: OtherSettings

    def begin(
        self, model: nn.Module, batch: Any, optimizer: Any, clip_norm: float | None, options: dict[str, Any]
    ) -> ParallelModel:
        """Split `model` with the framework's optimiser, and resume a loaded state."""
        self.settings = OtherSettings(optimizer)
        clip: dict[str, Any] = {"clip_norm": clip_norm} if clip_norm else {}
        factory = NamedGroups(optimizer, model)
        self.parallel = parallelize(model, None, batch, optimizer=factory, **clip, **options)
        if self.resumed is not None:
            unpack(self.parallel, self.resumed)
            self.resumed = None
        return self.parallel

    def fetch(self) -> None:
        """Copy what is trained into this process's model."""
        if self.parallel is not None:
            self.parallel.model.load_state_dict(self.parallel.state_dict())

    def close(self) -> None:
        if self.parallel is not None:
            self.parallel.close()
            self.parallel = None


KEY = "netsplit"  # key in frameworks' files


def pack(parallel: ParallelModel) -> dict[str, Tensor]:
    """The files of `ParallelModel.save_checkpoint` as bytes, by relative path."""
    with tempfile.TemporaryDirectory(prefix="netsplit-") as folder:
        place = Path(folder) / "checkpoint"
        parallel.save_checkpoint(place)
        return {
            file.relative_to(place).as_posix(): torch.frombuffer(
                bytearray(file.read_bytes()), dtype=torch.uint8
            )
            for file in sorted(place.rglob("*"))
            if file.is_file() and file.stat().st_size
        }


def unpack(parallel: ParallelModel, packed: Mapping[str, Tensor]) -> None:
    """Resume from `pack`'s result; raises NetSplitError for another model or optimiser."""
    with tempfile.TemporaryDirectory(prefix="netsplit-") as folder:
        place = (Path(folder) / "checkpoint").resolve()
        for name, content in packed.items():
            file = (place / name).resolve()
            if not file.is_relative_to(place) or not isinstance(content, Tensor):
                raise NetSplitError(f"the checkpoint has '{name}', which NetSplit's checkpoints do not have.")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.numpy().tobytes())
        parallel.load_checkpoint(place)
