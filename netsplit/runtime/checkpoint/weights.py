"""Sources of initial parameters for models on the meta device.

model on meta ──capture, plan──► per device: names held ──WeightSource.read──► its own tensors, and no others

The controller reads no value. Every worker gets the source and reads what its device holds. A name has the
same value everywhere, so placement does not change training.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from netsplit.errors import ConfigError
from netsplit.files import parsed_json
from netsplit.graph.ir import Initializer
from netsplit.lazy import of_extra
from netsplit.runtime.checkpoint.files import Saved

__all__ = [
    "CheckpointWeights",
    "SafetensorsWeights",
    "SeededWeights",
    "WeightSource",
    "opened",
    "places_of",
]

_HOW = "give SeededWeights(initialize=...), which fills tensors by their names."
_INDEX = ".safetensors.index.json"  # of a model in several files, as Hugging Face names it


def places_of(path: str | Path) -> dict[str, Path]:
    """Tensor name -> its file, for a file, an index or a folder.

    Raises:
        ConfigError: there is none, a name that two files have, or a file that cannot be read.
    """
    files = [Path(path)]
    if files[0].is_dir():
        files = sorted(files[0].glob(f"*{_INDEX}")) or sorted(files[0].glob("*.safetensors"))
    if not files or not files[0].is_file():
        raise ConfigError(
            f"weights is '{path}', where there are no safetensors files: give a file, an index of several, "
            "or their folder."
        )
    if files[0].name.endswith(_INDEX):
        files = list(dict.fromkeys(file for index in files for file in _named_by(index)))
    places: dict[str, Path] = {}
    for file in files:
        with opened(file) as content:
            names = list(content.keys())
        if twice := places.keys() & names:
            name = min(twice)
            raise ConfigError(
                f"'{places[name]}' and '{file}' both have '{name}', so they may belong to two models: give "
                "one of them, or the index of files that belong together."
            )
        places |= dict.fromkeys(names, file)
    return places


def opened(file: Path) -> Any:
    """A context with the file's names and tensors; raises ConfigError for no whole safetensors file."""
    package: Any = of_extra("huggingface", "reading safetensors", "safetensors", "safetensors")
    try:
        return package.safe_open(str(file), framework="pt")
    except (OSError, package.SafetensorError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ConfigError(f"'{file}' cannot be read as safetensors: {reason}.") from error


def _named_by(index: Path) -> list[Path]:
    try:
        names = parsed_json(index.read_text(encoding="utf-8"))["weight_map"].values()
        return [index.parent / str(name) for name in names]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"'{index}' is not an index of safetensors files: {error}.") from error


@runtime_checkable
class WeightSource(Protocol):
    """First values of parameters and buffers, by the model's own names."""

    def check(self, wanted: Mapping[str, Initializer], model: nn.Module) -> WeightSource:
        """Validate in the controller, which reads no values; returns the source to send to workers.

        Raises:
            ConfigError: it lacks one of `wanted`, or has it in another shape.
        """

    def read(self, wanted: Mapping[str, Initializer]) -> dict[str, Tensor]:
        """New tensors on the CPU, by the names wanted."""


@dataclass(frozen=True)
class SafetensorsWeights:
    """Weights from a safetensors file, or a folder of them, as Hugging Face's ``save_pretrained`` writes it.

    Args:
        path: the file, the index of several, or the folder with the shards and perhaps their index.
        prefix: precedes the model's names in the files.
    """

    path: str | Path
    prefix: str = ""

    def check(self, wanted: Mapping[str, Initializer], model: nn.Module) -> WeightSource:
        places = places_of(self.path)
        for name, initializer in wanted.items():
            key = _known(name, initializer, places, self.prefix, str(self.path))
            with opened(places[key]) as file:
                _same_shape(key, initializer, file.get_slice(key).get_shape(), str(self.path))
        return self

    def read(self, wanted: Mapping[str, Initializer]) -> dict[str, Tensor]:
        places = places_of(self.path)
        keys = {k: _known(k, init, places, self.prefix, str(self.path)) for k, init in wanted.items()}
        tensors: dict[str, Tensor] = {}
        for place in dict.fromkeys(places[key] for key in keys.values()):
            with opened(place) as file:
                for name, key in keys.items():
                    if places[key] == place:  # a copy, as the file is mapped as long as its tensors live
                        tensors[name] = file.get_tensor(key).to(_dtype(wanted[name]), copy=True)
        return tensors


@dataclass(frozen=True)
class CheckpointWeights:
    """Weights from a checkpoint of ``torch.distributed.checkpoint``: NetSplit's own, or another's.

    Args:
        folder: of the checkpoint.
        prefix: precedes the model's names in it; NetSplit's own have ``model.``.
    """

    folder: str | Path
    prefix: str = "model."

    def check(self, wanted: Mapping[str, Initializer], model: nn.Module) -> WeightSource:
        saved = Saved(Path(self.folder))
        for name, initializer in wanted.items():
            key = _known(name, initializer, saved.entries, self.prefix, str(self.folder))
            _, shape = saved.kind(key) or ("", ())
            _same_shape(key, initializer, shape, str(self.folder))
        return self

    def read(self, wanted: Mapping[str, Initializer]) -> dict[str, Tensor]:
        saved = Saved(Path(self.folder))
        keys = {
            k: _known(k, init, saved.entries, self.prefix, str(self.folder)) for k, init in wanted.items()
        }
        state = {keys[k]: torch.empty(init.shape, dtype=_dtype(init)) for k, init in wanted.items()}
        saved.read(state)
        return {name: state[key] for name, key in keys.items()}


@dataclass(frozen=True)
class SeededWeights:
    """Weights drawn by each module's own ``reset_parameters``, from the module's name and a seed alone.

    What a plain model draws depends on the order in which its modules are made, and on all of it; this does
    not, so that a device draws its own and nothing else. `fill` gives a plain model the same values.

    Args:
        seed: another gives other values.
        initialize: in the place of ``reset_parameters``: called with the name and the empty tensor to fill.
    """

    seed: int = 0
    initialize: Callable[[str, Tensor], object] | None = None
    modules: Mapping[str, nn.Module] | None = None  # modules that own the wanted names, on the meta device

    def check(self, wanted: Mapping[str, Initializer], model: nn.Module) -> WeightSource:
        if self.initialize is not None:
            return self
        owners = {path: _alone(_module_of(model, path)) for path in dict.fromkeys(map(_path, wanted))}
        for path, owner in owners.items():
            _require_reset(path, owner)
        return SeededWeights(self.seed, None, owners)

    def read(self, wanted: Mapping[str, Initializer]) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        if self.initialize is not None:
            for name, initializer in wanted.items():
                tensor = torch.empty(initializer.shape, dtype=_dtype(initializer))
                with _drawing_by(self.seed, name), torch.no_grad():
                    self.initialize(name, tensor)
                tensors[name] = tensor
            return tensors
        assert self.modules is not None
        for path in dict.fromkeys(map(_path, wanted)):
            drawn = self._drawn(path, self.modules[path])
            tensors |= {name: drawn[name.rpartition(".")[2]] for name in wanted if _path(name) == path}
        return tensors

    def fill(self, model: nn.Module) -> nn.Module:
        """Give a model that has memory these values, in place; the model."""
        filled: set[int] = set()  # a tied tensor has the value of its first name
        for path, module in model.named_modules():
            own = {name: tensor for name, tensor in _own(module) if id(tensor) not in filled}
            filled |= set(map(id, own.values()))
            drawn = self._drawn(path, _alone(module)) if own and self.initialize is None else {}
            for name, tensor in own.items():
                with torch.no_grad(), _drawing_by(self.seed, full := f"{path}.{name}" if path else name):
                    tensor.copy_(drawn[name]) if self.initialize is None else self.initialize(full, tensor)
        return model

    def _drawn(self, path: str, module: nn.Module) -> dict[str, Tensor]:
        _require_reset(path, module)
        fresh: Any = deepcopy(module).to_empty(device="cpu", recurse=False)
        with torch.no_grad():
            for _, tensor in _own(fresh):
                tensor.fill_(_nothing(tensor.dtype))
        with _drawing_by(self.seed, path):
            fresh.reset_parameters()
        tensors = {name: tensor.detach() for name, tensor in _own(fresh)}
        for name, tensor in tensors.items():
            nothing = torch.full((), _nothing(tensor.dtype), dtype=tensor.dtype)
            if tensor.dtype != torch.bool and tensor.isclose(nothing, 0, 0, equal_nan=True).any():
                kind = type(module).__name__
                raise ConfigError(
                    f"reset_parameters of {kind} leaves '{path}.{name}' without a value: {_HOW}"
                )
        return tensors


def _require_reset(path: str, module: nn.Module) -> None:
    if not callable(getattr(module, "reset_parameters", None)):
        kind = type(module).__name__
        raise ConfigError(f"'{path}' cannot be initialised, as {kind} has no reset_parameters: {_HOW}")


def _own(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(recurse=False)
    yield from module.named_buffers(recurse=False)


def _alone(module: nn.Module) -> nn.Module:
    children = {id(child): None for child in module.children()}
    alone = deepcopy(module, {key: nn.Identity() for key in children})
    return alone.to("meta")


def _path(name: str) -> str:
    return name.rpartition(".")[0]


def _module_of(model: nn.Module, path: str) -> nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError as error:
        missing = f"'{path}' is not a module of the model: give a loss whose parameters have values."
        raise ConfigError(missing) from error


def _nothing(dtype: torch.dtype) -> float | int:
    if dtype == torch.bool:
        return 0
    return math.nan if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype).min


@contextmanager
def _drawing_by(seed: int, name: str) -> Iterator[None]:
    """Seed torch's generator by a seed and a name; restore it afterwards."""
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(digest, "little", signed=True))
        yield


def _known(name: str, initializer: Initializer, keys: Mapping[str, Any], prefix: str, where: str) -> str:
    """A tensor's key; a tied tensor may be stored under another name."""
    for each in (name, *initializer.aliases):
        if prefix + each in keys:
            return prefix + each
    raise ConfigError(f"weights lack '{prefix}{name}': {where} has {len(keys)} other keys.")


def _same_shape(key: str, initializer: Initializer, shape: Sequence[int], where: str) -> None:
    if tuple(shape) != tuple(initializer.shape):
        raise ConfigError(
            f"weights have '{key}' of shape {tuple(shape)} but the model has {tuple(initializer.shape)}: "
            f"{where}."
        )


def _dtype(initializer: Initializer) -> torch.dtype:
    dtype = getattr(torch, initializer.dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype
