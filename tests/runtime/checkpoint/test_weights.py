"""First values of models that have none: by name and seed, from safetensors, from checkpoints."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_saver import save

import netsplit
from netsplit import CheckpointWeights, SafetensorsWeights, SeededWeights
from netsplit.errors import ConfigError, NetSplitError
from netsplit.graph import capture
from netsplit.graph.ir import Initializer
from netsplit.runtime.checkpoint.weights import WeightSource

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
X, Y = torch.randint(20, (12, 3)), torch.randint(3, (12,))


class Tied(nn.Module):
    """An embedding that scores too, layers with buffers, and a module within a module with its own tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(), Scaled(8))
        self.norm = nn.BatchNorm1d(8)
        self.scores = nn.Linear(8, 20, bias=False)
        self.scores.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(self.norm(self.body(self.words(x).mean(1))))[:, :3]


class Scaled(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(width))
        self.inner = nn.Linear(width, width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.scale


def model() -> Tied:
    return Tied().double()


def on_meta() -> Tied:
    with torch.device("meta"):
        return model()


WANTED: dict[str, Initializer] = capture(on_meta(), nn.CrossEntropyLoss(), (X, Y)).initializers


def read(source: WeightSource) -> dict[str, Tensor]:
    return source.check(WANTED, on_meta()).read(WANTED)


def plain_values(plain: nn.Module) -> dict[str, Tensor]:
    named = dict(plain.named_parameters()) | dict(plain.named_buffers())
    return {name: named[name].detach().clone() for name in WANTED}


SOURCES = {seed: SeededWeights(seed).check(WANTED, on_meta()) for seed in (0, 1)}
FILLED = {seed: plain_values(SeededWeights(seed).fill(model())) for seed in (0, 1)}


@settings(deadline=None)
@given(st.sets(st.sampled_from(sorted(WANTED)), min_size=1), st.sampled_from([0, 1]))
def test_a_seed_and_a_name_say_the_value_whatever_else_is_asked_for(names: set[str], seed: int) -> None:
    some = SOURCES[seed].read({name: WANTED[name] for name in names})
    assert some.keys() == names
    assert all(torch.equal(some[name], FILLED[seed][name]) for name in names)
    assert not torch.equal(FILLED[0]["words.weight"], FILLED[1]["words.weight"])


def shards(folder: Path, values: dict[str, Tensor], index: bool, prefix: str = "") -> None:
    """As Hugging Face writes them: each tied tensor once."""
    names = sorted(values)
    files = {name: f"model-{i % 3}.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        save_file({prefix + k: values[k] for k in names if files[k] == file}, folder / file)
    if index:
        weight_map = {prefix + name: file for name, file in files.items()}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(("index", "prefix"), [(True, ""), (False, "model.")])
def test_shards_of_safetensors_are_read_by_name(tmp_path: Path, index: bool, prefix: str) -> None:
    values = plain_values(model())
    values["scores.weight"] = values.pop("words.weight")  # the name of the other of two that are tied
    shards(tmp_path, values, index, prefix)
    taken = read(SafetensorsWeights(tmp_path, prefix))
    assert torch.equal(taken.pop("words.weight"), values.pop("scores.weight"))
    assert all(torch.equal(taken[name], value) for name, value in values.items())


def test_a_checkpoint_is_read_by_name(tmp_path: Path) -> None:
    values = plain_values(model())
    save({f"model.{k}": v for k, v in values.items()}, checkpoint_id=tmp_path, no_dist=True)
    taken = read(CheckpointWeights(tmp_path))
    assert all(torch.equal(taken[name], value) for name, value in values.items())


@pytest.mark.parametrize("kind", [SafetensorsWeights, CheckpointWeights])
def test_what_is_missing_or_of_another_shape_is_said(tmp_path: Path, kind: type) -> None:
    def written(values: dict[str, Tensor]) -> WeightSource:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        if kind is SafetensorsWeights:
            shards(folder, values, index=False)
            return SafetensorsWeights(folder)
        save({f"model.{k}": v for k, v in values.items()}, checkpoint_id=folder, no_dist=True)
        return CheckpointWeights(folder)

    values = plain_values(model())
    with pytest.raises(ConfigError, match=r"lack '.*norm.weight'"):
        read(written({k: v for k, v in values.items() if k != "norm.weight"}))
    with pytest.raises(ConfigError, match=r"norm.weight' of shape \(3,\) but the model has \(8,\)"):
        read(written({**values, "norm.weight": torch.zeros(3).double()}))
    with pytest.raises(NetSplitError, match=r"weights is|cannot be read"):
        read(kind(tmp_path / "nothing"))


@pytest.mark.slow
def test_workers_draw_and_train_what_a_plain_model_does(tmp_path: Path) -> None:
    """The controller's model has no memory before and after; a checkpoint goes on under another source."""
    split, source = on_meta(), SeededWeights(4)
    plain = source.fill(model())
    optimizer = SGD(plain.parameters())
    options: Any = {"profile": "predicted", "schedule": "single_batch", "optimizer": SGD}
    options["partitioner"] = "round_robin"
    with netsplit.parallelize(split, nn.CrossEntropyLoss(), (X, Y), weights=source, **options) as trained:
        for _ in range(2):
            loss = trained.train_batch(X, Y)
            optimizer.zero_grad()
            expected = nn.functional.cross_entropy(plain(X), Y)
            expected.backward()
            optimizer.step()
            assert loss == pytest.approx(float(expected.detach()), rel=1e-12)
        state = trained.state_dict()
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=1e-12, atol=1e-12)
        plain.eval()
        torch.testing.assert_close(trained.predict(X), plain(X).detach(), rtol=1e-12, atol=1e-12)
        with pytest.raises(netsplit.NetSplitError, match="so it cannot load a state"):
            trained.load_state_dict(state)
        trained.save_checkpoint(tmp_path / "kept")
    assert all(tensor.is_meta for tensor in split.state_dict().values())
    kept = CheckpointWeights(tmp_path / "kept")
    with netsplit.parallelize(split, nn.CrossEntropyLoss(), (X, Y), weights=kept, **options) as again:
        assert all(torch.equal(value, state[name]) for name, value in again.state_dict().items())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"profile": "predicted"}, "'words.weight' has no value because the model is on the meta device"),
        ({"weights": SeededWeights()}, "cannot be measured: give profile='predicted'"),
        ({"weights": "here", "profile": "predicted"}, "weights is 'here': give SafetensorsWeights"),
    ],
)
def test_a_model_without_values_is_refused_in_a_sentence(options, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        netsplit.parallelize(on_meta(), nn.CrossEntropyLoss(), (X, Y), partitioner="single", **options)


LARGE = """
import resource, sys
GIB = 2**30
resource.setrlimit(resource.RLIMIT_AS, (int(2.5 * GIB), int(2.5 * GIB)))
import torch, netsplit
from torch import nn
from functools import partial

WIDTH = 4096

def build():
    layers = (layer for _ in range(36) for layer in (nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU()))
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))

try:
    build()
except RuntimeError as error:
    print("plain:", "allocate" in str(error))
with torch.device("meta"):
    model = build()
x, y = torch.randn(8, WIDTH), torch.randint(10, (8,))
options = dict(cluster=netsplit.cpu_cluster(6, "2GiB"), profile="predicted", partitioner="balanced",
               schedule="gpipe", optimizer=partial(torch.optim.SGD, lr=0.1))
def training(weights):
    return netsplit.parallelize(model, nn.CrossEntropyLoss(), (x, y), weights=weights, **options)
with training(netsplit.SeededWeights(3)) as trained:
    print("first:", trained.train_batch(x, y))
    trained.save_checkpoint(sys.argv[1])
    second = trained.train_batch(x, y)
with training(netsplit.CheckpointWeights(sys.argv[1])) as trained:
    print("same:", trained.train_batch(x, y) == second)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_model_that_no_process_could_build_is_trained(tmp_path: Path) -> None:
    """All processes have 2.5 GiB of addresses; the parameters alone are 2.25 GiB, their gradients as many."""
    words = [sys.executable, "-c", LARGE, str(tmp_path / "kept")]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr
    said = dict(line.split(": ") for line in done.stdout.splitlines())
    assert said["plain"] == "True"
    assert said["same"] == "True"
    assert 1 < float(said["first"]) < 4
