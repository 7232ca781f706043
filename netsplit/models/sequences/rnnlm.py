"""RNNLM: the next token of a text, by layers of LSTM.

    tokens -> embedding -> dropout -> LSTM -> dropout -> ... -> scores

Zaremba, Sutskever and Vinyals, "Recurrent Neural Network Regularization", 2014: the large model. Every
sample begins with a state of zeros, where the paper hands the state on to the next piece of the text.
"""

from __future__ import annotations

from torch import Tensor, nn

from netsplit.models._sizes import check_fraction, check_least

__all__ = ["RNNLM", "rnnlm"]


class RNNLM(nn.Module):
    """Tokens (n, t), int64 -> scores (n, vocabulary, t) of the next ones."""

    def __init__(self, *, vocabulary: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers))
        self.scores = nn.Linear(width, vocabulary)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.04, 0.04)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.dropout(self.tokens(tokens))
        for layer in self.layers:
            x = self.dropout(layer(x)[0])
        return self.scores(x).transpose(1, 2)


def rnnlm(vocabulary: int = 10000, width: int = 1500, layers: int = 2, dropout: float = 0.65) -> nn.Module:
    """RNNLM, by default the large one.

    Args:
        vocabulary: number of different tokens.
        width: features of a token and of every layer's state.
        layers: of LSTM.
        dropout: probability before and after every layer.
    """
    check_least(1, vocabulary=vocabulary, width=width, layers=layers)
    check_fraction(dropout=dropout)
    return RNNLM(vocabulary=vocabulary, width=width, layers=layers, dropout=dropout)
