"""What judges the zoo sees what is wrong: in values, in reasons, in processes that end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.capture import __main__ as capture
from benchmarks.capture.workers import judged
from tests.models_of_people import harness, plain
from tests.models_of_people.cases import all_cases
from tests.models_of_people.harness import EQUAL, FAILED, REFUSED, WRONG, Outcome, as_expected, judge

CASES = all_cases()
TIED = CASES["sharing/tied_object"]


def test_a_parameter_that_is_trained_from_another_value_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    given = harness.initial_values

    def shifted(*arguments: object) -> dict[str, torch.Tensor]:
        return {k: t.detach() + 1e-6 for k, t in given(*arguments).items()}  # type: ignore[arg-type]

    monkeypatch.setattr(harness, "initial_values", shifted)
    assert judge(TIED).kind == WRONG


def test_a_model_that_capture_changes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    given = harness.capture

    def writing(model: torch.nn.Module, *rest: object) -> object:
        graph = given(model, *rest)  # type: ignore[arg-type]
        with torch.no_grad():
            next(model.parameters()).add_(1e-12)
        return graph

    monkeypatch.setattr(harness, "capture", writing)
    assert judge(TIED).message.startswith("capture changed the model")


def test_an_error_that_is_no_refusal_counts_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("no such thing")

    monkeypatch.setattr(harness, "capture", broken)
    outcome = judge(TIED)
    assert outcome.kind == FAILED
    assert "no such thing" in outcome.message


@pytest.mark.parametrize(
    ("expect", "outcome", "right"),
    [
        ("equal", Outcome(EQUAL), True),
        ("equal", Outcome(REFUSED, "a hook"), False),
        ("refused", Outcome(EQUAL), False),
        ("refused", Outcome(REFUSED, "has a Hook"), True),
        ("refused", Outcome(REFUSED, "no idea"), False),
        ("either", Outcome(EQUAL), True),
        ("either", Outcome(REFUSED, "no idea"), False),
        ("either", Outcome(WRONG, "hook"), False),
        ("refused", Outcome(FAILED, "hook"), False),
    ],
)
def test_only_the_expected_outcome_for_the_true_reason_is_right(
    expect: str, outcome: Outcome, right: bool
) -> None:
    case = replace(TIED, expect=expect, reason="hook")
    assert (as_expected(case, outcome) == "") is right


def test_the_plain_loop_cuts_what_is_as_long_as_the_batch() -> None:
    batch = ({"x": torch.arange(7), "table": torch.arange(3), "names": ["a"]}, (torch.arange(7), 0.5))
    pieces = list(plain.pieces_of(batch, 2))
    assert [fraction for fraction, _ in pieces] == [4 / 7, 3 / 7]
    (_, first), (_, second) = pieces
    assert first[0]["x"].tolist() == [0, 1, 2, 3]
    assert second[1][0].tolist() == [4, 5, 6]
    assert second[0]["table"].tolist() == [0, 1, 2]
    assert (second[0]["names"], second[1][1]) == (["a"], 0.5)


@pytest.mark.slow
def test_a_model_that_ends_its_process_costs_itself_only() -> None:
    names = ["sharing/tied_object", "no/such_case", "sharing/siamese"]
    outcomes = list(judged("people", names, timeout_s=60))
    assert [each.name for each in outcomes] == names
    assert [each.kind for each in outcomes] == [EQUAL, FAILED, EQUAL]
    assert outcomes[0].operators > 0


@pytest.mark.slow
def test_a_worker_that_hangs_is_named_and_replaced() -> None:
    names = ["sharing/tied_object", "sharing/siamese"]
    outcomes = list(judged("people", names, timeout_s=0.01))
    assert [each.name for each in outcomes] == names
    assert all("took more than" in each.message for each in outcomes)


@pytest.mark.slow
def test_the_command_prints_a_table_and_keeps_all_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "capture.json"
    given = [
        "--only",
        "people",
        "--json",
        str(file),
        "--name",
        "sharing/siamese",
        "data_dependent/early_exit",
    ]
    assert capture.main(given) == 0
    (first, second) = json.loads(file.read_text())["families"]["people"]
    assert (first["kind"], second["kind"]) == (REFUSED, EQUAL)
    assert "100.0%" in capsys.readouterr().out


def test_names_that_no_family_has_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert capture.main(["--only", "people", "--name", "nothing"]) == 1
    assert "No model" in capsys.readouterr().out
