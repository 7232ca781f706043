"""Which safetensors files there are at a path, and what each has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from netsplit.errors import ConfigError
from netsplit.files import parsed_json
from netsplit.lazy import of_extra

__all__ = ["opened", "places_of"]

_INDEX = ".safetensors.index.json"  # of a model in several files, as Hugging Face names it


def places_of(path: str | Path) -> dict[str, Path]:
    """Name of every tensor -> the file that has it.

    Args:
        path: a file, an index, or a folder. Of a folder all that its index names count, and without an index
            all files in it.

    Raises:
        ConfigError: there is none, several indices, one that names what is not in its folder, a name that two
            files have, or a file that cannot be read.
        NetSplitError: safetensors is not installed.
    """
    places: dict[str, Path] = {}
    for file in _files(Path(path)):
        with opened(file) as content:
            names = list(content.keys())
        twice = next((name for name in names if name in places), None)
        if twice is not None:
            raise ConfigError(
                f"'{places[twice]}' and '{file}' both have '{twice}', as files of two models do: give one of "
                "them, or the index that says which files belong together."
            )
        places |= dict.fromkeys(names, file)
    return places


def opened(file: Path) -> Any:
    """A context with the file's names and tensors; nothing is read yet.

    Raises:
        ConfigError: it cannot be read, or is no whole safetensors file.
        NetSplitError: safetensors is not installed.
    """
    package: Any = of_extra("huggingface", "reading safetensors", "safetensors", "safetensors")
    try:
        return package.safe_open(str(file), framework="pt")
    except (OSError, package.SafetensorError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ConfigError(f"'{file}' cannot be read as safetensors: {reason}.") from error


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        indices = sorted(path.glob(f"*{_INDEX}"))
        if len(indices) > 1:
            raise ConfigError(f"'{path}' has {len(indices)} indices of safetensors files: give one of them.")
        files = indices or sorted(path.glob("*.safetensors"))
    else:
        files = [path]
    if not files or not files[0].is_file():
        raise ConfigError(
            f"weights are '{path}', where there is no file of safetensors: give one, the index of several, "
            "or their folder."
        )
    return _named_by(files[0]) if files[0].name.endswith(_INDEX) else files


def _named_by(index: Path) -> list[Path]:
    try:
        names = parsed_json(index.read_text(encoding="utf-8"))["weight_map"].values()
        files = [index.parent / str(name) for name in dict.fromkeys(names)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"'{index}' is no index of safetensors files: {error}.") from error
    for file in files:
        if file.resolve().parent != index.resolve().parent:
            raise ConfigError(f"'{index}' names '{file}', which is not in its folder.")
    return files
