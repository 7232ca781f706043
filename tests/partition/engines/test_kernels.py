"""The compiled single-batch step against the simulator, on random problems, placements and orders."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.partition import Problem
from netsplit.partition.common.instance import Instance
from netsplit.partition.common.priority import topological_priority
from netsplit.partition.engines.kernels import SingleBatchStep
from netsplit.program import SingleBatch, compile_program
from netsplit.simulate import simulate
from tests.partition.builders import problems, trained


@settings(max_examples=150, deadline=None)
@given(problem=problems(max_nodes=9, max_devices=3), seed=st.integers(0, 10**6), data=st.data())
def test_a_step_takes_what_the_simulator_says(problem: Problem, seed: int, data: st.DataObject) -> None:
    draw = random.Random(seed)
    problem = trained(problem, data.draw(st.sampled_from([0.0, 0.7, 1.0])), seed)
    costs = problem.costs.with_device("cpu", step_s_per_byte=0.01).with_device("gpu", step_s_per_byte=0.02)
    problem = replace(problem, costs=costs)
    instance = Instance.of(problem)
    step = SingleBatchStep(instance)
    where = np.array([draw.randrange(len(instance.devices)) for _ in range(instance.n)])
    where = where[[int(instance.atoms[a][0]) for a in instance.atom_of]]
    for drawn in (True, False):
        if drawn:
            priority = topological_priority(problem.graph, {v: draw.random() for v in instance.names})
            order = np.argsort([priority[v] for v in instance.names])
        else:
            order = step.list_schedule(where)
            priority = {instance.names[v]: i for i, v in enumerate(order)}
        program = compile_program(
            problem.graph, instance.decode(where), priority, problem.cluster, SingleBatch()
        )
        simulated = simulate(program, problem.cluster, problem.costs).iteration_s
        assert step.makespan_s(where, order) == pytest.approx(simulated, rel=1e-9, abs=1e-12)
