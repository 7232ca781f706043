"""What the user changes in a model after it was captured, which the captured step does not see.

Looked for at the first batches, and then ever more seldom: whoever changes an attribute while training (a
temperature, a weight of a loss) does so at every step or every epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from netsplit.errors import NetSplitError
from netsplit.graph.checks.state import Values, changed_names
from netsplit.graph.surroundings.reach import SIMPLE

__all__ = ["Notice"]

_SELDOM = 64
_DEPTH = 4
_INTERNAL = frozenset({"_parameters", "_buffers", "_modules", "training", "_is_full_backward_hook"})


class Notice:
    """How a model and its loss stood when they were captured.

    Args:
        constants: the tensors of the model's code that are no parameters, as captured.
    """

    def __init__(self, model: nn.Module, loss: Any, constants: Mapping[str, Tensor]) -> None:
        self.roots = [("the model", model), ("the loss", loss)]
        self.constants = dict(constants)
        self.versions = {k: tensor._version for k, tensor in constants.items()}
        self.state = self._state()
        self.trained = self._trained()
        self.batches = 0

    def look(self) -> None:
        """Called at every batch.

        Raises:
            NetSplitError: names what has changed, and what to do.
        """
        self.batches += 1
        if self.batches % _SELDOM and self.batches & (self.batches - 1):
            return
        what = self._changed()
        if what is not None:
            raise NetSplitError(
                f"{what} has been changed since the model was split, which its captured step does not see: "
                "put what changes while training into the batch, as a tensor, or call parallelize again."
            )

    def _changed(self) -> str | None:
        moved = [k for k, tensor in self.constants.items() if tensor._version != self.versions[k]]
        if moved:
            return f"the tensor '{moved[0]}'"
        switched = [k for k, on in self._trained().items() if self.trained.get(k, on) != on]
        if switched:
            return f"requires_grad of '{switched[0]}'"
        now = {name: value for name, value in self._state().items() if name in self.state}
        return next(iter(changed_names(self.state, now)), None)  # nothing captured knows of what is new

    def _state(self) -> Values:
        """Numbers and texts among the attributes of the modules, and within containers there."""
        found: Values = {}
        for where, root in self.roots:
            for path, each in _modules(where, root):
                for key, value in vars(each).items():
                    if key not in _INTERNAL and not key.endswith("_hooks"):
                        _collect(found, f"'{key}' of {path}", value)
        return found

    def _trained(self) -> dict[str, bool]:
        return {
            f"{where}{name}": p.requires_grad
            for where, root in zip(("", "loss."), (root for _, root in self.roots), strict=True)
            if isinstance(root, nn.Module)
            for name, p in root.named_parameters()
        }


def _modules(where: str, root: Any) -> Iterator[tuple[str, Any]]:
    """A model's modules by name; of a loss that is an object of another kind, itself."""
    if isinstance(root, nn.Module):
        for path, module in root.named_modules():
            yield f"{path or where} ({type(module).__name__})", module
    elif not isinstance(root, FunctionType | MethodType | partial) and hasattr(root, "__dict__"):
        yield f"{where} ({type(root).__name__})", root


def _collect(found: Values, name: str, value: Any, depth: int = 0) -> None:
    if isinstance(value, SIMPLE):
        found[name] = value
    elif isinstance(value, dict) and depth < _DEPTH:
        for key, item in dict.items(value):
            _collect(found, f"{name}[{key!r}]", item, depth + 1)
    elif isinstance(value, list | tuple) and depth < _DEPTH:
        for i, item in enumerate(value):
            _collect(found, f"{name}[{i}]", item, depth + 1)
