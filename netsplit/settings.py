"""The top-level settings of a training, and the checks of numbers that its command and Python share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from netsplit.errors import ConfigError

__all__ = [
    "CheckpointSettings", "LowPrecision", "ObjectiveName", "OffloadName", "OnNonFinite", "ProfileMode",
    "Settings", "check_backend", "check_numbers", "check_switches",
]  # fmt: skip

ProfileMode = Literal["reuse", "refresh", "off", "predicted"]
"""Source of operators' seconds on present devices (conf/config.yaml)."""

OnNonFinite = Literal["stop", "warn", "skip"]
"""What to do about a batch with a non-finite loss (conf/config.yaml)."""

LowPrecision = Literal["bfloat16", "float16"]
"""Dtype of `torch.autocast`."""

ObjectiveName = Literal["latency", "max_load", "max_load_contiguous", "simulated"]
"""What a plan of a graph file minimises (`partition.objectives`)."""

OffloadName = Literal["none", "optimizer", "activations", "both"]
"""What is kept in the host's memory between uses (conf/config.yaml)."""


@dataclass(frozen=True)
class CheckpointSettings:
    """When and where checkpoints are saved, how many are kept, and whether final parameters are."""

    folder: str | None = None
    every_epochs: int | None = None
    every_iterations: int | None = None
    keep: int = 2
    trained: Literal["folder", "none"] = "folder"

    def __post_init__(self) -> None:
        for key in ("every_epochs", "every_iterations", "keep"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ConfigError(f"checkpoint.{key} is {value}: give at least 1.")

    @property
    def never(self) -> bool:
        return self.every_epochs is None and self.every_iterations is None

    def make_folder(self) -> None:
        """Make the folder early, before hours of work."""
        try:
            if self.folder is not None:
                Path(self.folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"checkpoint.folder is '{self.folder}', which cannot be created: {error.strerror}; choose "
                "another."
            ) from error


@dataclass(frozen=True)
class Settings:
    """Top-level keys outside groups."""

    epochs: int
    batch_size: int
    seed: int
    accumulate: int = 1
    drop_last: bool = False
    clip_norm: float | None = None
    autocast: LowPrecision | None = None
    ema_decay: float | None = None
    resume: str = "never"
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    profile: ProfileMode = "reuse"
    memory: Literal["lifetimes", "static"] = "lifetimes"
    variable_copies: int | None = None
    check: bool = True
    on_nonfinite: OnNonFinite = "stop"
    offload: OffloadName = "none"
    compile_backend: str | None = None
    adapt: bool = False

    def __post_init__(self) -> None:
        numbers = {key: getattr(self, key) for key in _LEAST if key in self.__annotations__}
        check_numbers(**numbers, clip_norm=self.clip_norm, ema_decay=self.ema_decay)
        if self.variable_copies is not None and self.variable_copies < 0:
            raise ConfigError(f"variable_copies is {self.variable_copies}: give 0 or more, or null.")
        if self.offload != "none" and self.memory == "static":
            raise ConfigError(
                f"offload is {self.offload}, but memory=static counts everything on the device: give "
                "memory=lifetimes, or leave offload out."
            )
        if self.variable_copies is not None and self.memory != "static":
            raise ConfigError(
                f"variable_copies is {self.variable_copies}, which memory=lifetimes does not use: add "
                "memory=static, or leave it out."
            )


_LEAST = {
    "epochs": 1, "batch_size": 1, "seed": 0, "accumulate": 1, "max_programs": 1,
    "schedule.microbatches": 1, "schedule.update_every": 1, "microbatches": 1,
}  # fmt: skip
_MOST_SEED = 2**63 - 1


def check_numbers(**values: Any) -> None:
    """Check the numbers that the command and `netsplit.parallelize` share."""
    for key, value in values.items():
        if key in _LEAST:
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"{key} is {value!r}: give a whole number of at least {_LEAST[key]}.")
            if value < _LEAST[key]:
                raise ConfigError(f"{key} is {value}: give at least {_LEAST[key]}.")
            if key == "seed" and value > _MOST_SEED:
                raise ConfigError(f"seed is {value}: give at most {_MOST_SEED} (2^63 - 1).")
        elif value is not None:
            most, words = (
                (math.inf, "above 0") if key in ("clip_norm", "schedule.kept") else (1, "between 0 and 1")
            )
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < most:
                raise ConfigError(f"{key} is {value!r}: give a number {words}, or null (None in Python).")


def check_switches(**values: Any) -> None:
    """Refuse what is neither true nor false, such as "no", which Python takes for true."""
    for key, value in values.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{key} is {value!r}: give true or false (True or False in Python).")


def check_backend(backend: str | None, devices: Iterable[str], autocast: str | None = None) -> None:
    """Raises ConfigError if `torch.compile` lacks the backend here, or it excludes `autocast`."""
    if backend is None:
        return
    from torch._dynamo import list_backends

    known = list_backends(exclude_tags=())
    if backend not in known:
        usual = [each for each in known if "TESTING" not in each and "minifier" not in each]
        raise ConfigError(
            f"compile_backend is {backend!r}, which torch.compile does not know: choose one of "
            f"{', '.join(usual)}."
        )
    if backend == "cudagraphs":
        raise ConfigError(
            "compile_backend is 'cudagraphs', which reuses one output buffer for every call, so "
            "micro-batches would overwrite each other: use 'inductor'."
        )
    if autocast is not None:
        raise ConfigError("compile_backend and autocast cannot be combined: leave one of them out.")
    if backend == "inductor" and any(each.startswith("cpu") for each in devices):
        from torch._inductor.cpp_builder import get_cpp_compiler

        try:
            get_cpp_compiler()
        except Exception as error:
            raise ConfigError(
                "compile_backend is 'inductor', which needs a C++ compiler on CPUs, and none was found: "
                "install one, or use 'aot_eager'."
            ) from error
