"""Where a placed model's parameters are, as a mapping that accelerate and transformers read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from netsplit.errors import NetSplitError
from netsplit.graph.recording.stand_ins import named_tensors
from netsplit.planning.plan import Plan
from netsplit.training.parallel import ParallelModel

__all__ = ["device_map"]

DeviceMap = dict[str, int | str]


def device_map(
    placed: ParallelModel | Plan,
    model: nn.Module | None = None,
    devices: Mapping[str, int | str] | None = None,
) -> DeviceMap:
    """Module -> device, by which every parameter and buffer of the model has exactly one.

    A module whose tensors all lie on one device is one entry; of others, their parts are, down to single
    tensors. Tensors that training does not use go where their module's others are, or to the first device.
    A weight of which replicas have copies is named with the first of them. Operators are placed one by one,
    so that a module's may run elsewhere than its parameters are: the map has the parameters.

    Args:
        model: whose modules these are; needed with a plan alone.
        devices: device of the plan -> what accelerate calls it, such as 0 or "cuda:0"; a split model's own
            torch devices by default, and for a plan alone the names as they are.

    Raises:
        NetSplitError: a plan without a model, or a device that `devices` leaves out.
    """
    if isinstance(placed, ParallelModel):
        model, program = model or placed.model, placed.runtime.program
        own = {each.name: str(torch.device(each.torch_device)) for each in placed.runtime.pool.spec.devices}
    elif model is None:
        raise NetSplitError("a plan knows operators and no modules: give device_map the model too.")
    else:
        program = placed.simulated[0]
        own = {name: name for name in program.devices}
    if missing := [name for name in program.devices if devices is not None and name not in devices]:
        raise NetSplitError(f"devices leaves out '{missing[0]}' of the plan: name all of its devices.")
    called: Mapping[str, int | str] = devices if devices is not None else own
    homes = {
        name: called[program.initializer_device[k]]
        for k, init in program.graph.initializers.items()
        if k in program.initializer_device
        for name in (init.whole.name, *init.aliases)
    }
    tensors = named_tensors(model)
    shared = {id(tensor): homes[name] for name, tensor in tensors.items() if name in homes}
    known = {name: shared[id(tensor)] for name, tensor in tensors.items() if id(tensor) in shared}
    return dict(_entries(model, "", known, called[program.devices[0]]))


def _entries(
    module: nn.Module, prefix: str, homes: Mapping[str, int | str], default: int | str
) -> Iterator[tuple[str, int | str]]:
    """Entries for a module with the path `prefix`; `default` is for what no device has."""
    inside = [name for name in homes if not prefix or name == prefix or name.startswith(f"{prefix}.")]
    where = {homes[name] for name in inside}
    if len(where) <= 1:
        yield prefix, next(iter(where), default)
        return
    fallback = homes[inside[0]]
    start = f"{prefix}." if prefix else ""
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None:
            yield start + name, homes.get(start + name, fallback)
    for name, child in module._modules.items():
        if child is not None and named_tensors(child):
            yield from _entries(child, start + name, homes, fallback)
