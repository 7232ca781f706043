"""The datasets of the evaluation, one builder per file, and the order of their batches."""

from netsplit.data.cifar10 import cifar10
from netsplit.data.dataset import IGNORED, Data, Samples
from netsplit.data.digits import digits
from netsplit.data.digits_segmentation import digits_segmentation
from netsplit.data.hugging_face import hugging_face
from netsplit.data.imagefolder import imagefolder
from netsplit.data.imagenet import imagenet
from netsplit.data.reading.loader import Loader, batches
from netsplit.data.synthetic import synthetic
from netsplit.data.text import text
from netsplit.data.voc2012 import voc2012

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
    "imagenet",
    "synthetic",
    "text",
    "voc2012",
]
