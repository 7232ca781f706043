"""Small adapters to the frameworks that people train with and the files they keep (docs/integrations.md)."""

from __future__ import annotations

from netsplit.lazy import imports_of

__all__ = ["NetSplitStrategy", "device_map", "load_safetensors", "save_safetensors", "split_trainer"]

__getattr__ = imports_of(
    __name__,
    {
        "NetSplitStrategy": "lightning_strategy",
        "device_map": "device_maps",
        "load_safetensors": "safetensors_files",
        "save_safetensors": "safetensors_files",
        "split_trainer": "hugging_face",
    },
)
