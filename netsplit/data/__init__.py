"""The datasets of the evaluation, and the order of their batches."""

from typing import TYPE_CHECKING

from netsplit.lazy import lazy_names

if TYPE_CHECKING:
    from netsplit.data.dataset import IGNORED, Data, Samples
    from netsplit.data.reading.loader import Loader, batches
    from netsplit.data.sets.digits import digits, digits_segmentation
    from netsplit.data.sets.hugging_face import hugging_face
    from netsplit.data.sets.images import cifar10, imagefolder, voc2012
    from netsplit.data.sets.synthetic import records, synthetic
    from netsplit.data.sets.text import text

__all__ = [
    "IGNORED",
    "Data",
    "Loader",
    "Samples",
    "batches",
    "cifar10",
    "digits",
    "digits_segmentation",
    "hugging_face",
    "imagefolder",
    "records",
    "synthetic",
    "text",
    "voc2012",
]

__getattr__, __dir__ = lazy_names(__name__)
