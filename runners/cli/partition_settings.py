"""What `runners.partition` is told beside what `runners.simulate` is told too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from netsplit.errors import ConfigError
from netsplit.partition.objectives import CONTIGUOUS, ObjectiveName

from .._graph_file import GraphSettings

__all__ = ["PartitionSettings"]


@dataclass(frozen=True, kw_only=True)
class PartitionSettings(GraphSettings):
    """The top-level keys of `conf/partition.yaml`."""

    objective: ObjectiveName = "latency"
    contiguous: bool = False
    passes: Literal["training", "forward"] = "training"
    variable_copies: int | None = None
    result: str | None = None
    explain: bool = False
    compare_with: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.result is not None and Path(self.result).resolve() == Path(self.graph).resolve():
            raise ConfigError(
                f"result is '{self.result}', which is the graph file itself: give another path."
            )
        if self.contiguous and self.objective not in CONTIGUOUS:
            raise ConfigError(
                f"contiguous=true goes with objective=max_load, and objective is {self.objective}."
            )
        if self.result is not None and (not self.result or Path(self.result).is_dir()):
            raise ConfigError(f"result is '{self.result}': give the path of a file to write.")
