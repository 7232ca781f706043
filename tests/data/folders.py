"""Small datasets on disk, in the very layouts that the real ones have."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
from PIL import Image

WNIDS = ("n01440764", "n01443537", "n02102040")
LABELS = (
    b"airplane", b"automobile", b"bird", b"cat", b"deer", b"dog", b"frog", b"horse", b"ship", b"truck"
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
    """Five batches and the test batch as the Python version pickles them: bytes as keys, rows of 3,072."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for number, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        rng = np.random.default_rng(number)
        content = {
            b"batch_label": name.encode(),
            b"labels": [int(label) for label in rng.integers(10, size=per_batch)],
            b"data": rng.integers(0, 256, size=(per_batch, 3072), dtype=np.uint8),
            b"filenames": [f"{name}_{i}.png".encode() for i in range(per_batch)],
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    meta = {b"label_names": list(LABELS), b"num_cases_per_batch": per_batch, b"num_vis": 3072}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))
    return root


def make_text(root: Path, files: int = 6, characters: int = 400) -> Path:
    """Files that differ, with a character that the vocabulary does not have."""
    root.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        line = f"def f{number}(x):\n\treturn x + {number}  # é\n"
        (root / f"m{number}.py").write_text(line * (characters // len(line) + 1), encoding="utf-8")
    return root
