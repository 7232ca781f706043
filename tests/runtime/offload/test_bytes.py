"""What a meter sees on the device and on the host is what the simulator says of both."""

from __future__ import annotations

import pytest

from netsplit.graph import initial_values
from netsplit.optim import optimizers
from netsplit.profile.costs import Offload
from netsplit.program import GPipe, Program, Schedule
from netsplit.program.schedules import ZBH1, AsyncOneFOneB, OneFOneB
from netsplit.runtime.local import LocalRuntime
from netsplit.runtime.share import OptimizerFactory
from netsplit.simulate import memory_profile
from tests.builders import compile_placed, cpus
from tests.cover import covering
from tests.nets import CASES, SGD, Case
from tests.profile.measure.test_memory_meter import metered_iteration
from tests.simulate.test_memory import LARGE, MOMENTUM, alternating, case_graph, transients_of

SCHEDULES: dict[str, Schedule] = {
    "gpipe": GPipe(4),
    "recomputed": GPipe(4, recompute=True),
    "1f1b": OneFOneB(4),
    "zb_h1": ZBH1(4),
    "stashed": AsyncOneFOneB(4),
}
BOTH = Offload.of("both")
HOST_TOLERANCE = 0.02


def measured(
    program: Program, case: Case, offload: Offload, optimizer: OptimizerFactory = SGD
) -> tuple[dict[str, int], dict[str, int]]:
    """Peak bytes of the second iteration on every device, and on its host."""
    values = initial_values(case.fresh(), program.graph)
    runtime = LocalRuntime(program, cpus(len(program.devices)), values, optimizer, offload=offload)
    runtime.train_batch(case.inputs, case.targets)
    hosts = {name: share.host for name, share in runtime.shares.items() if share.host is not None}
    for host in hosts.values():
        host.restart()
    return metered_iteration(runtime, case.inputs, case.targets), {k: host.peak for k, host in hosts.items()}


@covering(name=LARGE, schedule=SCHEDULES)
def test_bytes_on_device_and_host_are_predicted(
    name: str, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one device closely; on two, by turns, within one tensor and what is predicted to be on its way."""
    monkeypatch.setattr(optimizers, "BUCKET_BYTES", 1)
    case, graph = CASES[name], case_graph(name, "gpipe")
    sizes = [v.nbytes for v in graph.variables.values()] + [k.nbytes for k in graph.initializers.values()]
    for pieces in (1, 2, 5):
        where = alternating(graph, pieces)
        program = compile_placed(graph, where, graph.position, cpus(2), SCHEDULES[schedule])
        peaks, hosts = measured(program, case, BOTH)
        said = memory_profile(program, MOMENTUM, transients_of(name, "gpipe"), BOTH)
        for device, nbytes in peaks.items():
            if not program.instructions[device]:
                continue
            room = 0.02 * nbytes if pieces == 1 else max(sizes)
            assert said[device].peak_bytes == pytest.approx(nbytes, abs=room)
            assert said[device].host_bytes == pytest.approx(hosts[device], rel=HOST_TOLERANCE)
