"""ONNX files: written from models, read as graphs, rebuilt as trainable modules (thesis, section 4.1).

The package ``onnx`` is imported when one of these is first called.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from netsplit.graph.onnx.export import export_inference, export_training
    from netsplit.graph.onnx.module import OnnxModule, from_onnx
    from netsplit.graph.onnx.read import read_onnx
    from netsplit.graph.onnx.write import NodeNotes, write_node_data, write_onnx

__all__ = [
    "NodeNotes",
    "OnnxModule",
    "export_inference",
    "export_training",
    "from_onnx",
    "read_onnx",
    "write_node_data",
    "write_onnx",
]

_HOME = {
    "NodeNotes": "write",
    "OnnxModule": "module",
    "export_inference": "export",
    "export_training": "export",
    "from_onnx": "module",
    "read_onnx": "read",
    "write_node_data": "write",
    "write_onnx": "write",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'netsplit.graph.onnx' has no attribute '{name}'")
    return getattr(import_module(f"netsplit.graph.onnx.{_HOME[name]}"), name)
