"""A Hugging Face `Trainer` trains a tiny GPT-2 split as it does whole, and its files are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import netsplit  # noqa: F401  before transformers, which imports torchvision
from netsplit.errors import NetSplitError
from netsplit.integrations import split_trainer

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate, which the Trainer needs, is not installed")

Train = Callable[..., Any]
SMALL = {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 48, "n_positions": 12}
DRY = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
SAMPLES, BATCH = 10, 4  # the last batch of an epoch is smaller
ALIKE = {"rtol": 0.0, "atol": 2e-6}  # float32, added up in another order


def gpt2() -> Any:
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SMALL, **DRY))


def texts() -> list[dict[str, Tensor]]:
    """Samples of which a third of the labels do not count: another number in every micro-batch."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 48, (SAMPLES, 10), generator=generator)
    left_out = torch.rand(rows.shape, generator=generator) < 0.3
    return [
        {"input_ids": row, "labels": torch.where(out, -100, row)}
        for row, out in zip(rows, left_out, strict=True)
    ]


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Train]:
    """Trainers of a fresh model; those that were split are closed at the end."""
    made: list[Any] = []

    def build(split: dict[str, Any] | None = None, parts: dict[str, Any] | None = None, **args: Any) -> Any:
        settings: dict[str, Any] = {
            "output_dir": str(tmp_path / f"run{len(made)}"),
            "per_device_train_batch_size": BATCH,
            "num_train_epochs": 2,
            "learning_rate": 0.05,
            "optim": "sgd",
            "save_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            "logging_steps": 1,
            "use_cpu": True,
        }
        given = transformers.TrainingArguments(**(settings | args))
        kind = (parts or {}).pop("kind", transformers.Trainer)
        own = kind(**({"model": gpt2(), "args": given, "train_dataset": texts()} | (parts or {})))
        made.append(own)
        if split is not None:
            split_trainer(own, **split)
        return own

    yield build
    for each in made:
        if getattr(each, "parallel", None) is not None:
            each.close()


def assert_alike(one: nn.Module, other: nn.Module, **tolerance: float) -> None:
    assert not torch.equal(next(one.parameters()), next(gpt2().parameters()))
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, **(ALIKE | tolerance), msg=lambda text, name=name: f"{name}: {text}")


def losses(trained: Any) -> list[float]:
    return [entry["loss"] for entry in trained.state.log_history if "loss" in entry]


def test_it_trains_what_the_plain_trainer_trains(
    trainer: Train, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    args = {"gradient_accumulation_steps": 2, "label_smoothing_factor": 0.1, "max_grad_norm": 0.5}
    plain, split = trainer(**args), trainer(options, **args)
    plain.train()
    split.train()
    assert "all samples of a batch" not in caplog.text
    assert losses(split) == pytest.approx(losses(plain), abs=2e-5)
    assert [entry.get("learning_rate") for entry in split.state.log_history] == [
        entry.get("learning_rate") for entry in plain.state.log_history
    ]
    assert_alike(split.model, plain.model)


def test_whole_batches_on_one_device_are_trained_bit_for_bit(trainer: Train, options: dict[str, Any]) -> None:
    """Adam, which amplifies the last bit; without the gradients' norm, which is added up in another order."""
    one = options | {"partitioner": "single", "schedule": "single_batch"}
    args: dict[str, Any] = {"optim": "adamw_torch", "max_grad_norm": 0.0}
    plain, split = trainer(**args), trainer(one, **args)
    plain.train()
    split.train()
    assert losses(split) == losses(plain)
    assert_alike(split.model, plain.model, atol=0.0)


def test_the_files_of_a_split_trainer_are_the_trainers(
    trainer: Train, options: dict[str, Any], tmp_path: Path
) -> None:
    split = trainer(options)
    split.train()
    split.save_model(str(tmp_path / "saved"))
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "saved")
    state = split.parallel.state_dict()
    for name, value in again.state_dict().items():
        assert torch.equal(value, state[f"model.{name}"]), name


def test_evaluation_and_best_model_are_of_what_was_trained(trainer: Train, options: dict[str, Any]) -> None:
    args: dict[str, Any] = {
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "load_best_model_at_end": True,
        "learning_rate": 0.5,  # so much that the first epoch's model is the best
        "max_grad_norm": 0.0,
    }
    plain, split = (trainer(how, {"eval_dataset": texts()[:6]}, **args) for how in (None, options))
    plain.train()
    split.train()
    scores = [[e["eval_loss"] for e in t.state.log_history if "eval_loss" in e] for t in (plain, split)]
    assert len(scores[0]) == 2
    assert scores[1] == pytest.approx(scores[0], abs=1e-3)
    assert_alike(split.model, plain.model, atol=1e-3)
    held = split.parallel.state_dict()
    assert all(torch.equal(held[f"model.{k}"], v) for k, v in split.model.state_dict().items())


def test_training_is_resumed_where_a_checkpoint_stands(
    trainer: Train, options: dict[str, Any], tmp_path: Path
) -> None:
    """With Adam, whose moments are on the devices; a plain Trainer does not take them for its own."""
    args: dict[str, Any] = {"optim": "adamw_torch", "save_strategy": "steps", "save_steps": 4}
    one = options | {"partitioner": "single", "schedule": "single_batch"}
    whole = trainer(one, **args)
    whole.train()
    saved = str(tmp_path / "run0" / "checkpoint-4")
    resumed = trainer(options | {"schedule": "single_batch"}, **args)
    resumed.train(resume_from_checkpoint=saved)
    assert_alike(resumed.model, whole.model, atol=1e-4)
    assert losses(resumed)[4:] == pytest.approx(losses(whole)[4:], abs=1e-4)
    with pytest.raises(KeyError, match="param_groups"):
        trainer(**args).train(resume_from_checkpoint=saved)


class OwnLoss(transformers.Trainer):  # type: ignore[misc]
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(*args, **kwargs)


class Gradients(transformers.TrainerCallback):  # type: ignore[misc]
    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None: ...


@pytest.mark.parametrize(
    ("parts", "args", "said"),
    [
        ({}, {"bf16": True}, "fp16 or bf16"),
        ({"kind": OwnLoss}, {}, "OwnLoss.compute_loss"),
        ({"callbacks": [Gradients()]}, {}, "Gradients.on_pre_optimizer_step"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_cannot_be_done_split_is_refused_before_anything(
    trainer: Train, parts: dict[str, Any], args: dict[str, Any], said: str
) -> None:
    with pytest.raises(NetSplitError, match=f"^a split Trainer cannot take {said}"):
        trainer({}, dict(parts), **args)
