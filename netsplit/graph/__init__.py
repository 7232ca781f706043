"""The intermediate representation: capture from PyTorch, rebuild, graph files."""

from netsplit.graph.capture import capture, capture_inference
from netsplit.graph.files import dumps, load, loads, save
from netsplit.graph.ir import Graph, Initializer, Node, Variable
from netsplit.graph.rebuild import initial_values, rebuild

__all__ = [
    "Graph",
    "Initializer",
    "Node",
    "Variable",
    "capture",
    "capture_inference",
    "dumps",
    "initial_values",
    "load",
    "loads",
    "rebuild",
    "save",
]
