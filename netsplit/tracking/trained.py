"""What was trained: the plain model in MLflow, and its parameters as files."""

from __future__ import annotations

import copy
from pathlib import Path

from torch import nn

from netsplit.data.dataset import Data
from netsplit.data.reading.loader import batches
from netsplit.settings import Settings
from netsplit.tracking.runs import MethodRun
from netsplit.training.parallel import ParallelModel
from netsplit.training.plain_state import save_state

__all__ = ["keep_trained", "record_model"]


def record_model(run: MethodRun, plain: nn.Module, model: ParallelModel, data: Data) -> None:
    """A copy of the plain model with what was trained, where the tracker logs models."""
    if not run.models.log:
        return
    trained, half = copy.deepcopy(plain), data.test if len(data.test) else data.train
    trained.load_state_dict(model.state_dict())
    # Two samples as its example, as exporting takes one for a constant.
    run.model(trained.eval(), next(batches(half, 2, shuffle=False, drop_last=False))[0])


def keep_trained(model: ParallelModel, folder: Path, settings: Settings) -> None:
    """The plain model's parameters, and averages of them, as files for `torch.load`."""
    if settings.checkpoint.trained == "none":
        return
    model.save(folder / "checkpoint.pt")
    if settings.ema_decay is not None:
        save_state(model.ema_state_dict(), folder / "averages.pt")
