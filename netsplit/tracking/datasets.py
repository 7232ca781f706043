"""What a run was trained and tested on, as MLflow shows it: name, digest, source, sizes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from netsplit.tracking.values import masked, plain

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

__all__ = ["records_of"]

_PROBES = 3  # samples whose content goes into the digest: the first, one in the middle, the last


class _TrackedData(Protocol):
    """`netsplit.data.Data`, as far as it is told here."""

    @property
    def name(self) -> str: ...
    @property
    def train(self) -> Any: ...
    @property
    def test(self) -> Any: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def classes(self) -> Sequence[str]: ...


def records_of(data: _TrackedData, source: Any = None) -> list[DatasetInput]:
    """Both halves, as MLflow has them; `source` is the config node the data was built from."""
    from mlflow.entities import Dataset, DatasetInput, InputTag
    from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

    records = []
    origin = json.dumps(plain(source) if source is not None else {"name": data.name}, sort_keys=True)
    for context, samples in (("training", data.train), ("evaluation", data.test)):
        if len(samples):
            shapes, content = _content(samples)
            profile = {"num_samples": len(samples), "num_classes": data.num_classes, **shapes}
            # MLflow holds one dataset for a name and digest, so equal halves must differ in it too.
            head = json.dumps([data.name, context, profile, list(map(str, data.classes))], sort_keys=True)
            digest = hashlib.sha256(head.encode() + content).hexdigest()[:8]
            half = Dataset(data.name, digest, "code", masked(origin), profile=json.dumps(profile))
            records.append(DatasetInput(half, [InputTag(MLFLOW_DATASET_CONTEXT, context)]))
    return records


def _content(samples: Any) -> tuple[dict[str, str], bytes]:
    """Shapes of an input and a target, and a hash of a few samples."""
    last = len(samples) - 1
    content = hashlib.sha256()
    shapes: dict[str, str] = {}
    spread = {round(i * last / (_PROBES - 1)) for i in range(_PROBES)}
    begin = range(min(_PROBES, len(samples)))  # of a stream, which is read from there on
    for index in begin if getattr(samples, "in_order", False) else sorted(spread):
        for part, tensor in zip(("input", "target"), _tensors(samples[index]), strict=False):
            content.update(tensor.numpy().tobytes())
            shapes.setdefault(part, f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}")
    return shapes, content.digest()


def _tensors(sample: Any) -> Iterator[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    for part in tree_leaves(sample):
        if part is not None and not isinstance(part, str | bytes):
            yield torch.as_tensor(part).detach().cpu().contiguous()
