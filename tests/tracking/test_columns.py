"""A method's run has the parameters that tell it from others, and a name that says what it is."""

from __future__ import annotations

from netsplit.tracking.values import parameters, title

CONFIG = {
    "model": {"_target_": "netsplit.models.amoebanet_d", "num_layers": 3, "small_images": True},
    "cluster": {
        "_target_": "netsplit.cluster.local.local_cluster",
        "port": 0,
        "devices": [{"name": "cpu:0", "capacity": "120MiB"}, {"name": "cpu:1", "capacity": None}],
    },
    "partitioner": {"m_topo": {"_target_": "M", "order": "time"}, "random": {"_target_": "R", "seed": 3}},
    "schedule": {"_target_": "netsplit.program.GPipe", "microbatches": 4},
    "optimizer": {"_target_": "torch.optim.SGD", "_partial_": True, "lr": 0.02},
    "tracking": {"_target_": "T", "uri": "sqlite:///x.db"},
    "checkpoint": {"keep": 2},
    "batch_size": 64,
    "clip_norm": None,
}


def test_columns_are_short_and_flat() -> None:
    labels = {"model": "AmoebaNetD", "cluster": "cpu2", "schedule": "gpipe", "methods": "m_topo, random"}
    assert parameters(CONFIG, labels, "m_topo") == {
        "model": "AmoebaNetD",
        "cluster": "cpu2",
        "schedule": "gpipe",
        "partitioner": "m_topo",
        "optimizer": "SGD",
        "model.num_layers": "3",
        "model.small_images": "True",
        "cluster.devices": "cpu:0 120MiB, cpu:1",
        "partitioner.order": "time",
        "microbatches": "4",
        "optimizer.lr": "0.02",
        "batch_size": "64",
    }


def test_a_name_says_method_model_dataset_cluster_and_schedule() -> None:
    labels = {"schedule": "gpipe", "model": "vgg", "dataset": "digits", "cluster": "cpu2", "mode": "planned"}
    assert title("auto", labels) == "auto · vgg · digits · cpu2 · gpipe"
    assert title("auto") == "auto"
