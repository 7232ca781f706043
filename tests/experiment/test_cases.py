"""Several comparisons in one config, and what is made of their results."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from omegaconf import DictConfig, OmegaConf

from netsplit.errors import ConfigError
from netsplit.experiment.case_overrides import cases_of
from netsplit.experiment.cases import Cases, cases_figure
from netsplit.experiment.records import Comparison
from netsplit.tracking.table import ComparisonRow
from netsplit.training.history import Throughputs

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
    made = ComparisonRow(method, "heuristic", predicted_s=1.0, throughput=throughput, error=error)
    return too_large(made) if throughput is not None and throughput > 5e3 else made


def too_large(given: ComparisonRow, measured: bool = False) -> ComparisonRow:
    peaks = {"measured_peak" if measured else "predicted_peak": {"a": 2, "b": 1}}
    return replace(given, capacity={"a": 1, "b": 1}, **peaks)


throughputs = st.dictionaries(
    st.sampled_from(["auto", "m_topo", "single"]), st.none() | st.floats(0.01, 1e4), min_size=1
)


@given(drawn=st.dictionaries(st.sampled_from(["a", "b", "c"]), throughputs, min_size=1))
def test_every_figure_is_in_the_csv_and_the_most_of_each_case_is_marked(
    drawn: dict[str, dict[str, float | None]],
) -> None:
    comparisons = {
        case: Comparison(Path(), [row(method, value) for method, value in each.items()])
        for case, each in drawn.items()
    }
    cases = Cases(comparisons, {"a": {"auto": 2.0}})
    lines = list(csv.DictReader(io.StringIO(cases.csv())))
    assert [(line["case"], line["method"]) for line in lines] == [
        (case, method) for case, each in drawn.items() for method in each
    ]
    for line in lines:
        value = drawn[line["case"]][line["method"]]
        assert line["samples_per_s"] == ("" if value is None else str(value))
        known = line["case"] == "a" and line["method"] == "auto"
        assert line["published"] == ("2.0" if known else "")
        if known and value is not None:
            assert float(line["difference"]) == pytest.approx(value / 2 - 1)
        assert line["over_capacity"] == ("a" if value is not None and value > 5e3 else "")
    for case, each in drawn.items():
        reached = [value for value in each.values() if value is not None]
        best = {cell.row.method for cell in cases if cell.case == case and cell.best}
        fitting = [value for value in reached if value <= 5e3]
        most = max(fitting, default=None) if len(reached) > 1 else None  # one alone is the most of nothing
        assert best == {method for method, value in each.items() if value is not None and value == most}


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


@pytest.mark.parametrize("measured", [False, True])
def test_what_does_not_fit_its_devices_is_marked_and_is_not_the_most(measured: bool, tmp_path: Path) -> None:
    rows = [row("auto", 12.0), too_large(row("m_topo", 40.0), measured)]
    cases = Cases({"small": Comparison(Path(), rows)}, {"small": {"m_topo": 20.0}})
    table = cases.markdown()
    assert "| `auto` | 12.00* |" in table
    assert "| `m_topo` | !40.00 (20.00, +100 %) |" in table
    assert "! more than the device's limit" in table
    assert "! more than the device's limit" in str(cases.table().caption)
    axes = cases_figure(cases, tmp_path / "cases.png").axes[0]
    assert [text.get_text() for text in axes.texts] == ["12", "!40"]
    assert legend(axes) == ["auto", "m_topo", "published", "! more than the device's limit"]


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


def test_least_mean_and_greatest_of_measured_iterations_are_told(tmp_path: Path) -> None:
    measured = replace(row("auto", 12.0), throughputs=Throughputs(10.5, 12.25, 13.0))
    cases = Cases({"small": Comparison(Path(), [measured, row("m_topo", 4.0)])})
    assert "| `auto` | 10.50 / 12.25 / 13.00 |" in cases.markdown()
    assert "| `m_topo` | - |" in cases.markdown()
    line, other = csv.DictReader(cases.csv().splitlines())
    names = [f"{which}_samples_per_s" for which in ("least", "mean", "greatest")]
    assert [line[name] for name in names] == ["10.5", "12.25", "13.0"]
    assert [other[name] for name in names] == ["", "", ""]
    assert "least" not in Cases({"small": Comparison(Path(), [row("auto", 12.0)])}).markdown()


def test_how_far_a_case_agrees_with_what_was_published_is_told(tmp_path: Path) -> None:
    ours = [row("auto", 20.0), row("m_topo", 10.0), row("single", 5.0)]
    cases = Cases({"small": Comparison(tmp_path, ours)}, {"small": {"auto": 21.0, "m_topo": 9.0}})
    assert "| small | 2 | 2 | +1.00 | 100.0 | 133.3 |" in cases.markdown()
    assert "Kendall" not in Cases(cases.comparisons).markdown()


def test_a_case_of_which_nothing_fits_has_no_most() -> None:
    rows = [too_large(row("auto", 12.0)), too_large(row("m_topo", 4.0))]
    assert "*" not in Cases({"small": Comparison(Path(), rows)}).markdown()


def test_the_picture_s_legend_has_methods_that_the_first_case_has_not(tmp_path: Path) -> None:
    comparisons = {name: Comparison(Path(), [row(name, 3.0)]) for name in ("auto", "m_topo")}
    assert legend(cases_figure(Cases(comparisons), tmp_path / "cases.png").axes[0]) == ["auto", "m_topo"]


def legend(axes: Axes) -> list[str]:
    box = axes.get_legend()
    assert box is not None
    return [text.get_text() for text in box.get_texts()]


@pytest.mark.parametrize("name", ["b|c", "d/../../..", "..", ".hidden", "two words", "", "a\\b", "a\nb"])
def test_a_case_s_name_can_be_a_folder_s(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^a case is called .*: give it letters, digits, _, - and \."):
        cases_of(with_cases(**{"fine": {}, name: {"batch_size": 3}}))


def test_names_of_letters_digits_and_a_few_signs_are_cases() -> None:
    names = ["a-b_c.d", "1f1b", "_", "größer"]
    assert list(cases_of(with_cases(**{name: {"batch_size": 3} for name in names}))) == names


def test_one_method_is_the_most_of_nothing() -> None:
    cases = Cases({"small": Comparison(Path(), [row("auto", 12.0)])})
    assert "*" not in cases.markdown()
    assert cases.table().caption is None
