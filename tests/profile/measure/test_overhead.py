"""What an instruction costs, and the smallest step there is."""

from __future__ import annotations

import pytest
import torch

from netsplit.cluster.cluster import Cluster, Device
from netsplit.profile.measure.messages import instruction_seconds, trivial_step
from netsplit.program.compile import compile_program
from netsplit.program.schedules import GPipe
from netsplit.runtime.executor import Executor
from netsplit.runtime.share import Share
from netsplit.runtime.transport.local import LocalTransport


def test_an_instruction_is_the_median_run_over_its_instructions() -> None:
    runs = iter([9.0, 9.0, 1.0, 2.0, 3.0, 2.0, 2.0, 50.0])
    assert instruction_seconds(lambda: next(runs), 4, repeats=8) == pytest.approx(0.5)


def test_the_trivial_step_is_trained_by_the_runtime() -> None:
    device = Device("a", "cpu", 1)
    program = compile_program(
        trivial_step(), {"mul": "a"}, {"mul": 0}, Cluster("alone", (device,), {}), GPipe(2)
    )
    share = Share.of(
        {"w": torch.full((1,), 3.0)}, torch.device("cpu"), lambda p: torch.optim.SGD(p, 1.0), ["w"]
    )
    executor = Executor(program, "a", share, LocalTransport({"a": torch.device("cpu")}), torch.device("cpu"))
    outputs = executor.run([{"x": torch.ones(1)}, {"x": torch.full((1,), 2.0)}])
    assert [float(outputs["y", i]) for i in range(2)] == [3.0, 6.0]
    assert float(share.tensors["w"].detach()) == pytest.approx(3.0 - 1.5)
