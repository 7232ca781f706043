"""What a study is asked about: cases by name, most of them a model on data of a shape."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from netsplit.data.dataset import Data
from netsplit.errors import ConfigError
from netsplit.graph.ir import Graph
from netsplit.graph.recording.step import capture
from reproduce.onnx_graphs import graph_of, inference_model

__all__ = ["WORKERS", "ByName", "ModelCase", "check_references"]

log = logging.getLogger(__name__)

C = TypeVar("C")

WORKERS = Path("workers")
"""Where workers write their logs if nothing else is said; the command gives a place in its own folder."""


class ByName(dict[str, C]):
    """A study's cases by name, in the order in which they are shown."""


@dataclass(frozen=True)
class ModelCase:
    """A model with the data that it would be trained on.

    Args:
        model: builds it; called on the meta device where only shapes matter, so that size is no hindrance.
        dataset: its first sample gives the shapes of a batch.
        reference: figures that others have printed for this case, by the names that the study says.
        label: what the case is called in tables; None: its name.
    """

    model: Callable[[], nn.Module]
    dataset: Data
    batch_size: int
    loss: Callable[..., Tensor] = field(default_factory=nn.CrossEntropyLoss)
    reference: Mapping[str, float] = field(default_factory=dict)
    label: str | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"batch_size of a case is {self.batch_size}: give at least 1.")

    def shapes(self) -> tuple[Tensor, Tensor]:
        """A batch (inputs, targets) on the meta device: shapes and types without values."""
        return self.dataset.shapes(self.batch_size)

    def training_graph(self) -> Graph:
        """The graph of one training step, captured without data or memory.

        Raises:
            CaptureError: the model cannot be captured.
        """
        graph = capture(self._on_meta(), self.loss, self.shapes())
        log.info("%d operators, %d variables", len(graph), len(graph.variables))
        return graph

    def exported_graph(self) -> Graph:
        """The graph of an ONNX export for inference, at this batch size; traced with one sample on the CPU.

        Equal operators are as many as the model has, as in PyTorch 1.8. The weights are drawn
        anew: the exporter merges those that are equal, as all biases of a new model are, and those of a
        trained one are not.

        Raises:
            NetSplitError: the model cannot be exported.
        """
        model = self.model()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for tensor in (*model.parameters(), *model.buffers()):
                if tensor.is_floating_point():
                    tensor.uniform_(0.5, 1.5)
        inputs = self.dataset.shapes(1)[0]
        return graph_of(
            inference_model(model, torch.zeros_like(inputs, device="cpu"), merge=False),
            f"export of {type(model).__name__}",
            {"batch": self.batch_size},
        )

    def _on_meta(self) -> nn.Module:
        with torch.device("meta"):
            return self.model()


def check_references(cases: Mapping[str, ModelCase], *known: str) -> None:
    """Refuse a case with a printed figure that the study has no place for.

    Raises:
        ConfigError: the first one, and the names that there are.
    """
    for name, case in cases.items():
        for each in case.reference:
            if each not in known:
                raise ConfigError(
                    f"study.cases.{name}.reference has {each}, which nothing is compared with: known: "
                    f"{', '.join(known) or 'none'}."
                )
