"""Methods that decide which device runs which node, and in which order: one file per method."""

from typing import TYPE_CHECKING

from netsplit.lazy import lazy_names

if TYPE_CHECKING:
    from netsplit.partition.base import Latency, Objective, Problem
    from netsplit.partition.methods.all_methods import METHODS
    from netsplit.partition.methods.auto.auto import Auto
    from netsplit.partition.methods.baechi.baechi import MTopo
    from netsplit.partition.methods.baechi.m_etf import MEtf
    from netsplit.partition.methods.baechi.m_sct import MSct
    from netsplit.partition.methods.balanced import Balanced
    from netsplit.partition.methods.baselines import Ddp, Layerwise, Random, RoundRobin, Single
    from netsplit.partition.methods.dpos import Dpos
    from netsplit.partition.methods.exact.netsplit_exact import NetSplitExact
    from netsplit.partition.methods.heft import Heft
    from netsplit.partition.methods.mesh import Mesh3D
    from netsplit.partition.methods.os_dpos import OsDpos
    from netsplit.partition.methods.pesto.pesto_full import PestoFull
    from netsplit.partition.methods.pipedream.pipedream import PipeDream
    from netsplit.partition.methods.thesis.netsplit import Ablated, NetSplit, Pesto
    from netsplit.partition.methods.unity.unity import Unity
    from netsplit.partition.objectives import MaxLoad, SimulatedIteration
    from netsplit.partition.partitioner import Choice, Partitioner
    from netsplit.partition.stage_time import StageTime
    from netsplit.placement.placement import Placement, SolverReport, Stage

__all__ = [
    "METHODS",
    "Ablated",
    "Auto",
    "Balanced",
    "Choice",
    "Ddp",
    "Dpos",
    "Heft",
    "Latency",
    "Layerwise",
    "MEtf",
    "MSct",
    "MTopo",
    "MaxLoad",
    "Mesh3D",
    "NetSplit",
    "NetSplitExact",
    "Objective",
    "OsDpos",
    "Partitioner",
    "Pesto",
    "PestoFull",
    "PipeDream",
    "Placement",
    "Problem",
    "Random",
    "RoundRobin",
    "SimulatedIteration",
    "Single",
    "SolverReport",
    "Stage",
    "StageTime",
    "Unity",
]

__getattr__, __dir__ = lazy_names(__name__)
