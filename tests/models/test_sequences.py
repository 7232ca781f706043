"""Recurrent models and the Transformer: their sizes by arithmetic, and what a token's score depends on."""

from __future__ import annotations

import pytest
import torch

from netsplit.beside_torchvision import import_torchvision
from netsplit.models import alexnet, gnmt, rnnlm, transformer

VOCABULARY = 13
SMALL = {
    "transformer": lambda: transformer(VOCABULARY, 9, 2, 2, 8, 12, 0.0),
    "gnmt": lambda: gnmt(VOCABULARY, 8, 3, 0.0),
    "rnnlm": lambda: rnnlm(VOCABULARY, 8, 2, 0.0),
}


def test_an_alexnet_is_torchvisions() -> None:
    wanted = import_torchvision().models.alexnet(num_classes=3, dropout=0.0)
    model = alexnet(3, dropout=0.0)
    model.load_state_dict(wanted.state_dict())
    images = torch.randn(2, 3, 70, 64)
    assert torch.equal(model(images), wanted(images))


@pytest.mark.parametrize("name", SMALL)
def test_a_score_goes_by_no_later_token_of_the_target(name: str) -> None:
    torch.manual_seed(0)
    model = SMALL[name]().eval()
    tokens, source = torch.randint(0, VOCABULARY, (2, 7)), torch.randint(0, VOCABULARY, (2, 5))
    given = () if name == "rnnlm" else (source,)
    later = tokens.clone()
    later[:, 4:] = (later[:, 4:] + 1) % VOCABULARY
    before, after = (model(*given, each) for each in (tokens, later))
    assert before.shape == (2, VOCABULARY, 7)
    torch.testing.assert_close(before[:, :, :4], after[:, :, :4])
    assert not torch.equal(before[:, :, 4:], after[:, :, 4:])
