"""Parameters written as safetensors are read by that library and by ours, tied ones once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from netsplit.errors import NetSplitError
from netsplit.integrations import load_safetensors, save_safetensors
from tests.integrations.conftest import Split

safetensors = pytest.importorskip("safetensors.torch")


class Tied(nn.Module):
    """An embedding whose weight is the head's too, a buffer, a number as a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Embedding(7, 6)
        self.norm = nn.BatchNorm1d(6)
        self.middle = nn.Linear(6, 6)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.inward.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.middle(self.norm(self.inward(x)))))


def fresh(seed: int = 3) -> Tied:
    torch.manual_seed(seed)
    return Tied().double()


X = torch.arange(16) % 7
Y = (X + 1) % 7


def test_a_trained_split_model_is_written_and_a_plain_one_reads_it(split: Split, tmp_path: Path) -> None:
    parallel = split(fresh(), nn.CrossEntropyLoss(), (X, Y))
    parallel.train_batch(X, Y)
    trained = parallel.state_dict()
    save_safetensors(parallel, tmp_path / "model.safetensors", {"step": "1"})
    plain = fresh(4)
    safetensors.load_model(plain, tmp_path / "model.safetensors")
    assert not torch.equal(trained["middle.weight"], fresh().middle.weight)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(value, trained[name], rtol=0, atol=0)
    with safetensors.safe_open(tmp_path / "model.safetensors", "pt") as opened:
        assert opened.metadata() == {"format": "pt", "step": "1", "head.weight": "inward.weight"}
        assert "head.weight" not in opened.keys()  # noqa: SIM118


def test_a_split_model_takes_what_others_wrote_and_trains_on_from_there(split: Split, tmp_path: Path) -> None:
    """As Hugging Face's own files do, this one says nothing of the tied weight's other name."""
    other = fresh(5)
    state = {name: value for name, value in other.state_dict().items() if name != "head.weight"}
    safetensors.save_file(state, tmp_path / "theirs.safetensors")
    parallel = split(fresh(), nn.CrossEntropyLoss(), (X, Y), schedule="single_batch")
    read = load_safetensors(tmp_path / "theirs.safetensors", into=parallel)
    assert read.keys() == state.keys()
    expected = nn.functional.cross_entropy(other(X), Y).item()
    now = parallel.state_dict()
    assert all(torch.equal(now[name], value) for name, value in fresh(5).state_dict().items())
    assert parallel.train_batch(X, Y) == pytest.approx(expected, rel=1e-9)


def test_what_cannot_be_written_or_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(NetSplitError, match="'extra' is a int"):
        save_safetensors({"a": torch.ones(1), "extra": 3}, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())
    (tmp_path / "out.safetensors.index.json").write_text('{"weight_map": {"a": "../b.safetensors"}}')
    with pytest.raises(NetSplitError, match="cannot be read as safetensors"):
        load_safetensors(tmp_path / "out.safetensors.index.json")
    save_safetensors({"a": torch.ones(1)}, tmp_path / "a.safetensors")
    with pytest.raises(NetSplitError, match="Tied cannot load the state"):
        load_safetensors(tmp_path / "a.safetensors", into=fresh())
