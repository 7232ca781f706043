"""Small adapters to the frameworks that people train with and the files they keep (docs/integrations.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netsplit.lazy import lazy_names

if TYPE_CHECKING:
    from netsplit.integrations.hugging_face import split_trainer
    from netsplit.integrations.lightning_strategy import NetSplitStrategy
    from netsplit.integrations.safetensors_files import load_safetensors, save_safetensors

__all__ = ["NetSplitStrategy", "load_safetensors", "save_safetensors", "split_trainer"]

__getattr__, __dir__ = lazy_names(__name__)
