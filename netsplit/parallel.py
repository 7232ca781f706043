"""A model that trains on several devices, for those who use it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from netsplit.data.dataset import IGNORED
from netsplit.errors import NetSplitError, WorkerError
from netsplit.files import write_atomically
from netsplit.graph.ir import Graph
from netsplit.programs import Programs
from netsplit.runtime.checkpoint import load_own
from netsplit.runtime.checkpoint_files import Kind, State, check_fits, kind_of, read_extra
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.feeds import samples_of
from netsplit.simulate.timeline import Timeline

__all__ = ["Metric", "ParallelModel", "correct"]

log = logging.getLogger(__name__)

Metric = Callable[[Any, Any], tuple[float, int]]
Pair = tuple[Any, Any]  # inputs and targets


def correct(outputs: Tensor, targets: Tensor) -> tuple[float, int]:
    """How many class scores (n, classes, ...) are highest at their target (n, ...), and of how many.

    Targets that are `IGNORED`, as torch's losses have it, do not count.
    """
    counted = targets != IGNORED
    return float(((outputs.argmax(1) == targets) & counted).sum()), int(counted.sum())


class ParallelModel:
    """A placed model. Its parameters live on the devices; `state_dict` fetches them."""

    def __init__(
        self,
        model: nn.Module,
        graph: Graph,
        runtime: DistributedRuntime,
        programs: Programs,
        summary: str,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self.model = model
        self.graph = graph
        self.runtime = runtime
        self.programs = programs
        self._summary = summary
        self._on_close = on_close

    @property
    def batch_size(self) -> int:
        """Samples in one training batch."""
        return samples_of(self.runtime.program)

    def train_batch(
        self, inputs: Any, targets: Any = None, *, share: float = 1.0, step: bool = True
    ) -> float:
        """One optimiser step on a batch of any shapes and any number of samples; its mean loss.

        Inputs and targets are as docs/batches.md has them; `metrics` then has what came beside the loss.

        Args:
            share: multiplies the gradients: of several batches that one step sees, this one's part of
                their samples.
            step: without it gradients are only added up, for a later batch to step on.

        Raises:
            NetSplitError: batches of more kinds than `max_programs`, or one on which the model trains what it
                did not train on the example.
            WorkerError: a worker died, raised or hung.
        """
        batch = self.programs.batch(inputs, targets)
        return self._open().train_batch(batch, share=share, step=step)

    @property
    def metrics(self) -> Any:
        """What came beside the loss on the last batch, in its own structure: means over the samples.

        None where the loss comes alone.
        """
        return self.runtime.metrics

    def measure_batch(
        self, inputs: Any, targets: Any, bytes_too: bool = False, *, share: float = 1.0, step: bool = True
    ) -> tuple[float, Timeline]:
        """`train_batch`, and what was measured while it ran (see `DistributedRuntime.measure`)."""
        batch = self.programs.batch(inputs, targets)
        return self._open().measure(batch, None, bytes_too, share=share, step=step)

    def predict(self, inputs: Any) -> Any:
        """The model's output in evaluation mode, in the model's own structure, for any number of samples.

        Inputs are as in training, of any shapes: docs/batches.md. Up to a micro-batch they are computed at
        once; more in micro-batches, where each output has rows of its own for every sample.

        Raises:
            NetSplitError: inputs of more kinds than `max_programs`, or on which the model cannot be captured.
            WorkerError: a worker died, raised or hung.
        """
        batch = self.programs.batch(inputs)
        runtime = self._open()
        parts = self.programs.parts(batch)
        return self.programs.joined([(part, runtime.predict(part.program, part.batch)) for part in parts])

    def evaluate(self, batches: Iterable[Pair], metric: Metric = correct) -> float:
        """Mean of a metric over batches; the share of right classes by default.

        Args:
            metric: `(outputs, targets)` of a batch to (sum, count); both in the structures of model and data.
        """
        total, count = 0.0, 0
        for inputs, targets in batches:
            value, n = metric(self.predict(inputs), targets)
            total, count = total + value, count + n
        if count == 0:
            raise NetSplitError("there is nothing to evaluate: the data has no batch.")
        return total / count

    def state_dict(self) -> dict[str, Tensor]:
        """Present parameters and buffers under the plain model's own keys, on the CPU.

        Raises:
            WorkerError: the workers that held them are gone.
        """
        trained = self._open().state()
        names = {alias: init.name for init in self.graph.initializers.values() for alias in init.aliases}
        plain = self.model.state_dict()
        return {key: trained.get(names.get(key, key), plain[key].detach().cpu()) for key in plain}

    def save(self, path: str | Path) -> None:
        """Write `state_dict` to a file that `torch.load` reads, whole or not at all."""
        state = self.state_dict()
        try:
            write_atomically(path, lambda file: torch.save(state, file))
        except RuntimeError as error:  # torch's way to say that the disk is full
            reason = str(error).splitlines()[0]
            raise NetSplitError(f"checkpoint '{path}' could not be written whole: {reason}.") from error

    def save_checkpoint(self, folder: str | Path, extra: Mapping[str, Any] | None = None) -> None:
        """Write all that training needs to go on, whole or not at all: docs/checkpoints.md.

        Args:
            folder: of this one checkpoint; what is there is replaced.
            extra: values that JSON takes, given back by `load_checkpoint`.

        Raises:
            NetSplitError: it cannot be written.
            WorkerError: a worker died.
        """
        self._open().save_checkpoint(Path(folder).absolute(), extra or {}, self._own_state())

    def load_checkpoint(self, folder: str | Path) -> dict[str, Any]:
        """Go on where a checkpoint stands, whatever placement or number of devices it was saved under.

        Sets the state of torch's random number generators too. Hyperparameters are the checkpoint's.

        Returns:
            What was given as `extra`.

        Raises:
            NetSplitError: there is no whole checkpoint, it is of another model or another optimiser.
        """
        place = Path(folder).absolute()
        extra = read_extra(place)
        check_fits(place, self._needed())
        changed = self._open().load_checkpoint(place)
        if changed:
            log.warning("checkpoint '%s' brings its own settings: %s", folder, ", ".join(changed))
        own = self._own_state()
        load_own(place, own)
        self._open().put({k: own[f"model.{k}"] for k in self._open().late})
        torch.set_rng_state(own["rng.controller"])
        return extra

    def summary(self) -> str:
        """What was decided, predicted and where the operators are."""
        return self._summary

    def close(self) -> None:
        """Stop the workers that were started for this model."""
        if self._on_close is not None:
            self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> DistributedRuntime:
        """The runtime, as long as the workers live: what was on them cannot be had any more."""
        if not self.runtime.pool.connections:
            raise WorkerError("the workers of this model are gone: it was closed, or one of them failed.")
        return self.runtime

    def _needed(self) -> dict[str, Kind]:
        """Every name that a checkpoint of this model has."""
        found = {name: kind_of(tensor) for name, tensor in self.model.state_dict().items()}
        for k, init in self.graph.initializers.items():
            if k not in self.graph.constants:
                found |= dict.fromkeys((k, *init.aliases), (init.dtype, init.shape))
        return found

    def _own_state(self) -> State:
        """What training needs on no device: tensors it does not use, and this process's random numbers."""
        placed = {name for k, init in self.graph.initializers.items() for name in (k, *init.aliases)}
        rest = {k: t.detach() for k, t in self.model.state_dict().items() if k not in placed}
        for k, tensor in self._open().late_state().items():
            rest[k].copy_(tensor)
        return {**{f"model.{k}": t for k, t in rest.items()}, "rng.controller": torch.get_rng_state()}
