"""`python -m runners.compare` around its comparisons: what they are told, and what is refused before them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from netsplit.tracking.records import Comparison
from runners import _compared, compare

Run = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command with no work done; answers its exit code, and the tag `command` of each comparison."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    began: list[str] = []

    def nothing(
        parts: object,
        name: str,
        labels: dict[str, str],
        folder: Path,
        console: object,
        command: object = None,
    ) -> Comparison:
        began.append(labels["command"])
        folder.mkdir(parents=True, exist_ok=True)
        return Comparison(folder)

    def call(*arguments: str) -> tuple[int, list[str]]:
        monkeypatch.setattr("sys.argv", ["compare", *arguments, "experiment=quick"])
        try:
            compare.main()
        except SystemExit as end:
            return int(end.code or 0), began
        return 0, began

    monkeypatch.setattr(_compared, "one", nothing)
    return call


def test_comparisons_of_one_command_have_one_tag(run: Run) -> None:
    arguments = ["--multirun", "hydra.sweep.dir=outer/sweep", "seed=0,1"]
    assert run(*arguments, "tracking=none") == (0, ["sweep", "sweep"])


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        (
            "loss=None",
            "loss is 'None': name a callable that returns it, such as loss._target_=my_package.loss.",
        ),
        ("resume=/nowhere", "resume is '/nowhere', where there is no complete checkpoint"),
        (f"resume={__file__}", f"resume is '{__file__}', a file of parameters only: give never"),
        ("model._target_=builtins.dict", "model._target_ is builtins.dict, which has no readable signature"),
    ],
)
def test_what_cannot_be_built_or_gone_on_from_is_said_and_nothing_is_left(
    run: Run, word: str, sentence: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(word) == (2, [])
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"error: {sentence}")
    assert not list(tmp_path.iterdir())
