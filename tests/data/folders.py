"""Small datasets on disk, in the very layouts that the real ones have."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import CIFAR10

WNIDS = ("n01440764", "n01443537", "n02102040")
LABELS = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"
)  # fmt: skip
VOC_PALETTE = [level for index in range(256) for level in (index, 255 - index, index // 2)]


def noise(width: int, height: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size=(height, width, 3), dtype=np.uint8)


def make_imagenet(root: Path, per_class: int = 3) -> Path:
    """Three classes of JPEGs, wide, high and grey; class k has about the grey 40 + 80 k."""
    for half, count in (("train", per_class), ("val", 1)):
        for k, wnid in enumerate(WNIDS):
            folder = root / half / wnid
            folder.mkdir(parents=True)
            for i in range(count):
                width, height = ((60, 40), (40, 60), (48, 48))[i % 3]
                pixels = (noise(width, height, 10 * k + i) // 16 + 40 + 80 * k).astype(np.uint8)
                picture = Image.fromarray(pixels)
                name = f"{wnid}_{i}.JPEG" if half == "train" else f"ILSVRC2012_val_{k:08}.JPEG"
                (picture.convert("L") if i == 2 else picture).save(folder / name, "JPEG", quality=95)
    return root


def make_voc(root: Path, train: int = 4, val: int = 2, size: tuple[int, int] = (50, 37)) -> Path:
    """Pictures whose red says the class: 10 x class, so that picture and mask can be held together."""
    folder = root / "VOCdevkit" / "VOC2012"
    for name in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (folder / name).mkdir(parents=True)
    lists: dict[str, list[str]] = {"train": [], "val": []}
    for number in range(train + val):
        name = f"2007_{number:06}"
        lists["train" if number < train else "val"].append(name)
        mask = np.zeros((size[1], size[0]), dtype=np.uint8)
        mask[:, size[0] // 2 :] = 1 + number % 20
        mask[: size[1] // 3] = 20
        pixels = np.stack([mask * 10, mask * 0 + 128, mask * 0], axis=-1).astype(np.uint8)
        mask[:, size[0] // 2 - 1 : size[0] // 2 + 1] = 255
        Image.fromarray(pixels).save(folder / "JPEGImages" / f"{name}.jpg", quality=100, subsampling=0)
        paletted = Image.fromarray(mask).convert("L")
        paletted.putpalette(VOC_PALETTE)
        paletted.save(folder / "SegmentationClass" / f"{name}.png")
    for half, names in lists.items():
        (folder / "ImageSets" / "Segmentation" / f"{half}.txt").write_text("\n".join(names) + "\n")
    return root


def make_cifar(root: Path, per_batch: int = 6) -> Path:
    """Five batches and the test batch as the Python version has them: rows of 3,072."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for number, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        rng = np.random.default_rng(number)
        content = {
            "batch_label": name,
            "labels": [int(label) for label in rng.integers(10, size=per_batch)],
            "data": rng.integers(0, 256, size=(per_batch, 3072), dtype=np.uint8),
            "filenames": [f"{name}_{i}.png" for i in range(per_batch)],
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    meta = {"label_names": list(LABELS), "num_cases_per_batch": per_batch, "num_vis": 3072}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))
    return root


def trust_cifar(patch: pytest.MonkeyPatch, root: Path) -> None:
    """Have these files for those that are published, by their MD5 sums."""

    def md5(name: str) -> str:
        return hashlib.md5((root / "cifar-10-batches-py" / name).read_bytes()).hexdigest()

    for key in ("train_list", "test_list"):
        patch.setattr(CIFAR10, key, [[name, md5(name)] for name, _ in getattr(CIFAR10, key)])
    patch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": md5("batches.meta")})


def make_text(root: Path, files: int = 6, characters: int = 400) -> Path:
    """Files that differ, with a character that the vocabulary does not have."""
    root.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        line = f"def f{number}(x):\n\treturn x + {number}  # é\n"
        (root / f"m{number}.py").write_text(line * (characters // len(line) + 1), encoding="utf-8")
    return root
