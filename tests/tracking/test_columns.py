"""A method's run has the parameters that tell it from others, and a name that says what it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from netsplit.tracking.columns import parameters, title

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


def test_of_the_methods_only_the_own_settings_are_told() -> None:
    columns = parameters(CONFIG, {}, "random")
    assert columns["partitioner.seed"] == "3"
    assert "partitioner.order" not in columns
    assert columns["model"] == "amoebanet_d"


def test_a_run_without_config_has_its_labels() -> None:
    assert parameters(None, {"model": "a"}, "single") == {"model": "a", "partitioner": "single"}


def test_a_name_says_method_model_dataset_cluster_and_schedule() -> None:
    labels = {"schedule": "gpipe", "model": "vgg", "dataset": "digits", "cluster": "cpu2", "mode": "planned"}
    assert title("auto", labels) == "auto · vgg · digits · cpu2 · gpipe"
    assert title("auto") == "auto"


nested = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("abc/ ", max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("ab_", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["model", "partitioner", "tracking", "epochs", "loss"]), nested))
def test_any_config_becomes_words(config: dict[str, object]) -> None:
    columns = parameters(config, {}, "m")
    assert all(isinstance(value, str) for value in columns.values())
    assert not [key for key in columns if key.startswith(("tracking", "_"))]
    assert "None" not in columns.values()
    assert columns["partitioner"] == "m"
