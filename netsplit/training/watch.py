"""What is done here to the user's model, told from what the user does to it while it trains elsewhere."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import WeakSet

from torch import Tensor, nn

from netsplit.errors import NetSplitError
from netsplit.graph.autocast import refuse_surrounding
from netsplit.graph.batches.batch import Batch
from netsplit.graph.checks.holding import by_name
from netsplit.graph.checks.notice import Notice
from netsplit.optim.optimizers import ForModel
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.reading.told import UnreadBatch
from netsplit.training.factories import FactoryWatch
from netsplit.training.programs import Programs
from netsplit.training.reuse import Reuse

__all__ = ["ModelWatch"]


log = logging.getLogger(__name__)

_WATCHES: WeakSet[ModelWatch] = WeakSet()


class ModelWatch:
    """Looks before every batch, where what is captured is checked at all.

    Args:
        optimizer: of the training.
        opened: the runtime, as long as the workers live.
        turn: of threads, which train and predict one after another.
    """

    def __init__(
        self,
        model: nn.Module,
        programs: Programs,
        optimizer: object,
        opened: Callable[[], DistributedRuntime],
        turn: threading.RLock,
    ) -> None:
        self.model, self.opened = model, opened
        self._warn_of_others()
        self._turn = turn
        self._values = lambda: opened().state()
        captures = programs.captures
        captures.trained = self._values
        kept = optimizer.made if isinstance(optimizer, ForModel) else ()
        self._notice = Notice(model, captures.loss, kept) if captures.check else None
        self._reuse = Reuse() if captures.check else None
        rate = opened().rule.learning_rate
        watched = captures.check and isinstance(optimizer, ForModel)
        self._factories = FactoryWatch(optimizer, rate) if watched else None  # type: ignore[arg-type]

    def _warn_of_others(self) -> None:
        """Where another split model has copies of the same parameters: plain models would share them."""
        own = {id(p): name for name, p in self.model.named_parameters()}
        for other in _WATCHES:
            both = [own[id(p)] for p in other.model.parameters() if id(p) in own]
            if both and other.model is not self.model and other.is_open():
                log.warning(
                    "'%s' is also in another split model of this process. Each trains its own copy, and "
                    "neither sees the other's changes.", both[0],
                )  # fmt: skip
                break
        _WATCHES.add(self)

    def is_open(self) -> bool:
        try:
            return bool(self.opened().pool.connections)
        except (NetSplitError, ReferenceError):  # closed, or gone
            return False

    @contextmanager
    def own(self, programs: Programs, training: bool = False) -> Iterator[None]:
        """While something is done here.

        Args:
            training: what the user did is looked for first; only programs that are made then run the model.
        """
        with self._turn:
            yield from self._own(programs, training)

    def _own(self, programs: Programs, training: bool) -> Iterator[None]:
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
        if self._factories is not None:
            self._factories.look()
        made_s = programs.made_s
        with self._notice.own(looked=True, ran=lambda: programs.made_s != made_s):
            yield

    @contextmanager
    def predicting(self, programs: Programs) -> Iterator[None]:
        """While a batch is predicted."""
        with self._turn:
            if self._notice is not None:
                self._notice.look(self._states, training=False)
            with self.own(programs):
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
