"""One training step: what is captured of it, and what becomes a problem, a plan, and programs.

model, loss, batch, Training ──graph──► Graph ──problem──► Problem ──plan──► Plan ──programs──► Programs
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from netsplit.cluster.cluster import Cluster
from netsplit.errors import ConfigError
from netsplit.graph.batches.batch import Batch
from netsplit.graph.batches.calls import Loss
from netsplit.graph.checks.replicated import require_replicable
from netsplit.graph.ir import Graph
from netsplit.graph.module import initial_values
from netsplit.optim.optimizers import ForModel, for_model
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Partitioner
from netsplit.planning.decide import decide
from netsplit.planning.plan import Plan
from netsplit.planning.workload import Workload
from netsplit.profile.costs import Costs, offloaded
from netsplit.profile.optimizer_checks import check_element_wise
from netsplit.program.schedules import Schedule
from netsplit.progress import Stages
from netsplit.runtime.checkpoint.weights import WeightSource, weight_source_of
from netsplit.runtime.share import check_clipping
from netsplit.session.calibration import Calibration, MeasuredParts
from netsplit.simulate.simulator import Simulator
from netsplit.training.captures import Captures, checked_capture
from netsplit.training.options import Training
from netsplit.training.programs import Programs, warn_of_overflow

__all__ = ["ModelStep", "with_known_parts"]

log = logging.getLogger(__name__)


@dataclass(eq=False)
class ModelStep:
    """A model with its loss, a whole batch, and how it is trained.

    Args:
        batch: one whole example batch `(inputs, targets)`; cut into micro-batches here.
        device_type: of the devices, whose autocast casts.
        known: see `Batch.of`.
        stages: told what is being done, and how far it is.
    """

    model: nn.Module
    loss: Loss | None
    batch: tuple[Any, Any]
    training: Training = field(default_factory=Training)
    device_type: str = "cpu"
    known: dict[Hashable, tuple[int | None, ...]] = field(default_factory=dict)
    stages: Stages = field(default_factory=Stages)

    def __post_init__(self) -> None:
        if self.whole.samples == 0:
            raise ConfigError("the batch has no samples: give a batch of the size to train with.")

    @property
    def name(self) -> str:
        return type(self.model).__name__

    @cached_property
    def whole(self) -> Batch:
        return Batch.of(*self.batch, known=self.known)

    @cached_property
    def optimizer(self) -> ForModel:
        return for_model(self.training.optimizer, self.model, self.loss)

    @cached_property
    def captures(self) -> Captures:
        """Graphs of the model on other batches, and of its evaluation."""
        return Captures(self.model, self.loss, self.training, self.device_type)

    def example(self, samples: int) -> Batch:
        """The batch's first samples, in memory of their own."""
        return self.whole.rows(0, samples).own()

    def graph(self, example: Batch, check: bool = False, level: int = logging.DEBUG) -> Graph:
        """Capture the graph of one micro-batch."""
        kinds = {"autocast": self.training.autocast, "device_type": self.device_type}
        graph = checked_capture(self.model, self.loss, example, check, level, **kinds)
        check_clipping(self.training.clip_norm, graph)
        return graph

    def values(self, graph: Graph) -> dict[str, Tensor]:
        """Values of the graph's initializers: the model's own tensors."""
        return initial_values(self.model, graph, self.loss)

    def tensors(self, graph: Graph) -> dict[str, Tensor]:
        """All that the model and a loss module have now, under the names that graphs give them."""
        tensors: dict[str, Tensor] = {}
        for prefix, module in (("loss.", self.loss), ("", self.model)):
            if isinstance(module, nn.Module):
                tensors |= {prefix + k: v for k, v in module.named_parameters(remove_duplicate=False)}
                tensors |= {prefix + k: v for k, v in module.named_buffers(remove_duplicate=False)}
        return {k: tensor.detach() for k, tensor in (tensors | self.values(graph)).items()}

    def weights(self, graph: Graph, measured: bool = False) -> WeightSource | None:
        """The source of values that are on the meta device."""
        source = weight_source_of(self.training.weights, self.model, graph, self.values(graph))
        if source is not None and measured:
            raise ConfigError("a model on the meta device cannot be measured: give profile='predicted'.")
        return source

    def task(self, graph: Graph, in_flight: int, own: bool = True) -> Calibration:
        """What there is to measure of a graph of this step; own: with inputs in memory of their own."""
        rows = self.whole.rows(0, graph.batch_size)
        values = {k: value.detach() for k, value in self.values(graph).items()}
        sent = replace(graph, output_spec=None)  # which may hold classes of the user's own
        return Calibration(sent, (rows.own() if own else rows).tensors, values, self.optimizer, in_flight)

    def warn_of_values(self, example: Batch) -> None:
        """Say what of the model's values the workers will not have."""
        if any(p.grad is not None for p in self.model.parameters()):
            log.warning(
                "Parameters of %s already hold gradients: the split model starts without them.", self.name
            )
        tensors = [*self.model.parameters(), *self.model.buffers(), *example.tensors]
        if places := sorted(
            {str(each.device) for each in tensors if each.device.type not in ("cpu", "meta")}
        ):
            log.warning(
                "The model or its batch is on %s: workers receive a copy, and the memory it takes there "
                "is not theirs.",
                " and ".join(places),
            )

    def complete(self, costs: Costs, graph: Graph) -> Costs:
        """Costs with the bytes of averages and of what is offloaded."""
        asked = self.training
        alpha = costs.alpha + (asked.ema_decay is not None)
        return offloaded(
            replace(costs, alpha=alpha, variable_copies=asked.variable_copies), graph, asked.offload
        )

    def workload(self, problem: Problem) -> Workload:
        """The graph with its costs, on this cluster: what `runners.partition` plans from a file."""
        known = with_known_parts(problem)
        return Workload(self.name, known.graph, known.costs, known.cluster)

    def problem(
        self,
        graph: Graph,
        costs: Costs,
        cluster: Cluster,
        schedule: Schedule,
        tail: Graph | None = None,
        meter: MeasuredParts | None = None,
    ) -> Problem:
        """The least simulated iteration of the schedule, with its micro-batches.

        Args:
            tail: at the size of the last micro-batch, where that is smaller.
        """
        problem = Workload(self.name, graph, costs, cluster).problem(
            objective="simulated", schedule=schedule, seed=self.training.seed, memory=self.training.memory
        )
        simulator = Simulator(
            graph, cluster, costs, schedule, shared_norm=self.training.rule.shared_norm, tail=tail
        )
        return with_known_parts(replace(problem, costs=costs, simulator=simulator, meter=meter))

    def plan(self, problem: Problem, partitioner: Partitioner) -> Plan:
        """What a method decides. Over the capacities only if the method heeds none.

        Raises:
            ConfigError: it has parameters in parts, of which the optimiser would make something else.
            InfeasibleError: the method finds no placement within the capacities.
            NetSplitError: its answer breaks a rule, or has replicas that would train something else.
        """
        self.stages.stage(f"plan by {partitioner.name}", partitioner.time_limit_s, "s")
        asked = replace(with_known_parts(problem), improved=self.stages.improved)
        plan = decide(asked, partitioner, room=partitioner.respects_capacity)
        check_element_wise(self.optimizer, plan.problem.graph)
        require_replicable(plan.problem.graph, plan.placement.replicated)
        report, method = plan.placement.report, plan.placement.method
        predicted = f"predicted {1e3 * plan.iteration_s:,.1f} ms per iteration"
        log.info("%s: %s; %s", method, predicted, report.summary())
        if partitioner.respects_capacity and problem.memory == "static":
            warn_of_overflow(
                method, plan.simulated[1].peak_bytes, problem.cluster, "memory=static says it fits"
            )
        return plan

    def programs(self, plan: Plan) -> Programs:
        """Makes the programs of batches of any shapes and sizes."""
        return Programs(
            plan.asked.the_simulator, plan.placement, plan.simulated[0], self.captures, self.whole.key,
            self.known,
        )  # fmt: skip


def with_known_parts(problem: Problem) -> Problem:
    """The problem with costs of parts measured for earlier plans; itself where none are new."""
    meter = problem.meter
    if not isinstance(meter, MeasuredParts) or meter.costs is problem.costs:
        return problem
    assert problem.simulator is not None
    return replace(
        problem, costs=meter.costs, simulator=problem.simulator.moved_to(problem.cluster, meter.costs)
    )
