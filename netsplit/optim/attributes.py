"""Attributes that people give parameters (``p._no_weight_decay = True``), for factories that go by them."""

from __future__ import annotations

import io
from pickle import PicklingError
from typing import Any, NoReturn

import cloudpickle
from torch import Tensor, nn

from netsplit.errors import ConfigError

__all__ = ["sendable_attributes"]

_MOST = 2**20  # bytes of a tensor that is an attribute


def sendable_attributes(name: str, parameter: Tensor) -> dict[str, Any]:
    """Those of a parameter; in place of what cannot be sent stands something that refuses to be used."""
    return {
        key: value if _can_be_sent(value) else _Unsent(name, key) for key, value in vars(parameter).items()
    }


def _can_be_sent(value: Any) -> bool:
    try:
        _AttributePickler(io.BytesIO()).dump(value)
    except Exception:  # of whatever class the value is
        return False
    return True


class _AttributePickler(cloudpickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        large = isinstance(value, Tensor) and value.nbytes > _MOST
        if isinstance(value, nn.Module | nn.Parameter) or large:
            raise PicklingError
        return super().reducer_override(value)


class _Unsent:
    def __init__(self, parameter: str, key: str) -> None:
        self._parameter, self._key = parameter, key

    def _refuse(self, *_: Any) -> NoReturn:
        raise ConfigError(
            f"optimizer goes by '{self._key}' of parameter '{self._parameter}', which cannot be sent to the "
            "devices: let it be a number, a text or another plain value."
        )

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(key)
        self._refuse()

    __bool__ = __call__ = __len__ = __iter__ = __getitem__ = __contains__ = _refuse
    __eq__ = __hash__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __float__ = __int__ = __index__ = __neg__ = __str__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
