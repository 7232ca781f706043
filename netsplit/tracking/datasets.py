"""What a run was trained and tested on, as MLflow shows it: name, digest, source, sizes."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from netsplit.tracking.values import masked, plain

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

__all__ = ["records_of"]


def records_of(data: Any, source: Any = None) -> list[DatasetInput]:
    """Both halves of a `netsplit.data.Data`; `source` is the config node that it was built from.

    MLflow's own data sets hold all values in memory, so only their record is used: the digest is of sizes,
    classes and three samples.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag
    from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

    records = []
    origin = json.dumps(plain(source) if source is not None else {"name": data.name}, sort_keys=True)
    for context, samples in (("training", data.train), ("evaluation", data.test)):
        if count := len(samples):
            shapes, content = _probed(samples)
            profile = json.dumps({"num_samples": count, "num_classes": data.num_classes, **shapes})
            # MLflow holds one dataset for a name and digest, so equal halves must differ in it too.
            head = json.dumps([data.name, context, profile, list(map(str, data.classes))])
            digest = hashlib.sha256(head.encode() + content).hexdigest()[:8]
            half = Dataset(data.name, digest, "code", masked(origin), profile=profile)
            records.append(DatasetInput(half, [InputTag(MLFLOW_DATASET_CONTEXT, context)]))
    return records


def _probed(samples: Any) -> tuple[dict[str, str], bytes]:
    """Shapes of an input and a target; the bytes of the first sample, of one in the middle and of the last.

    Of a stream, which is read in order: of the first three.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    last = len(samples) - 1
    shapes: dict[str, str] = {}
    content = b""
    for index in (
        range(min(3, last + 1)) if getattr(samples, "in_order", False) else sorted({0, last // 2, last})
    ):
        leaves = [leaf for leaf in tree_leaves(samples[index]) if leaf is not None]
        for n, leaf in enumerate(each for each in leaves if not isinstance(each, str | bytes)):
            tensor = torch.as_tensor(leaf).detach().cpu().contiguous()
            content += tensor.numpy().tobytes()
            if n < 2:
                shape = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
                shapes.setdefault(("input", "target")[n], shape)
    return shapes, content
