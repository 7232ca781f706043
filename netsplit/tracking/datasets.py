"""What a run was trained and tested on, as MLflow shows it: name, digest, source, sizes."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from netsplit.files import plain
from netsplit.tracking.values import masked

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

__all__ = ["records_of"]


def records_of(data: Any, source: Any = None) -> list[DatasetInput]:
    """Both halves of a `netsplit.data.Data`; `source` is the config node that it was built from.

    MLflow's own data sets hold all values in memory, so only their record is used: the digest is of the
    source, the sizes and the classes.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag
    from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

    records = []
    origin = masked(json.dumps(plain(source) if source is not None else {"name": data.name}, sort_keys=True))
    for context, samples in (("training", data.train), ("evaluation", data.test)):
        if count := len(samples):
            profile = json.dumps({"num_samples": count, "num_classes": data.num_classes})
            # MLflow holds one dataset for a name and digest, so equal halves must differ in it too.
            head = json.dumps([data.name, context, origin, profile, list(map(str, data.classes))])
            digest = hashlib.sha256(head.encode()).hexdigest()[:8]
            half = Dataset(data.name, digest, "code", origin, profile=profile)
            records.append(DatasetInput(half, [InputTag(MLFLOW_DATASET_CONTEXT, context)]))
    return records
