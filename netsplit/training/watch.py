"""What is done here to the user's model, told from what the user does to it while it trains elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn

from netsplit.graph.autocast import refuse_surrounding
from netsplit.graph.batches.batch import Batch
from netsplit.graph.checks.holding import by_name
from netsplit.graph.checks.notice import Notice
from netsplit.optim.optimizers import ForModel
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.reading.told import UnreadBatch
from netsplit.training.programs import Programs
from netsplit.training.reuse import Reuse

__all__ = ["ModelWatch"]


class ModelWatch:
    """Looks before every batch, where what is captured is checked at all.

    Args:
        optimizer: of the training.
        opened: the runtime, as long as the workers live.
    """

    def __init__(
        self,
        model: nn.Module,
        programs: Programs,
        optimizer: object,
        opened: Callable[[], DistributedRuntime],
    ) -> None:
        self.model, self.opened = model, opened
        self._values = lambda: opened().state()
        captures = programs.captures
        captures.trained = self._values
        kept = optimizer.made if isinstance(optimizer, ForModel) else ()
        self._notice = Notice(model, captures.loss, kept) if captures.check else None
        self._reuse = Reuse() if captures.check else None

    @contextmanager
    def own(self, programs: Programs, training: bool = False) -> Iterator[None]:
        """While something is done here.

        Args:
            training: what the user did is looked for first; only programs that are made then run the model.
        """
        captures = programs.captures
        refuse_surrounding(captures.autocast)
        captures.trained = self._values  # others have the captures, too, as one that only started new workers
        if self._notice is None:
            yield
            return
        if not training:
            with self._notice.own():
                yield
            return
        self._notice.look(self._states)
        made_s = programs.made_s
        with self._notice.own(looked=True, ran=lambda: programs.made_s != made_s):
            yield

    @contextmanager
    def training(self, programs: Programs, inputs: Any, targets: Any) -> Iterator[Batch | UnreadBatch]:
        """While a batch is trained."""
        with self.own(programs, training=True):
            if isinstance(inputs, UnreadBatch):  # its tensors are new ones, on the workers
                yield inputs
                return
            batch = programs.batch(inputs, targets)
            with self._reuse.noted(programs.training(batch).graph, batch) if self._reuse else nullcontext():
                yield batch

    def _states(self) -> Iterator[dict[str, Tensor]]:
        yield by_name(self.model, self.opened().state())
        if self.opened().rule.ema_decay is not None:
            yield by_name(self.model, self.opened().state(averaged=True))
