"""Every method by its name."""

from __future__ import annotations

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
from netsplit.partition.methods.thesis.netsplit import NetSplit, Pesto
from netsplit.partition.methods.unity.unity import Unity
from netsplit.partition.partitioner import Partitioner

__all__ = ["METHODS"]

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
        OsDpos,
        Unity,
        PipeDream,
        Balanced,
        Mesh3D,
        Layerwise,
        RoundRobin,
        Random,
        Ddp,
        Single,
    )
}
