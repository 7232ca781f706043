"""A Lightning Trainer trains a module split as it does whole, and refuses what it could not do right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import netsplit  # noqa: F401  before lightning, which imports torchvision
from netsplit.errors import NetSplitError

lightning = pytest.importorskip("lightning", reason="lightning is not installed")

from netsplit.integrations import NetSplitStrategy  # noqa: E402

Fit = Callable[..., tuple[Any, Any]]


class Net(lightning.LightningModule):  # type: ignore[misc]
    """Logs its loss and how many are right; Adam, whose rate falls every epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        outputs = self.net(x)
        loss = nn.functional.cross_entropy(outputs, y)
        self.log("train_loss", loss, prog_bar=True)
        self.log_dict({"right": (outputs.argmax(1) == y).double().mean()}, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self.net(x), y))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}


def loader() -> Any:
    """26 samples in shuffled batches of 8, the last of 2."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(26, 6, generator=generator).double()
    data = torch.utils.data.TensorDataset(x, torch.randint(0, 3, (26,), generator=generator))
    return torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)


def fresh(kind: type = Net) -> Any:
    torch.manual_seed(0)
    return kind().double()


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    """Fit a module for three epochs; the Trainer and the module."""

    def run(split: dict[str, Any] | None, kind: type = Net, ckpt: Any = None, **args: Any) -> tuple[Any, Any]:
        settings: dict[str, Any] = {
            "accelerator": "cpu",
            "devices": 1,
            "strategy": "auto" if split is None else NetSplitStrategy(**split),
            "max_epochs": 3,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": str(tmp_path),
        }
        trainer = lightning.Trainer(**(settings | args))
        module = fresh(kind)
        torch.manual_seed(7)
        trainer.fit(module, loader(), loader(), ckpt_path=ckpt)
        return trainer, module

    return run


def assert_alike(one: nn.Module, other: nn.Module) -> None:
    assert not torch.equal(next(one.parameters()), next(fresh().parameters()))
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "args", [{}, {"accumulate_grad_batches": 3, "gradient_clip_val": 0.3}], ids=["plain", "accumulated"]
)
def test_it_trains_what_lightning_trains(fit: Fit, options: dict[str, Any], args: dict[str, Any]) -> None:
    plain, whole = fit(None, **args)
    split, parts = fit(options, **args)
    assert_alike(parts, whole)
    assert (
        split.callback_metrics.keys() == plain.callback_metrics.keys() == {"train_loss", "right", "val_loss"}
    )
    for name, value in plain.callback_metrics.items():
        assert float(split.callback_metrics[name]) == pytest.approx(float(value), abs=1e-8), name


def test_a_checkpoint_has_the_weights_and_another_strategy_does_not_go_on_from_it(
    fit: Fit, options: dict[str, Any], tmp_path: Path
) -> None:
    saving = lightning.pytorch.callbacks.ModelCheckpoint(dirpath=tmp_path, save_top_k=-1, filename="{epoch}")
    _, whole = fit(options, callbacks=[saving], enable_checkpointing=True)
    file = tmp_path / "epoch=2.ckpt"
    saved = torch.load(file, weights_only=True)["state_dict"]
    assert all(torch.equal(saved[name], value) for name, value in whole.state_dict().items())
    with pytest.raises(KeyError, match="checkpoint contains only the model"):
        fit(None, ckpt=file, max_epochs=5)


def test_adams_moments_and_rates_come_back(fit: Fit, options: dict[str, Any], tmp_path: Path) -> None:
    """One more epoch from the checkpoint, on the batches that the plain one sees."""
    files = []
    for how in (None, options):
        folder = tmp_path / str(how is None)
        saving = lightning.pytorch.callbacks.ModelCheckpoint(dirpath=folder, filename="last")
        fit(how, callbacks=[saving], enable_checkpointing=True)
        files.append(folder / "last.ckpt")
    modules = [fit(how, ckpt=file, max_epochs=4)[1] for how, file in zip((None, options), files, strict=True)]
    assert_alike(modules[1], modules[0])
    with pytest.raises(NetSplitError, match=r"last\.ckpt' has no optimiser state of a split module"):
        fit(options, ckpt=files[0], max_epochs=4)


class ByEpoch(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y) * (1 + self.current_epoch)


class Looking(Net):
    def on_after_backward(self) -> None: ...


@pytest.mark.parametrize(
    ("kind", "args", "said"),
    [
        (ByEpoch, {}, "uses self.current_epoch"),
        (Looking, {}, "Looking.on_after_backward"),
        (Net, {"precision": "bf16-mixed"}, "precision bf16-mixed"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_would_be_trained_otherwise_is_refused(
    fit: Fit, options: dict[str, Any], kind: type, args: dict[str, Any], said: str
) -> None:
    with pytest.raises(NetSplitError, match=said):
        fit(options, kind, **args)
