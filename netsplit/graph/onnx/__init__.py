"""ONNX files: written from models and placed graphs, rebuilt as trainable modules (thesis, section 4.1).

The package ``onnx`` is imported when one of these is first called.
"""

from typing import TYPE_CHECKING

from netsplit.lazy import lazy_names

if TYPE_CHECKING:
    from netsplit.graph.onnx.export import export_training
    from netsplit.graph.onnx.module import OnnxModule, from_onnx
    from netsplit.graph.onnx.write import NodeNotes, write_onnx

__all__ = ["NodeNotes", "OnnxModule", "export_training", "from_onnx", "write_onnx"]

__getattr__, __dir__ = lazy_names(__name__)
