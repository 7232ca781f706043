"""Lightning's `Trainer` with its own loop, data, schedules, validation and files; the steps are NetSplit's.

fit ─► training_step ─► ParallelModel.train_batch       forward, backward, clip, optimiser's step
  ├─ scheduler changes rates of an optimiser that holds no gradient ─► passed on before each batch
  └─ validation, checkpoint, end ─► what was trained is copied into the LightningModule

A LightningModule's `training_step` is a model whose output is the loss, beside what it logs. While it is
captured or compared, the module stands alone: without its Trainer, of which a captured step sees nothing, and
with a `log` that keeps the values, which come back from the devices as metrics.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn

from netsplit.errors import NetSplitError
from netsplit.integrations.named_groups import KEY, SplitModel, overriding, pack
from netsplit.lazy import of_extra
from netsplit.training.parallel import ParallelModel

__all__ = ["NetSplitStrategy"]

TAKEN = ("model", "loss", "batch", "optimizer", "scheduler", "clip_norm", "autocast", "ema_decay")
STATES, RATES = "optimizer_states", "learning_rates"

if TYPE_CHECKING:
    Base = Any
else:
    Base = of_extra(
        "lightning", "NetSplitStrategy", "lightning", "lightning.pytorch.strategies"
    ).SingleDeviceStrategy


LOSS, LOGGED = "loss", "logged "
OF_TRAINER = (
    "trainer", "current_epoch", "global_step", "logger", "loggers", "optimizers", "lr_schedulers",
    "manual_backward", "toggle_optimizer", "all_gather", "print",
)  # fmt: skip
SHIELDED = ("_trainer", "_current_fx_name", "_fabric", "_metric_attributes", "_param_requires_grad_state")


def _refusing(name: str) -> Any:
    def refuse(self: Any) -> NoReturn:
        raise NetSplitError(
            f"training_step of {type(self).__name__} uses self.{name}, which changes during training, and "
            "a captured step would not see that: take what it needs from the batch, or leave it out."
        )

    return property(refuse)


class Collecting:
    """A mix-in for a LightningModule that runs without its Trainer."""

    _collected: dict[str, Tensor]  # there while `training_step` runs

    def log(self, name: str, value: Any, **how: Any) -> None:
        """Keep the value as a metric; its name contains `how`, for Lightning's own log later."""
        if not isinstance(value, Tensor | int | float):
            raise NetSplitError(
                f"training_step logs '{name}' as a {type(value).__name__}: log a number or a tensor of one."
            )
        try:
            key = json.dumps([name, how])
        except TypeError as error:
            raise NetSplitError(
                f"training_step logs '{name}' with {sorted(how)}, one of which is not a plain value "
                f"({error}): leave it out."
            ) from error
        number = value if isinstance(value, Tensor) else torch.tensor(float(value))
        self._collected[LOGGED + key] = number.detach()

    def log_dict(self, dictionary: Mapping[str, Any], **how: Any) -> None:
        for name, value in dictionary.items():
            self.log(name, value, **how)


class TrainedStep(nn.Module):
    """A training step as a module: a batch to the loss, logged values and further scalars."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module
        kind = type(module)
        refusals = {name: _refusing(name) for name in OF_TRAINER if hasattr(kind, name)}
        self.kind = type(kind.__name__, (Collecting, kind), refusals)

    @staticmethod
    def inputs(module: Any, args: tuple[Any, ...]) -> dict[str, Any]:
        """The batch as `forward` takes it; its number is a tensor, as it changes."""
        batch, *rest = args
        names = list(inspect.signature(module.training_step).parameters)
        if len(rest) > 1 or "dataloader_iter" in names:
            raise NetSplitError("training_step takes more than batch and batch_idx: give it only these two.")
        return {"batch": batch, **({"number": torch.tensor(rest[0])} if rest else {})}

    def forward(self, batch: Any, number: Tensor | None = None) -> dict[str, Tensor]:
        self.module._collected = {}
        try:
            answer = self.module.training_step(batch, *(() if number is None else (number,)))
            logged = self.module._collected
        finally:
            del self.module._collected
        result = dict(answer) if isinstance(answer, Mapping) else {LOSS: answer}
        if not isinstance(result.get(LOSS), Tensor):
            raise NetSplitError(
                "training_step returns no loss on this batch: return one, or a dict with 'loss'."
            )
        return {**result, **logged}

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A context in which the module has no Trainer."""
        module = self.module
        kind, before = type(module), {key: vars(module)[key] for key in SHIELDED if key in vars(module)}
        vars(module).update(dict.fromkeys(before))
        module.__class__ = self.kind
        try:
            yield
        finally:
            module.__class__ = kind
            vars(module).update(before)

    def outputs(self, loss: float, metrics: Mapping[str, float] | None) -> dict[str, Tensor]:
        """The step's result as Lightning expects it; logs what the step has logged."""
        dtype = next(self.module.parameters()).dtype
        result = {LOSS: torch.tensor(loss, dtype=dtype)}
        for key, value in (metrics or {}).items():
            if key.startswith(LOGGED):
                name, how = json.loads(key.removeprefix(LOGGED))
                self.module.log(name, torch.tensor(float(value), dtype=dtype), **how)
            else:
                result[key] = torch.tensor(float(value), dtype=dtype)
        return result


GRADIENTS = ("on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_before_zero_grad")
STEPS = ("backward", "optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping")
EACH_BATCH = ("on_train_batch_start", "on_train_batch_end")
OWN = ("lightning", "pytorch_lightning", "lightning_fabric")


def refuse_of_lightning(trainer: Any) -> None:
    """Raises NetSplitError for what split training would ignore or do differently."""
    for reason in _reasons(trainer):
        raise NetSplitError(f"NetSplitStrategy cannot take {reason}.")


def watches(trainer: Any) -> bool:
    """Whether user code may look at the weights after any batch."""
    kinds = [type(each) for each in (trainer.lightning_module, *trainer.callbacks)]
    return any(overriding(kind, name, *OWN) for kind in kinds for name in EACH_BATCH)


def _reasons(trainer: Any) -> Iterator[str]:
    if trainer.precision not in ("32-true", "64-true"):
        yield f"precision {trainer.precision}: use 32-true or 64-true"
    if trainer.gradient_clip_val and str(trainer.gradient_clip_algorithm or "norm").lower() != "norm":
        yield f"gradient_clip_algorithm {trainer.gradient_clip_algorithm!r}: clip by norm"
    if trainer._detect_anomaly:
        yield "detect_anomaly, since backwards run on the workers: leave it out"
    module = trainer.lightning_module
    title = type(module).__name__
    if not module.automatic_optimization:
        yield (
            f"manual optimisation, which {title} sets: use automatic optimisation, as a step is captured "
            "whole"
        )
    for name in (*GRADIENTS, *STEPS):
        if overriding(type(module), name, *OWN):
            yield f"{title}.{name}, since gradients are on the workers: use Lightning's own"
    for callback in trainer.callbacks:
        kind = type(callback)
        acts = any(overriding(kind, name, *OWN) for name in GRADIENTS)
        if acts or kind.__name__ == "GradientAccumulationScheduler":
            yield f"{kind.__name__}, which acts on gradients or accumulation: leave it out"


class NetSplitStrategy(SplitModel, Base):
    """Trains a LightningModule split over devices: ``Trainer(strategy=NetSplitStrategy(cluster=2))``.

    The module is split when the first batch comes, which is the example; `parallel` is then what
    `netsplit.parallelize` gave. Validation, testing and prediction are computed in this process.

    Args:
        options: of `netsplit.parallelize`, such as ``cluster`` and ``schedule``; optimiser, scheduler and
            norm of the gradients are the module's and the Trainer's.

    Raises:
        NetSplitError: an option that Lightning has; when training begins, what cannot be done split.
    """

    strategy_name = "netsplit"

    def __init__(self, **options: Any) -> None:
        if named := [key for key in options if key in TAKEN]:
            raise NetSplitError(f"{named[0]} is set by the module or the Trainer: leave it out here.")
        super().__init__("cpu")
        self.options = options

    def setup(self, trainer: Any) -> None:
        if trainer.state.fn == "fit":
            refuse_of_lightning(trainer)
        super().setup(trainer)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Train one batch on the devices; returns the loss and logs as Lightning would."""
        trainer = self.lightning_module.trainer
        batch = (TrainedStep.inputs(self.lightning_module, args), None)
        split = self._split(batch)
        self.settings.give(split)
        stepping = not trainer.fit_loop._should_accumulate()
        step = split.model
        assert isinstance(step, TrainedStep)
        with step.alone():
            loss = split.train_batch(*batch, fraction=1.0 / trainer.accumulate_grad_batches, step=stepping)
        if stepping and (watches(trainer) or trainer.is_last_batch):
            self.fetch()
        return step.outputs(loss, split.metrics)

    def backward(self, closure_loss: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Done by the devices."""
        return closure_loss

    on_validation_start = on_train_end = SplitModel.fetch

    def lightning_module_state_dict(self) -> dict[str, Any]:
        self.fetch()
        return dict(super().lightning_module_state_dict())

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Save the optimiser's state under a key of its own, so that other strategies refuse it."""
        if self.parallel is not None and STATES in checkpoint:
            (optimizer,) = self.optimizers
            rates = [float(group["lr"]) for group in optimizer.param_groups]
            checkpoint = {key: value for key, value in checkpoint.items() if key != STATES}
            checkpoint[KEY] = {"packed": pack(self.parallel), RATES: rates}
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        checkpoint: dict[str, Any] = super().load_checkpoint(checkpoint_path, weights_only)
        if KEY in checkpoint:
            checkpoint[STATES] = []  # which Lightning asks for before it calls what follows
        elif STATES in checkpoint and self.lightning_module.trainer.state.fn == "fit":
            raise NetSplitError(
                f"'{Path(checkpoint_path)}' has no optimiser state of a split module: resume from one that "
                "this strategy saved, or load its weights and start anew."
            )
        return checkpoint

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        self.resumed = checkpoint[KEY]["packed"]
        (optimizer,) = self.optimizers
        for group, rate in zip(optimizer.param_groups, checkpoint[KEY][RATES], strict=True):
            group["lr"] = rate

    def teardown(self) -> None:
        self.close()
        super().teardown()

    def _split(self, batch: tuple[Any, Any]) -> ParallelModel:
        if self.parallel is None:
            trainer = self.lightning_module.trainer
            if len(self.optimizers) != 1:
                raise NetSplitError(
                    f"configure_optimizers gives {len(self.optimizers)} optimisers, but a split module is "
                    "trained by one: return one with several groups of parameters."
                )
            step = TrainedStep(self.lightning_module)
            with step.alone(), torch.enable_grad():
                self.begin(step, batch, self.optimizers[0], trainer.gradient_clip_val, self.options)
        assert self.parallel is not None
        return self.parallel
