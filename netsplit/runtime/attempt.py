"""An iteration that can be taken back, as long as no device has stepped.

    compute ─► None ─────── all devices ───────► commit: steps, ends
       └─────► BatchFailure ──── one of them ───────► abandon: buffers and gradients as they were

A device that fails goes on without computing: it takes what it is sent, and sends zeros for what others wait
for. So all come to the end of the iteration, nothing stays on its way, and the next batch finds them ready.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from netsplit.graph.random_draws import DrawKey
from netsplit.program.instructions import Backward, Forward, Gather, Recv, Scatter, Send
from netsplit.runtime.executor import Executor
from netsplit.runtime.faults.failure import BatchFailure, failure_of, is_fatal
from netsplit.runtime.transport.handle import Handle
from netsplit.runtime.values import Absent, IterationValues, Key

__all__ = ["Attempt"]


class Attempt:
    """One iteration on one device, in two halves."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    def compute(
        self,
        feeds: list[dict[str, Tensor]],
        fractions: Sequence[float] | None,
        step: bool,
        key: DrawKey,
        absent: Absent = frozenset(),
    ) -> BatchFailure | None:
        """All up to the first step; see `Executor.begin`.

        Raises:
            Exception: one after which this process cannot go on, or of devices that step within the batch.
        """
        executor, index = self.executor, 0
        try:
            with executor.grad_mode():
                executor.begin(feeds, fractions, step, key, absent)
                for index in range(executor.computing):
                    executor.execute(index)
                executor.hand_on(wait=True)
                executor.settle()
        except Exception as error:
            if is_fatal(error) or not executor.program.steps_last:
                raise
            failure = self._failure(error, index)
        else:
            return None
        self._drain(index)  # here, as the exception holds the iteration's tensors
        return failure

    def unfed(self, failure: BatchFailure) -> BatchFailure:
        """In the place of `compute`, where there is no batch: so that no other device waits in vain."""
        self.executor.recorder.begin()
        self._drain(0)
        return failure

    def commit(self) -> dict[Key, Tensor]:
        """Step, if the iteration does, and end it; see `Executor.finish`."""
        executor = self.executor
        executor.before = None
        with executor.grad_mode():
            for index in range(executor.computing, len(executor.instructions)):
                executor.execute(index)
            return executor.finish()

    def abandon(self) -> None:
        """End the iteration, and leave everything as it was before it."""
        self.executor.await_sends()
        self.executor.await_collectives()
        self.executor.abandon()

    def _failure(self, error: Exception, index: int) -> BatchFailure:
        executor = self.executor
        instruction = executor.instructions[index]
        return failure_of(
            error, executor.device, f" at its {instruction}", executor.program.graph, executor.order[index]
        )

    def _drain(self, start: int) -> None:
        executor = self.executor
        had = executor.state
        executor.state = IterationValues(
            [],
            readers=dict(executor.readers),
            arriving=had.arriving,
            sending=had.sending,
            watched=had.watched,
            unfinished=had.unfinished,
        )
        for held in had.held_back:
            self._send_nothing(held.send, held.begun)
        for index in range(start, executor.computing):
            instruction = executor.instructions[index]
            executor.recorder.at(index)
            if isinstance(instruction, Forward | Backward):
                self._take(instruction)
            elif isinstance(instruction, Send):
                self._send_nothing(instruction)
            elif isinstance(instruction, Recv):
                executor.receive(instruction)
            elif isinstance(instruction, Gather | Scatter):  # of gradients that are taken back by all
                executor.collect(instruction)
            executor.let_go(index)

    def _send_nothing(self, send: Send, begun: Sequence[Handle] = ()) -> None:
        """Zeros for what was not begun, once what they would have been made of has come."""
        executor, arriving = self.executor, self.executor.state.arriving
        for key in executor.handed_on.get(send.tag, ()):
            if key in arriving:
                recv, handle = arriving.pop(key)
                executor.wait(send, recv, handle)
        executor.carry(send, executor.empty_like(send.source, send.microbatch).zero_(), begun)

    def _take(self, ins: Forward | Backward) -> None:
        """Wait for what the instruction would have read of other devices, and forget it."""
        executor, i = self.executor, ins.microbatch
        segment, arriving = executor.segments[ins.segment], executor.state.arriving
        gradient = isinstance(ins, Backward)
        names = (
            [copy for k in segment.outputs for copy, _ in executor.copies[k]] if gradient else segment.inputs
        )
        for k in () if isinstance(ins, Backward) and ins.part == "weight" else names:
            first = i if gradient else executor.program.sent_with(k, executor.device, i)
            if (k, first, gradient) in arriving:
                recv, handle = arriving.pop((k, first, gradient))
                executor.wait(ins, recv, handle)
