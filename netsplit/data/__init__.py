"""The datasets of the evaluation, one builder per file, and the order of their batches."""

from netsplit.data.dataset import Data, Samples
from netsplit.data.digits import digits
from netsplit.data.imagefolder import imagefolder
from netsplit.data.loader import batches

__all__ = ["Data", "Samples", "batches", "digits", "imagefolder"]
