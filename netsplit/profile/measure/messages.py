"""What copying a message's bytes takes from computations of its two ends, measured while both compute.

both ends:  receive, send, compute ─► wait          small messages
both ends:  receive, send, compute ─► wait          large ones: longer by what copying takes
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from netsplit.cluster.probe import Mover
from netsplit.graph.ir import Graph, Initializer, Node, Variable

__all__ = ["copy_seconds_per_byte", "instruction_seconds", "trivial_step"]

SMALL, LARGE = 64, 2**20  # bytes
COMPUTE_S = 6e-3  # of a computation, in pieces
PIECES = 4  # before each of which a message starts either way; longer than a large one is on its way
WAIT_S = 60.0
ROUNDS, RUNS = 15, 40  # of messages, of programs; the first do not count


def copy_seconds_per_byte(mover: Mover, peer: str, barrier: Callable[[], None]) -> float:
    """To be called by two workers at once; each gets what it measured itself.

    Kinds of a round follow one another at once, so that a change of the machine's speed reaches both of
    them; the answer is the median of differences within a round.
    """
    work = _CopyWork()
    small, large = (torch.zeros(n, dtype=torch.uint8) for n in (SMALL, LARGE))
    copying = []
    for _ in range(ROUNDS):
        barrier()
        small_s = _busy(mover, peer, small, work)
        barrier()
        large_s = _busy(mover, peer, large, work)
        copying.append((large_s - small_s) / (2 * PIECES * LARGE))
    return max(median(copying[ROUNDS // 5 :]), 0.0)


class _CopyWork:
    """A computation of many small operators, as long as `COMPUTE_S`."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.values = [torch.randn(64, 64, generator=generator) for _ in range(16)]
        self.count = 16
        for _ in range(3):
            self.count = max(int(self.count * COMPUTE_S / self.seconds()), 4)

    def seconds(self, before: Callable[[], object] | None = None) -> float:
        """Wall seconds of the computation, and of `before` before each of its pieces."""
        start = time.perf_counter()
        total = self.values[0]
        for _ in range(PIECES):
            if before is not None:
                before()
            for k in range(self.count // PIECES):
                total = torch.tanh(self.values[k % 16] @ total)
        return time.perf_counter() - start


def _busy(mover: Mover, peer: str, tensor: Tensor, work: _CopyWork) -> float:
    """Seconds of a computation that hides messages either way, starting them included."""
    waits: list[Callable[[float], object]] = []

    def start() -> None:
        tag = len(waits)
        waits.append(mover.receive(torch.empty_like(tensor), peer, tag).wait)
        waits.append(mover.send(tensor, peer, tag, tensor.nbytes > SMALL).wait)

    work.seconds()  # from the barrier on the caches are cold
    seconds = work.seconds(start)
    for wait in waits:
        wait(WAIT_S)
    return seconds


def trivial_step() -> Graph:
    """A training step of one number times one parameter: what it costs to run is all overhead."""
    return Graph(
        nodes={
            "mul": Node("mul", "aten.mul.Tensor", ("x",), ("y",), ("w",), args=({"var": "x"}, {"init": "w"}))
        },
        variables={
            "x": Variable("x", "float32", (1,), None, ("mul",)),
            "y": Variable("y", "float32", (1,), "mul", (), requires_grad=True),
        },
        input_variables=("x",),
        output_variables=("y",),
        initializers={"w": Initializer("w", "float32", (1,), is_parameter=True, requires_grad=True)},
    )


def instruction_seconds(run: Callable[[], float], instructions: int) -> float:
    """Seconds to begin and end one computation.

    Args:
        run: executes a program of `trivial_step` with that many instructions; its seconds.
    """
    runs = [run() for _ in range(RUNS)]
    return median(runs[RUNS // 4 :]) / instructions
