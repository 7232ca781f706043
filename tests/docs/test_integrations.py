"""`docs/integrations.md`, followed word for word by somebody who has the frameworks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.docs.page import follow, sections

SECTIONS = sections("integrations.md")


@pytest.mark.slow
def test_a_trainer_trains_gpt2_split(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="accelerate, which the Trainer needs, is not installed")
    out = follow(SECTIONS["Hugging Face Trainer"], tmp_path)
    assert 0 < float(out.splitlines()[-1]) < 3.5  # log(64) is 4.16
    assert (tmp_path / "trained" / "model.safetensors").is_file()
    assert len(list((tmp_path / "out").glob("checkpoint-*"))) == 4


@pytest.mark.slow
def test_lightning_trains_split(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="lightning is not installed")
    assert float(follow(SECTIONS["Lightning"], tmp_path).splitlines()[-1]) < 0.69


@pytest.mark.slow
def test_files_and_maps(tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    out = follow(SECTIONS["safetensors and accelerate"], tmp_path)
    assert set(ast.literal_eval(out.splitlines()[-1])) <= {
        "",
        "0",
        "2",
        "0.weight",
        "0.bias",
        "2.weight",
        "2.bias",
    }
