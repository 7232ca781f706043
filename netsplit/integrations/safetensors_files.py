"""Parameters as safetensors files, which other libraries read without unpickling anything."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from netsplit.errors import NetSplitError, plain_errors
from netsplit.files import write_atomically
from netsplit.graph.recording.stand_ins import named_tensors
from netsplit.lazy import of_extra
from netsplit.runtime.checkpoint.weights import opened, places_of
from netsplit.training.parallel import ParallelModel

__all__ = ["load_safetensors", "save_safetensors"]


@plain_errors
def save_safetensors(
    source: ParallelModel | nn.Module | Mapping[str, Any],
    path: str | Path,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a state to one safetensors file, whole or not at all.

    Of tensors that share their values, as tied weights do, the first is written; the others' names stand in
    the metadata, each with the name that has its values, as `safetensors.torch.save_model` has it.

    Args:
        source: a split model, of which the present state is fetched, a plain one, or a state dict.
        metadata: further text for the file's header.

    Raises:
        NetSplitError: the state has what is no tensor, or the file cannot be written.
        WorkerError: the workers that held the parameters are gone.
    """
    package: Any = of_extra(
        "huggingface", "writing safetensors", "safetensors", "safetensors", "safetensors.torch"
    )
    state = source if isinstance(source, Mapping) else source.state_dict()
    tensors: dict[str, Tensor] = {}
    homes: dict[tuple[Any, ...], str] = {}
    aliases: dict[str, str] = {}
    for name, value in state.items():
        if not isinstance(value, Tensor) or value.is_sparse or value.is_nested:
            raise NetSplitError(
                f"the state's '{name}' is a {type(value).__name__}, but safetensors files hold only plain "
                "tensors: leave it out, or write the state with save()."
            )
        own = value.is_meta or not value.numel()  # of no bytes
        place = (name,) if own else (value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        home = homes.setdefault(place, name)
        if home == name:
            tensors[name] = value.detach().cpu().contiguous().clone()
        else:
            aliases[name] = home
    header = {"format": "pt", **aliases, **(metadata or {})}
    try:
        write_atomically(path, lambda file: package.torch.save_file(tensors, str(file), metadata=header))
    except (OSError, package.SafetensorError) as error:
        raise NetSplitError(f"'{path}' could not be written: {_reason(error)}.") from error


@plain_errors
def load_safetensors(
    path: str | Path, into: ParallelModel | nn.Module | None = None, strict: bool = True
) -> dict[str, Tensor]:
    """Read a state from a safetensors file, or from all files that an index names.

    Args:
        path: a file, an index (``model.safetensors.index.json``), or a folder of
            them, as `SafetensorsWeights` takes it.
        into: takes the state: a split model on its devices, or a plain one. Tied weights of which a file has
            one name only are taken under their others too.
        strict: its keys must be exactly those of `into`.

    Returns:
        The tensors by name, on the CPU.

    Raises:
        NetSplitError: there is no such file, it is no whole safetensors file, two of them have the same name,
            or `into` does not fit.
    """
    state: dict[str, Tensor] = {}
    for file in dict.fromkeys(places_of(path).values()):
        with opened(file) as content:
            state |= {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
            for name, home in (content.metadata() or {}).items():
                if home in state:
                    state.setdefault(name, state[home])
    if into is not None:
        _give(into, state, strict)
    return state


def _give(into: ParallelModel | nn.Module, state: dict[str, Tensor], strict: bool) -> None:
    model = into.model if isinstance(into, ParallelModel) else into
    names: dict[int, list[str]] = {}
    for name, tensor in named_tensors(model).items():
        names.setdefault(id(tensor), []).append(name)
    whole = dict(state)
    for tied in names.values():
        known = [name for name in tied if name in state]
        whole |= {name: state[known[0]] for name in tied if known and name not in state}
    if isinstance(into, ParallelModel):
        into.load_state_dict(whole, strict)
        return
    try:
        into.load_state_dict(whole, strict)
    except RuntimeError as error:
        raise NetSplitError(f"{type(into).__name__} cannot load the state: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
