"""The Hydra options of the partitioners."""

from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from netsplit.partition import MTopo, NetSplit, Random, Single

CONF = str(Path(__file__).parents[2] / "conf")


def test_several_partitioners_can_be_chosen_at_once_and_keep_their_defaults():
    with initialize_config_dir(CONF, version_base="1.3"):
        config = compose(overrides=["+partitioner=[netsplit,m_topo,single,random]"])
    made = {name: instantiate(option) for name, option in config.partitioner.items()}
    assert made == {"netsplit": NetSplit(), "m_topo": MTopo(), "single": Single(), "random": Random()}
