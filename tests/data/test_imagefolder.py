"""Folders of images: read lazily, and one sentence for what is not there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from netsplit.data import imagefolder
from netsplit.errors import ConfigError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two classes; train has 3 images each and val has 1 each; class a is black and class b is white."""
    for half, count in (("train", 3), ("val", 1)):
        for name, grey in (("a", 0), ("b", 255)):
            folder = tmp_path / half / name
            folder.mkdir(parents=True)
            for index in range(count):
                Image.new("RGB", (20, 12), (grey,) * 3).save(folder / f"{index}.png")
            (folder / "notes.txt").write_text("not an image")
    return tmp_path


def test_images_are_square_normalised_and_classed_by_folder(root: Path) -> None:
    data = imagefolder(str(root), image_size=8, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert (len(data.train), len(data.test), data.num_classes, tuple(data.classes)) == (6, 2, 2, ("a", "b"))
    black, target = data.train[0]
    white, other = data.test[1]
    assert torch.equal(black, torch.full((3, 8, 8), -1.0))
    assert torch.equal(white, torch.full((3, 8, 8), 1.0))
    assert (target.item(), other.item()) == (0, 1)


def test_a_file_is_opened_only_when_asked_for(root: Path) -> None:
    broken = root / "train" / "a" / "0.png"
    broken.write_bytes(b"broken")
    data = imagefolder(str(root), image_size=8)
    data.train[1]
    with pytest.raises(ConfigError, match=r"0\.png as an image"):
        data.train[0]
