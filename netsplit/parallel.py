"""A model that trains on several devices, for those who use it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from netsplit.data.dataset import IGNORED
from netsplit.errors import NetSplitError, WorkerError
from netsplit.files import write_atomically
from netsplit.graph.ir import Graph
from netsplit.graph.step import as_tuple
from netsplit.optimizers import ForModel
from netsplit.runtime.checkpoint import draws_state, load_draws, load_own
from netsplit.runtime.checkpoint_files import Kind, State, check_fits, kind_of, read_extra
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.simulate.timeline import Timeline

__all__ = ["Metric", "ParallelModel", "correct", "save_state"]

log = logging.getLogger(__name__)

Metric = Callable[[Any, Any], tuple[float, int]]
Batch = tuple[Any, Any]


def correct(outputs: Tensor, targets: Tensor) -> tuple[float, int]:
    """How many class scores (n, classes, ...) are highest at their target (n, ...), and of how many.

    Targets that are `IGNORED`, as torch's losses have it, do not count.
    """
    counted = targets != IGNORED
    return float(((outputs.argmax(1) == targets) & counted).sum()), int(counted.sum())


def save_state(state: Mapping[str, Tensor], path: str | Path) -> None:
    """Write a state to a file that `torch.load` reads, whole or not at all."""
    try:
        write_atomically(path, lambda file: torch.save(dict(state), file))
    except RuntimeError as error:  # torch's way to say that the disk is full
        reason = str(error).splitlines()[0]
        raise NetSplitError(f"checkpoint '{path}' could not be written whole: {reason}.") from error


class ParallelModel:
    """A placed model. Its parameters live on the devices; `state_dict` fetches them."""

    def __init__(
        self,
        model: nn.Module,
        graph: Graph,
        runtime: DistributedRuntime,
        summary: str,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self.model = model
        self.graph = graph
        self.runtime = runtime
        self._summary = summary
        self._on_close = on_close

    @property
    def batch_size(self) -> int:
        """Samples in one training batch."""
        return self.graph.batch_size * self.runtime.program.microbatches

    def train_batch(self, inputs: Any, targets: Any, *, share: float = 1.0, step: bool = True) -> float:
        """One optimiser step on a batch of `batch_size` samples or fewer; its mean loss.

        Args:
            share: multiplies the gradients: of several batches that one step sees, this one's part of
                their samples.
            step: without it gradients are only added up, for a later batch to step on.

        Raises:
            NetSplitError: a batch of another shape, or one that the model treats otherwise than the rest.
            WorkerError: a worker died, raised or hung.
        """
        return self._open().train_batch(as_tuple(inputs), as_tuple(targets), share=share, step=step)

    def measure_batch(
        self, inputs: Any, targets: Any, bytes_too: bool = False, *, share: float = 1.0, step: bool = True
    ) -> tuple[float, Timeline]:
        """`train_batch`, and what was measured while it ran (see `DistributedRuntime.measure`)."""
        return self._open().measure(as_tuple(inputs), as_tuple(targets), bytes_too, share=share, step=step)

    def predict(self, inputs: Any) -> Any:
        """The model's outputs in evaluation mode, for any number of samples, in the model's own structure.

        Samples beyond the last whole batch are computed in a batch filled up with copies of the last. An
        output may have any fixed number of rows a sample.

        Raises:
            NetSplitError: an output whose first dimension does not grow with the samples.
        """
        tensors = as_tuple(inputs)
        if len(tensors[0]) == 0:
            raise NetSplitError("there is nothing to predict: the inputs have no sample.")
        pieces = []
        for start in range(0, len(tensors[0]), self.batch_size):
            parts = tuple(tensor[start : start + self.batch_size] for tensor in tensors)
            count = len(parts[0])
            found = self._open().predict(tuple(_filled(part, self.batch_size) for part in parts))
            pieces.append([found[k][: count * rows] for k, rows in self._rows().items()])
        joined = [torch.cat(tensors) for tensors in zip(*pieces, strict=True)]
        spec = self._inference().output_spec
        if spec is not None:
            return spec.build(joined)
        return joined[0] if len(joined) == 1 else tuple(joined)

    def evaluate(self, batches: Iterable[Batch], metric: Metric = correct) -> float:
        """Mean of a metric over batches; the share of right classes by default.

        Args:
            metric: `(outputs, targets)` of a batch to (sum, count).
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
        return self._plain(self._open().state())

    def ema_state_dict(self) -> dict[str, Tensor]:
        """`state_dict` with the moving averages of trained parameters in their place; buffers as they are.

        Raises:
            NetSplitError: the model was not made with ``ema_decay``.
        """
        if self.runtime.rule.ema_decay is None:
            raise NetSplitError(
                "this model keeps no averages: give ema_decay, as in parallelize(ema_decay=0.999)."
            )
        return self._plain(self._open().state(averaged=True))

    def load_state_dict(
        self, state: Mapping[str, Tensor], strict: bool = True
    ) -> tuple[list[str], list[str]]:
        """Take parameters and buffers by the plain model's keys; of a tied one the last of its names counts.

        The optimiser, the scheduler and averages stay as they are.

        Args:
            strict: the keys must be exactly the model's.

        Returns:
            The model's keys that are missing in `state`, and those of `state` that the model does not have.

        Raises:
            NetSplitError: a key is missing or unknown, or a shape differs; nothing is changed then.
        """
        plain = self.model.state_dict()
        missing, unknown = [k for k in plain if k not in state], [k for k in state if k not in plain]
        if strict and (missing or unknown):
            what = f"has no '{missing[0]}'" if missing else f"has '{unknown[0]}', which the model does not"
            count = len(missing) + len(unknown)
            raise NetSplitError(
                f"the state {what} ({count} keys differ): give one of this model, or strict=False."
            )
        given = {k: state[k] for k in plain if k in state and isinstance(plain[k], Tensor)}
        for k, value in given.items():
            if not isinstance(value, Tensor) or value.shape != plain[k].shape:
                found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise NetSplitError(
                    f"the state's '{k}' is {found}, and {tuple(plain[k].shape)} in this model."
                )
        names, placed = self._names(), self._placed()
        with torch.no_grad():
            for k in given.keys() - placed:
                plain[k].copy_(given[k])
        values = {names.get(k, k): value.detach().cpu() for k, value in given.items() if k in placed}
        self._open().put(values)
        return missing, unknown

    @property
    def learning_rate(self) -> list[float]:
        """Of each of the optimiser's groups; set it to a number for all, or to one for each.

        A scheduler that is stepped goes on from there as it does in plain PyTorch.

        Raises:
            NetSplitError: numbers below 0, or not as many as groups.
        """
        return self._open().learning_rates

    @learning_rate.setter
    def learning_rate(self, rates: float | Sequence[float]) -> None:
        count = len(self._open().learning_rates)
        every = [float(rates)] * count if isinstance(rates, int | float) else [float(rate) for rate in rates]
        if len(every) != count or not all(0 <= rate < math.inf for rate in every):
            raise NetSplitError(f"learning_rate is {rates}: give a number of at least 0, or {count} of them.")
        self._open().learning_rates = every

    @property
    def stepped_rates(self) -> tuple[float, ...]:
        """The learning rates of the optimiser's groups, as they were in the last step."""
        return tuple(self.runtime.rates)

    def check_length(self, epochs: int, steps_per_epoch: int) -> None:
        """Refuse a scheduler that ends before a training does.

        Raises:
            ConfigError: it says how many steps there are.
        """
        rate, optimizer = self.runtime.rule.learning_rate, self.runtime.optimizer
        if rate is not None and isinstance(optimizer, ForModel):
            rate.check_steps(optimizer, epochs * (steps_per_epoch if rate.every == "step" else 1))

    def end_epoch(self, loss: float) -> None:
        """Step a scheduler that is stepped every epoch, where there is one; `loss` is the epoch's mean."""
        rate = self.runtime.rule.learning_rate
        if rate is not None and rate.every == "epoch":
            self.step_scheduler(loss)

    def step_scheduler(self, loss: float | None = None) -> None:
        """Step a scheduler that is stepped every epoch; `netsplit.training.fit` does it by itself.

        Args:
            loss: for ``ReduceLROnPlateau``.

        Raises:
            NetSplitError: there is no such scheduler, or `loss` is missing.
        """
        rate = self.runtime.rule.learning_rate
        if rate is None or rate.every != "epoch":
            why = "none was given" if rate is None else "its scheduler is stepped with every optimiser step"
            raise NetSplitError(
                f"this model has no scheduler to step ({why}): give netsplit.LearningRate(…, every='epoch')."
            )
        rate.check_loss(loss)
        self._open().step_scheduler(loss)

    def save(self, path: str | Path) -> None:
        """Write `state_dict` to a file that `torch.load` reads, whole or not at all."""
        save_state(self.state_dict(), path)

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

        Hyperparameters are the checkpoint's, and random operators go on drawing as its training would have;
        the state of this process's generator is set too.

        Returns:
            What was given as `extra`.

        Raises:
            NetSplitError: there is no whole checkpoint, it is of another model or another optimiser.
        """
        place = Path(folder).absolute()
        extra = read_extra(place)
        check_fits(place, self._needed())
        changed = self._open().load_checkpoint(place)
        draws = load_draws(place, self.runtime.draws.seed)
        if draws.seed != self.runtime.draws.seed:
            changed.append(f"seed {self.runtime.draws.seed} of what is drawn becomes {draws.seed}")
        self.runtime.draws = draws
        if changed:
            log.warning("checkpoint '%s' brings its own settings: %s", folder, ", ".join(changed))
        own = self._own_state()
        load_own(place, own)
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
        for graph in (self._inference(), self.graph):
            for k, init in graph.initializers.items():
                if k not in graph.constants:
                    found |= dict.fromkeys((k, *init.aliases), (init.dtype, init.shape))
        return found

    def _own_state(self) -> State:
        """What no device holds: tensors that nothing depends on, and where random numbers stand."""
        placed = self._placed()
        rest = {f"model.{k}": t.detach() for k, t in self.model.state_dict().items() if k not in placed}
        return {**rest, "rng.controller": torch.get_rng_state(), **draws_state(self.runtime.draws)}

    def _names(self) -> dict[str, str]:
        """Further name of a tied tensor -> that which its initializer has."""
        return {alias: init.name for init in self.graph.initializers.values() for alias in init.aliases}

    def _placed(self) -> set[str]:
        """Names of the tensors that devices hold."""
        return {
            name
            for graph in (self._inference(), self.graph)
            for k, init in graph.initializers.items()
            for name in (k, *init.aliases)
        }

    def _plain(self, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Initializers as the plain model's state."""
        names, plain = self._names(), self.model.state_dict()
        return {key: trained.get(names.get(key, key), plain[key].detach().cpu()) for key in plain}

    def _inference(self) -> Graph:
        assert self.runtime.inference is not None
        return self.runtime.inference.graph

    def _rows(self) -> dict[str, int]:
        """Output variable -> rows a sample."""
        graph, found = self._inference(), {}
        for k in graph.output_variables:
            shape = graph.variables[k].shape
            if not shape or shape[0] % graph.batch_size:
                raise NetSplitError(
                    f"the model's output '{k}' of shape {shape} has no rows for each of {graph.batch_size} "
                    "samples: predict and evaluate need outputs whose first dimension is the sample."
                )
            found[k] = shape[0] // graph.batch_size
        return found


def _filled(tensor: Tensor, size: int) -> Tensor:
    missing = size - len(tensor)
    return tensor if missing == 0 else torch.cat([tensor, tensor[-1:].expand(missing, *tensor.shape[1:])])
