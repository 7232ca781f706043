"""Others' ways to train the same model, each in processes of its own that wait until they are asked.

    controller ──pipe──► plain: one process, one thread, the ordinary loop over micro-batches
               ──pipe──► stage 0 ◄─gloo─► stage 1: torch.distributed.pipelining, every schedule it has here

What is asked is one iteration, and the answer is an empty one: the batch is there already.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._subjects import Subject
from netsplit.runtime.transport.handle import COMPILING_S
from netsplit.runtime.workers.launch import KEPT_MEMORY

__all__ = ["OPTIMIZER", "Answer", "Plain", "Rival", "TorchPipeline"]

OPTIMIZER = partial(torch.optim.SGD, lr=0.01)
ANSWER_S = 120.0

Answer = Callable[..., Any]
_Start = tuple[Callable[..., Any], tuple[Any, ...]]


class _Children:
    """Processes that answer the same question together."""

    def __init__(self, starts: Sequence[_Start], answer_s: float = ANSWER_S) -> None:
        self.answer_s = answer_s
        context = multiprocessing.get_context("spawn")
        self.pipes: list[Connection] = []
        self.processes = []
        before = {key: os.environ.get(key) for key in _CHILD}
        os.environ.update(_CHILD)
        try:
            for function, arguments in starts:
                here, there = context.Pipe()
                process = context.Process(target=_serve, args=(there, function, arguments), daemon=True)
                process.start()
                there.close()
                self.pipes.append(here)
                self.processes.append(process)
        finally:
            for key, value in before.items():
                if value is None:
                    del os.environ[key]
                else:
                    os.environ[key] = value
        self._answers()

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self.processes if process.pid is not None)

    def ask(self, *question: Any) -> list[Any]:
        """What each says to it.

        Raises:
            RuntimeError: one raised, died, or took too long.
        """
        for pipe in self.pipes:
            pipe.send(question)
        return self._answers()

    def _answers(self) -> list[Any]:
        answers = []
        for pipe in self.pipes:
            if not pipe.poll(self.answer_s):
                raise RuntimeError(f"no answer within {self.answer_s:g} s")
            try:
                value, error = pipe.recv()
            except EOFError:
                raise RuntimeError("the process died") from None
            if error:
                raise RuntimeError(error)
            answers.append(value)
        return answers

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


_CHILD = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **KEPT_MEMORY}


def _serve(pipe: Connection, function: Callable[..., Answer], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    answer: Answer | None = None
    question: tuple[Any, ...] = ()
    while True:
        try:
            if answer is None:
                answer = function(*arguments)
                pipe.send((None, ""))
            else:
                pipe.send((answer(*question), ""))
        except Exception:
            pipe.send((None, traceback.format_exc()))
        try:
            question = pipe.recv()
        except EOFError:
            return


class Rival:
    """Processes that meet at a file and take a step each time they are asked.

    Args:
        starts: of the file's path: function and arguments of each process.
        answer_s: within which they answer.
    """

    def __init__(self, starts: Callable[[str], list[_Start]], answer_s: float = ANSWER_S) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="netsplit-rivals-")
        self._children = _Children(starts(str(Path(self._folder.name) / "init")), answer_s)
        self.pids = self._children.pids

    def step(self) -> None:
        self._children.ask("step")

    def state(self) -> dict[str, Tensor]:
        """Whole parameters and buffers, as the first process has them."""
        tensors: dict[str, Tensor] = self._children.ask("state")[0]
        return tensors

    def close(self) -> None:
        self._children.close()
        self._folder.cleanup()


class Plain(Rival):
    """PyTorch in one process of one thread; with a backend its model is compiled by `torch.compile`."""

    def __init__(self, subject: Subject, microbatches: int, backend: str | None = None) -> None:
        answer_s = ANSWER_S if backend is None else COMPILING_S
        super().__init__(lambda _: [(_plain, (subject, microbatches, backend))], answer_s)


def _plain(subject: Subject, microbatches: int, backend: str | None = None) -> Answer:
    model, loss = subject.fresh(), nn.CrossEntropyLoss()
    if backend is not None:
        model.compile(backend=backend, dynamic=False)
    optimizer = OPTIMIZER(model.parameters())
    inputs, targets = (part.chunk(microbatches) for part in subject.batch(microbatches))

    def answer(question: str) -> Any:
        if question == "state":
            return model.state_dict()
        for x, y in zip(inputs, targets, strict=True):
            (loss(model(x), y) / microbatches).backward()
        optimizer.step()
        optimizer.zero_grad()
        return None

    return answer


class TorchPipeline(Rival):
    """torch.distributed.pipelining on two processes, the chain cut before unit `cut`.

    Its zero-bubble schedule is the interleaved one with a single stage on each process.
    """

    SCHEDULES = ("gpipe", "1f1b", "zb_h1")

    def __init__(self, subject: Subject, microbatches: int, cut: int) -> None:
        super().__init__(lambda file: [(_stage, (subject, microbatches, cut, r, file)) for r in range(2)])

    def step(self, schedule: str = "1f1b") -> None:
        self._children.ask("step", schedule)

    def reset(self) -> None:
        """Back to the first parameters."""
        self._children.ask("reset", "")

    def state(self) -> dict[str, Tensor]:
        """Parameters and buffers of both stages under the whole model's names."""
        return {key: value for part in self._children.ask("state", "") for key, value in part.items()}


def _stage(subject: Subject, microbatches: int, cut: int, rank: int, init_file: str) -> Answer:
    import torch.distributed as dist
    from torch.distributed.pipelining import (
        PipelineStage,
        Schedule1F1B,
        ScheduleGPipe,
        ScheduleInterleavedZeroBubble,
    )

    dist.init_process_group("gloo", init_method=f"file://{init_file}", rank=rank, world_size=2)
    model = subject.fresh()
    assert isinstance(model, nn.Sequential)
    part = model[:cut] if rank == 0 else model[cut:]
    first = copy.deepcopy(part.state_dict())
    optimizer = OPTIMIZER(part.parameters())
    inputs, targets = subject.batch(microbatches)
    loss = nn.CrossEntropyLoss()

    def made(kind: Any, many: bool) -> Any:
        stage = PipelineStage(part, rank, 2, torch.device("cpu"))
        return kind([stage] if many else stage, microbatches, loss_fn=loss)

    schedules = {
        "gpipe": made(ScheduleGPipe, False),
        "1f1b": made(Schedule1F1B, False),
        "zb_h1": made(ScheduleInterleavedZeroBubble, True),
    }

    def answer(question: str, schedule: str) -> Any:
        if question == "state":
            return part.state_dict()  # a slice of a chain keeps its units' names
        if question == "reset":
            part.load_state_dict(first)
            return None
        if rank == 0:
            schedules[schedule].step(inputs, return_outputs=False)
        else:
            schedules[schedule].step(target=targets, losses=[], return_outputs=False)
        optimizer.step()
        optimizer.zero_grad()
        return None

    return answer
