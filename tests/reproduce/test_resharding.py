"""`reproduce.resharding`: AlpaComm's cases as the configs have them; what holds of their figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from torch import nn

from netsplit.errors import ConfigError
from reproduce import (
    StudyResult,
    layer_bytes,
)
from reproduce.command import STUDIES
from reproduce.question import question
from tests.reshard.table_2 import TABLE_2


def asked(name: str, folder: Path, *changes: str) -> StudyResult:
    with initialize_config_dir(str(STUDIES), version_base="1.3"):
        cfg = compose("study", [f"experiment={name}", *changes])
    return question(cfg.study, folder)()


def test_table_2_reaches_the_optima_and_explains_at_most_a_factor_of_two(tmp_path: Path) -> None:
    """Scheduling alone, by the paper's own model of hosts and cards; 3 to 10 are printed."""
    result = asked("alpacomm_table_2", tmp_path)
    whole_s = 1024 * 1024 * 512 * 4 / 1.25e9
    assert len(result.rows) == len(TABLE_2)
    for row, case in zip(result.rows, TABLE_2.values(), strict=True):
        cells = dict(zip((column.name for column in result.columns), row, strict=True))
        assert cells["unit tasks"] == case.tasks
        for name, units in (("naive", case.naive), ("size only", case.size_only), ("depth first", case.best)):
            seconds = cells[f"{name} (ms)"]
            assert seconds == pytest.approx(
                units * whole_s * (170 / 512 * 3 if row[0] == "6" else 1), rel=0.01
            )
        assert 1.0 <= float(cells["over naive"] or 0) <= 2.01
        assert 1.0 <= float(cells["over Alpa"] or 0) <= 2.05


def test_figure_5_has_the_shape_that_is_printed(tmp_path: Path) -> None:
    """On one host send/receive grows with the devices and the others do not; on more the all-gather does."""
    result = asked("alpacomm_figure_5", tmp_path)
    columns = {column.name.removesuffix(" (ms)"): result.column(column.name) for column in result.columns}
    one = float(columns["naive"][0] or 0)
    grown = {
        name: [float(cell or 0) / one for cell in columns[name]]
        for name in ("send/receive", "global all-gather", "naive")
    }
    assert grown["send/receive"] == pytest.approx([1, 2, 3, 4, 4, 6, 8])
    assert max(grown["global all-gather"][:4]) < 1.03
    assert min(grown["global all-gather"][4:]) > 1.7
    assert max(grown["naive"][:4]) < 1.01
    assert max(grown["naive"]) < 1.04


@pytest.mark.parametrize("hidden", [8, 48])
def test_a_layers_weights_are_those_of_torchs_own_layer(hidden: int) -> None:
    layer = nn.TransformerEncoderLayer(hidden, 4, 4 * hidden)
    whole = layer_bytes(hidden, 16, 2, parts=1)
    assert whole.metrics["weights_bytes"] == 2 * sum(p.numel() for p in layer.parameters())
    assert whole.metrics["activation_bytes"] == 2 * 16 * hidden * 2


def test_table_1_is_of_gpt_3(tmp_path: Path) -> None:
    result = asked("alpacomm_table_1", tmp_path)
    assert result.column("MiB") == pytest.approx(
        [432.2 * 2**20, 2593.0 * 2**20, 48 * 2**20, 384 * 2**20], rel=1e-4
    )
    with pytest.raises(ConfigError, match="at least 1 each"):
        layer_bytes(parts=0)
