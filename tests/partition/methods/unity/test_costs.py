"""The programme's seconds are about those that the simulator foresees for its answer."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import pytest
import torch
from torch import nn

from netsplit.cluster.described import ClusterDescription, uniform_cluster
from netsplit.graph import capture
from netsplit.graph.ir import Graph
from netsplit.models import dlrm, gpt
from netsplit.partition import Unity
from netsplit.partition.methods.unity.choices import Dimension
from netsplit.partition.methods.unity.unity import UnitySearch
from netsplit.planning.workload import Workload
from netsplit.profile.costs import Costs
from tests.partition.methods.unity.test_mapping import layers

LOSS, V100 = nn.CrossEntropyLoss(), "V100-SXM2-16GB"


def wide() -> Graph:
    return capture(layers(1024, 4096, 4096, 4096, 10), LOSS, (torch.randn(256, 1024), classes(256)))


def recommender() -> Graph:
    model = dlrm(tables=(20000,) * 4, bottom=(16, 64, 64), top=(512, 512))
    return capture(model, LOSS, ((torch.randn(1024, 16), classes(1024, 4, 2)), classes(1024)))


def text() -> Graph:
    """With dropout, which stays whole."""
    model = gpt(vocabulary=2000, context=128, layers=2, heads=8, width=512, dropout=0.1)
    return capture(model, LOSS, (classes(16, 128), classes(16, 128)))


def classes(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.long)


MODELS: list[Callable[[], Graph]] = [wide, recommender, text]
CLUSTERS: list[ClusterDescription] = [
    uniform_cluster(4, 45e9, latency=1e-5, model=V100),
    uniform_cluster(8, 45e9, latency=1e-5, model=V100),
    uniform_cluster([8, 2], [45e9, 11.5e9], latency=[1e-5, 2e-5], model=V100),
]
WITHOUT_SAMPLES: tuple[Dimension, ...] = ("columns", "reduction", "heads", "copies")
DIMENSIONS: list[tuple[Dimension, ...]] = [("samples",), WITHOUT_SAMPLES]


@pytest.mark.slow
def test_its_seconds_are_about_the_simulators() -> None:
    """To 10 % at the median and 25 % at worst."""
    errors = []
    for build in MODELS:
        graph = build()
        for cluster in CLUSTERS:
            problem = Workload("some", graph, Costs({}, 3)).problem(cluster, "simulated", memory="lifetimes")
            for dimensions in DIMENSIONS:
                search = UnitySearch(Unity(dimensions=dimensions, algebra=False), problem)
                simulated_s = search.programme(graph, "the programme").seconds
                errors.append(abs(search.mapped.seconds / simulated_s - 1))
    assert median(errors) < 0.1
    assert max(errors) < 0.25


def test_data_parallelism_costs_the_programme_no_more_than_its_answer() -> None:
    """The loss is cut, too, so that scores need not come to one device."""
    problem = Workload("text", text(), Costs({}, 3)).problem(CLUSTERS[0], "simulated", memory="lifetimes")
    search = UnitySearch(Unity(dimensions=["samples"], algebra=False), problem)
    own = search.programme(problem.graph, "the programme")
    assert own.seconds <= min(each.seconds for each in search.others() if "data" in each.origin)
    assert search.mapped.choices["cross_entropy_loss"].axes
