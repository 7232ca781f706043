"""Mistakes in one sentence."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from netsplit.errors import NetSplitError
from netsplit.graph.onnx import (
    export_training,
    from_onnx,
)

NET = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda path: from_onnx(None), "path of an ONNX file is None"),
        (lambda path: from_onnx(str(path.parent)), "is a folder"),
        (
            lambda path: from_onnx(str(path), outputs="scores"),
            r"outputs is the string 'scores': give a tuple",
        ),
        (
            lambda path: export_training(nn.Linear(2, 2), nn.MSELoss(), (torch.ones(2, 2),), path),
            "is not a pair",
        ),
        (
            lambda path: export_training(nn.Linear(2, 2), None, (torch.ones(2, 2),) * 2, path),
            "loss to export",
        ),
    ],
    ids=["no path", "a folder", "a text for names", "no targets", "no loss"],
)
def test_odd_input_gets_one_sentence(tmp_path: Path, read: Callable[[Path], object], words: str) -> None:
    path = tmp_path / "m.onnx"
    export_training(NET, nn.MSELoss(), (torch.ones(2, 2), torch.ones(2, 2)), path)
    with pytest.raises(NetSplitError, match=words):
        read(path)
