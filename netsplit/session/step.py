"""One training step, from its graph to a problem, a plan and programs.

model, loss, batch, Training ──graph──► Graph ──problem──► Problem ──plan──► Plan ──programs──► Programs
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from netsplit.cluster.cluster import Cluster
from netsplit.errors import CaptureError, ConfigError
from netsplit.graph.batches.batch import Batch, Loss
from netsplit.graph.checks.replicated import require_replicable
from netsplit.graph.ir import Graph
from netsplit.graph.module import initial_values
from netsplit.graph.recording.stand_ins import persistent_tensors
from netsplit.optim.optimizers import ForModel, for_model
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Partitioner
from netsplit.planning.decide import decide
from netsplit.planning.plan import Plan
from netsplit.planning.workload import Workload
from netsplit.profile.costs import Costs, offloaded
from netsplit.profile.measure.optimizer import check_element_wise
from netsplit.program.schedules import Schedule
from netsplit.progress import Stages
from netsplit.runtime.checkpoint.weights import WeightSource
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
        device_type: type of the devices, for autocast.
        known: see `Batch.of`.
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
        return Captures(self.model, self.loss, self.training, self.device_type)

    def example(self, samples: int) -> Batch:
        """The batch's first samples, in memory of their own."""
        return self.whole.rows(0, samples).own()

    def graph(self, example: Batch, check: bool = False, level: int = logging.DEBUG) -> Graph:
        kinds = {"autocast": self.training.autocast, "device_type": self.device_type}
        graph = checked_capture(self.model, self.loss, example, check, level, **kinds)
        check_clipping(self.training.clip_norm, graph)
        return graph

    def values(self, graph: Graph) -> dict[str, Tensor]:
        return initial_values(self.model, graph, self.loss)

    def tensors(self, graph: Graph) -> dict[str, Tensor]:
        """Present tensors of the model and a loss module, by their names in graphs."""
        tensors: dict[str, Tensor] = {}
        for prefix, module in (("loss.", self.loss), ("", self.model)):
            if isinstance(module, nn.Module):
                tensors |= {prefix + k: v for k, v in module.named_parameters(remove_duplicate=False)}
                tensors |= {prefix + k: v for k, v in module.named_buffers(remove_duplicate=False)}
        return {k: tensor.detach() for k, tensor in (tensors | self.values(graph)).items()}

    def weights(self, graph: Graph, measured: bool = False) -> WeightSource | None:
        source = _weight_source(self.training.weights, self.model, graph, self.values(graph))
        if source is not None and measured:
            raise ConfigError("a model on the meta device cannot be measured: give profile='predicted'.")
        return source

    def task(self, graph: Graph, in_flight: int, own: bool = True) -> Calibration:
        """What to measure of a graph of this step; `own`: with copied inputs."""
        rows = self.whole.rows(0, graph.batch_size)
        values = {k: value.detach() for k, value in self.values(graph).items()}
        sent = replace(graph, output_spec=None)  # it may hold the user's classes
        return Calibration(sent, (rows.own() if own else rows).tensors, values, self.optimizer, in_flight)

    def warn_of_values(self, example: Batch) -> None:
        """Warn of gradients and GPU copies that workers do not get."""
        if any(p.grad is not None for p in self.model.parameters()):
            log.warning(
                "Parameters of %s already hold gradients: the split model starts without them.", self.name
            )
        tensors = [*self.model.parameters(), *self.model.buffers(), *example.tensors]
        if places := sorted(
            {str(each.device) for each in tensors if each.device.type not in ("cpu", "meta")}
        ):
            log.warning(
                "The model or its batch is on %s: workers receive a copy, and the original keeps its "
                "memory there.",
                " and ".join(places),
            )

    def complete(self, costs: Costs, graph: Graph) -> Costs:
        """Costs with the bytes of averaged parameters and of offloading."""
        asked = self.training
        alpha = costs.alpha + (asked.ema_decay is not None)
        return offloaded(
            replace(costs, alpha=alpha, variable_copies=asked.variable_copies), graph, asked.offload
        )

    def workload(self, problem: Problem) -> Workload:
        """The graph, costs and cluster, which `runners.partition` plans from a file."""
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
        """The problem of the fastest simulated iteration; `tail` is a smaller last micro-batch's graph."""
        problem = Workload(self.name, graph, costs, cluster).problem(
            objective="simulated", schedule=schedule, seed=self.training.seed, memory=self.training.memory
        )
        simulator = Simulator(
            graph, cluster, costs, schedule, shared_norm=self.training.rule.shared_norm, tail=tail
        )
        return with_known_parts(replace(problem, costs=costs, simulator=simulator, meter=meter))

    def plan(self, problem: Problem, partitioner: Partitioner) -> Plan:
        """A method's plan; it exceeds capacities only if the method ignores them.

        Raises:
            ConfigError: parameters are in parts, but the optimiser is not element-wise.
            InfeasibleError: the method finds no placement that fits.
            NetSplitError: the placement breaks a rule, or its replicas would train something else.
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
        """The maker of programs for batches of any shape and size."""
        return Programs(
            plan.asked.the_simulator, plan.placement, plan.simulated[0], self.captures, self.whole.key,
            self.known,
        )  # fmt: skip


def with_known_parts(problem: Problem) -> Problem:
    """The problem with parts measured for earlier plans; the same object if none are new."""
    meter = problem.meter
    if not isinstance(meter, MeasuredParts) or meter.costs is problem.costs:
        return problem
    assert problem.simulator is not None
    return replace(
        problem, costs=meter.costs, simulator=problem.simulator.moved_to(problem.cluster, meter.costs)
    )


def _weight_source(
    weights: WeightSource | None, model: nn.Module, graph: Graph, values: Mapping[str, Tensor]
) -> WeightSource | None:
    """The source of `values` that are on the meta device; None if none are.

    Raises:
        CaptureError: one of them was made outside forward.
        ConfigError: `weights` are missing, incomplete or unused; or no device holds a tensor.
    """
    wanted = {k: init for k, init in graph.initializers.items() if values[k].is_meta}
    placed = {name for k, init in graph.initializers.items() for name in (k, *init.aliases)}
    unread = [k for k, t in persistent_tensors(model).items() if t.is_meta and k not in placed]
    if unread:
        raise ConfigError(
            f"'{unread[0]}' is on the meta device and the training step never reads it, so no device would "
            "hold it: give it a value, or remove it from the model."
        )
    if constants := [k for k in wanted if k in graph.constants]:
        raise CaptureError(
            f"'{constants[0]}', a tensor made outside forward, is on the meta device and has no value: make "
            "it in forward, or register it as a buffer."
        )
    if wanted and weights is None:
        raise ConfigError(
            f"'{next(iter(wanted))}' has no value because the model is on the meta device: give "
            "weights=SeededWeights(0) or SafetensorsWeights(path)."
        )
    if weights is None:
        return None
    if not wanted:
        raise ConfigError(
            "weights is given, but no tensor of the model is on the meta device: build the model under "
            "torch.device('meta'), or load the weights into it and leave weights out."
        )
    return weights.check(wanted, model)
