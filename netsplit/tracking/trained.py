"""What was trained: the plain model in MLflow, and its parameters as files."""

from __future__ import annotations

import copy
import logging
from pathlib import Path

from torch import nn

from netsplit.data.dataset import Data
from netsplit.data.reading.loader import batches
from netsplit.settings import Settings
from netsplit.tables import nbytes
from netsplit.tracking.runs import MethodRun
from netsplit.training.parallel import ParallelModel
from netsplit.training.plain_state import save_state

__all__ = ["keep_trained", "record_model"]

log = logging.getLogger(__name__)


def record_model(run: MethodRun, plain: nn.Module, model: ParallelModel, data: Data) -> None:
    """A copy of the plain model with what was trained, where the tracker logs models."""
    if not run.models.log:
        return
    trained, half = copy.deepcopy(plain), data.test if len(data.test) else data.train
    trained.load_state_dict(model.state_dict())
    # Two samples as its example, as exporting takes one for a constant.
    run.model(trained.eval(), next(batches(half, 2, shuffle=False, drop_last=False))[0])


def keep_trained(run: MethodRun, model: ParallelModel, folder: Path, settings: Settings) -> None:
    """The plain model's parameters, and averages of them, as files for `torch.load`; says how large."""
    where = settings.checkpoint.trained
    if where == "none":
        return
    paths = [folder / "checkpoint.pt"]
    model.save(paths[0])
    if settings.ema_decay is not None:
        paths.append(folder / "averages.pt")
        save_state(model.ema_state_dict(), paths[1])
    size = sum(path.stat().st_size for path in paths)
    for path in paths if where != "folder" else ():
        run.artifact(path)
        if where == "mlflow":
            path.unlink()
    log.debug(
        "%s: trained parameters, %s%s, are kept in %s",
        run.name, nbytes(size), " each" * (where == "both"),
        {"folder": folder, "mlflow": "mlflow", "both": f"{folder} and mlflow"}[where],
    )  # fmt: skip
