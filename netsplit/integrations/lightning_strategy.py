"""Lightning's `Trainer` with its own loop, data, schedules, validation and files; the steps are NetSplit's.

fit ─► training_step ─► ParallelModel.train_batch       forward, backward, clip, optimiser's step
  ├─ scheduler changes rates of an optimiser that holds no gradient ─► passed on before each batch
  └─ validation, checkpoint, end ─► what was trained is copied into the LightningModule
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from netsplit.api import parallelize
from netsplit.errors import NetSplitError
from netsplit.integrations.lightning_step import TrainedStep, refuse_of_lightning, watches
from netsplit.integrations.named_groups import KEY, NamedGroups, OtherSettings, pack, unpack
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


class NetSplitStrategy(Base):
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
            raise NetSplitError(f"{named[0]} is the module's or the Trainer's to say: leave it out here.")
        super().__init__("cpu")
        self.options = options
        self.parallel: ParallelModel | None = None
        self.resumed: dict[str, Any] | None = None

    def setup(self, trainer: Any) -> None:
        if trainer.state.fn == "fit":
            refuse_of_lightning(trainer)
        super().setup(trainer)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """One batch on the devices; its loss and what it logs are as Lightning has them."""
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

    def fetch(self) -> None:
        """Copy what is trained into this process's module."""
        if self.parallel is not None:
            self.parallel.model.load_state_dict(self.parallel.state_dict())

    on_validation_start = on_train_end = fetch

    def lightning_module_state_dict(self) -> dict[str, Any]:
        self.fetch()
        return dict(super().lightning_module_state_dict())

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """The optimiser's state has a key of its own in Lightning's file: other strategies refuse that."""
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
                f"'{Path(checkpoint_path)}' has no optimiser's state of a split module: go on from one that "
                "this strategy saved, or load its weights and begin anew."
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

    def close(self) -> None:
        """Stop the workers."""
        if self.parallel is not None:
            self.parallel.close()
            self.parallel = None

    def _split(self, batch: tuple[Any, Any]) -> ParallelModel:
        if self.parallel is None:
            trainer = self.lightning_module.trainer
            if len(self.optimizers) != 1:
                raise NetSplitError(
                    f"configure_optimizers gives {len(self.optimizers)} optimisers, and a split module is "
                    "trained by one: make one with several groups of parameters."
                )
            step = TrainedStep(self.lightning_module)
            self.settings = OtherSettings(self.optimizers[0])
            norm = trainer.gradient_clip_val
            clip = {"clip_norm": norm} if norm else {}
            factory = NamedGroups(self.optimizers[0], step)
            with step.alone(), torch.enable_grad():
                self.parallel = parallelize(step, None, batch, optimizer=factory, **clip, **self.options)
            if self.resumed is not None:
                unpack(self.parallel, self.resumed)
                self.resumed = None
        return self.parallel
