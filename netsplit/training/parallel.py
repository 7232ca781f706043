"""The model that users train on several devices."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Self

from torch import nn

from netsplit.errors import ConfigError, NetSplitError, WorkerError, plain_errors
from netsplit.graph.ir import Graph
from netsplit.interrupts import interrupts_held
from netsplit.optim.learning_rate import every_epoch, rates_of
from netsplit.optim.optimizers import ForModel
from netsplit.pictures.drawing import ShownFigure
from netsplit.planning.plan import Plan, PlanSummary
from netsplit.profile.measure.optimizer import check_switchable
from netsplit.runtime.checkpoint.shares import Cut
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.feeds import samples_of
from netsplit.runtime.worker_calls import TRAINING
from netsplit.settings import OnNonFinite
from netsplit.simulate.timeline import Timeline
from netsplit.training.adapt.adaptation import Adaptation, Switched
from netsplit.training.adapt.switchable import require_switchable
from netsplit.training.captures import lack_explained
from netsplit.training.metrics import AUTO, correct, evaluated
from netsplit.training.programs import Programs
from netsplit.training.training_state import TrainingState, loss_state, plain_state, save_state
from netsplit.training.watch import ModelWatch

__all__ = ["ParallelModel", "Switched", "correct", "save_state"]

Pair = tuple[Any, Any]  # inputs and targets


def _end_here(process: int, close: Callable[[], None]) -> None:
    """Close, but not in a forked process, which does not own the workers."""
    if os.getpid() == process:
        close()


class ParallelModel:
    """A placed model. Its parameters live on the devices; `state_dict` fetches them."""

    def __init__(
        self,
        model: nn.Module,
        graph: Graph,
        runtime: DistributedRuntime,
        programs: Programs,
        plan: Plan,
        on_close: Callable[[], None] | None = None,
        adaptation: Adaptation | None = None,
    ) -> None:
        self.model = model
        self.graph = graph
        self.runtime = runtime
        self.programs = programs
        self.plan = plan
        self.adaptation = adaptation  # looks for other plans, if asked to
        self._measured: Timeline | None = None
        # Also when it is dropped, and when the interpreter ends.
        self._end = None if on_close is None else weakref.finalize(self, _end_here, os.getpid(), on_close)
        self._turn = threading.RLock()
        placed = weakref.proxy(self)  # no reference cycle: it ends when dropped
        self._watch = ModelWatch(model, programs, lambda: placed._open(), self._turn)

    @property
    def batch_size(self) -> int:
        return samples_of(self.runtime.program)

    @plain_errors
    def train_batch(
        self, inputs: Any, targets: Any = None, *, fraction: float = 1.0, step: bool = True
    ) -> float:
        """One optimiser step on a batch of any shapes and any number of samples; its mean loss.

        Inputs and targets are as docs/batches.md has them; `metrics` then has what came beside the loss.

        Args:
            fraction: multiplies the gradients: this batch's part of the samples of a step.
            step: False only accumulates gradients for a later step.

        Raises:
            NetSplitError: more kinds of batches than `max_programs`, or a batch that trains what the example
                did not.
            NonFiniteError: the loss is no finite number, and `on_nonfinite` is "stop".
            BatchError: a device could not compute it, e.g. a label out of range; the model is unchanged
                unless the schedule steps within the batch.
            WorkerError: a worker died or hung, or the optimiser failed in an earlier batch's step.
        """
        timeline = None
        with self._watch.training(self.programs, inputs, targets) as batch:
            if self.adaptation is not None and step and self.adaptation.measuring:
                loss, timeline = self._open().measure(batch, None, fraction=fraction)
            else:
                loss = self._open().train_batch(batch, fraction=fraction, step=step)
        self._adapt(timeline, step)
        return loss

    @plain_errors
    def make_program(self, inputs: Any, targets: Any = None) -> None:
        """Build the program for such a batch ahead of time, without training; raises as `train_batch`."""
        with self._watch.own(self.programs):
            self.programs.training(self.programs.batch(inputs, targets))

    @plain_errors
    def switch(self, plan: Plan) -> Switched:
        """Change to another plan of the same model on the same workers, from the next batch on.

        Parameters, buffers, the optimiser's and the scheduler's state, averages and the loss scale move
        between the workers, over their connections; what is trained stays the same (docs/adaptive.md).

        Raises:
            NetSplitError: the plan would train something else, or gradients wait for a step; nothing is
                changed then.
            WorkerError: a worker died or hung.
        """
        done = self._switch(plan)
        if self.adaptation is not None:
            self.adaptation.follow(plan)
        return done

    def _switch(self, plan: Plan) -> Switched:
        require_switchable(self.plan, plan)
        if self.runtime.optimizer is not None:
            check_switchable(self.runtime.optimizer, self.runtime.rule.learning_rate)
        runtime, began = self._open(), time.perf_counter()
        program = plan.simulated[0]
        programs = self.programs.of_plan(plan)
        with interrupts_held(firmly=True):
            nbytes = runtime.switch(program, programs.training)
            self.plan, self.programs, self._measured = plan, programs, None
        seconds = time.perf_counter() - began
        programs.made_s += seconds
        return Switched(seconds, nbytes)

    @property
    def trained_batches(self) -> int:
        """Batches trained since the beginning, including those before a loaded checkpoint.

        After an interruption it tells whether the batch was trained.
        """
        return self._open().draws.batches

    @property
    def made_s(self) -> float:
        """Seconds spent so far on building programs for further kinds of batches."""
        return self.programs.made_s + self.runtime.loaded.sent_s

    @property
    def metrics(self) -> Any:
        """Means of what the loss returned besides itself on the last batch; None for nothing."""
        return self.runtime.metrics

    @plain_errors
    def measure_batch(
        self, inputs: Any, targets: Any, bytes_too: bool = False, *, fraction: float = 1.0, step: bool = True
    ) -> tuple[float, Timeline]:
        """`train_batch`, with its measurements (see `DistributedRuntime.measure`)."""
        with self._watch.training(self.programs, inputs, targets) as batch:
            loss, timeline = self._open().measure(batch, None, bytes_too, fraction=fraction, step=step)
        seconds_of = self._measured if bytes_too and self._measured is not None else timeline
        bytes_of = timeline if bytes_too or self._measured is None else self._measured
        self._measured = replace(seconds_of, peak_bytes=bytes_of.peak_bytes)
        self._adapt(None if bytes_too else timeline, step)
        return loss, timeline

    @plain_errors
    def predict(self, inputs: Any) -> Any:
        """The model's output in evaluation mode, in the model's own structure, for any number of samples.

        Inputs are as in training, of any shapes (docs/batches.md). More samples than a micro-batch are cut
        into micro-batches if each output has one row per sample.

        Raises:
            NetSplitError: inputs of more kinds than `max_programs`, or on which the model cannot be captured.
            WorkerError: a worker died, raised or hung.
        """
        batch = self.programs.batch(inputs)
        runtime = self._open()
        with (
            lack_explained(self.model, self.programs.captures.loss, inputs),
            self._watch.own(self.programs),
        ):
            parts = self.programs.parts(batch)
            done = [(part, runtime.predict(part.program, part.batch)) for part in parts]
            return self.programs.joined(done)

    @plain_errors
    def evaluate(self, batches: Iterable[Pair], metric: Any = AUTO) -> float:
        """A metric over batches of any sizes, every sample with the same weight.

        Args:
            batches: pairs (inputs, targets), with inputs as in `predict`.
            metric: "accuracy", "top5", "mean_iou", "mse" or "perplexity"; "auto": mse for a regression, by
                the loss or the first batch's targets, else accuracy. Or a function of (outputs, targets) that
                returns (sum, count), or an object with reset, update and compute, as in torchmetrics.

        Raises:
            NetSplitError: no batch, or a metric that does not fit outputs and targets.
        """
        return evaluated(self.predict, batches, metric, self.programs.captures.loss)

    @plain_errors
    def state_dict(self) -> dict[str, Any]:
        """The plain model's `state_dict` with current parameters and buffers, on the CPU.

        Raises:
            WorkerError: the workers that held them are gone.
        """
        return plain_state(self.model, self._open().state())

    @plain_errors
    def loss_state_dict(self) -> dict[str, Any]:
        """`state_dict` of the loss, if it is a module: its parameters are trained, too.

        Raises:
            NetSplitError: it is none.
            WorkerError: the workers that held them are gone.
        """
        loss = self.programs.captures.loss
        if not isinstance(loss, nn.Module):
            raise NetSplitError("the loss is not a torch.nn.Module, so it has no state.")
        return loss_state(self.model, loss, self._open().state())

    def ema_state_dict(self) -> dict[str, Any]:
        """`state_dict` with moving averages instead of trained parameters; buffers are unchanged.

        Raises:
            NetSplitError: the model was not made with ``ema_decay``.
        """
        if self.runtime.rule.ema_decay is None:
            raise NetSplitError("this model keeps no parameter averages: give parallelize(ema_decay=0.999).")
        return plain_state(self.model, self._open().state(averaged=True))

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> tuple[list[str], list[str]]:
        """Load a state as the plain model's own `load_state_dict` does, with its keys and hooks.

        The optimiser, the scheduler and averages stay as they are.

        Args:
            strict: the keys must be exactly the model's.

        Returns:
            Missing keys and unexpected keys.

        Raises:
            NetSplitError: a key is missing or unknown, or a shape differs; nothing is changed.
        """
        return self._state.put(state, strict)

    @property
    def learning_rate(self) -> list[float]:
        """Learning rates of the optimiser's groups; set one number for all, or one for each.

        A scheduler continues from there as in plain PyTorch.

        Raises:
            NetSplitError: numbers below 0, or another number of them than groups.
        """
        return self._open().learning_rates

    @learning_rate.setter
    def learning_rate(self, rates: float | Sequence[float]) -> None:
        runtime = self._open()
        runtime.learning_rates = rates_of(rates, len(runtime.learning_rates))

    @property
    def on_nonfinite(self) -> OnNonFinite | None:
        """What happens on a batch whose loss is no finite number."""
        return self.runtime.rule.on_nonfinite

    def drop_gradients(self) -> None:
        """Forget gradients accumulated with ``step=False``."""
        self._open().drop_gradients()

    @property
    def stepped_rates(self) -> tuple[float, ...]:
        """Learning rates of the optimiser's groups in the last step."""
        return tuple(self.runtime.rates)

    def check_length(self, epochs: int, steps_per_epoch: int) -> None:
        """Refuse a scheduler that ends before the training does.

        Raises:
            ConfigError: it says how many steps there are.
        """
        rate, optimizer = self.runtime.rule.learning_rate, self.runtime.optimizer
        if rate is not None and isinstance(optimizer, ForModel):
            rate.check_steps(optimizer, epochs * (steps_per_epoch if rate.every == "step" else 1))

    def end_epoch(self, loss: float) -> None:
        """Step an epoch-wise scheduler, if there is one; `loss` is the epoch's mean."""
        rate = self.runtime.rule.learning_rate
        if rate is not None and rate.every == "epoch":
            self.step_scheduler(loss)

    def step_scheduler(self, loss: float | None = None) -> None:
        """Step an epoch-wise scheduler; `netsplit.training.epochs.fit` does so itself.

        Args:
            loss: for ``ReduceLROnPlateau``.

        Raises:
            NetSplitError: there is no such scheduler, or `loss` is missing.
        """
        every_epoch(self.runtime.rule.learning_rate).check_loss(loss)
        self._open().step_scheduler(loss)

    def save(self, path: str | Path) -> None:
        """Write `state_dict` to a file that `torch.load` reads, whole or not at all.

        Raises:
            NetSplitError: it cannot be written there.
            WorkerError: the workers that held the parameters are gone.
        """
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(f"path is {path!r}: give the path of a file to write.")
        save_state(self.state_dict(), path)

    def save_checkpoint(self, folder: str | Path, extra: Mapping[str, Any] | None = None) -> None:
        """Write all that training needs to go on, whole or not at all: docs/checkpoints.md.

        Args:
            folder: of this one checkpoint; an earlier one there is replaced.
            extra: JSON values, which `load_checkpoint` returns.

        Raises:
            NetSplitError: it cannot be written, or accumulated gradients wait for a step.
            WorkerError: a worker died.
        """
        self._state.save(Path(folder).absolute(), extra or {})

    def load_checkpoint(self, folder: str | Path) -> dict[str, Any]:
        """Resume from a checkpoint, whatever placement or number of devices saved it.

        Hyperparameters and random states are the checkpoint's, this process's generator included. A warning
        says if other micro-batches change more than rounding.

        Returns:
            The `extra` of `save_checkpoint`.

        Raises:
            NetSplitError: no complete checkpoint, or one of another model or optimiser.
        """
        return self._state.load(folder, lambda: self._watch.own(self.programs))

    def summary(self) -> PlanSummary:
        """What was decided and predicted, by device: text when printed, a table in a notebook."""
        summary = self.plan.summary()
        decisions = self.adaptation.decisions if self.adaptation is not None else []
        return replace(summary, lines=(*summary.lines, *map(str, decisions)))

    def plot(self, kind: str, measured: Timeline | None = None) -> ShownFigure:
        """A picture for a notebook: "graph", "timeline" or "memory", as `Plan.plot` has them.

        `measured` is shown beside the prediction; by default the last `measure_batch` of the usual shapes.
        """
        return self.plan.plot(kind, self._measured if measured is None else measured)

    def close(self) -> None:
        """Stop this model's workers."""
        if self._end is not None:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.runtime.finish()
        finally:
            self.close()

    def __reduce__(self) -> NoReturn:
        raise NetSplitError(
            "a split model lives on its workers and cannot be copied or pickled: keep it with "
            "save_checkpoint, or its state_dict()."
        )

    def _adapt(self, timeline: Timeline | None, step: bool) -> None:
        """Adapt after a trained batch, with its measured timeline if there is one."""
        runtime, adaptation = self.runtime, self.adaptation
        if adaptation is None or not step or runtime.pool.programs[TRAINING] is not runtime.program:
            return

        searched_s = adaptation.searched_s
        measured = timeline if timeline is not None and timeline.events else None
        adaptation.iteration(measured, runtime, self._switch, runtime.draws.batches)
        self.programs.made_s += adaptation.searched_s - searched_s

    def _open(self) -> DistributedRuntime:
        """The runtime; raises NetSplitError once the workers have ended."""
        if not self.runtime.pool.connections:
            raise WorkerError("the workers of this model have ended: it was closed, or one of them failed.")
        with self._turn:  # else it would undo another thread's iteration
            self.runtime.settle()
        return self.runtime

    @property
    def _state(self) -> TrainingState:
        cut = Cut(self.plan.compiler.schedule.microbatches, self.graph.batch_size)
        return TrainingState(self.model, self.graph, self._open, cut)
