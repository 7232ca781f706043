"""What a Lightning `Trainer` can be asked for that split training does not do, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from netsplit.errors import NetSplitError

__all__ = ["refuse_of_lightning", "watches"]

GRADIENTS = ("on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_before_zero_grad")
STEPS = ("backward", "optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping")
EACH_BATCH = ("on_train_batch_start", "on_train_batch_end")
OWN = ("lightning", "pytorch_lightning", "lightning_fabric", "netsplit")


def refuse_of_lightning(trainer: Any) -> None:
    """Called before anything is trained.

    Raises:
        NetSplitError: the first thing that split training would do otherwise, or not at all.
    """
    for reason in (*_of_trainer(trainer), *_of_module(trainer.lightning_module), *_of_callbacks(trainer)):
        raise NetSplitError(f"NetSplitStrategy cannot take {reason}.")


def watches(trainer: Any) -> bool:
    """Whether somebody's own code may look at the weights after any batch."""
    kinds = [type(each) for each in (trainer.lightning_module, *trainer.callbacks)]
    return any(_overrides(kind, name) for kind in kinds for name in EACH_BATCH)


def _of_trainer(trainer: Any) -> Iterator[str]:
    if trainer.precision not in ("32-true", "64-true"):
        yield f"precision {trainer.precision}: take 32-true or 64-true"
    if trainer.gradient_clip_val and str(trainer.gradient_clip_algorithm or "norm").lower() != "norm":
        yield f"gradient_clip_algorithm {trainer.gradient_clip_algorithm!r}: cut by the norm"
    if trainer._detect_anomaly:
        yield "detect_anomaly, since backwards run on the workers: leave it out"


def _of_module(module: Any) -> Iterator[str]:
    title = type(module).__name__
    if not module.automatic_optimization:
        yield f"manual optimisation, which {title} asks for: a step is captured whole, so leave it automatic"
    for name in (*GRADIENTS, *STEPS):
        if _overrides(type(module), name):
            yield f"{title}.{name}, since gradients are on the workers: leave it as Lightning has it"


def _of_callbacks(trainer: Any) -> Iterator[str]:
    for callback in trainer.callbacks:
        for name in GRADIENTS:
            if _overrides(type(callback), name) or type(callback).__name__ == "GradientAccumulationScheduler":
                yield f"{type(callback).__name__}, which acts on gradients or their number: leave it out"


def _overrides(kind: type, name: str) -> bool:
    """Whether code that is not Lightning's own has a hook."""
    owner = next((each for each in kind.__mro__ if name in vars(each)), None)
    return owner is not None and owner.__module__.split(".")[0] not in OWN
