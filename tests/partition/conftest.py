"""What the tests of the methods have in common."""

import pytest


@pytest.fixture
def few_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Annealing ends by its moves, also on a busy machine, and in little time."""
    monkeypatch.setattr("netsplit.partition.engines.search.MOVES_A_CHOICE", 30)
