"""What a Hugging Face `Trainer` can be asked for that split training does not do, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from netsplit.errors import NetSplitError

__all__ = ["TAKEN", "refuse_of_trainer"]

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
"""Options of `netsplit.parallelize` -> where a Trainer has them."""

OVERRIDES = (
    "training_step", "compute_loss", "compute_loss_context_manager", "get_batch_samples", "_clip_grad_norm",
    "_get_grad_norm", "_inner_training_loop", "_run_epoch", "_save_optimizer_and_scheduler",
)  # fmt: skip
HOOKS = ("on_pre_optimizer_step", "on_optimizer_step")  # called where gradients would be


def refuse_of_trainer(trainer: Any) -> None:
    """Called before anything is trained.

    Raises:
        NetSplitError: the first thing that split training would do otherwise, or not at all.
    """
    for reason in (*_arguments(trainer.args), *_parts(trainer), *_code(trainer)):
        raise NetSplitError(f"a split Trainer cannot take {reason}.")


def _arguments(args: Any) -> Iterator[str]:
    if args.device.type != "cpu":
        yield f"device {args.device}: give TrainingArguments(use_cpu=True), and the devices as cluster="
    if args.world_size > 1 or args.deepspeed or args.fsdp:
        yield "a distributed start, DeepSpeed or FSDP: start one process, the workers are NetSplit's"
    if args.fp16 or args.bf16 or args.fp16_full_eval or args.bf16_full_eval:
        yield "fp16 or bf16: leave them out, or train with netsplit.parallelize(autocast=...)"
    if args.torch_compile:
        yield "torch_compile, which compiles the whole model: leave it out"
    if args.neftune_noise_alpha is not None:
        yield "neftune_noise_alpha, whose noise would be another one: leave it out"
    if args.auto_find_batch_size:
        yield "auto_find_batch_size, since memory runs out on the workers: give the batch's size"


def _parts(trainer: Any) -> Iterator[str]:
    if trainer.model_init is not None:
        yield "model_init, by which it trains another model than was given: give model="
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # within accelerate's
    if any(callable(getattr(optimizer, mode, None)) for mode in ("train", "eval")):
        yield f"{type(optimizer).__name__}, whose weights differ between training and evaluation"


def _code(trainer: Any) -> Iterator[str]:
    for name in OVERRIDES:
        owner = _owner(type(trainer), name)
        if owner is not None:
            yield f"{owner.__name__}.{name}, which trains in its own way: leave it as Trainer has it"
    for callback in trainer.callback_handler.callbacks:
        for name in HOOKS:
            owner = _owner(type(callback), name)
            if owner is not None:
                yield f"{owner.__name__}.{name}, at which gradients are on the workers: use on_step_end"


def _owner(kind: type, name: str) -> type | None:
    """The class outside the library that overrides a method, where one does."""
    owner = next((each for each in kind.__mro__ if name in vars(each)), None)
    own = owner is None or owner.__module__.split(".")[0] in ("transformers", "netsplit")
    return None if own else owner
