"""Several comparisons in one config, and what is made of their results."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from netsplit.errors import ConfigError
from netsplit.tracking.cases import Cases, cases_figure
from netsplit.tracking.records import Comparison
from netsplit.tracking.table import ComparisonRow
from runners._case_overrides import cases_of

CONFIG = OmegaConf.create(
    {
        "model": {"_target_": "a.b", "layers": 3, "width": 8},
        "schedule": {"_target_": "c.d", "microbatches": 4},
        "partitioner": {"auto": {"_target_": "e.f"}},
        "batch_size": 64,
        "cases": None,
        "published": None,
    }
)


def with_cases(**cases: object) -> DictConfig:
    config = OmegaConf.merge(CONFIG, {"cases": cases})
    assert isinstance(config, DictConfig)
    return config


def test_what_is_built_is_replaced_and_the_rest_merged() -> None:
    small = {"model": {"_target_": "x.y"}, "schedule": {"microbatches": 2}, "batch_size": 8}
    other = {"partitioner": {"m_topo": {"_target_": "g.h"}}}
    configs = cases_of(with_cases(small=small, other=other))
    assert list(configs) == ["small", "other"]
    assert configs["small"].model == {"_target_": "x.y"}
    assert configs["small"].schedule == {"_target_": "c.d", "microbatches": 2}
    assert configs["small"].batch_size == 8
    assert configs["small"].partitioner == CONFIG.partitioner
    assert list(configs["other"].partitioner) == ["m_topo"]
    assert configs["other"].batch_size == 64
    assert all(case.cases is None for case in configs.values())


def test_without_cases_there_are_none_and_an_unknown_key_is_named() -> None:
    assert cases_of(CONFIG) == {}
    with pytest.raises(ConfigError, match=r"cases\.one\.batchsize is not a config key: .*batch_size"):
        cases_of(with_cases(one={"batchsize": 3}))


def row(method: str, throughput: float | None) -> ComparisonRow:
    error = None if throughput is not None else "no room"
    return ComparisonRow(method, "heuristic", predicted_s=1.0, throughput=throughput, error=error)


def test_the_table_shows_what_was_published_and_a_failure(tmp_path: Path) -> None:
    comparisons = {
        "small": Comparison(Path(), [row("auto", 12.0), row("m_topo", None)]),
        "large": Comparison(Path(), [row("auto", 3.0), row("m_topo", 4.0)]),
    }
    cases = Cases(comparisons, {"small": {"auto": 10.0}})
    cases.write(tmp_path)
    table = (tmp_path / "cases.md").read_text()
    assert "| `auto` | 12.00 (10.00, +20 %) | 3.00 |" in table
    assert "| `m_topo` | failed | 4.00* |" in table
    assert cases.table().row_count == 2
    axes = cases_figure(cases, tmp_path / "cases.png").axes[0]
    assert [bar.get_height() for bar in axes.patches] == [12.0, 3.0, 0.0, 4.0]
    assert (tmp_path / "cases.png").stat().st_size > 1000


def test_a_method_without_an_answer_in_time_is_said_to_have_none(tmp_path: Path) -> None:
    """What took its place is the fastest here, and stands nowhere."""
    filled = replace(row("pesto", 99.0), status="limit", solve_s=60.0)
    solved = replace(row("netsplit", 12.0), status="optimal", gap=0.0123, solve_s=1.5)
    published = {"small": {"pesto": 90.0, "netsplit": 10.0}}
    cases = Cases({"small": Comparison(tmp_path, [filled, solved, row("auto", 11.0)])}, published)
    cases.write(tmp_path)
    table = (tmp_path / "cases.md").read_text()
    assert "99" not in table
    assert "| `pesto` | no answer in time |" in table
    assert "| `netsplit` | 12.00* (10.00, +20 %) |" in table
    assert "| `pesto` | limit, 60.0 s |" in table
    assert "| `netsplit` | optimal, gap 1.23 %, 1.5 s |" in table
    first, second, _ = csv.DictReader((tmp_path / "cases.csv").read_text().splitlines())
    assert (first["status"], first["samples_per_s"], first["difference"]) == ("limit", "", "")
    assert (second["status"], second["gap"]) == ("optimal", "0.0123")
    assert cases.agreement == {}  # one figure alone agrees with nothing
    axes = cases_figure(cases, tmp_path / "cases.png").axes[0]
    assert [text.get_text() for text in axes.texts] == ["no answer in time", "12", "11"]


@pytest.mark.parametrize("name", ["b|c", "d/../../.."])
def test_a_case_s_name_can_be_a_folder_s(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^a case is called .*: give it letters, digits, _, - and \."):
        cases_of(with_cases(**{"fine": {}, name: {"batch_size": 3}}))
