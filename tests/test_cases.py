"""Several comparisons in one config, and what is made of their results."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from netsplit.cases import Cases, cases_figure
from netsplit.errors import ConfigError
from netsplit.records import Comparison
from netsplit.tracking.table import ComparisonRow
from runners._cases import cases_of

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
    found = OmegaConf.merge(CONFIG, {"cases": cases})
    assert isinstance(found, DictConfig)
    return found


def test_what_is_built_is_replaced_and_the_rest_merged() -> None:
    small = {"model": {"_target_": "x.y"}, "schedule": {"microbatches": 2}, "batch_size": 8}
    other = {"partitioner": {"m_topo": {"_target_": "g.h"}}}
    found = cases_of(with_cases(small=small, other=other))
    assert list(found) == ["small", "other"]
    assert found["small"].model == {"_target_": "x.y"}
    assert found["small"].schedule == {"_target_": "c.d", "microbatches": 2}
    assert found["small"].batch_size == 8
    assert found["small"].partitioner == CONFIG.partitioner
    assert list(found["other"].partitioner) == ["m_topo"]
    assert found["other"].batch_size == 64
    assert all(case.cases is None for case in found.values())


def test_without_cases_there_are_none_and_an_unknown_key_is_named() -> None:
    assert cases_of(CONFIG) == {}
    with pytest.raises(ConfigError, match=r"cases\.one\.batchsize is not a config key: .*batch_size"):
        cases_of(with_cases(one={"batchsize": 3}))


def row(method: str, throughput: float | None) -> ComparisonRow:
    error = None if throughput is not None else "no room"
    return ComparisonRow(method, "heuristic", predicted_s=1.0, throughput=throughput, error=error)


throughputs = st.dictionaries(
    st.sampled_from(["auto", "m_topo", "single"]), st.none() | st.floats(0.01, 1e4), min_size=1
)


@given(found=st.dictionaries(st.sampled_from(["a", "b", "c"]), throughputs, min_size=1))
def test_every_figure_is_in_the_csv_and_the_most_of_each_case_is_marked(
    found: dict[str, dict[str, float | None]],
) -> None:
    comparisons = {
        case: Comparison(Path(), [row(method, value) for method, value in each.items()])
        for case, each in found.items()
    }
    cases = Cases(comparisons, {"a": {"auto": 2.0}})
    lines = list(csv.DictReader(io.StringIO(cases.csv())))
    assert [(line["case"], line["method"]) for line in lines] == [
        (case, method) for case, each in found.items() for method in each
    ]
    for line in lines:
        value = found[line["case"]][line["method"]]
        assert line["samples_per_s"] == ("" if value is None else str(value))
        known = line["case"] == "a" and line["method"] == "auto"
        assert line["published"] == ("2.0" if known else "")
        if known and value is not None:
            assert float(line["difference"]) == pytest.approx(value / 2 - 1)
    for case, each in found.items():
        reached = [value for value in each.values() if value is not None]
        best = {cell.row.method for cell in cases if cell.case == case and cell.best}
        most = max(reached) if len(reached) > 1 else None  # one alone is the most of nothing
        assert best == {method for method, value in each.items() if value is not None and value == most}


def test_the_table_shows_what_was_published_and_a_failure(tmp_path: Path) -> None:
    found = {
        "small": Comparison(Path(), [row("auto", 12.0), row("m_topo", None)]),
        "large": Comparison(Path(), [row("auto", 3.0), row("m_topo", 4.0)]),
    }
    cases = Cases(found, {"small": {"auto": 10.0}})
    cases.write(tmp_path)
    table = (tmp_path / "cases.md").read_text()
    assert "| `auto` | 12.00 (10.00, +20 %) | 3.00 |" in table
    assert "| `m_topo` | failed | 4.00* |" in table
    assert cases.table().row_count == 2
    axes = cases_figure(cases, tmp_path / "cases.png").axes[0]
    assert [bar.get_height() for bar in axes.patches] == [12.0, 3.0, 0.0, 4.0]
    assert (tmp_path / "cases.png").stat().st_size > 1000


def test_one_method_is_the_most_of_nothing() -> None:
    cases = Cases({"small": Comparison(Path(), [row("auto", 12.0)])})
    assert "*" not in cases.markdown()
    assert cases.table().caption is None
