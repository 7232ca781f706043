"""Nodes that only move tensors: they put together, cut, or make a parameter readable elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from netsplit.graph.ir import Node

__all__ = ["CAT", "MOVES", "READ", "SPLIT", "dim_of", "in_no_mode", "move_key", "moving_node", "named_move"]

CAT, SPLIT, READ = "aten.cat.default", "aten.split_with_sizes.default", "aten.alias.default"
MOVES = frozenset([CAT, SPLIT, READ])


def moving_node(name: str, op: str, args: tuple[Any, ...], like: Node, count: int = 0) -> Node:
    """A node that moves tensors for another one; of `count` outputs, or of one."""
    node = Node(name, op, (), ("",) * max(count, 1), args=args, module=like.module, source=like.source)
    return named_move(node, name)


def named_move(node: Node, name: str) -> Node:
    """A node that moves tensors under this name, as are its outputs."""
    several = node.op == SPLIT
    outputs = tuple(f"{name}.{i}" for i in range(len(node.outputs))) if several else (name,)
    return replace(node, name=name, outputs=outputs)


def move_key(node: Node) -> str:
    """The same of nodes that move the same in the same way."""
    return json.dumps([node.op, node.args, node.kwargs]) if in_no_mode(node) else f"{node.name} alone"


def in_no_mode(node: Node) -> bool:
    """Whether it runs in no mode of the model's own."""
    return not (node.no_grad or node.autocast or node.default_dtype or node.checkpoint)


def dim_of(node: Node, rank: int, place: int = 1) -> int:
    """Along which a node puts together or cuts: its argument at `place`."""
    dim = node.args[place] if len(node.args) > place else node.kwargs.get("dim", 0)
    return int(dim) % rank
