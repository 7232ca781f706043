"""Training a placed model: programs by shape, epochs, history, checkpoints, resuming."""

from typing import TYPE_CHECKING

from netsplit.lazy import lazy_names

if TYPE_CHECKING:
    from netsplit.training.checkpoints import Checkpoints
    from netsplit.training.epochs import fit
    from netsplit.training.history import History

__all__ = ["Checkpoints", "History", "fit"]

__getattr__, __dir__ = lazy_names(__name__)
