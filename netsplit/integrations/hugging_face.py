"""Hugging Face's `Trainer` with its own loop, data, evaluation and files; the steps are NetSplit's.

Trainer.train ─► training_step ─► ParallelModel.train_batch      forward, backward, clip, optimiser's step
     ├─ scheduler changes rates of an optimiser that holds no gradient ─► passed on before each batch
     └─ evaluate, save, end ─► what was trained is copied into trainer.model ─► Trainer's own code
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from netsplit.errors import NetSplitError, plain_errors
from netsplit.integrations.named_groups import KEY, SplitModel, overriding, pack
from netsplit.lazy import of_extra
from netsplit.training.parallel import ParallelModel

__all__ = ["SplitTrainer", "split_trainer"]

OPTIMIZER, SCHEDULER = "optimizer.pt", "scheduler.pt"  # as the Trainer names them
RATES = "learning_rates"  # of the groups, beside what the workers hold
LABELS = "labels"

if TYPE_CHECKING:
    Base = Any
else:
    Base = object


@plain_errors
def split_trainer(trainer: Any, **options: Any) -> None:
    """Makes `trainer.train()` train its model split over devices; the rest of the script stays.

    The model is split when the first batch comes, which is the example. `trainer.parallel` is then what
    `netsplit.parallelize` gave; `trainer.close()` stops the workers, as the script's end does. Evaluation
    is the Trainer's own, on this process's copy of the model.

    Args:
        trainer: a `transformers.Trainer` that has not trained yet.
        options: of `netsplit.parallelize`, such as ``cluster`` and ``schedule``; optimiser, norm of the
            gradients and loss are the Trainer's.

    Raises:
        NetSplitError: the Trainer is asked for something that cannot be done split; it says what.
    """
    transformers = of_extra("huggingface", "split_trainer", "transformers", "transformers", "accelerate")
    if not isinstance(trainer, transformers.Trainer):
        raise NetSplitError(f"trainer is a {type(trainer).__name__}: give a transformers.Trainer.")
    if isinstance(trainer, SplitTrainer):
        raise NetSplitError("this Trainer is split already: call split_trainer once.")
    if named := [key for key in options if key in TAKEN]:
        raise NetSplitError(f"{named[0]} is set by the Trainer ({TAKEN[named[0]]}): leave it out here.")
    refuse_of_trainer(trainer)
    trainer.split_options = options
    trainer.__class__ = type(f"Split{type(trainer).__name__}", (SplitTrainer, type(trainer)), {})


class TrainedLoss(nn.Module):
    """A Trainer's loss of a batch.

    Args:
        loss: called as the Trainer's `compute_loss_func` is; None: the model's own.
        items: the model or `loss` divides by a number of items instead of taking a mean.
    """

    def __init__(self, model: nn.Module, loss: Any, items: bool, smoothing: dict[str, Any] | None) -> None:
        super().__init__()
        self.model, self.loss, self.items, self.smoothing = model, loss, items, smoothing
        wide = any(parameter.dtype is torch.float64 for parameter in model.parameters())
        self.dtype = torch.float64 if wide else torch.float32

    def forward(self, inputs: Mapping[str, Any], items: Tensor | None = None) -> Tensor:
        """The loss of some samples.

        Args:
            items: () of double precision, a sample's part of the number that the loss divides by, so that
                micro-batches' losses, weighted by their samples, add up to the batch's own.
        """
        number = 0 if items is None else _samples(inputs)
        inputs, labels = dict(inputs), None
        if self.loss is not None:
            labels = inputs.pop(LABELS, None)
        count: dict[str, Any] = {}
        if items is not None:
            count["num_items_in_batch"] = (items * number).to(self.dtype)
        outputs = self.model(**inputs, **(count if self.items else {}))
        if self.loss is not None and (labels is not None or self.smoothing is None):
            return self.loss(
                outputs, labels, **(self.smoothing or {}), **(count or {"num_items_in_batch": None})
            )
        return outputs["loss"] if isinstance(outputs, dict) else outputs[0]


class SplitTrainer(SplitModel, Base):
    """What `split_trainer` puts before the class of a Trainer."""

    split_options: dict[str, Any]

    def close(self) -> None:
        """Stop the workers; what was trained stays in `model`."""
        self.fetch()
        super().close()

    def train(self, *args: Any, **kwargs: Any) -> Any:
        refuse_of_trainer(self)
        result = super().train(*args, **kwargs)
        self.fetch()
        return result

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> Tensor:
        """Train one batch on the devices; returns the loss, scaled as the Trainer expects."""
        self.model.train()
        inputs = self._prepare_inputs(inputs)
        split, batch = self._split(inputs, num_items_in_batch)
        self.settings.give(split)
        own_scale = num_items_in_batch is not None and self.model_accepts_loss_kwargs
        scaled = own_scale or self.compute_loss_func is not None
        fraction = 1.0 if scaled else 1.0 / self.current_gradient_accumulation_steps
        stepping = bool(self.accelerator.sync_gradients)
        loss = split.train_batch(*batch, fraction=fraction, step=stepping)
        if stepping and self.watched:
            self.fetch()
        return torch.tensor(loss * fraction, device=self.args.device)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        self.fetch()
        return super().evaluation_loop(*args, **kwargs)

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Leaves the model's config as the captured step knows it: saving notes class and dtype there."""
        self.fetch()
        config = vars(getattr(self.model, "config", self))
        before = dict(config)
        super().save_model(*args, **kwargs)
        if config is not vars(self):
            config.clear()
            config.update(before)

    def _clip_grad_norm(self, model: nn.Module) -> None:
        """Devices have clipped already."""

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> None:
        """Not known here."""

    def _split(self, inputs: dict[str, Any], items: Any) -> tuple[ParallelModel, tuple[Any, Any]]:
        smoother = self.label_smoother
        loss = self.compute_loss_func or smoother
        counted = items is not None and (self.model_accepts_loss_kwargs or loss is not None)
        batch: tuple[Any, Any] = ({"inputs": dict(inputs)}, None)
        if counted:
            part = torch.tensor(float(items) / _samples(inputs), dtype=torch.float64)
            batch = ({"inputs": dict(inputs), "items": part}, None)
        if self.parallel is None:
            smoothing = (
                None if self.compute_loss_func or smoother is None else {"shift_labels": self._shifts()}
            )
            whole = TrainedLoss(self.model, loss, self.model_accepts_loss_kwargs, smoothing)
            optimizer: Any = getattr(self.optimizer, "optimizer", self.optimizer)  # within accelerate's
            parallel = self.begin(whole, batch, optimizer, self.args.max_grad_norm, self.split_options)
            weakref.finalize(self, parallel.close)
        assert self.parallel is not None
        return self.parallel, batch

    def _shifts(self) -> bool:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

        return self.accelerator.unwrap_model(self.model)._get_name() in CAUSAL.values()

    @property
    def watched(self) -> bool:
        """Whether the user's callbacks may look at weights after a step."""
        kinds = (type(each) for each in self.callback_handler.callbacks)
        return any(not kind.__module__.startswith("transformers.") for kind in kinds)

    def _load_best_model(self) -> None:
        super()._load_best_model()
        if self.parallel is not None:
            self.parallel.load_state_dict(self.parallel.model.state_dict())

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load weights into the plain model and split it anew."""
        super().close()
        super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save in the Trainer's own files; a plain Trainer refuses the optimiser's."""
        assert self.parallel is not None
        rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        torch.save({KEY: pack(self.parallel), RATES: rates}, Path(output_dir) / OPTIMIZER)
        torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        file = Path(checkpoint) / OPTIMIZER
        state = _loaded(file) if file.is_file() else {}
        if not isinstance(state, dict) or not {KEY, RATES} <= state.keys():
            raise NetSplitError(
                f"'{checkpoint}' has no optimiser state of a split model: resume from one that a split "
                "Trainer saved without save_only_model, or load its weights into the model and start anew."
            )
        self.resumed = state[KEY]
        for group, rate in zip(self.optimizer.param_groups, state[RATES], strict=True):
            group["lr"] = rate
        self.lr_scheduler.load_state_dict(_loaded(Path(checkpoint) / SCHEDULER))


def _loaded(file: Path) -> Any:
    """Tensors and plain values of a file; raises NetSplitError if it is cut or asks for more."""
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever the bytes ask for
        raise NetSplitError(f"'{file}' cannot be read: {' '.join(str(error).split())[:200]}.") from error


def _samples(inputs: Mapping[str, Any]) -> int:
    return next(t.shape[0] for t in inputs.values() if isinstance(t, Tensor) and t.ndim)


TAKEN = {
    "model": "model=",
    "loss": "the model's, or compute_loss_func",
    "batch": "its data",
    "optimizer": "optim, learning_rate and weight_decay",
    "scheduler": "lr_scheduler_type",
    "clip_norm": "max_grad_norm",
    "autocast": "bf16",
    "ema_decay": "none",
}
"""Options of `netsplit.parallelize` -> where a Trainer takes them from."""

OVERRIDES = (
    "training_step", "compute_loss", "compute_loss_context_manager", "get_batch_samples", "_clip_grad_norm",
    "_get_grad_norm", "_inner_training_loop", "_run_epoch", "_save_optimizer_and_scheduler",
)  # fmt: skip
HOOKS = ("on_pre_optimizer_step", "on_optimizer_step")  # called where gradients would be


def refuse_of_trainer(trainer: Any) -> None:
    """Raises NetSplitError for what split training would ignore or do differently."""
    for reason in _reasons(trainer):
        raise NetSplitError(f"a split Trainer cannot take {reason}.")


def _reasons(trainer: Any) -> Iterator[str]:
    args = trainer.args
    if args.device.type != "cpu":
        yield f"device {args.device}: give TrainingArguments(use_cpu=True), and the devices as cluster="
    if args.world_size > 1 or args.deepspeed or args.fsdp:
        yield "a distributed launch, DeepSpeed or FSDP: start one process, as NetSplit starts the workers"
    if args.fp16 or args.bf16 or args.fp16_full_eval or args.bf16_full_eval:
        yield "fp16 or bf16: leave them out, or train with netsplit.parallelize(autocast=...)"
    if args.torch_compile:
        yield "torch_compile, which compiles the whole model: leave it out"
    if args.neftune_noise_alpha is not None:
        yield "neftune_noise_alpha, whose noise would differ: leave it out"
    if args.auto_find_batch_size:
        yield "auto_find_batch_size, since memory runs out on the workers: give the batch size"
    if trainer.model_init is not None:
        yield "model_init, which trains another model than the one given: give model="
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # within accelerate's
    if any(callable(getattr(optimizer, mode, None)) for mode in ("train", "eval")):
        yield f"{type(optimizer).__name__}, whose weights differ between training and evaluation"
    for name in OVERRIDES:
        if owner := overriding(type(trainer), name, "transformers"):
            yield f"{owner.__name__}.{name}, which trains in its own way: use Trainer's own"
    for callback in trainer.callback_handler.callbacks:
        for name in HOOKS:
            if owner := overriding(type(callback), name, "transformers"):
                yield f"{owner.__name__}.{name}, when gradients are on the workers: use on_step_end"
