"""torch.distributed.tensor.parallel in processes of its own: columns, then rows, over gloo."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from benchmarks._rivals import OPTIMIZER, Answer, Rival
from benchmarks.parts.models import MODELS

__all__ = ["TensorParallel"]


class TensorParallel(Rival):
    """A model of `MODELS` on so many processes, each with the whole batch and a part of every wide layer."""

    def __init__(self, model: str, processes: int) -> None:
        super().__init__(lambda file: [(_process, (model, r, processes, file)) for r in range(processes)])


def _process(model: str, rank: int, processes: int, init_file: str) -> Answer:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    wide = MODELS[model]
    dist.init_process_group("gloo", init_method=f"file://{init_file}", rank=rank, world_size=processes)
    mesh = init_device_mesh("cpu", (processes,))
    styles = {"columns": ColwiseParallel, "rows": RowwiseParallel}
    plan = {name: styles[how]() for name, how in wide.torch_plan.items()}
    parts = parallelize_module(wide.subject.fresh(), mesh, plan)
    optimizer, loss = OPTIMIZER(parts.parameters()), nn.CrossEntropyLoss()
    inputs, targets = wide.subject.batch(1)

    def answer(question: str) -> Any:
        if question == "state":
            tensors = parts.state_dict().items()
            whole = {k: t.full_tensor() if isinstance(t, DTensor) else t for k, t in tensors}
            return copy.deepcopy(whole) if rank == 0 else None
        loss(parts(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        return None

    return answer
