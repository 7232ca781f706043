"""What the pieces of Python on a page are given: names that its reader has, as small as they can be.

One function a page: it may leave files in the folder that is current, and answers names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import netsplit
from netsplit.cluster.described import ClusterDescription, DescribedDevice, LinkCost, described_cluster
from netsplit.data import Data
from netsplit.graph import capture
from netsplit.partition import MTopo
from netsplit.program.schedules import GPipe
from netsplit.session.comparison import Experiment, Settings, described
from netsplit.tracking import Tracker

__all__ = ["GIVEN", "Names"]

Names = dict[str, Any]
CHECKPOINT = Path("checkpoints/m_topo/000004-step-88")
LOSS = nn.CrossEntropyLoss()
ADAM = partial(torch.optim.Adam, lr=1e-3)


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3))


def batch_of(samples: int) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(samples, 12, generator=torch.Generator().manual_seed(samples))
    return inputs, inputs[:, :3].argmax(1)


def own_model() -> Names:
    inputs, targets = batch_of(16)
    modules = {"nn": nn, "torch": torch, "netsplit": netsplit}
    batches = {"batch": (inputs, targets), "batches": [(inputs, targets)], "test_batches": [batch_of(8)]}
    return modules | batches | {"model": model_of(), "loss": LOSS, "inputs": inputs, "targets": targets}


def structured() -> Names:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(10, 8), nn.Linear(8, 3)

        def forward(self, tokens: Tensor, mask: Tensor) -> dict[str, Tensor]:
            return {"logits": self.head((self.table(tokens) * mask[..., None]).mean(1))}

    tokens, labels = torch.arange(96).reshape(16, 6) % 10, torch.arange(16) % 3
    names = {"tokens": tokens, "mask": torch.ones(16, 6), "labels": labels}
    example = {"tokens": tokens, "mask": names["mask"]}, {"labels": labels}
    return own_model() | names | {"model": Tokens(), "batches": [example], "class_weights": torch.ones(3),
                                  "states": torch.zeros(2, 16, 4)}  # fmt: skip


def checkpointed() -> Names:
    names = own_model()
    with netsplit.parallelize(
        names["model"],
        LOSS,
        names["batch"],
        optimizer=ADAM,
        partitioner="balanced",
        schedule="gpipe",
        folder="logs",
    ) as parallel:
        parallel.train_batch(*names["batch"])
        parallel.save_checkpoint(CHECKPOINT, {"step": 88})
    halves = [list(zip(*batch_of(count), strict=True)) for count in (32, 8)]
    return names | {
        "optimizer": ADAM(names["model"].parameters()),
        "graph": capture(names["model"], LOSS, batch_of(4)),
        "n": 1,
        "i": 0,
        "data": Data("lines", *halves, num_classes=3, classes=("a", "b", "c")),
    }


def large() -> Names:
    from safetensors.torch import save_file

    Path("checkpoints/shards").mkdir(parents=True)
    save_file(model_of().state_dict(), "checkpoints/shards/model.safetensors")
    return own_model() | {"build": model_of}


def two() -> ClusterDescription:
    return described_cluster(
        "two", [DescribedDevice(name, model="T4") for name in "ab"], LinkCost(1e10, latency=1e-5)
    )


def placed() -> Names:
    names = own_model()
    data = Data("lines", *(list(zip(*batch_of(16), strict=True)) for _ in range(2)), 3, ("a", "b", "c"))
    experiment = Experiment(
        "placed",
        model_of(),
        LOSS,
        data,
        {"m_topo": MTopo()},
        GPipe(4),
        ADAM,
        Settings(epochs=1, batch_size=16, seed=0),
    )
    plan = described(experiment, two()).plan(MTopo())
    return names | {"plan": plan, "graph": plan.problem.graph, "seconds": {}}


def updated() -> Names:
    return own_model() | {"functools": functools}


def recorded() -> Names:
    tracker = Tracker("sqlite:///outputs/mlflow.db", "netsplit")
    for _ in range(3):
        with tracker.comparison("net", {"batch_size": 4}, {"mode": "planned"}):
            pass
    return {}


def adapted() -> Names:
    names = own_model()
    return {**names, "data": [names["batch"]] * 9, "folder": Path("workers"), "optimizer": ADAM}


GIVEN: dict[str, Callable[[], Names]] = {
    "adaptive.md": adapted,
    "README.md": own_model,
    "whole_plan.md": own_model,
    "batches.md": structured,
    "checkpoints.md": checkpointed,
    "large_models.md": large,
    "onnx.md": placed,
    "optimizers.md": updated,
    "report.md": recorded,
    "resharding.md": dict,
    "rewrites.md": dict,
    "sharding.md": dict,
}
