"""Ctrl-C ends a solver, and the process outlives it."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import highspy
import numpy as np
import pytest
from ortools.sat.python import cp_model

from netsplit.interrupts import cp_sat_solver, interruptible
from netsplit.partition.engines.mixed_integer import highs, run_highs
from tests.cover import covering

LIMIT_S = 40.0  # far more than it takes to press, in models that no solver ends in it


def rows() -> list[list[tuple[int, int]]]:
    draw = random.Random(1)
    return [[(draw.randint(1, 100), k) for k in draw.sample(range(1200), 12)] for _ in range(480)]


def hard() -> cp_model.CpModel:
    model = cp_model.CpModel()
    x = [model.new_bool_var("") for _ in range(1200)]
    for row in rows():
        model.add(sum(factor * x[k] for factor, k in row) <= 300)
    model.maximize(sum((1 + 7 * k % 997) * each for k, each in enumerate(x)))
    return model


def by_cp_sat() -> Callable[[], object]:
    """What waits for a model that is built, as are those below."""
    solver, model = cp_sat_solver(LIMIT_S, 0, 1), hard()
    return lambda: interruptible(lambda: solver.solve(model), solver.stop_search)


def by_highs() -> Callable[[], object]:
    solver: Any = highs(LIMIT_S, 0.0, 0)
    x = [solver.addBinary() for _ in range(1200)]
    for row in rows():
        solver.addConstr(sum(factor * x[k] for factor, k in row) <= 300)
    solver.changeObjectiveSense(highspy.ObjSense.kMaximize)
    costs = np.array([1 + 7 * k % 997 for k in range(1200)], float)
    solver.changeColsCost(len(x), np.arange(len(x), dtype=np.int32), costs)
    return lambda: run_highs(solver)


def press_soon() -> None:
    threading.Timer(0.8, lambda: os.kill(os.getpid(), signal.SIGINT)).start()


@pytest.fixture(autouse=True)
def _ends_waits() -> Iterator[None]:
    signal.siginterrupt(signal.SIGINT, True)  # whatever earlier tests of this process have left
    yield
    signal.siginterrupt(signal.SIGINT, True)


@covering(ends_waits=[True, False], built=[by_cp_sat, by_highs])  # Python's setting; what native code leaves
def test_a_solver_ends_with_an_interrupt(built: Callable[[], Callable[[], object]], ends_waits: bool) -> None:
    solve = built()
    signal.siginterrupt(signal.SIGINT, ends_waits)
    press_soon()
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        solve()
    assert time.perf_counter() - began < LIMIT_S / 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_answers_and_errors_come_through() -> None:
    def fail() -> None:
        raise ValueError("no")

    assert interruptible(lambda: 3, lambda: None) == 3
    with pytest.raises(ValueError, match="no"):
        interruptible(fail, lambda: None)
