"""A placed model in training: its programs by shape, epochs, history, checkpoints, resuming."""

from netsplit.training.checkpoints import Checkpoints
from netsplit.training.epochs import fit
from netsplit.training.history import History

__all__ = ["Checkpoints", "History", "fit"]
