"""A model that trains on several devices, for those who use it."""

from __future__ import annotations

import logging
import math
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from netsplit.config import OnNonFinite
from netsplit.errors import ConfigError, NetSplitError, WorkerError, told_plainly
from netsplit.files import write_atomically
from netsplit.graph.autocast import refuse_surrounding
from netsplit.graph.batches.batch import Batch
from netsplit.graph.batches.calls import lacking
from netsplit.graph.checks.holding import by_name, first_names
from netsplit.graph.checks.notice import Notice
from netsplit.graph.checks.plain import has_values
from netsplit.graph.ir import Graph
from netsplit.graph.recording.stand_ins import named_tensors, persistent_tensors
from netsplit.interrupts import interrupts_held
from netsplit.optim.optimizers import ForModel
from netsplit.pictures.shown import ShownFigure
from netsplit.planning.plan import Plan
from netsplit.planning.summary import PlanSummary
from netsplit.planning.whole.whole_plan import WholePlan
from netsplit.runtime.checkpoint.cut import Cut, change_of_cut, cut_state
from netsplit.runtime.checkpoint.files import Kind, State, check_fits, kind_of, read_extra
from netsplit.runtime.checkpoint.shares import draws_state, load_draws, load_own
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.feeds import samples_of
from netsplit.runtime.reading.told import UnreadBatch
from netsplit.runtime.worker_calls import TRAINING
from netsplit.simulate.timeline import Timeline
from netsplit.training.adapt.adaptation import Adaptation
from netsplit.training.adapt.switchable import require_switchable
from netsplit.training.evaluation import evaluated
from netsplit.training.metrics import AUTO, correct
from netsplit.training.plain_state import loaded, plain_state
from netsplit.training.programs import Programs
from netsplit.training.reuse import Reuse

__all__ = ["ParallelModel", "Switched", "correct", "save_state"]

log = logging.getLogger(__name__)

Pair = tuple[Any, Any]  # inputs and targets


def save_state(state: Mapping[str, Any], path: str | Path) -> None:
    """Write a state to a file that `torch.load` reads, whole or not at all.

    Raises:
        NetSplitError: it cannot be written there.
    """
    try:
        write_atomically(path, lambda file: torch.save(state, file))
    except OSError as error:
        raise NetSplitError(
            f"'{path}' cannot be written ({error.strerror or error}): choose another place, or make room."
        ) from error
    except RuntimeError as error:  # torch's way to say that the disk is full
        reason = str(error).splitlines()[0]
        raise NetSplitError(
            f"checkpoint '{path}' could not be written whole, most likely as no room is left ({reason}): "
            "make room, or choose another place."
        ) from error


@dataclass(frozen=True)
class Switched:
    """What a change of plan took."""

    seconds: float
    nbytes: int  # that moved between workers


def _end_here(process: int, close: Callable[[], None]) -> None:
    """Not in a fork of the process, as those that load data: the workers are not theirs."""
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
        whole_plan: WholePlan | None = None,
        adaptation: Adaptation | None = None,
    ) -> None:
        self.model = model
        self.graph = graph
        self.runtime = runtime
        self.programs = programs
        self.plan = plan
        self.whole_plan = whole_plan  # what the plan was chosen from, where all was decided together
        self.adaptation = adaptation  # what looks for other plans, where that is asked for
        self._measured: Timeline | None = None
        # Also when it is dropped, and when the interpreter ends.
        self._end = None if on_close is None else weakref.finalize(self, _end_here, os.getpid(), on_close)
        captures = programs.captures
        placed = weakref.proxy(self)  # in no circle with what it has: it ends when it is dropped
        self._values = lambda: placed._open().state()
        captures.trained = self._values
        kept = runtime.optimizer.made if isinstance(runtime.optimizer, ForModel) else ()
        self._notice = Notice(model, captures.loss, kept) if captures.check else None
        self._reuse = Reuse() if captures.check else None

    @property
    def batch_size(self) -> int:
        """Samples in one training batch."""
        return samples_of(self.runtime.program)

    @told_plainly
    def train_batch(
        self, inputs: Any, targets: Any = None, *, fraction: float = 1.0, step: bool = True
    ) -> float:
        """One optimiser step on a batch of any shapes and any number of samples; its mean loss.

        Inputs and targets are as docs/batches.md has them; `metrics` then has what came beside the loss.

        Args:
            fraction: multiplies the gradients: of several batches that one step sees, this one's part of
                their samples.
            step: without it gradients are only added up, for a later batch to step on.

        Raises:
            NetSplitError: batches of more kinds than `max_programs`, or one on which the model trains what it
                did not train on the example; the model was changed meanwhile, which the split does not see.
            NonFiniteError: the loss is no finite number, and `on_nonfinite` is "stop".
            BatchError: a device could not compute it, as for a label out of range: all is as it was before
                it, and training may go on. Not so under schedules that step within the batch.
            WorkerError: a worker died or hung.
        """
        timeline = None
        with self._training(inputs, targets) as batch:
            if self.adaptation is not None and step and self.adaptation.measuring:
                loss, timeline = self._open().measure(batch, None, fraction=fraction)
            else:
                loss = self._open().train_batch(batch, fraction=fraction, step=step)
        self._adapt(timeline, step)
        return loss

    @told_plainly
    def switch(self, plan: Plan) -> Switched:
        """Train on by another plan of the same model on the same workers, from the next batch on.

        Parameters, buffers, the optimiser's and the scheduler's state, averages and the loss scale move
        between the workers, over their connections; what is trained stays the same (docs/adaptive.md).

        Raises:
            NetSplitError: the plan would train something else, or gradients wait for a step; nothing is
                changed then.
            WorkerError: a worker died or hung.
        """
        require_switchable(self.plan, plan)
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
        """How many batches have been trained since the beginning, or since that of a checkpoint's training.

        After an interruption it says whether the batch was trained: wholly, or not at all.
        """
        return self._open().draws.batches

    @property
    def made_s(self) -> float:
        """Seconds so far in which no batch was trained: programs for further kinds of batches were made."""
        return self.programs.made_s + self.runtime.sent_s

    @property
    def metrics(self) -> Any:
        """What came beside the loss on the last batch, in its own structure: means over the samples.

        None where the loss comes alone.
        """
        return self.runtime.metrics

    @told_plainly
    def measure_batch(
        self, inputs: Any, targets: Any, bytes_too: bool = False, *, fraction: float = 1.0, step: bool = True
    ) -> tuple[float, Timeline]:
        """`train_batch`, and what was measured while it ran (see `DistributedRuntime.measure`)."""
        with self._training(inputs, targets) as batch:
            loss, timeline = self._open().measure(batch, None, bytes_too, fraction=fraction, step=step)
        seconds_of = self._measured if bytes_too and self._measured is not None else timeline
        bytes_of = timeline if bytes_too or self._measured is None else self._measured
        self._measured = replace(seconds_of, peak_bytes=bytes_of.peak_bytes)
        self._adapt(None if bytes_too else timeline, step)
        return loss, timeline

    @told_plainly
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
        try:
            with self._own():
                parts = self.programs.parts(batch)
                done = [(part, runtime.predict(part.program, part.batch)) for part in parts]
                return self.programs.joined(done)
        except NetSplitError as error:
            if self.programs.captures.loss is None and (name := lacking(self.model, inputs)):
                raise ConfigError(
                    f"{type(self.model).__name__}.forward needs '{name}' too, which it has of the targets in "
                    "training, as its loss is inside: give inputs as there, in predict((inputs, targets)) "
                    "and evaluate([((inputs, targets), targets)])."
                ) from error
            raise

    @told_plainly
    def evaluate(self, batches: Iterable[Pair], metric: Any = AUTO) -> float:
        """A metric over batches of any sizes, every sample with the same weight.

        Args:
            batches: pairs (inputs, targets), of which the inputs are as in `predict`.
            metric: "accuracy", "top5", "mean_iou", "mse" or "perplexity"; "auto": mse where the first batch's
                targets are real numbers or the loss is a regression's, else the accuracy. Or `(outputs,
                targets)` of a batch, in the structures of model and data, to (sum, count), of which the mean
                is taken; or an object with reset, update and compute, as torchmetrics' are.

        Raises:
            NetSplitError: there is no batch, or the metric is not for such outputs and targets.
        """
        return evaluated(self.predict, batches, metric, self.programs.captures.loss)

    @told_plainly
    def state_dict(self) -> dict[str, Any]:
        """What the plain model's own `state_dict` gives of the present parameters and buffers, on the CPU.

        Raises:
            WorkerError: the workers that held them are gone.
        """
        return plain_state(self.model, self._open().state())

    def ema_state_dict(self) -> dict[str, Any]:
        """`state_dict` with the moving averages of trained parameters in their place; buffers as they are.

        Raises:
            NetSplitError: the model was not made with ``ema_decay``.
        """
        if self.runtime.rule.ema_decay is None:
            raise NetSplitError(
                "this model keeps no averages: give ema_decay, as in parallelize(ema_decay=0.999)."
            )
        return plain_state(self.model, self._open().state(averaged=True))

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> tuple[list[str], list[str]]:
        """Take a state as the plain model's own `load_state_dict` does: by its keys, with its hooks.

        The optimiser, the scheduler and averages stay as they are.

        Args:
            strict: the keys must be exactly the model's.

        Returns:
            Keys that are missing in `state`, and those that the model does not have, as its own tells them.

        Raises:
            NetSplitError: a key is missing or unknown, or a shape differs; nothing is changed then.
        """
        if not has_values(self.model, None):
            raise NetSplitError(
                "this model has no memory of its own to load a state into (it is on the meta device): load a "
                "checkpoint, which every device reads its own part of."
            )
        values, missing, unknown = loaded(self.model, self._open().state(), state, strict)
        placed = self._placed()
        with interrupts_held(firmly=True):
            self._open().put(values)
            for k, tensor in named_tensors(self.model).items():
                if k in values and k not in placed:
                    tensor.data.copy_(values[k])
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
    def on_nonfinite(self) -> OnNonFinite | None:
        """What happens on a batch whose loss is no finite number."""
        return self.runtime.rule.on_nonfinite

    def drop_gradients(self) -> None:
        """Forget the gradients of batches that were trained with ``step=False``."""
        self._open().drop_gradients()

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
        """Step a scheduler that is stepped every epoch; `netsplit.training.epochs.fit` does it by itself.

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
        """Write `state_dict` to a file that `torch.load` reads, whole or not at all.

        Raises:
            NetSplitError: it cannot be written there.
            WorkerError: the workers that held the parameters are gone.
        """
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(f"path is {path!r}: give that of a file to write.")
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
        with interrupts_held():
            self._open().save_checkpoint(Path(folder).absolute(), extra or {}, self._own_state())

    def load_checkpoint(self, folder: str | Path) -> dict[str, Any]:
        """Go on where a checkpoint stands, whatever placement or number of devices it was saved under.

        Hyperparameters are the checkpoint's, and random operators go on drawing as its training would have;
        the state of this process's generator is set too. Where batches are cut into other micro-batches than
        its training's were, and more than rounding depends on that, it is said.

        Returns:
            What was given as `extra`.

        Raises:
            NetSplitError: there is no whole checkpoint, it is of another model or another optimiser.
        """
        place = Path(folder).absolute()
        extra = read_extra(place)
        check_fits(place, self._needed())
        runtime = self._open()
        if (change := change_of_cut(place, self.graph, self._cut)) is not None:
            log.warning("checkpoint '%s': %s", folder, change)
        with interrupts_held(firmly=True):
            changed = runtime.load_checkpoint(place)
            draws = load_draws(place, runtime.draws.seed)
            if draws.seed != runtime.draws.seed:
                changed.append(f"seed {runtime.draws.seed} of what is drawn becomes {draws.seed}")
            runtime.draws = draws
            if changed:
                log.warning("checkpoint '%s' brings its own settings: %s", folder, ", ".join(changed))
            own = self._own_state()
            with self._own():
                load_own(place, own)
            late = {k: f"model.{k}" for k in runtime.late}
            runtime.put({k: own[name] for k, name in late.items() if name in own})
            torch.set_rng_state(own["rng.controller"])
        return extra

    def summary(self) -> PlanSummary:
        """What was decided and predicted, by device: text where it is printed, a table in a notebook."""
        summary = self.plan.summary()
        decisions = self.adaptation.decisions if self.adaptation is not None else []
        return replace(summary, lines=(*summary.lines, *map(str, decisions)))

    def plot(self, kind: str) -> ShownFigure:
        """A picture for a notebook: "graph", "timeline" or "memory", as `Plan.plot` has them.

        The last iteration that `measure_batch` measured is shown beside the prediction; of one that was like
        the first batch.
        """
        return self.plan.plot(kind, self._measured)

    def close(self) -> None:
        """Stop the workers that were started for this model."""
        if self._end is not None:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _adapt(self, timeline: Timeline | None, step: bool) -> None:
        """After a trained batch: its measured timeline, where there is one, tells of the workers."""
        runtime, adaptation = self.runtime, self.adaptation
        if adaptation is None or not step or runtime.pool.programs[TRAINING] is not runtime.program:
            return

        def change(plan: Plan) -> tuple[float, int]:
            done = self.switch(plan)
            return done.seconds, done.nbytes

        searched_s = adaptation.searched_s
        adaptation.iteration(timeline if timeline is not None and timeline.events else None, runtime, change)
        self.programs.made_s += adaptation.searched_s - searched_s

    @contextmanager
    def _own(self, training: bool = False) -> Iterator[None]:
        """Tell what is done here to the user's model from what the user does to it.

        Args:
            training: what the user did is looked for first; only programs that are made then run the model.
        """
        captures = self.programs.captures
        refuse_surrounding(captures.autocast)
        captures.trained = self._values  # others have the captures, too, as one that only started new workers
        if self._notice is None:
            yield
            return
        if not training:
            with self._notice.own():
                yield
            return
        self._notice.look(self._states)
        made_s = self.programs.made_s
        with self._notice.own(looked=True, ran=lambda: self.programs.made_s != made_s):
            yield

    def _states(self) -> Iterator[dict[str, Tensor]]:
        yield by_name(self.model, self._open().state())
        if self.runtime.rule.ema_decay is not None:
            yield by_name(self.model, self._open().state(averaged=True))

    @contextmanager
    def _training(self, inputs: Any, targets: Any) -> Iterator[Batch | UnreadBatch]:
        """While a batch is trained."""
        with self._own(training=True):
            if isinstance(inputs, UnreadBatch):  # its tensors are new ones, on the workers
                yield inputs
                return
            batch = self.programs.batch(inputs, targets)
            with (
                self._reuse.noted(self.programs.training(batch).graph, batch)
                if self._reuse
                else nullcontext()
            ):
                yield batch

    def _open(self) -> DistributedRuntime:
        """The runtime, as long as the workers live: what was on them cannot be had any more."""
        if not self.runtime.pool.connections:
            raise WorkerError("the workers of this model are gone: it was closed, or one of them failed.")
        self.runtime.settle()
        return self.runtime

    def _needed(self) -> dict[str, Kind]:
        """Every name that a checkpoint of this model has."""
        kinds = {name: kind_of(tensor) for name, tensor in persistent_tensors(self.model).items()}
        for k, init in self.graph.initializers.items():
            if k not in self.graph.constants:
                kinds |= dict.fromkeys((k, *init.aliases), (init.dtype, init.shape))
        return kinds

    def _own_state(self) -> State:
        """What training needs on no device: tensors it does not use, and where random numbers stand."""
        placed, names = self._placed(), first_names(self.model)
        late = self._open().late_state()
        state = {
            f"model.{k}": late.get(names[k], t.data)
            for k, t in persistent_tensors(self.model).items()
            if k not in placed
        }
        return {
            **state,
            "rng.controller": torch.get_rng_state(),
            **draws_state(self.runtime.draws),
            **cut_state(self._cut),
        }

    @property
    def _cut(self) -> Cut:
        return Cut(self.plan.compiler.schedule.microbatches, self.graph.batch_size)

    def _placed(self) -> set[str]:
        """Names of the tensors that training has on devices."""
        return {name for k, init in self.graph.initializers.items() for name in (k, *init.aliases)}
