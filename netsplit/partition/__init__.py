"""Methods that decide which device runs which node, and in which order: one file per method."""

from netsplit.partition.base import Partitioner, Placement, Problem, SolverReport
from netsplit.partition.m_topo import MTopo
from netsplit.partition.netsplit import NetSplit
from netsplit.partition.random import Random
from netsplit.partition.single import Single

METHODS: dict[str, type[Partitioner]] = {kind.name: kind for kind in (NetSplit, MTopo, Single, Random)}

__all__ = [
    "METHODS",
    "MTopo",
    "NetSplit",
    "Partitioner",
    "Placement",
    "Problem",
    "Random",
    "Single",
    "SolverReport",
]
