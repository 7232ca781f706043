"""Torch's data parallelism as a baseline: it learns what one process learns."""

from __future__ import annotations

import pytest
import torch
from hydra import compose, initialize_config_dir
from torch import nn

from benchmarks.torch_ddp import CONF, train
from netsplit.config import build
from netsplit.data.reading.loader import Loader
from netsplit.session.request import without_reading

# Without batch normalisation the replicas' gradients are those of the whole batch.
SMALL = ["model=unet_classic_small", "dataset=digits_segmentation", "model.batch_norm=false"]
OVERRIDES = [*SMALL, "batch_size=7", "dataset.limit=20", "epochs=2", "seed=3"]


@pytest.mark.slow
def test_two_replicas_take_the_steps_of_one_process() -> None:
    """Batches of 7, 7 and 6: pieces of 4 and 3 count by their samples."""
    with initialize_config_dir(str(CONF), version_base=None):
        cfg = compose("config", ["experiment=convergence", *OVERRIDES])
    trained = train(cfg, 2)
    torch.manual_seed(3)
    data, model = build(without_reading(cfg)[0].dataset), build(cfg.model)
    loss, optimizer = nn.CrossEntropyLoss(), build(cfg.optimizer)(model.parameters())
    loader = Loader(data.train, 7, seed=3, drop_last=False)
    expected = []
    for epoch in range(2):
        for inputs, targets in loader.epoch(epoch):
            value = loss(model(inputs), targets)
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            expected.append(value.item())
    assert [each.loss for each in trained.iterations] == pytest.approx(expected, rel=1e-3)
    assert [each.samples for each in trained.iterations] == [7, 7, 6] * 2
    assert [each.index for each in trained.epochs] == [0, 1]
