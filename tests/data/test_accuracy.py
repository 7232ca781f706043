"""The fraction of right classes, over the targets that count."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from netsplit.data import IGNORED
from netsplit.training.parallel import correct

shapes = st.lists(st.integers(1, 4), max_size=3).map(tuple)


@given(rows=st.integers(1, 5), classes=st.integers(2, 6), rest=shapes, seed=st.integers(0, 999))
def test_it_is_counted_one_target_at_a_time(
    rows: int, classes: int, rest: tuple[int, ...], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(rows, classes, *rest, generator=generator)
    targets = torch.randint(-1, classes, (rows, *rest), generator=generator)
    targets[targets == -1] = IGNORED
    flat = scores.movedim(1, -1).reshape(-1, classes).tolist()
    wanted = targets.flatten().tolist()
    counted = [(row, target) for row, target in zip(flat, wanted, strict=True) if target != IGNORED]
    right = sum(max(range(classes), key=row.__getitem__) == target for row, target in counted)
    assert correct(scores, targets) == (right, len(counted))


def test_what_the_loss_ignores_accuracy_ignores() -> None:
    scores, targets = torch.randn(3, 4, 5), torch.full((3, 5), IGNORED)
    targets[0, 0] = 2
    torch.testing.assert_close(
        cross_entropy(scores, targets), cross_entropy(scores[:1, :, 0], targets[:1, 0])
    )
    assert correct(scores, targets)[1] == 1
