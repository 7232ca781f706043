"""An operator, and where the tensors that it is given have the samples of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from netsplit.graph.arguments import references
from netsplit.graph.ir import Graph
from netsplit.rewrite.samples.crossing import first_tensor
from netsplit.rewrite.samples.rows import SampleRows
from netsplit.rewrite.ways import SplitCall

__all__ = ["Kept", "OperatorSamples"]

Kept: TypeAlias = dict[str, SampleRows]
"""Output -> where the samples lie in it."""


@dataclass(frozen=True)
class OperatorSamples:
    """An operator, and where its tensors have the samples."""

    graph: Graph
    call: SplitCall
    lies: Mapping[str, SampleRows]
    samples: int

    @cached_property
    def laid(self) -> dict[str, SampleRows]:
        return {k: self.lies[k] for k in self.call.node.inputs if k in self.lies}

    @cached_property
    def own(self) -> SampleRows | None:
        """Of the first tensor."""
        return self.lies.get(first_tensor(self.call))

    def shape(self, k: str) -> tuple[int, ...]:
        return self.graph.variables[k].shape

    def rank(self, k: str = "") -> int:
        """Of a variable; or of the first tensor, whatever that is."""
        return len(self.shape(k)) if k else self.call.rank(self.call.tensors[0])

    def name(self, argument: str) -> str:
        """Of the variable that is given there; "" for none."""
        return next((k for tag, k in references(self.call[argument]) if tag == "var"), "")

    def first_everywhere(self, least_rank: int) -> bool:
        """Whether all that have samples have them first, and as many dimensions."""
        return all(rows.dim == 0 and self.rank(k) >= least_rank for k, rows in self.laid.items())

    def kept(self, dim: int, rows: SampleRows) -> Kept | None:
        """In all outputs there."""
        outputs = [k for k in self.call.node.outputs if k]
        size = self.samples * rows.rows
        if any(len(self.shape(k)) <= dim or self.shape(k)[dim] != size for k in outputs):
            return None
        return {k: SampleRows(dim, rows.rows) for k in outputs}

    def of_loss(self, dim: int, rows: SampleRows) -> Kept | None:
        """In the values of a loss; of its mean or sum they are none."""
        return self.kept(dim, rows) if self.call["reduction"] in (None, 0) else {}

    @property
    def rows_alike(self) -> SampleRows | None:
        """Where all that have samples have them, and as many dimensions."""
        alike = {(rows, self.rank(k)) for k, rows in self.laid.items()}
        return next(iter(self.laid.values())) if len(alike) == 1 else None

    @property
    def same_rows(self) -> SampleRows | None:
        """The same where no other tensor has more dimensions."""
        most = max(self.call.rank(place) for place in self.call.tensors)
        return self.rows_alike if most == self.rank(next(iter(self.laid))) else None
