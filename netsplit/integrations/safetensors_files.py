"""Parameters as safetensors files, which other libraries read without unpickling anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from netsplit.errors import NetSplitError, told_plainly
from netsplit.files import write_atomically
from netsplit.graph.recording.stand_ins import named_tensors
from netsplit.lazy import of_extra
from netsplit.training.parallel import ParallelModel

__all__ = ["load_safetensors", "save_safetensors"]

INDEX = ".index.json"  # of a model in several files, as Hugging Face names it


@told_plainly
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
    writer = _library("writing safetensors")
    state = source if isinstance(source, Mapping) else source.state_dict()
    tensors: dict[str, Tensor] = {}
    homes: dict[tuple[Any, ...], str] = {}
    aliases: dict[str, str] = {}
    for name, value in state.items():
        if not isinstance(value, Tensor) or value.is_sparse or value.is_nested:
            raise NetSplitError(
                f"the state's '{name}' is {_kind(value)}, and safetensors files hold plain tensors only: "
                "leave it out, or write the state with save()."
            )
        home = homes.setdefault(_place(value, name), name)
        if home == name:
            tensors[name] = value.detach().cpu().contiguous().clone()
        else:
            aliases[name] = home
    header = {"format": "pt", **aliases, **(metadata or {})}
    try:
        write_atomically(path, lambda file: writer.save_file(tensors, str(file), metadata=header))
    except (OSError, writer.SafetensorError) as error:
        raise NetSplitError(f"'{path}' could not be written: {_reason(error)}.") from error


@told_plainly
def load_safetensors(
    path: str | Path, into: ParallelModel | nn.Module | None = None, strict: bool = True
) -> dict[str, Tensor]:
    """Read a state from a safetensors file, or from all files that an index names.

    Args:
        path: a file, an index (``model.safetensors.index.json``), or a folder that has one of them.
        into: takes the state: a split model on its devices, or a plain one. Tied weights of which a file has
            one name only are taken under their others too.
        strict: its keys must be exactly those of `into`.

    Returns:
        The tensors by name, on the CPU.

    Raises:
        NetSplitError: there is no such file, it is no whole safetensors file, or `into` does not fit it.
    """
    reader = _library("reading safetensors")
    state: dict[str, Tensor] = {}
    for file in _files(Path(path)):
        try:
            with reader.safe_open(str(file), framework="pt") as opened:
                state |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
                for name, home in (opened.metadata() or {}).items():
                    if home in state:
                        state.setdefault(name, state[home])
        except (OSError, reader.SafetensorError) as error:
            raise NetSplitError(f"'{file}' cannot be read as safetensors: {_reason(error)}.") from error
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
        raise NetSplitError(f"{type(into).__name__} does not take the state: {_reason(error)}.") from error


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        there = sorted(path.glob(f"*.safetensors{INDEX}")) or sorted(path.glob("*.safetensors"))
        if len(there) != 1:
            raise NetSplitError(f"'{path}' has {len(there)} safetensors files or indices: give one file.")
        path = there[0]
    if not path.is_file():
        raise NetSplitError(f"there is no file '{path}'.")
    if not path.name.endswith(INDEX):
        return [path]
    try:
        names = json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NetSplitError(f"'{path}' is no index of safetensors files: {_reason(error)}.") from error
    parts = [path.parent / str(name) for name in dict.fromkeys(names)]
    outside = [part for part in parts if part.resolve().parent != path.resolve().parent]
    if outside:
        raise NetSplitError(f"'{path}' names '{outside[0]}', which is not in its folder.")
    return parts


def _place(tensor: Tensor, name: str) -> tuple[Any, ...]:
    """The same for tensors that are one; one of no bytes is its own."""
    if tensor.is_meta or not tensor.numel():
        return (name,)
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _kind(value: Any) -> str:
    return "sparse or nested" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


class _Library:
    """What is used of safetensors."""

    def __init__(self, package: Any) -> None:
        self.safe_open, self.SafetensorError = package.safe_open, package.SafetensorError
        self.save_file = package.torch.save_file


def _library(what: str) -> _Library:
    return _Library(of_extra("huggingface", what, "safetensors", "safetensors", "safetensors.torch"))
