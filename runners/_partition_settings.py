"""The top-level keys of `runners.partition`: apart from it, as `--help` and completion need no methods."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from netsplit.errors import ConfigError
from netsplit.partition.objectives import CONTIGUOUS, ObjectiveName

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """The top-level keys of `conf/partition.yaml`."""

    graph: str
    objective: ObjectiveName = "latency"
    contiguous: bool = False
    time_limit: float | None = 60.0
    seed: int = 0
    passes: Literal["training", "forward"] = "training"
    alpha: int | None = None
    variable_copies: int | None = None
    inputs: Literal["free", "profiled"] = "free"
    result: str | None = None
    explain: bool = False
    compare_with: str | None = None

    def __post_init__(self) -> None:
        if self.result is not None and Path(self.result).resolve() == Path(self.graph).resolve():
            raise ConfigError(
                f"result is '{self.result}', which is the graph file itself: give another path."
            )
        if self.time_limit is not None and not (self.time_limit > 0 and math.isfinite(self.time_limit)):
            raise ConfigError(f"time_limit is {self.time_limit}: give more than 0 seconds, or null.")
        if self.seed < 0:
            raise ConfigError(f"seed is {self.seed}: give at least 0.")
        if self.contiguous and self.objective not in CONTIGUOUS:
            raise ConfigError(
                f"contiguous=true goes with objective=max_load, and objective is {self.objective}."
            )
        if self.result is not None and (not self.result or Path(self.result).is_dir()):
            raise ConfigError(f"result is '{self.result}': give the path of a file to write.")
