"""The intermediate representation: capture from PyTorch, rebuild, graph files.

What needs torch is imported when first used, so that rooms which only read graphs stay light.
"""

from typing import TYPE_CHECKING

from netsplit.graph.deferral.deferrable import deferrable_nodes
from netsplit.graph.files import dumps, load, loads, save
from netsplit.graph.ir import Graph, Initializer, Node, Variable
from netsplit.lazy import lazy_names

if TYPE_CHECKING:
    from netsplit.graph.deferral.deferred import WeightGradients
    from netsplit.graph.module import initial_values, rebuild
    from netsplit.graph.operators import unchanging
    from netsplit.graph.random_draws import DrawKey, draws, run_microbatch
    from netsplit.graph.recording.step import capture, capture_inference

__all__ = [
    "DrawKey", "Graph", "Initializer", "Node", "Variable", "WeightGradients", "capture",
    "capture_inference", "deferrable_nodes", "draws", "dumps", "initial_values", "load", "loads",
    "rebuild", "run_microbatch", "save", "unchanging",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
