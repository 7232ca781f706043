"""Methods that decide which device runs which node, and in which order: one file per method."""

from netsplit.partition.ablated import Ablated
from netsplit.partition.auto import Auto
from netsplit.partition.balanced import Balanced
from netsplit.partition.base import Objective, Partitioner, Placement, Problem, SolverReport, Stage
from netsplit.partition.ddp import Ddp
from netsplit.partition.dpos import Dpos
from netsplit.partition.heft import Heft
from netsplit.partition.layerwise import Layerwise
from netsplit.partition.m_etf import MEtf
from netsplit.partition.m_sct import MSct
from netsplit.partition.m_topo import MTopo
from netsplit.partition.netsplit import NetSplit
from netsplit.partition.netsplit_exact import NetSplitExact
from netsplit.partition.pesto import Pesto
from netsplit.partition.pesto_full import PestoFull
from netsplit.partition.pipedream import PipeDream
from netsplit.partition.random import Random
from netsplit.partition.round_robin import RoundRobin
from netsplit.partition.single import Single

METHODS: dict[str, type[Partitioner]] = {
    kind.name: kind
    for kind in (
        Auto,
        NetSplitExact,
        NetSplit,
        Pesto,
        PestoFull,
        MTopo,
        MEtf,
        MSct,
        Heft,
        Dpos,
        PipeDream,
        Balanced,
        Layerwise,
        RoundRobin,
        Random,
        Ddp,
        Single,
    )
}

__all__ = [
    "METHODS",
    "Ablated",
    "Auto",
    "Balanced",
    "Ddp",
    "Dpos",
    "Heft",
    "Layerwise",
    "MEtf",
    "MSct",
    "MTopo",
    "NetSplit",
    "NetSplitExact",
    "Objective",
    "Partitioner",
    "Pesto",
    "PestoFull",
    "PipeDream",
    "Placement",
    "Problem",
    "Random",
    "RoundRobin",
    "Single",
    "SolverReport",
    "Stage",
]
